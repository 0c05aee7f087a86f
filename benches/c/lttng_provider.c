/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_provider.h"

__attribute__((noinline)) void lttng_on(uint64_t elements)
{
    for (uint64_t element = 0; element < elements; element++)
        lttng_ust_tracepoint(overhear_bench, on, element);
}

__attribute__((noinline)) void lttng_off(uint64_t elements)
{
    for (uint64_t element = 0; element < elements; element++) {
        lttng_ust_tracepoint(overhear_bench, off, element);
        /* What is measured is the tracepoint; the loop around it must stay. */
        __asm__ volatile("" : "+r"(element));
    }
}

int lttng_is_on(void)
{
    return lttng_ust_tracepoint_enabled(overhear_bench, on);
}
