// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A program with trace streams. Each mode ends when its standard input does.
 *
 *   count N SIZE     N events into a stream `requests` with SIZE bytes, then "ready"
 *   steady           an event each millisecond into a stream `requests`
 *   traced           an event each millisecond, and no stream of its own
 *   control PID N    a stream for another process: prints the error number, and reads N events
 *   family           a parent that ends at once, and a child that is traced with it
 */
#include <overhear/trace.h>

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int input_has_ended(int wait_ms)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, wait_ms) > 0 && read(0, &byte, 1) <= 0;
}

static void print_line(const char *text)
{
    printf("%s\n", text);
    fflush(stdout);
}

static trace_id_t stream_of(pid_t pid, const char *name, size_t size, int inherited)
{
    trace_attr_t attributes;
    trace_id_t stream;
    int failed;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setname(&attributes, name);
    posix_trace_attr_setstreamfullpolicy(&attributes, POSIX_TRACE_LOOP);
    posix_trace_attr_setmaxdatasize(&attributes, 16);
    if (size > 0)
        posix_trace_attr_setstreamsize(&attributes, size);
    if (inherited)
        posix_trace_attr_setinherited(&attributes, POSIX_TRACE_INHERITED);
    failed = posix_trace_create(pid, &attributes, &stream);
    posix_trace_attr_destroy(&attributes);
    if (failed) {
        printf("error %d %s\n", failed, oh_posix_trace_last_error());
        exit(1);
    }
    return stream;
}

static void record_each_ms(trace_event_id_t request)
{
    uint64_t number = 0;
    do {
        posix_trace_event(request, &number, sizeof number);
        number++;
    } while (!input_has_ended(1));
}

static int control(pid_t pid, long events)
{
    trace_id_t stream = stream_of(pid, "from outside", 0, 0);
    struct posix_trace_event_info info;
    uint64_t data;
    size_t length;
    int unavailable;
    posix_trace_start(stream);
    print_line("started");
    while (events > 0) {
        if (posix_trace_getnext_event(stream, &info, &data, sizeof data, &length, &unavailable))
            return 1;
        if (!unavailable && info.posix_pid == pid && length == sizeof data)
            events--;
    }
    print_line("read");
    while (!input_has_ended(100))
        ;
    return posix_trace_shutdown(stream);
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "";
    trace_event_id_t request;
    trace_id_t stream;
    if (strcmp(mode, "control") == 0)
        return control(atoi(arguments[2]), atol(arguments[3]));
    posix_trace_eventid_open("request", &request);
    if (strcmp(mode, "traced") == 0) {
        print_line("ready");
        record_each_ms(request);
        return 0;
    }
    if (strcmp(mode, "count") == 0) {
        uint64_t events = strtoull(arguments[2], NULL, 10);
        stream = stream_of(0, "requests", strtoull(arguments[3], NULL, 10), 0);
        posix_trace_start(stream);
        for (uint64_t number = 0; number < events; number++)
            posix_trace_event(request, &number, sizeof number);
        print_line("ready");
        while (!input_has_ended(100))
            ;
        return posix_trace_shutdown(stream);
    }
    if (strcmp(mode, "family") == 0) {
        stream = stream_of(0, "family", 0, 1);
        posix_trace_start(stream);
        pid_t child = fork();
        if (child == 0) {
            record_each_ms(request);
            _exit(0);
        }
        posix_trace_event(request, &child, sizeof child);
        print_line("ready");
        return waitpid(child, NULL, 0) != child;
    }
    stream = stream_of(0, "requests", 0, 0);
    posix_trace_start(stream);
    print_line("ready");
    record_each_ms(request);
    return 0;
}
