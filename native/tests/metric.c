/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_monitor. Metrics in C: by name, between two events, written down; what they
 * require; what cannot be done. That results over a recording are those of Rust is tested beside
 * the library's code, where recordings can be made.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <overhear/metric.h>

#include "tap.h"

static int requires_event(const oh_metric *metric, const char *event)
{
    const char *const *events = oh_metric_events(metric);
    while (*events)
        if (strcmp(*events++, event) == 0)
            return 1;
    return 0;
}

int main(void)
{
    oh_metric *metric;
    oh_results *results = NULL;
    oh_measurement untouched;
    oh_measurement_gap unnamed;

    tap_check(oh_metric_system(&metric, "time_slice") == 0 && metric, "a built-in metric by its name");
    tap_check(requires_event(metric, "kernel:sched_switch") && !requires_event(metric, "kernel:sched_wake"),
              "it requires exactly what it needs");
    tap_check(oh_results_get(&results, metric, "/nonexistent", 0) == -ENOENT && !results &&
                  strstr(oh_last_error(), "/nonexistent"),
              "a recording that is not there is named");
    tap_check(oh_results_get(NULL, metric, "x", 0) == -EINVAL, "results need a place");
    tap_check(oh_results_get(&results, metric, "/nonexistent", OH_ELEMENT_COST_CALIBRATED) == -ENOENT,
              "nor is it where its calibration is requested");
    oh_metric_free(metric);

    tap_check(oh_metric_user(&metric, "mine", "begins", "user:ends", false) == 0, "between two events");
    tap_check(requires_event(metric, "user:begins") && requires_event(metric, "user:ends") &&
                  requires_event(metric, "kernel:syscall"),
              "system time is left out by the sensor of system calls");
    oh_metric_free(metric);

    tap_check(oh_metric_user(&metric, "mine", "kernel:syscall [kind == 2 and number == 0]", "ends", true) == 0 &&
                  requires_event(metric, "kernel:syscall") && requires_event(metric, "user:ends"),
              "from an event of the kernel");
    oh_metric_free(metric);
    tap_check(oh_metric_user(&metric, "mine", "begins", "kernel:cpu_idle", true) == -EINVAL && !metric &&
                  strstr(oh_last_error(), "names no task"),
              "not to one of no thread");
    tap_check(oh_metric_user(&metric, "mine", "begins", "kernel:irq [no == 1]", true) == -EINVAL && !metric &&
                  strstr(oh_last_error(), "`kernel:irq [no == 1]` is no event: line 1, column 13"),
              "a mistake in an event has its place");
    tap_check(oh_metric_parse(&metric, "metric m\nevent a = user:a\nstate 0 out\nstate 1 begin\nstate 2 in\n"
                                       "state 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: a, i\n") == 0,
              "a metric that is written down");
    oh_metric_free(metric);
    tap_check(oh_metric_parse(&metric, "metric m\nnonsense\n") == -EINVAL && !metric &&
                  strstr(oh_last_error(), "line 2"),
              "a mistake has its place");
    tap_check(oh_metric_system(&metric, "nonsense") == -ENOENT && !metric &&
                  strstr(oh_last_error(), "there are wakeup_latency"),
              "a name that is not known is answered with those that are");
    tap_check(oh_metric_system(NULL, "time_slice") == -EINVAL && oh_metric_system(&metric, NULL) == -EINVAL,
              "arguments must be there");
    tap_check(oh_results_count(NULL) == 0 && oh_results_at(NULL, 0, &untouched) == -EINVAL &&
                  oh_metric_events(NULL) == NULL && oh_results_missed(NULL) == 0 && oh_results_gaps(NULL) == 0 &&
                  oh_results_gap_at(NULL, 0, &unnamed) == -EINVAL,
              "NULL has no results");
    oh_metric_free(NULL);
    oh_results_free(NULL);
    return tap_done();
}
