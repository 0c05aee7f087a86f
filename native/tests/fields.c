/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: nothing. OH_FIELD_* describe a struct, in C and in C++, without a warning. */
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/sensor.h>

#include <string.h>

#include "tap.h"

struct all {
    uint64_t u64;
    int64_t i64;
    double f64;
    float f32;
    uint32_t u32;
    int32_t i32;
    uint16_t u16;
    int16_t i16;
    uint8_t u8;
    int8_t i8;
    char text[14];
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct all, u64, "ns"), OH_FIELD_I64(struct all, i64, ""),
    OH_FIELD_F64(struct all, f64, "%"),  OH_FIELD_F32(struct all, f32, "K"),
    OH_FIELD_U32(struct all, u32, NULL), OH_FIELD_I32(struct all, i32, ""),
    OH_FIELD_U16(struct all, u16, ""),   OH_FIELD_I16(struct all, i16, ""),
    OH_FIELD_U8(struct all, u8, ""),     OH_FIELD_I8(struct all, i8, ""),
    OH_FIELD_TEXT(struct all, text, ""),
};

/* On some targets long is another type of the same size and class as int64_t. */
struct longs {
    unsigned long long a;
    long long b;
};

static const oh_field longs[] = {
    OH_FIELD_U64(struct longs, a, ""),
    OH_FIELD_I64(struct longs, b, ""),
};

int main(void)
{
    static const uint32_t kinds[] = {OH_U64, OH_I64, OH_F64, OH_F32, OH_U32, OH_I32,
                                     OH_U16, OH_I16, OH_U8,  OH_I8,  OH_TEXT};
    const size_t count = sizeof fields / sizeof *fields;
    uint32_t end = 0;
    int kind_good = 1;
    int cover = 1;
    size_t index;

    for (index = 0; index < count; index++) {
        kind_good &= fields[index].kind == kinds[index];
        cover &= fields[index].offset == end;
        end = fields[index].offset + fields[index].size;
    }
    tap_check(count == 11 && kind_good, "each macro names its kind");
    tap_check(cover && end == sizeof(struct all), "offsets and sizes cover the struct");
    tap_check(strcmp(fields[0].name, "u64") == 0 && strcmp(fields[10].name, "text") == 0,
              "names are the members'");
    tap_check(strcmp(fields[0].unit, "ns") == 0 && fields[4].unit == NULL, "units are passed on");
    tap_check(fields[10].size == 14, "text has the array's size");
    tap_check(longs[0].size == 8 && longs[1].kind == OH_I64, "equal types of other names");
    return tap_done();
}
