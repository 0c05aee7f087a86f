/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The constants and layouts in posix-trace.ads and posix-trace.adb are those of <trace.h>. */
#include <trace.h>

#define SAME(constant, value) _Static_assert((constant) == (value), #constant)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)

SAME(POSIX_TRACE_LOOP, 1);
SAME(POSIX_TRACE_UNTIL_FULL, 2);
SAME(POSIX_TRACE_FLUSH, 3);
SAME(POSIX_TRACE_APPEND, 4);
SAME(POSIX_TRACE_CLOSE_FOR_CHILD, 0);
SAME(POSIX_TRACE_INHERITED, 1);
SAME(POSIX_TRACE_WOPID_EVENTS, 1);
SAME(POSIX_TRACE_SYSTEM_EVENTS, 2);
SAME(POSIX_TRACE_ALL_EVENTS, 3);
SAME(POSIX_TRACE_SET_EVENTSET, 1);
SAME(POSIX_TRACE_ADD_EVENTSET, 2);
SAME(POSIX_TRACE_SUB_EVENTSET, 3);
SAME(POSIX_TRACE_ERROR, 1);
SAME(POSIX_TRACE_START, 2);
SAME(POSIX_TRACE_STOP, 3);
SAME(POSIX_TRACE_OVERFLOW, 4);
SAME(POSIX_TRACE_RESUME, 5);
SAME(POSIX_TRACE_FILTER, 6);
SAME(POSIX_TRACE_FLUSH_START, 7);
SAME(POSIX_TRACE_FLUSH_STOP, 8);
SAME(POSIX_TRACE_UNNAMED_USER_EVENT, 64);
SAME(POSIX_TRACE_RUNNING, 1);
SAME(POSIX_TRACE_FULL, 1);
SAME(POSIX_TRACE_OVERRUN, 1);
SAME(POSIX_TRACE_FLUSHING, 1);
SAME(POSIX_TRACE_NOT_TRUNCATED, 0);
SAME(POSIX_TRACE_TRUNCATED_RECORD, 1);
SAME(POSIX_TRACE_TRUNCATED_READ, 2);
SAME(TRACE_EVENT_NAME_MAX, 64);
SAME(TRACE_NAME_MAX, 64);
SAME(sizeof(trace_attr_t), 32 * 8);
SAME(sizeof(trace_event_set_t), 5 * 8);
SAME(sizeof(trace_id_t), sizeof(unsigned long));
SAME(sizeof(trace_event_id_t), sizeof(unsigned));

AT(struct posix_trace_event_info, posix_event_id, 0);
AT(struct posix_trace_event_info, posix_pid, 4);
AT(struct posix_trace_event_info, posix_prog_address, 8);
AT(struct posix_trace_event_info, posix_thread_id, 16);
AT(struct posix_trace_event_info, posix_timestamp, 24);
AT(struct posix_trace_event_info, posix_truncation_status, 40);
AT(struct posix_trace_event_info, oh_tid, 44);
SAME(sizeof(struct posix_trace_event_info), 48);
AT(struct posix_trace_status_info, posix_stream_status, 0);
AT(struct posix_trace_status_info, posix_stream_full_status, 4);
AT(struct posix_trace_status_info, posix_stream_overrun_status, 8);
AT(struct posix_trace_status_info, posix_stream_flush_status, 12);
AT(struct posix_trace_status_info, posix_stream_flush_error, 16);
AT(struct posix_trace_status_info, posix_log_full_status, 20);
AT(struct posix_trace_status_info, posix_log_overrun_status, 24);
SAME(sizeof(struct posix_trace_status_info), 7 * 4);
