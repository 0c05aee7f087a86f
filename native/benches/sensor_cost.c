/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. What an element costs the instrumented thread, against a hand-written floor.
 *
 * The floor is what cannot be left out: read the hardware counter, store stamp and payload into a
 * ring whose address, capacity and stride are constants, store the counter with release. A sensor
 * finds all of these in its own cache line at run time; the ratio is the price of that. Floor and
 * sensor take turns in short rounds, so that what disturbs the machine disturbs both, and the
 * median of many rounds is compared. The target is a ratio of at most 1.25.
 */
#define _GNU_SOURCE 1
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "../tests/stream.h"

enum { CAPACITY = 1024, ELEMENTS = 20000, ROUNDS = 301, WARM_UP = 20 };

#if defined(__x86_64__)
enum { CLOCK = OH_CLOCK_X86_TSC };
#define READ_COUNTER() __builtin_ia32_rdtsc()
#elif defined(__aarch64__)
enum { CLOCK = OH_CLOCK_ARM_CNTVCT };
static inline uint64_t read_counter(void)
{
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
#define READ_COUNTER() read_counter()
#endif

#ifdef READ_COUNTER

/* GCC keeps such loops rolled at -O2, which would make the floor look expensive. */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

/*
 * Passes of each contender over one payload of WORDS words. The rings have the same size; those of
 * the floor have external linkage, because Clang drops stores into static memory that is not read.
 */
#define CONTENDERS(WORDS)                                                                           \
    struct payload_##WORDS {                                                                        \
        uint64_t words[WORDS + (WORDS == 0)];                                                       \
    };                                                                                              \
    uint64_t floor_ring_##WORDS[CAPACITY][WORDS + 1] __attribute__((aligned(4096)));                \
    uint64_t floor_counter_##WORDS __attribute__((aligned(64)));                                    \
    static uint64_t sensor_memory_##WORDS[OH_HEADER_SIZE / 8 + CAPACITY * (WORDS + 1)]              \
        __attribute__((aligned(4096)));                                                             \
                                                                                                    \
    static __attribute__((noinline)) void floor_##WORDS(void)                                       \
    {                                                                                               \
        uint64_t count = floor_counter_##WORDS;                                                     \
        for (int element = 0; element < ELEMENTS; element++) {                                      \
            uint64_t *slot = floor_ring_##WORDS[count % CAPACITY];                                  \
            UNROLLED                                                                                \
            for (int word = 0; word < WORDS; word++)                                                \
                __atomic_store_n(&slot[1 + word], count + (uint64_t)word, __ATOMIC_RELAXED);        \
            __atomic_store_n(&slot[0], READ_COUNTER(), __ATOMIC_RELAXED);                           \
            __atomic_store_n(&floor_counter_##WORDS, ++count, __ATOMIC_RELEASE);                    \
            __atomic_thread_fence(__ATOMIC_RELEASE);                                                \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    static __attribute__((noinline)) void put_##WORDS(oh_sensor *sensor)                            \
    {                                                                                               \
        for (int element = 0; element < ELEMENTS; element++) {                                      \
            struct payload_##WORDS value;                                                           \
            UNROLLED                                                                                \
            for (int word = 0; word < WORDS; word++)                                                \
                value.words[word] = (uint64_t)element + (uint64_t)word;                             \
            oh_sensor_put_sized_(sensor, &value, WORDS * 8);                                        \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    static __attribute__((noinline)) void write_##WORDS(oh_sensor *sensor)                          \
    {                                                                                               \
        for (int element = 0; element < ELEMENTS; element++) {                                      \
            struct payload_##WORDS *value = (struct payload_##WORDS *)oh_sensor_write(sensor);      \
            UNROLLED                                                                                \
            for (int word = 0; word < WORDS; word++)                                                \
                value->words[word] = (uint64_t)element + (uint64_t)word;                            \
            oh_sensor_commit(sensor);                                                               \
        }                                                                                           \
    }                                                                                               \
                                                                                                    \
    static void compare_##WORDS(void)                                                               \
    {                                                                                               \
        oh_sensor sensor =                                                                          \
            stream_begin(sensor_memory_##WORDS, WORDS * 8, CAPACITY, CLOCK, 1);                     \
        for (int round = -WARM_UP; round < ROUNDS; round++) {                                       \
            uint64_t times[4];                                                                      \
            times[0] = oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);                                     \
            floor_##WORDS();                                                                        \
            times[1] = oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);                                     \
            put_##WORDS(&sensor);                                                                   \
            times[2] = oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);                                     \
            write_##WORDS(&sensor);                                                                 \
            times[3] = oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);                                     \
            for (int lane = 0; round >= 0 && lane < 3; lane++)                                      \
                spans_ns[lane][round] = (double)(times[lane + 1] - times[lane]) / ELEMENTS;         \
        }                                                                                           \
        report(WORDS * 8);                                                                          \
    }

static double spans_ns[3][ROUNDS];

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_size);
    return values[ROUNDS / 2];
}

static void report(int bytes)
{
    const double floor_ns = median(spans_ns[0]);
    const double put_ns = median(spans_ns[1]);
    const double write_ns = median(spans_ns[2]);
    printf("%7d B %8.2f %8.2f %8.2f %10.2f %10.2f\n", bytes, floor_ns, put_ns, write_ns,
           put_ns / floor_ns, write_ns / floor_ns);
}

CONTENDERS(0)
CONTENDERS(1)
CONTENDERS(8)

/* Stays on the CPU it is on, so that rounds compare. */
static void pin(void)
{
    cpu_set_t set;
    const int cpu = sched_getcpu();
    CPU_ZERO(&set);
    CPU_SET(cpu < 0 ? 0 : cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        perror("not pinned to a CPU");
}

int main(void)
{
    pin();
    printf("Medians of %d rounds of %d elements, in ns per element; target: ratios up to 1.25.\n",
           ROUNDS, ELEMENTS);
    printf("payload      floor      put    write  put/floor write/floor\n");
    compare_0();
    compare_1();
    compare_8();
    return 0;
}

#else

int main(void)
{
    printf("skipped: this CPU's counter has no clock id, so there is nothing to compare with.\n");
    return 0;
}

#endif
