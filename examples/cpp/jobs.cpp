/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cost of jobs: the CPU time and the page faults of each frame that is decoded.
 *
 *     overhear run -- ./jobs
 */
#include <cstdio>
#include <vector>

#include <overhear/sampler.hpp>

namespace {

constexpr unsigned frames = 100;
constexpr std::size_t frame_bytes = 256 * 1024;

/* `overhear doctor --counters` lists the counters of a machine. */
OH_SAMPLER(frame, 0, "task-clock", "page-faults");

void decode(unsigned number)
{
    std::vector<unsigned char> pixels(frame_bytes);
    for (std::size_t at = 0; at < frame_bytes; at += 64)
        static_cast<volatile unsigned char &>(pixels[at]) = static_cast<unsigned char>(number + at);
}

} // namespace

int main()
{
    auto sampler = overhear::sampler::try_register(frame);
    if (!sampler) {
        std::fprintf(stderr, "%s\n", overhear::last_error());
        return 1;
    }
    if (!sampler.is_connected())
        std::fprintf(stderr, "not connected: %s\n", overhear::last_error());

    for (unsigned number = 0; number < frames; number++) {
        const auto job = sampler.begin_job();
        decode(number);
    }
    return 0;
}
