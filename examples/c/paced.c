/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A producer that keeps to its declared rate: it could be faster, but waits until its stream allows
 * the next element. A monitor that reserved time for this rate misses nothing.
 *
 *     overhear run -- ./paced
 */
#include <stdio.h>

#include <overhear/sensor.h>

enum { SAMPLES = 200 };

struct level {
    uint64_t number;
    double volts;
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct level, number, ""),
    OH_FIELD_F64(struct level, volts, "V"),
};

int main(void)
{
    const oh_sensor_options options = {
        .id = "level",
        .type = "level",
        .fields = fields,
        .field_count = sizeof fields / sizeof *fields,
        .size = sizeof(struct level),
        /* One element each millisecond in the long run; up to 10 ms of them at once, but never two
           closer than 100 us. */
        .period_ns = 1000000,
        .distance_ns = 100000,
        .jitter_ns = 10000000,
    };
    oh_sensor *sensor;

    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    if (!oh_sensor_is_connected(sensor))
        fprintf(stderr, "not connected: %s\n", oh_last_error());

    for (uint64_t number = 0; number < SAMPLES; number++) {
        const struct level level = {number, (double)(number % 50) / 10};
        oh_sensor_pace(sensor);
        oh_sensor_put(sensor, &level);
    }

    oh_sensor_unregister(sensor);
    return 0;
}
