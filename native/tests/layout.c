/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: nothing. The headers stand alone and agree with docs/abi/stream-layout.md. */

/* Users compile with whatever warnings they like; the headers stay silent under the strictest. */
#pragma GCC diagnostic error "-Wpedantic"
#pragma GCC diagnostic error "-Wshadow"
#pragma GCC diagnostic error "-Wsign-conversion"
#pragma GCC diagnostic error "-Wcast-align"
#include <overhear/abi.h>
#include <overhear/abi.h>
#include <overhear/sensor.h>
#include <overhear/sensor.h>

#include <string.h>

#include "tap.h"

/* A stream as 64-bit words, independent of the structs: offsets are those of section 2. */
static uint64_t words[OH_HEADER_SIZE / 8];

int main(void)
{
    oh_stream_header *header = (oh_stream_header *)(void *)words;
    const uint32_t *halves = (const uint32_t *)(const void *)words;

    tap_check(sizeof(oh_stream_header) == 4096 && sizeof(oh_control_page) == 4096,
              "header and control page are a page each");
    tap_check(sizeof(oh_sensor) == 64 && sizeof(oh_control_line) == 64,
              "sensor and control line are a cache line each");
    tap_check(sizeof OH_STREAM_MAGIC == 9 && sizeof OH_CONTROL_MAGIC == 9,
              "magics are eight bytes");
    tap_check(memcmp(OH_STREAM_MAGIC, "OVHRSTR1", 8) == 0 &&
                  memcmp(OH_CONTROL_MAGIC, "OVHRCTL1", 8) == 0,
              "magics are spelled as the page spells them");
    tap_check(OH_WRITER_SIMPLE == 1 && OH_WRITER_LANED == 2 && OH_WRITER_CONCURRENT == 3 &&
                  OH_WRITER_KERNEL == 4,
              "writer kinds");
    tap_check(OH_CLOCK_MONOTONIC == 1 && OH_CLOCK_X86_TSC == 2 && OH_CLOCK_ARM_CNTVCT == 3,
              "clock ids");
    tap_check(OH_U8 == 1 && OH_U64 == 4 && OH_I8 == 5 && OH_I64 == 8 && OH_F32 == 9 &&
                  OH_F64 == 10 && OH_TEXT == 11,
              "kinds of fields");

    header->writer_kind = 0x11;
    header->stride = 0x22;
    header->clock_id = 0x33;
    header->counter = 0x44;
    header->lost_nested = 0x55;
    header->owner = 0x66;
    tap_check(halves[5] == 0x11 && halves[7] == 0x22 && halves[10] == 0x33,
              "halves of words lie where the page puts them");
    tap_check(words[8] == 0x44 && words[17] == 0x55 && words[20] == 0x66,
              "words lie where the page puts them");
    return tap_done();
}
