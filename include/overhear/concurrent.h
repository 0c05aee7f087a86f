/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Concurrent sensors: many threads write at once, into one queue with one total order.
 *
 *     oh_concurrent_sensor *sensor;
 *     options.writers = 8;
 *     if (oh_concurrent_register(&sensor, &options) != 0)
 *         fprintf(stderr, "%s\n", oh_last_error());
 *
 *     oh_concurrent_put(sensor, &value);                          // from any thread
 *
 *     struct sample *payload = oh_concurrent_write(sensor);       // or in place
 *     if (payload != NULL) {
 *         payload->items = queue_length();
 *         oh_concurrent_commit(sensor, payload);
 *     }
 *
 * A write takes the oldest element out of the queue; the element is the thread's alone until commit
 * puts it at the end, stamped. Three atomic exchanges replace the lock. They cost about as much as
 * the stamp if one thread writes, and more if several threads contend. The benefit: stamps ascend
 * in the order of the stream, and a small buffer serves many threads. If neither matters, laned
 * sensors are cheaper (laned.h).
 *
 * A thread that is preempted, or dies, between write and commit keeps its element, and delays no
 * other thread. options.writers is the maximum number of elements between write and commit; they
 * are added to the capacity. A write is refused and counted when all elements are out, and refused
 * without being counted while the sensor is switched off.
 *
 * Writes may be nested, as by signal handlers: each has its own element. A write that is left by
 * longjmp must be given back by oh_concurrent_abandon, or its element is lost to the queue.
 *
 * The file is a part of sensor.h, which includes it. Names that end in an underscore are not for
 * users. The rules, and why they hold, are in docs/abi/stream-layout.md, section 5.3, and in
 * crates/overhear-stream/src/queue/mod.rs; the SYNC labels are those of that file.
 */
#ifndef OVERHEAR_CONCURRENT_H
#define OVERHEAR_CONCURRENT_H

#include "sensor.h"

/*
 * The hot part of a concurrent sensor, one cache line at the start of a larger object that
 * liboverhear owns. All threads share it and none changes it. Users treat it as opaque.
 */
typedef struct oh_concurrent_sensor {
    const uint32_t *enabled; /* section 8: the control line, or a word that is always 1 */
    uint8_t *base;           /* stream start: its header page */
    uint8_t *elements;       /* element 0 */
    uint64_t tid_distance;   /* from the thread pointer to the word that has the thread's id, or 0 */
    uint32_t mask;           /* capacity - 1 */
    uint32_t stride;         /* bytes */
    uint32_t payload_size;   /* bytes */
    uint32_t clock_id;       /* OH_CLOCK_*, section 3 */
    uint64_t reserved0[2];
} oh_concurrent_sensor;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_concurrent_sensor, enabled, 0, 8);
OH_ASSERT_FIELD(oh_concurrent_sensor, base, 8, 8);
OH_ASSERT_FIELD(oh_concurrent_sensor, elements, 16, 8);
OH_ASSERT_FIELD(oh_concurrent_sensor, tid_distance, 24, 8);
OH_ASSERT_FIELD(oh_concurrent_sensor, mask, 32, 4);
OH_ASSERT_FIELD(oh_concurrent_sensor, stride, 36, 4);
OH_ASSERT_FIELD(oh_concurrent_sensor, payload_size, 40, 4);
OH_ASSERT_FIELD(oh_concurrent_sensor, clock_id, 44, 4);
OH_STATIC_ASSERT(sizeof(oh_concurrent_sensor) == 64, "oh_concurrent_sensor: one cache line");
#endif

#ifndef OVERHEAR_DISABLE

