/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Messages of a program as events of POSIX trace: each level is an
 * event type, and a filter selects levels while the program runs.
 *
 *     ./posix_messages
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trace.h>

enum level { DETAIL, NOTE, WARNING, LEVELS };

static const char *const names[LEVELS] = {"message detail", "message note", "message warning"};
static trace_event_id_t types[LEVELS];

/* Sends a message to the streams that record its level. */
static void message(enum level level, const char *format, ...)
{
    char text[128];
    int length;
    va_list arguments;
    va_start(arguments, format);
    length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length > 0)
        posix_trace_event(types[level], text, strlen(text));
}

static void must(const char *what, int error)
{
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", what, oh_posix_trace_last_error());
        exit(1);
    }
}

/* Sets the filter of a stream so that it records messages of this level and of higher ones. */
static void select_level(trace_id_t stream, enum level least)
{
    trace_event_set_t others;
    must("set", posix_trace_eventset_fill(&others, POSIX_TRACE_ALL_EVENTS));
    for (int level = least; level < LEVELS; level++)
        must("set", posix_trace_eventset_del(types[level], &others));
    must("filter", posix_trace_set_filter(stream, &others, POSIX_TRACE_SET_EVENTSET));
}

/* Prints the messages in a stream, and returns their number. */
static int print_messages(trace_id_t stream)
{
    struct posix_trace_event_info event;
    char text[128], name[TRACE_EVENT_NAME_MAX + 1];
    size_t length;
    int none, count = 0;
    while (posix_trace_trygetnext_event(stream, &event, text, sizeof text, &length, &none) == 0 && !none) {
        must("type", posix_trace_eventid_get_name(stream, event.posix_event_id, name));
        printf("%-16s %.*s%s\n", name, (int)length, text,
               event.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED ? "" : "...");
        count++;
    }
    return count;
}

static void work(void)
{
    for (int number = 1; number <= 3; number++) {
        message(DETAIL, "request %d begins", number);
        if (number == 2)
            message(WARNING, "request %d is late", number);
        message(NOTE, "request %d is done", number);
    }
}

int main(void)
{
    trace_attr_t attributes;
    trace_id_t stream;
    int warnings, notes;
    for (int level = 0; level < LEVELS; level++)
        must(names[level], posix_trace_eventid_open(names[level], &types[level]));
    must("attributes", posix_trace_attr_init(&attributes));
    must("size", posix_trace_attr_setmaxdatasize(&attributes, 128));
    must("stream", posix_trace_create(0, &attributes, &stream));
    select_level(stream, WARNING);
    must("start", posix_trace_start(stream));
    work();
    warnings = print_messages(stream);
    printf("now with notes:\n");
    select_level(stream, NOTE);
    work();
    notes = print_messages(stream);
    must("shutdown", posix_trace_shutdown(stream));
    return warnings == 1 && notes == 4 ? 0 : 1;
}
