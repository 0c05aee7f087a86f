/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_provider.h"

#include "places.h"

__attribute__((noinline)) void lttng_on(uint64_t elements)
{
    for (uint64_t element = 0; element < elements; element++)
        lttng_ust_tracepoint(overhear_bench, on, element);
}

/* The disabled tracepoint at each offset in a cache line, as for the sensors. */
#define OFF(NAME, AT)                                                                               \
    static __attribute__((noinline)) void NAME##_at_##AT(uint64_t elements)                         \
    {                                                                                               \
        PLACE(AT);                                                                                  \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            lttng_ust_tracepoint(overhear_bench, off, element);                                     \
            /* What is measured is the tracepoint; the loop around it must stay. */                 \
            __asm__ volatile("" : "+r"(element));                                                   \
        }                                                                                           \
    }

PLACED_LOOPS(OFF, off)

void (*const lttng_off[PLACES])(uint64_t elements) = PLACED(off);

int lttng_is_on(void)
{
    return lttng_ust_tracepoint_enabled(overhear_bench, on);
}
