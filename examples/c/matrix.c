/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A matrix multiplication whose threads create each other, made to be looked at: `main` creates the
 * `collector` and the first `multiply` and waits; each `multiply` looks whether there is enough
 * work left for another one, creates it, takes its share and works; the `collector` watches,
 * busily, how far they are. It is the computation of [MKM, section 3] (Lehr, Black, Segall,
 * Vrsalovic; CMU-CS-89-131), whose figures compare how kernels schedule it.
 *
 *     overhear run --out other -- ./matrix 900 1
 *     overhear run --out rr -- ./matrix 900 1 rr
 *     overhear report other --compare rr --html both.html
 *
 * The arguments: the size of the matrices; how many CPUs may be used, 0 for all; and the set-up:
 * `other` (the default), `batch`, `rr` (needs CAP_SYS_NICE), or a time slice in milliseconds that
 * the threads ask of `other` (0.1 to 100, Linux 6.12).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <overhear/sensor.h>

enum { MULTIPLIERS = 4 };

/* How far the product is: written by the collector. */
struct progress {
    uint64_t rows;
};

/* A multiplier's share: an element when it begins, and one when it has done it. */
struct share {
    uint64_t number;
    uint32_t edge; /* 0 begin, 1 end */
    uint32_t rows;
};

static const oh_field progress_fields[] = {
    OH_FIELD_U64(struct progress, rows, "rows"),
};

static const oh_field share_fields[] = {
    OH_FIELD_U64(struct share, number, ""),
    OH_FIELD_U32(struct share, edge, ""),
    OH_FIELD_U32(struct share, rows, "rows"),
};

static oh_sensor *progress_sensor;
static oh_laned_sensor *share_sensor;

static size_t size;
static double *left, *right, *product;
static atomic_size_t rows_done;

static void work(size_t from, size_t to)
{
    for (size_t row = from; row < to; row++) {
        for (size_t column = 0; column < size; column++) {
            double sum = 0;
            for (size_t k = 0; k < size; k++)
                sum += left[row * size + k] * right[k * size + column];
            product[row * size + column] = sum;
        }
        atomic_fetch_add(&rows_done, 1);
    }
}

static void *multiply(void *argument)
{
    const uint64_t number = *(const uint64_t *)argument;
    const size_t share = size / MULTIPLIERS;
    const size_t from = number * share;
    const size_t to = number + 1 == MULTIPLIERS ? size : from + share;
    uint64_t next = number + 1;
    pthread_t another;
    int has_another = 0;
    char name[16];

    snprintf(name, sizeof name, "multiply %u", (unsigned)(number + 1));
    prctl(PR_SET_NAME, name);
    if (next < MULTIPLIERS)
        has_another = pthread_create(&another, NULL, multiply, &next) == 0;

    struct share element = {number, 0, (uint32_t)(to - from)};
    oh_laned_put(share_sensor, &element);
    /* Work for which no further thread could be created is done here. */
    work(from, next < MULTIPLIERS && !has_another ? size : to);
    element.edge = 1;
    oh_laned_put(share_sensor, &element);

    if (has_another)
        pthread_join(another, NULL);
    return NULL;
}

static void *collector(void *argument)
{
    struct progress last = {0};
    (void)argument;
    prctl(PR_SET_NAME, "collector");
    while (last.rows < size) {
        const size_t rows = atomic_load(&rows_done);
        if (rows == last.rows)
            continue;
        last.rows = rows;
        oh_sensor_put(progress_sensor, &last);
    }
    return NULL;
}

/* Threads and children inherit both. */
static int set_up(long cpus, const char *policy)
{
    if (cpus > 0) {
        cpu_set_t all, some;
        CPU_ZERO(&some);
        if (sched_getaffinity(0, sizeof all, &all) != 0)
            return -1;
        for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&some) < cpus; cpu++)
            if (CPU_ISSET(cpu, &all))
                CPU_SET(cpu, &some);
        if (sched_setaffinity(0, sizeof some, &some) != 0)
            return -1;
    }
    /* `struct sched_attr` of the kernel; the C library does not have it everywhere. */
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {sizeof attributes, SCHED_OTHER, 0, 0, 0, 0, 0, 0};
    if (strcmp(policy, "other") == 0)
        return 0;
    if (strcmp(policy, "batch") == 0) {
        attributes.policy = SCHED_BATCH;
    } else if (strcmp(policy, "rr") == 0) {
        attributes.policy = SCHED_RR;
        attributes.priority = 1;
    } else {
        attributes.runtime = (uint64_t)(strtod(policy, NULL) * 1e6);
    }
    return (int)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static int register_sensors(void)
{
    const oh_sensor_options progress = {
        .id = "progress",
        .type = "progress",
        .fields = progress_fields,
        .field_count = sizeof progress_fields / sizeof *progress_fields,
        .size = sizeof(struct progress),
    };
    const oh_sensor_options share = {
        .id = "share",
        .type = "share",
        .fields = share_fields,
        .field_count = sizeof share_fields / sizeof *share_fields,
        .size = sizeof(struct share),
        .lanes = MULTIPLIERS,
    };
    return oh_sensor_register(&progress_sensor, &progress) != 0 ||
           oh_laned_register(&share_sensor, &share) != 0;
}

int main(int count, char **arguments)
{
    uint64_t first = 0;
    pthread_t collecting, multiplying;

    size = count > 1 ? strtoul(arguments[1], NULL, 10) : 64;
    if (size < MULTIPLIERS || size > 20000) {
        fprintf(stderr, "use matrix [SIZE [CPUS [SET-UP]]], with a size of 4 to 20000\n");
        return 2;
    }
    if (set_up(count > 2 ? strtol(arguments[2], NULL, 10) : 0, count > 3 ? arguments[3] : "other") != 0) {
        perror("the kernel refuses this set-up");
        return 1;
    }
    if (register_sensors()) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    if (!oh_sensor_is_connected(progress_sensor))
        fprintf(stderr, "not connected: %s\n", oh_last_error());

    prctl(PR_SET_NAME, "main");
    left = malloc(size * size * sizeof *left);
    right = malloc(size * size * sizeof *right);
    product = malloc(size * size * sizeof *product);
    if (!left || !right || !product)
        return 1;
    for (size_t i = 0; i < size * size; i++) {
        left[i] = (double)(i % 7);
        right[i] = (double)(i % 11);
    }

    if (pthread_create(&collecting, NULL, collector, NULL) != 0 ||
        pthread_create(&multiplying, NULL, multiply, &first) != 0)
        return 1;
    pthread_join(multiplying, NULL);
    pthread_join(collecting, NULL);

    double sum = 0;
    for (size_t i = 0; i < size * size; i++)
        sum += product[i];
    printf("%zu x %zu: the elements of the product add up to %.0f\n", size, size, sum);

    oh_sensor_unregister(progress_sensor);
    oh_laned_unregister(share_sensor);
    free(left);
    free(right);
    free(product);
    return 0;
}
