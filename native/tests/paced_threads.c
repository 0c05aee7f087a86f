/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. Threads that wait until the declared rate allows their elements. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <overhear/sensor.h>

#include "tap.h"

enum { THREADS = 3, ELEMENTS = 6, DISTANCE_NS = 1000000 };

struct sample {
    uint64_t value;
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, value, ""),
};

static oh_concurrent_sensor *queue;
static oh_laned_sensor *lanes;

static oh_sensor_options options_of(const char *id, uint64_t distance_ns)
{
    oh_sensor_options options;
    memset(&options, 0, sizeof options);
    options.id = id;
    options.type = "sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    options.period_ns = distance_ns;
    options.distance_ns = distance_ns;
    options.writers = THREADS;
    options.lanes = THREADS;
    return options;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *write_to_the_queue(void *argument)
{
    struct sample value = {0};
    int good = 1;
    for (value.value = 0; value.value < ELEMENTS; value.value++) {
        good &= oh_concurrent_pace(queue) == 0;
        good &= oh_concurrent_put(queue, &value);
    }
    *(int *)argument = good;
    return NULL;
}

static void *write_to_a_lane(void *argument)
{
    struct sample value = {0};
    int good = 1;
    for (value.value = 0; value.value < ELEMENTS; value.value++) {
        good &= oh_laned_pace(lanes) == 0;
        good &= oh_laned_put(lanes, &value);
    }
    *(int *)argument = good;
    return NULL;
}

/* Runs a function in all threads; returns its time, or 0 if one of them failed. */
static uint64_t run(void *(*function)(void *))
{
    pthread_t threads[THREADS];
    int good[THREADS] = {0};
    const uint64_t begin_ns = now_ns();
    int all = 1;
    int index;
    for (index = 0; index < THREADS; index++)
        pthread_create(&threads[index], NULL, function, &good[index]);
    for (index = 0; index < THREADS; index++) {
        pthread_join(threads[index], NULL);
        all &= good[index];
    }
    return all ? now_ns() - begin_ns : 0;
}

int main(void)
{
    oh_sensor_options options = options_of("queue", DISTANCE_NS);
    tap_check(oh_concurrent_register(&queue, &options) == 0, "a queue with a rate");
    tap_check(run(write_to_the_queue) >= (THREADS * ELEMENTS - 1) * (uint64_t)DISTANCE_NS,
              "threads that share a queue share its rate");
    oh_concurrent_unregister(queue);

    options = options_of("lanes", DISTANCE_NS);
    tap_check(oh_laned_register(&lanes, &options) == 0, "lanes with a rate");
    tap_check(run(write_to_a_lane) >= (ELEMENTS - 1) * (uint64_t)DISTANCE_NS,
              "each thread keeps the rate in its lane");
    oh_laned_unregister(lanes);

    options = options_of("undeclared", 0);
    tap_check(oh_concurrent_register(&queue, &options) == 0 && oh_concurrent_pace(queue) == -EINVAL &&
                  strstr(oh_last_error(), "rate") != NULL,
              "a queue without a rate");
    oh_concurrent_unregister(queue);
    tap_check(oh_laned_register(&lanes, &options) == 0 && oh_laned_pace(lanes) == -EINVAL &&
                  strstr(oh_last_error(), "rate") != NULL,
              "lanes without a rate");
    oh_laned_unregister(lanes);
    tap_check(oh_concurrent_pace(NULL) == -EINVAL && oh_laned_pace(NULL) == -EINVAL,
              "NULL is no sensor");
    return tap_done();
}
