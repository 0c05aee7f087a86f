/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. Messages in C++: what lies in the ring afterwards. */
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/parts.hpp>

#include <cstring>
#include <string>
#include <utility>

#include "tap.h"

namespace {

using messages = overhear::message_sensor<16>;

/* Whether the element at a position is this part of this message. */
bool holds(const messages &sensor, std::uint64_t position, std::uint64_t message, std::uint32_t number,
           std::size_t bytes, const std::string &piece)
{
    const oh_sensor *handle = sensor.parts().handle();
    const std::uint8_t *slot =
        handle->base + OH_HEADER_SIZE + (position & handle->mask) * handle->stride;
    overhear::part<16> found;
    std::memcpy(&found, slot + sizeof(oh_element), sizeof found);
    std::string data = piece;
    data.resize(16, '\0');
    return found.message == message && found.number == number && found.bytes == bytes &&
           std::memcmp(found.data, data.data(), 16) == 0;
}

bool is_described_as_in_c()
{
    constexpr auto &own = overhear::detail::description_of<overhear::part<16>>;
    const oh_field in_c[] = {OH_PART_FIELDS(16)};
    bool good = own.fields.size() == 4 && sizeof(overhear::part<16>) == OH_PART_SIZE(16);
    for (std::size_t index = 0; index < 4; index++)
        good = good && std::strcmp(own.fields[index].name, in_c[index].name) == 0 &&
               std::strcmp(own.fields[index].unit, in_c[index].unit) == 0 &&
               own.fields[index].kind == in_c[index].kind &&
               own.fields[index].offset == in_c[index].offset &&
               own.fields[index].size == in_c[index].size;
    return good;
}

} // namespace

static_assert(!std::is_copy_constructible<messages>::value, "move only");

int main()
{
    tap_check(is_described_as_in_c(), "a part is described as in C");
    messages sensor("log", overhear::options().capacity(64));
    tap_check(bool(sensor), "a sensor for messages is registered");
    const std::string binary("a\0b", 3);
    const bool written = sensor.write("sixteen bytes ok") && sensor.write("") &&
                         sensor.write("twenty-seven bytes are here") && sensor.write(binary);
    tap_check(written && sensor.parts().handle()->count == 5, "1, 1, 2 and 1 parts");
    tap_check(holds(sensor, 0, 0, 0, 16, "sixteen bytes ok"), "a part that is full");
    tap_check(holds(sensor, 1, 1, 0, 0, ""), "an empty message is a part of zeros");
    tap_check(holds(sensor, 2, 2, 0, 27, "twenty-seven byt") &&
                  holds(sensor, 3, 2, 1, 27, "es are here"),
              "a long message in order, zeros behind its end");
    tap_check(holds(sensor, 4, 3, 0, 3, binary), "bytes of any value");
    messages moved(std::move(sensor));
    tap_check(!sensor && moved.write("on") && holds(moved, 5, 4, 0, 2, "on"),
              "a moved sensor goes on with its numbers");
    const auto refused = messages::try_register("");
    tap_check(!refused && overhear::last_error()[0] != '\0', "a refusal has a message");
    return tap_done();
}
