/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A sensor over private memory, made by hand: tests of the inline functions need no library. */
#ifndef OVERHEAR_TESTS_STREAM_H
#define OVERHEAR_TESTS_STREAM_H

#include <string.h>

#include <overhear/sensor.h>

/* The switch of every sensor made here: a control line of section 8 begins so. */
static uint32_t stream_enabled __attribute__((unused)) = 1;

/* Writes the header of section 2 into zeroed memory and returns the right to write behind it. */
static inline oh_sensor stream_begin(void *memory, uint32_t payload_size, uint64_t capacity,
                                     uint32_t clock_id, uint64_t stream_id)
{
    oh_stream_header *header = (oh_stream_header *)memory;
    oh_sensor sensor;
    memcpy(header->magic, OH_STREAM_MAGIC, sizeof header->magic);
    header->version = OH_LAYOUT_VERSION;
    header->header_size = OH_HEADER_SIZE;
    header->writer_kind = OH_WRITER_SIMPLE;
    header->payload_size = payload_size;
    header->stride = (payload_size + 7) / 8 * 8 + (uint32_t)sizeof(oh_element);
    header->capacity = capacity;
    header->clock_id = clock_id;
    header->stream_id = stream_id;

    memset(&sensor, 0, sizeof sensor);
    sensor.base = (uint8_t *)memory;
    sensor.mask = capacity - 1;
    sensor.stride = header->stride;
    sensor.payload_size = payload_size;
    sensor.clock_id = clock_id;
    sensor.enabled = &stream_enabled;
    return sensor;
}

/* The counter in the reader's view. SYNC(publish): pairs with the writer's store. */
static inline uint64_t stream_counter(const void *memory)
{
    const uint8_t *base = (const uint8_t *)memory;
    return __atomic_load_n((const uint64_t *)(const void *)(base + OH_COUNTER_OFFSET),
                           __ATOMIC_ACQUIRE);
}

/* The element at a position. */
static inline const oh_element *stream_element(const oh_sensor *sensor, uint64_t position)
{
    const uint8_t *slot = sensor->base + OH_HEADER_SIZE + (position & sensor->mask) * sensor->stride;
    return (const oh_element *)(const void *)slot;
}

/* Its payload. */
static inline const void *stream_payload(const oh_sensor *sensor, uint64_t position)
{
    return stream_element(sensor, position) + 1;
}

#endif
