/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Samplers: counters of the calling thread at points of the program, for C11 and C++17.
 *
 * A *sampler* is a sensor whose elements are samples: the thread, the CPU, and what the CPU and the
 * kernel have counted since the previous sample. oh_sampler_sample divides the thread's time;
 * oh_sampler_job_end divides it into jobs. The two kinds of samples are independent of each other.
 *
 *     OH_SAMPLER(decoder, 0, "cycles", "instructions", "llc-misses");
 *
 *     oh_sampler *sampler;
 *     if (oh_sampler_register(&sampler, &decoder) != 0)
 *         fprintf(stderr, "%s\n", oh_last_error());
 *     for (;;) {
 *         decode_frame();
 *         oh_sampler_job_end(sampler);
 *     }
 *     oh_sampler_unregister(sampler);
 *
 * examples/c/jobs.c is this as a program that runs. `overhear doctor --counters` lists the names.
 *
 * Design constraints, as for sensors: everything is prepared when the sampler is registered. Its
 * counters are one group that counts all the time, and its buffers are locked. A sample then has
 * one code path, allocates nothing and takes no lock. The counters are read without a system call
 * where CPU and kernel permit `rdpmc`, else by one read. The condition of a sample (is the sampler
 * switched on, and is the last sample old enough) is inline and has a constant cost.
 *
 * Each thread registers a sampler of its own: counters belong to a thread.
 *
 * With OVERHEAR_DISABLE all of it compiles to nothing, as in sensor.h.
 */
#ifndef OVERHEAR_SAMPLER_H
#define OVERHEAR_SAMPLER_H

#include <errno.h>

#include "sensor.h"

/* Maximum number of counters of a sampler. */
#define OH_SAMPLER_MAX_COUNTERS 32

/* Flags of oh_sampler_options. */
enum {
    OH_SAMPLER_USER_ONLY = 1,   /* count in user mode only */
    OH_SAMPLER_SKIP_MISSING = 2 /* leave out counters that cannot be used here */
};

/* The properties of a sampler. Members that are not needed are zero. New members are added at the
   end. */
typedef struct oh_sampler_options {
    const char *id;              /* what is sampled; required */
    const char *instance;        /* distinguishes samplers of one id; NULL or "" if there is one */
    const char *const *counters; /* counter_count names */
    uint32_t counter_count;      /* 1 to OH_SAMPLER_MAX_COUNTERS */
    uint32_t flags;              /* OH_SAMPLER_*, ored */
    uint64_t every_ns;    /* least age of the last sample when oh_sampler_sample takes another */
    uint64_t period_ns;   /* declared rate, T: mean distance of two samples; 0: no declared rate */
    uint64_t distance_ns; /* declared rate, D: minimum distance of two samples, at most T */
    uint64_t jitter_ns;   /* declared rate, tau: maximum by which a sample may be early */
    uint64_t capacity;    /* minimum number of slots; 0: the directory decides */
} oh_sampler_options;

/* The part of a sampler that the inline functions read. The library keeps the remaining state and
   writes these members. Users treat it as opaque. */
typedef struct oh_sampler {
    const uint32_t *enabled; /* as in oh_sensor */
    uint64_t every_ns;
    uint64_t last_ns; /* CLOCK_MONOTONIC of the last sample */
} oh_sampler;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_sampler, every_ns, 8, 8);
OH_ASSERT_FIELD(oh_sampler, last_ns, 16, 8);
OH_ASSERT_FIELD(oh_sampler_options, id, 0, 8);
OH_ASSERT_FIELD(oh_sampler_options, instance, 8, 8);
OH_ASSERT_FIELD(oh_sampler_options, counters, 16, 8);
OH_ASSERT_FIELD(oh_sampler_options, counter_count, 24, 4);
OH_ASSERT_FIELD(oh_sampler_options, flags, 28, 4);
OH_ASSERT_FIELD(oh_sampler_options, every_ns, 32, 8);
OH_ASSERT_FIELD(oh_sampler_options, period_ns, 40, 8);
OH_ASSERT_FIELD(oh_sampler_options, distance_ns, 48, 8);
OH_ASSERT_FIELD(oh_sampler_options, jitter_ns, 56, 8);
OH_ASSERT_FIELD(oh_sampler_options, capacity, 64, 8);
OH_STATIC_ASSERT(sizeof(oh_sampler) == 24, "oh_sampler: size");
OH_STATIC_ASSERT(sizeof(oh_sampler_options) == 72, "oh_sampler_options: size");
#endif

/*
 * OH_SAMPLER: configures a sampler at compile time. It defines the constant options `name`, with
 * the id "name", a period in nanoseconds (0: none) and the names of counters. A wrong number of
 * counters does not compile.
 *
 * OH_SAMPLER_FLAGS: the same with flags.
 */
