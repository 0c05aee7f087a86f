/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Metrics live and over a recording, for C11 and C++17: the interface of [POSIX-metrics, section
 * 2].
 *
 * A metric measures a time property of a system or a program from their events. It is built in, or
 * the execution time between two events of a program, or written as text (docs/metrics.md has the
 * format). It lists the events that it requires, so that only these are observed. The same engine
 * evaluates recordings of `overhear run --out` and running monitors.
 *
 * Over a recording:
 *
 *     oh_metric *metric;
 *     oh_results *results;
 *     if (oh_metric_user(&metric, "request", "begin", "end", false) != 0 ||
 *         oh_results_get(&results, metric, "recorded", 0) != 0)
 *         fprintf(stderr, "%s\n", oh_last_error());
 *     for (size_t i = 0; i < oh_results_count(results); i++) {
 *         oh_measurement one;
 *         oh_results_at(results, i, &one);
 *         printf("%u %llu\n", one.task, (unsigned long long)one.length_ns);
 *     }
 *     oh_results_free(results);
 *     oh_metric_free(metric);
 *
 * The functions are in the same library as those of monitor.h: -loverhear_monitor.
 *
 * Live, in a monitor of monitor.h, of a process' system calls by a kernel monitor of kernel.h:
 *
 *     oh_kernel_monitor_options kernel_options = {.sensors = oh_metric_kernel_sensors(metric)};
 *     oh_monitor_options options = {.required = oh_metric_events(metric)};
 *     oh_kernel_monitor_create(&kernel, &kernel_options, &status);
 *     oh_kernel_process_monitor(kernel, process);
 *     oh_monitor_start(&monitor, &options);
 *     int number = oh_monitor_measure(monitor, metric, 0);
 *     oh_monitor_add_kernel(monitor, kernel, oh_kernel_monitor_resume, oh_kernel_monitor_read,
 *                           status.max_events);
 *     ...
 *     oh_monitor_wait(monitor, oh_now_ns(), 1000000000);
 *     oh_monitor_results(monitor, number, &results);
 *
 * All functions that return an int return a negative errno on failure; oh_last_error returns the
 * message.
 */
#ifndef OVERHEAR_METRIC_H
#define OVERHEAR_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "measurement.h"
#include "monitor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A metric, and its measurements; created and freed by the functions below. */
typedef struct oh_metric oh_metric;
typedef struct oh_results oh_results;

/* Value of element_cost_ns: the cost per sensor that `overhear calibrate` measured before the
   recording. */
#define OH_ELEMENT_COST_CALIBRATED UINT64_MAX

/*
 * oh_metric_system: the built-in metric of this name.
 *
 * Ownership: *out belongs to the caller until oh_metric_free.
 * Returns 0, -EINVAL for missing arguments, or -ENOENT: the message lists the built-in metrics.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_metric_system(oh_metric **out, const char *name);

/*
 * oh_metric_user: the execution time of a task from one of its events to another. An event is the
 * id of a program's sensor, with or without the prefix `user:`, or an event as metrics declare it:
 * `kernel:probe/SYMBOL`, `user:queue [depth == 0]`, `kernel:syscall [kind == 2 and number == 0]`.
 * Both may be the same. Times in which the task is off the CPU or interrupted are excluded; without
 * `include_system` also times in system calls and page faults.
 *
 * Ownership and fixed lines are those of oh_metric_system. Returns 0 or -EINVAL.
 */
int oh_metric_user(oh_metric **out, const char *name, const char *initial, const char *final_,
                   bool include_system);

/*
 * oh_metric_parse: the metric of a specification, the content of a .metric file.
 *
 * Ownership and fixed lines are those of oh_metric_system. Returns 0 or -EINVAL: the message names
 * line and column.
 */
int oh_metric_parse(oh_metric **out, const char *text);

/* Frees the metric. NULL is allowed. The fixed lines are those of oh_metric_system. */
void oh_metric_free(oh_metric *metric);

