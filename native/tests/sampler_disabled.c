/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: nothing. With OVERHEAR_DISABLE a program with samplers compiles without a warning and runs
   without liboverhear. */
#define OVERHEAR_DISABLE
#pragma GCC diagnostic error "-Wpedantic"
#include <overhear/sampler.h>

#include "tap.h"

OH_SAMPLER(disabled, 1000, "cycles", "instructions");

int main(void)
{
    oh_sampler *sampler = (oh_sampler *)&sampler;
    tap_check(oh_sampler_register(&sampler, &disabled) == 0 && sampler == NULL,
              "registration succeeds and hands out NULL");
    tap_check(oh_sampler_sample(sampler) == 0 && oh_sampler_job_begin(sampler) == 0 &&
                  oh_sampler_job_end(sampler) == 0 && oh_sampler_failed(sampler) == 0,
              "no sample is taken");
    tap_check(!oh_sampler_is_connected(sampler) && !oh_sampler_uses_rdpmc(sampler) &&
                  oh_sampler_missing(sampler, 0) == NULL && oh_sampler_register_again(sampler) == 0,
              "there is no sampler");
    oh_job_end();
    oh_sampler_unregister(sampler);
    return tap_done();
}
