/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Two tracepoints with the names and fields of those of ros2_tracing, as LTTng's macros want them:
 * in a header that is read several times.
 */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER ros2
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "callbacks.h"

#if !defined(CALLBACKS_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define CALLBACKS_H
#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(ros2, callback_start,
			   LTTNG_UST_TP_ARGS(const void *, callback_arg, int, is_intra_process_arg),
			   LTTNG_UST_TP_FIELDS(lttng_ust_field_integer_hex(const void *, callback, callback_arg)
						       lttng_ust_field_integer(int, is_intra_process,
									       is_intra_process_arg)))

LTTNG_UST_TRACEPOINT_EVENT(ros2, callback_end, LTTNG_UST_TP_ARGS(const void *, callback_arg),
			   LTTNG_UST_TP_FIELDS(lttng_ust_field_integer_hex(const void *, callback, callback_arg)))
#endif

#include <lttng/tracepoint-event.h>
