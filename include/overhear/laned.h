/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Laned sensors: many threads write at once, each into a lane of its own.
 *
 *     oh_laned_sensor *sensor;
 *     options.lanes = 8;
 *     if (oh_laned_register(&sensor, &options) != 0)
 *         fprintf(stderr, "%s\n", oh_last_error());
 *
 *     oh_laned_put(sensor, &value);                         // from any thread
 *
 *     struct sample *payload = oh_laned_write(sensor);      // or in place
 *     if (payload != NULL) {
 *         payload->items = queue_length();
 *         oh_laned_commit(sensor);
 *     }
 *
 * A thread gets its lane at its first write, out of a pool that is made at registration: no lock,
 * no allocation, one gettid, and none after oh_laned_prepare_thread. After that a write is the
 * fixed number of stores of a simple sensor; it shares no memory with other threads. Monitors see
 * the lanes as one sensor. When a thread has ended, the directory gives its lane to another.
 *
 * Unlike that of a simple sensor, a write can be refused: inside another write of the same thread
 * (nested: a signal handler, or a function called between write and commit), when all lanes belong
 * to others, and while the sensor is switched off. The first two are losses, which are counted.
 *
 * Writes that are left without commit, by longjmp for example, give their slot back. A write
 * remembers the frame of the function that began it: its stack address, and the return address
 * that stands there as long as the function has not ended. If the same thread begins another write
 * while one is open, the open one was abandoned
 *   - if it was begun on the alternate signal stack and the thread is not on it: a handler was
 *     left;
 *   - if its frame is not deeper on the same stack than that of the new one: its function has
 *     ended, was jumped out of, or begins anew;
 *   - if its return address has been overwritten: its function has ended.
 * An abandoned write becomes a void element, which readers skip, and the new one goes on. Else the
 * open write may be alive: the new one is nested, refused and counted. This is wrong if the frame
 * of an ended function still contains, by chance, the same return address, for example because the
 * same caller has called the function again, which has not written yet and calls another that
 * writes. oh_laned_abandon after the longjmp avoids this.
 *
 * Two rules follow. A function that calls oh_laned_write must not return before the commit: a
 * wrapper is inlined. And a write must not be open while the thread changes to a stack of the
 * program's own making (coroutines, SS_AUTODISARM). If a rule is broken, an open write may be
 * treated as abandoned. No element is torn: the commit is refused and counted.
 *
 * The file is a part of sensor.h, which includes it. Names that end in an underscore are not for
 * users.
 */
#ifndef OVERHEAR_LANED_H
#define OVERHEAR_LANED_H

#include "sensor.h"

/* Lowest bits of a frame's address: a destructor guards the write; a return address is stored
   there. */
enum { OH_FRAME_GUARDED_ = 1, OH_FRAME_WITNESSED_ = 2 };

/*
 * A lane, written by the thread that owns it (section 5.2): one cache line, and padding so that the
 * next lane is not in the same pair of lines. Mirrors `Lane` in
 * crates/overhear-stream/src/lanes.rs, where its protocol is.
 */
typedef struct oh_lane_ {
    uint8_t *base;  /* the lane's header page */
    uint64_t words; /* how much memory there is from base on */
    uint32_t lead_words;
    uint32_t payload_size; /* bytes */
    uint32_t stride_words;
    uint32_t reserved0;
    uint64_t capacity; /* a power of two */
    uint64_t count;    /* elements written; the lane's counter is a copy, read at a claim alone */
    uint64_t open;     /* 0 or the frame of the open write, with OH_FRAME_ bits */
    uint32_t tid;      /* of the thread that owns the lane */
    uint32_t mark;     /* lower half of the return address at `open`; 0 while it is not known */
} __attribute__((aligned(128))) oh_lane_;

/*
 * The hot part of a laned sensor, one cache line at the start of a larger object that liboverhear
 * owns. All threads share it and none changes it. Users treat it as opaque.
 */
