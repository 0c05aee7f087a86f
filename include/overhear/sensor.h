/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sensors: the program's side of Overhear, for C11 and C++17.
 *
 * A program describes the fields of a payload struct, registers a *sensor* once, and then, where
 * the observation is, writes *elements*: a payload, stamped and published by storing a counter.
 * Monitors outside the program see every element in time order, and count each element they missed.
 * Registration is a call into the library; writing is inline and stays in this header.
 *
 * Link with -loverhear, `pkg-config overhear`, or Overhear::overhear in CMake. Programs with
 * monitors of their own link -loverhear_monitor instead (monitor.h).
 *
 *     struct sample { uint64_t items; double load; };
 *
 *     static const oh_field fields[] = {
 *         OH_FIELD_U64(struct sample, items, ""),
 *         OH_FIELD_F64(struct sample, load, "%"),
 *     };
 *     oh_sensor_options options = {0};
 *     oh_sensor *sensor;
 *     options.id = "queue";
 *     options.type = "queue_sample";
 *     options.fields = fields;
 *     options.field_count = 2;
 *     options.size = sizeof(struct sample);
 *     if (oh_sensor_register(&sensor, &options) != 0)
 *         fprintf(stderr, "%s\n", oh_last_error());
 *
 *     struct sample now = { queue_length(), load() };
 *     oh_sensor_put(sensor, &now);
 *
 *     oh_sensor_unregister(sensor);
 *
 * examples/c/hello_sensor.c is this as a program that runs. Parts of this header are laned.h and
 * concurrent.h, sensors that many threads write, fields.h and clock.h.
 *
 * Design constraints. A write is a fixed number of stores: no lock, no locked instruction, no
 * allocation, no system call, nothing that waits for a reader. The price is that one thread at a
 * time may write to a sensor, and that a reader which is too slow loses the oldest elements,
 * and counts them. A payload has no padding, so that no stack bytes leak to monitors; C cannot
 * check this at compile time, so registration checks it and refuses.
 *
 * If OVERHEAR_DISABLE is defined before this header is included, all of it compiles to nothing, and
 * no library is needed: registration succeeds and returns NULL, which every function accepts.
 *
 * Names that end in an underscore are not for users.
 */
#ifndef OVERHEAR_SENSOR_H
#define OVERHEAR_SENSOR_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "clock.h"
#include "fields.h"

/* The properties of a sensor. Members that are not needed are zero. New members are added at the
   end. */
typedef struct oh_sensor_options {
    const char *id;         /* what it measures; required */
    const char *instance;   /* distinguishes sensors of one id; NULL or "" if there is only one */
    const char *type;       /* the payload's type id, a name as of fields; required */
    const oh_field *fields; /* field_count of them, which cover every byte of the payload */
    uint32_t field_count;
    uint32_t size;        /* sizeof the payload struct, 0 to OH_MAX_PAYLOAD */
    uint64_t period_ns;   /* declared rate, T: mean distance of two elements; 0: no declared rate */
    uint64_t distance_ns; /* declared rate, D: minimum distance of two elements, at most T */
    uint64_t jitter_ns;   /* declared rate, tau: maximum by which an element may be early */
    uint64_t capacity;    /* minimum number of slots; 0: the directory decides */
    uint32_t lanes;       /* laned sensors: number of writing threads; 0: the library decides */
    uint32_t writers;     /* concurrent sensors: number of simultaneous writes; 0: the library decides */
} oh_sensor_options;

/*
 * The part of a sensor that a write uses: one cache line, in memory of the library or, with
 * oh_sensor_register_at, of the program. The library keeps the remaining state. Only the writing
 * thread accesses it. Users treat it as opaque.
 */
