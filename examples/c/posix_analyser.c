/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. An analyser of a POSIX trace log: it prints the events, and the
 * average time from one event type to another.
 *
 *     ./posix_analyser shop.log "customer is served" "customer leaves"
 *
 * Without arguments it writes a log of its own first.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trace.h>
#include <unistd.h>

static void must(const char *what, int error)
{
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", what, oh_posix_trace_last_error());
        exit(1);
    }
}

/* Writes a log with three requests; returns its file, positioned at the begin. */
static int example(void)
{
    trace_event_id_t begins, ends;
    trace_attr_t attributes;
    trace_id_t stream;
    FILE *file = tmpfile();
    int log = file ? dup(fileno(file)) : -1;
    if (log < 0)
        exit(1);
    must("begins", posix_trace_eventid_open("request begins", &begins));
    must("ends", posix_trace_eventid_open("request ends", &ends));
    must("attributes", posix_trace_attr_init(&attributes));
    must("name", posix_trace_attr_setname(&attributes, "requests"));
    must("stream", posix_trace_create_withlog(0, &attributes, log, &stream));
    must("start", posix_trace_start(stream));
    for (int number = 1; number <= 3; number++) {
        posix_trace_event(begins, &number, sizeof number);
        posix_trace_event(ends, &number, sizeof number);
    }
    must("shutdown", posix_trace_shutdown(stream));
    lseek(log, 0, SEEK_SET);
    return log;
}

/* Prints the attributes of the log, and whether events were lost. */
static void print_head(trace_id_t log)
{
    char name[TRACE_NAME_MAX], version[TRACE_NAME_MAX];
    struct posix_trace_status_info status;
    struct timespec created;
    trace_attr_t attributes;
    must("attributes", posix_trace_attr_init(&attributes));
    must("attributes", posix_trace_get_attr(log, &attributes));
    must("name", posix_trace_attr_getname(&attributes, name));
    must("version", posix_trace_attr_getgenversion(&attributes, version));
    must("time", posix_trace_attr_getcreatetime(&attributes, &created));
    must("status", posix_trace_get_status(log, &status));
    printf("%s, created at %lld by %s%s\n", name[0] ? name : "a log", (long long)created.tv_sec, version,
           status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN ? "; events were lost" : "");
}

static double microseconds(const struct timespec *from, const struct timespec *to)
{
    return (double)(to->tv_sec - from->tv_sec) * 1e6 + (double)(to->tv_nsec - from->tv_nsec) / 1e3;
}

/* Prints each event, and returns the number of intervals from one type to the other in a thread. */
static int print_events(trace_id_t log, const char *first, const char *second)
{
    struct posix_trace_event_info event, begin;
    char name[TRACE_EVENT_NAME_MAX + 1];
    unsigned char data[64];
    size_t length;
    int end, open = 0, intervals = 0;
    double sum = 0;
    while (posix_trace_getnext_event(log, &event, data, sizeof data, &length, &end) == 0 && !end) {
        must("type", posix_trace_eventid_get_name(log, event.posix_event_id, name));
        printf("%lld.%09ld  %-24s %d:%d ", (long long)event.posix_timestamp.tv_sec,
               event.posix_timestamp.tv_nsec, name, (int)event.posix_pid, (int)event.oh_tid);
        for (size_t byte = 0; byte < length && byte < 16; byte++)
            printf(" %02x", data[byte]);
        printf("%s\n", event.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED ? "" : " ...");
        if (strcmp(name, first) == 0) {
            begin = event;
            open = 1;
        } else if (open && strcmp(name, second) == 0 && event.oh_tid == begin.oh_tid) {
            sum += microseconds(&begin.posix_timestamp, &event.posix_timestamp);
            intervals++;
            open = 0;
        }
    }
    if (intervals > 0)
        printf("from %s to %s: %d times, %.3f us on average\n", first, second, intervals, sum / intervals);
    return intervals;
}

int main(int count, char **arguments)
{
    const char *first = count > 3 ? arguments[2] : "request begins";
    const char *second = count > 3 ? arguments[3] : "request ends";
    int file = count > 1 ? open(arguments[1], O_RDONLY) : example(), intervals;
    trace_id_t log;
    if (file < 0) {
        perror(arguments[1]);
        return 1;
    }
    must("the log", posix_trace_open(file, &log));
    print_head(log);
    intervals = print_events(log, first, second);
    must("close", posix_trace_close(log));
    return count > 1 || intervals == 3 ? 0 : 1;
}
