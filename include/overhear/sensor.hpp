/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sensors for C++17: typed, move-only, given back by their destructors.
 *
 * A struct says once what its members mean; a sensor of that type then writes elements of it. What
 * sensor.h checks when a sensor is registered is checked here when the program is compiled.
 *
 *     #include <overhear/sensor.hpp>
 *
 *     struct sample {
 *         std::uint64_t items;
 *         double load;
 *     };
 *     OVERHEAR_FIELDS(sample, "queue_sample", OVERHEAR_FIELD(items, ""), OVERHEAR_FIELD(load, "%"));
 *
 *     overhear::sensor<sample> queue("queue");
 *
 *     queue.write({queue_length(), load()}); // a copy
 *
 *     auto element = queue.begin();          // or in place
 *     element->items = queue_length();
 *     element->load = load();
 *     element.commit();
 *
 * examples/cpp/hello_sensor.cpp is this as a program that runs.
 *
 * Design constraints are those of sensor.h, on which this header stands: a write is inline, a fixed
 * number of stores, and one thread at a time may write to a sensor; to a laned_sensor, many. A payload
 * is trivially copyable, and its described members cover every byte of it, so that no stack bytes leak.
 *
 * With OVERHEAR_DISABLE defined before the header is included, a sensor is an empty class whose
 * functions do nothing, and liboverhear need not be linked.
 */
#ifndef OVERHEAR_SENSOR_HPP
#define OVERHEAR_SENSOR_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "overhear/sensor.hpp needs C++17; compile with -std=c++17 or later, or include sensor.h"
#endif

#include <array>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "sensor.h"

#define OH_ALWAYS_INLINE_ inline __attribute__((always_inline))

/*
 * OVERHEAR_FIELDS(type, "type_id", OVERHEAR_FIELD(member, "unit"), ...): describes a payload.
 *
 * It stands behind the struct, in the same namespace. The type id is a name (letters, digits, _);
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

/* Says by its own assertions what is wrong. */
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

/* Why a sensor could not be registered: what() is the sentence of oh_last_error. */
class register_error : public std::runtime_error {
  public:
    explicit register_error(int code) : std::runtime_error(oh_last_error()), code_(code) {}

    /* The negative errno of oh_sensor_register. */
    int code() const noexcept
    {
        return code_;
    }

  private:
    int code_;
};

/* oh_last_error: why the last registration in this thread failed or is not heard. */
inline const char *last_error() noexcept
{
    return oh_last_error();
}

/* What a sensor is to be, besides its id and its type. Setters can be chained. */
class options {
  public:
    /* Which of several sensors of the same id. The text is read when the sensor is made. */
    constexpr options &instance(const char *name) noexcept
    {
        instance_ = name;
        return *this;
    }

    /* Declares the rate (T, D, tau): the mean and the least distance of two elements, and by how
       much elements may come early in sum. */
    constexpr options &rate(std::chrono::nanoseconds period, std::chrono::nanoseconds distance,
                            std::chrono::nanoseconds jitter = std::chrono::nanoseconds(0)) noexcept
    {
        period_ = period;
        distance_ = distance;
        jitter_ = jitter;
        return *this;
    }

    /* Asks for at least so many slots. */
    constexpr options &capacity(std::uint64_t elements) noexcept
    {
        capacity_ = elements;
        return *this;
    }

    /* Laned sensors: how many threads write at the same time. */
    constexpr options &lanes(std::uint32_t threads) noexcept
    {
        lanes_ = threads;
        return *this;
    }

    /* The same for the C library, for a payload of this type. */
    template <class payload> oh_sensor_options raw(const char *id) const noexcept
    {
        constexpr auto &description = detail::description_of<payload>;
        oh_sensor_options raw = {};
        raw.id = id;
        raw.instance = instance_;
        raw.type = description.type_id;
        raw.fields = description.fields.data();
        raw.field_count = static_cast<std::uint32_t>(description.fields.size());
        raw.size = static_cast<std::uint32_t>(detail::payload_size<payload>);
        raw.period_ns = static_cast<std::uint64_t>(period_.count());
        raw.distance_ns = static_cast<std::uint64_t>(distance_.count());
        raw.jitter_ns = static_cast<std::uint64_t>(jitter_.count());
        raw.capacity = capacity_;
        raw.lanes = lanes_;
        return raw;
    }

  private:
    const char *instance_ = "";
    std::chrono::nanoseconds period_{0};
    std::chrono::nanoseconds distance_{0};
    std::chrono::nanoseconds jitter_{0};
    std::uint64_t capacity_ = 0;
    std::uint32_t lanes_ = 0;
};