typedef struct oh_sensor {
    uint8_t *base;         /* stream start: its header page */
    uint64_t count;        /* elements written; the stream's counter is a copy, never read back */
    uint64_t mask;         /* capacity - 1 */
    uint32_t stride;       /* bytes */
    uint32_t payload_size; /* bytes */
    uint32_t clock_id;     /* OH_CLOCK_*, section 3 */
    uint32_t reserved0;
    const uint32_t *enabled; /* section 8: the control line, or a word that is always 1 */
    void *registration;      /* of the library; NULL if this memory holds no sensor */
    uint64_t reserved1;
} oh_sensor;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_sensor, base, 0, 8);
OH_ASSERT_FIELD(oh_sensor, count, 8, 8);
OH_ASSERT_FIELD(oh_sensor, mask, 16, 8);
OH_ASSERT_FIELD(oh_sensor, stride, 24, 4);
OH_ASSERT_FIELD(oh_sensor, payload_size, 28, 4);
OH_ASSERT_FIELD(oh_sensor, clock_id, 32, 4);
OH_ASSERT_FIELD(oh_sensor, reserved0, 36, 4);
OH_ASSERT_FIELD(oh_sensor, enabled, 40, 8);
OH_ASSERT_FIELD(oh_sensor, registration, 48, 8);
OH_ASSERT_FIELD(oh_sensor, reserved1, 56, 8);
OH_ASSERT_FIELD(oh_sensor_options, id, 0, 8);
OH_ASSERT_FIELD(oh_sensor_options, instance, 8, 8);
OH_ASSERT_FIELD(oh_sensor_options, type, 16, 8);
OH_ASSERT_FIELD(oh_sensor_options, fields, 24, 8);
OH_ASSERT_FIELD(oh_sensor_options, field_count, 32, 4);
OH_ASSERT_FIELD(oh_sensor_options, size, 36, 4);
OH_ASSERT_FIELD(oh_sensor_options, period_ns, 40, 8);
OH_ASSERT_FIELD(oh_sensor_options, distance_ns, 48, 8);
OH_ASSERT_FIELD(oh_sensor_options, jitter_ns, 56, 8);
OH_ASSERT_FIELD(oh_sensor_options, capacity, 64, 8);
OH_ASSERT_FIELD(oh_sensor_options, lanes, 72, 4);
OH_ASSERT_FIELD(oh_sensor_options, writers, 76, 4);
OH_STATIC_ASSERT(sizeof(oh_sensor_options) == 80, "oh_sensor_options: size");
#endif
OH_STATIC_ASSERT(sizeof(oh_sensor) == 64, "oh_sensor: one cache line");

#ifndef OVERHEAR_DISABLE

