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
 * number of stores, and one thread at a time may write to a sensor; to a laned_sensor
 * or concurrent_sensor, many. A payload
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

#include <cassert>
#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <utility>

#include "fields.hpp"
#include "sensor.h"

#define OH_ALWAYS_INLINE_ inline __attribute__((always_inline))

namespace overhear {

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

    /* Concurrent sensors: how many elements may be out, between begin and commit, at the same time. */
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

/* The functions of C for each kind of sensor, told apart by the handle. */
inline int register_it(oh_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_sensor_register(out, raw);
}
inline int register_it(oh_laned_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_laned_register(out, raw);
}
inline int register_it(oh_concurrent_sensor **out, const oh_sensor_options *raw) noexcept
{
    return oh_concurrent_register(out, raw);
}
inline void unregister(oh_sensor *sensor) noexcept
{
    oh_sensor_unregister(sensor);
}
inline void unregister(oh_laned_sensor *sensor) noexcept
{
    oh_laned_unregister(sensor);
}
inline void unregister(oh_concurrent_sensor *sensor) noexcept
{
    oh_concurrent_unregister(sensor);
}
inline int register_again(oh_sensor *sensor) noexcept
{
    return oh_sensor_register_again(sensor);
}
inline int register_again(oh_laned_sensor *sensor) noexcept
{
    return oh_laned_register_again(sensor);
}
inline int register_again(oh_concurrent_sensor *sensor) noexcept
{
    return oh_concurrent_register_again(sensor);
}
inline int is_heard(const oh_sensor *sensor) noexcept
{
    return oh_sensor_is_heard(sensor);
}
inline int is_heard(const oh_laned_sensor *sensor) noexcept
{
    return oh_laned_is_heard(sensor);
}
inline int is_heard(const oh_concurrent_sensor *sensor) noexcept
{
    return oh_concurrent_is_heard(sensor);
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
    registered(registered &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), switch_(std::exchange(other.switch_, nullptr))
    {
    }

    registered &operator=(registered &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(switch_, other.switch_);
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

    /* The sensor as C knows it; it stays this object's. NULL with OVERHEAR_DISABLE. To register it
       again is this object's as well, which keeps the place of its switch: see register_again. */
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
#ifndef OVERHEAR_DISABLE
        /* Relaxed: a hint, which orders nothing. */
        return __atomic_load_n(switch_, __ATOMIC_RELAXED) != 0;
#else
        return false;
#endif
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
        const bool heard = detail::register_again(handle()) == 1;
        find_switch();
        return heard;
    }

  protected:
    registered() noexcept = default;

    int open(const char *id, const options &settings) noexcept
    {
        const oh_sensor_options raw = settings.template raw<payload>(id);
#ifndef OVERHEAR_DISABLE
        const int code = register_it(&handle_, &raw);
        find_switch();
        return code;
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

    /* Whether to write nothing. Asked of this object, not of the handle: one that is off costs one
       load besides the switch, as in C. */
    OH_ALWAYS_INLINE_ bool is_off() const noexcept
    {
        (void)writable();
        return OH_IS_OFF_(is_enabled());
    }

  private:
    void find_switch() noexcept
    {
#ifndef OVERHEAR_DISABLE
        switch_ = handle_ != nullptr ? handle_->enabled : nullptr;
#endif
    }

#ifndef OVERHEAR_DISABLE
    handle_type *handle_ = nullptr;
    const std::uint32_t *switch_ = nullptr; /* the handle's, section 8 of the layout */
#endif
};

} // namespace detail

template <class payload> class sensor;
template <class payload> class laned_sensor;
template <class payload> class concurrent_sensor;

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
        if (this->is_off())
            return;
        oh_sensor_put_on_(this->writable(), &value, detail::payload_size<payload>);
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
        void *slot = oh_laned_begin_(sensor, OH_FRAME_GUARDED_);
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
        if (this->is_off())
            return false;
        return oh_laned_put_on_(this->writable(), &value, detail::payload_size<payload>) == 1;
    }

    /* Begins an element in place. */
    [[nodiscard]] OH_ALWAYS_INLINE_ laned_element<payload> begin() noexcept
    {
        return laned_element<payload>(this->writable());
    }
};

/*
 * An element of a concurrent sensor that is being filled in place. It converts to false where the write
 * was refused: see oh_concurrent_write; then there is nothing to fill or commit. Any thread may
 * commit it.
 */
template <class payload> class concurrent_element {
  public:
    concurrent_element(const concurrent_element &) = delete;
    concurrent_element &operator=(const concurrent_element &) = delete;

    OH_ALWAYS_INLINE_ ~concurrent_element()
    {
        if (filled_ != nullptr)
            oh_concurrent_abandon(sensor_, filled_);
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

    /* Stamps the element and publishes it; the guard is spent. Lock-free. */
    OH_ALWAYS_INLINE_ void commit() noexcept
    {
        assert(filled_ != nullptr && "concurrent_element::commit: refused, or committed already");
        oh_concurrent_commit(sensor_, std::exchange(filled_, nullptr));
    }

  private:
    friend class concurrent_sensor<payload>;

    OH_ALWAYS_INLINE_ explicit concurrent_element(oh_concurrent_sensor *sensor) noexcept
        : sensor_(sensor)
    {
        void *slot = oh_concurrent_write(sensor);
        if (slot != nullptr)
            filled_ = ::new (slot) payload;
    }

    oh_concurrent_sensor *sensor_;
    payload *filled_ = nullptr;
};

/*
 * A sensor that many threads may write at once, into one queue with one order: see concurrent.h. A
 * write can be refused, which is counted where it is a loss.
 */
template <class payload>
class concurrent_sensor : public detail::registered<payload, oh_concurrent_sensor> {
  public:
    /* No sensor yet. */
    concurrent_sensor() noexcept = default;

#if defined(__cpp_exceptions)
    /* Registers a sensor; as sensor's. options::writers says how many elements may be out at once. */
    explicit concurrent_sensor(const char *id, const options &settings = options())
    {
        this->open_or_throw(id, settings);
    }
#endif

    /* The same without exceptions; as sensor::try_register. */
    static concurrent_sensor try_register(const char *id,
                                          const options &settings = options()) noexcept
    {
        concurrent_sensor made;
        (void)made.open(id, settings);
        return made;
    }

    /* Appends an element; false if it was refused. Lock-free. */
    OH_ALWAYS_INLINE_ bool write(const payload &value) noexcept
    {
        if (this->is_off())
            return false;
        return oh_concurrent_put_on_(this->writable(), &value, detail::payload_size<payload>) == 1;
    }

    /* Begins an element in place. Lock-free. */
    [[nodiscard]] OH_ALWAYS_INLINE_ concurrent_element<payload> begin() noexcept
    {
        return concurrent_element<payload>(this->writable());
    }
};

} // namespace overhear

#endif /* OVERHEAR_SENSOR_HPP */
