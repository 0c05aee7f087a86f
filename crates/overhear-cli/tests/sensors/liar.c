/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Writes to two sensors for 1.5 s of CPU time, and damages the header of one of them all the time:
 * its counter and its counts of skipped writes jump, fall and wrap. Prints how often it wrote to
 * the other one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <overhear/sensor.h>

struct sample {
    uint64_t number;
};

static const oh_field fields[] = {OH_FIELD_U64(struct sample, number, "")};

static oh_sensor *sensor_of(const char *id)
{
    oh_sensor_options options;
    oh_sensor *sensor;
    memset(&options, 0, sizeof options);
    options.id = id;
    options.type = "liar_sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "refused: %s\n", oh_last_error());
        exit(1);
    }
    return sensor;
}

static uint64_t cpu_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

int main(void)
{
    static const uint64_t lies[] = {
        0, 1, UINT64_MAX, 1000, UINT64_MAX / 2 + 1, 999, UINT32_MAX, (uint64_t)1 << 40,
    };
    oh_sensor *honest = sensor_of("honest"), *liar = sensor_of("liar");
    volatile oh_stream_header *header = (volatile oh_stream_header *)liar->base;
    struct sample sample = {0};
    uint64_t lie = 0;
    while (cpu_ms() < 1500) {
        for (int turn = 0; turn < 500; turn++) {
            volatile uint64_t work = sample.number;
            for (int step = 0; step < 4000; step++)
                work = work * 6364136223846793005u + 1;
            oh_sensor_put(honest, &sample);
            oh_sensor_put(liar, &sample);
            sample.number++;
        }
        lie++;
        header->skipped = lies[lie % 8];
        if (lie % 3 == 0)
            header->skipped_at = lies[lie / 8 % 8];
        if (lie % 5 == 0)
            header->skip_runs = lies[lie / 64 % 8];
        if (lie % 7 == 0)
            header->counter = lies[lie / 7 % 8];
    }
    oh_sensor_unregister(liar);
    oh_sensor_unregister(honest);
    printf("honest %llu\n", (unsigned long long)sample.number);
    return 0;
}