#ifdef __cplusplus
extern "C" {
#endif

/*
 * oh_sensor_register_sized: registers a sensor whose options have a known size.
 *
 * Call oh_sensor_register instead: it passes the size of the options at compile time, so that a
 * newer library does not read fields that an older program does not have.
 *
 * Ownership, returns and the fixed lines are those of oh_sensor_register.
 */
int oh_sensor_register_sized(oh_sensor **out, const oh_sensor_options *options,
                             size_t options_size);

/*
 * oh_sensor_register: registers a sensor and hands out the right to write it.
 *
 * Ownership: the options and everything they point to are copied; the caller may free them
 * afterwards. *out belongs to the caller until oh_sensor_unregister.
 *
 * Returns 0, also if no directory answers: then the sensor writes into private memory, and
 * oh_last_error returns the reason. Otherwise a negative errno, and *out is NULL:
 *   -EINVAL  the options contradict themselves; oh_last_error names the field
 *   -ENOMEM  no memory for the sensor
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: no.
 * Real-time class: may block (it sends a request to the directory, and maps and touches memory).
 */
OH_INLINE_ int oh_sensor_register(oh_sensor **out, const oh_sensor_options *options)
{
    return oh_sensor_register_sized(out, options, sizeof *options);
}

/*
 * oh_sensor_register_at_sized: registers a sensor in the caller's memory; call
 * oh_sensor_register_at instead, as with oh_sensor_register_sized.
 *
 * Ownership, returns and the fixed lines are those of oh_sensor_register_at.
 */
int oh_sensor_register_at_sized(oh_sensor *sensor, const oh_sensor_options *options,
                                size_t options_size);

/*
 * oh_sensor_register_at: registers a sensor that lies in the caller's memory.
 *
 * For sensors that are members of a larger object: a write uses the member itself and follows no
 * pointer. After a sleep this saves one cache miss. Align the memory to 64 bytes, so that it is one
 * cache line.
 *
 * Ownership: as oh_sensor_register. The memory is the caller's and must exist until
 * oh_sensor_unregister. It may be moved: copy its bytes, and use only the copy from then on.
 *
 * Returns 0 or a negative errno, as oh_sensor_register; after an error the memory is all zero,
 * which oh_sensor_unregister accepts.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: no.
 * Real-time class: may block (as oh_sensor_register).
 */
OH_INLINE_ int oh_sensor_register_at(oh_sensor *sensor, const oh_sensor_options *options)
{
    return oh_sensor_register_at_sized(sensor, options, sizeof *options);
}

/*
 * oh_sensor_unregister: gives the sensor back.
 *
 * Ownership: takes the sensor; it must not be used afterwards. NULL is allowed. Memory of the
 * caller's becomes all zero, and memory that is all zero is allowed, too. The directory keeps the
 * elements until monitors have read them.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread, while no other uses this sensor.
 * Async-signal safety: no.
 * Real-time class: may block (memory is unmapped).
 */
void oh_sensor_unregister(oh_sensor *sensor);

/*
 * oh_sensor_register_again: registers a sensor that no directory owns again.
 *
 * For children made by fork: their copies of the parent's sensors write into private memory until
 * this call gives each a stream of its own, under the child's process id, with the
 * parent's options. Also for a sensor that found no directory when it was registered: monitors do
 * not get its earlier elements. The call does not change a sensor that a directory owns.
 *
 * A child made by the raw system call clone, or by glibc's _Fork, bypasses the fork handler
 * that gives it private memory: it must call this function before it writes, or its elements mix
 * with its parent's. vfork and posix_spawn need no call, because their child only calls exec.
 *
 * Ownership: the sensor stays the caller's, at the same address.
 *
 * Returns 1 if a directory owns the sensor now; 0 if not, and oh_last_error returns the reason; or
 * a negative errno:
 *   -EINVAL  the sensor is NULL or was unregistered
 *
 * Thread safety: may be called from any thread, while no other uses this sensor.
 * Async-signal safety: no.
 * Real-time class: may block (as oh_sensor_register).
 */
int oh_sensor_register_again(oh_sensor *sensor);

/*
 * oh_sensor_pace: waits until the declared rate (T, D, tau) allows the next element.
 *
 * For producers that are not real-time and may wait: if they call it before each element, every two
 * elements keep the declared distance, in the times that monitors see. If these are converted from
 * the CPU's counter, 10 us are added to the distance for the errors of two conversions. Elements
 * written without this call make the next wait longer.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 0, or a negative errno, at once:
 *   -EINVAL  the sensor is NULL or has declared no rate; oh_last_error returns which
 *
 * Thread safety: by the thread that writes the sensor.
 * Async-signal safety: no.
 * Real-time class: may block (it sleeps).
 */
int oh_sensor_pace(oh_sensor *sensor);

/*
 * oh_sensor_is_connected: returns whether a directory owns the stream.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 1 if a directory owns the stream, 0 if the sensor writes into private memory.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
int oh_sensor_is_connected(const oh_sensor *sensor);

/*
 * oh_last_error: the message of this thread's last failed call, of liboverhear or of
 * liboverhear_monitor. It begins with the name of the function.
 *
 * Ownership: the text belongs to the library. It is valid until the thread's next call of a
 * function that is not inlined, or until the thread ends.
 *
 * Returns the message, "" if there is none. After a registration without a directory it is the
 * reason why no monitor can read the sensor.
 *
 * Thread safety: may be called from any thread; each thread has its own message.
 * Async-signal safety: no.
 * Real-time class: may block (at a thread's first call).
 */
const char *oh_last_error(void);

#ifdef __cplusplus
}
#endif

/* The slot of the next element (section 4). */
OH_INLINE_ uint8_t *oh_sensor_slot_(const oh_sensor *sensor)
{
    return sensor->base + OH_HEADER_SIZE + (sensor->count & sensor->mask) * sensor->stride;
}

/* A relaxed store of a shared word: SYNC(publish) makes it visible. */
OH_INLINE_ void oh_word_store_(void *at, uint64_t word)
{
    __atomic_store_n((uint64_t *)at, word, __ATOMIC_RELAXED);
}

/*
 * Fills a payload by relaxed word stores; the rest of the last word is zeroed. With a size known
 * at compile time the loop is unrolled up to 128 bytes.
 */
