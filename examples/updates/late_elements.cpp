/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An update: which elements came later after their predecessors than they should?
 *
 *     c++ -std=c++17 -shared -fPIC -Iinclude examples/updates/late_elements.cpp -o late_elements.so
 *     overhear run --out DIR --update ./late_elements.so=2000000 -- PROGRAM
 *     overhear report DIR --update ./late_elements.so=1000000
 *
 * The argument is the longest distance that is not late, in nanoseconds; 1 ms without it.
 */
#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include <overhear/update.hpp>

class late_elements : public overhear::update {
  public:
    explicit late_elements(const char *argument)
    {
        char *end = nullptr;
        limit_ns = *argument ? std::strtoull(argument, &end, 10) : 1000000;
        if (end && *end)
            throw std::invalid_argument("the argument is a number of nanoseconds, for example 1000000");
    }

    /* Memory is had here, not where elements are evaluated. */
    void open(const oh_stream &stream) override { last_ns[&stream] = 0; }

    void element(const oh_element_view &element) override
    {
        std::uint64_t &last = last_ns.at(element.stream);
        const std::uint64_t distance_ns = last ? element.time_ns - last : 0;
        elements++;
        late += distance_ns > limit_ns;
        longest_ns = std::max(longest_ns, distance_ns);
        last = element.time_ns;
    }

    /* Across a gap no distance is known. */
    void gap(const oh_gap &gap) override
    {
        missed += gap.missed;
        last_ns.at(gap.stream) = 0;
    }

    void report(overhear::report &report) override
    {
        report.set("elements", elements);
        report.set("late", late);
        report.set("longest_ns", longest_ns);
        report.set("missed", missed);
    }

  private:
    std::uint64_t limit_ns;
    std::uint64_t elements = 0, late = 0, missed = 0, longest_ns = 0;
    /* The time of each stream's last element; 0 before the first and behind a gap. */
    std::unordered_map<const oh_stream *, std::uint64_t> last_ns;
};

static constexpr oh_update exported = overhear::exported<late_elements>("late_elements");
OH_EXPORT_UPDATES(&exported)
