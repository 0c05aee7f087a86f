/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The reader's side of parts.h, for updates in C11 and C++17: joins the parts of messages.
 *
 * A rejoiner takes the parts of one writer in the order of their stream. It returns each message
 * whole, or counts it as lost. Messages are numbered, so it detects losses without being informed
 * of gaps. It corresponds to Rejoiner in crates/overhear-event/src/parts.rs, with memory of the
 * caller.
 *
 *     static uint8_t buffer[4096];
 *     oh_rejoiner log;
 *     oh_rejoiner_begin(&log, buffer, sizeof buffer, element->stream->payload_size,
 *                       OH_REJOIN_FROM_START);
 *
 *     if (oh_rejoiner_part(&log, element->payload, element->stream->payload_size))
 *         printf("%.*s\n", (int)log.length, (const char *)log.buffer);
 *
 * Elements of laned and concurrent sensors carry the id of the writing thread (writer_tid). The
 * parts of a message come from one thread, and those of several threads mix: each has its
 * own rejoiner, which oh_rejoiner_of finds in an array.
 *
 * Nothing here allocates, blocks or enters the kernel: it may run in a real-time thread.
 */
#ifndef OVERHEAR_REJOIN_H
#define OVERHEAR_REJOIN_H

#include "parts.h"

/* The messages that a rejoiner counts as lost if parts are missing. */
enum {
    OH_REJOIN_FROM_START = 1, /* all: messages before the first part are lost */
    OH_REJOIN_FROM_NOW = 0    /* messages that begin with the first part that it gets, or later */
};

/* State of the awaited message. */
enum {
    OH_REJOIN_UNUSED_ = 0,
    OH_REJOIN_AWAITED_ = 1, /* no part yet */
    OH_REJOIN_BEGUN_ = 2,   /* the first parts */
    OH_REJOIN_GIVEN_UP_ = 3 /* a part is missing: it is counted, and further parts are ignored */
};

/* Puts the parts of one writer together. All zeros: not in use. */
typedef struct oh_rejoiner {
    uint8_t *buffer;           /* of the caller: the message, once it is whole */
    size_t length;             /* bytes of the message that is whole */
    uint64_t number;           /* its number */
    uint64_t lost;             /* messages with a missing part, and lost_too_long */
    uint64_t lost_too_long;    /* of these, messages that are longer than the buffer */
    uint64_t rejected_corrupt; /* parts with contradictory headers */
    uint32_t writer_tid;       /* writer of its parts; set by oh_rejoiner_of */
    /* The following members are not for users. */
    uint32_t state;        /* OH_REJOIN_..._ */
    size_t capacity;       /* bytes of the buffer */
    uint64_t message;      /* number of the awaited message */
    uint32_t payload_size; /* bytes of a part's element */
    uint32_t parts;        /* number of its parts so far */
    uint32_t bytes;        /* length of the message according to its parts */
    uint32_t joined;       /* whether `message` is known */
} oh_rejoiner;

/*
 * oh_rejoiner_begin: makes a rejoiner for one stream, or for one writer of it.
 *
 * payload_size is that of the stream, and `from` one of OH_REJOIN_FROM_START and
 * OH_REJOIN_FROM_NOW.
 *
 * Ownership: the buffer stays the caller's, and is used until the rejoiner is no longer. It holds
 * the longest message: longer ones are lost.
 *
 * Returns 0, or a negative errno:
 *   -EINVAL  elements of this size carry no parts
 *
 * Thread safety: one thread at a time per rejoiner.
 * Async-signal safety: yes, unless the signal interrupts a call for the same rejoiner.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_rejoiner_begin(oh_rejoiner *rejoiner, void *buffer, size_t capacity,
                                 uint32_t payload_size, int from)
{
    memset(rejoiner, 0, sizeof *rejoiner);
    if (payload_size <= sizeof(oh_part))
        return -EINVAL;
    rejoiner->buffer = (uint8_t *)buffer;
    rejoiner->capacity = capacity;
    rejoiner->payload_size = payload_size;
    rejoiner->state = OH_REJOIN_AWAITED_;
    rejoiner->joined = from == OH_REJOIN_FROM_START;
    return 0;
}

/*
 * oh_rejoiner_of: finds a writer's rejoiner in an array of rejoiners that were begun, or assigns it
 * a free one.
 *
 * Ownership: the rejoiners stay the caller's.
 *
 * Returns the rejoiner, or NULL if all belong to other writers: then the caller has to count the
 * messages that it does not join.
 *
 * Thread safety: one thread at a time per array.
 * Async-signal safety: yes, unless the signal interrupts a call for the same array.
 * Real-time class: wait-free; its time grows with the number of rejoiners alone.
 */
OH_INLINE_ oh_rejoiner *oh_rejoiner_of(oh_rejoiner *rejoiners, size_t count, uint32_t writer_tid)
{
    size_t index;
    for (index = 0; index < count; index++) {
        if (rejoiners[index].writer_tid == writer_tid)
            return &rejoiners[index];
        if (rejoiners[index].writer_tid == 0) {
            rejoiners[index].writer_tid = writer_tid;
            return &rejoiners[index];
        }
    }
    return NULL;
}

