/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Metrics over trace streams: logs and active streams of this process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <overhear/metrics_trace.h>

#include "tap.h"

/* Of an event `work` with the value 1 to one with the value 2; `value` is the begin of the data. */
static const char *const TEXT =
    "metric mine\nevent a = user:work [value == 1]\nevent b = user:work [value == 2]\n"
    "state 0 out\nstate 1 begin\nstate 2 in\nstate 3 end\n"
    "0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: b, i\n3 -> 0: lambda\n";

static trace_event_id_t work, begins, ends;

static void record(trace_event_id_t event, uint64_t value)
{
    posix_trace_event(event, &value, sizeof value);
}

/* A measurement per round, with two other events in it. */
static void record_rounds(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        record(work, 1);
        record(begins, 0);
        record(ends, 0);
        record(work, 2);
    }
}

static int is_member(trace_event_id_t event, const trace_event_set_t *set)
{
    int found = 0;
    return posix_trace_eventset_ismember(event, set, &found) == 0 && found;
}

static void metrics_are_made_by_name(void)
{
    oh_trace_metric *metric = (oh_trace_metric *)&metric;
    errno = 77;
    tap_check(oh_trace_metric_system(&metric, "nonsense") == ENOENT && metric == NULL,
              "an unknown name is ENOENT");
    tap_check(strstr(oh_posix_trace_last_error(), "delay_until_wakeup") != NULL,
              "the message lists the built-in metrics");
    tap_check(oh_trace_metric_system(NULL, "blocked") == EINVAL, "a result pointer that is NULL is EINVAL");
    tap_check(oh_trace_metric_system(&metric, NULL) == EINVAL, "no name is EINVAL");
    tap_check(oh_trace_metric_user(&metric, "m", 300, begins, true) == EINVAL,
              "an event type without a name is EINVAL");
    tap_check(oh_trace_metric_user(&metric, "m", POSIX_TRACE_START, begins, true) == EINVAL,
              "an event type of streams is EINVAL");
    tap_check(oh_trace_metric_parse(&metric, "metric") == EINVAL, "a wrong text is EINVAL");
    tap_check(errno == 77, "errno is left as it was");
    oh_trace_metric_free(NULL);
}

static void required_events_are_a_set_for_the_filter(trace_id_t stream)
{
    oh_trace_metric *user = NULL, *system = NULL, *named = NULL;
    trace_event_set_t set, same;
    trace_event_id_t switched, call;

    tap_check(posix_trace_trid_eventid_open(stream, "sched_switch", &switched) == 0 &&
                  switched == OH_TRACE_KERNEL_FIRST,
              "sched_switch is the first event type of Linux");
    posix_trace_trid_eventid_open(stream, "syscall", &call);
    tap_check(oh_trace_metric_user(&user, "My Metric", begins, ends, false) == 0, "a user metric");
    tap_check(oh_trace_metric_events_required(user, stream, &set) == 0 && is_member(begins, &set) &&
                  is_member(ends, &set) && is_member(switched, &set) && is_member(call, &set),
              "it requires its events, context switches and system calls");
    tap_check(!is_member(work, &set), "a user metric requires no other event of the program");
    tap_check(oh_trace_metric_user_named(&named, "My Metric", "begins", "ends", false) == 0 &&
                  oh_trace_metric_events_required(named, stream, &same) == 0 &&
                  memcmp(&set, &same, sizeof set) == 0,
              "the metric by names requires the same");
    tap_check(oh_trace_metric_system(&system, "Delay Until Wakeup") == 0 &&
                  oh_trace_metric_events_required(system, stream, &set) == 0 &&
                  is_member(switched, &set) && !is_member(begins, &set),
              "a built-in metric requires events of the kernel");
    tap_check(oh_trace_metric_events_required(system, 0, &set) == EINVAL, "no stream is EINVAL");
    tap_check(oh_trace_metric_events_required(NULL, stream, &set) == EINVAL, "no metric is EINVAL");
    oh_trace_metric_free(user);
    oh_trace_metric_free(named);
    oh_trace_metric_free(system);
}