#ifdef __cplusplus
extern "C" {
#endif

/* oh_concurrent_register_sized: as oh_sensor_register_sized; call oh_concurrent_register. */
int oh_concurrent_register_sized(oh_concurrent_sensor **out, const oh_sensor_options *options,
                                 size_t options_size);

/*
 * oh_concurrent_register: registers a sensor that many threads may write.
 *
 * options.writers is the maximum number of elements between write and commit at the same time,
 * including those of threads that died there. 0 means twice the number of CPUs, at least 16. They
 * are added to the capacity, which is rounded up to a power of two and at most 65,536. The declared
 * rate is that of all threads together.
 *
 * Ownership: the options and everything they point to are copied; the caller may free them
 * afterwards. *out belongs to the caller until oh_concurrent_unregister.
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
OH_INLINE_ int oh_concurrent_register(oh_concurrent_sensor **out, const oh_sensor_options *options)
{
    return oh_concurrent_register_sized(out, options, sizeof *options);
}

/*
 * oh_concurrent_unregister: gives the sensor back.
 *
 * Ownership: takes the sensor; no thread may use it afterwards. NULL is allowed. The directory
 * keeps the elements until monitors have read them.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread, while no other uses this sensor.
 * Async-signal safety: no.
 * Real-time class: may block (memory is unmapped).
 */
void oh_concurrent_unregister(oh_concurrent_sensor *sensor);

/*
 * oh_concurrent_register_again: registers a sensor that no directory owns again.
 *
 * See oh_sensor_register_again. No element may be between write and commit.
 *
 * Ownership: the sensor stays the caller's, at the same address.
 *
 * Returns 1 if a directory owns the sensor now; 0 if not, and oh_last_error returns the reason; or
 * a negative errno:
 *   -EINVAL  the sensor is NULL
 *   -ENOMEM  no memory; the sensor is as it was
 *
 * Thread safety: may be called from any thread, while no other uses this sensor.
 * Async-signal safety: no.
 * Real-time class: may block (as oh_concurrent_register).
 */
int oh_concurrent_register_again(oh_concurrent_sensor *sensor);

/*
 * oh_concurrent_pace: waits until the declared rate (T, D, tau), which is that of all threads
 * together, allows the calling thread the next element.
 *
 * If all threads call it before each element, every two elements of the stream keep the declared
 * distance; see oh_sensor_pace. After the call returns, other threads wait until the element is
 * committed, the thread calls again, or a second has passed. Only a thread that is delayed for more
 * than a second may violate the distance. The order of waiting threads is not defined. The call
 * does not wait while the sensor is switched off.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 0, or a negative errno, at once:
 *   -EINVAL  the sensor is NULL or has declared no rate; oh_last_error returns which
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: no.
 * Real-time class: may block (it takes a lock and sleeps).
 */
int oh_concurrent_pace(oh_concurrent_sensor *sensor);

/*
 * oh_concurrent_is_connected: returns whether a directory owns the stream.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 1 if a directory owns the stream, 0 if the sensor writes into private memory.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
int oh_concurrent_is_connected(const oh_concurrent_sensor *sensor);

/* The calling thread's id, from the kernel at its first call. Async-signal safe. */
uint32_t oh_thread_id_(void);

#ifdef __cplusplus
}
#endif

/* Out of line: the words of the queue stay with the winner of a race for some turns. */
static __attribute__((noinline, cold, unused)) void oh_concurrent_wait_(uint32_t *turns)
{
    uint32_t turn;
    for (turn = 0; turn < *turns; turn++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory");
#else
        __asm__ volatile("" ::: "memory");
#endif
    }
    *turns = *turns < 32 ? *turns * 2 : 64;
}

/* The thread that writes: a word of its own static thread-local block, 0 before its first write. */
OH_INLINE_ uint32_t oh_concurrent_tid_(const oh_concurrent_sensor *sensor)
{
#if defined(__x86_64__) && defined(__LP64__)
    uint8_t *pointer;
    uint32_t tid;
    __asm__ volatile("movq %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__) && defined(__LP64__)
    uint8_t *pointer;
    uint32_t tid;
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(pointer));
#else
    (void)sensor;
    return oh_thread_id_();
#endif
#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__LP64__)
    /* Relaxed: only this thread and its handlers touch the word. */
    tid = __atomic_load_n((const uint32_t *)(const void *)(pointer + sensor->tid_distance),
                          __ATOMIC_RELAXED);
    return __builtin_expect(tid != 0, 1) ? tid : oh_thread_id_();
#endif
}

/* The clock, read after every load before it in the program is done. */
OH_INLINE_ uint64_t oh_stamp_ordered_(uint32_t clock_id)
{
#if defined(__x86_64__) || defined(__i386__)
    if (__builtin_expect(clock_id == OH_CLOCK_X86_TSC, 1)) {
        uint32_t low, high;
        __asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
        return (uint64_t)high << 32 | low;
    }
#elif defined(__aarch64__)
    if (__builtin_expect(clock_id == OH_CLOCK_ARM_CNTVCT, 1)) {
        uint64_t ticks;
        __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
        return ticks;
    }
#endif
    (void)clock_id;
    /* The vDSO orders its own reads. */
    return oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);
}

/* A word of the header page, or of the index array that follows it. */
OH_INLINE_ uint64_t *oh_queue_word_(const oh_concurrent_sensor *sensor, size_t offset)
{
    return (uint64_t *)(void *)(sensor->base + offset);
}

