/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A concurrent sensor over private memory, made by hand: its inline functions need no library. */
#ifndef OVERHEAR_TESTS_QUEUE_H
#define OVERHEAR_TESTS_QUEUE_H

#include <string.h>

#include <overhear/sensor.h>

enum { QUEUE_FIRST_TID = 4242 };

/* Bytes of the memory of a queue, section 5.3. */
#define QUEUE_ELEMENTS(capacity) (OH_HEADER_SIZE + ((capacity) * 8 + 4095) / 4096 * 4096)
#define QUEUE_STRIDE(payload_size) (((payload_size) + 7) / 8 * 8 + (uint32_t)sizeof(oh_thread_element))
#define QUEUE_BYTES(payload_size, capacity)                                                         \
    (QUEUE_ELEMENTS(capacity) + (capacity) * QUEUE_STRIDE(payload_size))

static uint32_t queue_enabled = 1;
/* The state of liboverhear for each thread: 0 until its first use. */
static __thread uint32_t queue_tid;

#ifdef __cplusplus
extern "C"
#endif
    uint32_t oh_thread_id_(void)
{
    return queue_tid == 0 ? (uint32_t)QUEUE_FIRST_TID : queue_tid;
}

static inline uint64_t queue_tid_distance(void)
{
    uint8_t *pointer = (uint8_t *)&queue_tid;
#if defined(__x86_64__) && defined(__LP64__)
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__) && defined(__LP64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return (uint64_t)((uint8_t *)&queue_tid - pointer);
}

/* Lays out zeroed memory as sections 2 and 5.3 say and returns the right to write it. */
static inline oh_concurrent_sensor queue_begin(void *memory, uint32_t payload_size,
                                               uint32_t capacity, uint32_t clock_id,
                                               uint64_t stream_id)
{
    oh_stream_header *header = (oh_stream_header *)memory;
    uint64_t *indices = (uint64_t *)memory + OH_HEADER_SIZE / 8;
    oh_concurrent_sensor sensor;
    uint64_t slot;
    memcpy(header->magic, OH_STREAM_MAGIC, sizeof header->magic);
    header->version = OH_LAYOUT_VERSION;
    header->header_size = OH_HEADER_SIZE;
    header->writer_kind = OH_WRITER_CONCURRENT;
    header->payload_size = payload_size;
    header->stride = QUEUE_STRIDE(payload_size);
    header->capacity = capacity;
    header->clock_id = clock_id;
    header->stream_id = stream_id;
    header->counter = (uint64_t)capacity << 16;
    for (slot = 0; slot < capacity; slot++)
        indices[slot] = slot << 16 | slot;

    memset(&sensor, 0, sizeof sensor);
    sensor.enabled = &queue_enabled;
    sensor.base = (uint8_t *)memory;
    sensor.elements = (uint8_t *)memory + QUEUE_ELEMENTS(capacity);
    sensor.tid_distance = queue_tid_distance();
    sensor.mask = capacity - 1;
    sensor.stride = header->stride;
    sensor.payload_size = payload_size;
    sensor.clock_id = clock_id;
    return sensor;
}

/* The number of published elements. SYNC(advance): pairs with the CAS of `head`. */
static inline uint64_t queue_published(const oh_concurrent_sensor *sensor)
{
    const uint64_t head = __atomic_load_n(oh_queue_word_(sensor, OH_COUNTER_OFFSET), __ATOMIC_ACQUIRE);
    return (head >> 16) - (sensor->mask + 1);
}

/* The oldest sequence that has not been taken. Relaxed: an acquire fence stands before it. */
static inline uint64_t queue_oldest(const oh_concurrent_sensor *sensor)
{
    const uint64_t *tail = oh_queue_word_(sensor, offsetof(oh_stream_header, tail_or_busy));
    const uint64_t position = __atomic_load_n(tail, __ATOMIC_RELAXED) >> 16;
    return position > sensor->mask ? position - (sensor->mask + 1) : 0;
}

/* The element with a sequence, which must still be there. */
static inline oh_thread_element *queue_element(const oh_concurrent_sensor *sensor, uint64_t sequence)
{
    const uint64_t place = (sequence + sensor->mask + 1) << 16;
    const uint64_t index = __atomic_load_n(oh_queue_index_(sensor, place), __ATOMIC_RELAXED);
    return (oh_thread_element *)(void *)oh_queue_element_(sensor, index);
}

static inline uint64_t queue_lost_full(const oh_concurrent_sensor *sensor)
{
    return __atomic_load_n(oh_queue_word_(sensor, offsetof(oh_stream_header, lost_full)),
                           __ATOMIC_RELAXED);
}

#endif
