/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * pair KIND STEPS WORK CPU: one half of a pair. Binds itself to the CPU, prints "ready", waits for
 * a line, does as many steps, and prints "took" and the CPU time of them in nanoseconds. A step is
 * so many rounds of work, and then what the kind says:
 *
 *   call      a system call (getppid)
 *   probe     a call of `budget_step`
 *   write     a write to a sensor
 *   silence   nothing: the other half of writes, which has no sensor
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <overhear/sensor.h>

struct sample {
    uint64_t number;
    uint8_t text[504];
};

static const oh_field fields[] = {OH_FIELD_U64(struct sample, number, ""),
                                  OH_FIELD_TEXT(struct sample, text, "")};

static oh_sensor *sensor(void)
{
    oh_sensor_options options;
    oh_sensor *sensor;
    memset(&options, 0, sizeof options);
    options.id = "paired";
    options.type = "pair_sample";
    options.fields = fields;
    options.field_count = 2;
    options.size = sizeof(struct sample);
    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "refused: %s\n", oh_last_error());
        exit(1);
    }
    return sensor;
}

/* Its first instruction needs a single step: the kernel emulates others. */
__attribute__((noinline)) uint64_t budget_step(uint64_t state)
{
    __asm__ volatile("" : "+r"(state));
    return state + 1;
}

static uint64_t work(uint64_t state, uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++) {
        state = state * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(state));
    }
    return state;
}

static uint64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    const char *kind = argv[1];
    const uint64_t steps = strtoull(argv[2], NULL, 10), rounds = strtoull(argv[3], NULL, 10);
    static struct sample sample;
    oh_sensor *written = strcmp(kind, "write") == 0 ? sensor() : NULL;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)atoi(argv[4]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        return 3;
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 4;
    const uint64_t begun = cpu_ns();
    uint64_t state = 1;
    switch (kind[0]) {
    case 'c':
        for (uint64_t step = 0; step < steps; step++) {
            state = work(state, rounds);
            syscall(SYS_getppid);
        }
        break;
    case 'p':
        for (uint64_t step = 0; step < steps; step++)
            state = budget_step(work(state, rounds));
        break;
    case 'w':
        for (uint64_t step = 0; step < steps; step++) {
            state = work(state, rounds);
            sample.number = state;
            oh_sensor_put(written, &sample);
        }
        break;
    default:
        for (uint64_t step = 0; step < steps; step++) {
            state = work(state, rounds);
            sample.number = state;
            __asm__ volatile("" ::"r"(&sample) : "memory");
        }
    }
    printf("took %llu %d\n", (unsigned long long)(cpu_ns() - begun), (int)(state & 1));
    fflush(stdout);
    if (written)
        oh_sensor_unregister(written);
    return 0;
}
