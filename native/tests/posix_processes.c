/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Fork and exec during writes and changes: children are forked, spawned
 * and replaced by other programs while threads of their parent record events and change the stream.
 * Every event of every process arrives once. A controller that is killed leaves the program usable.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <spawn.h>

#include "posix.h"

extern char **environ;

enum { CHILDREN = 30, EVENTS = 40, WRITERS = 2 };

static trace_event_id_t type;
static volatile int ending;

static int is_ending(void)
{
    return __atomic_load_n(&ending, __ATOMIC_ACQUIRE);
}

static void end(int value)
{
    __atomic_store_n(&ending, value, __ATOMIC_RELEASE);
}

/* Records numbers from 0 on until the end; returns their number. */
static void *writes(void *argument)
{
    int *count = (int *)argument;
    while (!is_ending()) {
        record(type, (*count)++, 1);
        usleep(50);
    }
    return NULL;
}

/* Changes the filter and gets the status, so that locks are held at forks. */
static void *changes(void *argument)
{
    trace_id_t stream = *(trace_id_t *)argument;
    trace_event_set_t set;
    posix_trace_eventset_empty(&set);
    posix_trace_eventset_add(POSIX_TRACE_UNNAMED_USER_EVENT, &set);
    posix_trace_eventset_add(POSIX_TRACE_FILTER, &set);
    while (!is_ending()) {
        posix_trace_set_filter(stream, &set, POSIX_TRACE_ADD_EVENTSET);
        status_of(stream);
        user_type("process event");
        usleep(200);
    }
    return NULL;
}

/* Numbers of each process. */
struct tally {
    pid_t pid;
    int count, next, ordered;
};

static struct tally tallies[CHILDREN + 1];

static struct tally *tally_of(pid_t pid)
{
    int at;
    for (at = 0; at <= CHILDREN && tallies[at].pid != 0; at++)
        if (tallies[at].pid == pid)
            return &tallies[at];
    if (at > CHILDREN)
        return NULL;
    tallies[at].pid = pid;
    tallies[at].ordered = 1;
    return &tallies[at];
}

static void *reads(void *argument)
{
    trace_id_t stream = *(trace_id_t *)argument;
    struct event event;
    struct tally *tally;
    while (wait_next(stream, &event) == 0) {
        if (event.info.posix_event_id != type)
            continue;
        tally = tally_of(event.info.posix_pid);
        if (!tally)
            continue;
        tally->count++;
        tally->ordered &= number_of(&event) == tally->next;
        tally->next = number_of(&event) + 1;
        if (number_of(&event) < 0)
            break;
    }
    return NULL;
}

/* The work of a child: it records half of its events, and the other half perhaps after an exec. */
static pid_t child_of_kind(int kind)
{
    char program[] = "/proc/self/exe", first[16] = "0", count[16];
    char *arguments[] = {program, first, count, NULL};
    pid_t child;
    snprintf(count, sizeof count, "%d", EVENTS);
    if (kind == 0) {
        if (posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0)
            exit(2);
        return child;
    }
    child = fork();
    if (child != 0)
        return child;
    record(type, 0, EVENTS / 2);
    snprintf(first, sizeof first, "%d", EVENTS / 2);
    snprintf(count, sizeof count, "%d", EVENTS - EVENTS / 2);
    if (kind == 2)
        execv(program, arguments);
    record(type, EVENTS / 2, EVENTS - EVENTS / 2);
    _exit(0);
}

static void of_children(void)
{
    pthread_t reader, writers[WRITERS], changer;
    int counts[WRITERS] = {0, 0}, at, good, ordered = 1, written = 0;
    pid_t children[CHILDREN];
    trace_attr_t attr;
    trace_id_t stream;
    struct tally *tally;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setinherited(&attr, POSIX_TRACE_INHERITED);
    posix_trace_attr_setstreamsize(&attr, 8 << 20);
    posix_trace_attr_setstreamfullpolicy(&attr, POSIX_TRACE_UNTIL_FULL);
    stream = started_stream(&attr);
    end(0);
    if (pthread_create(&reader, NULL, reads, &stream) != 0 ||
        pthread_create(&changer, NULL, changes, &stream) != 0)
        exit(2);
    for (at = 0; at < WRITERS; at++)
        if (pthread_create(&writers[at], NULL, writes, &counts[at]) != 0)
            exit(2);
    for (at = 0; at < CHILDREN; at++)
        children[at] = child_of_kind(at % 3);
    for (at = good = 0; at < CHILDREN; at++)
        good += exit_of(children[at]) == 0;
    check("all children end", good == CHILDREN);
    end(1);
    for (at = 0; at < WRITERS; at++) {
        pthread_join(writers[at], NULL);
        written += counts[at];
    }
    pthread_join(changer, NULL);
    check("no event is lost", status_of(stream).posix_stream_overrun_status == POSIX_TRACE_NO_OVERRUN);
    record(type, -1, 1);
    pthread_join(reader, NULL);
    for (at = good = 0; at < CHILDREN; at++) {
        tally = tally_of(children[at]);
        good += tally && tally->count == EVENTS;
        ordered &= tally && tally->ordered;
    }
    check("all events of forked, spawned and replaced children arrive, each once", good == CHILDREN);
    check("those of a process are in its order", ordered);
    tally = tally_of(getpid());
    check("all events of the threads arrive", tally && tally->count == written + 1);
    posix_trace_shutdown(stream);
}

/* A controller of the parent, which reads until it is killed. */
static int controls_parent(int ready)
{
    trace_id_t stream;
    struct event event;
    int good = posix_trace_create(getppid(), NULL, &stream) == 0 && posix_trace_start(stream) == 0;
    if (!good)
        fprintf(stderr, "%s\n", oh_posix_trace_last_error());
    if (write(ready, &good, sizeof good) != sizeof good)
        return 1;
    while (wait_next(stream, &event) == 0) {
    }
    return 1;
}

static void of_killed_controllers(void)
{
    int round, good = 0, ready[2];
    trace_id_t stream;
    struct event event;
    for (round = 0; round < 2 * TRACE_SYS_MAX; round++) {
        int started = 0;
        pid_t child;
        if (pipe(ready) != 0)
            exit(2);
        fflush(stdout);
        child = fork();
        if (child == 0)
            _exit(controls_parent(ready[1]));
        if (read(ready[0], &started, sizeof started) != sizeof started)
            exit(2);
        record(type, round, 20);
        kill(child, SIGKILL);
        exit_of(child);
        good += started;
        close(ready[0]);
        close(ready[1]);
    }
    check("a child can trace its parent; killed in the middle, it leaves room for others", good == round);
    stream = started_stream(NULL);
    record(type, 5, 1);
    check("the process can be traced after that",
          next_user(stream, &event, try_next) && number_of(&event) == 5);
    posix_trace_shutdown(stream);
}

int main(int count, char **arguments)
{
    type = user_type("process event");
    if (count == 3) {
        record(type, atoi(arguments[1]), atoi(arguments[2]));
        return 0;
    }
    begin_tests();
    of_children();
    of_killed_controllers();
    return tap_done();
}
