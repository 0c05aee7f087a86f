/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The clocks that a program reads for its sensors, for C11 and C++17. Programs include sensor.h, of
 * which this is a part.
 */
#ifndef OVERHEAR_CLOCK_H
#define OVERHEAR_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "abi.h"

/*
 * Strict C11 hides the POSIX part of <time.h>, and a header may not define the macros that show
 * it: the program has chosen them. CLOCK_MONOTONIC is defined if the part is visible. Where it is
 * not, the prototype is repeated; clockid_t is an int and these two numbers are Linux' ABI.
 */
#if !defined(CLOCK_MONOTONIC) && !defined(__cplusplus)
extern int clock_gettime(int clock, struct timespec *now);
#endif
enum { OH_LINUX_CLOCK_MONOTONIC_ = 1, OH_LINUX_CLOCK_THREAD_CPUTIME_ = 3 };

/* Out of line, so that a sensor with a hardware counter carries no more than the call. */
static __attribute__((noinline, cold, unused)) uint64_t oh_clock_ns_(int clock)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The stamp of this moment, see oh_sensor_stamp. */
OH_INLINE_ uint64_t oh_stamp_(uint32_t clock_id)
{
#ifndef OVERHEAR_DISABLE
#if defined(__x86_64__) || defined(__i386__)
    if (__builtin_expect(clock_id == OH_CLOCK_X86_TSC, 1))
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    if (__builtin_expect(clock_id == OH_CLOCK_ARM_CNTVCT, 1)) {
        uint64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    (void)clock_id;
    return oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);
#else
    (void)clock_id;
    return 0;
#endif
}

/*
 * oh_thread_cpu_ns: the CPU time that the calling thread has used so far.
 *
 * A helper for payloads that carry execution times, as those of [GRTMon, section 5.1] do. The clock
 * is CLOCK_THREAD_CPUTIME_ID; with OVERHEAR_DISABLE it is not read.
 *
 * Returns nanoseconds; 0 with OVERHEAR_DISABLE.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: may enter the kernel, but does not block.
 */
OH_INLINE_ uint64_t oh_thread_cpu_ns(void)
{
#ifndef OVERHEAR_DISABLE
    return oh_clock_ns_(OH_LINUX_CLOCK_THREAD_CPUTIME_);
#else
    return 0;
#endif
}

#endif /* OVERHEAR_CLOCK_H */
