/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. A controller of POSIX trace: it traces another program, and keeps a
 * log of its events.
 *
 *     ./posix_trace_controller LOG PROGRAM [ARGUMENT ...]
 *
 * PROGRAM must use <trace.h>, as posix_traced does. Read the log by posix_analyser or by
 * `overhear report`. Without arguments the controller traces a child of its own, and prints the
 * number of events of each type in the log.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <trace.h>
#include <unistd.h>

enum { STEPS = 5 };

/* Ends the program with a message if a call of the interface fails. */
static void must(const char *what, int error)
{
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", what, oh_posix_trace_last_error());
        exit(1);
    }
}

/* The work of the controller's own child. */
static int work(void)
{
    trace_event_id_t step;
    must("step", posix_trace_eventid_open("step", &step));
    for (int number = 0; number < STEPS; number++)
        posix_trace_event(step, &number, sizeof number);
    return 0;
}

/* Forks a child that waits until the pipe `gate` is closed, and then runs the program. */
static pid_t start(char **program, int *gate)
{
    int ends[2];
    pid_t child;
    if (pipe(ends) != 0 || (child = fork()) < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0) {
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 0)
            _exit(1);
        if (program == NULL)
            exit(work());
        execvp(program[0], program);
        perror(program[0]);
        _exit(127);
    }
    close(ends[0]);
    *gate = ends[1];
    return child;
}

/* Prints the number of events of each type in the log. */
static void summarize(int file)
{
    unsigned counts[64 + TRACE_USER_EVENT_MAX] = {0};
    struct posix_trace_event_info event;
    char data[256], name[TRACE_EVENT_NAME_MAX + 1];
    size_t length;
    trace_id_t log;
    int end;
    lseek(file, 0, SEEK_SET);
    must("the log", posix_trace_open(file, &log));
    while (posix_trace_getnext_event(log, &event, data, sizeof data, &length, &end) == 0 && !end)
        counts[event.posix_event_id]++;
    for (trace_event_id_t type = 1; type < sizeof counts / sizeof *counts; type++)
        if (counts[type] > 0 && posix_trace_eventid_get_name(log, type, name) == 0)
            printf("%6u  %s\n", counts[type], name);
    must("close", posix_trace_close(log));
}

int main(int count, char **arguments)
{
    struct posix_trace_status_info status;
    trace_attr_t attributes;
    trace_event_set_t noise;
    trace_id_t stream;
    int gate, result = 0;
    FILE *file = count > 2 ? fopen(arguments[1], "w+") : tmpfile();
    if (file == NULL) {
        perror("the log");
        return 1;
    }
    pid_t child = start(count > 2 ? arguments + 2 : NULL, &gate);

    /* Everything that is recorded stays in the log; forked children are traced, too. */
    must("attributes", posix_trace_attr_init(&attributes));
    must("name", posix_trace_attr_setname(&attributes, "controller"));
    must("log policy", posix_trace_attr_setlogfullpolicy(&attributes, POSIX_TRACE_APPEND));
    must("inheritance", posix_trace_attr_setinherited(&attributes, POSIX_TRACE_INHERITED));
    must("stream", posix_trace_create_withlog(child, &attributes, fileno(file), &stream));
    must("attributes", posix_trace_attr_destroy(&attributes));

    /* The log of a summary needs no events of flushes. */
    posix_trace_eventset_empty(&noise);
    posix_trace_eventset_add(POSIX_TRACE_FLUSH_START, &noise);
    posix_trace_eventset_add(POSIX_TRACE_FLUSH_STOP, &noise);
    must("filter", posix_trace_set_filter(stream, &noise, POSIX_TRACE_SET_EVENTSET));
    must("start", posix_trace_start(stream));

    close(gate);
    waitpid(child, &result, 0);

    must("status", posix_trace_get_status(stream, &status));
    if (status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN)
        fprintf(stderr, "events were lost\n");
    must("shutdown", posix_trace_shutdown(stream));
    if (count <= 2)
        summarize(fileno(file));
    fclose(file);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 1;
}
