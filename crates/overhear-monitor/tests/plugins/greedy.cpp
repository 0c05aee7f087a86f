/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An update that uses memory of every kind. It uses all of it for the first time at the first
 * element, and counts the page faults of its thread meanwhile.
 */
#include <overhear/update.hpp>

#include <array>
#include <memory>

#include <sys/resource.h>

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t pages = 64;

std::array<unsigned char, pages * page> zeroed;
thread_local std::array<unsigned char, pages * page> local;

std::int64_t faults()
{
    rusage usage{};
    return getrusage(RUSAGE_THREAD, &usage) != 0 ? -1 : usage.ru_minflt + usage.ru_majflt;
}

/* Found by a table of functions, like the virtual functions of an evaluation. */
struct shape {
    virtual ~shape() = default;
    virtual std::uint64_t area(std::uint64_t side) const = 0;
};
struct square final : shape {
    std::uint64_t area(std::uint64_t side) const override { return side * side; }
};

__attribute__((noinline)) std::uint64_t deep(std::uint64_t value)
{
    volatile unsigned char stack[16 * page];
    for (std::size_t at = 0; at < sizeof stack; at += page)
        stack[at] = static_cast<unsigned char>(value + at);
    return stack[page];
}

class greedy : public overhear::update {
  public:
    explicit greedy(const char *)
        : own(new unsigned char[pages * page]), shape_of(std::make_unique<square>())
    {
    }

    void warm_up() override
    {
        warmed++;
        before = elements;
    }
    void element(const oh_element_view &element) override
    {
        if (elements == 0)
            base = faults();
        for (std::size_t at = 0; at < pages * page; at += page)
            zeroed[at] = local[at] = own[at] = static_cast<unsigned char>(element.sequence);
        sum += shape_of->area(element.sequence) + deep(element.sequence);
        total = faults() - base;
        if (elements++ == 0)
            first = total;
    }
    void report(overhear::report &report) override
    {
        report.set("elements", elements);
        report.set("warmed", warmed);
        report.set("before", before);
        report.set("first", first);
        report.set("faults", total);
    }

  private:
    /* Not even filled with zeros. */
    std::unique_ptr<unsigned char[]> own;
    std::unique_ptr<shape> shape_of;
    std::uint64_t elements = 0, warmed = 0, before = 0, sum = 0;
    std::int64_t first = 0, total = 0, base = 0;
};

constexpr oh_update exported = overhear::exported<greedy>("greedy");

} /* namespace */

OH_EXPORT_UPDATES(&exported)
