/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: start, stop, clear, filters and status of streams. */
#define _GNU_SOURCE 1
#include "posix.h"

static const trace_id_t NO_STREAM = (trace_id_t)-1;

static trace_id_t logged_stream(int policy, size_t events, int file)
{
    trace_attr_t attr;
    small_stream(&attr, POSIX_TRACE_UNTIL_FULL, events);
    posix_trace_attr_setlogfullpolicy(&attr, policy);
    return create_logged(&attr, file);
}

static void end_of_flush(trace_id_t stream)
{
    if (CALL(posix_trace_flush(stream)) != 0)
        exit(2);
    while (status_of(stream).posix_stream_flush_status == POSIX_TRACE_FLUSHING)
        usleep(100);
}

/* A log with some events, and its stream ended. */
static trace_id_t some_log(trace_event_id_t type)
{
    int file = new_file();
    trace_id_t stream = logged_stream(POSIX_TRACE_APPEND, 64, file);
    CALL(posix_trace_start(stream));
    record(type, 0, 5);
    CALL(posix_trace_shutdown(stream));
    return open_log(file);
}

static int empty_next(trace_id_t stream)
{
    struct event event;
    return try_next(stream, &event) == 0 && event.unavailable != 0;
}

/* Whether the next event is of this type. */
static int next_is(trace_id_t stream, trace_event_id_t type, struct event *event)
{
    return try_next(stream, event) == 0 && event->unavailable == 0 && event->info.posix_event_id == type;
}

/* Page posix_trace_start. */
static void of_start_and_stop(void)
{
    trace_event_id_t type = user_type("start event");
    trace_attr_t attr;
    trace_id_t stream = create_stream(NULL), log;
    trace_event_set_t filter, recorded;
    struct posix_trace_status_info status;
    struct event event;
    int number, starts, stops;
    CALL(posix_trace_eventset_empty(&filter));
    CALL(posix_trace_eventset_add(POSIX_TRACE_UNNAMED_USER_EVENT, &filter));
    CALL(posix_trace_set_filter(stream, &filter, POSIX_TRACE_SET_EVENTSET));
    check("start-01 posix_trace_start starts the stream",
          CALL(posix_trace_start(stream)) == 0);
    check("start-02 The status becomes POSIX_TRACE_RUNNING",
          status_of(stream).posix_stream_status == POSIX_TRACE_RUNNING);
    check("start-03 The start is recorded as POSIX_TRACE_START", next_is(stream, POSIX_TRACE_START, &event));
    memset(&recorded, 0xff, sizeof recorded);
    if (event.length == sizeof recorded)
        memcpy(&recorded, event.data, sizeof recorded);
    check("start-04 The data of POSIX_TRACE_START is the filter", memcmp(&recorded, &filter, sizeof filter) == 0);
    check("start-05 The start of a running stream is not recorded",
          CALL(posix_trace_start(stream)) == 0 && empty_next(stream));
    record(type, 1, 1);
    check("start-06 The stream continues to run",
          status_of(stream).posix_stream_status == POSIX_TRACE_RUNNING && next_is(stream, type, &event));
    check("start-07 posix_trace_stop stops the stream", CALL(posix_trace_stop(stream)) == 0);
    record(type, 2, 1);
    check("start-08 The status becomes POSIX_TRACE_SUSPENDED",
          status_of(stream).posix_stream_status == POSIX_TRACE_SUSPENDED);
    number = -1;
    check("start-09 The stop is recorded as POSIX_TRACE_STOP", next_is(stream, POSIX_TRACE_STOP, &event));
    number = number_of(&event);
    check("start-10 The data of POSIX_TRACE_STOP is 0 after posix_trace_stop", number == 0);
    check("start-11 The stop of a suspended stream is not recorded, and the stream stays suspended",
          CALL(posix_trace_stop(stream)) == 0 && empty_next(stream) &&
              status_of(stream).posix_stream_status == POSIX_TRACE_SUSPENDED);
    CALL(posix_trace_shutdown(stream));

    small_stream(&attr, POSIX_TRACE_UNTIL_FULL, 16);
    stream = started_stream(&attr);
    record(type, 0, 100);
    CALL(posix_trace_start(stream));
    status = status_of(stream);
    check("start-12 The start of a full stream does not change its status",
          status.posix_stream_status == POSIX_TRACE_SUSPENDED &&
              status.posix_stream_full_status == POSIX_TRACE_FULL);
    CALL(posix_trace_stop(stream));
    status = status_of(stream);
    check("start-13 The stop of a full stream does not change its status",
          status.posix_stream_status == POSIX_TRACE_SUSPENDED &&
              status.posix_stream_full_status == POSIX_TRACE_FULL);
    for (starts = stops = 0; stops == 0 && try_next(stream, &event) == 0 && event.unavailable == 0;) {
        starts += event.info.posix_event_id == POSIX_TRACE_START;
        stops += event.info.posix_event_id == POSIX_TRACE_STOP;
    }
    check("start-14 Start and stop of a full stream are not recorded", starts == 1 && stops == 1);
    check("start-15 The data of POSIX_TRACE_STOP is not 0 where a full stream stopped by itself",
          event.length == sizeof(int) && number_of(&event) != 0);
    CALL(posix_trace_shutdown(stream));
    log = some_log(type);
    check("start-16 An id of no active stream is EINVAL",
          CALL(posix_trace_start(NO_STREAM)) == EINVAL && CALL(posix_trace_stop(NO_STREAM)) == EINVAL &&
              CALL(posix_trace_start(log)) == EINVAL && CALL(posix_trace_stop(log)) == EINVAL);
    CALL(posix_trace_close(log));
    check_errno("start-17 Functions return zero or the error number, and leave errno as it was");
}

