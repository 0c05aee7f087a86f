/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Descriptions of payloads, for C++17: a struct is described once, and the compiler checks that the
 * description covers it. Programs include sensor.hpp, of which this is a part.
 */
#ifndef OVERHEAR_FIELDS_HPP
#define OVERHEAR_FIELDS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "sensor.h"

/*
 * OVERHEAR_FIELDS(type, "type_id", OVERHEAR_FIELD(member, "unit"), ...): describes a payload.
 *
 * It follows the struct, in the same namespace. The type id is a name (letters, digits, _);
 * units are "ns", "%", or "" for a plain number. Members are integers, bool, enumerations, float,
 * double, and arrays of char (UTF-8, ended by a zero byte where it is shorter). They are described
 * in the order in which they are declared, all of them.
 */
#define OVERHEAR_FIELDS(type, type_id, ...)                                                         \
    inline constexpr auto overhear_describe(const type *)                                           \
    {                                                                                               \
        using overhear_payload_ = type;                                                             \
        static_assert(::std::is_standard_layout<overhear_payload_>::value,                          \
                      "an element's members lie in the order of their declaration: no base with "   \
                      "members, no virtual function, no mixed access");                             \
        return ::overhear::detail::describe(type_id, __VA_ARGS__);                                  \
    }                                                                                               \
    static_assert(::overhear::detail::is_payload<type>(), #type " cannot be an element")

/* A member in OVERHEAR_FIELDS, and its unit. */
#define OVERHEAR_FIELD(member, unit)                                                                \
    ::overhear::detail::field<decltype(overhear_payload_::member)>(                                 \
        #member, offsetof(overhear_payload_, member), unit)

/* OVERHEAR_EVENT(type, "type_id"): describes an empty struct; its elements are their stamps. */
#define OVERHEAR_EVENT(type, type_id)                                                               \
    inline constexpr auto overhear_describe(const type *)                                           \
    {                                                                                               \
        return ::overhear::detail::describe(type_id);                                               \
    }                                                                                               \
    static_assert(::overhear::detail::is_payload<type>(), #type " cannot be an element")

namespace overhear {

namespace detail {

template <class> inline constexpr bool never = false;

/* The kind of an arithmetic type by size and class, 0 if it has none. */
template <class number> constexpr std::uint32_t kind_of_number()
{
    if constexpr (std::is_floating_point<number>::value)
        return sizeof(number) == 4 ? OH_F32 : sizeof(number) == 8 ? OH_F64 : 0;
    else if constexpr (std::is_signed<number>::value)
        return sizeof(number) == 1 ? OH_I8 : sizeof(number) == 2 ? OH_I16
             : sizeof(number) == 4 ? OH_I32 : OH_I64;
    else
        return sizeof(number) == 1 ? OH_U8 : sizeof(number) == 2 ? OH_U16
             : sizeof(number) == 4 ? OH_U32 : OH_U64;
}

template <class member> constexpr std::uint32_t kind_of()
{
    if constexpr (std::is_array<member>::value) {
        static_assert(sizeof(std::remove_extent_t<member>) == 1 &&
                          std::is_integral<std::remove_extent_t<member>>::value,
                      "OVERHEAR_FIELD: of arrays, only those of char can be fields");
        return OH_TEXT;
    } else if constexpr (std::is_enum<member>::value) {
        return kind_of_number<std::underlying_type_t<member>>();
    } else if constexpr (std::is_arithmetic<member>::value && sizeof(member) <= 8) {
        return kind_of_number<member>();
    } else {
        static_assert(never<member>, "OVERHEAR_FIELD: a field is an integer, bool, enumeration, "
                                     "float, double or array of char");
        return 0;
    }
}

template <class member>
constexpr oh_field field(const char *name, std::size_t offset, const char *unit)
{
    return {name, kind_of<member>(), static_cast<std::uint32_t>(offset),
            static_cast<std::uint32_t>(sizeof(member)), unit};
}

template <std::size_t count> struct description {
    const char *type_id;
    std::array<oh_field, count> fields;
};

template <class... fields>
constexpr description<sizeof...(fields)> describe(const char *type_id, fields... described)
{
    return {type_id, {{described...}}};
}

template <> constexpr description<0> describe(const char *type_id)
{
    return {type_id, {}};
}

template <class payload>
inline constexpr auto description_of = overhear_describe(static_cast<const payload *>(nullptr));

/* C++ gives an empty struct one byte, of which an element has none. */
template <class payload>
inline constexpr std::size_t payload_size = std::is_empty<payload>::value ? 0 : sizeof(payload);

/* Whether the fields follow one another and leave no byte out. */
template <std::size_t count>
constexpr bool cover(const std::array<oh_field, count> &fields, std::size_t size)
{
    std::size_t end = 0;
    for (std::size_t index = 0; index < count; index++) {
        if (fields[index].offset != end)
            return false;
        end += fields[index].size;
    }
    return end == size;
}

constexpr bool is_name(const char *text)
{
    std::size_t length = 0;
    for (; text[length] != '\0'; length++) {
        const char letter = text[length];
        const bool is_digit = letter >= '0' && letter <= '9';
        const bool is_letter = (letter >= 'a' && letter <= 'z') ||
                               (letter >= 'A' && letter <= 'Z') || letter == '_';
        if (!is_letter && !(is_digit && length > 0))
            return false;
    }
    return length > 0 && length <= 64;
}

/* Its assertions name the mistake. */
template <class payload> constexpr bool is_payload()
{
    static_assert(std::is_trivially_copyable<payload>::value,
                  "an element is copied byte by byte: its type must be trivially copyable");
    static_assert(cover(description_of<payload>.fields, payload_size<payload>),
                  "the fields do not cover every byte in order: a member is not described, or there "
                  "is padding, whose bytes would leak; order members from large to small");
    static_assert(payload_size<payload> <= OH_MAX_PAYLOAD,
                  "an element has at most OH_MAX_PAYLOAD bytes: write it in parts");
    static_assert(alignof(payload) <= 8, "elements are aligned to 8 bytes");
    static_assert(is_name(description_of<payload>.type_id),
                  "a type id has letters, digits and _, at most 64, not a digit first");
    return true;
}

} // namespace detail

} // namespace overhear

#endif /* OVERHEAR_FIELDS_HPP */
