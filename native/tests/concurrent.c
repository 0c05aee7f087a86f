/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: nothing. Write, commit and abandon on a hand-made queue, by one thread. */
#include "queue.h"
#include "tap.h"

enum { CAPACITY = 4 };

struct pair {
    uint64_t value;
    uint64_t tenfold;
};

struct odd {
    uint8_t bytes[13];
};

static uint64_t memory[QUEUE_BYTES(16, CAPACITY) / 8];

static oh_concurrent_sensor begin(uint32_t payload_size, uint32_t clock_id)
{
    memset(memory, 0, sizeof memory);
    return queue_begin(memory, payload_size, CAPACITY, clock_id, 1);
}

static void writes_wrap_and_count(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    uint64_t number, last = 0;
    int counted = 1, whole = 1;
    queue_tid = 7;
    for (number = 0; number < 1000; number++) {
        struct pair *payload = (struct pair *)oh_concurrent_write(&sensor);
        payload->value = number;
        payload->tenfold = number * 10;
        counted &= queue_published(&sensor) == number;
        oh_concurrent_commit(&sensor, payload);
        counted &= queue_published(&sensor) == number + 1;
    }
    for (number = 996; number < 1000; number++) {
        const oh_thread_element *element = queue_element(&sensor, number);
        const struct pair *payload = (const struct pair *)(const void *)(element + 1);
        whole &= payload->value == number && payload->tenfold == number * 10;
        whole &= element->tid == 7 && element->flags == 0 && element->stamp >= last;
        last = element->stamp;
    }
    tap_check(counted, "only a commit counts");
    tap_check(whole && last > 0, "the queue holds the newest elements, stamped and signed");
    tap_check(queue_oldest(&sensor) == 996, "the oldest element follows the newest");
}

static void nested_writes_have_elements_of_their_own(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    const struct pair inner = {2, 20};
    struct pair *outer = (struct pair *)oh_concurrent_write(&sensor);
    outer->value = 1;
    tap_check((uintptr_t)outer % 8 == 0, "payloads are aligned to words");
    tap_check(oh_concurrent_put(&sensor, &inner) == 1, "a write inside a write is not refused");
    outer->tenfold = 10;
    oh_concurrent_commit(&sensor, outer);
    tap_check(memcmp(queue_element(&sensor, 0) + 1, &inner, sizeof inner) == 0 &&
                  (void *)(queue_element(&sensor, 1) + 1) == (void *)outer,
              "the order is that of the commits");
}

static void abandoned_element_is_void(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    void *payload = oh_concurrent_write(&sensor);
    oh_concurrent_abandon(&sensor, payload);
    tap_check(queue_published(&sensor) == 1 && queue_element(&sensor, 0)->flags == OH_ELEMENT_VOID,
              "an abandoned write is a void element");
}

static void writes_without_elements_are_refused(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    const struct pair value = {3, 30};
    void *payloads[CAPACITY];
    int element, different = 1;
    for (element = 0; element < CAPACITY; element++) {
        payloads[element] = oh_concurrent_write(&sensor);
        different &= payloads[element] != NULL;
        different &= element == 0 || payloads[element] != payloads[element - 1];
    }
    tap_check(different, "as many elements as the capacity");
    tap_check(oh_concurrent_write(&sensor) == NULL && oh_concurrent_put(&sensor, &value) == 0,
              "without an element the write is refused");
    tap_check(queue_lost_full(&sensor) == 2, "refused writes are counted");
    /* Enqueued in another order than dequeued. */
    for (element = CAPACITY; element-- > 0;)
        oh_concurrent_commit(&sensor, payloads[element]);
    tap_check(queue_published(&sensor) == CAPACITY && oh_concurrent_put(&sensor, &value) == 1,
              "what is given back is there again");
}

static void switch_stops_writes(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    const struct pair value = {3, 30};
    queue_enabled = 0;
    tap_check(!oh_concurrent_enabled(&sensor) && oh_concurrent_put(&sensor, &value) == 0 &&
                  oh_concurrent_write(&sensor) == NULL,
              "a sensor that is switched off refuses");
    queue_enabled = 1;
    tap_check(oh_concurrent_enabled(&sensor) && oh_concurrent_put(&sensor, &value) == 1,
              "and writes when it is on again");
    tap_check(queue_published(&sensor) == 1 && queue_lost_full(&sensor) == 0, "that is no loss");
}

static void put_zeroes_the_rest_and_asks_for_the_thread_once(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct odd), OH_CLOCK_MONOTONIC);
    struct odd value;
    size_t index;
    int good = 1;
    const uint8_t *payload = sensor.elements + sizeof(oh_thread_element);
    memset(value.bytes, 9, sizeof value.bytes);
    memset(sensor.elements, 0xff, 32);
    queue_tid = 0;
    oh_concurrent_put(&sensor, &value);
    for (index = 0; index < 16; index++)
        good &= payload[index] == (index < 13 ? 9 : 0);
    tap_check(good, "a payload of 13 bytes is copied, three bytes are zeroed");
    tap_check(queue_element(&sensor, 0)->tid == QUEUE_FIRST_TID, "an unknown thread's id is read from the system");
}

static void positions_wrap_around(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    const struct pair value = {4, 40};
    uint64_t position;
    int put, good = 1;
    for (position = 0xfffffffffff8; position < 0xfffffffffffc; position++)
        *oh_queue_index_(&sensor, position << 16) = position << 16 | (position & 3);
    *oh_queue_word_(&sensor, 128) = (uint64_t)0xfffffffffff8 << 16;
    *oh_queue_word_(&sensor, 64) = (uint64_t)0xfffffffffffc << 16;
    for (put = 0; put < 10; put++)
        good &= oh_concurrent_put(&sensor, &value);
    tap_check(good && *oh_queue_word_(&sensor, 64) == (6 << 16 | 2), "positions wrap around");
}

static void damage_ends_a_write(void)
{
    oh_concurrent_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    void *payload = oh_concurrent_write(&sensor);
    int slot;
    for (slot = 0; slot < CAPACITY; slot++)
        *oh_queue_index_(&sensor, (uint64_t)slot << 16) = (uint64_t)1 << 40;
    oh_concurrent_commit(&sensor, payload);
    tap_check(oh_concurrent_write(&sensor) == NULL && queue_lost_full(&sensor) == 2,
              "a write into damaged memory ends, and is counted");
}

int main(void)
{
    writes_wrap_and_count();
    nested_writes_have_elements_of_their_own();
    abandoned_element_is_void();
    writes_without_elements_are_refused();
    switch_stops_writes();
    put_zeroes_the_rest_and_asks_for_the_thread_once();
    positions_wrap_around();
    damage_ends_a_write();
    return tap_done();
}
