/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Output of variable size, for C11 and C++17: messages, split over elements of one sensor.
 *
 * A sensor for messages is registered with the fields that OH_PART_FIELDS lists; oh_parts_write
 * then writes a message of any length as several elements. The reader joins them again. If an
 * element of a message is missed, the whole message is lost, and counted. The layout of a part is
 * that of crates/overhear-event/src/parts.rs.
 *
 *     static const oh_field fields[] = { OH_PART_FIELDS(232) };
 *     oh_sensor_options options = {0};
 *     oh_sensor *sensor;
 *     uint64_t message = 0;
 *     options.id = "log";
 *     options.type = "message";
 *     options.fields = fields;
 *     options.field_count = 4;
 *     options.size = OH_PART_SIZE(232);
 *     options.capacity = 1024;
 *     if (oh_sensor_register(&sensor, &options) == 0)
 *         oh_parts_write(sensor, &message, text, strlen(text));
 *
 * The capacity of the sensor must hold the parts of several of the longest messages. Laned and
 * concurrent sensors carry messages of several threads; rejoin.h is the reader's side.
 */
#ifndef OVERHEAR_PARTS_H
#define OVERHEAR_PARTS_H

#include <errno.h>
#include <string.h>

#include "sensor.h"

/* The header of a part; a piece of the message follows. */
typedef struct oh_part {
    uint64_t message; /* the number of the message in its stream, from 0 */
    uint32_t part;    /* the number of the part in its message, from 0 */
    uint32_t bytes;   /* bytes of the whole message */
} oh_part;

OH_ASSERT_FIELD(oh_part, message, 0, 8);
OH_ASSERT_FIELD(oh_part, part, 8, 4);
OH_ASSERT_FIELD(oh_part, bytes, 12, 4);
OH_STATIC_ASSERT(sizeof(oh_part) == 16, "oh_part: size");

/* Bytes of an element that carries data_bytes of a message, 1 to 4072. */
#define OH_PART_SIZE(data_bytes) ((uint32_t)(sizeof(oh_part) + (data_bytes)))

/* The four fields of such an element. */
#define OH_PART_FIELDS(data_bytes)                                                                  \
    {"message", OH_U64, 0, 8, ""}, {"part", OH_U32, 8, 4, ""}, {"bytes", OH_U32, 12, 4, "B"},       \
    {                                                                                               \
        "data", OH_TEXT, 16, (uint32_t)(data_bytes), ""                                             \
    }

#ifndef OVERHEAR_DISABLE

/* A message of which some parts are written. */
typedef struct oh_parts_left_ {
    oh_part part; /* the next one */
    const uint8_t *from;
    size_t length;
    size_t room; /* in each element */
} oh_parts_left_;

OH_INLINE_ int oh_parts_begin_(oh_parts_left_ *left, uint32_t payload_size, const void *bytes,
                               size_t length)
{
    if (length > UINT32_MAX)
        return -EMSGSIZE;
    if (payload_size <= sizeof left->part)
        return -EINVAL;
    left->part.message = 0;
    left->part.part = 0;
    left->part.bytes = (uint32_t)length;
    left->from = (const uint8_t *)bytes;
    left->length = length;
    left->room = payload_size - sizeof left->part;
    return 0;
}

/* Fills the payload with the next part. */
OH_INLINE_ void oh_parts_fill_(oh_parts_left_ *left, uint8_t *payload)
{
    const size_t size = left->length < left->room ? left->length : left->room;
    memcpy(payload, &left->part, sizeof left->part);
    if (size > 0) {
        memcpy(payload + sizeof left->part, left->from, size);
        left->from += size;
    }
    memset(payload + sizeof left->part + size, 0, left->room - size);
    left->part.part++;
    left->length -= size;
}

#endif

/*
 * oh_parts_write: writes a message as elements of a sensor for parts.
 *
 * While the sensor is switched off, nothing is written, which is no loss. A message during which it
 * is switched is one.
 *
 * *message is the number of the next message in this sensor's stream: 0 at first, and again after
 * oh_sensor_register_again has given the sensor a new stream. It is incremented.
 *
 * Ownership: the bytes are copied.
 *
 * Returns 0, or a negative errno, and then nothing is written:
 *   -EMSGSIZE  the message has 4 GiB or more
 *   -EINVAL    the sensor's elements have no room for a part
 *
 * Thread safety: one thread at a time per sensor.
 * Async-signal safety: yes, unless the signal interrupts a write to the same sensor.
 * Real-time class: wait-free; its time grows with the length of the message alone.
 */
