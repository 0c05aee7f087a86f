/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. Registration: what is accepted, what is refused, and with which words. */
#include <errno.h>
#include <string.h>

#include <overhear/sensor.h>

#include "tap.h"

struct sample {
    uint64_t items;
    double load;
};

struct padded {
    uint8_t small;
    uint32_t large;
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, items, ""),
    OH_FIELD_F64(struct sample, load, "%"),
};

static const oh_field padded[] = {
    OH_FIELD_U8(struct padded, small, ""),
    OH_FIELD_U32(struct padded, large, ""),
};

static oh_sensor_options good(void)
{
    oh_sensor_options options;
    memset(&options, 0, sizeof options);
    options.id = "register";
    options.type = "register_sample";
    options.fields = fields;
    options.field_count = 2;
    options.size = sizeof(struct sample);
    return options;
}

static int is_zero(const oh_sensor *place)
{
    oh_sensor zero;
    memset(&zero, 0, sizeof zero);
    return memcmp(place, &zero, sizeof zero) == 0;
}

static void refused(const oh_sensor_options *options, const char *name)
{
    oh_sensor place;
    oh_sensor *sensor = &place;
    const int result = oh_sensor_register(&sensor, options);
    tap_check(result == -EINVAL && sensor == NULL && oh_last_error()[0] != '\0', name);
    memset(&place, 0xff, sizeof place);
    tap_check(oh_sensor_register_at(&place, options) == -EINVAL && is_zero(&place), name);
    oh_sensor_unregister(&place);
}

static void refuses_what_contradicts_itself(void)
{
    oh_sensor_options options = good();
    options.id = NULL;
    refused(&options, "a sensor without id is refused");
    options = good();
    options.id = "";
    refused(&options, "an empty id is refused");
    options = good();
    options.type = NULL;
    refused(&options, "a sensor without type is refused");
    options = good();
    options.fields = NULL;
    refused(&options, "fields that are not there are refused");
    options = good();
    options.field_count = 1;
    refused(&options, "fields that do not cover the payload are refused");
    options = good();
    options.fields = padded;
    options.size = sizeof(struct padded);
    refused(&options, "a payload with padding is refused");
    options = good();
    options.period_ns = 10;
    options.distance_ns = 11;
    refused(&options, "a least distance above the period is refused");
    options = good();
    options.size = OH_MAX_PAYLOAD + 8;
    refused(&options, "a payload beyond the largest is refused");
}

static void registers_and_writes(void)
{
    const struct sample value = {7, 0.5};
    oh_sensor_options options = good();
    oh_sensor *sensor = NULL;
    uint64_t element;
    int result;

    options.period_ns = 1000000;
    options.distance_ns = 1000;
    options.capacity = 100;
    result = oh_sensor_register(&sensor, &options);
    tap_check(result == 0 && sensor != NULL, "good options are accepted");
    if (sensor == NULL)
        return;
    tap_check((uintptr_t)sensor % 64 == 0, "the hot part has a cache line to itself");
    tap_check((uintptr_t)sensor->base % 4096 == 0, "the stream begins at a page");
    tap_check(sensor->payload_size == sizeof value && sensor->stride == 8 + sizeof value,
              "geometry");
    tap_check(sensor->mask >= 1 && (sensor->mask & (sensor->mask + 1)) == 0,
              "the capacity is a power of two");
    /* Private memory has no readers, so the library chooses its size. */
    if (oh_sensor_is_connected(sensor))
        tap_check(sensor->mask >= 127, "the capacity is not below the requested one");
    else
        tap_check(oh_last_error()[0] != '\0', "a sensor that is not connected has a reason");
    for (element = 0; element < 1000; element++)
        oh_sensor_put(sensor, &value);
    tap_check(sensor->count == 1000, "a thousand elements are counted");
    oh_sensor_unregister(sensor);
    oh_sensor_unregister(NULL);
    tap_check(1, "NULL may be unregistered");
}

/* A sensor in the caller's memory writes like any other, and may be moved. */
static void registers_in_place(void)
{
    struct part {
        uint64_t before;
        oh_sensor sensor;
        uint64_t behind;
    };
    const struct sample value = {8, 0.25};
    const oh_sensor_options options = good();
    struct part first, second;
    uint64_t written;
    int connected;

    memset(&first, 0x55, sizeof first);
    memset(&second, 0x55, sizeof second);
    tap_check(oh_sensor_register_at(NULL, &options) == -EINVAL &&
                  strstr(oh_last_error(), "`place` is NULL") != NULL,
              "no place is refused");
    tap_check(oh_sensor_register_at(&first.sensor, &options) == 0, "a place is accepted");
    connected = oh_sensor_is_connected(&first.sensor);
    oh_sensor_put(&first.sensor, &value);
    second.sensor = first.sensor;
    memset(&first.sensor, 0, sizeof first.sensor);
    oh_sensor_unregister(&first.sensor);
    oh_sensor_put(&second.sensor, &value);
    tap_check(oh_sensor_is_connected(&second.sensor) == connected, "moved, it is connected as before");
    tap_check(oh_sensor_register_again(&second.sensor) == connected, "and can be registered again");
    memcpy(&written, second.sensor.base + OH_HEADER_SIZE + second.sensor.stride + 8, 8);
    tap_check(second.sensor.count == 2 && written == 8, "it writes on where it was");
    tap_check(oh_sensor_pace(&second.sensor) == -EINVAL && strstr(oh_last_error(), "rate") != NULL,
              "an undeclared one is reported");
    oh_sensor_unregister(&second.sensor);
    tap_check(is_zero(&second.sensor), "given back, the place is zero");
    tap_check(oh_sensor_is_connected(&second.sensor) == 0 &&
                  oh_sensor_register_again(&second.sensor) == -EINVAL &&
                  oh_sensor_pace(&second.sensor) == -EINVAL,
              "and no sensor");
    oh_sensor_unregister(&second.sensor);
    tap_check(first.before == second.before && first.behind == second.behind &&
                  first.before == first.behind,
              "what lies beside it stays");
}

static void event_needs_no_fields(void)
{
    oh_sensor_options options;
    oh_sensor *sensor = NULL;
    memset(&options, 0, sizeof options);
    options.id = "event";
    options.type = "register_event";
    tap_check(oh_sensor_register(&sensor, &options) == 0, "a sensor without payload is accepted");
    if (sensor != NULL) {
        oh_sensor_write(sensor);
        oh_sensor_commit(sensor);
    }
    tap_check(sensor != NULL && sensor->count == 1, "and writes events");
    oh_sensor_unregister(sensor);
}

int main(void)
{
    refuses_what_contradicts_itself();
    registers_and_writes();
    registers_in_place();
    event_needs_no_fields();
    return tap_done();
}