OH_INLINE_ void oh_fill_(uint8_t *payload, const void *value, size_t size)
{
    const uint8_t *from = (const uint8_t *)value;
    uint64_t word;
    size_t at;
#ifdef __clang__
#pragma clang loop unroll_count(16)
#else
#pragma GCC unroll 16
#endif
    for (at = 0; at + 8 <= size; at += 8) {
        __builtin_memcpy(&word, from + at, 8);
        oh_word_store_(payload + at, word);
    }
    if (size % 8 != 0) {
        word = 0;
        __builtin_memcpy(&word, from + at, size % 8);
        oh_word_store_(payload + at, word);
    }
}

/* GCC warns that ThreadSanitizer does not see fences. It does not need to see this one: its
   partner is in another process. */
#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

/* Section 5.1, the writer: the counter (2) and the fence (3). */
OH_INLINE_ void oh_counter_store_(uint8_t *base, uint64_t count)
{
    /* SYNC(publish): pairs with the reader's first load of the counter, an acquire load. */
    __atomic_store_n((uint64_t *)(void *)(base + OH_COUNTER_OFFSET), count, __ATOMIC_RELEASE);
    /* SYNC(overwrite): pairs with the reader's acquire fence after its copy. Without it a reader
       could see words of the next element under the old counter and accept its copy. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic pop
#endif

/*
 * Section 5.5: counts a write that a budget keeps from being made, at this position of the ring
 * that begins at `base`. Relaxed: the words order nothing, and have one writer.
 */
static inline __attribute__((cold, unused)) void oh_ring_skip_(uint8_t *base, uint64_t position)
{
    uint64_t *words = (uint64_t *)(void *)(base + offsetof(oh_stream_header, skipped));
    const uint64_t count = __atomic_load_n(&words[0], __ATOMIC_RELAXED);
    oh_word_store_((uint8_t *)&words[0], count + 1);
    if (count == 0 || __atomic_load_n(&words[1], __ATOMIC_RELAXED) != position) {
        oh_word_store_((uint8_t *)&words[1], position);
        oh_word_store_((uint8_t *)&words[2], __atomic_load_n(&words[2], __ATOMIC_RELAXED) + 1);
    }
}

/* Section 5.1, the writer: the stamp (1, its last store), then the counter. */
OH_INLINE_ void oh_publish_(oh_sensor *sensor, uint8_t *base, uint8_t *slot, uint64_t count,
                            uint64_t stamp_ticks)
{
    oh_word_store_(slot, stamp_ticks);
    sensor->count = count + 1;
    oh_counter_store_(base, count + 1);
}

#endif /* !OVERHEAR_DISABLE */

/*
 * oh_sensor_stamp: reads the clock that the sensor stamps with (section 3).
 *
 * Reading a hardware counter is not ordered with the instructions around it: a few nanoseconds of
 * blur for half the cost. The order of a stream's own stamps is kept by the CPU.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns ticks.
 *
 * Thread safety: by the thread that writes the sensor.
 * Async-signal safety: yes.
 * Real-time class: wait-free; without a hardware counter, the vDSO's.
 */
OH_INLINE_ uint64_t oh_sensor_stamp(const oh_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    return oh_stamp_(sensor->clock_id);
#else
    (void)sensor;
    return 0;
#endif
}

/*
 * Whether a sensor is switched off. Each write checks this first; if it is off, it loads nothing
 * else, unless a budget has switched it off: then it counts the write.
 *
 * The hint to GCC makes "off" slightly likelier than "on". Without the hint GCC places the code of
 * an enabled sensor between the check and the following code, so that a disabled sensor jumps twice
 * per iteration of a short loop. With a stronger hint GCC places it far away, and a CPU that has
 * just woken up fetches one more line of code. Clang jumps once without a hint.
 */
#if __GNUC__ >= 9 && !defined(__clang__)
#define OH_IS_OFF_(on) __builtin_expect_with_probability(!(on), 1, 0.55)
#else
#define OH_IS_OFF_(on) (!(on))
#endif

/*
 * oh_sensor_enabled: returns whether the sensor is switched on.
 *
 * A sensor that is switched off publishes no elements. This is not a loss and is not counted; a
 * write costs one load and a branch. Use this function to skip observations that are expensive to
 * make. While a budget has switched the sensor off, the call counts as a write that was not made:
 * call it once per observation, from the writing thread, and write nothing if it returns 0.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 1 if it is switched on, else 0; 0 with OVERHEAR_DISABLE.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_sensor_enabled(const oh_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    /* Relaxed: a hint, which orders nothing. */
    const uint32_t state = __atomic_load_n(sensor->enabled, __ATOMIC_RELAXED);
    if (OH_IS_OFF_(state != OH_SWITCH_OFF))
        return 0;
    if (__builtin_expect(state == OH_SWITCH_ON, 1))
        return 1;
    if (state == OH_SWITCH_COUNTED)
        oh_ring_skip_(sensor->base, sensor->count);
    return 0;
#else
    (void)sensor;
    return 0;
#endif
}

