/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Common parts of the sensors for C++: options, the registration and its errors, the switch.
 * Part of sensor.hpp.
 */
#ifndef OVERHEAR_REGISTERED_HPP
#define OVERHEAR_REGISTERED_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "overhear/sensor.hpp needs C++17; compile with -std=c++17 or later, or include sensor.h"
#endif

#include <cassert>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "fields.hpp"
#include "sensor.h"

#define OH_ALWAYS_INLINE_ inline __attribute__((always_inline))

namespace overhear {

/* A failed registration: what() is the message of oh_last_error. */
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

/* oh_last_error: the reason why the last registration in this thread failed, or why its sensor is
   not connected. */
inline const char *last_error() noexcept
{
    return oh_last_error();
}

/* The properties of a sensor besides its id and its type. Setters can be chained. */
class options {
  public:
    /* Distinguishes sensors of the same id. The text is read when the sensor is made. */
    constexpr options &instance(const char *name) noexcept
    {
        instance_ = name;
        return *this;
    }

    /* Declares the rate (T, D, tau): mean and minimum distance of two elements, and the maximum by
       which an element may be early. */
    constexpr options &rate(std::chrono::nanoseconds period, std::chrono::nanoseconds distance,
                            std::chrono::nanoseconds jitter = std::chrono::nanoseconds(0)) noexcept
    {
        period_ = period;
        distance_ = distance;
        jitter_ = jitter;
        return *this;
    }

    /* The minimum number of slots. */
    constexpr options &capacity(std::uint64_t elements) noexcept
    {
        capacity_ = elements;
        return *this;
    }

    /* Laned sensors: number of threads that write. */
    constexpr options &lanes(std::uint32_t threads) noexcept
    {
        lanes_ = threads;
        return *this;
    }

    /* Concurrent sensors: maximum number of elements between begin and commit at the same time. */
    constexpr options &writers(std::uint32_t elements) noexcept
    {
        writers_ = elements;
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
        raw.writers = writers_;
        return raw;
    }

