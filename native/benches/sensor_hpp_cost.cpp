/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. What an element costs through sensor.hpp, against a hand-written floor.
 *
 * The floor and the rounds are those of sensor_cost.c. The typed sensor needs a registered one, so the
 * library's functions that it calls are made here, over private memory. The target is a ratio of at most 1.3.
 */
#include <overhear/sensor.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int elements = 20000;
constexpr int rounds = 301;
constexpr int warm_up = 20;
constexpr std::size_t capacity = 1024;

template <std::size_t words> struct payload {
    std::uint64_t word[words];
};

alignas(4096) std::uint64_t sensor_memory[OH_HEADER_SIZE / 8 + capacity * 9];
alignas(64) oh_sensor sensor_object;

} // namespace

/* The library's part: a stream in this file's memory. */
extern "C" int oh_sensor_register_sized(oh_sensor **out, const oh_sensor_options *options,
                                        std::size_t)
{
    static const std::uint32_t enabled = 1;
    sensor_object = {};
    sensor_object.enabled = &enabled;
    sensor_object.base = reinterpret_cast<std::uint8_t *>(sensor_memory);
    sensor_object.mask = capacity - 1;
    sensor_object.stride = (options->size + 7) / 8 * 8 + 8;
    sensor_object.payload_size = options->size;
#if defined(__x86_64__)
    sensor_object.clock_id = OH_CLOCK_X86_TSC;
#else
    sensor_object.clock_id = OH_CLOCK_ARM_CNTVCT;
#endif
    *out = &sensor_object;
    return 0;
}
extern "C" void oh_sensor_unregister(oh_sensor *) {}
extern "C" int oh_sensor_is_heard(const oh_sensor *) { return 0; }
extern "C" int oh_sensor_register_again(oh_sensor *) { return 0; }
extern "C" int oh_sensor_pace(oh_sensor *) { return 0; }
extern "C" const char *oh_last_error(void) { return ""; }

struct word {
    std::uint64_t number;
};
OVERHEAR_FIELDS(word, "word", OVERHEAR_FIELD(number, ""));

struct line {
    std::uint64_t a, b, c, d, e, f, g, h;
};
OVERHEAR_FIELDS(line, "line", OVERHEAR_FIELD(a, ""), OVERHEAR_FIELD(b, ""), OVERHEAR_FIELD(c, ""),
                OVERHEAR_FIELD(d, ""), OVERHEAR_FIELD(e, ""), OVERHEAR_FIELD(f, ""),
                OVERHEAR_FIELD(g, ""), OVERHEAR_FIELD(h, ""));

/* With external linkage: Clang drops stores into static memory that is not read. */
extern std::uint64_t floor_ring[capacity * 9];
extern std::uint64_t floor_counter;
alignas(4096) std::uint64_t floor_ring[capacity * 9];
alignas(64) std::uint64_t floor_counter;

namespace {

inline std::uint64_t read_counter()
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

template <class type> type made(std::uint64_t number)
{
    if constexpr (sizeof(type) == 8)
        return {number};
    else
        return {number,     number + 1, number + 2, number + 3,
                number + 4, number + 5, number + 6, number + 7};
}

template <class type> __attribute__((noinline)) void floor_pass()
{
    constexpr std::size_t words = sizeof(type) / 8;
    std::uint64_t count = floor_counter;
    for (int at = 0; at < elements; at++) {
        std::uint64_t *slot = &floor_ring[count % capacity * (words + 1)];
        const type value = made<type>(static_cast<std::uint64_t>(at));
        const auto *from = reinterpret_cast<const std::uint64_t *>(&value);
#pragma GCC unroll 8
        for (std::size_t index = 0; index < words; index++)
            __atomic_store_n(&slot[1 + index], from[index], __ATOMIC_RELAXED);
        __atomic_store_n(&slot[0], read_counter(), __ATOMIC_RELAXED);
        __atomic_store_n(&floor_counter, ++count, __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_RELEASE);
    }
}

template <class type> __attribute__((noinline)) void write_pass(overhear::sensor<type> &sensor)
{
    for (int at = 0; at < elements; at++)
        sensor.write(made<type>(static_cast<std::uint64_t>(at)));
}

template <class type> __attribute__((noinline)) void begin_pass(overhear::sensor<type> &sensor)
{
    for (int at = 0; at < elements; at++) {
        auto element = sensor.begin();
        *element = made<type>(static_cast<std::uint64_t>(at));
        element.commit();
    }
}

double median(std::vector<double> &values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

template <class type> void compare()
{
    overhear::sensor<type> sensor("cost");
    std::vector<double> spans[3];
    for (int round = 0; round < warm_up + rounds; round++) {
        using clock = std::chrono::steady_clock;
        const auto start = clock::now();
        floor_pass<type>();
        const auto floored = clock::now();
        write_pass(sensor);
        const auto written = clock::now();
        begin_pass(sensor);
        const auto begun = clock::now();
        if (round < warm_up)
            continue;
        const std::chrono::duration<double, std::nano> all[] = {floored - start, written - floored,
                                                                begun - written};
        for (int index = 0; index < 3; index++)
            spans[index].push_back(all[index].count() / elements);
    }
    const double floor_ns = median(spans[0]);
    const double write_ns = median(spans[1]);
    const double begin_ns = median(spans[2]);
    std::printf("%7zu B %8.2f %8.2f %8.2f %11.2f %11.2f\n", sizeof(type), floor_ns, write_ns,
                begin_ns, write_ns / floor_ns, begin_ns / floor_ns);
}

} // namespace

int main()
{
    std::printf("sensor.hpp: medians of %d rounds of %d elements, in ns per element; target: ratios "
                "up to 1.30.\n",
                rounds, elements);
    std::printf("payload      floor    write    begin write/floor begin/floor\n");
    compare<word>();
    compare<line>();
}
