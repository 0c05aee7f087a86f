/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear, overhear_monitor. A program that is linked with both libraries: sensors come
 * from the first, and errors of both are the last error.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <overhear/metric.h>

#include "tap.h"

/* The library that is first on the command line. */
#ifndef FIRST_LIBRARY
#define FIRST_LIBRARY "liboverhear.so"
#endif

/* Waits end by conditions; they take this long only if something is broken. */
#define PATIENCE_NS (60u * (uint64_t)1000000000u)

/* The file of the library that contains a function of this program. */
static const char *library_of(uintptr_t function)
{
    Dl_info library;
    return dladdr((void *)function, &library) ? library.dli_fname : "";
}

static void *create(oh_host *host, const char *argument) OH_NOEXCEPT_
{
    (void)argument;
    return host->application;
}
static int element(void *self, oh_host *host, const oh_element_view *element) OH_NOEXCEPT_
{
    uint64_t value;
    (void)host;
    memcpy(&value, element->payload, sizeof value);
    *(uint64_t *)self += value;
    return 0;
}

int main(void)
{
    static const oh_field fields[] = {{"value", OH_U64, 0, 8, ""}};
    const char *sensors = library_of((uintptr_t)oh_sensor_register_sized);
    char socket[64];
    uint64_t sum = 0, value = 5;
    oh_sensor_options sensor_options;
    oh_monitor_options options;
    oh_update update;
    oh_directory *directory = NULL;
    oh_sensor *sensor = NULL;
    oh_monitor *monitor = NULL;
    oh_metric *metric = NULL;

    memset(&options, 0, sizeof options);
    memset(&update, 0, sizeof update);
    memset(&sensor_options, 0, sizeof sensor_options);
    update.size = sizeof update;
    update.name = "sum";
    update.create = create;
    update.element = element;

    tap_check(strstr(sensors, FIRST_LIBRARY) != NULL, "sensors are those of the library that is linked first");
    tap_check(strcmp(library_of((uintptr_t)oh_last_error), sensors) == 0 &&
                  strstr(library_of((uintptr_t)oh_monitor_start_sized), "liboverhear_monitor.so"),
              "the last error is that of the same library, and monitors are those of the other");

    tap_check(oh_metric_parse(&metric, "no metric") == -EINVAL && !metric &&
                  strstr(oh_last_error(), "oh_metric_parse: ") == oh_last_error(),
              "an error of a metric is the last error");
    tap_check(oh_sensor_register(&sensor, &sensor_options) == -EINVAL && !sensor &&
                  strstr(oh_last_error(), "oh_sensor_register: ") == oh_last_error(),
              "an error of a sensor replaces it");
    tap_check(oh_monitor_start(&monitor, NULL) == -EINVAL && !monitor &&
                  strstr(oh_last_error(), "oh_monitor_start: ") == oh_last_error(),
              "an error of a monitor replaces that");

    snprintf(socket, sizeof socket, "/tmp/oh-both-%ld.sock", (long)getpid());
    setenv("OVERHEAR_DIRECTORY", socket, 1);
    sensor_options.id = "value";
    sensor_options.type = "value";
    sensor_options.fields = fields;
    sensor_options.field_count = 1;
    sensor_options.size = 8;
    options.sensors = "value";
    tap_check(oh_directory_start(&directory, socket) == 0 &&
                  oh_sensor_register(&sensor, &sensor_options) == 0 && oh_sensor_is_connected(sensor) == 1 &&
                  oh_monitor_start(&monitor, &options) == 0 &&
                  oh_monitor_add(monitor, &update, "", &sum) == 0,
              "a monitor of one library reads a sensor of the other");
    oh_sensor_put(sensor, &value);
    tap_check(oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) == 0 && sum == 5,
              "and evaluates its elements");

    oh_monitor_stop(monitor);
    oh_sensor_unregister(sensor);
    oh_directory_stop(directory);
    return tap_done();
}