static size_t size_of(trace_id_t stream)
{
    trace_attr_t attr;
    size_t bytes = 0;
    posix_trace_attr_init(&attr);
    CALL(posix_trace_get_attr(stream, &attr));
    CALL(posix_trace_attr_getstreamsize(&attr, &bytes));
    return bytes;
}

/* Page posix_trace_clear. */
static void of_clear(void)
{
    trace_event_id_t type = user_type("clear event");
    trace_attr_t attr;
    trace_event_set_t filter, empty;
    trace_id_t stream, log;
    struct event event, in_log;
    char name[TRACE_EVENT_NAME_MAX + 1] = "";
    size_t size;
    int file = new_file();
    small_stream(&attr, POSIX_TRACE_UNTIL_FULL, 16);
    stream = started_stream(&attr);
    size = size_of(stream);
    CALL(posix_trace_eventset_empty(&empty));
    filter = empty;
    CALL(posix_trace_eventset_add(POSIX_TRACE_UNNAMED_USER_EVENT, &filter));
    CALL(posix_trace_set_filter(stream, &filter, POSIX_TRACE_SET_EVENTSET));
    record(type, 0, 5);
    check("clear-01 posix_trace_clear removes all events that were recorded before",
          CALL(posix_trace_clear(stream)) == 0 && empty_next(stream));
    check("clear-02 A running stream stays running",
          status_of(stream).posix_stream_status == POSIX_TRACE_RUNNING);
    check("clear-03 The names of event types stay the same",
          CALL(posix_trace_eventid_get_name(stream, type, name)) == 0 && strcmp(name, "clear event") == 0 &&
              user_type("clear event") == type);
    check("clear-04 The filter is empty as after the creation",
          CALL(posix_trace_get_filter(stream, &filter)) == 0 && memcmp(&filter, &empty, sizeof empty) == 0);
    check("clear-05 The resources of the stream are used again", size_of(stream) == size);
    record(type, 5, 1);
    check("clear-06 Later events are recorded", next_is(stream, type, &event) && number_of(&event) == 5);
    CALL(posix_trace_stop(stream));
    CALL(posix_trace_clear(stream));
    check("clear-07 A suspended stream stays suspended",
          status_of(stream).posix_stream_status == POSIX_TRACE_SUSPENDED && empty_next(stream));
    CALL(posix_trace_start(stream));
    record(type, 0, 100);
    CALL(posix_trace_clear(stream));
    check("clear-08 The status of a full stream becomes POSIX_TRACE_NOT_FULL",
          status_of(stream).posix_stream_full_status == POSIX_TRACE_NOT_FULL);
    CALL(posix_trace_shutdown(stream));
    small_stream(&attr, POSIX_TRACE_LOOP, 16);
    stream = started_stream(&attr);
    record(type, 0, 100);
    CALL(posix_trace_clear(stream));
    check("clear-09 The overrun status is POSIX_TRACE_NO_OVERRUN as after the creation",
          status_of(stream).posix_stream_overrun_status == POSIX_TRACE_NO_OVERRUN);
    CALL(posix_trace_shutdown(stream));

    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_UNTIL_FULL);
    posix_trace_attr_getmaxusereventsize(&attr, 4, &size);
    posix_trace_attr_setlogsize(&attr, 60 * size);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    record(type, 0, 20);
    end_of_flush(stream);
    record(type, 20, 200);
    end_of_flush(stream);
    CALL(posix_trace_clear(stream));
    check("clear-10 The status of a full log becomes POSIX_TRACE_NOT_FULL",
          status_of(stream).posix_log_full_status == POSIX_TRACE_NOT_FULL);
    CALL(posix_trace_start(stream));
    record(type, 1000, 10);
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    check("clear-11 The log has nothing that was recorded before, too, and begins with the first event of the "
          "stream after that",
          next_user(log, &in_log, wait_next) && number_of(&in_log) == 1000);
    check("clear-12 Later events of the stream follow in the log", count_of(log, type, wait_next) == 9);
    check("clear-13 An id of no active stream is EINVAL",
          CALL(posix_trace_clear(NO_STREAM)) == EINVAL && CALL(posix_trace_clear(log)) == EINVAL);
    CALL(posix_trace_close(log));
    close(file);
    check_errno("clear-14 The function returns zero or the error number, and leaves errno as it was");
}

