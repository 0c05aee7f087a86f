/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Streams with a log: flush by the program, by the policy, at shutdown
 * and at the end of the process; the log is read back.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <overhear/trace.h>

#include "tap.h"

enum { EVENTS = 1000 };

static trace_event_id_t user;

/* A file without name for a log. */
static int new_log(void)
{
    return memfd_create("posix_log", MFD_CLOEXEC);
}

static void record(int from, int to)
{
    for (; from < to; from++)
        posix_trace_event(user, &from, sizeof from);
}

/* Waits until the stream is not being flushed; returns the status. */
static struct posix_trace_status_info flushed(trace_id_t stream)
{
    struct posix_trace_status_info status;
    do {
        usleep(200);
        if (posix_trace_get_status(stream, &status) != 0)
            memset(&status, 0x7f, sizeof status);
    } while (status.posix_stream_flush_status == POSIX_TRACE_FLUSHING);
    return status;
}

/* Counts of the events in a log. */
struct contents {
    int users, starts, stops, flush_starts, flush_stops, overflows, others;
    int in_order, last;
};

static int read_log(trace_id_t log, struct contents *found)
{
    memset(found, 0, sizeof *found);
    found->in_order = 1;
    for (;;) {
        struct posix_trace_event_info event;
        size_t length;
        int unavailable, value, error;
        error = posix_trace_getnext_event(log, &event, &value, sizeof value, &length, &unavailable);
        if (error != 0 || unavailable)
            return error;
        found->last = (int)event.posix_event_id;
        if (event.posix_event_id == user) {
            found->in_order &= value == found->users && length == sizeof value;
            found->users++;
        } else if (event.posix_event_id == POSIX_TRACE_START)
            found->starts++;
        else if (event.posix_event_id == POSIX_TRACE_STOP)
            found->stops++;
        else if (event.posix_event_id == POSIX_TRACE_FLUSH_START)
            found->flush_starts++;
        else if (event.posix_event_id == POSIX_TRACE_FLUSH_STOP)
            found->flush_stops++;
        else if (event.posix_event_id == POSIX_TRACE_OVERFLOW)
            found->overflows++;
        else
            found->others++;
    }
}

static void check_log(int file, int users)
{
    struct contents first, second;
    struct posix_trace_status_info status;
    char name[TRACE_EVENT_NAME_MAX + 1] = "";
    trace_attr_t attributes;
    trace_id_t log;
    lseek(file, 0, SEEK_SET);
    tap_check(posix_trace_open(file, &log) == 0, "the log is opened");
    tap_check(read_log(log, &first) == 0 && first.users == users && first.in_order && first.others == 0,
              "the log has every event in order");
    printf("# %d users, %d starts, %d stops, %d + %d flushes, %d overflows\n", first.users, first.starts,
           first.stops, first.flush_starts, first.flush_stops, first.overflows);
    tap_check(posix_trace_rewind(log) == 0 && read_log(log, &second) == 0 &&
                  memcmp(&first, &second, sizeof first) == 0,
              "a log has the same events after a rewind");
    tap_check(posix_trace_eventid_get_name(log, user, name) == 0 && strcmp(name, "posix_log_user") == 0,
              "the log has the names");
    tap_check(posix_trace_get_attr(log, &attributes) == 0, "the log has the attributes");
    tap_check(posix_trace_get_status(log, &status) == 0 &&
                  status.posix_stream_status == POSIX_TRACE_SUSPENDED,
              "the log has the status");
    tap_check(posix_trace_start(log) == EINVAL && posix_trace_shutdown(log) == EINVAL,
              "a log is not controlled");
    tap_check(posix_trace_close(log) == 0 && posix_trace_close(log) == EINVAL, "a log is closed once");
}

static void by_the_program(void)
{
    const int file = new_log();
    struct posix_trace_status_info status;
    struct posix_trace_event_info event;
    trace_attr_t attributes;
    trace_id_t stream;
    size_t length;
    int unavailable;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setstreamfullpolicy(&attributes, POSIX_TRACE_UNTIL_FULL);
    tap_check(posix_trace_create_withlog(0, &attributes, file, &stream) == 0,
              "a stream with a log is created");
    posix_trace_start(stream);
    record(0, EVENTS);
    tap_check(posix_trace_trygetnext_event(stream, &event, NULL, 0, &length, &unavailable) == EINVAL,
              "events of a stream with a log are not read from the stream");
    tap_check(posix_trace_flush(stream) == 0, "a flush is requested");
    status = flushed(stream);
    tap_check(status.posix_stream_flush_error == 0 && status.posix_stream_status == POSIX_TRACE_RUNNING,
              "a requested flush ends while the stream runs");
    record(EVENTS, 2 * EVENTS);
    tap_check(posix_trace_shutdown(stream) == 0, "the shutdown flushes");
    check_log(file, 2 * EVENTS);
    close(file);
}

