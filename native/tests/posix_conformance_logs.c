/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: logs are opened, rewound and closed. */
#define _GNU_SOURCE 1
#include "posix.h"

static const trace_id_t NO_STREAM = (trace_id_t)-1;

static trace_event_id_t type;

/* A file with the log of a stream with these numbers. */
static int file_of(int numbers)
{
    trace_attr_t attr;
    int file = new_file();
    trace_id_t stream;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    record(type, 0, numbers);
    CALL(posix_trace_shutdown(stream));
    return file;
}

/* Returns the number of operations of controllers that are refused. */
static int refused(trace_id_t log)
{
    trace_event_set_t set;
    trace_event_id_t event;
    struct event next;
    int count = 0;
    posix_trace_eventset_empty(&set);
    count += CALL(posix_trace_start(log)) == EINVAL;
    count += CALL(posix_trace_stop(log)) == EINVAL;
    count += CALL(posix_trace_clear(log)) == EINVAL;
    count += CALL(posix_trace_flush(log)) == EINVAL;
    count += CALL(posix_trace_shutdown(log)) == EINVAL;
    count += CALL(posix_trace_get_filter(log, &set)) == EINVAL;
    count += CALL(posix_trace_set_filter(log, &set, POSIX_TRACE_SET_EVENTSET)) == EINVAL;
    count += CALL(posix_trace_trid_eventid_open(log, "log event", &event)) == EINVAL;
    count += try_next(log, &next) == EINVAL;
    return count;
}

static int accepted(trace_id_t log)
{
    trace_event_id_t event;
    trace_attr_t attr;
    struct posix_trace_status_info status;
    struct event next;
    char name[TRACE_EVENT_NAME_MAX + 1];
    int unavailable, count = 0;
    posix_trace_attr_init(&attr);
    count += posix_trace_eventid_equal(log, type, type) != 0;
    count += CALL(posix_trace_eventid_get_name(log, type, name)) == 0;
    count += CALL(posix_trace_eventtypelist_getnext_id(log, &event, &unavailable)) == 0;
    count += CALL(posix_trace_eventtypelist_rewind(log)) == 0;
    count += CALL(posix_trace_get_attr(log, &attr)) == 0;
    count += CALL(posix_trace_get_status(log, &status)) == 0;
    count += wait_next(log, &next) == 0;
    count += CALL(posix_trace_rewind(log)) == 0;
    return count;
}

int main(void)
{
    struct event event, first;
    trace_id_t log = 0, again, stream;
    int file, reading, writing, other, count;
    begin_tests();
    type = user_type("log event");
    file = file_of(10);
    reading = reopened(file, O_RDONLY);
    check("log-01 posix_trace_open opens the log of a file descriptor that is open for reading",
          CALL(posix_trace_open(reading, &log)) == 0);
    check("log-02 It stores the id of a stream", log != 0);
    check("log-03 The first event that is read is the oldest of the log",
          wait_next(log, &first) == 0 && first.info.posix_event_id == POSIX_TRACE_START);
    for (count = 0; next_user(log, &event, wait_next); count++)
        if (number_of(&event) != count)
            break;
    check("log-04 All events follow with their data", count == 10 && event.unavailable != 0);
    check("log-05 posix_trace_rewind sets the position to the oldest event",
          CALL(posix_trace_rewind(log)) == 0 && wait_next(log, &event) == 0 &&
              event.info.posix_event_id == first.info.posix_event_id &&
              event.info.posix_timestamp.tv_sec == first.info.posix_timestamp.tv_sec &&
              event.info.posix_timestamp.tv_nsec == first.info.posix_timestamp.tv_nsec);
    check("log-06 The same events follow", count_of(log, type, wait_next) == 10);
    CALL(posix_trace_rewind(log));
    check("log-07 A log can be used for the operations of analysers", accepted(log) == 8);
    check("log-08 It cannot be used for operations of controllers", refused(log) == 9);
    again = open_log(file);
    check("log-09 A file can be opened several times, with positions of their own",
          again != 0 && again != log && count_of(again, type, wait_next) == 10 &&
              count_of(log, type, wait_next) == 10);
    check("log-10 posix_trace_close closes the log", CALL(posix_trace_close(log)) == 0);
    check("log-11 Its id is invalid then",
          CALL(posix_trace_close(log)) == EINVAL && CALL(posix_trace_rewind(log)) == EINVAL &&
              wait_next(log, &event) == EINVAL);
    CALL(posix_trace_rewind(again));
    check("log-12 Other logs stay open", count_of(again, type, wait_next) == 10);
    CALL(posix_trace_close(again));
    writing = reopened(file, O_WRONLY);
    check("log-13 A file descriptor that is not open for reading is refused",
          CALL(posix_trace_open(writing, &log)) != 0 && CALL(posix_trace_open(-1, &log)) != 0);
    other = new_file();
    if (write(other, "This is not a log, and never was.", 32) != 32)
        return 2;
    check("log-14 A file that is no log is EINVAL",
          CALL(posix_trace_open(reopened(other, O_RDONLY), &log)) == EINVAL);
    stream = create_stream(NULL);
    check("log-15 posix_trace_close and posix_trace_rewind with an id of no log are EINVAL",
          CALL(posix_trace_close(stream)) == EINVAL && CALL(posix_trace_rewind(stream)) == EINVAL &&
              CALL(posix_trace_close(NO_STREAM)) == EINVAL && CALL(posix_trace_rewind(NO_STREAM)) == EINVAL);
    CALL(posix_trace_shutdown(stream));
    check_errno("log-16 Functions return zero or the error number, and leave errno as it was");
    return tap_done();
}
