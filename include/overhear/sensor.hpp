/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sensors for C++17: typed, move-only, given back by their destructors.
 *
 * The members of a struct are described once; a sensor of that type then writes elements of it. The
 * checks that sensor.h makes at registration are made here at compile time.
 *
 *     #include <overhear/sensor.hpp>
 *
 *     struct sample { std::uint64_t items; double load; };
 *     OVERHEAR_FIELDS(sample, "queue_sample",
 *                     OVERHEAR_FIELD(items, ""), OVERHEAR_FIELD(load, "%"));
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
 * number of stores, and one thread at a time may write to a sensor; to a laned_sensor or
 * concurrent_sensor, many. A payload is trivially copyable, and its described members cover every
 * byte of it, so that no stack bytes leak.
 *
 * With OVERHEAR_DISABLE defined before the header is included, a sensor is an empty class whose
 * functions do nothing, and liboverhear need not be linked.
 */
#ifndef OVERHEAR_SENSOR_HPP
#define OVERHEAR_SENSOR_HPP

#include <cassert>
#include <new>

#include "registered.hpp"

#include "concurrent.hpp"
#include "laned.hpp"

namespace overhear {

template <class payload> class sensor;

/*
 * An element that is being filled in place, from sensor::begin to commit. Without commit the
 * destructor gives the slot back, and nothing is published.
 *
 * Members that are not assigned have the values that the constructor of the type sets, else those
 * of an older element. The next write to the sensor must follow the end of the guard.
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
     * Registers a sensor. Cold; may block. Without a directory it succeeds; is_connected is false
     * then. Throws register_error if id or options contradict themselves or there is no memory.
     */
    explicit sensor(const char *id, const options &settings = options())
    {
        this->open_or_throw(id, settings);
    }
#endif

    /* The same without exceptions: a failure gives a sensor that converts to false; last_error()
       returns the reason. */
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
} // namespace overhear

#endif /* OVERHEAR_SENSOR_HPP */
