/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. A daemon gives up the rights with which it began. Its children cannot
 * open the trace area again, and control streams all the same.
 */
#define _GNU_SOURCE 1
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <overhear/trace.h>

#include "tap.h"

enum { NOBODY = 65534, NUMBERS = 1024 };

static trace_event_id_t user;

/* Nobody can open the area's file, as it is if a directory knows it and its user is another one. */
static int give_up_rights(void)
{
    char path[64], name[64];
    int number, closed = 0;
    for (number = 3; number < NUMBERS; number++) {
        ssize_t length;
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        length = readlink(path, name, sizeof name - 1);
        name[length < 0 ? 0 : length] = '\0';
        if (strstr(name, "memfd:overhear-posix-trace") != NULL)
            closed += fchmod(number, 0) == 0;
    }
    return closed > 0 && (geteuid() != 0 || (setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
                                             setresuid(NOBODY, NOBODY, NOBODY) == 0));
}

/* Whether a stream of this process records until it is shut down. */
static int control(const int *pipes)
{
    trace_id_t stream = 0;
    char byte;
    int count = 0, unavailable = 0;
    if (posix_trace_create(0, NULL, &stream) != 0 || posix_trace_start(stream) != 0)
        return 0;
    posix_trace_event(user, "1", 1);
    if (write(pipes[1], "c", 1) != 1 || read(pipes[2], &byte, 1) != 1)
        return 0;
    posix_trace_event(user, "2", 1);
    while (unavailable == 0) {
        struct posix_trace_event_info event;
        size_t length;
        if (posix_trace_trygetnext_event(stream, &event, &byte, 1, &length, &unavailable) != 0)
            return 0;
        count += unavailable == 0 && event.posix_event_id == user;
    }
    return count == 2 && posix_trace_shutdown(stream) == 0;
}

int main(void)
{
    trace_id_t stream = 0;
    int pipes[4], status = -1, good;
    char byte;
    pid_t child;
    posix_trace_eventid_open("posix_rights_user", &user);
    if (pipe(pipes) != 0 || pipe(pipes + 2) != 0 || !give_up_rights())
        return 1;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(!control(pipes));
    good = read(pipes[0], &byte, 1) == 1 && posix_trace_create(0, NULL, &stream) == 0;
    tap_check(good && write(pipes[3], "p", 1) == 1, "a daemon without rights creates a stream");
    good = waitpid(child, &status, 0) == child && status == 0;
    tap_check(good, "the stream of its child goes on");
    fflush(stdout);
    child = fork();
    if (child == 0) {
        (void)posix_trace_create(0, NULL, &stream);
        _exit(0);
    }
    waitpid(child, &status, 0);
    tap_check(posix_trace_shutdown(stream) == 0, "and so does its own");
    return tap_done();
}
