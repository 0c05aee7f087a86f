/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: nothing. Write and commit on a hand-made sensor over private memory. */
#include "stream.h"
#include "tap.h"

struct pair {
    uint64_t value;
    uint64_t tenfold;
};

struct odd {
    uint8_t bytes[13];
};

static uint64_t memory[OH_HEADER_SIZE / 8 + 4 * 3];

static oh_sensor begin(uint32_t payload_size, uint32_t clock_id)
{
    memset(memory, 0, sizeof memory);
    return stream_begin(memory, payload_size, 4, clock_id, 1);
}

static void writes_wrap_and_count(void)
{
    oh_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    uint64_t position;
    int counted = 1;
    int whole = 1;
    for (position = 0; position < 1000; position++) {
        struct pair *payload = (struct pair *)oh_sensor_write(&sensor);
        payload->value = position;
        payload->tenfold = position * 10;
        counted &= stream_counter(memory) == position;
        oh_sensor_commit_at(&sensor, position + 7);
        counted &= stream_counter(memory) == position + 1 && sensor.count == position + 1;
    }
    for (position = 996; position < 1000; position++) {
        const struct pair *payload = (const struct pair *)stream_payload(&sensor, position);
        whole &= stream_element(&sensor, position)->stamp == position + 7;
        whole &= payload->value == position && payload->tenfold == position * 10;
    }
    tap_check(counted, "only a commit counts");
    tap_check(whole, "the ring holds the newest elements");
}

static void write_can_be_restarted(void)
{
    oh_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    void *first = oh_sensor_write(&sensor);
    tap_check(first == oh_sensor_write(&sensor), "a second write hands out the same slot");
    oh_sensor_commit(&sensor);
    tap_check(first != oh_sensor_write(&sensor), "after a commit it is the next slot");
    tap_check((uintptr_t)first % 8 == 0, "payloads are aligned to words");
}

static void put_copies_every_byte_and_zeroes_the_rest(void)
{
    oh_sensor sensor = begin(sizeof(struct odd), OH_CLOCK_MONOTONIC);
    const uint8_t *payload = (const uint8_t *)stream_payload(&sensor, 0);
    struct odd value;
    size_t index;
    int good = 1;
    memset((void *)(uintptr_t)payload, 0xff, 16);
    for (index = 0; index < sizeof value.bytes; index++)
        value.bytes[index] = (uint8_t)(index + 1);
    oh_sensor_put(&sensor, &value);
    for (index = 0; index < 16; index++)
        good &= payload[index] == (index < 13 ? index + 1 : 0);
    tap_check(good, "a payload of 13 bytes is copied, three bytes are zeroed");
    tap_check(stream_counter(memory) == 1, "put counts one element");
}

static void counter_wraps_around(void)
{
    oh_sensor sensor = begin(sizeof(struct pair), OH_CLOCK_MONOTONIC);
    const struct pair value = {1, 10};
    sensor.count = UINT64_MAX;
    oh_sensor_put_at(&sensor, &value, 9);
    tap_check(stream_counter(memory) == 0 && stream_element(&sensor, UINT64_MAX)->stamp == 9,
              "the counter may wrap around");
}

static void stamps_do_not_go_back(uint32_t clock_id, const char *name)
{
    oh_sensor sensor = begin(sizeof(struct pair), clock_id);
    const struct pair value = {1, 10};
    uint64_t last = 0;
    int ascending = 1;
    int round;
    for (round = 0; round < 1000; round++) {
        uint64_t stamp;
        oh_sensor_put(&sensor, &value);
        stamp = stream_element(&sensor, sensor.count - 1)->stamp;
        ascending &= stamp >= last && stamp != 0;
        last = stamp;
    }
    tap_check(ascending, name);
}

static void empty_payload_is_an_event(void)
{
    oh_sensor sensor = begin(0, OH_CLOCK_MONOTONIC);
    tap_check(sensor.stride == 8, "an element without payload is its stamp");
    oh_sensor_write(&sensor);
    oh_sensor_commit(&sensor);
    tap_check(stream_counter(memory) == 1 && stream_element(&sensor, 0)->stamp != 0,
              "an element without payload is stamped and counted");
}

int main(void)
{
    uint64_t before = oh_thread_cpu_ns();
    writes_wrap_and_count();
    write_can_be_restarted();
    put_copies_every_byte_and_zeroes_the_rest();
    counter_wraps_around();
    empty_payload_is_an_event();
    stamps_do_not_go_back(OH_CLOCK_MONOTONIC, "stamps of CLOCK_MONOTONIC ascend");
#if defined(__x86_64__)
    stamps_do_not_go_back(OH_CLOCK_X86_TSC, "stamps of the time stamp counter ascend");
#elif defined(__aarch64__)
    stamps_do_not_go_back(OH_CLOCK_ARM_CNTVCT, "stamps of the virtual counter ascend");
#else
    tap_skip("stamps of a hardware counter ascend", "this CPU's counter has no clock id");
#endif
    tap_check(before > 0 && oh_thread_cpu_ns() > before, "the thread's CPU time grows");
    return tap_done();
}
