/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: sets of event types. */
#define _GNU_SOURCE 1
#include "posix.h"

static int member(trace_event_id_t event, const trace_event_set_t *set)
{
    int result = -1;
    return CALL(posix_trace_eventset_ismember(event, set, &result)) == 0 ? result : -1;
}

int main(void)
{
    static const trace_event_id_t standard[] = {POSIX_TRACE_ERROR, POSIX_TRACE_START, POSIX_TRACE_STOP,
                                                POSIX_TRACE_OVERFLOW, POSIX_TRACE_RESUME,
                                                POSIX_TRACE_FILTER, POSIX_TRACE_FLUSH_START,
                                                POSIX_TRACE_FLUSH_STOP};
    trace_event_set_t set, before, filter;
    trace_event_id_t mine, other;
    trace_id_t stream;
    size_t at, in_empty = 0, in_system = 0, in_all = 0, in_wopid = 0;
    begin_tests();
    mine = user_type("set event");
    other = user_type("other set event");
    check("set-01 posix_trace_eventset_empty succeeds",
          CALL(posix_trace_eventset_empty(&set)) == 0);
    for (at = 0; at < sizeof standard / sizeof *standard; at++)
        in_empty += member(standard[at], &set) != 0;
    check("set-02 It excludes all event types, of the system and of users",
          in_empty == 0 && member(mine, &set) == 0 && member(POSIX_TRACE_UNNAMED_USER_EVENT, &set) == 0 &&
              member(OH_TRACE_KERNEL_FIRST, &set) == 0);
    check("set-03 posix_trace_eventset_add adds the event type",
          CALL(posix_trace_eventset_add(mine, &set)) == 0 && member(mine, &set) > 0);
    check("set-04 It adds no other", member(other, &set) == 0 && member(POSIX_TRACE_START, &set) == 0);
    check("set-05 To add a member again is no error",
          CALL(posix_trace_eventset_add(mine, &set)) == 0 && member(mine, &set) > 0);
    CALL(posix_trace_eventset_add(other, &set));
    check("set-06 posix_trace_eventset_del deletes the event type",
          CALL(posix_trace_eventset_del(mine, &set)) == 0 && member(mine, &set) == 0);
    check("set-07 It deletes no other", member(other, &set) > 0);
    check("set-08 To delete an event type that is no member is no error",
          CALL(posix_trace_eventset_del(mine, &set)) == 0 && member(other, &set) > 0);
    check("set-09 posix_trace_eventset_fill initializes a set",
          CALL(posix_trace_eventset_fill(&set, POSIX_TRACE_WOPID_EVENTS)) == 0 && member(other, &set) == 0);
    for (at = 0; at < sizeof standard / sizeof *standard; at++)
        in_wopid += member(standard[at], &set) != 0;
    check("set-10 POSIX_TRACE_WOPID_EVENTS is the system event types that do not depend on a process",
          in_wopid == 0 && member(OH_TRACE_KERNEL_FIRST, &set) > 0 && member(OH_TRACE_KERNEL_LAST, &set) > 0 &&
              member(mine, &set) == 0);
    CALL(posix_trace_eventset_fill(&set, POSIX_TRACE_SYSTEM_EVENTS));
    for (at = 0; at < sizeof standard / sizeof *standard; at++)
        in_system += member(standard[at], &set) > 0;
    check("set-11 POSIX_TRACE_SYSTEM_EVENTS is those of the implementation and those of the standard",
          in_system == 8 && member(OH_TRACE_KERNEL_LAST, &set) > 0 && member(mine, &set) == 0 &&
              member(POSIX_TRACE_UNNAMED_USER_EVENT, &set) == 0);
    CALL(posix_trace_eventset_fill(&set, POSIX_TRACE_ALL_EVENTS));
    for (at = 0; at < sizeof standard / sizeof *standard; at++)
        in_all += member(standard[at], &set) > 0;
    check("set-12 POSIX_TRACE_ALL_EVENTS is all event types, of the system and of users",
          in_all == 8 && member(OH_TRACE_KERNEL_LAST, &set) > 0 && member(mine, &set) > 0 &&
              member(POSIX_TRACE_UNNAMED_USER_EVENT, &set) > 0);
    check("set-13 posix_trace_eventset_ismember stores a value that is not zero for a member",
          member(mine, &set) != 0 && member(mine, &set) != -1);
    CALL(posix_trace_eventset_empty(&set));
    check("set-14 It stores zero otherwise", member(mine, &set) == 0);
    stream = create_stream(NULL);
    CALL(posix_trace_eventset_add(mine, &set));
    CALL(posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET));
    before = set;
    CALL(posix_trace_eventset_add(other, &set));
    CALL(posix_trace_get_filter(stream, &filter));
    check("set-15 The functions change objects of the program, never the filter of a stream",
          member(mine, &filter) > 0 && member(other, &filter) == 0);
    CALL(posix_trace_shutdown(stream));
    set = before;
    check("set-16 A value that is no event type, no choice or no set is EINVAL, and changes nothing",
          CALL(posix_trace_eventset_add(0, &set)) == EINVAL &&
              CALL(posix_trace_eventset_del((trace_event_id_t)-1, &set)) == EINVAL &&
              CALL(posix_trace_eventset_fill(&set, 99)) == EINVAL &&
              CALL(posix_trace_eventset_empty(NULL)) == EINVAL &&
              memcmp(&set, &before, sizeof set) == 0);
    check_errno("set-17 Functions return zero or the error number, and leave errno as it was");
    return tap_done();
}