typedef struct oh_laned_sensor {
    const uint32_t *enabled; /* section 8: the control line, or a word that is always 1 */
    uint64_t key;            /* the sensor's key in a thread's slot; the lower 13 bits are 0 */
    uint64_t entry_distance; /* from the thread pointer to the sensor's entry in the slot */
    oh_lane_ *lanes;         /* lane_count of them */
    uint32_t lane_count;
    uint32_t payload_size; /* bytes */
    uint32_t clock_id;     /* OH_CLOCK_*, section 3 */
    uint32_t reserved0;
    uint64_t reserved1[2];
} oh_laned_sensor;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_lane_, base, 0, 8);
OH_ASSERT_FIELD(oh_lane_, words, 8, 8);
OH_ASSERT_FIELD(oh_lane_, lead_words, 16, 4);
OH_ASSERT_FIELD(oh_lane_, payload_size, 20, 4);
OH_ASSERT_FIELD(oh_lane_, stride_words, 24, 4);
OH_ASSERT_FIELD(oh_lane_, capacity, 32, 8);
OH_ASSERT_FIELD(oh_lane_, count, 40, 8);
OH_ASSERT_FIELD(oh_lane_, open, 48, 8);
OH_ASSERT_FIELD(oh_lane_, tid, 56, 4);
OH_ASSERT_FIELD(oh_lane_, mark, 60, 4);
OH_ASSERT_FIELD(oh_laned_sensor, enabled, 0, 8);
OH_ASSERT_FIELD(oh_laned_sensor, key, 8, 8);
OH_ASSERT_FIELD(oh_laned_sensor, entry_distance, 16, 8);
OH_ASSERT_FIELD(oh_laned_sensor, lanes, 24, 8);
OH_ASSERT_FIELD(oh_laned_sensor, lane_count, 32, 4);
OH_ASSERT_FIELD(oh_laned_sensor, payload_size, 36, 4);
OH_ASSERT_FIELD(oh_laned_sensor, clock_id, 40, 4);
OH_STATIC_ASSERT(sizeof(oh_lane_) == 128, "oh_lane_: a pair of cache lines");
#endif
OH_STATIC_ASSERT(sizeof(oh_laned_sensor) == 64, "oh_laned_sensor: one cache line");

#ifndef OVERHEAR_DISABLE

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The sizes that oh_laned_register passes to the library: of the options in the lower 16 bits, of a
 * lane above. The inlined functions depend on the layout of a lane, so the library refuses lanes of
 * another size, and programs whose header is too old to pass a size.
 */
#define OH_LANED_SIZES_ (sizeof(oh_sensor_options) | sizeof(oh_lane_) << 16)

/* oh_laned_register_sized: as oh_sensor_register_sized; call oh_laned_register. */
int oh_laned_register_sized(oh_laned_sensor **out, const oh_sensor_options *options,
                            size_t options_size);

/*
 * oh_laned_register: registers a sensor that many threads may write.
 *
 * options.lanes is the maximum number of threads that write at the same time, 1 to 4096. 0 means
 * twice the number of CPUs, at least 16. The declared rate and the capacity are those of each lane.
 *
 * Ownership: the options and everything they point to are copied; the caller may free them
 * afterwards. *out belongs to the caller until oh_laned_unregister.
 *
 * Returns 0, also if no directory answers: then the sensor writes into private memory, and
 * oh_last_error returns the reason. Otherwise a negative errno, and *out is NULL:
 *   -EINVAL  the options contradict themselves, or the program was compiled with the header of
 *            another version; oh_last_error returns which
 *   -ENOMEM  no memory for the sensor
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: no.
 * Real-time class: may block (it sends a request to the directory, and maps and touches memory).
 */
OH_INLINE_ int oh_laned_register(oh_laned_sensor **out, const oh_sensor_options *options)
{
    return oh_laned_register_sized(out, options, OH_LANED_SIZES_);
}

/*
 * oh_laned_unregister: gives the sensor back.
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
void oh_laned_unregister(oh_laned_sensor *sensor);

/*
 * oh_laned_register_again: registers a sensor that no directory owns again.
 *
 * See oh_sensor_register_again; threads get lanes of the new pool at their next write.
 *
 * Ownership: the sensor stays the caller's, at the same address.
 *
 * Returns 1 if a directory owns the sensor now; 0 if not, and oh_last_error returns the reason; or
 * a negative errno:
 *   -EINVAL  the sensor is NULL
 *   -ENOMEM  no memory for the new lanes; the sensor is as it was
 *
 * Thread safety: may be called from any thread, while no other uses this sensor.
 * Async-signal safety: no.
 * Real-time class: may block (as oh_laned_register).
 */
int oh_laned_register_again(oh_laned_sensor *sensor);

