/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. <trace.h>: types, members, constants and prototypes. */
#define _GNU_SOURCE 1
#include <trace.h>

#include "posix.h"
#include "posix_prototypes.h"

/* A value of its type can be stored in a member, and a pointer to the type points to it. */
#define HAS_MEMBER(structure, type, member) \
    (offsetof(struct structure, member) < sizeof(struct structure) && \
     points_to_##structure##_##member(&structure) == &structure.member)
#define MEMBER(structure, type, member) \
    static type *points_to_##structure##_##member(struct structure *in) \
    { \
        return &in->member; \
    }

MEMBER(posix_trace_event_info, trace_event_id_t, posix_event_id)
MEMBER(posix_trace_event_info, pid_t, posix_pid)
MEMBER(posix_trace_event_info, void *, posix_prog_address)
MEMBER(posix_trace_event_info, pthread_t, posix_thread_id)
MEMBER(posix_trace_event_info, struct timespec, posix_timestamp)
MEMBER(posix_trace_event_info, int, posix_truncation_status)
MEMBER(posix_trace_status_info, int, posix_stream_full_status)
MEMBER(posix_trace_status_info, int, posix_stream_overrun_status)
MEMBER(posix_trace_status_info, int, posix_stream_status)
MEMBER(posix_trace_status_info, int, posix_log_full_status)
MEMBER(posix_trace_status_info, int, posix_log_overrun_status)
MEMBER(posix_trace_status_info, int, posix_stream_flush_error)
MEMBER(posix_trace_status_info, int, posix_stream_flush_status)

static void of_members(void)
{
    struct posix_trace_event_info posix_trace_event_info;
    struct posix_trace_status_info posix_trace_status_info;
    memset(&posix_trace_event_info, 0, sizeof posix_trace_event_info);
    memset(&posix_trace_status_info, 0, sizeof posix_trace_status_info);
    check("header-01 An event has the member posix_event_id of the type trace_event_id_t",
          HAS_MEMBER(posix_trace_event_info, trace_event_id_t, posix_event_id));
    check("header-02 An event has the member posix_pid of the type pid_t",
          HAS_MEMBER(posix_trace_event_info, pid_t, posix_pid));
    check("header-03 An event has the member posix_prog_address, a pointer to void",
          HAS_MEMBER(posix_trace_event_info, void *, posix_prog_address));
    check("header-04 An event has the member posix_thread_id of the type pthread_t",
          HAS_MEMBER(posix_trace_event_info, pthread_t, posix_thread_id));
    check("header-05 An event has the member posix_timestamp, a struct timespec",
          HAS_MEMBER(posix_trace_event_info, struct timespec, posix_timestamp));
    check("header-06 An event has the member posix_truncation_status, an int",
          HAS_MEMBER(posix_trace_event_info, int, posix_truncation_status));
    check("header-07 A status has the member posix_stream_full_status, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_stream_full_status));
    check("header-08 A status has the member posix_stream_overrun_status, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_stream_overrun_status));
    check("header-09 A status has the member posix_stream_status, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_stream_status));
    check("header-10 A status has the member posix_log_full_status, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_log_full_status));
    check("header-11 A status has the member posix_log_overrun_status, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_log_overrun_status));
    check("header-12 A status has the member posix_stream_flush_error, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_stream_flush_error));
    check("header-13 A status has the member posix_stream_flush_status, an int",
          HAS_MEMBER(posix_trace_status_info, int, posix_stream_flush_status));
}

/* Each is a constant expression: an enumeration accepts nothing else. */
enum constants {
    the_all_events = POSIX_TRACE_ALL_EVENTS,
    the_append = POSIX_TRACE_APPEND,
    the_close_for_child = POSIX_TRACE_CLOSE_FOR_CHILD,
    the_filter = POSIX_TRACE_FILTER,
    the_flush = POSIX_TRACE_FLUSH,
    the_flush_start = POSIX_TRACE_FLUSH_START,
    the_flush_stop = POSIX_TRACE_FLUSH_STOP,
    the_flushing = POSIX_TRACE_FLUSHING,
    the_full = POSIX_TRACE_FULL,
    the_loop = POSIX_TRACE_LOOP,
    the_no_overrun = POSIX_TRACE_NO_OVERRUN,
    the_not_flushing = POSIX_TRACE_NOT_FLUSHING,
    the_not_full = POSIX_TRACE_NOT_FULL,
    the_inherited = POSIX_TRACE_INHERITED,
    the_not_truncated = POSIX_TRACE_NOT_TRUNCATED,
    the_overflow = POSIX_TRACE_OVERFLOW,
    the_overrun = POSIX_TRACE_OVERRUN,
    the_resume = POSIX_TRACE_RESUME,
    the_running = POSIX_TRACE_RUNNING,
    the_start = POSIX_TRACE_START,
    the_stop = POSIX_TRACE_STOP,
    the_suspended = POSIX_TRACE_SUSPENDED,
    the_system_events = POSIX_TRACE_SYSTEM_EVENTS,
    the_truncated_read = POSIX_TRACE_TRUNCATED_READ,
    the_truncated_record = POSIX_TRACE_TRUNCATED_RECORD,
    the_unnamed_user_event = POSIX_TRACE_UNNAMED_USER_EVENT,
    the_until_full = POSIX_TRACE_UNTIL_FULL,
    the_wopid_events = POSIX_TRACE_WOPID_EVENTS,
    the_error = POSIX_TRACE_ERROR,
    the_set_eventset = POSIX_TRACE_SET_EVENTSET,
    the_add_eventset = POSIX_TRACE_ADD_EVENTSET,
    the_sub_eventset = POSIX_TRACE_SUB_EVENTSET
};

/* Whether all numbers differ. */
static int differ(const unsigned *numbers, size_t count)
{
    size_t at, other;
    for (at = 0; at < count; at++)
        for (other = 0; other < at; other++)
            if (numbers[at] == numbers[other])
                return 0;
    return 1;
}

#define DIFFER(list) differ(list, sizeof(list) / sizeof *(list))

static void of_constants(void)
{
    static const unsigned system_types[] = {the_error, the_start, the_stop, the_overflow, the_resume,
                                            the_filter, the_flush_start, the_flush_stop,
                                            the_unnamed_user_event};
    static const unsigned log_policies[] = {the_loop, the_until_full, the_append};
    static const unsigned stream_policies[] = {the_loop, the_until_full, the_flush};
    static const unsigned truncations[] = {the_not_truncated, the_truncated_record, the_truncated_read};
    static const unsigned fills[] = {the_wopid_events, the_system_events, the_all_events};
    static const unsigned changes[] = {the_set_eventset, the_add_eventset, the_sub_eventset};
    check("header-14 The 28 constants of the header's page are constant expressions",
          the_wopid_events == POSIX_TRACE_WOPID_EVENTS && the_all_events == POSIX_TRACE_ALL_EVENTS);
    check("header-15 POSIX_TRACE_ERROR and the three choices of posix_trace_set_filter, which other pages "
          "use, are constant expressions",
          the_error == (int)POSIX_TRACE_ERROR && the_sub_eventset == POSIX_TRACE_SUB_EVENTSET);
    check("header-16 The unnamed user event type has both names that pages use",
          POSIX_TRACE_UNNAMED_USER_EVENT == POSIX_TRACE_UNNAMED_USEREVENT);
    check("header-17 Constants that one variable can have differ",
          DIFFER(system_types) && DIFFER(log_policies) && DIFFER(stream_policies) && DIFFER(truncations) &&
              DIFFER(fills) && DIFFER(changes) && the_running != (int)the_suspended &&
              the_full != (int)the_not_full && the_overrun != (int)the_no_overrun &&
              the_flushing != (int)the_not_flushing && the_inherited != (int)the_close_for_child);
}

static void of_types(void)
{
    size_t size = 0;
    trace_attr_t attr;
    trace_event_id_t event = 1;
    trace_event_set_t set;
    trace_id_t stream = 1;
    size_t at, missing = 0;
    memset(&attr, 0, sizeof attr);
    memset(&set, 0, sizeof set);
    check("header-18 The types size_t, trace_attr_t, trace_event_id_t, trace_event_set_t and trace_id_t exist",
          sizeof size + sizeof attr + sizeof event + sizeof set + sizeof stream > 5);
    for (at = 0; at < sizeof addresses / sizeof *addresses; at++)
        missing += addresses[at] == NULL;
    check("header-19 The 50 functions have the prototypes of the standard",
          sizeof addresses / sizeof *addresses == 50);
    check("header-20 Each is a function: it has an address", missing == 0);
    check("header-21 The four options are supported in the version of 2001 or a later one",
          _POSIX_TRACE >= 200112L && _POSIX_TRACE_EVENT_FILTER >= 200112L && _POSIX_TRACE_LOG >= 200112L &&
              _POSIX_TRACE_INHERIT >= 200112L);
    check("header-22 Limits are at least the minimum values of the standard",
          TRACE_EVENT_NAME_MAX >= 30 && TRACE_NAME_MAX >= 8 && TRACE_SYS_MAX >= 8 &&
              TRACE_USER_EVENT_MAX >= 32 && _POSIX_TRACE_EVENT_NAME_MAX == 30 &&
              _POSIX_TRACE_NAME_MAX == 8 && _POSIX_TRACE_SYS_MAX == 8 && _POSIX_TRACE_USER_EVENT_MAX == 32);
}

int main(void)
{
    begin_tests();
    of_members();
    of_constants();
    of_types();
    return tap_done();
}
