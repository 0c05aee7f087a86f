/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. The switch of a sensor of C++, whose place the object keeps.
 *
 * A forked child has a private copy of the page with the switches, which it may write, as only the
 * directory may write its parent's.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <overhear/sensor.hpp>

#include <cstring>
#include <sys/wait.h>
#include <utility>

#include "connected.h"
#include "tap.h"

namespace {

struct sample {
    std::uint64_t number;
};
OVERHEAR_FIELDS(sample, "sample", OVERHEAR_FIELD(number, ""));

template <class sensor_type> void turn(const sensor_type &sensor, bool on)
{
    *const_cast<std::uint32_t *>(sensor.handle()->enabled) = on;
}

int again(overhear::sensor<sample> &sensor)
{
    return oh_sensor_register_again(sensor.handle());
}
int again(overhear::laned_sensor<sample> &sensor)
{
    return oh_laned_register_again(sensor.handle());
}
int again(overhear::concurrent_sensor<sample> &sensor)
{
    return oh_concurrent_register_again(sensor.handle());
}

template <class sensor_type> void spend(const sensor_type &sensor)
{
    *const_cast<std::uint32_t *>(sensor.handle()->enabled) = OH_SWITCH_COUNTED;
}

/* Writes that were skipped for a budget. */
std::uint64_t skipped(const std::uint8_t *base)
{
    return reinterpret_cast<const oh_stream_header *>(base)->skipped;
}
std::uint64_t skipped(const overhear::sensor<sample> &sensor)
{
    return skipped(sensor.handle()->base);
}
std::uint64_t skipped(const overhear::laned_sensor<sample> &sensor)
{
    std::uint64_t count = 0;
    for (std::uint32_t lane = 0; lane < sensor.handle()->lane_count; lane++)
        count += skipped(sensor.handle()->lanes[lane].base);
    return count;
}
std::uint64_t skipped(const overhear::concurrent_sensor<sample> &sensor)
{
    return skipped(sensor.handle()->base);
}

/* Elements that the sensor has published. */
std::uint64_t published(const overhear::sensor<sample> &sensor)
{
    return sensor.handle()->count;
}
std::uint64_t published(const overhear::laned_sensor<sample> &sensor)
{
    std::uint64_t count = 0;
    for (std::uint32_t lane = 0; lane < sensor.handle()->lane_count; lane++)
        count += sensor.handle()->lanes[lane].count;
    return count;
}

/* For a queue the writes themselves return whether they were published. */
template <class sensor_type> bool writes(sensor_type &sensor)
{
    return sensor.write({1});
}
template <> bool writes(overhear::sensor<sample> &sensor)
{
    const std::uint64_t before = published(sensor);
    sensor.write({1});
    return published(sensor) == before + 1;
}
template <> bool writes(overhear::laned_sensor<sample> &sensor)
{
    const std::uint64_t before = published(sensor);
    return sensor.write({1}) && published(sensor) == before + 1;
}

/* In a forked child. Returns 0, or the number of the failed step. */
template <class sensor_type> int follows_the_switch(sensor_type &sensor)
{
    turn(sensor, false);
    if (sensor.is_enabled() || writes(sensor))
        return 1;
    if (skipped(sensor) != 0)
        return 6;
    spend(sensor);
    if (sensor.is_enabled() || writes(sensor) || skipped(sensor) != 2)
        return 7;
    turn(sensor, true);
    if (!sensor.is_enabled() || !writes(sensor))
        return 2;
    turn(sensor, false);
    sensor_type moved(std::move(sensor));
    if (moved.is_enabled() || writes(moved))
        return 3;
    sensor = std::move(moved);
    if (sensor.is_enabled() || writes(sensor))
        return 4;
    /* The new registration has a switch of its own, which is on. */
    if (!sensor.register_again() || !sensor.is_enabled() || !writes(sensor))
        return 5;
    return 0;
}

/* A registration that the object did not see leaves it with the old switch, which stays
   mapped. */
template <class sensor_type> int outlives_its_registration(sensor_type &sensor)
{
    if (again(sensor) != 1)
        return 1;
    /* The library checks its state at the next registration. */
    const sensor_type other("other");
    if (!sensor.is_enabled() || !writes(sensor))
        return 1;
    return sensor.register_again() && sensor.is_enabled() && writes(sensor) ? 0 : 2;
}

template <class sensor_type> int in_a_child(sensor_type &sensor, int (*step)(sensor_type &))
{
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        alarm(40);
        _exit(step(sensor));
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

template <class sensor_type> void kind(const char *id)
{
    sensor_type sensor(id);
    tap_check(sensor.is_connected() && sensor.is_enabled() && writes(sensor), "a sensor is connected, and on");
    int step = in_a_child(sensor, follows_the_switch<sensor_type>);
    tap_check(step == 0, "an object reads the switch of its handle");
    step = in_a_child(sensor, outlives_its_registration<sensor_type>);
    tap_check(step == 0, "and no memory that is gone");
    tap_check(sensor.is_enabled() && writes(sensor), "the parent's sensor goes on");
}

} // namespace

int main(int argc, char **argv)
{
    alarm(120);
    if (argc == 1) {
        start_connected(argv[0]);
        tap_skip("switches under a directory", "the command overhear is not built");
        return tap_done();
    }
    kind<overhear::sensor<sample>>("simple");
    kind<overhear::laned_sensor<sample>>("laned");
    kind<overhear::concurrent_sensor<sample>>("concurrent");
    return tap_done();
}
