/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_kernel. Listens to what the kernel's scheduler does with two threads of this
 * program, and counts how often each gave up its CPU, and how often it lost it.
 *
 *     cc -Iinclude examples/c/kernel_monitor.c -Ltarget/release -loverhear_kernel -pthread -o
 *     kernel_monitor ./kernel_monitor
 *
 * It needs CAP_BPF and CAP_PERFMON; without them it records less, by perf records.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <overhear/kernel.h>

enum { NAPS = 50, WORKERS = 2, SKIPPED = 77 };

static pthread_barrier_t tracked;
static pid_t tids[WORKERS];

/* Sleeps, and computes a little in between. */
static void *work(void *argument)
{
    const struct timespec nap = {0, 500000};
    const long number = (long)argument;
    volatile double sum = 0;

    tids[number] = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&tracked); /* its id is known */
    pthread_barrier_wait(&tracked); /* and it is tracked */
    for (int turn = 0; turn < NAPS; turn++) {
        for (int step = 0; step < 20000; step++)
            sum += step;
        nanosleep(&nap, NULL);
    }
    return NULL;
}

int main(void)
{
    const oh_kernel_monitor_options options = {.buffer_bytes = 1 << 20};
    oh_kernel_monitor *monitor;
    oh_kernel_status status;
    oh_kernel_event *events;
    uint64_t count = 0, missed = 0, voluntary[WORKERS] = {0}, preempted[WORKERS] = {0};
    pthread_t workers[WORKERS];

    if (oh_kernel_monitor_create(&monitor, &options, &status) != 0) {
        fprintf(stderr, "%s\n", oh_kernel_last_error());
        return SKIPPED;
    }
    printf("%s; %llu bytes were granted\n", status.message, (unsigned long long)status.granted_bytes);
    events = malloc(status.max_events * sizeof *events);
    if (!events)
        return 1;

    pthread_barrier_init(&tracked, NULL, WORKERS + 1);
    for (long number = 0; number < WORKERS; number++)
        pthread_create(&workers[number], NULL, work, (void *)number);
    pthread_barrier_wait(&tracked);
    for (uint32_t number = 0; number < WORKERS; number++)
        if (oh_kernel_thread_monitor(monitor, (uint32_t)tids[number], number) != 0)
            fprintf(stderr, "%s\n", oh_kernel_last_error());
    oh_kernel_monitor_resume(monitor);
    pthread_barrier_wait(&tracked);
    for (int number = 0; number < WORKERS; number++)
        pthread_join(workers[number], NULL);

    oh_kernel_monitor_finish(monitor);
    if (oh_kernel_monitor_read(monitor, events, status.max_events, &count) != 0)
        fprintf(stderr, "%s\n", oh_kernel_last_error());
    for (const oh_kernel_event *event = events; event < events + count; event++) {
        if (event->cause != 0) {
            missed += event->missed;
        } else if (strcmp(event->stream->sensor, "sched_switch") == 0) {
            const oh_kernel_switch *switched = &event->payload.switched;
            for (int number = 0; number < WORKERS; number++)
                if ((switched->flags & OH_SWITCH_PREV_TRACKED) &&
                    switched->prev_tid == (uint32_t)tids[number])
                    *(switched->flags & OH_SWITCH_VOLUNTARY ? &voluntary[number]
                                                            : &preempted[number]) += 1;
        }
    }
    for (int number = 0; number < WORKERS; number++)
        printf("worker %d gave up its CPU %llu times, and lost it %llu times\n", number,
               (unsigned long long)voluntary[number], (unsigned long long)preempted[number]);
    printf("%llu events were missed\n", (unsigned long long)missed);

    oh_kernel_monitor_terminate(monitor);
    oh_kernel_monitor_free(monitor);
    free(events);
    /* A worker leaves its CPU for each of its naps. */
    return voluntary[0] + preempted[0] + missed < NAPS;
}
