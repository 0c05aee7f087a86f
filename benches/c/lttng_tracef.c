/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <stdint.h>

#include <lttng/tracef.h>

/* The event without a declaration, which is formatted when it is recorded. */
__attribute__((noinline)) void lttng_tracef(uint64_t elements)
{
    for (uint64_t element = 0; element < elements; element++)
        lttng_ust_tracef("%llu", (unsigned long long)element);
}