/*
 * oh_metric_events: the events that the metric requires, as `kernel:HOOK` and `user:SENSOR`, in a
 * list that ends with NULL. `overhear run --metric` enables the sensors of these events.
 *
 * Ownership: the list belongs to the metric. Returns NULL for NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: wait-free.
 */
const char *const *oh_metric_events(const oh_metric *metric);

/*
 * oh_metric_kernel_sensors: the kernel sensors that the metric requires, for `sensors` of
 * oh_kernel_monitor_options; "" if it requires none. Other sensors of scheduling stay disabled.
 *
 * Ownership and fixed lines are those of oh_metric_events. Returns NULL for NULL.
 */
const char *oh_metric_kernel_sensors(const oh_metric *metric);

/*
 * oh_monitor_measure: adds a metric to a monitor. It evaluates the elements that are written from
 * now on. element_cost_ns is as for oh_results_get, but not OH_ELEMENT_COST_CALIBRATED: only
 * recordings have a calibration.
 *
 * Ownership: the metric is copied. At most a million measurements are kept until oh_monitor_results
 * takes them.
 * Returns the metric's number among the monitor's updates, for oh_monitor_results, _status and
 * _remove, -EDEADLK, or -EINVAL.
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: may
 * block.
 */
int oh_monitor_measure(oh_monitor *monitor, const oh_metric *metric, uint64_t element_cost_ns);

/*
 * oh_monitor_results: takes the measurements that were completed since the last call. After
 * oh_monitor_wait(t) these are all that were completed before t. Measurements that are still
 * running are returned by a later call. oh_last_error then names the required events without a
 * stream so far; else it is empty.
 *
 * Ownership: *out belongs to the caller until oh_results_free, also after the monitor has ended.
 * Returns 0, -EDEADLK, or -EINVAL if there is no such metric; then *out is NULL.
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: may
 * block.
 */
int oh_monitor_results(oh_monitor *monitor, int metric, oh_results **out);

/*
 * oh_results_get: evaluates a metric over a recording. element_cost_ns is the time that the
 * observed task needs to write one element; it is subtracted for each element of the task in a
 * measurement. OH_ELEMENT_COST_CALIBRATED subtracts the calibrated cost of each element's sensor.
 *
 * Ownership: *out belongs to the caller until oh_results_free, also after the metric is freed.
 * Returns 0, -EINVAL for missing arguments, -ENOENT if there is no readable recording, or -ENODATA
 * if it has no stream of a required event, or lacks the requested calibration; then *out is NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_results_get(oh_results **out, const oh_metric *metric, const char *directory,
                   uint64_t element_cost_ns);

/* Frees the results. NULL is allowed. The fixed lines are those of oh_results_get. */
void oh_results_free(oh_results *results);

/*
 * oh_results_count: the number of measurements; 0 for NULL.
 * Thread safety: any thread. Async-signal safety: yes. Real-time class: wait-free.
 */
size_t oh_results_count(const oh_results *results);

/*
 * oh_results_at: a measurement, by its number in the order in which they were completed.
 * Returns 0, or -EINVAL if there is none; then *out is untouched. The fixed lines are those of
 * oh_results_count.
 */
int oh_results_at(const oh_results *results, size_t number, oh_measurement *out);

/*
 * oh_results_gaps: the number of listed gaps that fell into measurements: for each measurement the
 * first four that were known when it was completed, and those that became known later, at most a
 * million. `missed` of a measurement counts all. The fixed lines are those of oh_results_count.
 */
size_t oh_results_gaps(const oh_results *results);

/*
 * oh_results_gap_at: a gap that fell into a measurement, by its number in the order of detection.
 * Returns 0, or -EINVAL if there is none; then *out is untouched. The fixed lines are those of
 * oh_results_count.
 */
int oh_results_gap_at(const oh_results *results, size_t number, oh_measurement_gap *out);

/*
 * oh_results_missed: the number of elements of the metric's events that were missed in the whole
 * recording or run of the monitor, or found no room: measurements may be missing because of them.
 * The fixed lines are those of oh_results_count.
 */
uint64_t oh_results_missed(const oh_results *results);

#ifdef __cplusplus
}
#endif

#endif /* OVERHEAR_METRIC_H */