static int same(const trace_event_set_t *one, const trace_event_set_t *other)
{
    return memcmp(one, other, sizeof *one) == 0;
}

/* Page posix_trace_get_filter. */
static void of_filters(void)
{
    trace_event_id_t one = user_type("filter event"), two = user_type("other filter event");
    trace_event_set_t set, filter, both[2];
    trace_id_t stream = create_stream(NULL), log;
    struct event event;
    CALL(posix_trace_start(stream));
    record(one, 1, 1);
    record(two, 2, 1);
    record(POSIX_TRACE_UNNAMED_USER_EVENT, 3, 1);
    check("filter-01 Without posix_trace_set_filter, all event types are recorded",
          next_is(stream, POSIX_TRACE_START, &event) && next_is(stream, one, &event) &&
              next_is(stream, two, &event) && next_is(stream, POSIX_TRACE_UNNAMED_USER_EVENT, &event));
    CALL(posix_trace_stop(stream));
    CALL(posix_trace_clear(stream));
    CALL(posix_trace_eventset_empty(&set));
    CALL(posix_trace_eventset_add(one, &set));
    check("filter-02 posix_trace_set_filter changes the filter of a suspended stream",
          CALL(posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET)) == 0);
    CALL(posix_trace_eventset_fill(&filter, POSIX_TRACE_ALL_EVENTS));
    check("filter-03 posix_trace_get_filter stores the filter",
          CALL(posix_trace_get_filter(stream, &filter)) == 0 && same(&set, &filter));
    check("filter-04 The change is not recorded while the stream is suspended", empty_next(stream));
    CALL(posix_trace_start(stream));
    record(one, 1, 1);
    record(two, 2, 1);
    check("filter-05 Events of the types of the filter are not recorded, and others are",
          next_is(stream, POSIX_TRACE_START, &event) && next_is(stream, two, &event) && empty_next(stream));
    both[0] = set;
    CALL(posix_trace_eventset_empty(&set));
    CALL(posix_trace_eventset_add(two, &set));
    check("filter-06 posix_trace_set_filter changes the filter of a running stream",
          CALL(posix_trace_set_filter(stream, &set, POSIX_TRACE_ADD_EVENTSET)) == 0);
    both[1] = set;
    CALL(posix_trace_eventset_add(one, &both[1]));
    check("filter-07 The change is recorded as POSIX_TRACE_FILTER", next_is(stream, POSIX_TRACE_FILTER, &event));
    check("filter-08 The data of POSIX_TRACE_FILTER is the old and the new filter",
          event.length == sizeof both && memcmp(event.data, both, sizeof both) == 0);
    CALL(posix_trace_get_filter(stream, &filter));
    check("filter-09 POSIX_TRACE_ADD_EVENTSET results in the union of filter and set", same(&filter, &both[1]));
    CALL(posix_trace_eventset_empty(&set));
    CALL(posix_trace_eventset_add(one, &set));
    CALL(posix_trace_eventset_add(POSIX_TRACE_UNNAMED_USER_EVENT, &set));
    CALL(posix_trace_set_filter(stream, &set, POSIX_TRACE_SUB_EVENTSET));
    CALL(posix_trace_get_filter(stream, &filter));
    CALL(posix_trace_eventset_empty(&set));
    CALL(posix_trace_eventset_add(two, &set));
    check("filter-10 POSIX_TRACE_SUB_EVENTSET results in the members of the filter that the set does not have",
          same(&filter, &set));
    CALL(posix_trace_eventset_empty(&set));
    CALL(posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET));
    CALL(posix_trace_get_filter(stream, &filter));
    check("filter-11 POSIX_TRACE_SET_EVENTSET results in the given set", same(&filter, &set));
    check("filter-12 An invalid set or choice is EINVAL, and the filter stays the same",
          CALL(posix_trace_set_filter(stream, &both[1], 99)) == EINVAL &&
              CALL(posix_trace_set_filter(stream, NULL, POSIX_TRACE_SET_EVENTSET)) == EINVAL &&
              CALL(posix_trace_get_filter(stream, NULL)) == EINVAL &&
              CALL(posix_trace_get_filter(stream, &filter)) == 0 && same(&filter, &set));
    CALL(posix_trace_shutdown(stream));
    log = some_log(one);
    check("filter-13 An id of no active stream is EINVAL",
          CALL(posix_trace_get_filter(NO_STREAM, &set)) == EINVAL &&
              CALL(posix_trace_set_filter(NO_STREAM, &set, POSIX_TRACE_SET_EVENTSET)) == EINVAL &&
              CALL(posix_trace_get_filter(log, &set)) == EINVAL &&
              CALL(posix_trace_set_filter(log, &set, POSIX_TRACE_SET_EVENTSET)) == EINVAL);
    CALL(posix_trace_close(log));
    check_errno("filter-14 Functions return zero or the error number, and leave errno as it was");
}

