/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: reading of events. */
#define _GNU_SOURCE 1
#include <pthread.h>

#include "posix.h"

static const trace_id_t NO_STREAM = (trace_id_t)-1;

static int timed_next(trace_id_t stream, struct event *event, const struct timespec *until)
{
    memset(event, 0, sizeof *event);
    event->unavailable = -1;
    return CALL(posix_trace_timedgetnext_event(stream, &event->info, event->data, sizeof event->data,
                                               &event->length, &event->unavailable, until));
}

static struct timespec after_ms(long milliseconds)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += milliseconds / 1000;
    time.tv_nsec += milliseconds % 1000 * 1000000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

static int has_passed(const struct timespec *time)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec > time->tv_sec || (now.tv_sec == time->tv_sec && now.tv_nsec >= time->tv_nsec);
}

static int not_earlier(const struct timespec *late, const struct timespec *early)
{
    return late->tv_sec > early->tv_sec || (late->tv_sec == early->tv_sec && late->tv_nsec >= early->tv_nsec);
}

static trace_event_id_t type;

/* Records a number after a while. */
static void *records_later(void *argument)
{
    usleep(20000);
    record(type, *(int *)argument, 1);
    return NULL;
}

static pthread_t recorder(int *number)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, records_later, number) != 0)
        exit(2);
    return thread;
}

/* A stream that has nothing to be read, and runs. */
static trace_id_t read_stream(const trace_attr_t *attr)
{
    trace_id_t stream = started_stream(attr);
    struct event event;
    if (try_next(stream, &event) != 0 || event.info.posix_event_id != POSIX_TRACE_START)
        exit(2);
    return stream;
}

static trace_id_t log_of(int numbers)
{
    trace_attr_t attr;
    int file = new_file();
    trace_id_t stream;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    record(type, 0, numbers);
    CALL(posix_trace_shutdown(stream));
    return open_log(file);
}

static void of_waiting(void)
{
    trace_id_t log = log_of(3), stream = read_stream(NULL);
    const struct timespec past = {1, 0}, wrong = {1, 1000000000};
    struct timespec until;
    struct event event;
    pthread_t thread;
    int number = 41, found, before;
    record(type, 1, 3);
    check("next-01 posix_trace_getnext_event reports an event of an active stream",
          wait_next(stream, &event) == 0 && number_of(&event) == 1);
    check("next-02 It sets unavailable to zero", event.unavailable == 0);
    check("next-03 posix_trace_trygetnext_event reports an event of an active stream",
          try_next(stream, &event) == 0 && number_of(&event) == 2);
    check("next-04 It sets unavailable to zero, too", event.unavailable == 0);
    until = after_ms(60000);
    check("next-05 posix_trace_timedgetnext_event reports an event of an active stream",
          timed_next(stream, &event, &until) == 0 && number_of(&event) == 3 && event.unavailable == 0);
    check("next-06 Without an event, posix_trace_trygetnext_event does not wait, and sets unavailable",
          try_next(stream, &event) == 0 && event.unavailable != 0);
    thread = recorder(&number);
    found = wait_next(stream, &event) == 0 && event.unavailable == 0 && number_of(&event) == 41;
    pthread_join(thread, NULL);
    check("next-07 posix_trace_getnext_event waits for an event of an active stream", found);
    number = 42;
    until = after_ms(60000);
    thread = recorder(&number);
    found = timed_next(stream, &event, &until) == 0 && event.unavailable == 0 && number_of(&event) == 42;
    pthread_join(thread, NULL);
    check("next-08 posix_trace_timedgetnext_event waits for an event", found);
    until = after_ms(30);
    found = timed_next(stream, &event, &until);
    check("next-09 Without an event until the timeout, it is ETIMEDOUT", found == ETIMEDOUT);
    check("next-10 The timeout is an absolute time of CLOCK_REALTIME, and has passed then", has_passed(&until));
    check("next-11 A timeout that has passed at the time of the call is ETIMEDOUT",
          timed_next(stream, &event, &past) == ETIMEDOUT);
    record(type, 7, 2);
    check("next-12 It never fails by its timeout while there is an event",
          timed_next(stream, &event, &past) == 0 && number_of(&event) == 7);
    check("next-13 An invalid timeout does not matter while there is an event",
          timed_next(stream, &event, &wrong) == 0 && number_of(&event) == 8);
    check("next-14 Without an event, an invalid timeout is EINVAL",
          timed_next(stream, &event, &wrong) == EINVAL && timed_next(stream, &event, NULL) == EINVAL);
    for (before = 0; wait_next(log, &event) == 0 && event.unavailable == 0;)
        before += event.info.posix_event_id == type && number_of(&event) == before;
    check("next-15 posix_trace_getnext_event reports the events of a log", before == 3);
    check("next-16 At the end of a log, it sets unavailable", event.unavailable > 0);
    check("next-17 posix_trace_trygetnext_event of a log is EINVAL", try_next(log, &event) == EINVAL);
    check("next-18 An id of no stream is EINVAL",
          wait_next(NO_STREAM, &event) == EINVAL && try_next(NO_STREAM, &event) == EINVAL &&
              timed_next(NO_STREAM, &event, &past) == EINVAL);
    CALL(posix_trace_close(log));
    CALL(posix_trace_shutdown(stream));
}

static int next_in(trace_id_t stream, void *data, size_t bytes, struct event *event)
{
    memset(event, 0, sizeof *event);
    event->unavailable = -1;
    return CALL(posix_trace_trygetnext_event(stream, &event->info, data, bytes, &event->length,
                                             &event->unavailable));
}

