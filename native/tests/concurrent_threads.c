/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing; sanitizes: threads. Several writers of one queue against a reader, section 5.3.
 *
 * First all use atomic words only, and a reader copies while they write. Then the writers store
 * through the pointer: ThreadSanitizer sees that an element goes from thread to thread in order.
 */
#include <pthread.h>

#include "queue.h"
#include "tap.h"

enum { CAPACITY = 64, WORDS = 4, WRITERS = 4, ELEMENTS = 50000 };

struct sample {
    uint64_t words[WORDS];
};

static uint64_t memory[QUEUE_BYTES(WORDS * 8, CAPACITY) / 8];
static oh_concurrent_sensor sensor;
static uint64_t refused;
static int in_place;

static uint64_t word_of(uint64_t tid, uint64_t number, int word)
{
    return (tid << 32 | number) * (uint64_t)(word + 1);
}

static void *write_all(void *argument)
{
    const uint64_t tid = (uint64_t)(uintptr_t)argument;
    uint64_t number;
    queue_tid = (uint32_t)tid;
    for (number = 0; number < ELEMENTS; number++) {
        struct sample value;
        int word, written;
        for (word = 0; word < WORDS; word++)
            value.words[word] = word_of(tid, number, word);
        if (in_place) {
            struct sample *payload = (struct sample *)oh_concurrent_write(&sensor);
            written = payload != NULL;
            if (written) {
                *payload = value;
                oh_concurrent_commit(&sensor, payload);
            }
        } else {
            written = oh_concurrent_put(&sensor, &value);
        }
        if (!written)
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        /* A pause now and then lets the reader catch up, so that it meets the writers
           everywhere. */
        if (number % 8 == 0) {
            int turn;
            for (turn = 0; turn < 8000; turn++)
                __asm__ volatile("");
        }
    }
    return NULL;
}

static uint64_t delivered, missed, broken, last_stamp, next_number[WRITERS + 1];

/* Checks a copied element: intact, later than the earlier ones, and with the thread's next or a
   later number. */
static void check(const uint64_t *copy)
{
    uint32_t tid;
    uint64_t number;
    int word;
    memcpy(&tid, &copy[1], sizeof tid);
    number = copy[2] & 0xffffffff;
    delivered++;
    broken += copy[0] < last_stamp;
    last_stamp = copy[0];
    if (tid < 1 || tid > WRITERS) {
        broken++;
        return;
    }
    for (word = 0; word < WORDS; word++)
        broken += copy[2 + word] != word_of(tid, number, word);
    broken += number < next_number[tid];
    next_number[tid] = number + 1;
}

/* Reads published elements from `sequence` on; returns the end position. */
static uint64_t read_some(uint64_t sequence)
{
    const uint64_t published = queue_published(&sensor);
    for (; sequence < published; sequence++) {
        const uint64_t *element = (const uint64_t *)(const void *)queue_element(&sensor, sequence);
        uint64_t copy[2 + WORDS];
        int word;
        for (word = 0; word < 2 + WORDS; word++)
            copy[word] = __atomic_load_n(&element[word], __ATOMIC_RELAXED);
        /* SYNC(overwrite): pairs with the fence of the thread that takes the element. */
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (queue_oldest(&sensor) > sequence)
            missed++;
        else
            check(copy);
    }
    return sequence;
}

static void race(const char *name)
{
    pthread_t writers[WRITERS];
    uint64_t sequence = 0, total = (uint64_t)WRITERS * ELEMENTS;
    int writer;
    memset(memory, 0, sizeof memory);
    sensor = queue_begin(memory, sizeof(struct sample), CAPACITY, OH_CLOCK_MONOTONIC, 1);
    delivered = missed = broken = last_stamp = refused = 0;
    memset(next_number, 0, sizeof next_number);
    for (writer = 0; writer < WRITERS; writer++) {
        if (pthread_create(&writers[writer], NULL, write_all, (void *)(uintptr_t)(writer + 1)) != 0) {
            perror("pthread_create");
            return;
        }
    }
    while (!in_place && sequence < total)
        sequence = read_some(sequence);
    for (writer = 0; writer < WRITERS; writer++)
        pthread_join(writers[writer], NULL);
    if (in_place)
        sequence = queue_oldest(&sensor);
    missed += in_place ? sequence : 0;
    read_some(sequence);
    printf("# %s: %llu delivered, %llu missed\n", name, (unsigned long long)delivered,
           (unsigned long long)missed);
    tap_check(broken == 0, "every element is whole, in order, or missed");
    tap_check(delivered + missed == total && refused == 0, "delivered and missed add up");
    tap_check(delivered >= CAPACITY, "the newest elements are readable");
    tap_check(queue_lost_full(&sensor) == 0, "nothing is refused");
}

int main(void)
{
    race("atomic words, a reader meanwhile");
    in_place = 1;
    race("plain stores");
    return tap_done();
}