#define OH_SAMPLER(name, every_ns_, ...) OH_SAMPLER_FLAGS(name, every_ns_, 0, __VA_ARGS__)

#define OH_SAMPLER_FLAGS(name, every_ns_, flags_, ...)                                              \
    static const char *const name##_counters_[] = {__VA_ARGS__};                                    \
    OH_STATIC_ASSERT(sizeof name##_counters_ / sizeof *name##_counters_ <= OH_SAMPLER_MAX_COUNTERS, \
                     "a sampler has at most 32 counters");                                          \
    static const oh_sampler_options name = {                                                        \
        #name,                                                                                      \
        "",                                                                                         \
        name##_counters_,                                                                           \
        (uint32_t)(sizeof name##_counters_ / sizeof *name##_counters_),                             \
        (uint32_t)(flags_),                                                                         \
        (uint64_t)(every_ns_),                                                                      \
        0,                                                                                          \
        0,                                                                                          \
        0,                                                                                          \
        0}

#ifndef OVERHEAR_DISABLE

#ifdef __cplusplus
extern "C" {
#endif

/*
 * oh_sampler_register_sized: registers a sampler whose options have a known size.
 *
 * Call oh_sampler_register instead, as with oh_sensor_register_sized.
 *
 * Ownership, returns and the fixed lines are those of oh_sampler_register.
 */
int oh_sampler_register_sized(oh_sampler **out, const oh_sampler_options *options,
                              size_t options_size);

/*
 * oh_sampler_register: registers a sampler for the calling thread, opens its counters and locks its
 * memory.
 *
 * Ownership: the options and everything they point to are copied. *out belongs to the caller until
 * oh_sampler_unregister.
 *
 * Returns 0, also if no directory answers: then the samples go to private memory, and oh_last_error
 * returns the reason. Otherwise a negative errno, and *out is NULL:
 *   -EINVAL  the options contradict themselves, or no counter has this name
 *   -ENODEV  a counter does not exist here, is not permitted, or does not fit beside the others;
 *            oh_last_error returns the reason and the number that fits
 *   -ENOMEM  no memory for the sampler
 *
 * Thread safety: may be called from any thread; the sampler counts this thread.
 * Async-signal safety: no.
 * Real-time class: may block (as oh_sensor_register).
 */
OH_INLINE_ int oh_sampler_register(oh_sampler **out, const oh_sampler_options *options)
{
    return oh_sampler_register_sized(out, options, sizeof *options);
}

/*
 * oh_sampler_unregister: gives the sampler back and closes its counters.
 *
 * Ownership: takes the sampler; it must not be used afterwards. NULL is allowed.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread, while no other uses this sampler.
 * Async-signal safety: no.
 * Real-time class: may block (memory is unmapped).
 */
void oh_sampler_unregister(oh_sampler *sampler);

/*
 * oh_sampler_register_again: registers a sampler that no directory owns again, as
 * oh_sensor_register_again. In a forked child it also opens the counters for the calling thread;
 * before this call, the child's samples are refused.
 *
 * Ownership: the sampler stays the caller's, at the same address.
 *
 * Returns 1 if a directory owns the sampler now; 0 if not, and oh_last_error returns the reason; or
 * a negative errno as oh_sampler_register.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: no.
 * Real-time class: may block (as oh_sensor_register).
 */
int oh_sampler_register_again(oh_sampler *sampler);

/*
 * oh_sampler_is_connected: returns whether a directory owns the stream of the samples.
 *
 * Ownership: the sampler stays the caller's.
 *
 * Returns 1 if a directory owns the stream, 0 if the samples go to private memory.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
int oh_sampler_is_connected(oh_sampler *sampler);

/*
 * oh_sampler_uses_rdpmc: returns whether the counters are read without a system call.
 *
 * Ownership: the sampler stays the caller's.
 *
 * Returns 1 if they are, 0 if each sample contains one call of read.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
int oh_sampler_uses_rdpmc(oh_sampler *sampler);

/*
 * oh_sampler_failed: the number of samples that could not be taken, because the kernel had taken
 * the counters away for a group of a whole CPU.
 *
 * Ownership: the sampler stays the caller's.
 *
 * Returns the number.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
uint64_t oh_sampler_failed(oh_sampler *sampler);

/*
 * oh_sampler_missing: why a counter was left out (OH_SAMPLER_SKIP_MISSING), from index 0 on.
 *
 * Ownership: the text is the sampler's, valid until oh_sampler_unregister.
 *
 * Returns a sentence, NULL if fewer counters were left out.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: yes.
 * Real-time class: wait-free.
 */
const char *oh_sampler_missing(oh_sampler *sampler, uint32_t index);

/* The sample of oh_sampler_sample at this time, if it is due. */
int oh_sampler_take_(oh_sampler *sampler, uint64_t now_ns);

/*
 * oh_sampler_job_begin: begins a job: what was counted before does not belong to it.
 *
 * Without this call a job begins where the previous one ended.
 *
 * Ownership: the sampler stays the caller's.
 *
 * Returns 0, or a negative errno:
 *   -EPERM   another thread registered the sampler
 *   -EINVAL  the sampler is NULL
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: no.
 * Real-time class: wait-free with rdpmc, else it enters the kernel once and does not block.
 */
int oh_sampler_job_begin(oh_sampler *sampler);

/*
 * oh_sampler_job_end: ends a job: takes a sample with what was counted since the job's begin.
 * Contains oh_job_end.
 *
 * Ownership: the sampler stays the caller's.
 *
 * Returns 1 if a sample was taken; 0 if the sampler is switched off, was switched off at the job's
 * begin, or has lost its counters; or a negative errno as oh_sampler_job_begin.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: no.
 * Real-time class: as oh_sampler_job_begin.
 */
int oh_sampler_job_end(oh_sampler *sampler);

/*
 * oh_job_end: marks the end of a job of the calling thread, for programs without a sampler.
 *
 * The function does nothing. Kernel samplers with the rule `call` (`overhear run --sample LIST
 * --per job=call`) observe the call with a probe.
 *
 * Returns nothing.
 *
 * Thread safety: may be called from any thread.
 * Async-signal safety: yes.
 * Real-time class: wait-free; with a probe it enters the kernel and does not block.
 */
void oh_job_end(void);

#ifdef __cplusplus
}
#endif

#endif /* !OVERHEAR_DISABLE */

/*
 * oh_sampler_sample: takes a sample, unless the last one is younger than the period.
 *
 * Ownership: the sampler stays the caller's.
 *
 * Returns 1 if a sample was taken; 0 if none is due, the sampler is switched off or has lost its
 * counters; or a negative errno as oh_sampler_job_begin.
 *
 * Thread safety: by the thread whose counters it reads.
 * Async-signal safety: no.
 * Real-time class: as oh_sampler_job_begin.
 */
OH_INLINE_ int oh_sampler_sample(oh_sampler *sampler)
{
#ifndef OVERHEAR_DISABLE
    uint64_t now_ns;
    if (sampler == NULL)
        return -EINVAL;
    /* Relaxed: a hint, which orders nothing. */
    if (OH_IS_OFF_(__atomic_load_n(sampler->enabled, __ATOMIC_RELAXED) != OH_SWITCH_OFF))
        return 0;
    now_ns = oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);
    if (now_ns - sampler->last_ns < sampler->every_ns)
        return 0;
    return oh_sampler_take_(sampler, now_ns);
#else
    (void)sampler;
    return 0;
#endif
}

