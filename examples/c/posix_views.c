/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Several views of one log of POSIX trace: each view opens the log for
 * itself, has a position of its own in it, and shows other events.
 *
 *     ./posix_views shop.log
 *
 * Views are a tally of event types, the time between events, and the last events. Without arguments
 * the program writes a log of its own first.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trace.h>
#include <unistd.h>

enum { LAST = 3, SHIFTS = 10 };

static void must(const char *what, int error)
{
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", what, oh_posix_trace_last_error());
        exit(1);
    }
}

/* A view: the log at a position, and the event there. */
struct view {
    trace_id_t log;
    struct posix_trace_event_info event;
};

static struct view open_view(const char *path)
{
    struct view view;
    int file = open(path, O_RDONLY);
    if (file < 0) {
        perror(path);
        exit(1);
    }
    must("the log", posix_trace_open(file, &view.log));
    close(file);
    return view;
}

/* Moves a view to the next event; returns 0 at the end of the log. */
static int next(struct view *view)
{
    size_t length;
    int end = 1;
    must("event", posix_trace_getnext_event(view->log, &view->event, NULL, 0, &length, &end));
    return !end;
}

static const char *name_of(const struct view *view)
{
    static char name[TRACE_EVENT_NAME_MAX + 1];
    must("type", posix_trace_eventid_get_name(view->log, view->event.posix_event_id, name));
    return name;
}

/* Prints the event types of the log with the number of their events; returns the sum. */
static int tally(struct view *view)
{
    struct view list = *view;
    char name[TRACE_EVENT_NAME_MAX + 1];
    int end, events, sum = 0;
    printf("event types:\n");
    while (posix_trace_eventtypelist_getnext_id(list.log, &list.event.posix_event_id, &end) == 0 && !end) {
        trace_event_id_t type = list.event.posix_event_id;
        must("type", posix_trace_eventid_get_name(list.log, type, name));
        must("rewind", posix_trace_rewind(view->log));
        for (events = 0; next(view);)
            events += posix_trace_eventid_equal(view->log, view->event.posix_event_id, type) != 0;
        if (events > 0)
            printf("%6d  %s\n", events, name);
        sum += events;
    }
    return sum;
}

static long long nanoseconds(const struct view *view)
{
    return view->event.posix_timestamp.tv_sec * 1000000000LL + view->event.posix_timestamp.tv_nsec;
}

/* Prints the longest time between consecutive events; returns the number of events. */
static int longest_pause(struct view *view)
{
    long long before, pause = 0;
    int events = next(view);
    before = nanoseconds(view);
    for (; next(view); events++) {
        if (nanoseconds(view) - before > pause)
            pause = nanoseconds(view) - before;
        before = nanoseconds(view);
    }
    printf("longest pause: %lld ns\n", pause);
    return events;
}

/*
 * Prints the last events; returns the number of all. The view `ahead` is LAST events ahead of
 * `view`: when it reaches the end, the last events follow in `view`.
 */
static int last_events(struct view *view, struct view *ahead)
{
    int distance = 0;
    for (; next(ahead); distance++)
        if (distance >= LAST)
            next(view);
    printf("the last events:\n");
    while (next(view))
        printf("        %s\n", name_of(view));
    return distance;
}

/* Writes a log of its own: people of two shifts at work. */
static const char *example(void)
{
    static char path[] = "/tmp/posix-views-XXXXXX";
    static const char *const names[] = {"day begins", "day ends", "night begins", "night ends"};
    trace_event_id_t types[4];
    trace_id_t stream;
    int file = mkstemp(path), type;
    if (file < 0)
        exit(1);
    for (type = 0; type < 4; type++)
        must(names[type], posix_trace_eventid_open(names[type], &types[type]));
    must("stream", posix_trace_create_withlog(0, NULL, file, &stream));
    must("start", posix_trace_start(stream));
    for (int shift = 0; shift < SHIFTS; shift++)
        for (type = 0; type < 4; type++)
            posix_trace_event(types[type], NULL, 0);
    must("shutdown", posix_trace_shutdown(stream));
    close(file);
    return path;
}

int main(int count, char **arguments)
{
    const char *path = count > 1 ? arguments[1] : example();
    struct view views[] = {open_view(path), open_view(path), open_view(path), open_view(path)};
    int tallied = tally(&views[0]);
    int paused = longest_pause(&views[1]);
    int last = last_events(&views[2], &views[3]);
    for (int view = 0; view < 4; view++)
        must("close", posix_trace_close(views[view].log));
    if (count <= 1)
        unlink(path);
    /* Each view has seen the whole log. */
    return tallied == paused && paused == last ? 0 : 1;
}
