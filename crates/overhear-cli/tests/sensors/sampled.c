/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that writes samples as samplers do, with known counts: two threads with jobs, and
 * samples of the whole process at a period. One job of the first thread, and ten consecutive jobs
 * of the second, are slow: they need more cycles and miss the cache more often.
 *
 *     sampled JOBS PAUSE_US [steady]
 *
 * With `steady`, all jobs state the same duration: the results do not depend on the machine.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <overhear/sensor.h>

enum { PERIOD = 1, JOB_END = 8, THREAD_END = 9 };

struct sample {
    uint32_t tid, pid, point, cpu;
    uint64_t duration;
    uint64_t cycles, instructions, llc_misses;
    int64_t resident;
};

static const oh_field fields[] = {
    OH_FIELD_U32(struct sample, tid, ""),
    OH_FIELD_U32(struct sample, pid, ""),
    OH_FIELD_U32(struct sample, point, ""),
    OH_FIELD_U32(struct sample, cpu, ""),
    OH_FIELD_U64(struct sample, duration, "ns"),
    OH_FIELD_U64(struct sample, cycles, ""),
    OH_FIELD_U64(struct sample, instructions, ""),
    OH_FIELD_U64(struct sample, llc_misses, ""),
    OH_FIELD_I64(struct sample, resident, "B"),
};

static oh_sensor *sensor_of(const char *id, const char *instance)
{
    oh_sensor_options options;
    oh_sensor *sensor;
    memset(&options, 0, sizeof options);
    options.id = id;
    options.instance = instance;
    options.type = "overhear_sample";
    options.fields = fields;
    options.field_count = sizeof fields / sizeof *fields;
    options.size = sizeof(struct sample);
    options.capacity = 8192;
    if (oh_sensor_register(&sensor, &options) != 0) {
        printf("refused: %s\n", oh_last_error());
        exit(1);
    }
    return sensor;
}

struct worker {
    unsigned number, jobs, pause_us, first_slow, slow;
    int is_steady;
};

/* The elapsed time since the last call, at least 1 ns. */
static uint64_t elapsed_ns(struct timespec *last)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t ns = (now.tv_sec - last->tv_sec) * 1000000000LL + (now.tv_nsec - last->tv_nsec);
    *last = now;
    return ns > 0 ? (uint64_t)ns : 1;
}

static void *work(void *argument)
{
    const struct worker *const worker = argument;
    char name[16];
    snprintf(name, sizeof name, "worker-%u", worker->number);
    pthread_setname_np(pthread_self(), name);
    oh_sensor *const sensor = sensor_of("jobs", worker->number == 1 ? "one" : "two");
    struct sample sample = {(uint32_t)gettid(), (uint32_t)getpid(), JOB_END, 0, 0, 0, 0, 0, 0};
    struct timespec last;
    clock_gettime(CLOCK_MONOTONIC, &last);
    for (unsigned job = 1; job <= worker->jobs; job++) {
        const int slow = job >= worker->first_slow && job < worker->first_slow + worker->slow;
        usleep(worker->pause_us);
        sample.duration = worker->is_steady ? 60000 : elapsed_ns(&last);
        sample.cycles = (150000 + job % 11 * 10) * (slow ? 4 : 1);
        sample.instructions = 200000 + job % 7 * 10;
        sample.llc_misses = (200 + job % 5) * (slow ? 30 : 1);
        sample.resident = 1 << 20;
        oh_sensor_put(sensor, &sample);
    }
    sample.point = THREAD_END;
    sample.duration = elapsed_ns(&last);
    sample.cycles = 11;
    sample.instructions = 7;
    sample.llc_misses = 5;
    oh_sensor_put(sensor, &sample);
    oh_sensor_unregister(sensor);
    printf("tid-%u %u\n", worker->number, sample.tid);
    return NULL;
}

int main(int count, char **arguments)
{
    const unsigned jobs = count > 1 ? (unsigned)atoi(arguments[1]) : 600;
    const unsigned pause_us = count > 2 ? (unsigned)atoi(arguments[2]) : 50;
    const int is_steady = count > 3 && strcmp(arguments[3], "steady") == 0;
    struct worker workers[] = {
        {1, jobs, pause_us, 2 * jobs / 3, 1, is_steady},
        {2, jobs, pause_us, jobs / 2, 10, is_steady},
    };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            return 1;
    oh_sensor *const sensor = sensor_of("process", "");
    struct sample sample = {0, (uint32_t)getpid(), PERIOD, 0, 1000000, 0, 0, 0, 0};
    for (unsigned number = 0; number < jobs / 20; number++) {
        usleep(20 * pause_us);
        sample.cycles = 1000 + number;
        sample.instructions = 500;
        sample.resident = (int64_t)number * 4096;
        oh_sensor_put(sensor, &sample);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    oh_sensor_unregister(sensor);
    return 0;
}
