/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The fields of a payload, for C11 and C++17: a program lists the members of its struct, and the
 * compiler checks name, size and class of each. Programs include sensor.h, of which this is a part.
 */
#ifndef OVERHEAR_FIELDS_H
#define OVERHEAR_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* Kinds of fields. The numbers are part of the ABI of liboverhear. */
enum { OH_U8 = 1, OH_U16, OH_U32, OH_U64, OH_I8, OH_I16, OH_I32, OH_I64, OH_F32, OH_F64, OH_TEXT };

/* A field of a payload. OH_FIELD_* fill one in and check it at compile time. */
typedef struct oh_field {
    const char *name; /* letters, digits, _; at most 64, not a digit first */
    uint32_t kind;    /* OH_U8 to OH_TEXT */
    uint32_t offset;  /* bytes from the start of the payload */
    uint32_t size;    /* bytes */
    const char *unit; /* "ns", "%", "K"; "" or NULL for a plain number */
} oh_field;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_field, name, 0, 8);
OH_ASSERT_FIELD(oh_field, kind, 8, 4);
OH_ASSERT_FIELD(oh_field, offset, 12, 4);
OH_ASSERT_FIELD(oh_field, size, 16, 4);
OH_ASSERT_FIELD(oh_field, unit, 24, 8);
OH_STATIC_ASSERT(sizeof(oh_field) == 32, "oh_field: size");
#endif

/*
 * OH_FIELD_U64(struct sample, items, "ns") initialises an oh_field. A member of another size, or
 * of the right size and another class (a double described as OH_FIELD_U64), does not compile.
 */
#define OH_FIELD_U8(type, member, unit) OH_FIELD_(OH_U8, uint8_t, type, member, unit)
#define OH_FIELD_U16(type, member, unit) OH_FIELD_(OH_U16, uint16_t, type, member, unit)
#define OH_FIELD_U32(type, member, unit) OH_FIELD_(OH_U32, uint32_t, type, member, unit)
#define OH_FIELD_U64(type, member, unit) OH_FIELD_(OH_U64, uint64_t, type, member, unit)
#define OH_FIELD_I8(type, member, unit) OH_FIELD_(OH_I8, int8_t, type, member, unit)
#define OH_FIELD_I16(type, member, unit) OH_FIELD_(OH_I16, int16_t, type, member, unit)
#define OH_FIELD_I32(type, member, unit) OH_FIELD_(OH_I32, int32_t, type, member, unit)
#define OH_FIELD_I64(type, member, unit) OH_FIELD_(OH_I64, int64_t, type, member, unit)
#define OH_FIELD_F32(type, member, unit) OH_FIELD_(OH_F32, float, type, member, unit)
#define OH_FIELD_F64(type, member, unit) OH_FIELD_(OH_F64, double, type, member, unit)
/* A member that is an array of char: UTF-8, ended by a zero byte where it is shorter. */
#define OH_FIELD_TEXT(type, member, unit)                                                           \
    {                                                                                              \
        #member, OH_TEXT,                                                                           \
            (uint32_t)(offsetof(type, member) +                                                     \
                       OH_CHECK_(sizeof(((type *)0)->member[0]) == 1 && OH_IS_ARRAY_(type, member), \
                                 "OH_FIELD_TEXT: the member is no array of char")),                 \
            (uint32_t)sizeof(((type *)0)->member), unit                                             \
    }

#define OH_FIELD_(kind, as, type, member, unit)                                                     \
    {                                                                                              \
        #member, kind,                                                                              \
            (uint32_t)(offsetof(type, member) +                                                     \
                       OH_CHECK_(sizeof(((type *)0)->member) == sizeof(as),                         \
                                 "OH_FIELD_*: the member has another size") +                       \
                       OH_CHECK_(OH_CLASS_(type, member) == OH_CLASS_OF_(as),                       \
                                 "OH_FIELD_*: the member is of another class (unsigned, signed, "   \
                                 "floating)")),                                                     \
            (uint32_t)sizeof(((type *)0)->member), unit                                             \
    }

/*
 * OH_CHECK_ is an expression of value zero that compiles only if its condition holds, because an
 * initialiser has no room for a static assertion. OH_CLASS_ is 0 for unsigned, 1 for signed, 2 for
 * floating members. OH_IS_ARRAY_ distinguishes an array from a pointer, whose elements are
 * elsewhere: the payload would contain an address.
 */
#ifdef __cplusplus
template <bool condition> struct oh_check_ {
    static_assert(condition, "OH_FIELD_*: the member has another size or class, or is no array");
    enum { zero = 0 };
};
template <class type> struct oh_class_ {
    enum { value = static_cast<type>(-1) < static_cast<type>(0) ? 1 : 0 };
};
template <> struct oh_class_<bool> {
    enum { value = 0 };
};
template <> struct oh_class_<float> {
    enum { value = 2 };
};
template <> struct oh_class_<double> {
    enum { value = 2 };
};
template <class type> struct oh_is_array_ {
    enum { value = 0 };
};
template <class element, size_t count> struct oh_is_array_<element[count]> {
    enum { value = 1 };
};
#define OH_CHECK_(condition, message) (size_t{oh_check_<(condition)>::zero})
#define OH_IS_ARRAY_(type, member) (oh_is_array_<decltype(((type *)0)->member)>::value == 1)
#define OH_CLASS_(type, member) (+oh_class_<decltype(((type *)0)->member)>::value)
#define OH_CLASS_OF_(type) (+oh_class_<type>::value)
#else
#define OH_CHECK_(condition, message)                                                              \
    (0 * sizeof(struct {                                                                            \
         _Static_assert(condition, message);                                                       \
         char zero;                                                                                 \
     }))
#define OH_IS_ARRAY_(type, member)                                                                  \
    (!__builtin_types_compatible_p(__typeof__(((type *)0)->member),                                 \
                                   __typeof__(&((type *)0)->member[0])))
#define OH_CLASS_(type, member) OH_CLASS_OF_VALUE_(((type *)0)->member)
#define OH_CLASS_OF_(type) OH_CLASS_OF_VALUE_((type)0)
#define OH_CLASS_OF_VALUE_(value)                                                                   \
    _Generic((value), float: 2, double: 2, signed char: 1, short: 1, int: 1, long: 1, long long: 1, \
        char: (char)-1 < 0 ? 1 : 0, default: 0)
#endif

#endif /* OVERHEAR_FIELDS_H */
