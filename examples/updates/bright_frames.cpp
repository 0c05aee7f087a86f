// SPDX-License-Identifier: MIT OR Apache-2.0
// bright_frames.c as a class:
//
//     c++ -std=c++17 -shared -fPIC -Iinclude examples/updates/bright_frames.cpp -o bright_frames.so
#include <algorithm>
#include <array>
#include <cstdlib>

#include <overhear/update.hpp>

class bright_frames : public overhear::update {
  public:
    explicit bright_frames(const char *argument)
        : threshold_(*argument ? std::strtoul(argument, nullptr, 10) : 200)
    {
    }

    // Speculative: the writer may overwrite the frame meanwhile. Nothing but is_bright_ changes.
    bool prepare(const overhear::in_place &frame) override
    {
        const std::size_t size = frame.stream().payload_size;
        std::array<std::uint8_t, 64> block;
        is_bright_ = false;
        for (std::size_t at = pixels_at; at < size && !is_bright_; at += block.size()) {
            const std::size_t count = std::min(block.size(), size - at);
            frame.load(at, block.data(), count);
            is_bright_ = has_bright(block.data(), count);
        }
        return true;
    }
    void commit(const oh_element_key &, bool valid) override
    {
        if (!valid)
            return;
        frames_++;
        in_place_++;
        bright_ += is_bright_;
    }

    // The same for a copy, as a recording has them.
    void element(const oh_element_view &frame) override
    {
        const std::size_t size = frame.stream->payload_size;
        frames_++;
        if (size > pixels_at)
            bright_ += has_bright(static_cast<const std::uint8_t *>(frame.payload) + pixels_at,
                                  size - pixels_at);
    }

    void report(overhear::report &report) override
    {
        report.set("frames", frames_);
        report.set("in_place", in_place_);
        report.set("bright", bright_);
    }

  private:
    // The payload: a number and its pixels.
    static constexpr std::size_t pixels_at = 8;

    bool has_bright(const std::uint8_t *pixels, std::size_t count) const
    {
        return std::any_of(pixels, pixels + count, [&](auto pixel) { return pixel >= threshold_; });
    }

    const unsigned long threshold_;
    bool is_bright_ = false;
    std::uint64_t frames_ = 0, in_place_ = 0, bright_ = 0;
};

static constexpr oh_update exported =
    overhear::exported_in_place(overhear::exported<bright_frames>("bright_frames"));
OH_EXPORT_UPDATES(&exported)
