/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Readers that wait: for events, for a time, until a signal or a
 * shutdown.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include <overhear/trace.h>

#include "tap.h"

enum { READERS = 4, EVENTS = 2000 };

static trace_event_id_t user;
static trace_id_t stream;
static volatile int seen[EVENTS], handled;

struct reader {
    pthread_t thread;
    volatile pid_t tid;
    int result;
    int timed;
};

static int next(const struct timespec *until, int *value)
{
    struct posix_trace_event_info event;
    size_t length;
    int unavailable;
    int error = until ? posix_trace_timedgetnext_event(stream, &event, value, sizeof *value, &length,
                                                       &unavailable, until)
                      : posix_trace_getnext_event(stream, &event, value, sizeof *value, &length, &unavailable);
    if (error != 0 || event.posix_event_id != user)
        *value = -1;
    return error;
}

static struct timespec in_ms(long milliseconds)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += milliseconds % 1000 * 1000000;
    time.tv_sec += milliseconds / 1000 + time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

/* Reads until there is an error. */
static void *read_all(void *argument)
{
    struct reader *const reader = (struct reader *)argument;
    const struct timespec late = in_ms(100000);
    int value = -1;
    reader->tid = (pid_t)syscall(SYS_gettid);
    while ((reader->result = next(reader->timed ? &late : NULL, &value)) == 0)
        if (value >= 0)
            seen[value]++;
    return NULL;
}

/* Waits until a thread sleeps in the kernel. */
static void until_it_sleeps(const struct reader *reader)
{
    char path[64], line[256], *state;
    do {
        FILE *file;
        usleep(500);
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)reader->tid);
        file = fopen(path, "r");
        line[0] = '\0';
        if (file != NULL) {
            if (fgets(line, sizeof line, file) == NULL)
                line[0] = '\0';
            fclose(file);
        }
        state = strrchr(line, ')');
    } while (state == NULL || state[2] != 'S');
}

static void begin(struct reader *reader, int timed)
{
    memset(reader, 0, sizeof *reader);
    reader->timed = timed;
    pthread_create(&reader->thread, NULL, read_all, reader);
    while (reader->tid == 0)
        usleep(100);
    until_it_sleeps(reader);
}

static void handle(int number)
{
    (void)number;
    handled++;
}

static void several(void)
{
    struct reader readers[READERS];
    int at, good = 1;
    for (at = 0; at < READERS; at++)
        begin(&readers[at], at % 2);
    for (at = 0; at < EVENTS; at++) {
        posix_trace_event(user, &at, sizeof at);
        if (at % 100 == 0)
            until_it_sleeps(&readers[at / 100 % READERS]);
    }
    for (at = 0; at < READERS; at++)
        until_it_sleeps(&readers[at]);
    for (at = 0; at < EVENTS; at++)
        good &= seen[at] == 1;
    tap_check(good, "each event is read by one of several readers");
    tap_check(posix_trace_shutdown(stream) == 0, "a stream is shut down while readers wait");
    for (at = 0; at < READERS; at++) {
        pthread_join(readers[at].thread, NULL);
        good &= readers[at].result == EINVAL;
    }
    tap_check(good, "waiting readers return with EINVAL after a shutdown");
}

static void signals(int flags, int timed, int expected, const char *name)
{
    struct sigaction action;
    struct reader reader;
    int value = 5;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = flags;
    sigaction(SIGUSR1, &action, NULL);
    handled = 0;
    begin(&reader, timed);
    pthread_kill(reader.thread, SIGUSR1);
    while (!handled)
        usleep(100);
    if (expected != EINTR) {
        until_it_sleeps(&reader);
        seen[value] = 0;
        posix_trace_event(user, &value, sizeof value);
        while (!seen[value])
            usleep(100);
        posix_trace_shutdown(stream);
    }
    pthread_join(reader.thread, NULL);
    tap_check(reader.result == expected, name);
}

static void new_stream(void)
{
    int value;
    const struct timespec now = in_ms(0);
    posix_trace_create(0, NULL, &stream);
    posix_trace_start(stream);
    next(&now, &value);
}

static void times(void)
{
    struct timespec time = in_ms(30), after;
    int value = 3;
    tap_check(next(&time, &value) == ETIMEDOUT, "a timeout without an event is ETIMEDOUT");
    clock_gettime(CLOCK_REALTIME, &after);
    tap_check(after.tv_sec > time.tv_sec || (after.tv_sec == time.tv_sec && after.tv_nsec >= time.tv_nsec),
              "ETIMEDOUT is not returned before the timeout");
    tap_check(next(&time, &value) == ETIMEDOUT, "a timeout that has passed is ETIMEDOUT");
    time.tv_nsec = 1000000000;
    tap_check(next(&time, &value) == EINVAL, "an invalid timeout is EINVAL");
    time.tv_nsec = -1;
    tap_check(next(&time, &value) == EINVAL, "a timeout with negative nanoseconds is EINVAL");
    value = 3;
    posix_trace_event(user, &value, sizeof value);
    posix_trace_event(user, &value, sizeof value);
    tap_check(next(&time, &value) == 0 && value == 3,
              "an invalid timeout does not matter if there is an event");
    time = in_ms(-5000);
    tap_check(next(&time, &value) == 0 && value == 3,
              "a timeout that has passed does not matter if there is an event");
}

int main(void)
{
    posix_trace_eventid_open("posix_wait_user", &user);
    new_stream();
    several();
    new_stream();
    times();
    signals(0, 0, EINTR, "a signal interrupts a reader");
    signals(0, 1, EINTR, "and one that waits for a time");
    signals(SA_RESTART, 0, EINVAL, "but not with SA_RESTART");
    return tap_done();
}
