/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear; sanitizes: threads. A registered concurrent sensor, written from threads and a
   handler. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <overhear/sensor.h>

#include "tap.h"

enum { THREADS = 4, ELEMENTS = 16 };

struct sample {
    uint64_t value;
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, value, ""),
};

static oh_concurrent_sensor *sensor;

static int begin(uint32_t writers)
{
    oh_sensor_options options;
    memset(&options, 0, sizeof options);
    options.id = "concurrent";
    options.type = "concurrent_sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    options.writers = writers;
    return oh_concurrent_register(&sensor, &options);
}

static const oh_thread_element *element(uint64_t sequence)
{
    const uint64_t place = (sequence + sensor->mask + 1) << 16;
    const uint64_t index = __atomic_load_n(oh_queue_index_(sensor, place), __ATOMIC_ACQUIRE);
    return (const oh_thread_element *)(const void *)oh_queue_element_(sensor, index);
}

static uint64_t published(void)
{
    const uint64_t head = __atomic_load_n(oh_queue_word_(sensor, OH_COUNTER_OFFSET), __ATOMIC_ACQUIRE);
    return (head >> 16) - sensor->mask - 1;
}

static uint32_t own_tid(void)
{
    return (uint32_t)syscall(SYS_gettid);
}

static void *write_all(void *argument)
{
    struct sample value;
    int number;
    value.value = own_tid();
    for (number = 0; number < ELEMENTS; number += 2) {
        struct sample *payload = (struct sample *)oh_concurrent_write(sensor);
        *payload = value;
        oh_concurrent_commit(sensor, payload);
        oh_concurrent_put(sensor, &value);
    }
    return argument;
}

static void threads_sign_their_elements(void)
{
    pthread_t threads[THREADS];
    uint64_t sequence, last = 0;
    int thread, good = 1;
    for (thread = 0; thread < THREADS; thread++)
        if (pthread_create(&threads[thread], NULL, write_all, NULL) != 0)
            perror("pthread_create");
    for (thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    for (sequence = 0; sequence < THREADS * ELEMENTS; sequence++) {
        const oh_thread_element *at = element(sequence);
        const struct sample *payload = (const struct sample *)(const void *)(at + 1);
        good &= at->flags == 0 && at->tid == payload->value && at->stamp >= last;
        last = at->stamp;
    }
    tap_check(published() == THREADS * ELEMENTS, "all are published");
    tap_check(good, "elements are signed by their threads, in the order of their stamps");
}

static void handle(int signal)
{
    struct sample value;
    value.value = (uint64_t)signal;
    if (!oh_concurrent_put(sensor, &value))
        _exit(3);
}

static void handler_writes_inside_a_write(void)
{
    const uint64_t before = published();
    struct sample *payload;
    signal(SIGUSR1, handle);
    payload = (struct sample *)oh_concurrent_write(sensor);
    raise(SIGUSR1);
    payload->value = 1;
    oh_concurrent_commit(sensor, payload);
    tap_check(published() == before + 2, "both are published");
    tap_check(((const struct sample *)(const void *)(element(before) + 1))->value == SIGUSR1 &&
                  element(before)->tid == own_tid() && element(before + 1)->tid == own_tid(),
              "the handler's first");
}

int main(void)
{
    tap_check(begin(THREADS) == 0 && sensor != NULL && oh_concurrent_enabled(sensor),
              "without a directory it works as well");
    tap_check(!oh_concurrent_is_connected(sensor) && oh_last_error()[0] != '\0', "and is not connected");
    threads_sign_their_elements();
    handler_writes_inside_a_write();
    tap_check(oh_concurrent_register_again(sensor) == 0, "no directory has come");
    oh_concurrent_unregister(sensor);
    oh_concurrent_unregister(NULL);
    tap_check(begin(100000) == -EINVAL && sensor == NULL &&
                  strstr(oh_last_error(), "65,536") != NULL,
              "too many writers are refused in words");
    tap_check(oh_concurrent_register_again(NULL) == -EINVAL, "NULL is no sensor");
    return tap_done();
}