/* The index word of a position, which is in the upper 48 bits of `word`. */
OH_INLINE_ uint64_t *oh_queue_index_(const oh_concurrent_sensor *sensor, uint64_t word)
{
    return oh_queue_word_(sensor, OH_HEADER_SIZE + (size_t)((word >> 16) & sensor->mask) * 8);
}

/* The successor of `head` or `tail`: the next position and its slot. */
OH_INLINE_ uint64_t oh_queue_next_(const oh_concurrent_sensor *sensor, uint64_t word)
{
    const uint64_t position = (word >> 16) + 1;
    return position << 16 | (position & sensor->mask);
}

/* Position of an index word minus that of `word`: below 0 open, 0 filled. */
OH_INLINE_ int64_t oh_queue_ahead_(uint64_t index, uint64_t word)
{
    return (int64_t)((index >> 16 << 16) - (word >> 16 << 16));
}

/* Where an element begins. */
OH_INLINE_ uint8_t *oh_queue_element_(const oh_concurrent_sensor *sensor, uint64_t index)
{
    return sensor->elements + (size_t)(index & sensor->mask) * sensor->stride;
}

/* Counts a write that was refused. */
static __attribute__((noinline, cold, unused)) void
oh_queue_refuse_(const oh_concurrent_sensor *sensor)
{
    /* Relaxed: a statistic. */
    (void)__atomic_fetch_add(oh_queue_word_(sensor, offsetof(oh_stream_header, lost_full)), 1,
                             __ATOMIC_RELAXED);
}

/* Section 5.5: counts a write that a budget keeps from being made. Relaxed: statistics. */
static inline __attribute__((cold, unused)) void
oh_queue_skip_(const oh_concurrent_sensor *sensor)
{
    const uint64_t head =
        __atomic_load_n(oh_queue_word_(sensor, OH_COUNTER_OFFSET), __ATOMIC_ACQUIRE);
    const uint64_t index = __atomic_load_n(oh_queue_index_(sensor, head), __ATOMIC_ACQUIRE);
    /* An element can be published before `head` has moved. */
    const uint64_t next = (head >> 16) + (oh_queue_ahead_(index, head) >= 0);
    uint64_t *count = oh_queue_word_(sensor, offsetof(oh_stream_header, skipped));
    uint64_t *at = oh_queue_word_(sensor, offsetof(oh_stream_header, skipped_at));
    const int is_first = __atomic_fetch_add(count, 1, __ATOMIC_RELAXED) == 0;
    /* Two threads that find the same new position count two runs: one too many does no harm. */
    if (is_first || __atomic_load_n(at, __ATOMIC_RELAXED) != next) {
        __atomic_store_n(at, next, __ATOMIC_RELAXED);
        (void)__atomic_fetch_add(oh_queue_word_(sensor, offsetof(oh_stream_header, skip_runs)), 1,
                                 __ATOMIC_RELAXED);
    }
}

/* GCC warns that ThreadSanitizer does not see fences. It need not see this one, whose partner is
   in another process. */
#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

/*
 * Steps 1 to 3: takes the oldest element; its number, or -1 where the write is refused. It and
 * oh_queue_give_ are not inlined: a call is cheap compared with their atomic operations, and
 * inlined they use so much of the register file that a loop with a disabled sensor is slower.
 */
