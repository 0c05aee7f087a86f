/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Concurrent sensors of C++, which many threads write into one queue: see concurrent.h. Part of
 * sensor.hpp.
 */
#ifndef OVERHEAR_CONCURRENT_HPP
#define OVERHEAR_CONCURRENT_HPP

#include <cassert>
#include <new>
#include <utility>

#include "registered.hpp"

namespace overhear {

template <class payload> class concurrent_sensor;

/*
 * An element of a concurrent sensor that is being filled in place. It converts to false where the
 * write was refused: see oh_concurrent_write; then there is nothing to fill or commit. Any thread
 * may commit it.
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
    /* Registers a sensor, like the constructor of sensor. options::writers is the maximum number
       of elements between begin and commit. */
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

    /* Waits until the declared rate, of all threads together, allows the next element;
       false if none was declared. May sleep. See oh_concurrent_pace. */
    bool pace() noexcept
    {
        return oh_concurrent_pace(this->handle()) == 0;
    }

    /* Begins an element in place. Lock-free. */
    [[nodiscard]] OH_ALWAYS_INLINE_ concurrent_element<payload> begin() noexcept
    {
        return concurrent_element<payload>(this->writable());
    }
};

} // namespace overhear

#endif /* OVERHEAR_CONCURRENT_HPP */
