/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* LTTng's provider: two tracepoints with one u64 each, of which a session enables the first. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER overhear_bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "lttng_provider.h"

#if !defined(OVERHEAR_BENCH_LTTNG_PROVIDER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define OVERHEAR_BENCH_LTTNG_PROVIDER_H

#include <stdint.h>

#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(overhear_bench, on, LTTNG_UST_TP_ARGS(uint64_t, value),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, value, value)))

LTTNG_UST_TRACEPOINT_EVENT(overhear_bench, off, LTTNG_UST_TP_ARGS(uint64_t, value),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, value, value)))

#endif

#include <lttng/tracepoint-event.h>
