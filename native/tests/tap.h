/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A minimum of the Test Anything Protocol: numbered lines, the plan at the end. */
#ifndef OVERHEAR_TESTS_TAP_H
#define OVERHEAR_TESTS_TAP_H

#include <stdio.h>

static int tap_run_;
static int tap_failed_;

static inline void tap_check(int good, const char *name)
{
    tap_run_++;
    tap_failed_ += !good;
    printf("%s %d - %s\n", good ? "ok" : "not ok", tap_run_, name);
}

static inline void tap_skip(const char *name, const char *reason)
{
    tap_run_++;
    printf("ok %d - %s # SKIP %s\n", tap_run_, name, reason);
}

/* Prints the plan and returns the exit status. */
static inline int tap_done(void)
{
    printf("1..%d\n", tap_run_);
    return tap_failed_ != 0;
}

#endif
