/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One sensor, many threads: each writes into a lane of its own, without a lock, and a monitor sees
 * one sensor.
 *
 *     overhear run -- ./threads
 */
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include <overhear/sensor.hpp>

struct step {
    std::uint32_t worker;
    std::uint32_t number;
};
OVERHEAR_FIELDS(step, "step", OVERHEAR_FIELD(worker, ""), OVERHEAR_FIELD(number, ""));

int main()
{
    constexpr std::uint32_t threads = 4;
    overhear::laned_sensor<step> sensor("step", overhear::options().lanes(threads));
    if (!sensor.is_connected())
        std::fprintf(stderr, "not connected: %s\n", overhear::last_error());

    std::vector<std::thread> workers;
    for (std::uint32_t worker = 0; worker < threads; worker++)
        workers.emplace_back([&sensor, worker] {
            /* Optional: claims the lane and touches its memory now, not at the first write. */
            sensor.prepare_thread();
            for (std::uint32_t number = 0; number < 250; number++)
                sensor.write({worker, number});
        });
    for (std::thread &worker : workers)
        worker.join();
}
