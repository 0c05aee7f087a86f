/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace; sanitizes: threads. Eight threads write as fast as they can, while
 * timers at 10 kHz interrupt each of them, and the handlers write, too.
 *
 * Each writer numbers its events. The numbers of each writer ascend, the data is whole, times do
 * not decrease, and if a number is missing the stream has reported a loss.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include <overhear/trace.h>

#include "tap.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { THREADS = 8, HANDLED = 300, PERIOD_NS = 100000, WORDS = 6 };

/* The data of an event: all words follow from the first two. */
struct sample {
    uint64_t writer, number;
    uint64_t words[WORDS];
};

static trace_event_id_t user;
static trace_id_t stream;
static __thread uint64_t thread_number;
static __thread volatile uint64_t handled;
/* Events written, by thread: by its program and by its handler. */
static volatile uint64_t written[2 * THREADS];

/* ThreadSanitizer delivers signals in calls that may block, and nowhere else. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LET_SIGNALS_IN() usleep(1)
#endif
#endif
#ifndef LET_SIGNALS_IN
#define LET_SIGNALS_IN() ((void)0)
#endif

static void put(uint64_t writer)
{
    struct sample sample;
    int word;
    sample.writer = writer;
    sample.number = written[writer];
    for (word = 0; word < WORDS; word++)
        sample.words[word] = sample.writer * 1000003 + sample.number * 17 + (uint64_t)word;
    posix_trace_event(user, &sample, sizeof sample);
    written[writer]++;
}

static void handle(int number)
{
    (void)number;
    handled++;
    put(2 * thread_number + 1);
}

static void *write_through_the_storm(void *argument)
{
    struct itimerspec often;
    struct sigevent event;
    timer_t timer;
    int armed;
    thread_number = (uint64_t)(size_t)argument;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN;
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    memset(&often, 0, sizeof often);
    often.it_interval.tv_nsec = often.it_value.tv_nsec = PERIOD_NS;
    armed = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
            timer_settime(timer, 0, &often, NULL) == 0;
    while (armed && handled < HANDLED) {
        put(2 * thread_number);
        LET_SIGNALS_IN();
    }
    if (armed)
        timer_delete(timer);
    return NULL;
}

static struct {
    uint64_t users, starts, stops, overflows, resumes, others;
    uint64_t next[2 * THREADS]; /* the number that each writer's next event has at least */
    int torn, disordered, went_back;
} found;

static void look_at(const struct posix_trace_event_info *event, const struct sample *sample, size_t size)
{
    static struct timespec last;
    const struct timespec *now = &event->posix_timestamp;
    int word;
    found.went_back += now->tv_sec < last.tv_sec ||
                       (now->tv_sec == last.tv_sec && now->tv_nsec < last.tv_nsec);
    last = *now;
    if (event->posix_event_id != user) {
        found.starts += event->posix_event_id == POSIX_TRACE_START;
        found.stops += event->posix_event_id == POSIX_TRACE_STOP;
        found.overflows += event->posix_event_id == POSIX_TRACE_OVERFLOW;
        found.resumes += event->posix_event_id == POSIX_TRACE_RESUME;
        return;
    }
    found.users++;
    if (size != sizeof *sample || sample->writer >= 2 * THREADS) {
        found.torn++;
        return;
    }
    for (word = 0; word < WORDS; word++)
        found.torn += sample->words[word] !=
                      sample->writer * 1000003 + sample->number * 17 + (uint64_t)word;
    found.disordered += sample->number < found.next[sample->writer];
    found.next[sample->writer] = sample->number + 1;
}

/* Reads until the stream is shut down. */
static void *read_all(void *argument)
{
    (void)argument;
    for (;;) {
        struct posix_trace_event_info event;
        struct sample sample;
        size_t size;
        int unavailable;
        int error = posix_trace_getnext_event(stream, &event, &sample, sizeof sample, &size, &unavailable);
        if (error == EINTR)
            continue;
        if (error != 0)
            return NULL;
        look_at(&event, &sample, size);
        if (event.posix_event_id == POSIX_TRACE_STOP) {
            int automatic;
            memcpy(&automatic, &sample, sizeof automatic);
            if (!automatic)
                return NULL;
        }
    }
}

static void storm(int policy, const char *name)
{
    struct posix_trace_status_info status;
    pthread_t threads[THREADS], reader;
    trace_attr_t attributes;
    sigset_t signals, before;
    uint64_t sum = 0;
    size_t thread;
    memset(&found, 0, sizeof found);
    memset((void *)written, 0, sizeof written);
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setstreamfullpolicy(&attributes, policy);
    posix_trace_attr_setstreamsize(&attributes, 128 * 1024);
    posix_trace_create(0, &attributes, &stream);
    posix_trace_attr_destroy(&attributes);
    posix_trace_start(stream);
    pthread_create(&reader, NULL, read_all, NULL);
    for (thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], NULL, write_through_the_storm, (void *)thread);
    for (thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    /* A full stream is stopped by the reader only when it has read everything. */
    do {
        posix_trace_stop(stream);
        posix_trace_get_status(stream, &status);
        found.others |= status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN;
        usleep(1000);
    } while (status.posix_stream_status == POSIX_TRACE_RUNNING ||
             status.posix_stream_full_status == POSIX_TRACE_FULL);
    pthread_join(reader, NULL);
    posix_trace_get_status(stream, &status);
    found.others |= status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN;
    posix_trace_shutdown(stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (thread = 0; thread < 2 * THREADS; thread++)
        sum += written[thread];
    printf("# %llu written, %llu read, %llu overflows, %llu stops\n", (unsigned long long)sum,
           (unsigned long long)found.users, (unsigned long long)found.overflows,
           (unsigned long long)found.stops);
    tap_check(found.torn == 0 && found.disordered == 0 && found.went_back == 0, name);
    tap_check(found.users == sum || (found.others && found.overflows + found.stops > 1),
              "missing events are reported");
    /* A looping stream may replace the start before its reader comes to it. */
    tap_check(found.users > 0 && found.users <= sum && found.overflows - found.resumes <= 1 &&
                  (found.starts == found.stops || (policy == POSIX_TRACE_LOOP && found.starts < found.stops)),
              "nothing is reported twice");
}

int main(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    sigaction(SIGRTMIN, &action, NULL);
    posix_trace_eventid_open("posix_storm_user", &user);
    storm(POSIX_TRACE_LOOP, "a looping stream keeps whole events in order");
    storm(POSIX_TRACE_UNTIL_FULL, "so does one that stops when it is full");
    return tap_done();
}
