/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Threads are canceled in functions of the interface: these are
 * finished, and the program goes on.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <overhear/trace.h>

#include "tap.h"

enum { ROUNDS = 20 };

static trace_id_t shared;

static void *control_always(void *argument)
{
    for (;;) {
        trace_id_t stream;
        if (posix_trace_create(0, NULL, &stream) == 0)
            posix_trace_shutdown(stream);
        pthread_testcancel();
    }
    return argument;
}

static void *read_always(void *argument)
{
    for (;;) {
        struct posix_trace_event_info event;
        char data[64];
        size_t length;
        int unavailable;
        (void)posix_trace_getnext_event(shared, &event, data, sizeof data, &length, &unavailable);
        pthread_testcancel();
    }
    return argument;
}

/* Cancels a thread a moment after its begin; `release` ends its wait. */
static int is_canceled(void *(*body)(void *), int delay_us, void (*release)(int), int argument)
{
    pthread_t thread;
    void *result = NULL;
    if (pthread_create(&thread, NULL, body, NULL) != 0)
        return 0;
    usleep((useconds_t)delay_us);
    if (pthread_cancel(thread) != 0)
        return 0;
    if (release != NULL)
        release(argument);
    return pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED;
}

static void shut_down(int argument)
{
    (void)argument;
    usleep(1000);
    posix_trace_shutdown(shared);
}

static void flush(int argument)
{
    const trace_id_t stream = (trace_id_t)argument;
    posix_trace_start(stream);
    posix_trace_shutdown(stream);
}

int main(void)
{
    trace_id_t stream = 0;
    trace_attr_t attributes;
    int pipes[2], round, good = 1;
    alarm(60);
    for (round = 0; round < ROUNDS; round++)
        good &= is_canceled(control_always, 500 + 200 * round, NULL, 0);
    tap_check(good, "threads are canceled that create and shut down streams");
    tap_check(posix_trace_create(0, NULL, &shared) == 0, "streams can be created");
    tap_check(is_canceled(read_always, 10000, shut_down, 0),
              "a canceled thread that waits for an event ends after the shutdown");
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setlogfullpolicy(&attributes, POSIX_TRACE_APPEND);
    good = pipe(pipes) == 0 && posix_trace_create_withlog(0, &attributes, pipes[1], &stream) == 0 &&
           posix_trace_open(pipes[0], &shared) == 0;
    tap_check(good && is_canceled(read_always, 10000, flush, (int)stream),
              "and one that waits for the log of a pipe ends after an event");
    tap_check(posix_trace_close(shared) == 0, "which can be closed");
    return tap_done();
}