namespace detail {

/* The functions of C for each kind of sensor, told apart by the handle. */
inline int register_it(oh_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_sensor_register(out, raw);
}
inline int register_it(oh_laned_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_laned_register(out, raw);
}
inline void unregister(oh_sensor *sensor) noexcept
{
    oh_sensor_unregister(sensor);
}
inline void unregister(oh_laned_sensor *sensor) noexcept
{
    oh_laned_unregister(sensor);
}
inline int register_again(oh_sensor *sensor) noexcept
{
    return oh_sensor_register_again(sensor);
}
inline int register_again(oh_laned_sensor *sensor) noexcept
{
    return oh_laned_register_again(sensor);
}
inline int is_heard(const oh_sensor *sensor) noexcept
{
    return oh_sensor_is_heard(sensor);
}
inline int is_heard(const oh_laned_sensor *sensor) noexcept
{
    return oh_laned_is_heard(sensor);
}
OH_ALWAYS_INLINE_ int is_enabled(const oh_sensor *sensor) noexcept
{
    return oh_sensor_enabled(sensor);
}
OH_ALWAYS_INLINE_ int is_enabled(const oh_laned_sensor *sensor) noexcept
{
    return oh_laned_enabled(sensor);
}

/*
 * What all kinds of sensors have: one owner, registration, being heard.
 *
 * Holding one that converts to true proves that it is registered, heard or not. One that was moved
 * from, or whose registration failed, converts to false and must not be written to.
 */
template <class payload, class handle_type> class registered {
    static_assert(is_payload<payload>(), "the type cannot be an element");

  public:
#ifndef OVERHEAR_DISABLE
    registered(registered &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

    registered &operator=(registered &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }

    ~registered()
    {
        unregister(handle_);
    }

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    /* The sensor as C knows it; it stays this object's. NULL with OVERHEAR_DISABLE. */
    handle_type *handle() const noexcept
    {
        return handle_;
    }
#else
    registered(registered &&) noexcept = default;
    registered &operator=(registered &&) noexcept = default;

    explicit operator bool() const noexcept
    {
        return true;
    }

    handle_type *handle() const noexcept
    {
        return nullptr;
    }
#endif

    /* Whether it is switched on: one load, for observations that cost something to make. */
    OH_ALWAYS_INLINE_ bool is_enabled() const noexcept
    {
        return detail::is_enabled(handle()) == 1;
    }

    /* Whether a directory owns the stream, so that monitors can hear it. */
    bool is_heard() const noexcept
    {
        return detail::is_heard(handle()) == 1;
    }

    /* Registers again if nobody hears it, as in a forked child; returns whether somebody does now,
       else last_error() says why not. See oh_sensor_register_again. */
    bool register_again() noexcept
    {
        return detail::register_again(handle()) == 1;
    }

  protected:
    registered() noexcept = default;

    int open(const char *id, const options &settings) noexcept
    {
        const oh_sensor_options raw = settings.template raw<payload>(id);
#ifndef OVERHEAR_DISABLE
        return register_it(&handle_, &raw);
#else
        (void)raw;
        return 0;
#endif
    }

#if defined(__cpp_exceptions)
    void open_or_throw(const char *id, const options &settings)
    {
        const int code = open(id, settings);
        if (code != 0)
            throw register_error(code);
    }
#endif

    OH_ALWAYS_INLINE_ handle_type *writable() const noexcept
    {
#ifndef OVERHEAR_DISABLE
        assert(handle_ != nullptr && "write, begin: the sensor was moved from or not registered");
#endif
        return handle();
    }

#ifndef OVERHEAR_DISABLE
  private:
    handle_type *handle_ = nullptr;
#endif
};

} // namespace detail

template <class payload> class sensor;
template <class payload> class laned_sensor;

/*
 * An element that is being filled in place, from sensor::begin to commit. Without commit the
 * destructor gives the slot back, and nothing is published.
 *
 * Members that are not assigned hold what the type's constructor gives them, else what an older
 * element left. The next write to the sensor must not come before the guard's end.
 */
template <class payload> class element {
  public:
    element(const element &) = delete;
    element &operator=(const element &) = delete;

    payload *operator->() noexcept
    {
        return payload_();
    }

    payload &operator*() noexcept
    {
        return *payload_();
    }

    /* Stamps the element and publishes it; the guard is spent. Wait-free. */
    OH_ALWAYS_INLINE_ void commit() noexcept
    {
#ifndef OVERHEAR_DISABLE
        assert(sensor_ != nullptr && "element::commit: it is committed already");
        oh_sensor_commit(sensor_);
        sensor_ = nullptr;
#endif
    }

  private:
    friend class sensor<payload>;

#ifndef OVERHEAR_DISABLE
    OH_ALWAYS_INLINE_ explicit element(oh_sensor *sensor) noexcept
        : sensor_(sensor), filled_(::new (oh_sensor_write(sensor)) payload)
    {
    }

    payload *payload_() noexcept
    {
        return filled_;
    }

    oh_sensor *sensor_;
    payload *filled_;
#else
    explicit element(oh_sensor *) noexcept {}

    payload *payload_() noexcept
    {
        return &nowhere_;
    }

    /* Written and never read: the optimiser removes it. */
    payload nowhere_;
#endif
};

/*
 * A sensor with elements of one type, which OVERHEAR_FIELDS or OVERHEAR_EVENT has described. One
 * thread at a time may write to it.
 */
template <class payload> class sensor : public detail::registered<payload, oh_sensor> {
  public:
    /* No sensor yet. */
    sensor() noexcept = default;

#if defined(__cpp_exceptions)
    /*
     * Registers a sensor. Cold; may block. That no directory answers is no error: is_heard tells.
     * Throws register_error if id or options contradict themselves or there is no memory.
     */
    explicit sensor(const char *id, const options &settings = options())
    {
        this->open_or_throw(id, settings);
    }
#endif

    /* The same without exceptions: a failure gives a sensor that converts to false; last_error()
       says why. */
    static sensor try_register(const char *id, const options &settings = options()) noexcept
    {
        sensor made;
        (void)made.open(id, settings);
        return made;
    }

    /* Appends an element: a copy, stamped and published. Wait-free. */
    OH_ALWAYS_INLINE_ void write(const payload &value) noexcept
    {
        oh_sensor_put_sized_(this->writable(), &value, detail::payload_size<payload>);
    }

    /* Begins an element in place. Wait-free; one element at a time. */
    [[nodiscard]] OH_ALWAYS_INLINE_ element<payload> begin() noexcept
    {
        return element<payload>(this->writable());
    }

    /* Waits until the declared rate allows the next element; false if none was declared. May sleep.
       See oh_sensor_pace. */
    bool pace() noexcept
    {
        return oh_sensor_pace(this->handle()) == 0;
    }
};

/*
 * An element of a laned sensor that is being filled in place. It converts to false where the write was
 * refused: see oh_laned_write; then there is nothing to fill or commit. It is the thread's that began
 * it, and must end in the function that began it.
 */
template <class payload> class laned_element {
  public:
    laned_element(const laned_element &) = delete;
    laned_element &operator=(const laned_element &) = delete;

    OH_ALWAYS_INLINE_ ~laned_element()
    {
        if (filled_ != nullptr)
            oh_laned_abandon(sensor_);
    }

    explicit operator bool() const noexcept
    {
        return filled_ != nullptr;
    }

    payload *operator->() noexcept
    {
        return filled_;
    }

    payload &operator*() noexcept
    {
        return *filled_;
    }

    /* Stamps the element and publishes it; the guard is spent. False if it was taken for abandoned.
       Wait-free. */
    OH_ALWAYS_INLINE_ bool commit() noexcept
    {
        assert(filled_ != nullptr && "laned_element::commit: it was refused or is committed already");
        filled_ = nullptr;
        return oh_laned_commit(sensor_) == 1;
    }

  private:
    friend class laned_sensor<payload>;

    OH_ALWAYS_INLINE_ explicit laned_element(oh_laned_sensor *sensor) noexcept : sensor_(sensor)
    {
        void *slot = oh_laned_write(sensor);
        if (slot != nullptr)
            filled_ = ::new (slot) payload;
    }

    oh_laned_sensor *sensor_;
    payload *filled_ = nullptr;
};

/*
 * A sensor that many threads may write at once, each into a lane of its own: see laned.h. A write can
 * be refused, which is counted where it is a loss.
 */
template <class payload> class laned_sensor : public detail::registered<payload, oh_laned_sensor> {
  public:
    /* No sensor yet. */
    laned_sensor() noexcept = default;

#if defined(__cpp_exceptions)
    /* Registers a sensor; as sensor's. options::lanes says how many threads write at once; rate and
       capacity are those of each lane. */
    explicit laned_sensor(const char *id, const options &settings = options())
    {
        this->open_or_throw(id, settings);
    }
#endif

    /* The same without exceptions; as sensor::try_register. */
    static laned_sensor try_register(const char *id, const options &settings = options()) noexcept
    {
        laned_sensor made;
        (void)made.open(id, settings);
        return made;
    }

    /* Claims a lane for the calling thread and touches its memory; false if none is free. */
    bool prepare_thread() noexcept
    {
        return oh_laned_prepare_thread(this->handle()) == 1;
    }

    /* Appends an element of the calling thread; false if it was refused. Wait-free but for a
       thread's first write. */
    OH_ALWAYS_INLINE_ bool write(const payload &value) noexcept
    {
        return oh_laned_put_sized_(this->writable(), &value, detail::payload_size<payload>) == 1;
    }

    /* Begins an element in place. */
    [[nodiscard]] OH_ALWAYS_INLINE_ laned_element<payload> begin() noexcept
    {
        return laned_element<payload>(this->writable());
    }
};

} // namespace overhear

#endif /* OVERHEAR_SENSOR_HPP */
