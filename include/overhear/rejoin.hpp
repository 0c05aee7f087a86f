/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The reader's side of parts.hpp, for updates in C++17: rejoin.h with an owner of the memory.
 *
 *     overhear::rejoiner log(element.stream->payload_size, 4096);
 *     if (const auto message = log.part(element.payload, element.stream->payload_size))
 *         std::cout << *message << '\n';
 */
#ifndef OVERHEAR_REJOIN_HPP
#define OVERHEAR_REJOIN_HPP

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "rejoin.h"

namespace overhear {

/* Joins the parts of one writer; only the constructor allocates. See rejoin.h. */
class rejoiner {
  public:
    /* For elements of this size and messages of at most `largest` bytes. For a stream that is
       already running, pass OH_REJOIN_FROM_NOW. Converts to false if elements of this size carry
       no parts. */
    rejoiner(std::uint32_t payload_size, std::size_t largest, int from = OH_REJOIN_FROM_START)
        : room_(largest)
    {
        (void)oh_rejoiner_begin(&parts_, room_.data(), room_.size(), payload_size, from);
    }

    rejoiner(const rejoiner &) = delete;
    rejoiner &operator=(const rejoiner &) = delete;
    /* The buffer keeps its address. */
    rejoiner(rejoiner &&) noexcept = default;
    rejoiner &operator=(rejoiner &&) noexcept = default;

    explicit operator bool() const noexcept
    {
        return parts_.payload_size != 0;
    }

    /* The message that this part makes whole, which is valid until the next call. */
    std::optional<std::string_view> part(const void *payload, std::uint32_t payload_size) noexcept
    {
        if (oh_rejoiner_part(&parts_, payload, payload_size) == 0)
            return std::nullopt;
        return std::string_view(reinterpret_cast<const char *>(parts_.buffer), parts_.length);
    }

    /* The stream has ended, or elements were missed here. */
    void interrupted() noexcept
    {
        oh_rejoiner_interrupted(&parts_);
    }

    /* The number of the message that came last. */
    std::uint64_t number() const noexcept
    {
        return parts_.number;
    }

    /* Messages of which a part is missing, or that are too long. */
    std::uint64_t lost() const noexcept
    {
        return parts_.lost;
    }

    /* Parts that no honest writer has written. */
    std::uint64_t rejected_corrupt() const noexcept
    {
        return parts_.rejected_corrupt;
    }

  private:
    std::vector<std::uint8_t> room_;
    oh_rejoiner parts_;
};

} // namespace overhear

#endif /* OVERHEAR_REJOIN_HPP */