/*
 * oh_sensor_write: begins an element and hands out its payload to fill.
 *
 * The payload contains bytes of an older element, so all of it must be filled. Nothing is published
 * before oh_sensor_commit; another call of oh_sensor_write instead starts the element again.
 *
 * Plain stores through the pointer are right, although readers may copy the same bytes at the same
 * moment. The readers are other processes and no part of the program that the compiler sees, so
 * there is no data race it could exploit; it may tear, merge or repeat these stores as it likes,
 * because no reader accepts this slot: the counter allows only the other capacity - 1 slots.
 * The stores must stay between two commits. The release store in the commit
 * after them, SYNC(publish), keeps them from sinking; the release fence in the commit before them,
 * SYNC(overwrite), keeps them from rising above the counter's store: both bind the compiler and
 * the CPU. A reader inside the same process needs oh_sensor_put, whose stores are atomic.
 *
 * Ownership: the payload is the caller's until oh_sensor_commit.
 *
 * Returns a pointer to the payload, aligned to 8; never NULL.
 *
 * Thread safety: one thread at a time per sensor.
 * Async-signal safety: yes, unless the signal interrupts a write to the same sensor.
 * Real-time class: wait-free.
 */
OH_INLINE_ void *oh_sensor_write(oh_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    return oh_sensor_slot_(sensor) + sizeof(oh_element);
#else
    /* Written and never read: the optimiser removes it and the stores. One per thread, so that
       disabling sensors does not introduce a data race. */
    static __thread uint64_t nowhere[OH_MAX_PAYLOAD / 8];
    (void)sensor;
    return nowhere;
#endif
}

/*
 * oh_sensor_commit_at: publishes the element with a stamp that the caller has read.
 *
 * For samplers, for replays and for elements that describe an earlier moment. Stamps of one stream
 * must not go back.
 *
 * Ownership: takes the payload that oh_sensor_write handed out.
 *
 * Returns nothing.
 *
 * Thread safety: one thread at a time per sensor.
 * Async-signal safety: yes, unless the signal interrupts a write to the same sensor.
 * Real-time class: wait-free.
 */
OH_INLINE_ void oh_sensor_commit_at(oh_sensor *sensor, uint64_t stamp_ticks)
{
#ifndef OVERHEAR_DISABLE
    if (!OH_IS_OFF_(oh_sensor_enabled(sensor)))
        oh_publish_(sensor, sensor->base, oh_sensor_slot_(sensor), sensor->count, stamp_ticks);
#else
    (void)sensor;
    (void)stamp_ticks;
#endif
}

/*
 * oh_sensor_commit: stamps the element and publishes it, unless the sensor is switched off.
 *
 * Ownership: takes the payload that oh_sensor_write handed out.
 *
 * Returns nothing.
 *
 * Thread safety: one thread at a time per sensor.
 * Async-signal safety: yes, unless the signal interrupts a write to the same sensor.
 * Real-time class: wait-free.
 */
OH_INLINE_ void oh_sensor_commit(oh_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    if (!OH_IS_OFF_(oh_sensor_enabled(sensor)))
        oh_publish_(sensor, sensor->base, oh_sensor_slot_(sensor), sensor->count,
                    oh_sensor_stamp(sensor));
#else
    (void)sensor;
#endif
}

