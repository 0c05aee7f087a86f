/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Writes elements into a stream in a file that another process reads at the same time.
 *
 * shared_writer FILE PAYLOAD_SIZE CAPACITY ELEMENTS: the file has the stream's size and its header.
 * Every word of the payload of position p, and the stamp, is p + 1, so that a copy composed of two
 * elements is noticed. crates/overhear-stream/tests/processes.rs compiles and runs it. Elements
 * are put and written through the pointer in turns: both ways must be as good.
 */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <overhear/sensor.h>

enum { WORDS = 8 };

struct payload {
    uint64_t words[WORDS];
};

int main(int argc, char **argv)
{
    static const uint32_t enabled = 1;
    oh_sensor sensor;
    uint64_t elements, position;
    size_t bytes;
    void *memory;
    int file;

    if (argc != 5 || strtoull(argv[2], NULL, 10) != sizeof(struct payload)) {
        fprintf(stderr, "usage: shared_writer FILE %zu CAPACITY ELEMENTS\n",
                sizeof(struct payload));
        return 2;
    }
    memset(&sensor, 0, sizeof sensor);
    sensor.mask = strtoull(argv[3], NULL, 10) - 1;
    sensor.stride = sizeof(oh_element) + sizeof(struct payload);
    sensor.payload_size = sizeof(struct payload);
    sensor.clock_id = OH_CLOCK_MONOTONIC;
    elements = strtoull(argv[4], NULL, 10);
    bytes = OH_HEADER_SIZE + (size_t)(sensor.mask + 1) * sensor.stride;

    file = open(argv[1], O_RDWR | O_CLOEXEC);
    memory = file < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        perror(argv[1]);
        return 1;
    }
    sensor.base = (uint8_t *)memory;
    sensor.enabled = &enabled;
    for (position = 0; position < elements; position++) {
        struct payload value;
        int word;
        /* Bursts with pauses: the reader catches up and is overtaken again. */
        if (position % 16 == 0) {
            int turn;
            for (turn = 0; turn < 8000; turn++)
                __asm__ volatile("");
        }
        for (word = 0; word < WORDS; word++)
            value.words[word] = position + 1;
        if (position % 2 == 0) {
            oh_sensor_put_at(&sensor, &value, position + 1);
        } else {
            *(struct payload *)oh_sensor_write(&sensor) = value;
            oh_sensor_commit_at(&sensor, position + 1);
        }
    }
    return 0;
}
