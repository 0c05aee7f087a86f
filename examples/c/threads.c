/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One sensor, many threads: each writes into a lane of its own, without a lock, and a monitor sees
 * one sensor.
 *
 *     overhear run -- ./threads
 */
#include <pthread.h>
#include <stdio.h>

#include <overhear/sensor.h>

enum { THREADS = 4, STEPS = 250 };

struct step {
    uint32_t worker;
    uint32_t number;
};

static const oh_field fields[] = {
    OH_FIELD_U32(struct step, worker, ""),
    OH_FIELD_U32(struct step, number, ""),
};

static oh_laned_sensor *sensor;

static void *work(void *argument)
{
    struct step step = {*(uint32_t *)argument, 0};
    /* Optional: claims the lane and touches its memory now, not at the first write. */
    oh_laned_prepare_thread(sensor);
    for (; step.number < STEPS; step.number++)
        oh_laned_put(sensor, &step);
    return NULL;
}

int main(void)
{
    const oh_sensor_options options = {
        .id = "step",
        .type = "step",
        .fields = fields,
        .field_count = sizeof fields / sizeof *fields,
        .size = sizeof(struct step),
        .lanes = THREADS,
    };
    pthread_t threads[THREADS];
    uint32_t workers[THREADS];

    if (oh_laned_register(&sensor, &options) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    if (!oh_laned_is_connected(sensor))
        fprintf(stderr, "not connected: %s\n", oh_last_error());

    for (uint32_t worker = 0; worker < THREADS; worker++) {
        workers[worker] = worker;
        if (pthread_create(&threads[worker], NULL, work, &workers[worker]) != 0)
            return 1;
    }
    for (uint32_t worker = 0; worker < THREADS; worker++)
        pthread_join(threads[worker], NULL);

    oh_laned_unregister(sensor);
    return 0;
}
