/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_monitor. A monitor inside a C program, with a directory of its own; waiting for
 * it as its owner and as anybody else does, and what cannot be done.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <overhear/monitor.h>

#include "tap.h"

/* Waits end by conditions; they take this long only if something is broken. */
#define PATIENCE_NS (60u * (uint64_t)1000000000u)

struct sum {
    uint64_t values, created, destroyed;
    char argument[16];
    oh_monitor *monitor;
    int inside; /* whether calls from within were refused */
};

static void *create(oh_host *host, const char *argument) OH_NOEXCEPT_
{
    struct sum *sum = (struct sum *)host->application;
    if (!sum) {
        oh_fail(host, "there is no application");
        return NULL;
    }
    sum->created++;
    snprintf(sum->argument, sizeof sum->argument, "%s", argument);
    return sum;
}
static int element(void *own, oh_host *host, const oh_element_view *element) OH_NOEXCEPT_
{
    uint64_t value;
    memcpy(&value, element->payload, sizeof value);
    if (value == 99) {
        oh_fail(host, "99 is too much");
        return 1;
    }
    if (value == 77) {
        struct sum *sum = (struct sum *)own;
        oh_monitor_stop(sum->monitor);
        sum->inside = oh_monitor_wait(sum->monitor, 1, 1) == -EDEADLK &&
                      oh_monitor_status(sum->monitor, 0, NULL) == -EDEADLK &&
                      oh_monitor_remove(sum->monitor, 0) == -EDEADLK &&
                      oh_monitor_add(sum->monitor, NULL, "", NULL) == -EDEADLK &&
                      strstr(oh_last_error(), "another thread");
    }
    ((struct sum *)own)->values += value;
    return 0;
}
static void destroy(void *own) OH_NOEXCEPT_
{
    ((struct sum *)own)->destroyed++;
}

static int put(oh_sensor *sensor, uint64_t value)
{
    oh_sensor_put(sensor, &value);
    return 1;
}