/*
 * oh_laned_pace: waits until the declared rate (T, D, tau) allows the calling thread's next
 * element.
 *
 * The rate is that of each lane, so threads do not wait for each other; see oh_sensor_pace. If the
 * rate is meant for all threads together, use a concurrent sensor. A thread without a lane claims
 * one. The call does not wait if the sensor is switched off or has no free lane.
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
int oh_laned_pace(oh_laned_sensor *sensor);

/*
 * oh_laned_is_connected: returns whether a directory owns the lanes.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 1 if a directory owns the lanes, 0 if the sensor writes into private memory.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
int oh_laned_is_connected(const oh_laned_sensor *sensor);

/*
 * oh_laned_prepare_thread: claims a lane for the calling thread and touches its memory.
 *
 * After it no write of this thread to this sensor enters the kernel: no gettid, no page fault.
 *
 * Ownership: the lane is the thread's until it ends.
 *
 * Returns 1, or 0 if no lane is free; this is counted as a refused write.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: may block (memory may be paged in).
 */
int oh_laned_prepare_thread(oh_laned_sensor *sensor);

/*
 * oh_prepare_thread: reads the calling thread's id, so that no later write has to.
 *
 * Enough for sensors whose threads share one ring; see oh_laned_prepare_thread for lanes.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: enters the kernel, but does not block.
 */
void oh_prepare_thread(void);

/* Claims a lane for a thread without one, or finds its lane; NULL, counted, if none is free. */
oh_lane_ *oh_lane_claim_(oh_laned_sensor *sensor);
/* Called by a write if another is open. 1: that one was abandoned; 0: this one is refused, counted.
   */
int oh_lane_interrupt_(oh_laned_sensor *sensor, oh_lane_ *lane, uint64_t frame, uint32_t mark);
/* Counts a commit whose write is not open. */
void oh_lane_refuse_(oh_lane_ *lane);
/* The thread pointer, or its substitute on architectures that this header does not support. */
uint8_t *oh_thread_pointer_(void);

#ifdef __cplusplus
}
#endif

/*
 * The calling thread's lane, read from its slot, a variable in the static thread-local block.
 * Volatile: a coroutine may be on another thread than at its last write.
 */
OH_INLINE_ oh_lane_ *oh_lane_of_thread_(oh_laned_sensor *sensor, int claims)
{
    uint8_t *pointer;
    uint64_t lane;
#if defined(__x86_64__) && defined(__LP64__)
    __asm__ volatile("movq %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__) && defined(__LP64__)
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(pointer));
#else
    pointer = oh_thread_pointer_();
#endif
    /* Relaxed: only this thread and its handlers touch the slot, and an entry is one word. */
    lane = __atomic_load_n((const uint64_t *)(const void *)(pointer + sensor->entry_distance),
                           __ATOMIC_RELAXED) ^
           sensor->key;
    if (__builtin_expect(lane < sensor->lane_count, 1))
        return &sensor->lanes[lane];
    return claims ? oh_lane_claim_(sensor) : NULL;
}

/*
 * Section 5.5: counts a write of this thread that a budget keeps from being made. For a thread
 * without a lane a refused write is counted.
 */
static inline __attribute__((cold, unused)) void oh_lane_skip_(const oh_laned_sensor *sensor)
{
    oh_lane_ *lane = oh_lane_of_thread_((oh_laned_sensor *)(uintptr_t)sensor, 1);
    if (lane != NULL)
        oh_ring_skip_(lane->base, __atomic_load_n(&lane->count, __ATOMIC_RELAXED));
}

/*
 * The frame of the function that this is inlined into: the stack address of its return address.
 * Asking for the frame's address makes the compiler keep a frame pointer in this function, and with
 * it, on x86-64 and AArch64, the return address one word above.
 */
OH_INLINE_ uint64_t oh_frame_(void)
{
    const uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__LP64__)
    return (frame + 8) | OH_FRAME_WITNESSED_;
#else
    return frame;
#endif
}

/* Shared with the handlers of the same thread, so ordered for the compiler alone. */
OH_INLINE_ uint64_t oh_lane_load_(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* The slot of the lane's next element (section 4). */
OH_INLINE_ uint8_t *oh_lane_slot_(const oh_lane_ *lane, uint64_t count)
{
    return lane->base + OH_HEADER_SIZE + (count & (lane->capacity - 1)) * lane->stride_words * 8;
}

/* Opens a write: 1, or 0 if it is nested. A guard (sensor.hpp) adds OH_FRAME_GUARDED_ to its
   place. */
OH_INLINE_ int oh_lane_open_(oh_laned_sensor *sensor, oh_lane_ *lane, uint64_t frame)
{
    uint32_t mark = 0;
    if (frame & OH_FRAME_WITNESSED_)
        mark = (uint32_t) * (const uint64_t *)(uintptr_t)(frame & ~(uint64_t)7);
    if (__builtin_expect(oh_lane_load_(&lane->open) != 0, 0))
        return oh_lane_interrupt_(sensor, lane, frame, mark);
    __atomic_store_n(&lane->open, frame, __ATOMIC_RELAXED);
    /* From here on a handler is nested. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&lane->mark, mark, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return 1;
}

/* Closes the write that is open. */
OH_INLINE_ void oh_lane_close_(oh_lane_ *lane)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&lane->mark, (uint32_t)0, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&lane->open, (uint64_t)0, __ATOMIC_RELAXED);
}

