/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. Messages rejoined in C++: what one sensor has split. */
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/parts.hpp>
#include <overhear/rejoin.hpp>

#include <string>
#include <utility>

#include "tap.h"

int main()
{
    overhear::message_sensor<8> sensor("log", overhear::options().capacity(64));
    const std::string binary("a\0b", 3);
    const std::string text = "a line of thirty-one characters";
    tap_check(sensor.write(binary) && sensor.write(text) && sensor.write(""), "three messages");
    const oh_sensor *handle = sensor.parts().handle();
    const auto payload = [handle](std::uint64_t position) {
        return handle->base + OH_HEADER_SIZE + (position & handle->mask) * handle->stride +
               sizeof(oh_element);
    };
    const std::uint32_t size = handle->payload_size;
    overhear::rejoiner first(size, 64);
    tap_check(first && !overhear::rejoiner(16, 64), "elements without room for a part carry none");
    const auto whole = first.part(payload(0), size);
    tap_check(whole && *whole == binary, "a message of one part");
    overhear::rejoiner log(std::move(first));
    tap_check(!log.part(payload(1), size) && !log.part(payload(2), size) &&
                  !log.part(payload(3), size),
              "parts of a longer one");
    const auto longer = log.part(payload(4), size);
    tap_check(longer && *longer == text && log.number() == 1, "which comes whole, moved meanwhile");
    const auto empty = log.part(payload(5), size);
    tap_check(empty && empty->empty() && log.lost() == 0, "an empty one");

    overhear::rejoiner gappy(size, 64);
    const bool came = gappy.part(payload(1), size) || gappy.part(payload(3), size);
    tap_check(!came && gappy.lost() == 2, "one that nobody saw, and one with a hole");
    gappy.interrupted();
    const auto last = gappy.part(payload(5), size);
    tap_check(last && gappy.lost() == 2 && gappy.rejected_corrupt() == 0, "and on with the next");
    return tap_done();
}