OH_INLINE_ int oh_parts_write(oh_sensor *sensor, uint64_t *message, const void *bytes, size_t length)
{
#ifndef OVERHEAR_DISABLE
    oh_parts_left_ left;
    const int code = oh_parts_begin_(&left, sensor->payload_size, bytes, length);
    if (code != 0)
        return code;
    if (!oh_sensor_enabled(sensor))
        return 0;
    left.part.message = (*message)++;
    do {
        oh_parts_fill_(&left, (uint8_t *)oh_sensor_write(sensor));
        oh_sensor_commit(sensor);
    } while (left.length > 0);
#else
    (void)sensor;
    (void)message;
    (void)bytes;
    (void)length;
#endif
    return 0;
}

/*
 * oh_parts_write_concurrent: writes a message as elements of a concurrent sensor for parts.
 *
 * The parts of a message come from the calling thread, which is named in each of them (writer_tid):
 * readers tell those of several threads apart by it. So *message is the thread's own: the number of
 * its next message in this sensor's stream, 0 at first; see oh_parts_write.
 *
 * Ownership: the bytes are copied.
 *
 * Returns 0, or a negative errno:
 *   -EMSGSIZE  the message has 4 GiB or more; nothing is written
 *   -EINVAL    the sensor's elements have no room for a part; nothing is written
 *   -EAGAIN    a part was refused (see oh_concurrent_write), which is counted: readers find the
 *              message lost
 *
 * Thread safety: may be called from any thread, with a *message of its own.
 * Async-signal safety: yes, with a *message of its own, and unless the signal interrupts this call
 * in the same thread.
 * Real-time class: lock-free; its time grows with the length of the message.
 */
OH_INLINE_ int oh_parts_write_concurrent(oh_concurrent_sensor *sensor, uint64_t *message, const void *bytes,
                                     size_t length)
{
#ifndef OVERHEAR_DISABLE
    oh_parts_left_ left;
    const int code = oh_parts_begin_(&left, sensor->payload_size, bytes, length);
    if (code != 0)
        return code;
    if (!oh_concurrent_enabled(sensor))
        return 0;
    left.part.message = (*message)++;
    do {
        uint8_t *payload = (uint8_t *)oh_concurrent_write(sensor);
        if (payload == NULL)
            return -EAGAIN;
        oh_parts_fill_(&left, payload);
        oh_concurrent_commit(sensor, payload);
    } while (left.length > 0);
#else
    (void)sensor;
    (void)message;
    (void)bytes;
    (void)length;
#endif
    return 0;
}

/*
 * oh_parts_write_laned: writes a message as elements of a laned sensor for parts.
 *
 * The parts of a message come from the calling thread, which is named in each of them (writer_tid):
 * readers tell those of several threads apart by it. So *message is the thread's own: the number of
 * its next message in this sensor's stream, 0 at first; see oh_parts_write.
 *
 * Ownership: the bytes are copied.
 *
 * Returns 0, or a negative errno:
 *   -EMSGSIZE  the message has 4 GiB or more; nothing is written
 *   -EINVAL    the sensor's elements have no room for a part; nothing is written
 *   -EAGAIN    a part was refused (see oh_laned_write), which is counted: readers find the
 *              message lost
 *
 * Thread safety: may be called from any thread, with a *message of its own.
 * Async-signal safety: yes, with a *message of its own, and unless the signal interrupts this call
 * in the same thread.
 * Real-time class: wait-free; its time grows with the length of the message.
 */
OH_INLINE_ int oh_parts_write_laned(oh_laned_sensor *sensor, uint64_t *message, const void *bytes,
                                     size_t length)
{
#ifndef OVERHEAR_DISABLE
    oh_parts_left_ left;
    const int code = oh_parts_begin_(&left, sensor->payload_size, bytes, length);
    if (code != 0)
        return code;
    if (!oh_laned_enabled(sensor))
        return 0;
    left.part.message = (*message)++;
    do {
        uint8_t *payload = (uint8_t *)oh_laned_write(sensor);
        if (payload == NULL)
            return -EAGAIN;
        oh_parts_fill_(&left, payload);
        oh_laned_commit(sensor);
    } while (left.length > 0);
#else
    (void)sensor;
    (void)message;
    (void)bytes;
    (void)length;
#endif
    return 0;
}

#endif /* OVERHEAR_PARTS_H */