static void measurements_of_a_log_have_all_values(const oh_trace_metric *metric)
{
    oh_trace_results *results = NULL, *none = NULL;
    oh_trace_metric *system = NULL, *absent = NULL;
    oh_measurement one;
    oh_measurement_gap gap;
    trace_id_t stream, log;
    trace_event_set_t set;
    struct posix_trace_event_info first, again;
    size_t length;
    int unavailable;
    char path[] = "/tmp/overhear_posix_metrics.XXXXXX";
    int file = mkstemp(path);

    unlink(path);
    posix_trace_create_withlog(0, NULL, file, &stream);
    posix_trace_start(stream);
    record_rounds(3);
    record(work, 1);
    tap_check(oh_trace_results_get(&none, metric, stream, 0) == EINVAL && none == NULL,
              "an active stream with a log is EINVAL");
    posix_trace_shutdown(stream);
    lseek(file, 0, SEEK_SET);
    tap_check(posix_trace_open(file, &log) == 0, "the log can be opened");
    posix_trace_getnext_event(log, &first, NULL, 0, &length, &unavailable);
    tap_check(oh_trace_results_get(&results, metric, log, 0) == 0, "the log is evaluated");
    posix_trace_getnext_event(log, &again, NULL, 0, &length, &unavailable);
    tap_check(first.posix_event_id == again.posix_event_id &&
                  first.posix_timestamp.tv_nsec == again.posix_timestamp.tv_nsec,
              "an evaluated log is rewound");
    tap_check(oh_trace_results_count(results) == 3, "there are three measurements");
    int is_good = 1;
    uint64_t last = 0;
    for (size_t i = 0; i < 3; i++) {
        memset(&one, 0, sizeof one);
        is_good &= oh_trace_results_at(results, i, &one) == 0;
        is_good &= one.task == (uint32_t)gettid() && one.missed == 0;
        is_good &= one.begin_ns >= last && one.end_ns - one.begin_ns == one.length_ns;
        is_good &= one.intermediate_events == 2 && one.own_events == 2;
        last = one.end_ns;
    }
    tap_check(is_good, "each measurement has the five values");
    tap_check(oh_trace_results_at(results, 3, &one) == EINVAL, "there is no fourth one");
    tap_check(oh_trace_results_missed(results) == 0 && oh_trace_results_gaps(results) == 0 &&
                  oh_trace_results_gap_at(results, 0, &gap) == EINVAL,
              "nothing was lost");
    uint64_t stamp = (uint64_t)first.posix_timestamp.tv_sec * 1000000000u +
                     (uint64_t)first.posix_timestamp.tv_nsec;
    oh_trace_results_at(results, 0, &one);
    uint64_t realtime = one.begin_ns + (uint64_t)oh_trace_results_realtime_offset_ns(results);
    tap_check(realtime >= stamp && realtime - stamp < 60000000000u,
              "the offset makes times those of the stream");
    tap_check(oh_trace_results_get(&results, metric, log, 1) == 0 &&
                  oh_trace_results_count(results) == 3,
              "a second call measures the log again");
    oh_measurement other;
    oh_trace_results_at(results, 0, &other);
    tap_check(one.length_ns - other.length_ns == 2 || other.length_ns == 0,
              "the cost of own events is subtracted");

    oh_trace_metric_system(&system, "time_slice");
    tap_check(oh_trace_results_get(&none, system, log, 0) == ENODATA && none == NULL,
              "a log without events of the kernel is ENODATA for a metric of them");
    oh_trace_metric_user_named(&absent, "m", "absent", "ends", true);
    tap_check(oh_trace_results_get(&none, absent, log, 0) == ENODATA,
              "a log without a required user event type is ENODATA");
    tap_check(strstr(oh_posix_trace_last_error(), "absent") != NULL,
              "the message has the name of the absent event type");
    tap_check(oh_trace_metric_events_required(absent, log, &set) == 0 && is_member(ends, &set),
              "required events of a log are those that it has");
    oh_trace_metric_free(system);
    oh_trace_metric_free(absent);
    oh_trace_results_free(results);
    posix_trace_close(log);
    close(file);
}

