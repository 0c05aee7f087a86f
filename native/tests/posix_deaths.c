/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Writers, readers and controllers that are killed at any point leave
 * the streams of others usable, and their resources are freed.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <overhear/trace.h>

#include "tap.h"

enum { ROUNDS = 60 };

static trace_event_id_t user;

static void record(int value)
{
    posix_trace_event(user, &value, sizeof value);
}

static trace_id_t stream_of(pid_t pid, int inheritance, int policy)
{
    trace_id_t stream = 0;
    trace_attr_t attributes;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setinherited(&attributes, inheritance);
    posix_trace_attr_setstreamfullpolicy(&attributes, policy);
    posix_trace_attr_setstreamsize(&attributes, 32768);
    if (posix_trace_create(pid, &attributes, &stream) != 0)
        printf("# %s\n", oh_posix_trace_last_error());
    else
        posix_trace_start(stream);
    return stream;
}

/* Reads until an event with this value comes; whether it came before the stream was silent for two
   seconds. */
static int finds(trace_id_t stream, int value)
{
    for (;;) {
        struct posix_trace_event_info event;
        struct timespec until;
        size_t length;
        int unavailable, found = -1, error;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 2;
        error = posix_trace_timedgetnext_event(stream, &event, &found, sizeof found, &length,
                                               &unavailable, &until);
        if (error != 0 && error != EINTR)
            return 0;
        if (error == 0 && event.posix_event_id == user && found == value)
            return 1;
    }
}

/* Reads until a stream is empty, so that a full one starts again. A killed writer delays it. */
static void drain(trace_id_t stream)
{
    struct posix_trace_status_info status;
    do {
        struct posix_trace_event_info event;
        int unavailable = 0, found;
        size_t length;
        usleep(200);
        while (!unavailable)
            posix_trace_trygetnext_event(stream, &event, &found, sizeof found, &length, &unavailable);
        posix_trace_get_status(stream, &status);
    } while (status.posix_stream_full_status == POSIX_TRACE_FULL);
}

/* Runs a function in a child, and kills it after some time. */
static pid_t start(void (*function)(pid_t parent))
{
    const pid_t parent = getpid();
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        function(parent);
        _exit(0);
    }
    return child;
}

static void kill_after(pid_t child, int microseconds)
{
    usleep((useconds_t)microseconds);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void write_always(pid_t parent)
{
    (void)parent;
    for (;;)
        record(1);
}

static void writers(int policy, int rounds, const char *name)
{
    const trace_id_t stream = stream_of(0, POSIX_TRACE_INHERITED, policy);
    int round, good = 1;
    for (round = 0; round < rounds; round++) {
        pid_t first = start(write_always), second = start(write_always);
        kill_after(first, 100 + rand() % 2000);
        kill_after(second, rand() % 300);
        if (policy == POSIX_TRACE_UNTIL_FULL)
            drain(stream);
        record(100 + round);
        good &= finds(stream, 100 + round);
    }
    tap_check(good, name);
    posix_trace_shutdown(stream);
}

static void read_parent(pid_t parent)
{
    const trace_id_t stream = stream_of(parent, POSIX_TRACE_CLOSE_FOR_CHILD, POSIX_TRACE_LOOP);
    finds(stream, -2);
}

static void create_always(pid_t parent)
{
    for (;;) {
        const trace_id_t stream = stream_of(parent, POSIX_TRACE_INHERITED, POSIX_TRACE_UNTIL_FULL);
        posix_trace_stop(stream);
        posix_trace_shutdown(stream);
    }
}

/* Controllers of this process are killed while it writes into a stream of its own. */
static void controllers(void (*function)(pid_t), const char *name)
{
    const trace_id_t own = stream_of(0, POSIX_TRACE_CLOSE_FOR_CHILD, POSIX_TRACE_LOOP);
    int round, good = 1;
    for (round = 0; round < ROUNDS; round++) {
        pid_t child = start(function);
        int at, pause = rand() % 40;
        for (at = 0; at < pause; at++) {
            record(1);
            usleep(50);
        }
        kill_after(child, 0);
        record(100 + round);
        good &= finds(own, 100 + round);
    }
    posix_trace_shutdown(own);
    tap_check(good, name);
}

/* Creates all streams that the system permits, where no other process has streams. */
static void all_streams(void)
{
    const char *name = "all streams of the system can be created then, and no more";
    trace_id_t streams[TRACE_SYS_MAX + 1];
    int number, good = 1;
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        tap_skip(name, "no network namespace");
        return;
    }
    for (number = 0; number < TRACE_SYS_MAX; number++)
        good &= posix_trace_create(0, NULL, &streams[number]) == 0;
    tap_check(good && posix_trace_create(0, NULL, &streams[number]) == EAGAIN, name);
    good = posix_trace_shutdown(streams[17]) == 0 && posix_trace_create(0, NULL, &streams[17]) == 0 &&
           posix_trace_create(0, NULL, &streams[number]) == EAGAIN;
    for (number = 0; number < TRACE_SYS_MAX; number++)
        good &= posix_trace_start(streams[number]) == 0;
    record(77);
    for (number = 0; number < TRACE_SYS_MAX; number++)
        good &= finds(streams[number], 77) && posix_trace_shutdown(streams[number]) == 0;
    tap_check(good, "each stream gets the event, and a shutdown permits another stream");
}

int main(void)
{
    posix_trace_eventid_open("posix_deaths_user", &user);
    writers(POSIX_TRACE_LOOP, ROUNDS / 2, "writers killed at any point leave a looping stream usable");
    writers(POSIX_TRACE_UNTIL_FULL, ROUNDS / 2, "and one that stops when it is full");
    controllers(read_parent, "so do its readers");
    controllers(create_always, "and controllers that create and shut down");
    all_streams();
    return tap_done();
}
