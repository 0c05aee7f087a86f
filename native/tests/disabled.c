/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. With OVERHEAR_DISABLE an instrumented program compiles without a warning, runs
 * without liboverhear and leaves no trace of its sensors.
 */
#define OVERHEAR_DISABLE
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/sensor.h>

#include <string.h>

#include "tap.h"

struct sample {
    uint64_t items;
    double load;
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, items, ""),
    OH_FIELD_F64(struct sample, load, "%"),
};

int main(void)
{
    oh_sensor_options options;
    oh_sensor *sensor = (oh_sensor *)&options;
    struct sample *payload;
    struct sample value = {1, 2.0};
    uint64_t stamp;
    oh_sensor place;

    memset(&options, 0, sizeof options);
    options.id = "disabled";
    options.type = "disabled_sample";
    options.fields = fields;
    options.field_count = 2;
    options.size = sizeof(struct sample);
    tap_check(oh_sensor_register(&sensor, &options) == 0 && sensor == NULL,
              "registration succeeds and hands out NULL");
    payload = (struct sample *)oh_sensor_write(sensor);
    payload->items = 1;
    payload->load = 2.0;
    oh_sensor_commit(sensor);
    oh_sensor_put(sensor, &value);
    stamp = oh_sensor_stamp(sensor);
    oh_sensor_put_at(sensor, &value, stamp);
    oh_sensor_commit_at(sensor, stamp);
    tap_check(stamp == 0 && oh_thread_cpu_ns() == 0, "no clock is read");
    tap_check(!oh_sensor_is_connected(sensor), "nobody hears it");
    tap_check(strstr(oh_last_error(), "OVERHEAR_DISABLE") != NULL, "and the message has the reason");
    oh_sensor_unregister(sensor);
    tap_check(oh_sensor_register_at(&place, &options) == 0, "so does one in the caller's memory");
    oh_sensor_put(&place, &value);
    oh_sensor_unregister(&place);
    return tap_done();
}