/* Page posix_trace_get_attr. */
static void of_status(void)
{
    trace_event_id_t type = user_type("status event");
    trace_attr_t attr, received;
    trace_id_t stream, log;
    struct posix_trace_status_info status, again;
    size_t bytes = 0;
    int file = new_file(), policy = -1;
    small_stream(&attr, POSIX_TRACE_LOOP, 16);
    posix_trace_attr_setmaxdatasize(&attr, 33);
    posix_trace_attr_setinherited(&attr, POSIX_TRACE_INHERITED);
    stream = started_stream(&attr);
    posix_trace_attr_init(&received);
    check("status-01 posix_trace_get_attr copies the attributes of an active stream",
          CALL(posix_trace_get_attr(stream, &received)) == 0 &&
              CALL(posix_trace_attr_getmaxdatasize(&received, &bytes)) == 0 && bytes == 33 &&
              CALL(posix_trace_attr_getinherited(&received, &policy)) == 0 && policy == POSIX_TRACE_INHERITED &&
              CALL(posix_trace_attr_getstreamfullpolicy(&received, &policy)) == 0 && policy == POSIX_TRACE_LOOP);
    status = status_of(stream);
    check("status-02 posix_trace_get_status stores the status of the stream",
          status.posix_stream_status == POSIX_TRACE_RUNNING &&
              status.posix_stream_full_status == POSIX_TRACE_NOT_FULL &&
              status.posix_stream_overrun_status == POSIX_TRACE_NO_OVERRUN);
    check("status-03 The status of a stream without log has no flush, no error and no full log",
          status.posix_stream_flush_status == POSIX_TRACE_NOT_FLUSHING && status.posix_stream_flush_error == 0 &&
              status.posix_log_full_status == POSIX_TRACE_NOT_FULL &&
              status.posix_log_overrun_status == POSIX_TRACE_NO_OVERRUN);
    record(type, 0, 1000);
    status = status_of(stream);
    check("status-04 A loss of events is POSIX_TRACE_OVERRUN",
          status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN);
    status = status_of(stream);
    check("status-05 The overrun status is reset after the call",
          status.posix_stream_overrun_status == POSIX_TRACE_NO_OVERRUN);
    CALL(posix_trace_shutdown(stream));

    posix_trace_attr_init(&attr);
    posix_trace_attr_setname(&attr, "status");
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_LOOP);
    posix_trace_attr_getmaxusereventsize(&attr, 4, &bytes);
    posix_trace_attr_setlogsize(&attr, 60 * bytes);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (policy = 0; policy < 40; policy++) {
        record(type, 0, 20);
        CALL(posix_trace_flush(stream));
        while (POSIX_TRACE_FLUSHING == (posix_trace_get_status(stream, &again), again.posix_stream_flush_status))
            usleep(100);
        if (policy == 38)
            (void)status_of(stream);
    }
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    memset(&status, 0, sizeof status);
    check("status-06 The attributes of a log are those of its stream",
          CALL(posix_trace_get_attr(log, &received)) == 0 &&
              CALL(posix_trace_attr_getlogfullpolicy(&received, &policy)) == 0 && policy == POSIX_TRACE_LOOP &&
              CALL(posix_trace_attr_getlogsize(&received, &bytes)) == 0 && bytes > 0);
    check("status-07 The status of a log is that of the completed stream",
          CALL(posix_trace_get_status(log, &status)) == 0 &&
              status.posix_stream_status == POSIX_TRACE_SUSPENDED &&
              status.posix_stream_flush_status == POSIX_TRACE_NOT_FLUSHING);
    CALL(posix_trace_get_status(log, &again));
    check("status-08 It is not reset by the call", memcmp(&status, &again, sizeof status) == 0);
    check("status-09 An id of neither an active stream nor a log is EINVAL",
          CALL(posix_trace_get_attr(NO_STREAM, &received)) == EINVAL &&
              CALL(posix_trace_get_status(NO_STREAM, &status)) == EINVAL);
    CALL(posix_trace_close(log));
    close(file);
}

