/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For the conformance tests of <trace.h>. The name of each check begins with its id, PAGE-NUMBER,
 * and is the requirement as docs/posix-trace.md lists it; a test of xtask compares both.
 */
#ifndef OVERHEAR_TESTS_POSIX_H
#define OVERHEAR_TESTS_POSIX_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <trace.h>
#include <unistd.h>

#include "tap.h"

/* Tests end by conditions; a program that hangs is ended after this time. */
enum { PATIENCE_SECONDS = 120 };

static inline void check(const char *requirement, int good)
{
    tap_check(good, requirement);
    fflush(stdout);
}

/* Whether all calls since the last check of errno left it as it was. */
static int errno_kept_ = 1;

static inline int called_(int result)
{
    if (errno != 4711)
        errno_kept_ = 0;
    return result;
}

/* The result of a call of the interface. */
#define CALL(call) (errno = 4711, called_(call))

static inline void check_errno(const char *requirement)
{
    check(requirement, errno_kept_);
    errno_kept_ = 1;
}

/* An event and its data. */
struct event {
    struct posix_trace_event_info info;
    unsigned char data[512];
    size_t length;
    int unavailable;
};

/* The next event if there is one, without waiting. */
static inline int try_next(trace_id_t stream, struct event *event)
{
    memset(event, 0, sizeof *event);
    event->unavailable = -1;
    return CALL(posix_trace_trygetnext_event(stream, &event->info, event->data, sizeof event->data,
                                             &event->length, &event->unavailable));
}

/* The next event; waits for one of an active stream. */
static inline int wait_next(trace_id_t stream, struct event *event)
{
    memset(event, 0, sizeof *event);
    event->unavailable = -1;
    return CALL(posix_trace_getnext_event(stream, &event->info, event->data, sizeof event->data,
                                          &event->length, &event->unavailable));
}

typedef int reader(trace_id_t stream, struct event *event);

static inline int is_system(trace_event_id_t event)
{
    trace_event_set_t set;
    int member = 0;
    posix_trace_eventset_fill(&set, POSIX_TRACE_SYSTEM_EVENTS);
    posix_trace_eventset_ismember(event, &set, &member);
    return member != 0;
}

/* The next user event; 0 if there is none. */
static inline int next_user(trace_id_t stream, struct event *event, reader *read)
{
    while (read(stream, event) == 0 && event->unavailable == 0)
        if (!is_system(event->info.posix_event_id))
            return 1;
    return 0;
}

/* The next event of a type; 0 if there is none. */
static inline int next_of(trace_id_t stream, trace_event_id_t type, struct event *event, reader *read)
{
    while (read(stream, event) == 0 && event->unavailable == 0)
        if (posix_trace_eventid_equal(stream, event->info.posix_event_id, type))
            return 1;
    return 0;
}

/* Reads everything; the number of events of a type. */
static inline int count_of(trace_id_t stream, trace_event_id_t type, reader *read)
{
    struct event event;
    int count = 0;
    while (next_of(stream, type, &event, read))
        count++;
    return count;
}

/* An event's number, if its data is one. */
static inline int number_of(const struct event *event)
{
    int number = -1;
    if (event->length == sizeof number)
        memcpy(&number, event->data, sizeof number);
    return number;
}

/* Records the numbers from `first` on. */
static inline void record(trace_event_id_t type, int first, int count)
{
    int number;
    for (number = first; number < first + count; number++)
        posix_trace_event(type, &number, sizeof number);
}

static inline trace_event_id_t user_type(const char *name)
{
    trace_event_id_t type = POSIX_TRACE_UNNAMED_USER_EVENT;
    if (posix_trace_eventid_open(name, &type) != 0)
        exit(2);
    return type;
}

/* A stream of this process; `attr` may be NULL. */
static inline trace_id_t create_stream(const trace_attr_t *attr)
{
    trace_id_t stream = 0;
    int error = CALL(posix_trace_create(0, attr, &stream));
    if (error != 0) {
        fprintf(stderr, "posix_trace_create: %s\n", oh_posix_trace_last_error());
        exit(2);
    }
    return stream;
}

static inline trace_id_t started_stream(const trace_attr_t *attr)
{
    trace_id_t stream = create_stream(attr);
    if (CALL(posix_trace_start(stream)) != 0)
        exit(2);
    return stream;
}

static inline struct posix_trace_status_info status_of(trace_id_t stream)
{
    struct posix_trace_status_info status;
    memset(&status, 0xff, sizeof status);
    if (CALL(posix_trace_get_status(stream, &status)) != 0)
        status.posix_stream_status = -1;
    return status;
}

/* Attributes for a stream of few events. */
static inline void small_stream(trace_attr_t *attr, int policy, size_t events)
{
    size_t bytes = 0;
    if (posix_trace_attr_init(attr) != 0 || posix_trace_attr_getmaxusereventsize(attr, 4, &bytes) != 0 ||
        posix_trace_attr_setstreamsize(attr, events * bytes) != 0 ||
        posix_trace_attr_setstreamfullpolicy(attr, policy) != 0)
        exit(2);
}

/* An empty file without a name, open for reading and writing. */
static inline int new_file(void)
{
    char name[] = "/tmp/overhear-posix-XXXXXX";
    int file = mkstemp(name);
    if (file < 0)
        exit(2);
    unlink(name);
    return file;
}

/* The same file through another descriptor with its own position, the start. */
static inline int reopened(int file, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, flags | O_CLOEXEC);
}

static inline trace_id_t create_logged(const trace_attr_t *attr, int file)
{
    trace_id_t stream = 0;
    if (CALL(posix_trace_create_withlog(0, attr, file, &stream)) != 0) {
        fprintf(stderr, "posix_trace_create_withlog: %s\n", oh_posix_trace_last_error());
        exit(2);
    }
    return stream;
}

/* Opens the log in a file; 0 if it is none. */
static inline trace_id_t open_log(int file)
{
    trace_id_t log = 0;
    int copy = reopened(file, O_RDONLY);
    if (CALL(posix_trace_open(copy, &log)) != 0) {
        fprintf(stderr, "posix_trace_open: %s\n", oh_posix_trace_last_error());
        return 0;
    }
    return log;
}

/* Waits for a child; the status of its exit, or -1. */
static inline int exit_of(pid_t child)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs a function in a child; what it returned, or -1. */
static inline int in_child(int (*body)(void *), void *argument)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(body(argument));
    return exit_of(child);
}

static inline void begin_tests(void)
{
    alarm(PATIENCE_SECONDS);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

#endif
