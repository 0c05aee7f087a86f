/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing; sanitizes: threads. A writer against a reader in another thread, the protocol of
 * section 5.1 in full.
 *
 * Both use atomic words only, so that -fsanitize=thread reports nothing: writes go through
 * oh_sensor_put, and the reader below is the page's, one element at a time.
 */
#include <pthread.h>

#include "stream.h"
#include "tap.h"

enum { CAPACITY = 8, WORDS = 6, ELEMENTS = 1000000 };

struct sample {
    uint64_t words[WORDS];
};

static uint64_t memory[OH_HEADER_SIZE / 8 + CAPACITY * (1 + WORDS)];

static void *write_all(void *argument)
{
    oh_sensor *sensor = (oh_sensor *)argument;
    uint64_t position;
    for (position = 0; position < ELEMENTS; position++) {
        struct sample value;
        int word;
        for (word = 0; word < WORDS; word++)
            value.words[word] = position + 1;
        oh_sensor_put_at(sensor, &value, position + 1);
        /* A pause now and then lets the reader catch up, so that it meets the writer everywhere. */
        if (position % 16 == 0) {
            int turn;
            for (turn = 0; turn < 4000; turn++)
                __asm__ volatile("");
        }
    }
    return NULL;
}

/* Copies the element at a position; returns 1 if the copy is intact. Section 5.1, the reader: 2, 3,
   4. */
static int copy(const oh_sensor *view, uint64_t position, uint64_t *into)
{
    const uint64_t *slot = (const uint64_t *)(const void *)stream_element(view, position);
    const uint64_t *counter = (const uint64_t *)(const void *)(view->base + OH_COUNTER_OFFSET);
    int word;
    for (word = 0; word <= WORDS; word++)
        into[word] = __atomic_load_n(&slot[word], __ATOMIC_RELAXED);
    /* SYNC(overwrite): pairs with the writer's fence before the next fill. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(counter, __ATOMIC_RELAXED) - position < CAPACITY;
}

int main(void)
{
    oh_sensor sensor = stream_begin(memory, sizeof(struct sample), CAPACITY, OH_CLOCK_MONOTONIC, 1);
    const oh_sensor view = sensor;
    uint64_t position = 0, delivered = 0, missed = 0, broken = 0;
    pthread_t writer;

    if (pthread_create(&writer, NULL, write_all, &sensor) != 0) {
        perror("pthread_create");
        return 1;
    }
    while (position < ELEMENTS) {
        const uint64_t published = stream_counter(memory);
        if (published - position > CAPACITY - 1) {
            missed += published - (CAPACITY - 1) - position;
            position = published - (CAPACITY - 1);
        }
        for (; position < published; position++) {
            uint64_t words[1 + WORDS];
            int word;
            if (!copy(&view, position, words)) {
                missed++;
                continue;
            }
            delivered++;
            for (word = 0; word <= WORDS; word++)
                broken += words[word] != position + 1;
        }
    }
    pthread_join(writer, NULL);
    printf("# %llu delivered, %llu missed\n", (unsigned long long)delivered,
           (unsigned long long)missed);
    tap_check(broken == 0, "every element is whole or missed");
    tap_check(delivered + missed == ELEMENTS, "delivered and missed add up");
    tap_check(delivered >= CAPACITY - 1, "the newest elements are readable");
    return tap_done();
}