#ifdef OVERHEAR_DISABLE

/* The functions documented above, without a library. */

OH_INLINE_ int oh_sampler_register_sized(oh_sampler **out, const oh_sampler_options *options,
                                         size_t options_size)
{
    (void)options;
    (void)options_size;
    *out = NULL;
    return 0;
}

OH_INLINE_ int oh_sampler_register(oh_sampler **out, const oh_sampler_options *options)
{
    return oh_sampler_register_sized(out, options, sizeof *options);
}

OH_INLINE_ void oh_sampler_unregister(oh_sampler *sampler)
{
    (void)sampler;
}

OH_INLINE_ int oh_sampler_register_again(oh_sampler *sampler)
{
    (void)sampler;
    return 0;
}

OH_INLINE_ int oh_sampler_is_connected(oh_sampler *sampler)
{
    (void)sampler;
    return 0;
}

OH_INLINE_ int oh_sampler_uses_rdpmc(oh_sampler *sampler)
{
    (void)sampler;
    return 0;
}

OH_INLINE_ uint64_t oh_sampler_failed(oh_sampler *sampler)
{
    (void)sampler;
    return 0;
}

OH_INLINE_ const char *oh_sampler_missing(oh_sampler *sampler, uint32_t index)
{
    (void)sampler;
    (void)index;
    return NULL;
}

OH_INLINE_ int oh_sampler_job_begin(oh_sampler *sampler)
{
    (void)sampler;
    return 0;
}

OH_INLINE_ int oh_sampler_job_end(oh_sampler *sampler)
{
    (void)sampler;
    return 0;
}

OH_INLINE_ void oh_job_end(void)
{
}

#endif /* OVERHEAR_DISABLE */

#endif /* OVERHEAR_SAMPLER_H */
