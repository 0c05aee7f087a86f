/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A first sensor: a loop writes the duration of each of its turns and the amount of work.
 *
 *     cargo build --release -p overhear c++ -std=c++17 -Iinclude examples/cpp/hello_sensor.cpp
 *     -Ltarget/release -loverhear -o hello_sensor LD_LIBRARY_PATH=target/release overhear run --
 *     ./hello_sensor
 *
 * Without `overhear run` it works the same; then no monitor can read it, and it prints that.
 */
#include <cstdint>
#include <cstdio>

#include <overhear/sensor.hpp>

/* One observation. The fields cover every byte: there is no padding, or it does not compile. The
   description lets every tool print and plot the sensor without knowing this program. */
struct turn {
    std::uint64_t cpu_ns;
    std::uint32_t number;
    std::uint32_t sum;
};
OVERHEAR_FIELDS(turn, "hello_turn", OVERHEAR_FIELD(cpu_ns, "ns"), OVERHEAR_FIELD(number, ""),
                OVERHEAR_FIELD(sum, ""));

int main()
{
    /* Registering is the slow part, so it comes before the loop. It throws only if the options are
       wrong. */
    overhear::sensor<turn> sensor("turn");
    if (!sensor.is_connected())
        std::fprintf(stderr, "not connected: %s\n", overhear::last_error());

    for (std::uint32_t number = 0; number < 1000; number++) {
        const std::uint64_t before_ns = oh_thread_cpu_ns();
        volatile std::uint32_t sum = 0;
        for (std::uint32_t term = 0; term < 1000 + number; term++)
            sum = sum + term;

        /* About 10 ns: a few stores, no lock, no system call. */
        sensor.write({oh_thread_cpu_ns() - before_ns, number, sum});
    }
}
