/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Begin and end of units of work: an element for each, so that a monitor sees which units are under
 * way at any moment, and how long each took, without the program remembering anything.
 *
 *     overhear run -- ./spans
 */
#include <cstdint>
#include <cstdio>

#include <overhear/sensor.hpp>

namespace {

constexpr std::uint64_t units = 500;

enum class edge : std::uint32_t { begin = 0, end = 1 };

} // namespace

struct work_edge {
    std::uint64_t unit;   /* which unit of work: the same at its begin and its end */
    ::edge edge;
    std::uint32_t amount; /* how much there is to do */
};
OVERHEAR_FIELDS(work_edge, "work_edge", OVERHEAR_FIELD(unit, ""), OVERHEAR_FIELD(edge, ""),
                OVERHEAR_FIELD(amount, "steps"));

namespace {

/* A unit of work that is under way: its end is written however it is left. */
class span {
  public:
    span(overhear::sensor<work_edge> &sensor, std::uint64_t unit, std::uint32_t amount)
        : sensor_(sensor), element_{unit, edge::begin, amount}
    {
        sensor_.write(element_);
    }

    span(const span &) = delete;
    span &operator=(const span &) = delete;

    ~span()
    {
        element_.edge = edge::end;
        sensor_.write(element_);
    }

  private:
    overhear::sensor<work_edge> &sensor_;
    work_edge element_;
};

void work(std::uint32_t amount)
{
    volatile std::uint32_t sum = 0;
    for (std::uint32_t step = 0; step < amount; step++)
        sum = sum + step;
}

} // namespace

int main()
{
    overhear::sensor<work_edge> sensor("work");
    if (!sensor.is_connected())
        std::fprintf(stderr, "not connected: %s\n", overhear::last_error());

    for (std::uint64_t unit = 0; unit < units; unit++) {
        const std::uint32_t amount = 1000 + 10 * static_cast<std::uint32_t>(unit);
        const span under_way(sensor, unit, amount);
        work(amount);
    }
}
