/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Metrics over POSIX trace streams, for C11 and C++17: the package Metrics of [POSIX-metrics,
 * section 2].
 *
 * A metric measures a time property of a system or a program from the events of a trace stream. It
 * is built in, or the execution time between two events of a program, or written as text.
 * oh_trace_metric_events_required stores the event types that it requires, for the filter.
 *
 * The program that is measured:
 *
 *     oh_trace_metric *metric;
 *     trace_event_set_t all, required;
 *     oh_trace_metric_system(&metric, "Delay Until Wakeup");
 *     posix_trace_create_withlog(0, NULL, file, &stream);
 *     oh_trace_metric_events_required(metric, stream, &required);
 *     posix_trace_eventset_fill(&all, POSIX_TRACE_ALL_EVENTS);
 *     posix_trace_set_filter(stream, &all, POSIX_TRACE_SET_EVENTSET);
 *     posix_trace_set_filter(stream, &required, POSIX_TRACE_SUB_EVENTSET);
 *     posix_trace_start(stream);
 *     ...
 *     posix_trace_shutdown(stream);
 *
 * The analysis:
 *
 *     oh_trace_results *results = NULL;
 *     posix_trace_open(file, &stream);
 *     oh_trace_results_get(&results, metric, stream, 0);
 *     for (size_t i = 0; i < oh_trace_results_count(results); i++) {
 *         oh_measurement one;
 *         oh_trace_results_at(results, i, &one);
 *         printf("%u %llu\n", one.task, (unsigned long long)one.length_ns);
 *     }
 *     oh_trace_results_free(results);
 *     oh_trace_metric_free(metric);
 *
 * The engine and the metrics are those of metric.h, which has metrics over recordings and live
 * monitors. Objects of the two headers cannot be exchanged.
 *
 * The functions are in the library of trace.h: -loverhear_posixtrace. All functions that return an
 * int return 0 or an error number, and leave errno as it was; oh_posix_trace_last_error returns the
 * message.
 */
#ifndef OVERHEAR_METRICS_TRACE_H
#define OVERHEAR_METRICS_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "measurement.h"
#include "trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A metric, and its measurements; created and freed by the functions below. */
typedef struct oh_trace_metric oh_trace_metric;
typedef struct oh_trace_results oh_trace_results;

/*
 * oh_trace_metric_system: the built-in metric of this name, for example "delay_until_wakeup".
 * Capital letters and spaces are allowed: "Delay Until Wakeup".
 *
 * Ownership: *out belongs to the caller until oh_trace_metric_free.
 * Returns 0, EINVAL for missing arguments, or ENOENT: the message lists the built-in metrics.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_trace_metric_system(oh_trace_metric **out, const char *name);

/*
 * oh_trace_metric_user: the execution time of a task from one of its events to another. The event
 * types are those of the calling process, from posix_trace_eventid_open, or of the kernel; both may
 * be the same. In a stream they are found by their names. Times in which the task is off the CPU or
 * interrupted are excluded; without `include_system` also times in system calls and page faults.
 *
 * Ownership and fixed lines are those of oh_trace_metric_system. Returns 0, or EINVAL if an event
 * type has no name in this process, or is one of trace streams such as POSIX_TRACE_START.
 */
int oh_trace_metric_user(oh_trace_metric **out, const char *name, trace_event_id_t initial,
                         trace_event_id_t final_, bool include_system);

/*
 * oh_trace_metric_user_named: oh_trace_metric_user with the names of the event types, for programs
 * that only analyse.
 *
 * Ownership and fixed lines are those of oh_trace_metric_system. Returns 0 or EINVAL.
 */
int oh_trace_metric_user_named(oh_trace_metric **out, const char *name, const char *initial,
                               const char *final_, bool include_system);

/*
 * oh_trace_metric_parse: the metric of a specification, the content of a .metric file
 * (docs/metrics.md). Its events `user:NAME` are user event types; docs/posix-metrics.md lists their
 * fields.
 *
 * Ownership and fixed lines are those of oh_trace_metric_system. Returns 0 or EINVAL: the message
 * names line and column.
 */
int oh_trace_metric_parse(oh_trace_metric **out, const char *text);

/* Frees the metric. NULL is allowed. The fixed lines are those of oh_trace_metric_system. */
void oh_trace_metric_free(oh_trace_metric *metric);

