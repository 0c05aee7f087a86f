/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: nothing. Messages in parts: what lies in the ring afterwards. */
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/parts.h>

#include "stream.h"
#include "tap.h"

enum { DATA = 13, CAPACITY = 64, STRIDE = 8 + 16 + 16 };

static uint64_t memory[(OH_HEADER_SIZE + CAPACITY * STRIDE) / 8];

static const oh_field fields[] = {OH_PART_FIELDS(DATA)};

/* Whether the element at a position is this part of this message. */
static int holds(const oh_sensor *sensor, uint64_t position, uint64_t message, uint32_t number,
                 uint32_t bytes, const char *piece)
{
    const uint8_t *payload = (const uint8_t *)stream_payload(sensor, position);
    char data[DATA] = {0};
    oh_part part;
    memcpy(&part, payload, sizeof part);
    memcpy(data, piece, strlen(piece));
    return part.message == message && part.part == number && part.bytes == bytes &&
           memcmp(payload + sizeof part, data, DATA) == 0;
}

int main(void)
{
    oh_sensor sensor = stream_begin(memory, OH_PART_SIZE(DATA), CAPACITY, OH_CLOCK_MONOTONIC, 1);
    oh_sensor small = stream_begin(memory, 16, CAPACITY, OH_CLOCK_MONOTONIC, 1);
    uint64_t message = 0;
    int good = 1;
    memset(memory, 0xff, sizeof memory);
    good &= oh_parts_write(&sensor, &message, "thirteen byte", 13) == 0;
    good &= oh_parts_write(&sensor, &message, NULL, 0) == 0;
    good &= oh_parts_write(&sensor, &message, "twenty-seven bytes are here", 27) == 0;
    tap_check(good && message == 3 && sensor.count == 5, "1, 1 and 3 parts");
    tap_check(holds(&sensor, 0, 0, 0, 13, "thirteen byte"), "a part that is full");
    tap_check(holds(&sensor, 1, 1, 0, 0, ""), "an empty message is a part of zeros");
    tap_check(holds(&sensor, 2, 2, 0, 27, "twenty-seven ") &&
                  holds(&sensor, 3, 2, 1, 27, "bytes are her") && holds(&sensor, 4, 2, 2, 27, "e"),
              "a long message in order, zeros behind its end");
    tap_check(oh_parts_write(&small, &message, "a", 1) == -EINVAL && small.count == 0,
              "a sensor without room for a part is refused");
    if (SIZE_MAX > UINT32_MAX)
        tap_check(oh_parts_write(&sensor, &message, "a", (size_t)UINT32_MAX + 1) == -EMSGSIZE &&
                      message == 3 && sensor.count == 5,
                  "a message of 4 GiB is refused");
    tap_check(fields[3].kind == OH_TEXT && fields[3].offset + fields[3].size == OH_PART_SIZE(DATA),
              "the fields cover a part");
    return tap_done();
}
