/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_monitor. monitor.hpp: a monitor in a C++ program, its updates as objects, and
   waiting. */
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include <unistd.h>

#include <overhear/monitor.hpp>
#include <overhear/sensor.hpp>

#include "tap.h"

struct value {
    std::uint64_t number;
};
OVERHEAR_FIELDS(value, "value", OVERHEAR_FIELD(number, ""));

static int alive = 0;

class sum : public overhear::update {
  public:
    sum() { alive++; }
    ~sum() override { alive--; }
    void element(const oh_element_view &element) override
    {
        const std::uint64_t number = overhear::payload_of<value>(element).number;
        if (number == 99)
            throw std::runtime_error("99 is too much");
        numbers += number;
    }
    std::uint64_t numbers = 0;
};

int main()
{
    const std::chrono::seconds patience(60);
    const std::string socket = "/tmp/oh-monitor-hpp-" + std::to_string(getpid()) + ".sock";
    setenv("OVERHEAR_DIRECTORY", socket.c_str(), 1);
    bool thrown = false;
    try {
        overhear::monitor lost;
    } catch (const overhear::monitor_error &error) {
        thrown = *error.what() != '\0';
    }
    tap_check(thrown, "what cannot start throws a message");

    overhear::directory directory(socket.c_str());
    overhear::sensor<value> sensor("value");
    {
        oh_monitor_options options{};
        options.sensors = "value";
        options.announce = "hpp";
        overhear::monitor monitor(options);
        sum &added = monitor.add(std::make_unique<sum>(), "sum");
        overhear::waiter waiter("hpp");
        sensor.write(value{5});
        tap_check(monitor.wait(oh_now_ns(), patience) && added.numbers == 5, "its owner waits");
        sensor.write(value{6});
        tap_check(waiter.wait(oh_now_ns(), patience), "anybody waits");
        tap_check(monitor.wait(oh_now_ns(), patience) && added.numbers == 11, "both were evaluated");
        tap_check(!waiter.wait(UINT64_MAX / 2, std::chrono::nanoseconds(1)), "nobody waits forever");
        tap_check(!monitor.wait(UINT64_MAX / 2, std::chrono::seconds(-1)) &&
                      !waiter.wait(UINT64_MAX / 2, std::chrono::seconds(-1)),
                  "nobody waits for a time that is over");
        tap_check(alive == 1, "the monitor owns the update");
        sum &other = monitor.add(std::make_unique<sum>(), "other");
        sensor.write(value{99});
        std::string why;
        while (monitor.status(added, &why).state == OH_UPDATE_RUNNING)
            monitor.wait(oh_now_ns(), patience);
        tap_check(why.find("99 is too much") != std::string::npos &&
                      monitor.status(added).state == OH_UPDATE_FAILED && monitor.status(added).elements == 3,
                  "one that throws has failed, and has a reason");
        monitor.remove(other);
        tap_check(alive == 1, "an update is removed and destroyed");
        thrown = false;
        try {
            monitor.status(other);
        } catch (const overhear::monitor_error &) {
            thrown = true;
        }
        tap_check(thrown, "what was removed is not there any more");
    }
    tap_check(alive == 0, "and destroys it at its end");
    return tap_done();
}
