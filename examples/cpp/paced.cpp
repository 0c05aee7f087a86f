/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A producer that keeps to its declared rate: it could be faster, but waits until its stream allows
 * the next element. A monitor that reserved time for this rate misses nothing.
 *
 *     overhear run -- ./paced
 */
#include <chrono>
#include <cstdint>
#include <cstdio>

#include <overhear/sensor.hpp>

struct level {
    std::uint64_t number;
    double volts;
};
OVERHEAR_FIELDS(level, "level", OVERHEAR_FIELD(number, ""), OVERHEAR_FIELD(volts, "V"));

int main()
{
    using namespace std::chrono_literals;
    /* One element each millisecond in the long run; up to 10 ms of them at once, but never two
       closer than 100 us. */
    overhear::sensor<level> sensor("level", overhear::options().rate(1ms, 100us, 10ms));
    if (!sensor.is_connected())
        std::fprintf(stderr, "not connected: %s\n", overhear::last_error());

    for (std::uint64_t number = 0; number < 200; number++) {
        sensor.pace();
        sensor.write({number, static_cast<double>(number % 50) / 10});
    }
}
