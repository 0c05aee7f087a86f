/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. The golden image of a concurrent stream is read, and written again.
 *
 * crates/overhear-stream/tests/golden_queue.rs describes the image, makes it and does the same in
 * Rust. Stamps are the only words that C writes otherwise, because it reads a clock: they are put
 * in place before the comparison. The path is relative to the root of the repository.
 */
#include "queue.h"
#include "tap.h"

enum { CAPACITY = 8, ELEMENTS = 11, VOID = 6, BYTES = QUEUE_BYTES(12, CAPACITY) };

struct sample {
    uint32_t number;
    uint32_t square;
    int32_t negative;
};

static const char path[] = "crates/overhear-stream/tests/golden/concurrent-v1.bin";

/* One more than the image, so that a longer file is noticed. */
static uint64_t golden[BYTES / 8 + 1];
static uint64_t made[BYTES / 8];
static oh_concurrent_sensor sensor;

static struct sample sample(uint64_t sequence)
{
    struct sample value;
    value.number = (uint32_t)sequence;
    value.square = (uint32_t)(sequence * sequence);
    value.negative = -(int32_t)sequence;
    return value;
}

static uint64_t stamp(uint64_t sequence)
{
    return sequence == VOID ? 0 : 1000000 + 250 * sequence;
}

static uint32_t writer(uint64_t sequence)
{
    return 100 + (uint32_t)(sequence % 3);
}

static void check_reading(void)
{
    const oh_stream_header *header = (const oh_stream_header *)(const void *)golden;
    oh_concurrent_sensor view;
    uint64_t sequence;
    int whole = 1;
    tap_check(memcmp(header->magic, OH_STREAM_MAGIC, 8) == 0 &&
                  header->version == OH_LAYOUT_VERSION && header->header_size == OH_HEADER_SIZE &&
                  header->flags == 0,
              "magic, version and header size");
    tap_check(header->writer_kind == OH_WRITER_CONCURRENT && header->stream_id == 9 &&
                  header->clock_id == OH_CLOCK_X86_TSC,
              "writer kind, clock and id");
    tap_check(header->payload_size == sizeof(struct sample) && header->stride == 32 &&
                  header->capacity == CAPACITY,
              "geometry");
    memset(&view, 0, sizeof view);
    view.base = (uint8_t *)golden;
    view.elements = (uint8_t *)golden + QUEUE_ELEMENTS(CAPACITY);
    view.mask = CAPACITY - 1;
    view.stride = 32;
    tap_check(queue_published(&view) == ELEMENTS && queue_oldest(&view) == ELEMENTS - CAPACITY,
              "head and tail");
    tap_check(queue_lost_full(&view) == 1, "the refused write");
    for (sequence = ELEMENTS - CAPACITY; sequence < ELEMENTS; sequence++) {
        const oh_thread_element *element = queue_element(&view, sequence);
        const struct sample expected = sample(sequence);
        if (sequence == VOID) {
            whole &= element->flags == OH_ELEMENT_VOID;
            continue;
        }
        whole &= element->stamp == stamp(sequence) && element->tid == writer(sequence);
        whole &= element->flags == 0 && memcmp(element + 1, &expected, sizeof expected) == 0;
    }
    tap_check(whole, "the eight readable elements, one of them void");
}

static void put(uint64_t sequence)
{
    const struct sample value = sample(sequence);
    queue_tid = writer(sequence);
    oh_concurrent_put(&sensor, &value);
}

static void commit(struct sample *payload, uint64_t sequence)
{
    *payload = sample(sequence);
    queue_tid = writer(sequence);
    oh_concurrent_commit(&sensor, payload);
}

/* The history of the image, as in golden_queue.rs. */
static void write_all(void)
{
    struct sample *held, *second;
    int element;
    sensor = queue_begin(made, sizeof(struct sample), CAPACITY, OH_CLOCK_MONOTONIC, 9);
    for (element = 0; element < 4; element++)
        put((uint64_t)element);
    held = (struct sample *)oh_concurrent_write(&sensor);
    put(4);
    put(5);
    oh_concurrent_abandon(&sensor, held);
    put(7);
    put(8);
    held = (struct sample *)oh_concurrent_write(&sensor);
    second = (struct sample *)oh_concurrent_write(&sensor);
    commit(second, 9);
    commit(held, 10);
}

static void check_writing(void)
{
    oh_stream_header *header = (oh_stream_header *)(void *)made;
    uint64_t sequence;
    write_all();
    header->clock_id = OH_CLOCK_X86_TSC;
    header->lost_full = 1;
    for (sequence = ELEMENTS - CAPACITY; sequence < ELEMENTS; sequence++)
        queue_element(&sensor, sequence)->stamp = stamp(sequence);
    tap_check(memcmp(made, golden, BYTES) == 0, "C writes the image, but for the stamps");
}

int main(void)
{
    FILE *file;
    size_t bytes;
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    tap_skip("golden image", "the image is little-endian, this machine is not");
    return tap_done();
#endif
    file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    bytes = fread(golden, 1, sizeof golden, file);
    fclose(file);
    tap_check(bytes == BYTES, "the image has its size");
    check_reading();
    check_writing();
    return tap_done();
}