/* Section 5.1, the writer, on a lane whose write is open. */
OH_INLINE_ void oh_lane_publish_(oh_lane_ *lane, uint8_t *slot, uint64_t count,
                                 uint64_t stamp_ticks)
{
    uint8_t *base = lane->base;
    /* The thread, and no flags. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    oh_word_store_(slot + 8, lane->tid);
#else
    oh_word_store_(slot + 8, (uint64_t)lane->tid << 32);
#endif
    oh_word_store_(slot, stamp_ticks);
    oh_counter_store_(base, count + 1);
    __atomic_store_n(&lane->count, count + 1, __ATOMIC_RELAXED);
    oh_lane_close_(lane);
}

#endif /* !OVERHEAR_DISABLE */

/*
 * oh_laned_enabled: returns whether the sensor is switched on.
 *
 * A write to a sensor that is switched off is refused all the same; this is for observations that
 * cost something to make.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns 1 if it is switched on, else 0; 0 with OVERHEAR_DISABLE.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_laned_enabled(const oh_laned_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    /* Relaxed: a hint, which orders nothing. */
    const uint32_t state = __atomic_load_n(sensor->enabled, __ATOMIC_RELAXED);
    if (OH_IS_OFF_(state != OH_SWITCH_OFF))
        return 0;
    if (__builtin_expect(state == OH_SWITCH_ON, 1))
        return 1;
    if (state == OH_SWITCH_COUNTED)
        oh_lane_skip_(sensor);
    return 0;
#else
    (void)sensor;
    return 0;
#endif
}

/*
 * oh_laned_stamp: reads the clock that the sensor stamps with; see oh_sensor_stamp.
 *
 * Ownership: the sensor stays the caller's.
 *
 * Returns ticks.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free; without a hardware counter, the vDSO's.
 */
OH_INLINE_ uint64_t oh_laned_stamp(const oh_laned_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    return oh_stamp_(sensor->clock_id);
#else
    (void)sensor;
    return 0;
#endif
}

/* oh_laned_write; a guard, whose destructor gives the slot back, passes OH_FRAME_GUARDED_. */
OH_INLINE_ void *oh_laned_begin_(oh_laned_sensor *sensor, uint64_t guarded)
{
#ifndef OVERHEAR_DISABLE
    oh_lane_ *lane;
    if (OH_IS_OFF_(oh_laned_enabled(sensor)))
        return NULL;
    lane = oh_lane_of_thread_(sensor, 1);
    if (lane == NULL || !oh_lane_open_(sensor, lane, oh_frame_() | guarded))
        return NULL;
    return oh_lane_slot_(lane, oh_lane_load_(&lane->count)) + sizeof(oh_thread_element);
#else
    (void)sensor;
    (void)guarded;
    return NULL;
#endif
}

/*
 * oh_laned_write: begins an element and hands out its payload to fill.
 *
 * The payload contains bytes of an older element, so all of it must be filled. Nothing is published
 * before oh_laned_commit. Plain stores through the pointer are right, as for oh_sensor_write.
 *
 * Ownership: the payload is the caller's until oh_laned_commit or oh_laned_abandon. The calling
 * function must not return before that.
 *
 * Returns a pointer to the payload, aligned to 8, or NULL:
 *   - inside another write of the same thread; counted in lost_nested
 *   - without a free lane; counted in lost_full
 *   - while the sensor is switched off
 * After NULL there is nothing to commit.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free; lock-free at a thread's first write, which also enters the kernel.
 */
OH_INLINE_ void *oh_laned_write(oh_laned_sensor *sensor)
{
    return oh_laned_begin_(sensor, 0);
}

