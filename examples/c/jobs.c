/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cost of jobs: the CPU time and the page faults of each frame that is decoded.
 *
 *     overhear run -- ./jobs
 */
#include <stdio.h>
#include <stdlib.h>

#include <overhear/sampler.h>

enum { FRAMES = 100, FRAME_BYTES = 256 * 1024 };

/* `overhear doctor --counters` lists the counters of a machine. */
OH_SAMPLER(frame, 0, "task-clock", "page-faults");

static void decode(unsigned number)
{
    volatile unsigned char *pixels = (volatile unsigned char *)malloc(FRAME_BYTES);
    if (pixels == NULL)
        return;
    for (unsigned at = 0; at < FRAME_BYTES; at += 64)
        pixels[at] = (unsigned char)(number + at);
    free((void *)pixels);
}

int main(void)
{
    oh_sampler *sampler;

    if (oh_sampler_register(&sampler, &frame) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    if (!oh_sampler_is_connected(sampler))
        fprintf(stderr, "not connected: %s\n", oh_last_error());

    for (unsigned number = 0; number < FRAMES; number++) {
        oh_sampler_job_begin(sampler);
        decode(number);
        oh_sampler_job_end(sampler);
    }

    oh_sampler_unregister(sampler);
    return 0;
}