int main(void)
{
    static const oh_field fields[] = {{"value", OH_U64, 0, 8, ""}};
    char socket[64];
    struct sum first = {0, 0, 0, "", NULL, 0}, second = {0, 0, 0, "", NULL, 0};
    oh_sensor_options sensor_options;
    oh_monitor_options options;
    oh_update update;
    oh_update_status status;
    oh_directory *directory = NULL, *again = NULL;
    oh_sensor *sensor = NULL;
    oh_monitor *monitor = NULL;
    oh_waiter *waiter = NULL;
    int a, b, c;

    memset(&options, 0, sizeof options);
    memset(&update, 0, sizeof update);
    memset(&sensor_options, 0, sizeof sensor_options);
    update.size = sizeof update;
    update.name = "sum";
    update.create = create;
    update.element = element;
    update.destroy = destroy;
    sensor_options.id = "value";
    sensor_options.type = "value";
    sensor_options.fields = fields;
    sensor_options.field_count = 1;
    sensor_options.size = 8;

    snprintf(socket, sizeof socket, "/tmp/oh-monitor-%ld.sock", (long)getpid());
    setenv("OVERHEAR_DIRECTORY", socket, 1);
    tap_check(oh_monitor_start(&monitor, &options) == -ENOENT && !monitor && *oh_last_error(),
              "without a directory there is no monitor, and a message");
    tap_check(oh_directory_start(&directory, socket) == 0, "a program has a directory of its own");
    tap_check(oh_directory_start(&again, socket) < 0 && !again && *oh_last_error(),
              "two cannot listen at one place");
    tap_check(oh_sensor_register(&sensor, &sensor_options) == 0 && oh_sensor_is_connected(sensor) == 1,
              "its sensors are connected");
    options.sensors = "[";
    tap_check(oh_monitor_start(&monitor, &options) == -EINVAL && strstr(oh_last_error(), "`[`"),
              "a pattern that is none is named");
    options.sensors = "value";
    options.announce = "native test";
    options.directory = socket;
    setenv("OVERHEAR_DIRECTORY", "/nowhere", 1);
    tap_check(oh_monitor_start(&monitor, &options) == 0,
              "a monitor starts with the given directory, and is announced there");
    setenv("OVERHEAR_DIRECTORY", socket, 1);

    tap_check(oh_monitor_add(monitor, &update, "", NULL) == -EINVAL &&
                  strstr(oh_last_error(), "update `sum`") && strstr(oh_last_error(), "no application"),
              "an update that cannot be made is named");
    a = oh_monitor_add(monitor, &update, "one", &first);
    tap_check(a >= 0 && strcmp(first.argument, "one") == 0, "an update is added");
    put(sensor, 5);
    tap_check(oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) == 0 && first.values == 5,
              "its owner waits until it has evaluated an element");
    b = oh_monitor_add(monitor, &update, "two", &second);
    put(sensor, 6);
    tap_check(b > a && oh_waiter_attach(&waiter, "native test") == 0 &&
                  oh_waiter_wait(waiter, oh_now_ns(), PATIENCE_NS) == 0,
              "anybody waits for it by its name");
    tap_check(oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) == 0 && first.values == 11 &&
                  second.values == 6,
              "an update that comes later hears what is written from then on");
    tap_check(oh_monitor_status(monitor, a, &status) == 0 && status.elements == 2 &&
                  status.missed == 0 && status.state == OH_UPDATE_RUNNING,
              "an update's status is known");
    tap_check(oh_monitor_remove(monitor, a) == 0 && first.destroyed == 1, "it is removed and destroyed");
    tap_check(oh_monitor_remove(monitor, a) == -EINVAL && oh_monitor_status(monitor, 77, &status) == -EINVAL,
              "a missing object is reported");
    tap_check(oh_monitor_status(monitor, b, &status) == 0 && status.state == OH_UPDATE_RUNNING &&
                  status.refused == 0 && !*oh_last_error(),
              "the others go on without it");
    second.monitor = monitor;
    put(sensor, 77);
    tap_check(oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) == 0 && second.inside,
              "an update cannot wait for its own thread, and gets an error");
    put(sensor, 99);
    put(sensor, 1);
    put(sensor, 1);
    tap_check(oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) == 0 &&
                  oh_monitor_status(monitor, b, &status) == 0 && status.state == OH_UPDATE_FAILED &&
                  strstr(oh_last_error(), "`element` failed: 99 is too much") &&
                  status.elements == 3 && second.values == 83,
              "one that fails is not called again, has a reason, and counts what reached it");
    update.type = "another";
    c = oh_monitor_add(monitor, &update, "three", &first);
    put(sensor, 1);
    tap_check(c > b && oh_monitor_wait(monitor, oh_now_ns(), PATIENCE_NS) == 0 &&
                  oh_monitor_status(monitor, c, &status) == 0 && status.state == OH_UPDATE_RUNNING && status.refused == 1 &&
                  status.elements == 0 && first.values == 11 &&
                  strstr(oh_last_error(), "type `another`") && strstr(oh_last_error(), "type `value`"),
              "it learns of a sensor of another type, and counts nothing");
    tap_check(oh_monitor_wait(monitor, UINT64_MAX / 2, 1) == -ETIMEDOUT &&
                  oh_waiter_wait(waiter, UINT64_MAX / 2, 1) == -ETIMEDOUT,
              "nobody waits forever");
    put(sensor, 1);
    oh_monitor_stop(monitor);
    tap_check(second.destroyed == 1, "its end destroys the updates");
    tap_check(oh_waiter_wait(waiter, oh_now_ns(), PATIENCE_NS) == 0,
              "at its end it has evaluated everything");
    oh_waiter_detach(waiter);
    tap_check(oh_waiter_attach(&waiter, "nobody") == 0 && oh_waiter_wait(waiter, 1, 1) == -ENOENT,
              "a monitor that does not run is reported");
    oh_waiter_detach(waiter);
    oh_monitor_stop(NULL);
    oh_sensor_unregister(sensor);
    oh_directory_stop(directory);
    return tap_done();
}
