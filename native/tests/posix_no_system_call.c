/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. posix_trace_event does not enter the kernel and does not allocate,
 * after the first event of its thread, whether it records, loses or filters the event.
 *
 * A child process installs a filter that kills it at any system call but exit_group, writes, and
 * ends with a status. The test first shows that the filter detects a violation.
 */
#define _GNU_SOURCE 1
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/trace.h>

#include "allocations.h"
#include "system_calls.h"
#include "tap.h"

enum { WRITES = 1000000 };

static trace_event_id_t user, filtered;
static trace_id_t looping, full;

static trace_id_t stream_of(int policy)
{
    trace_id_t stream;
    trace_event_set_t set;
    trace_attr_t attributes;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setstreamfullpolicy(&attributes, policy);
    posix_trace_create(0, &attributes, &stream);
    posix_trace_eventset_empty(&set);
    posix_trace_eventset_add(filtered, &set);
    posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET);
    posix_trace_start(stream);
    return stream;
}

static void prepare(void)
{
    looping = stream_of(POSIX_TRACE_LOOP);
    full = stream_of(POSIX_TRACE_UNTIL_FULL);
    posix_trace_event(user, NULL, 0);
}

/* Events that are recorded by one stream, and lost by the other when it is full; that are cut; that
   are filtered out. */
static int write_events(void)
{
    const uint64_t before = allocations;
    char data[200];
    int number;
    memset(data, 1, sizeof data);
    for (number = 0; number < WRITES; number++) {
        posix_trace_event(user, data, (size_t)number % sizeof data);
        posix_trace_event(filtered, data, 8);
    }
    return allocations != before;
}

static int call_the_kernel(void)
{
    return syscall(SYS_getppid) > 0;
}

/* Runs a function in a child under the filter. Returns the child's wait status. */
static int guarded(int (*function)(void))
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        prepare();
        _exit(forbid_system_calls() == 0 ? function() : REFUSED);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

int main(void)
{
    const char *name = "a million events without system call";
    struct posix_trace_status_info status;
    int result;
    posix_trace_eventid_open("posix_no_system_call", &user);
    posix_trace_eventid_open("posix_no_system_call filtered", &filtered);
    result = guarded(call_the_kernel);
    if (WIFEXITED(result) && WEXITSTATUS(result) == REFUSED) {
        tap_skip(name, "seccomp filters are refused here");
    } else {
        tap_check(WIFSIGNALED(result) && WTERMSIG(result) == SIGSYS,
                  "the filter kills a process that calls the kernel");
#if defined(__x86_64__) || defined(__aarch64__)
        result = guarded(write_events);
        tap_check(WIFEXITED(result) && WEXITSTATUS(result) == 0, name);
#else
        /* The vDSO decides whether CLOCK_MONOTONIC enters the kernel. */
        tap_skip(name, "this CPU's counter has no clock id");
#endif
    }
#if defined(__GLIBC__)
    prepare();
    result = (int)(allocations = 0);
    free(malloc(1));
    tap_check(allocations == 2, "the guard counts allocations");
    tap_check(write_events() == 0, "a million events without allocation");
    tap_check(posix_trace_get_status(looping, &status) == 0 &&
                  status.posix_stream_status == POSIX_TRACE_RUNNING &&
                  posix_trace_get_status(full, &status) == 0 &&
                  status.posix_stream_full_status == POSIX_TRACE_FULL,
              "one stream looped, the other became full");
#endif
    return tap_done();
}