static void of_contents(void)
{
    trace_attr_t attr;
    trace_id_t stream, log;
    struct event event;
    struct timespec last = {0, 0};
    const char text[] = "abcdefghij";
    char data[32];
    int at, number = 0, ordered = 1, file = new_file();
    posix_trace_attr_init(&attr);
    posix_trace_attr_setmaxdatasize(&attr, 8);
    stream = read_stream(&attr);
    posix_trace_event(type, text, 7);
    memset(data, '-', sizeof data);
    check("next-19 The information of the event is stored", next_in(stream, data, 16, &event) == 0 &&
                                                                event.info.posix_event_id == type &&
                                                                event.info.posix_pid == getpid());
    check("next-20 All data is stored where there is room, and no more",
          event.length == 7 && memcmp(data, "abcdefg-", 8) == 0);
    check("next-21 The event is POSIX_TRACE_NOT_TRUNCATED then",
          event.info.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED);
    posix_trace_event(type, text, 8);
    check("next-22 Room for exactly the data is enough",
          next_in(stream, data, 8, &event) == 0 && event.length == 8 &&
              event.info.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED);
    posix_trace_event(type, text, 10);
    check("next-23 An event that was cut when it was recorded is POSIX_TRACE_TRUNCATED_RECORD",
          next_in(stream, data, sizeof data, &event) == 0 && event.length == 8 &&
              event.info.posix_truncation_status == POSIX_TRACE_TRUNCATED_RECORD);
    posix_trace_event(type, text, 6);
    memset(data, '-', sizeof data);
    check("next-24 Data is cut to the room, and its length is the room",
          next_in(stream, data, 4, &event) == 0 && event.length == 4 && memcmp(data, "abcd-", 5) == 0);
    check("next-25 The event is POSIX_TRACE_TRUNCATED_READ then",
          event.info.posix_truncation_status == POSIX_TRACE_TRUNCATED_READ);
    posix_trace_event(type, text, 10);
    check("next-26 An event that was cut at both times is POSIX_TRACE_TRUNCATED_READ",
          next_in(stream, NULL, 0, &event) == 0 && event.length == 0 &&
              event.info.posix_truncation_status == POSIX_TRACE_TRUNCATED_READ);
    record(type, 0, 500);
    for (at = 0; try_next(stream, &event) == 0 && event.unavailable == 0; at++) {
        ordered &= not_earlier(&event.info.posix_timestamp, &last);
        number += number_of(&event) == at;
        last = event.info.posix_timestamp;
    }
    check("next-27 Events are reported from the oldest on, in the order in which they were recorded",
          number == 500 && at == 500);
    check("next-28 Their times do not decrease", ordered);
    check("next-29 An event that was reported is not reported again",
          try_next(stream, &event) == 0 && event.unavailable != 0);
    CALL(posix_trace_shutdown(stream));
    small_stream(&attr, POSIX_TRACE_UNTIL_FULL, 16);
    stream = read_stream(&attr);
    for (at = number = 0; at < 200; at++) {
        record(type, at, 1);
        number += try_next(stream, &event) == 0 && number_of(&event) == at;
    }
    check("next-30 The room of an event that was reported is used for later events", number == 200);
    CALL(posix_trace_shutdown(stream));
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    check("next-31 A stream with log cannot be read before it is a log: EINVAL",
          wait_next(stream, &event) == EINVAL && try_next(stream, &event) == EINVAL);
    record(type, 3, 1);
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    check("next-32 The log has the information of its events",
          next_user(log, &event, wait_next) && event.info.posix_event_id == type &&
              event.info.posix_pid == getpid() &&
              pthread_equal(event.info.posix_thread_id, pthread_self()) &&
              event.info.posix_prog_address != NULL && event.info.posix_timestamp.tv_sec >= last.tv_sec);
    CALL(posix_trace_close(log));
    close(file);
}

static void ignores(int number)
{
    (void)number;
}

/* Signals to the thread until it has returned. */
struct interruption {
    pthread_t target;
    volatile int done;
};

static void *interrupts(void *argument)
{
    struct interruption *interruption = (struct interruption *)argument;
    while (!__atomic_load_n(&interruption->done, __ATOMIC_ACQUIRE)) {
        pthread_kill(interruption->target, SIGUSR2);
        usleep(2000);
    }
    return NULL;
}

static void of_signals(void)
{
    trace_id_t stream = read_stream(NULL);
    struct interruption interruption;
    struct sigaction action;
    struct timespec until = after_ms(60000);
    struct event event;
    pthread_t thread;
    int error;
    memset(&action, 0, sizeof action);
    action.sa_handler = ignores;
    sigaction(SIGUSR2, &action, NULL);
    interruption.target = pthread_self();
    interruption.done = 0;
    if (pthread_create(&thread, NULL, interrupts, &interruption) != 0)
        exit(2);
    error = wait_next(stream, &event);
    check("next-33 posix_trace_getnext_event that a signal interrupts is EINTR", error == EINTR);
    error = timed_next(stream, &event, &until);
    check("next-34 posix_trace_timedgetnext_event that a signal interrupts is EINTR", error == EINTR);
    __atomic_store_n(&interruption.done, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    record(type, 9, 1);
    check("next-35 An interrupted call has no effect: the next event is reported",
          wait_next(stream, &event) == 0 && number_of(&event) == 9);
    CALL(posix_trace_shutdown(stream));
    check_errno("next-36 Functions return zero or the error number, and leave errno as it was");
}

int main(void)
{
    begin_tests();
    type = user_type("read event");
    of_waiting();
    of_contents();
    of_signals();
    return tap_done();
}