/* Whether the status of a stream with log is reset after it was read. */
static void of_resets(void)
{
    trace_event_id_t type = user_type("status event");
    trace_attr_t attr;
    trace_id_t stream, log;
    struct posix_trace_status_info status;
    size_t bytes = 0;
    int file = new_file(), round, overrun = 0, again, error = 0, descriptors[2];
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_UNTIL_FULL);
    posix_trace_attr_getmaxusereventsize(&attr, 4, &bytes);
    posix_trace_attr_setlogsize(&attr, 60 * bytes);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (round = 0; round < 20 && !overrun; round++) {
        record(type, 0, 20);
        CALL(posix_trace_flush(stream));
        do {
            status = status_of(stream);
            overrun |= status.posix_log_overrun_status == POSIX_TRACE_OVERRUN;
        } while (status.posix_stream_flush_status == POSIX_TRACE_FLUSHING);
    }
    again = status_of(stream).posix_log_overrun_status;
    check("status-10 The loss of events of a log is POSIX_TRACE_OVERRUN, and is reset after the call",
          overrun && again == POSIX_TRACE_NO_OVERRUN);
    record(type, 0, 2000);
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    check("status-11 The status of a log has its overrun, and is not reset",
          status_of(log).posix_log_overrun_status == POSIX_TRACE_OVERRUN &&
              status_of(log).posix_log_overrun_status == POSIX_TRACE_OVERRUN);
    CALL(posix_trace_close(log));
    close(file);

    /* Nobody reads the pipe: a flush is EPIPE. */
    signal(SIGPIPE, SIG_IGN);
    if (pipe(descriptors) != 0)
        exit(2);
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND);
    stream = create_logged(&attr, descriptors[1]);
    CALL(posix_trace_start(stream));
    close(descriptors[0]);
    record(type, 0, 10);
    CALL(posix_trace_flush(stream));
    for (round = 0; round < 1000 && error == 0; round++) {
        status = status_of(stream);
        error = status.posix_stream_flush_error;
        usleep(error ? 0 : 1000);
    }
    again = status_of(stream).posix_stream_flush_error;
    check("status-12 The error of a flush is in the status, and is reset to zero after the call",
          error == EPIPE && again == 0);
    CALL(posix_trace_shutdown(stream));
    close(descriptors[1]);
    check_errno("status-13 Functions return zero or the error number, and leave errno as it was");
}

int main(void)
{
    begin_tests();
    of_start_and_stop();
    of_clear();
    of_filters();
    of_status();
    of_resets();
    return tap_done();
}