static __attribute__((noinline, unused)) int32_t oh_queue_take_(const oh_concurrent_sensor *sensor)
{
    uint64_t *word = oh_queue_word_(sensor, offsetof(oh_stream_header, tail_or_busy));
    uint32_t turns = 8;
    for (;;) {
        /* SYNC(take): pairs with the CAS below. */
        uint64_t tail = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        /* SYNC(give): pairs with the CAS of the index word; its last owner has finished. */
        const uint64_t index = __atomic_load_n(oh_queue_index_(sensor, tail), __ATOMIC_ACQUIRE);
        const int64_t ahead = oh_queue_ahead_(index, tail);
        if (__builtin_expect(ahead != 0, 0)) {
            /* Empty, or outdated; passed while `tail` stands still is damage. */
            if (ahead > 0 && __atomic_load_n(word, __ATOMIC_ACQUIRE) != tail)
                continue;
            oh_queue_refuse_(sensor);
            return -1;
        }
        /* SYNC(take): pairs with the load above. */
        if (__atomic_compare_exchange_n(word, &tail, oh_queue_next_(sensor, tail), 0,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            /* SYNC(overwrite): pairs with the reader's acquire fence before its load of `tail`. */
            __atomic_thread_fence(__ATOMIC_RELEASE);
            return (int32_t)(index & 0xffff);
        }
        oh_concurrent_wait_(&turns);
    }
}

#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic pop
#endif

/* Steps 5 to 9: stamps the element and puts it at the end of the queue. */
static __attribute__((noinline, unused)) void oh_queue_give_(const oh_concurrent_sensor *sensor,
                                                             uint32_t element)
{
    uint64_t *word = oh_queue_word_(sensor, OH_COUNTER_OFFSET);
    uint8_t *slot = oh_queue_element_(sensor, element);
    uint32_t turns = 8;
    for (;;) {
        /* SYNC(advance): pairs with the CAS of `head` below. */
        uint64_t head = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        uint64_t *at = oh_queue_index_(sensor, head);
        /* SYNC(give): pairs with the CAS below. */
        uint64_t index = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        const int64_t ahead = oh_queue_ahead_(index, head);
        int enqueued = 0;
        if (ahead < 0) {
            oh_word_store_(slot, oh_stamp_ordered_(sensor->clock_id));
            /* SYNC(give): pairs with the loads of the index word. Acquire where it fails: the
               helper hands on what the enqueuer published. */
            enqueued = __atomic_compare_exchange_n(at, &index, (head >> 16 << 16) | element, 0,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        } else if (ahead > 0) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != head)
                continue;
            /* Damage: the element cannot be given back. */
            oh_queue_refuse_(sensor);
            return;
        }
        /* SYNC(advance): pairs with the loads of `head`. If it fails, another thread has advanced
           it. */
        (void)__atomic_compare_exchange_n(word, &head, oh_queue_next_(sensor, head), 0,
                                          __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        if (enqueued)
            return;
        oh_concurrent_wait_(&turns);
    }
}

/* The second word of an element: the writer's thread id, and flags. */
OH_INLINE_ void oh_queue_sign_(uint8_t *slot, uint32_t tid, uint32_t flags)
{
    const uint32_t pair[2] = {tid, flags};
    uint64_t word;
    __builtin_memcpy(&word, pair, sizeof word);
    oh_word_store_(slot + offsetof(oh_thread_element, tid), word);
}

/* Index of the element with this payload: oh_concurrent_write stored it in the word of the stamp.
   */
OH_INLINE_ uint32_t oh_queue_noted_(const oh_concurrent_sensor *sensor, const void *payload)
{
    const uint8_t *slot = (const uint8_t *)payload - sizeof(oh_thread_element);
    /* Relaxed: stored by this thread. The mask keeps a pointer that is none of ours in bounds. */
    const uint64_t noted =
        __atomic_load_n((const uint64_t *)(const void *)slot, __ATOMIC_RELAXED);
    return (uint32_t)noted & sensor->mask;
}

#endif /* !OVERHEAR_DISABLE */

/*
 * oh_concurrent_enabled: returns whether the sensor is switched on.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 1 if it is switched on, else 0; 0 with OVERHEAR_DISABLE.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_concurrent_enabled(const oh_concurrent_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    /* Relaxed: a hint, which orders nothing. */
    const uint32_t state = __atomic_load_n(sensor->enabled, __ATOMIC_RELAXED);
    if (OH_IS_OFF_(state != OH_SWITCH_OFF))
        return 0;
    if (__builtin_expect(state == OH_SWITCH_ON, 1))
        return 1;
    if (state == OH_SWITCH_COUNTED)
        oh_queue_skip_(sensor);
    return 0;
#else
    (void)sensor;
    return 0;
#endif
}

/*
 * oh_concurrent_write: takes an element and hands out its payload to fill.
 *
 * The payload contains bytes of an older element, so all of it must be filled. No other thread has
 * it, so plain stores through the pointer are right; see oh_sensor_write for the readers.
 *
 * Ownership: the payload is the caller's, also of another thread that it is handed to, until
 * oh_concurrent_commit or oh_concurrent_abandon.
 *
 * Returns a pointer to the payload, aligned to 8. NULL if the write is refused: all elements are
 * out, which is counted (lost_full), or the sensor is switched off, which is not. NULL with
 * OVERHEAR_DISABLE.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: lock-free.
 */