/* Counts lost messages; a hostile number does not make the sum small. */
OH_INLINE_ void oh_rejoiner_lose_(oh_rejoiner *rejoiner, uint64_t count)
{
    const uint64_t sum = rejoiner->lost + count;
    rejoiner->lost = sum < count ? UINT64_MAX : sum;
}

OH_INLINE_ void oh_rejoiner_await_(oh_rejoiner *rejoiner, uint64_t message)
{
    rejoiner->message = message;
    rejoiner->state = OH_REJOIN_AWAITED_;
    rejoiner->joined = 1;
}

/*
 * oh_rejoiner_part: adds the next part.
 *
 * Ownership: the payload is copied. A message that is whole lies in `buffer`, `length` bytes with
 * the number `number`, until the next call.
 *
 * Returns 1 if the part completes a message, else 0. Messages that the part shows to be lost are
 * counted in `lost`. A payload that is no part, is inconsistent or has an earlier number is counted
 * in `rejected_corrupt`.
 *
 * Thread safety: one thread at a time per rejoiner.
 * Async-signal safety: yes, unless the signal interrupts a call for the same rejoiner.
 * Real-time class: wait-free.
 */
OH_INLINE_ int oh_rejoiner_part(oh_rejoiner *rejoiner, const void *payload, uint32_t payload_size)
{
    oh_part part;
    uint64_t before;
    uint64_t piece;
    uint32_t parts;
    if (rejoiner->state == OH_REJOIN_UNUSED_ || payload_size != rejoiner->payload_size) {
        rejoiner->rejected_corrupt++;
        return 0;
    }
    /* The element was validated, but its content comes from the sensor's process and is not
       trusted. */
    memcpy(&part, payload, sizeof part);
    piece = payload_size - sizeof part;
    before = part.part * piece;
    if (before > part.bytes || (before == part.bytes && part.part > 0)) {
        rejoiner->rejected_corrupt++;
        return 0;
    }
    if (part.bytes - before < piece)
        piece = part.bytes - before;
    if (!rejoiner->joined) {
        oh_rejoiner_await_(rejoiner, part.message);
        if (part.part > 0)
            rejoiner->state = OH_REJOIN_GIVEN_UP_; /* It was begun before. */
    } else if (part.message > rejoiner->message) {
        const uint64_t first = rejoiner->message + (rejoiner->state == OH_REJOIN_GIVEN_UP_);
        oh_rejoiner_lose_(rejoiner, part.message - first);
        oh_rejoiner_await_(rejoiner, part.message);
    } else if (part.message < rejoiner->message) {
        /* An honest writer does not go back. The number is believed all the same, lest one bad part
           silence the stream. */
        rejoiner->rejected_corrupt++;
        oh_rejoiner_await_(rejoiner, part.message);
    }
    if (rejoiner->state == OH_REJOIN_GIVEN_UP_)
        return 0;
    parts = rejoiner->state == OH_REJOIN_AWAITED_ ? 0 : rejoiner->parts;
    if (part.part != parts || (parts > 0 && part.bytes != rejoiner->bytes) ||
        part.bytes > rejoiner->capacity) {
        rejoiner->lost_too_long += part.bytes > rejoiner->capacity;
        rejoiner->state = OH_REJOIN_GIVEN_UP_;
        oh_rejoiner_lose_(rejoiner, 1);
        return 0;
    }
    if (piece > 0)
        memcpy(rejoiner->buffer + before, (const uint8_t *)payload + sizeof part, (size_t)piece);
    if (before + piece < part.bytes) {
        rejoiner->state = OH_REJOIN_BEGUN_;
        rejoiner->parts = parts + 1;
        rejoiner->bytes = part.bytes;
        return 0;
    }
    rejoiner->number = part.message;
    rejoiner->length = part.bytes;
    oh_rejoiner_await_(rejoiner, part.message + 1);
    return 1;
}

/*
 * oh_rejoiner_interrupted: elements were missed here, or the stream has ended.
 *
 * The message that is not whole is lost. For gaps the call is optional: the numbers of later parts
 * show the loss, too, but later.
 *
 * Ownership: the rejoiner stays the caller's.
 *
 * Returns nothing.
 *
 * Thread safety: one thread at a time per rejoiner.
 * Async-signal safety: yes, unless the signal interrupts a call for the same rejoiner.
 * Real-time class: wait-free.
 */
OH_INLINE_ void oh_rejoiner_interrupted(oh_rejoiner *rejoiner)
{
    if (rejoiner->state == OH_REJOIN_BEGUN_) {
        rejoiner->state = OH_REJOIN_GIVEN_UP_;
        oh_rejoiner_lose_(rejoiner, 1);
    }
}

#endif /* OVERHEAR_REJOIN_H */
