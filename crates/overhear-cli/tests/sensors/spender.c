/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Writes to one sensor as often as it can, and to another one rarely, for as many milliseconds of
 * CPU time as the first argument says. The second argument is the number of steps of work between
 * two writes. With a third argument it has a twin of the first sensor, and writes to it as often.
 * Prints how often it wrote to each.
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
    options.type = "spender_sample";
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

int main(int argc, char **argv)
{
    const uint64_t until = argc > 1 ? strtoull(argv[1], NULL, 10) : 500;
    const uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 4;
    oh_sensor *frequent = sensor_of("frequent"), *rare = sensor_of("rare");
    oh_sensor *twin = argc > 3 ? sensor_of("twin") : NULL;
    struct sample sample = {0}, seldom = {0};
    while (cpu_ms() < until) {
        for (int turn = 0; turn < 400000 / (int)steps; turn++) {
            volatile uint64_t work = sample.number;
            for (uint64_t step = 0; step < steps; step++)
                work = work * 6364136223846793005u + 1;
            oh_sensor_put(frequent, &sample);
            if (twin)
                oh_sensor_put(twin, &sample);
            sample.number++;
        }
        oh_sensor_put(rare, &seldom);
        seldom.number++;
    }
    if (twin)
        oh_sensor_unregister(twin);
    oh_sensor_unregister(rare);
    oh_sensor_unregister(frequent);
    printf("frequent %llu\nrare %llu\n", (unsigned long long)sample.number,
           (unsigned long long)seldom.number);
    return 0;
}
