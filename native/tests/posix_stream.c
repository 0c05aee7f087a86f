/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. A stream of the process itself, from its creation to its shutdown.
 */
#include <errno.h>
#include <string.h>

#include <overhear/trace.h>

#include "tap.h"

static trace_id_t stream;
static struct posix_trace_event_info event;
static char data[256];
static size_t length;
static int unavailable;

static int next(void)
{
    length = 0;
    unavailable = 2;
    return posix_trace_trygetnext_event(stream, &event, data, sizeof data, &length, &unavailable);
}

static int is_next(trace_event_id_t type)
{
    return next() == 0 && unavailable == 0 && event.posix_event_id == type;
}

static int is_empty(void)
{
    return next() == 0 && unavailable == 1;
}

/* An int that an event has as its data. */
static int number(void)
{
    int value = -1;
    if (length == sizeof value)
        memcpy(&value, data, sizeof value);
    return value;
}

static int is_running(int full)
{
    struct posix_trace_status_info status;
    return posix_trace_get_status(stream, &status) == 0 &&
           status.posix_stream_full_status == full &&
           status.posix_stream_status == POSIX_TRACE_RUNNING;
}

static void records(void)
{
    trace_event_id_t user;
    const int value = 42;
    posix_trace_eventid_open("posix_stream_user", &user);
    tap_check(posix_trace_create(0, NULL, &stream) == 0, "a stream is created");
    posix_trace_event(user, &value, sizeof value);
    tap_check(is_empty(), "a suspended stream records nothing");
    tap_check(posix_trace_start(stream) == 0 && is_running(POSIX_TRACE_NOT_FULL), "a stream starts");
    posix_trace_event(user, &value, sizeof value);
    tap_check(is_next(POSIX_TRACE_START) && length == sizeof(trace_event_set_t), "START comes first");
    tap_check(is_next(user) && number() == 42, "the event with its data comes after START");
    tap_check(event.posix_pid == getpid() && pthread_equal(event.posix_thread_id, pthread_self()) &&
                  event.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED,
              "the event has process and thread");
    tap_check((char *)event.posix_prog_address >= (char *)(size_t)records &&
                  (char *)event.posix_prog_address < (char *)(size_t)records + 4096,
              "the event has the address of the call");
    tap_check(posix_trace_stop(stream) == 0 && is_next(POSIX_TRACE_STOP) && number() == 0, "a stream stops");
    posix_trace_event(user, &value, sizeof value);
    tap_check(is_empty(), "a stopped stream records nothing");
    tap_check(posix_trace_shutdown(stream) == 0, "a stream is shut down");
    tap_check(posix_trace_shutdown(stream) == EINVAL && next() == EINVAL,
              "a stream that was shut down is EINVAL");
}

int main(void)
{
    records();
    return tap_done();
}
