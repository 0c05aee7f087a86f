/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Programs that use the POSIX trace interface: loops around its calls. Mirrored by posix.rs. */
#include <overhear/trace.h>

#include "places.h"

__attribute__((noinline)) void posix_events(trace_event_id_t event, uint64_t elements)
{
    for (uint64_t element = 0; element < elements; element++) {
        /* Not the counter itself, which would have to be in memory. */
        const uint64_t value = element;
        posix_trace_event(event, &value, sizeof value);
    }
}

/* A call that records nothing, at each offset in a cache line, as for the sensors. */
#define NOTHING_RECORDED(NAME, AT)                                                                  \
    static __attribute__((noinline)) void NAME##_at_##AT(trace_event_id_t event, uint64_t elements) \
    {                                                                                               \
        PLACE(AT);                                                                                  \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            const uint64_t value = element;                                                         \
            posix_trace_event(event, &value, sizeof value);                                         \
        }                                                                                           \
    }

PLACED_LOOPS(NOTHING_RECORDED, unrecorded)

void (*const posix_unrecorded[PLACES])(trace_event_id_t event, uint64_t elements) = PLACED(unrecorded);

/* Reads events until there is none; returns their number. */
__attribute__((noinline)) uint64_t posix_read(trace_id_t stream, uint64_t *sum)
{
    uint64_t elements = 0;
    for (;;) {
        struct posix_trace_event_info event;
        uint64_t value = 0;
        size_t size;
        int unavailable;
        if (posix_trace_trygetnext_event(stream, &event, &value, sizeof value, &size, &unavailable) != 0 ||
            unavailable)
            return elements;
        *sum += value + (uint64_t)event.posix_timestamp.tv_nsec;
        elements++;
    }
}