OH_INLINE_ void *oh_concurrent_write(oh_concurrent_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    int32_t element;
    uint8_t *slot;
    if (OH_IS_OFF_(oh_concurrent_enabled(sensor)))
        return NULL;
    element = oh_queue_take_(sensor);
    if (__builtin_expect(element < 0, 0))
        return NULL;
    slot = oh_queue_element_(sensor, (uint64_t)element);
    oh_word_store_(slot, (uint64_t)element);
    return slot + sizeof(oh_thread_element);
#else
    (void)sensor;
    return NULL;
#endif
}

/*
 * oh_concurrent_commit: stamps the element and publishes it.
 *
 * Ownership: takes the payload that oh_concurrent_write handed out.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread, once for each write.
 * Async-signal safety: yes. The thread's first write calls gettid.
 * Real-time class: lock-free.
 */
OH_INLINE_ void oh_concurrent_commit(oh_concurrent_sensor *sensor, void *payload)
{
#ifndef OVERHEAR_DISABLE
    const uint32_t element = oh_queue_noted_(sensor, payload);
    oh_queue_sign_(oh_queue_element_(sensor, element), oh_concurrent_tid_(sensor), 0);
    oh_queue_give_(sensor, element);
#else
    (void)sensor;
    (void)payload;
#endif
}

/*
 * oh_concurrent_abandon: gives the element back without an observation.
 *
 * It becomes a void element, which readers skip and do not count as missed.
 *
 * Ownership: takes the payload that oh_concurrent_write handed out.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread, once for each write.
 * Async-signal safety: yes.
 * Real-time class: lock-free.
 */
OH_INLINE_ void oh_concurrent_abandon(oh_concurrent_sensor *sensor, void *payload)
{
#ifndef OVERHEAR_DISABLE
    const uint32_t element = oh_queue_noted_(sensor, payload);
    oh_queue_sign_(oh_queue_element_(sensor, element), 0, OH_ELEMENT_VOID);
    oh_queue_give_(sensor, element);
#else
    (void)sensor;
    (void)payload;
#endif
}

/*
 * oh_concurrent_put: writes, stamps and publishes a whole payload.
 *
 * A macro, because the size of *value must be known at compile time. It must be the registered
 * size: assert checks it unless NDEBUG is defined; then a larger value damages the stream.
 *
 * Ownership: *value is copied.
 *
 * Returns 1 if the element was published, 0 if it was refused: see oh_concurrent_write.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: lock-free.
 */
#define oh_concurrent_put(sensor, value) oh_concurrent_put_sized_((sensor), (value), sizeof *(value))

/* The same of a sensor that is known to be on. */
OH_INLINE_ int oh_concurrent_put_on_(oh_concurrent_sensor *sensor, const void *value, size_t size)
{
#ifndef OVERHEAR_DISABLE
    int32_t element;
    uint8_t *slot;
    assert(size == sensor->payload_size && "oh_concurrent_put: another type was registered");
    element = oh_queue_take_(sensor);
    if (__builtin_expect(element < 0, 0))
        return 0;
    slot = oh_queue_element_(sensor, (uint64_t)element);
    oh_queue_sign_(slot, oh_concurrent_tid_(sensor), 0);
    oh_fill_(slot + sizeof(oh_thread_element), value, size);
    oh_queue_give_(sensor, (uint32_t)element);
    return 1;
#else
    (void)sensor;
    (void)value;
    (void)size;
    return 0;
#endif
}

OH_INLINE_ int oh_concurrent_put_sized_(oh_concurrent_sensor *sensor, const void *value, size_t size)
{
    if (OH_IS_OFF_(oh_concurrent_enabled(sensor)))
        return 0;
    return oh_concurrent_put_on_(sensor, value, size);
}

#ifdef OVERHEAR_DISABLE

/* The cold functions, documented above, without a library. */

OH_INLINE_ int oh_concurrent_register_sized(oh_concurrent_sensor **out,
                                            const oh_sensor_options *options, size_t options_size)
{
    (void)options;
    (void)options_size;
    *out = NULL;
    return 0;
}

OH_INLINE_ int oh_concurrent_register(oh_concurrent_sensor **out, const oh_sensor_options *options)
{
    return oh_concurrent_register_sized(out, options, sizeof *options);
}

OH_INLINE_ void oh_concurrent_unregister(oh_concurrent_sensor *sensor)
{
    (void)sensor;
}

OH_INLINE_ int oh_concurrent_register_again(oh_concurrent_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_concurrent_pace(oh_concurrent_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_concurrent_is_connected(const oh_concurrent_sensor *sensor)
{
    (void)sensor;
    return 0;
}

#endif /* OVERHEAR_DISABLE */

#endif /* OVERHEAR_CONCURRENT_H */
