/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Output of variable size, for C++17: parts.h with an owner.
 *
 *     overhear::message_sensor<> log("log", overhear::options().capacity(1024));
 *     log.write("a line of any length");
 *
 * A message is split over as many elements as it needs, and rejoined by the reader; one of which an
 * element was missed is lost as a whole, and counted. The sensor needs room for the parts of
 * several of the longest messages: capacity.
 */
#ifndef OVERHEAR_PARTS_HPP
#define OVERHEAR_PARTS_HPP

#include <cstddef>
#include <string_view>

#include "parts.h"
#include "sensor.hpp"

namespace overhear {

/* An element that carries data_bytes of a message. */
template <std::size_t data_bytes> struct part {
    static_assert(data_bytes % 8 == 0 && data_bytes > 0 && data_bytes <= OH_MAX_PAYLOAD - 16,
                  "a part carries 8 to 4072 bytes of a message, a multiple of 8");
    std::uint64_t message;
    std::uint32_t number;
    std::uint32_t bytes;
    char data[data_bytes];
};

/* The same as OVERHEAR_FIELDS for other elements; the names are those of OH_PART_FIELDS. */
template <std::size_t data_bytes> constexpr auto overhear_describe(const part<data_bytes> *)
{
    using element = part<data_bytes>;
    return detail::describe(
        "message", detail::field<std::uint64_t>("message", offsetof(element, message), ""),
        detail::field<std::uint32_t>("part", offsetof(element, number), ""),
        detail::field<std::uint32_t>("bytes", offsetof(element, bytes), "B"),
        detail::field<char[data_bytes]>("data", offsetof(element, data), ""));
}

/*
 * A sensor for messages of any length. One thread at a time may write to it. Elements have four
 * cache lines unless another value is given: larger ones waste more on short messages, smaller
 * ones need more elements for long ones.
 */
template <std::size_t data_bytes = 232> class message_sensor {
  public:
    /* No sensor yet. */
    message_sensor() noexcept = default;

#if defined(__cpp_exceptions)
    /* Registers a sensor; as sensor's. */
    explicit message_sensor(const char *id, const options &settings = options())
        : parts_(id, settings)
    {
    }
#endif

    /* The same without exceptions; as sensor::try_register. */
    static message_sensor try_register(const char *id,
                                       const options &settings = options()) noexcept
    {
        message_sensor made;
        made.parts_ = sensor<part<data_bytes>>::try_register(id, settings);
        return made;
    }

    explicit operator bool() const noexcept
    {
        return bool(parts_);
    }

    /* Writes a message; false if it has 4 GiB or more, and then nothing is written. Wait-free; its
       time grows with the length of the message alone. See oh_parts_write. */
    bool write(std::string_view bytes) noexcept
    {
        assert(bool(parts_) && "write: the sensor was moved from or not registered");
        return oh_parts_write(parts_.handle(), &message_, bytes.data(), bytes.size()) == 0;
    }

    /* Registers a sensor that no directory owns again; see sensor. Messages are numbered from 0 in
       the new stream. */
    bool register_again() noexcept
    {
        const bool connected = parts_.register_again();
#ifndef OVERHEAR_DISABLE
        if (parts_.handle()->count == 0)
            message_ = 0;
#endif
        return connected;
    }

    /* The sensor whose elements are the parts. */
    const sensor<part<data_bytes>> &parts() const noexcept
    {
        return parts_;
    }

  private:
    sensor<part<data_bytes>> parts_;
    std::uint64_t message_ = 0;
};

} // namespace overhear

#endif /* OVERHEAR_PARTS_HPP */
