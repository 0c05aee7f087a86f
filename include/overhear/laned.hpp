/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Laned sensors of C++, which many threads write, each into a lane of its own: see laned.h. Part of
 * sensor.hpp.
 */
#ifndef OVERHEAR_LANED_HPP
#define OVERHEAR_LANED_HPP

#include <cassert>
#include <new>

#include "registered.hpp"

namespace overhear {

template <class payload> class laned_sensor;

/*
 * An element of a laned sensor that is being filled in place. It converts to false where the write
 * was refused: see oh_laned_write; then there is nothing to fill or commit. It is the thread's that
 * began it, and must end in the function that began it.
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
 * A sensor that many threads may write at once, each into a lane of its own: see laned.h. A write
 * can be refused, which is counted where it is a loss.
 */
template <class payload> class laned_sensor : public detail::registered<payload, oh_laned_sensor> {
  public:
    /* No sensor yet. */
    laned_sensor() noexcept = default;

#if defined(__cpp_exceptions)
    /* Registers a sensor, like the constructor of sensor. options::lanes is the number of writing
       threads; rate and capacity are those of each lane. */
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

    /* Waits until the declared rate, of each lane, allows the calling thread's next element;
       false if none was declared. May sleep. See oh_laned_pace. */
    bool pace() noexcept
    {
        return oh_laned_pace(this->handle()) == 0;
    }

    /* Begins an element in place. */
    [[nodiscard]] OH_ALWAYS_INLINE_ laned_element<payload> begin() noexcept
    {
        return laned_element<payload>(this->writable());
    }
};

} // namespace overhear

#endif /* OVERHEAR_LANED_HPP */