/*
 * oh_laned_commit_at: publishes the thread's open element with a stamp that the caller has read.
 *
 * Stamps of one thread must not go back.
 *
 * Ownership: takes the payload that oh_laned_write handed out.
 *
 * Returns 1, or 0 if no write of this thread is open: it was taken for abandoned, because the
 * function that began it has returned; counted in lost_nested.
 *
 * Thread safety: may be called from any thread; it commits the write that the same thread began.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_laned_commit_at(oh_laned_sensor *sensor, uint64_t stamp_ticks)
{
#ifndef OVERHEAR_DISABLE
    oh_lane_ *lane = oh_lane_of_thread_(sensor, 1);
    uint64_t count;
    if (lane == NULL)
        return 0;
    if (__builtin_expect(oh_lane_load_(&lane->open) == 0, 0)) {
        oh_lane_refuse_(lane);
        return 0;
    }
    count = oh_lane_load_(&lane->count);
    oh_lane_publish_(lane, oh_lane_slot_(lane, count), count, stamp_ticks);
    return 1;
#else
    (void)sensor;
    (void)stamp_ticks;
    return 0;
#endif
}

/*
 * oh_laned_commit: stamps the thread's open element and publishes it.
 *
 * Ownership: takes the payload that oh_laned_write handed out.
 *
 * Returns 1, or 0 as oh_laned_commit_at.
 *
 * Thread safety: may be called from any thread; it commits the write that the same thread began.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_laned_commit(oh_laned_sensor *sensor)
{
    return oh_laned_commit_at(sensor, oh_laned_stamp(sensor));
}

/*
 * oh_laned_abandon: gives the slot of the thread's open element back.
 *
 * For writes without a result, and after a longjmp that may have skipped a commit. Without an open
 * write it does nothing.
 *
 * Ownership: takes the payload that oh_laned_write handed out.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread; it abandons the write that the same thread began.
 * Async-signal safety: no: a handler would abandon the write of the code that it interrupts.
 * Real-time class: wait-free.
 */
OH_INLINE_ void oh_laned_abandon(oh_laned_sensor *sensor)
{
#ifndef OVERHEAR_DISABLE
    oh_lane_ *lane = oh_lane_of_thread_(sensor, 0);
    if (lane != NULL)
        oh_lane_close_(lane);
#else
    (void)sensor;
#endif
}

/*
 * oh_laned_put: writes, stamps and publishes a whole payload.
 *
 * A macro, because the size of *value must be known at compile time. It must be the registered
 * size: assert checks it unless NDEBUG is defined; then a larger value damages the lane.
 *
 * Ownership: *value is copied.
 *
 * Returns 1 if the element was published, 0 if it was refused: see oh_laned_write.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: as oh_laned_write.
 */
#define oh_laned_put(sensor, value) oh_laned_put_sized_((sensor), (value), sizeof *(value))

/* The same of a sensor that is known to be on. */
OH_INLINE_ int oh_laned_put_on_(oh_laned_sensor *sensor, const void *value, size_t size)
{
#ifndef OVERHEAR_DISABLE
    oh_lane_ *lane;
    uint64_t count;
    uint8_t *slot;
    assert(size == sensor->payload_size && "oh_laned_put: another type was registered");
    lane = oh_lane_of_thread_(sensor, 1);
    if (lane == NULL || !oh_lane_open_(sensor, lane, oh_frame_()))
        return 0;
    count = oh_lane_load_(&lane->count);
    slot = oh_lane_slot_(lane, count);
    oh_fill_(slot + sizeof(oh_thread_element), value, size);
    oh_lane_publish_(lane, slot, count, oh_laned_stamp(sensor));
    return 1;
#else
    (void)sensor;
    (void)value;
    (void)size;
    return 0;
#endif
}

OH_INLINE_ int oh_laned_put_sized_(oh_laned_sensor *sensor, const void *value, size_t size)
{
    if (OH_IS_OFF_(oh_laned_enabled(sensor)))
        return 0;
    return oh_laned_put_on_(sensor, value, size);
}

#ifdef OVERHEAR_DISABLE

/* The cold functions, documented above, without a library. */

OH_INLINE_ int oh_laned_register_sized(oh_laned_sensor **out, const oh_sensor_options *options,
                                       size_t options_size)
{
    (void)options;
    (void)options_size;
    *out = NULL;
    return 0;
}

OH_INLINE_ int oh_laned_register(oh_laned_sensor **out, const oh_sensor_options *options)
{
    return oh_laned_register_sized(out, options, sizeof *options);
}

OH_INLINE_ void oh_laned_unregister(oh_laned_sensor *sensor)
{
    (void)sensor;
}

OH_INLINE_ int oh_laned_register_again(oh_laned_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_laned_pace(oh_laned_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_laned_is_connected(const oh_laned_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ int oh_laned_prepare_thread(oh_laned_sensor *sensor)
{
    (void)sensor;
    return 0;
}

OH_INLINE_ void oh_prepare_thread(void)
{
}

#endif /* OVERHEAR_DISABLE */

#endif /* OVERHEAR_LANED_H */
