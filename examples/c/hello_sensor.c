/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A first sensor: a loop writes the duration of each of its turns and the amount of work.
 *
 *     cargo build --release -p overhear
 *     cc -Iinclude examples/c/hello_sensor.c -Ltarget/release -loverhear -o hello_sensor
 *     LD_LIBRARY_PATH=target/release overhear run -- ./hello_sensor
 *
 * Without `overhear run` it works the same; then no monitor can read it, and it prints that.
 */
#include <stdio.h>

#include <overhear/sensor.h>

/* One observation. Every byte belongs to a field: there is no padding between or behind them. */
struct turn {
    uint64_t cpu_ns;
    uint32_t number;
    uint32_t sum;
};

/* Its description lets every tool print and plot the sensor without knowing this program. */
static const oh_field fields[] = {
    OH_FIELD_U64(struct turn, cpu_ns, "ns"),
    OH_FIELD_U32(struct turn, number, ""),
    OH_FIELD_U32(struct turn, sum, ""),
};

int main(void)
{
    const oh_sensor_options options = {
        .id = "turn", /* the measured quantity, from the view of the user */
        .type = "hello_turn",
        .fields = fields,
        .field_count = sizeof fields / sizeof *fields,
        .size = sizeof(struct turn),
    };
    oh_sensor *sensor;

    /* Registering is the slow part, so it comes before the loop. It fails only if the options
       are wrong. */
    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    if (!oh_sensor_is_connected(sensor))
        fprintf(stderr, "not connected: %s\n", oh_last_error());

    for (uint32_t number = 0; number < 1000; number++) {
        const uint64_t before_ns = oh_thread_cpu_ns();
        volatile uint32_t sum = 0;
        for (uint32_t term = 0; term < 1000 + number; term++)
            sum += term;

        /* About 10 ns: a few stores, no lock, no system call. */
        const struct turn turn = {oh_thread_cpu_ns() - before_ns, number, sum};
        oh_sensor_put(sensor, &turn);
    }

    oh_sensor_unregister(sensor);
    return 0;
}