/*
 * oh_sensor_put: writes, stamps and publishes a whole payload, unless the sensor is switched off.
 *
 * A macro, because the size of *value must be known at compile time. It must be the registered
 * size: assert checks it unless NDEBUG is defined; then a larger value damages the stream.
 *
 * Ownership: *value is copied.
 *
 * Returns nothing.
 *
 * Thread safety: one thread at a time per sensor.
 * Async-signal safety: yes, unless the signal interrupts a write to the same sensor.
 * Real-time class: wait-free.
 */
#define oh_sensor_put(sensor, value) oh_sensor_put_sized_((sensor), (value), sizeof *(value))

/* The same of a sensor that is known to be on. */
OH_INLINE_ void oh_sensor_put_on_(oh_sensor *sensor, const void *value, size_t size)
{
#ifndef OVERHEAR_DISABLE
    uint8_t *base, *slot;
    uint64_t count;
    assert(size == sensor->payload_size && "oh_sensor_put: another type was registered");
    /* Read once: for the compiler, each store below could change the sensor. */
    base = sensor->base;
    slot = oh_sensor_slot_(sensor);
    count = sensor->count;
    oh_fill_(slot + sizeof(oh_element), value, size);
    oh_publish_(sensor, base, slot, count, oh_sensor_stamp(sensor));
#else
    (void)sensor;
    (void)value;
    (void)size;
#endif
}

OH_INLINE_ void oh_sensor_put_sized_(oh_sensor *sensor, const void *value, size_t size)
{
    if (OH_IS_OFF_(oh_sensor_enabled(sensor)))
        return;
    oh_sensor_put_on_(sensor, value, size);
}

/* oh_sensor_put_at: oh_sensor_put with a stamp that the caller has read; see
   oh_sensor_commit_at. */
#define oh_sensor_put_at(sensor, value, stamp_ticks)                                                \
    oh_sensor_put_sized_at_((sensor), (value), sizeof *(value), (stamp_ticks))

OH_INLINE_ void oh_sensor_put_sized_at_(oh_sensor *sensor, const void *value, size_t size,
                                        uint64_t stamp_ticks)
{
#ifndef OVERHEAR_DISABLE
    uint8_t *base, *slot;
    uint64_t count;
    if (OH_IS_OFF_(oh_sensor_enabled(sensor)))
        return;
    assert(size == sensor->payload_size && "oh_sensor_put_at: another type was registered");
    base = sensor->base;
    slot = oh_sensor_slot_(sensor);
    count = sensor->count;
    oh_fill_(slot + sizeof(oh_element), value, size);
    oh_publish_(sensor, base, slot, count, stamp_ticks);
#else
    (void)sensor;
    (void)value;
    (void)size;
    (void)stamp_ticks;
#endif
}

#ifdef OVERHEAR_DISABLE

/* The cold functions, documented above, without a library. */

OH_INLINE_ int oh_sensor_register_sized(oh_sensor **out, const oh_sensor_options *options,
                                        size_t options_size)
{
    (void)options;
    (void)options_size;
    *out = NULL;
    return 0;
}

OH_INLINE_ int oh_sensor_register(oh_sensor **out, const oh_sensor_options *options)
{
    return oh_sensor_register_sized(out, options, sizeof *options);
}

OH_INLINE_ int oh_sensor_register_at_sized(oh_sensor *sensor, const oh_sensor_options *options,
                                           size_t options_size)
{
    (void)sensor;
    (void)options;
    (void)options_size;
    return 0;
}

OH_INLINE_ int oh_sensor_register_at(oh_sensor *sensor, const oh_sensor_options *options)
{
    return oh_sensor_register_at_sized(sensor, options, sizeof *options);
}

OH_INLINE_ void oh_sensor_unregister(oh_sensor *sensor)
{
    (void)sensor;
}

OH_INLINE_ int oh_sensor_register_again(oh_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_sensor_pace(oh_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_sensor_is_connected(const oh_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ const char *oh_last_error(void)
{
    return "sensors are compiled out (OVERHEAR_DISABLE)";
}

#endif /* OVERHEAR_DISABLE */

#include "laned.h"
#include "concurrent.h"

#endif /* OVERHEAR_SENSOR_H */