/*
 * oh_trace_metric_events_required: the event types of a stream that the metric requires, for
 * posix_trace_set_filter. In an active stream, names of user event types that the traced process
 * has not defined so far are defined. In a pre-recorded stream, names that the stream does not have
 * are left out.
 *
 * Returns 0, EINVAL for missing arguments or an invalid stream, or ENOENT if the traced process has
 * TRACE_USER_EVENT_MAX user event types already.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_trace_metric_events_required(const oh_trace_metric *metric, trace_id_t trid,
                                    trace_event_set_t *set);

/*
 * oh_trace_results_get: evaluates a metric over a stream.
 *
 * - A pre-recorded stream is scanned from its first event to its last. Afterwards it is rewound.
 * - Of an active stream without a log, all present events are taken, as by
 *   posix_trace_trygetnext_event: no later call returns them. If *results is not NULL,
 *   the evaluation continues where the previous call for these results ended, and new measurements
 *   are appended.
 *
 * element_cost_ns is the time that the traced task needs to record one event; it is subtracted for
 * each event of the task in a measurement.
 *
 * Ownership: *results is NULL, or came from an earlier call. It belongs to the caller until
 * oh_trace_results_free, also after the metric is freed and the stream is closed.
 * Returns 0; EINVAL for missing arguments, an invalid stream, an active stream with a log, or
 * results of another metric or stream; ENODATA if a pre-recorded stream has no event type of a
 * required name, or none of the required events of the kernel; then *results is untouched.
 * Thread safety: one thread at a time per results. Async-signal safety: no. Real-time class: may
 * block.
 */
int oh_trace_results_get(oh_trace_results **results, const oh_trace_metric *metric, trace_id_t trid,
                         uint64_t element_cost_ns);

/*
 * oh_trace_results_get_several: evaluates several metrics over the same events: results[i] are of
 * metrics[i]. Active streams need it, because their events are taken once. All results are NULL, or
 * all came from earlier calls with the same metrics. Otherwise it is as oh_trace_results_get.
 */
int oh_trace_results_get_several(oh_trace_results **results, const oh_trace_metric *const *metrics,
                                 size_t count, trace_id_t trid, uint64_t element_cost_ns);

/* Frees the results. NULL is allowed. The fixed lines are those of oh_trace_results_get. */
void oh_trace_results_free(oh_trace_results *results);

/*
 * oh_trace_results_count: the number of measurements; 0 for NULL.
 * Thread safety: any thread. Async-signal safety: yes. Real-time class: wait-free.
 */
size_t oh_trace_results_count(const oh_trace_results *results);

/*
 * oh_trace_results_at: a measurement, by its number from 0 on, in the order in which they were
 * completed. Its times are CLOCK_MONOTONIC; oh_trace_results_realtime_offset_ns added to them gives
 * the time stamps of the stream.
 * Returns 0, or EINVAL if there is none; then *out is untouched. The fixed lines are those of
 * oh_trace_results_count.
 */
int oh_trace_results_at(const oh_trace_results *results, size_t number, oh_measurement *out);

/*
 * oh_trace_results_realtime_offset_ns: CLOCK_REALTIME minus CLOCK_MONOTONIC when the stream was
 * created; 0 for NULL. The fixed lines are those of oh_trace_results_count.
 */
int64_t oh_trace_results_realtime_offset_ns(const oh_trace_results *results);

/*
 * oh_trace_results_gaps: the number of listed gaps that fell into measurements: for each
 * measurement the first four that were known when it was completed, and those that became known
 * later, at most a million. `missed` of a measurement counts all. The fixed lines are those of
 * oh_trace_results_count.
 */
size_t oh_trace_results_gaps(const oh_trace_results *results);

/*
 * oh_trace_results_gap_at: a gap that fell into a measurement, by its number in the order of
 * detection. The values of `cause` are OH_GAP_* of update.h.
 * Returns 0, or EINVAL if there is none; then *out is untouched. The fixed lines are those of
 * oh_trace_results_count.
 */
int oh_trace_results_gap_at(const oh_trace_results *results, size_t number, oh_measurement_gap *out);

/*
 * oh_trace_results_missed: the number of events that were lost in the whole stream: measurements
 * may be missing because of them. The types of lost events are not recorded, so each lost event is
 * counted once for each stream of the metric's events. The fixed lines are those of
 * oh_trace_results_count.
 */
uint64_t oh_trace_results_missed(const oh_trace_results *results);

#ifdef __cplusplus
}
#endif

#endif /* OVERHEAR_METRICS_TRACE_H */
