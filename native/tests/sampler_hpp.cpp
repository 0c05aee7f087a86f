/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. The sampler of C++: errors, moves, and jobs that end with their scope. */
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/sampler.hpp>

#include <cstring>
#include <utility>

#include "tap.h"

namespace {

OH_SAMPLER(clocks, 0, "task-clock", "cpu-clock");
OH_SAMPLER(misspelled, 0, "task-clokc");

void errors()
{
    try {
        const overhear::sampler sampler(misspelled);
        tap_check(0, "an unknown counter throws");
    } catch (const overhear::register_error &error) {
        tap_check(error.code() == -EINVAL && std::strstr(error.what(), "task-clock") != nullptr,
                  "an unknown counter throws");
    }
    auto failed = overhear::sampler::try_register(misspelled);
    tap_check(!failed && std::strstr(overhear::last_error(), "task-clokc") != nullptr,
              "or converts to false");
    tap_check(!failed.sample() && !failed.job_end() && !failed.is_connected(),
              "what failed takes no samples");
    const auto job = failed.begin_job();
}

void moves()
{
    overhear::sampler first(clocks, "first");
    overhear::sampler second(std::move(first));
    tap_check(!first && second, "the sampler has moved");
    tap_check(!first.sample() && second.sample(), "the new one takes samples");
    second = overhear::sampler(clocks, "second");
    tap_check(second.sample() && second.failed() == 0 && second.missing(0) == nullptr,
              "another one takes its place");
}

void jobs()
{
    overhear::sampler sampler(clocks);
    {
        const auto job = sampler.begin_job();
        (void)sampler.sample();
    }
    tap_check(sampler.job_end(), "jobs end with their scope");
}

} // namespace

int main()
{
    if (!overhear::sampler::try_register(clocks)) {
        tap_skip("samplers", "this user may not count");
        return tap_done();
    }
    errors();
    moves();
    jobs();
    return tap_done();
}
