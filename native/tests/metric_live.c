/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_monitor, overhear_kernel. Metrics in a monitor that runs: between two events of
 * this program, and of the kernel, by the engine that measures recordings. What is required is
 * switched on, and nothing else.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <overhear/kernel.h>
#include <overhear/metric.h>

#include "tap.h"

enum { TURNS = 50 };
static const uint64_t patience_ns = 60000000000;

/* From the first to the second phase. */
static const char *const phases = "metric phases\n"
                                  "event begins = user:phase [number == 1]\n"
                                  "event ends = user:phase [number == 2]\n"
                                  "state idle out\nstate first begin\nstate works in\nstate done end\n"
                                  "idle -> first: begins, i\nfirst -> works: lambda\n"
                                  "works -> done: ends, i\ndone -> idle: lambda\n";

struct phase {
    uint64_t number;
};

static oh_sensor *sensor(const char *id)
{
    const oh_field fields[] = {OH_FIELD_U64(struct phase, number, "")};
    oh_sensor_options options;
    oh_sensor *made = NULL;

    memset(&options, 0, sizeof(options));
    options.id = id;
    options.type = "phase";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct phase);
    if (oh_sensor_register(&made, &options) != 0)
        fprintf(stderr, "%s\n", oh_last_error());
    return made;
}

static void write_phase(oh_sensor *to, uint64_t number)
{
    struct phase phase;

    phase.number = number;
    oh_sensor_put(to, &phase);
}

/* The measurements of a metric until now. */
static oh_results *results_of(oh_monitor *monitor, int metric)
{
    oh_results *results = NULL;

    if (oh_monitor_wait(monitor, oh_now_ns(), patience_ns) != 0 ||
        oh_monitor_results(monitor, metric, &results) != 0)
        fprintf(stderr, "%s\n", oh_last_error());
    return results;
}

static void of_this_program(oh_monitor *monitor, const oh_metric *metric, oh_sensor *phase)
{
    int number = oh_monitor_measure(monitor, metric, 0);
    oh_results *results;
    oh_measurement one;
    oh_update_status status;

    tap_check(number >= 0, "a metric is added to a monitor that runs");
    results = results_of(monitor, number);
    tap_check(results && oh_results_count(results) == 0, "nothing was measured before anything was written");
    oh_results_free(results);
    for (int turn = 0; turn < TURNS; turn++) {
        write_phase(phase, 1);
        write_phase(phase, 2);
    }
    write_phase(phase, 1);
    results = results_of(monitor, number);
    if (oh_results_missed(results) > 0) {
        /* A writer was displaced between stamp and publication, for longer than the monitor
           waits. */
        tap_skip("measurements of this program", "the machine was late");
        oh_results_free(results);
        return;
    }
    tap_check(oh_results_count(results) == TURNS, "every measurement that is complete is there");
    tap_check(oh_results_at(results, TURNS - 1, &one) == 0 && one.task == (uint32_t)getpid() &&
                  one.length_ns == one.end_ns - one.begin_ns && one.end_ns <= oh_now_ns(),
              "it has its task and times");
    oh_results_free(results);
    write_phase(phase, 2);
    results = results_of(monitor, number);
    tap_check(oh_results_count(results) == 1 || oh_results_missed(results) > 0, "they are taken once; the one that was running came later");
    oh_results_free(results);
    tap_check(oh_monitor_status(monitor, number, &status) == 0 &&
                  status.elements + status.missed == 2 * TURNS + 2 &&
                  status.state == OH_UPDATE_RUNNING,
              "it has a status like an update");
    tap_check(oh_monitor_remove(monitor, number) == 0 &&
                  oh_monitor_results(monitor, number, &results) == -EINVAL && !results,
              "it is removed like one");
}

