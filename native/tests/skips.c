/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. Writes that a budget keeps from being made are counted in the header (section
 * 5.5), those of a sensor that is off for another reason are not.
 *
 * No directory owns these sensors, so each has a switch of this test.
 */
#include <string.h>

#include <overhear/sensor.h>

#include "tap.h"

struct sample {
    uint64_t number;
};

static const oh_field fields[] = {OH_FIELD_U64(struct sample, number, "")};
static const struct sample one = {1};
static uint32_t turned = OH_SWITCH_ON;

static oh_sensor_options options(void)
{
    oh_sensor_options options;
    memset(&options, 0, sizeof options);
    options.id = "skips";
    options.type = "skips_sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    return options;
}

static int has(const uint8_t *base, uint64_t count, uint64_t at, uint64_t runs)
{
    const oh_stream_header *header = (const oh_stream_header *)(const void *)base;
    return header->skipped == count && header->skipped_at == at && header->skip_runs == runs;
}

static void simple_sensor_counts(void)
{
    const oh_sensor_options settings = options();
    oh_sensor *sensor;
    if (oh_sensor_register(&sensor, &settings) != 0) {
        tap_check(0, "a simple sensor is registered");
        return;
    }
    sensor->enabled = &turned;
    oh_sensor_put(sensor, &one);
    turned = OH_SWITCH_OFF;
    oh_sensor_put(sensor, &one);
    tap_check(has(sensor->base, 0, 0, 0) && sensor->count == 1, "simple: off counts nothing");
    turned = OH_SWITCH_COUNTED;
    oh_sensor_put(sensor, &one);
    oh_sensor_put_at(sensor, &one, 1);
    (void)oh_sensor_write(sensor);
    oh_sensor_commit(sensor);
    (void)oh_sensor_write(sensor);
    oh_sensor_commit_at(sensor, 1);
    tap_check(!oh_sensor_enabled(sensor), "simple: off for a budget is off");
    tap_check(has(sensor->base, 5, 1, 1) && sensor->count == 1, "simple: each write is counted");
    turned = OH_SWITCH_ON;
    oh_sensor_put(sensor, &one);
    turned = OH_SWITCH_COUNTED;
    oh_sensor_put(sensor, &one);
    tap_check(has(sensor->base, 6, 2, 2), "simple: an element between makes another run");
    turned = 3;
    oh_sensor_put(sensor, &one);
    tap_check(has(sensor->base, 6, 2, 2) && sensor->count == 2, "simple: unknown states are off");
    turned = OH_SWITCH_ON;
    oh_sensor_unregister(sensor);
}

/* The lane of this thread, which is the only writer. */
static const uint8_t *lane_of(const oh_laned_sensor *sensor)
{
    uint32_t lane = 0;
    while (lane + 1 < sensor->lane_count && sensor->lanes[lane].tid == 0)
        lane++;
    return sensor->lanes[lane].base;
}

static void laned_sensor_counts(void)
{
    const oh_sensor_options settings = options();
    oh_laned_sensor *sensor;
    if (oh_laned_register(&sensor, &settings) != 0) {
        tap_check(0, "a laned sensor is registered");
        return;
    }
    sensor->enabled = &turned;
    turned = OH_SWITCH_COUNTED;
    tap_check(!oh_laned_put(sensor, &one) && oh_laned_write(sensor) == NULL,
              "laned: nothing is written");
    turned = OH_SWITCH_ON;
    tap_check(oh_laned_put(sensor, &one) == 1, "laned: an element");
    turned = OH_SWITCH_COUNTED;
    tap_check(!oh_laned_enabled(sensor), "laned: off for a budget is off");
    tap_check(has(lane_of(sensor), 3, 1, 2), "laned: counted in the lane of the thread");
    turned = OH_SWITCH_OFF;
    (void)oh_laned_put(sensor, &one);
    tap_check(has(lane_of(sensor), 3, 1, 2), "laned: off counts nothing");
    turned = OH_SWITCH_ON;
    oh_laned_unregister(sensor);
}

static void concurrent_sensor_counts(void)
{
    const oh_sensor_options settings = options();
    oh_concurrent_sensor *sensor;
    uint64_t first;
    if (oh_concurrent_register(&sensor, &settings) != 0) {
        tap_check(0, "a concurrent sensor is registered");
        return;
    }
    sensor->enabled = &turned;
    first = (uint64_t)sensor->mask + 1;
    turned = OH_SWITCH_COUNTED;
    tap_check(!oh_concurrent_put(sensor, &one) && oh_concurrent_write(sensor) == NULL,
              "concurrent: nothing is written");
    tap_check(has(sensor->base, 2, first, 1), "concurrent: each write is counted");
    turned = OH_SWITCH_ON;
    tap_check(oh_concurrent_put(sensor, &one) == 1, "concurrent: an element");
    turned = OH_SWITCH_COUNTED;
    tap_check(!oh_concurrent_enabled(sensor) && has(sensor->base, 3, first + 1, 2),
              "concurrent: an element between makes another run");
    turned = OH_SWITCH_OFF;
    (void)oh_concurrent_put(sensor, &one);
    tap_check(has(sensor->base, 3, first + 1, 2), "concurrent: off counts nothing");
    turned = OH_SWITCH_ON;
    oh_concurrent_unregister(sensor);
}

int main(void)
{
    simple_sensor_counts();
    laned_sensor_counts();
    concurrent_sensor_counts();
    return tap_done();
}
