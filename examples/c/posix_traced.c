/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. A traced process of POSIX trace: a shop that serves customers in two
 * queues. It records when a customer arrives, is served and leaves, from two threads.
 *
 *     ./posix_traced                                    without a stream, no event is recorded
 *     ./posix_trace_controller shop.log ./posix_traced
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <trace.h>

enum { CUSTOMERS = 20, QUEUES = 2 };

/* The data of each event. */
struct customer {
    uint32_t queue;
    uint32_t number;
};

static trace_event_id_t arrives, is_served, leaves;

static void *serve(void *argument)
{
    struct customer customer = {*(uint32_t *)argument, 0};
    volatile unsigned work = 0;
    for (; customer.number < CUSTOMERS; customer.number++) {
        posix_trace_event(arrives, &customer, sizeof customer);
        posix_trace_event(is_served, &customer, sizeof customer);
        for (unsigned step = 0; step < 1000 * (customer.queue + 1); step++)
            work += step;
        posix_trace_event(leaves, &customer, sizeof customer);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[QUEUES];
    uint32_t queues[QUEUES];

    /* Streams that are created later have these names, too. */
    if (posix_trace_eventid_open("customer arrives", &arrives) != 0 ||
        posix_trace_eventid_open("customer is served", &is_served) != 0 ||
        posix_trace_eventid_open("customer leaves", &leaves) != 0) {
        fprintf(stderr, "%s\n", oh_posix_trace_last_error());
        return 1;
    }
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        queues[queue] = queue;
        if (pthread_create(&threads[queue], NULL, serve, &queues[queue]) != 0)
            return 1;
    }
    for (int queue = 0; queue < QUEUES; queue++)
        pthread_join(threads[queue], NULL);
    return 0;
}
