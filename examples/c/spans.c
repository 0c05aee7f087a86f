/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Begin and end of units of work: an element for each, so that a monitor sees which units are under
 * way at any moment, and how long each took, without the program remembering anything.
 *
 *     overhear run -- ./spans
 */
#include <stdio.h>

#include <overhear/sensor.h>

enum { UNITS = 500, BEGIN = 0, END = 1 };

struct work_edge {
    uint64_t unit;   /* which unit of work: the same at its begin and its end */
    uint32_t edge;   /* BEGIN or END */
    uint32_t amount; /* how much there is to do */
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct work_edge, unit, ""),
    OH_FIELD_U32(struct work_edge, edge, ""),
    OH_FIELD_U32(struct work_edge, amount, "steps"),
};

static void work(uint32_t amount)
{
    volatile uint32_t sum = 0;
    for (uint32_t step = 0; step < amount; step++)
        sum += step;
}

int main(void)
{
    const oh_sensor_options options = {
        .id = "work",
        .type = "work_edge",
        .fields = fields,
        .field_count = sizeof fields / sizeof *fields,
        .size = sizeof(struct work_edge),
    };
    oh_sensor *sensor;

    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    if (!oh_sensor_is_connected(sensor))
        fprintf(stderr, "not connected: %s\n", oh_last_error());

    for (uint64_t unit = 0; unit < UNITS; unit++) {
        struct work_edge element = {unit, BEGIN, 1000 + 10 * (uint32_t)unit};
        oh_sensor_put(sensor, &element);
        work(element.amount);
        element.edge = END;
        oh_sensor_put(sensor, &element);
    }

    oh_sensor_unregister(sensor);
    return 0;
}