static void results_of_an_active_stream_go_on(const oh_trace_metric *metric)
{
    oh_trace_metric *second = NULL;
    const oh_trace_metric *both[2];
    oh_trace_results *results[2] = {NULL, NULL}, *alone = NULL;
    trace_id_t stream;

    oh_trace_metric_parse(&second, TEXT);
    both[0] = metric;
    both[1] = second;
    posix_trace_create(0, NULL, &stream);
    posix_trace_start(stream);
    record_rounds(2);
    record(work, 1);
    tap_check(oh_trace_results_get_several(results, both, 2, stream, 0) == 0 &&
                  oh_trace_results_count(results[0]) == 2 &&
                  oh_trace_results_count(results[1]) == 2,
              "several metrics are evaluated over the same events");
    /* The unfinished measurement continues. */
    record(work, 2);
    record_rounds(1);
    tap_check(oh_trace_results_get_several(results, both, 2, stream, 0) == 0 &&
                  oh_trace_results_count(results[0]) == 4,
              "a later call appends measurements");
    tap_check(oh_trace_results_get(&results[0], second, stream, 0) == EINVAL &&
                  oh_trace_results_count(results[0]) == 4,
              "results of another metric are EINVAL");
    tap_check(oh_trace_results_get(&alone, metric, stream, 0) == 0 &&
                  oh_trace_results_count(alone) == 0,
              "no event is evaluated twice");
    tap_check(oh_trace_results_get_several(NULL, both, 2, stream, 0) == EINVAL,
              "no results are EINVAL");
    posix_trace_shutdown(stream);
    tap_check(oh_trace_results_get(&alone, metric, stream, 0) == EINVAL,
              "a stream that was shut down is EINVAL");
    for (int i = 0; i < 2; i++)
        oh_trace_results_free(results[i]);
    oh_trace_results_free(alone);
    oh_trace_results_free(NULL);
    tap_check(oh_trace_results_count(NULL) == 0, "no results have no measurements");
    oh_trace_metric_free(second);
}

static void losses_mark_measurements(const oh_trace_metric *metric)
{
    oh_trace_results *results = NULL;
    oh_measurement one;
    trace_attr_t attributes;
    trace_id_t stream;

    posix_trace_attr_init(&attributes);
    posix_trace_attr_setstreamsize(&attributes, 4096);
    posix_trace_create(0, &attributes, &stream);
    posix_trace_attr_destroy(&attributes);
    posix_trace_start(stream);
    record(work, 1);
    oh_trace_results_get(&results, metric, stream, 0);
    record_rounds(1000);
    oh_trace_results_get(&results, metric, stream, 0);
    memset(&one, 0, sizeof one);
    oh_trace_results_at(results, 0, &one);
    tap_check(oh_trace_results_missed(results) > 0 && one.missed > 0,
              "lost events are counted, in the result and in the measurement");
    tap_check(oh_trace_results_gaps(results) > 0, "lost events are in the list of gaps");
    oh_trace_results_free(results);
    posix_trace_shutdown(stream);
}

int main(void)
{
    oh_trace_metric *metric = NULL;
    trace_id_t stream;

    posix_trace_eventid_open("work", &work);
    posix_trace_eventid_open("begins", &begins);
    posix_trace_eventid_open("ends", &ends);
    metrics_are_made_by_name();
    posix_trace_create(0, NULL, &stream);
    required_events_are_a_set_for_the_filter(stream);
    posix_trace_shutdown(stream);
    tap_check(oh_trace_metric_parse(&metric, TEXT) == 0, "a metric is parsed from a text");
    measurements_of_a_log_have_all_values(metric);
    results_of_an_active_stream_go_on(metric);
    losses_mark_measurements(metric);
    oh_trace_metric_free(metric);
    return tap_done();
}