  private:
    const char *instance_ = "";
    std::chrono::nanoseconds period_{0};
    std::chrono::nanoseconds distance_{0};
    std::chrono::nanoseconds jitter_{0};
    std::uint64_t capacity_ = 0;
    std::uint32_t lanes_ = 0;
    std::uint32_t writers_ = 0;
};

namespace detail {

/* The functions of C for each kind of sensor, overloaded by the handle. */
inline int register_it(oh_laned_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_laned_register(out, raw);
}
inline int register_it(oh_concurrent_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_concurrent_register(out, raw);
}
inline void unregister(oh_laned_sensor *sensor) noexcept
{
    oh_laned_unregister(sensor);
}
inline void unregister(oh_concurrent_sensor *sensor) noexcept
{
    oh_concurrent_unregister(sensor);
}
inline int register_again(oh_laned_sensor *sensor) noexcept
{
    return oh_laned_register_again(sensor);
}
inline int register_again(oh_concurrent_sensor *sensor) noexcept
{
    return oh_concurrent_register_again(sensor);
}
#ifndef OVERHEAR_DISABLE
inline void skip(const oh_sensor *sensor) noexcept
{
    oh_ring_skip_(sensor->base, sensor->count);
}
inline void skip(const oh_laned_sensor *sensor) noexcept
{
    oh_lane_skip_(sensor);
}
inline void skip(const oh_concurrent_sensor *sensor) noexcept
{
    oh_queue_skip_(sensor);
}
#endif
inline int is_connected(const oh_sensor *sensor) noexcept
{
    return oh_sensor_is_connected(sensor);
}
inline int is_connected(const oh_laned_sensor *sensor) noexcept
{
    return oh_laned_is_connected(sensor);
}
inline int is_connected(const oh_concurrent_sensor *sensor) noexcept
{
    return oh_concurrent_is_connected(sensor);
}

#ifndef OVERHEAR_DISABLE

/* Where a sensor is that lies in memory of liboverhear's, and where its switch is: one that is off
   costs one load besides the switch, as in C. */
template <class handle_type> class held {
  public:
    held() noexcept = default;

    held(held &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), switch_(std::exchange(other.switch_, nullptr))
    {
    }

    held &operator=(held &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(switch_, other.switch_);
        return *this;
    }

    ~held()
    {
        unregister(handle_);
    }

    int open(const oh_sensor_options *raw) noexcept
    {
        const int code = register_it(&handle_, raw);
        find_switch();
        return code;
    }

    bool register_again() noexcept
    {
        const bool connected = detail::register_again(handle_) == 1;
        find_switch();
        return connected;
    }

    OH_ALWAYS_INLINE_ handle_type *handle() const noexcept
    {
        return handle_;
    }

    /* Of one that is registered. */
    OH_ALWAYS_INLINE_ handle_type *writable() const noexcept
    {
        return handle_;
    }

    OH_ALWAYS_INLINE_ const std::uint32_t *enabled() const noexcept
    {
        return switch_;
    }

  private:
    void find_switch() noexcept
    {
        switch_ = handle_ != nullptr ? handle_->enabled : nullptr;
    }

    handle_type *handle_ = nullptr;
    const std::uint32_t *switch_ = nullptr; /* the handle's, section 8 of the layout */
};

/* A simple sensor lies in its object: after a sleep that is one line less to wait for. */
template <> class held<oh_sensor> {
  public:
    held() noexcept = default;

    held(held &&other) noexcept : sensor_(std::exchange(other.sensor_, oh_sensor{})) {}

    held &operator=(held &&other) noexcept
    {
        std::swap(sensor_, other.sensor_);
        return *this;
    }

    ~held()
    {
        oh_sensor_unregister(&sensor_);
    }

    int open(const oh_sensor_options *raw) noexcept
    {
        return oh_sensor_register_at(&sensor_, raw);
    }

    bool register_again() noexcept
    {
        return oh_sensor_register_again(&sensor_) == 1;
    }

    OH_ALWAYS_INLINE_ oh_sensor *handle() const noexcept
    {
        return sensor_.base != nullptr ? &sensor_ : nullptr;
    }

    OH_ALWAYS_INLINE_ oh_sensor *writable() const noexcept
    {
        return &sensor_;
    }

    OH_ALWAYS_INLINE_ const std::uint32_t *enabled() const noexcept
    {
        return sensor_.enabled;
    }

  private:
    /* Mutable, because a const sensor can be written to, as through a pointer. */
    alignas(64) mutable oh_sensor sensor_ = {};
};

#endif

/*
 * Base of all kinds of sensors: one owner, registration, connection.
 *
 * An object that converts to true is registered, but not necessarily connected. After a move from
 * it, or a failed registration, it converts to false and must not be written to.
 */
template <class payload, class handle_type> class registered {
    static_assert(is_payload<payload>(), "the type cannot be an element");

  public:
    registered(registered &&) noexcept = default;
    registered &operator=(registered &&) noexcept = default;

    explicit operator bool() const noexcept
    {
#ifndef OVERHEAR_DISABLE
        return held_.handle() != nullptr;
#else
        return true;
#endif
    }

    /* The handle for the functions of C. It belongs to this object; that of a simple sensor is a
       member, and its address changes when the object is moved. NULL without a sensor, and with
       OVERHEAR_DISABLE. Do not pass it to a function that registers it again: see
       register_again. */
    handle_type *handle() const noexcept
    {
#ifndef OVERHEAR_DISABLE
        return held_.handle();
#else
        return nullptr;
#endif
    }

    /* Whether it is switched on: one load, for observations that cost something to make. See
       oh_sensor_enabled: while a budget has switched it off, the call counts as a skipped write. */
    OH_ALWAYS_INLINE_ bool is_enabled() const noexcept
    {
#ifndef OVERHEAR_DISABLE
        /* Relaxed: a hint, which orders nothing. */
        const std::uint32_t state = __atomic_load_n(held_.enabled(), __ATOMIC_RELAXED);
        if (OH_IS_OFF_(state != OH_SWITCH_OFF))
            return false;
        if (__builtin_expect(state == OH_SWITCH_ON, 1))
            return true;
        if (state == OH_SWITCH_COUNTED)
            detail::skip(held_.handle());
        return false;
#else
        return false;
#endif
    }

    /* Whether a directory owns the stream, so that monitors can read it. */
    bool is_connected() const noexcept
    {
        return detail::is_connected(handle()) == 1;
    }

    /* Registers a sensor that no directory owns again, for example in a forked child. Returns
       whether a directory owns it now; else last_error() returns the reason. See
       oh_sensor_register_again. */
    bool register_again() noexcept
    {
#ifndef OVERHEAR_DISABLE
        return held_.register_again();
#else
        return false;
#endif
    }

  protected:
    registered() noexcept = default;

    int open(const char *id, const options &settings) noexcept
    {
        const oh_sensor_options raw = settings.template raw<payload>(id);
#ifndef OVERHEAR_DISABLE
        return held_.open(&raw);
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
        assert(*this && "write, begin: the sensor was moved from or not registered");
        return held_.writable();
#else
        return nullptr;
#endif
    }

    /* Whether to write nothing. */
    OH_ALWAYS_INLINE_ bool is_off() const noexcept
    {
        (void)writable();
        return OH_IS_OFF_(is_enabled());
    }

#ifndef OVERHEAR_DISABLE
  private:
    held<handle_type> held_;
#endif
};

} // namespace detail

} // namespace overhear

#endif /* OVERHEAR_REGISTERED_HPP */