/* A stream of few events, into which many are recorded at the pace of the flushes. */
static void by_the_policy(void)
{
    const int file = new_log();
    struct posix_trace_status_info status;
    struct contents found;
    trace_attr_t attributes;
    trace_id_t stream, log;
    size_t size;
    int recorded = 0, overrun = 0;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_getmaxusereventsize(&attributes, sizeof(int), &size);
    posix_trace_attr_setstreamsize(&attributes, 64 * size);
    posix_trace_create_withlog(0, &attributes, file, &stream);
    posix_trace_start(stream);
    while (recorded < EVENTS) {
        record(recorded, recorded + 20);
        recorded += 20;
        /* Twenty events make the stream half full at most every second time. */
        usleep(1000);
    }
    posix_trace_get_status(stream, &status);
    overrun = status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN;
    tap_check(posix_trace_shutdown(stream) == 0, "a stream that is flushed by its policy is shut down");
    lseek(file, 0, SEEK_SET);
    posix_trace_open(file, &log);
    read_log(log, &found);
    posix_trace_close(log);
    printf("# %d of %d events, %d flushes\n", found.users, recorded, found.flush_starts);
    /* On a loaded machine the thread that flushes may be late. Then the loss is reported. */
    tap_check(overrun ? found.users < recorded : found.users == recorded && found.in_order,
              "a stream that is flushed by its policy has each event in its log, or an overrun");
    tap_check(found.users > 64 && found.flush_starts > 1,
              "a flushed stream records more events than its ring holds");
    close(file);
}

static void by_the_end(void)
{
    const int file = new_log();
    int status = -1;
    fflush(stdout);
    if (fork() == 0) {
        trace_id_t stream;
        posix_trace_create_withlog(0, NULL, file, &stream);
        posix_trace_start(stream);
        record(0, EVENTS);
        exit(0);
    }
    wait(&status);
    tap_check(status == 0, "a process ends without shutdown");
    check_log(file, EVENTS);
    close(file);
}

static void refusals(void)
{
    trace_id_t stream;
    int ends[2];
    tap_check(posix_trace_create_withlog(0, NULL, -1, &stream) == EBADF, "a negative descriptor is EBADF");
    tap_check(posix_trace_create_withlog(0, NULL, 12345, &stream) == EBADF, "a closed descriptor is EBADF");
    if (pipe(ends) == 0) {
        tap_check(posix_trace_create_withlog(0, NULL, ends[1], &stream) == EINVAL, "a pipe cannot loop");
        tap_check(posix_trace_open(ends[1], &stream) == EINVAL || posix_trace_open(ends[1], &stream) == EBADF,
                  "a pipe cannot be read at the end for writing");
        close(ends[0]);
        close(ends[1]);
    }
    posix_trace_create(0, NULL, &stream);
    tap_check(posix_trace_flush(stream) == EINVAL, "a stream without log is not flushed");
    posix_trace_shutdown(stream);
}

static trace_id_t ending;
static volatile int is_ending;

static void *shut_down(void *argument)
{
    is_ending = 1;
    (void)posix_trace_shutdown(ending);
    return argument;
}

/* A process ends while another thread shuts a stream down, and the pipe of the log is full. */
static void by_the_end_of_another_thread(void)
{
    enum { MANY = 4000 };
    const int file = new_log();
    trace_attr_t attributes;
    trace_id_t log = 0;
    struct contents found;
    char bytes[4096];
    ssize_t count;
    int pipes[2], status = -1;
    if (pipe(pipes) != 0)
        return;
    fflush(stdout);
    if (fork() == 0) {
        pthread_t thread;
        close(pipes[0]);
        posix_trace_attr_init(&attributes);
        posix_trace_attr_setlogfullpolicy(&attributes, POSIX_TRACE_APPEND);
        posix_trace_attr_setstreamfullpolicy(&attributes, POSIX_TRACE_UNTIL_FULL);
        posix_trace_create_withlog(0, &attributes, pipes[1], &ending);
        posix_trace_start(ending);
        record(0, MANY);
        pthread_create(&thread, NULL, shut_down, NULL);
        while (!is_ending)
            usleep(100);
        usleep(50000);
        exit(0);
    }
    close(pipes[1]);
    usleep(200000);
    while ((count = read(pipes[0], bytes, sizeof bytes)) > 0)
        if (write(file, bytes, (size_t)count) != count)
            break;
    wait(&status);
    tap_check(status == 0 && posix_trace_open(file, &log) == 0 && read_log(log, &found) == 0 &&
                  found.users == MANY,
              "an exit waits for the shutdown of another thread");
    posix_trace_close(log);
    close(pipes[0]);
    close(file);
}

/* The standard permits an empty name. */
static void empty_name(void)
{
    const int file = new_log();
    trace_event_id_t nameless = 0;
    trace_id_t stream = 0, log = 0;
    struct posix_trace_event_info event;
    struct posix_trace_status_info status;
    char name[TRACE_EVENT_NAME_MAX + 1] = "?";
    size_t length;
    int unavailable = 1, found = 0;
    posix_trace_eventid_open("", &nameless);
    posix_trace_create_withlog(0, NULL, file, &stream);
    posix_trace_start(stream);
    posix_trace_event(nameless, NULL, 0);
    tap_check(posix_trace_shutdown(stream) == 0 && posix_trace_open(file, &log) == 0 &&
                  posix_trace_get_status(log, &status) == 0 && status.posix_stream_flush_error == 0,
              "an event type with an empty name is no error of the log");
    while (posix_trace_getnext_event(log, &event, NULL, 0, &length, &unavailable) == 0 && !unavailable)
        found += event.posix_event_id == nameless;
    tap_check(found == 1 && posix_trace_eventid_get_name(log, nameless, name) == 0 && name[0] == '\0',
              "and the log has it");
    posix_trace_close(log);
}

int main(void)
{
    posix_trace_eventid_open("posix_log_user", &user);
    by_the_program();
    by_the_policy();
    by_the_end();
    refusals();
    empty_name();
    by_the_end_of_another_thread();
    return tap_done();
}