static void of_the_kernel(oh_monitor *monitor)
{
    oh_kernel_monitor_options options;
    oh_kernel_monitor *kernel = NULL;
    oh_kernel_status status;
    oh_metric *metric;
    oh_results *results;
    int number;

    memset(&options, 0, sizeof(options));
    if (oh_metric_system(&metric, "system_call") != 0)
        return;
    options.sensors = oh_metric_kernel_sensors(metric);
    options.backend = OH_KERNEL_BPF;
    tap_check(strcmp(options.sensors, "syscall,task_life") == 0, "a metric names the kernel sensors that it requires");
    number = oh_monitor_measure(monitor, metric, 0);
    results = results_of(monitor, number);
    tap_check(oh_results_count(results) == 0 && strstr(oh_last_error(), "no stream of kernel:syscall"),
              "an absent event is named");
    oh_results_free(results);
    if (oh_kernel_monitor_create(&kernel, &options, &status) != 0) {
        printf("# skipped: %s\n", oh_kernel_last_error());
    } else if (strstr(status.message, "no sensor syscall")) {
        printf("# skipped: %s\n", status.message);
    } else {
        const uint64_t begun_ns = oh_now_ns();
        uint64_t calls = 0, more, missed = 0;

        if (oh_kernel_thread_monitor(kernel, (uint32_t)getpid(), 7) != 0)
            printf("# %s\n", oh_kernel_last_error());
        tap_check(oh_monitor_add_kernel(monitor, kernel, oh_kernel_monitor_resume, oh_kernel_monitor_read,
                                  status.max_events) == 0,
                  "a monitor reads a kernel monitor");
        /* Until an element arrives, it may not have been resumed yet. */
        do {
            syscall(SYS_getppid);
            results = results_of(monitor, number);
            more = oh_results_count(results);
            oh_results_free(results);
        } while (more == 0 && oh_now_ns() - begun_ns < patience_ns);
        for (int turn = 0; turn < TURNS; turn++)
            syscall(SYS_getppid);
        results = results_of(monitor, number);
        missed = oh_results_missed(results);
        for (size_t place = 0; place < oh_results_count(results); place++) {
            oh_measurement one;

            oh_results_at(results, place, &one);
            calls += one.has_key && one.key == SYS_getppid && one.task == (uint32_t)getpid();
        }
        tap_check(calls + missed >= TURNS && calls <= TURNS, "system calls are measured live");
        oh_results_free(results);
    }
    oh_metric_free(metric);
    oh_monitor_stop(monitor);
    oh_kernel_monitor_free(kernel);
}

int main(void)
{
    char folder[] = "/tmp/overhear-XXXXXX";
    char socket[64];
    const char *const nonsense[] = {"nonsense", NULL};
    oh_directory *directory;
    oh_monitor_options options;
    oh_monitor *monitor;
    oh_metric *metric;
    oh_sensor *needed, *unneeded;

    memset(&options, 0, sizeof(options));
    if (!mkdtemp(folder))
        return 1;
    snprintf(socket, sizeof(socket), "%s/directory.sock", folder);
    setenv("OVERHEAR_DIRECTORY", socket, 1);
    tap_check(oh_directory_start(&directory, socket) == 0, "a directory of its own");
    tap_check(oh_metric_parse(&metric, phases) == 0, "a metric");
    needed = sensor("phase");
    unneeded = sensor("other");

    options.required = nonsense;
    tap_check(oh_monitor_start(&monitor, &options) == -EINVAL && strstr(oh_last_error(), "`nonsense`"),
              "what is no event is refused");
    options.required = oh_metric_events(metric);
    options.disable_unused = 1;
    tap_check(oh_monitor_start(&monitor, &options) == 0, "a monitor that needs what the metric requires");
    tap_check(oh_sensor_enabled(needed) && !oh_sensor_enabled(unneeded),
              "exactly the required sensors are switched on");
    of_this_program(monitor, metric, needed);
    tap_check(oh_monitor_measure(NULL, metric, 0) == -EINVAL && oh_monitor_measure(monitor, NULL, 0) == -EINVAL &&
                  oh_monitor_results(monitor, 0, NULL) == -EINVAL &&
                  oh_monitor_add_kernel(monitor, NULL, NULL, NULL, 0) == -EINVAL,
              "arguments must be there");
    of_the_kernel(monitor);
    /* The directory notices the end by itself. */
    while (!oh_sensor_enabled(unneeded))
        usleep(1000);
    tap_check(1, "what was switched off is on again");

    oh_metric_free(metric);
    oh_sensor_unregister(needed);
    oh_sensor_unregister(unneeded);
    oh_directory_stop(directory);
    rmdir(folder);
    return tap_done();
}
