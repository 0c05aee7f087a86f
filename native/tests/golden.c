/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. The golden image of layout v1 is read, and written again byte for byte.
 *
 * crates/overhear-stream/tests/golden.rs describes the image, makes it and does the same in Rust.
 * The path is relative to the root of the repository.
 */
#include "stream.h"
#include "tap.h"

enum { CAPACITY = 8, ELEMENTS = 11, STRIDE = 24, BYTES = OH_HEADER_SIZE + CAPACITY * STRIDE };

struct sample {
    uint32_t number;
    uint32_t square;
    int32_t negative;
};

static const char path[] = "crates/overhear-stream/tests/golden/simple-v1.bin";

static struct sample sample(uint64_t position)
{
    struct sample made;
    made.number = (uint32_t)position;
    made.square = (uint32_t)(position * position);
    made.negative = -(int32_t)position;
    return made;
}

static uint64_t stamp(uint64_t position)
{
    return 1000000 + 250 * position;
}

/* One more than the image, so that a longer file is noticed. */
static uint64_t golden[BYTES / 8 + 1];
static uint64_t made[BYTES / 8];

static void check_reading(void)
{
    const oh_stream_header *header = (const oh_stream_header *)(const void *)golden;
    oh_sensor view;
    uint64_t position;
    int whole = 1;

    tap_check(memcmp(header->magic, OH_STREAM_MAGIC, 8) == 0, "magic");
    tap_check(header->version == OH_LAYOUT_VERSION && header->header_size == OH_HEADER_SIZE,
              "version and header size");
    tap_check(header->flags == 0 && header->writer_kind == OH_WRITER_SIMPLE, "writer kind");
    tap_check(header->payload_size == sizeof(struct sample) && header->stride == STRIDE &&
                  header->capacity == CAPACITY,
              "geometry");
    tap_check(header->clock_id == OH_CLOCK_X86_TSC && header->stream_id == 7, "clock and id");
    tap_check(stream_counter(golden) == ELEMENTS, "counter");

    memset(&view, 0, sizeof view);
    view.base = (uint8_t *)golden;
    view.mask = CAPACITY - 1;
    view.stride = STRIDE;
    for (position = ELEMENTS - (CAPACITY - 1); position < ELEMENTS; position++) {
        const struct sample expected = sample(position);
        whole &= stream_element(&view, position)->stamp == stamp(position);
        whole &= memcmp(stream_payload(&view, position), &expected, sizeof expected) == 0;
    }
    tap_check(whole, "the seven readable elements");
}

static void check_writing(void)
{
    oh_sensor sensor = stream_begin(made, sizeof(struct sample), CAPACITY, OH_CLOCK_X86_TSC, 7);
    uint64_t position;
    for (position = 0; position < ELEMENTS; position++) {
        const struct sample value = sample(position);
        oh_sensor_put_at(&sensor, &value, stamp(position));
    }
    tap_check(memcmp(made, golden, BYTES) == 0, "oh_sensor_put_at writes the image");

    memset(made, 0, sizeof made);
    sensor = stream_begin(made, sizeof(struct sample), CAPACITY, OH_CLOCK_X86_TSC, 7);
    for (position = 0; position < ELEMENTS; position++) {
        struct sample *payload = (struct sample *)oh_sensor_write(&sensor);
        *payload = sample(position);
        oh_sensor_commit_at(&sensor, stamp(position));
    }
    tap_check(memcmp(made, golden, BYTES) == 0, "oh_sensor_write and _commit_at write the image");
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
