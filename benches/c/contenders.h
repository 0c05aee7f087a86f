/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The floor and the sensors of the C headers, one translation unit per compiler.
 *
 * The floor is the minimum work of a write: store the payload's words into a ring whose address,
 * capacity and stride are constants, read the hardware counter, store it, store the element counter
 * with release. A sensor finds all of these at run time, in its own cache line.
 *
 * The unit defines CONTENDERS_TABLE, the name of the table that it exports.
 */
#include <stdint.h>

#include "places.h"

#ifdef __cplusplus
#include <overhear/sensor.hpp>
#else
#include <overhear/concurrent.h>
#include <overhear/laned.h>
#include <overhear/sensor.h>
#endif

#if defined(__x86_64__)
#define READ_COUNTER() __builtin_ia32_rdtsc()
#elif defined(__aarch64__)
static inline uint64_t read_counter(void)
{
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
#define READ_COUNTER() read_counter()
#else
#error "the floor needs a hardware counter"
#endif

/* GCC keeps such loops rolled at -O2, which would make the floor look expensive. */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One row: a size of payload and of ring. Mirrored by native.rs.
 *
 * enlist registers a sensor as any program does. It returns the memory that put and fill write to,
 * and the C sensor of it; NULL if that fails or if the sensor has no reader. put copies whole
 * payloads, fill fills slots in place: oh_sensor_put, oh_sensor_write and oh_sensor_commit in C,
 * sensor<T>::write, begin and commit in C++.
 */
struct contender {
    uint32_t payload_size;
    uint32_t slots;
    void *(*enlist)(const char *instance, uint64_t slots, oh_sensor **behind);
    void (*floor)(uint64_t elements);
    void (*put[PLACES])(void *sensor, uint64_t elements);
    void (*fill)(void *sensor, uint64_t elements);
    void *ring;
    uint64_t ring_bytes;
    void *counter;
};

extern const struct contender CONTENDERS_TABLE[];

#ifdef __cplusplus
}
#endif

/*
 * The floor's memory is not static: Clang drops stores into static memory that is not read. Hidden
 * visibility keeps the address a constant.
 */
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define SHARED(name) PASTE(CONTENDERS_TABLE, name)
#define HIDDEN __attribute__((visibility("hidden")))

/* The words of a payload, at least the size of the array that C wants. */
#define WORDS(BYTES) ((BYTES + 7) / 8)

/* The declared rate is low, so that the directory grants only the requested number of slots. */
enum { PERIOD_NS = 1000000000 };

/* The payloads of the tables; SET stores their members, each with a different number. */
struct payload_4 {
    uint32_t a;
};
struct payload_8 {
    uint64_t a;
};
struct payload_64 {
    uint64_t a, b, c, d, e, f, g, h;
};
#define SET_0(at, number) ((void)(at), (void)(number))
#define SET_4(at, number) ((at)->a = (uint32_t)(number))
#define SET_8(at, number) ((at)->a = (number))
#define SET_64(at, number)                                                                          \
    ((at)->a = (number), (at)->b = (number) + 1, (at)->c = (number) + 2, (at)->d = (number) + 3,    \
     (at)->e = (number) + 4, (at)->f = (number) + 5, (at)->g = (number) + 6, (at)->h = (number) + 7)

#ifdef __cplusplus

struct payload_0 {};
OVERHEAR_EVENT(payload_0, "bytes0");
OVERHEAR_FIELDS(payload_4, "bytes4", OVERHEAR_FIELD(a, ""));
OVERHEAR_FIELDS(payload_8, "bytes8", OVERHEAR_FIELD(a, ""));
OVERHEAR_FIELDS(payload_64, "bytes64", OVERHEAR_FIELD(a, ""), OVERHEAR_FIELD(b, ""),
                OVERHEAR_FIELD(c, ""), OVERHEAR_FIELD(d, ""), OVERHEAR_FIELD(e, ""),
                OVERHEAR_FIELD(f, ""), OVERHEAR_FIELD(g, ""), OVERHEAR_FIELD(h, ""));

#define PUT(BYTES, AT)                                                                              \
    static __attribute__((noinline)) void put_##BYTES##_at_##AT(void *to, uint64_t elements)        \
    {                                                                                               \
        auto &sensor = *static_cast<overhear::sensor<payload_##BYTES> *>(to);                       \
        PLACE(AT);                                                                                  \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            payload_##BYTES payload;                                                                \
            SET_##BYTES(&payload, element);                                                         \
            sensor.write(payload);                                                                  \
        }                                                                                           \
    }

#define SENSOR(BYTES)                                                                               \
    static void *enlist_##BYTES(const char *instance, uint64_t slots, oh_sensor **behind)           \
    {                                                                                               \
        const std::chrono::nanoseconds period(PERIOD_NS);                                           \
        overhear::options options;                                                                  \
        options.instance(instance).rate(period, period).capacity(slots);                            \
        auto *sensor = new overhear::sensor<payload_##BYTES>(                                       \
            overhear::sensor<payload_##BYTES>::try_register("cost", options));                      \
        *behind = sensor->handle();                                                                 \
        return *sensor && sensor->is_connected() ? sensor : nullptr;                                    \
    }                                                                                               \
    PLACED_LOOPS(PUT, BYTES)                                                                        \
    static __attribute__((noinline)) void fill_##BYTES(void *to, uint64_t elements)                 \
    {                                                                                               \
        auto &sensor = *static_cast<overhear::sensor<payload_##BYTES> *>(to);                       \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            auto slot = sensor.begin();                                                             \
            SET_##BYTES(&*slot, element);                                                           \
            slot.commit();                                                                          \
        }                                                                                           \
    }

#else

struct payload_0 {
    uint64_t nothing; /* C has no empty struct */
};
static const oh_field fields_0[] = {{0, 0, 0, 0, 0}};
static const oh_field fields_4[] = {OH_FIELD_U32(struct payload_4, a, "")};
static const oh_field fields_8[] = {OH_FIELD_U64(struct payload_8, a, "")};
static const oh_field fields_64[] = {
    OH_FIELD_U64(struct payload_64, a, ""), OH_FIELD_U64(struct payload_64, b, ""),
    OH_FIELD_U64(struct payload_64, c, ""), OH_FIELD_U64(struct payload_64, d, ""),
    OH_FIELD_U64(struct payload_64, e, ""), OH_FIELD_U64(struct payload_64, f, ""),
    OH_FIELD_U64(struct payload_64, g, ""), OH_FIELD_U64(struct payload_64, h, ""),
};

#define PUT(BYTES, AT)                                                                              \
    static __attribute__((noinline)) void put_##BYTES##_at_##AT(void *to, uint64_t elements)        \
    {                                                                                               \
        oh_sensor *sensor = (oh_sensor *)to;                                                        \
        PLACE(AT);                                                                                  \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            struct payload_##BYTES payload;                                                         \
            SET_##BYTES(&payload, element);                                                         \
            /* oh_sensor_put(sensor, &payload), but for a payload of no bytes. */                   \
            oh_sensor_put_sized_(sensor, &payload, BYTES);                                          \
        }                                                                                           \
    }

#define SENSOR(BYTES)                                                                               \
    static void *enlist_##BYTES(const char *instance, uint64_t slots, oh_sensor **behind)           \
    {                                                                                               \
        oh_sensor_options options = {0};                                                            \
        options.id = "cost";                                                                        \
        options.instance = instance;                                                                \
        options.type = "bytes" #BYTES;                                                              \
        options.fields = fields_##BYTES;                                                            \
        options.field_count = BYTES == 0 ? 0 : sizeof fields_##BYTES / sizeof *fields_##BYTES;      \
        options.size = BYTES;                                                                       \
        options.period_ns = PERIOD_NS;                                                              \
        options.distance_ns = PERIOD_NS;                                                            \
        options.capacity = slots;                                                                   \
        if (oh_sensor_register(behind, &options) != 0 || !oh_sensor_is_connected(*behind))              \
            return NULL;                                                                            \
        return *behind;                                                                             \
    }                                                                                               \
    PLACED_LOOPS(PUT, BYTES)                                                                        \
    static __attribute__((noinline)) void fill_##BYTES(void *to, uint64_t elements)                 \
    {                                                                                               \
        oh_sensor *sensor = (oh_sensor *)to;                                                        \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            struct payload_##BYTES *payload = (struct payload_##BYTES *)oh_sensor_write(sensor);    \
            SET_##BYTES(payload, element);                                                          \
            oh_sensor_commit(sensor);                                                               \
        }                                                                                           \
    }

#endif

#define RING(name) SHARED(_ring_##name)
#define COUNTER(name) SHARED(_counter_##name)

#define FLOOR(BYTES, TYPE, SLOTS)                                                                   \
    HIDDEN uint64_t RING(BYTES##_##SLOTS)[SLOTS][1 + WORDS(BYTES)] __attribute__((aligned(4096)));  \
    HIDDEN uint64_t COUNTER(BYTES##_##SLOTS)[8] __attribute__((aligned(64)));                       \
    static __attribute__((noinline)) void floor_##BYTES##_##SLOTS(uint64_t elements)                \
    {                                                                                               \
        uint64_t count = COUNTER(BYTES##_##SLOTS)[0];                                               \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            uint64_t *slot = RING(BYTES##_##SLOTS)[count % SLOTS];                                  \
            UNROLLED                                                                                \
            for (int word = 0; word < WORDS(BYTES); word++)                                         \
                __atomic_store_n(&slot[1 + word], (TYPE)(element + (uint64_t)word),                 \
                                 __ATOMIC_RELAXED);                                                 \
            __atomic_store_n(&slot[0], READ_COUNTER(), __ATOMIC_RELAXED);                           \
            __atomic_store_n(&COUNTER(BYTES##_##SLOTS)[0], ++count, __ATOMIC_RELEASE);              \
            __atomic_thread_fence(__ATOMIC_RELEASE);                                                \
        }                                                                                           \
    }

#define ROW(BYTES, SLOTS)                                                                           \
    {                                                                                               \
        BYTES, SLOTS, enlist_##BYTES, floor_##BYTES##_##SLOTS, PLACED(put_##BYTES), fill_##BYTES,     \
            RING(BYTES##_##SLOTS), sizeof RING(BYTES##_##SLOTS), COUNTER(BYTES##_##SLOTS)           \
    }

SENSOR(0)
SENSOR(4)
SENSOR(8)
SENSOR(64)

/* The rings of [GRTMon, tables 1 and 2], for 20, 150 and 20,000 elements: the least ring that a
   directory hands out, and the next powers of two. */
FLOOR(0, uint64_t, 64)
FLOOR(4, uint32_t, 64)
FLOOR(8, uint64_t, 64)
FLOOR(64, uint64_t, 64)
FLOOR(0, uint64_t, 256)
FLOOR(8, uint64_t, 256)
FLOOR(0, uint64_t, 32768)
FLOOR(8, uint64_t, 32768)

const struct contender CONTENDERS_TABLE[] = {
    ROW(0, 64),  ROW(4, 64),  ROW(8, 64),    ROW(64, 64),
    ROW(0, 256), ROW(8, 256), ROW(0, 32768), ROW(8, 32768),
    {0, 0, 0, 0, {0}, 0, 0, 0, 0},
};

#ifndef __cplusplus

/* Sensors that several threads write, with 8 bytes of payload. Mirrored by native.rs. */
struct crowd {
    void *(*enlist_laned)(const char *instance, uint64_t slots);
    void (*put_laned[PLACES])(void *sensor, uint64_t elements);
    void *(*enlist_concurrent)(const char *instance, uint64_t slots);
    void (*put_concurrent[PLACES])(void *sensor, uint64_t elements);
};

#define PUT_CROWD(KIND, AT)                                                                         \
    static __attribute__((noinline)) void put_##KIND##_at_##AT(void *to, uint64_t elements)         \
    {                                                                                               \
        oh_##KIND##_sensor *sensor = (oh_##KIND##_sensor *)to;                                      \
        PLACE(AT);                                                                                  \
        for (uint64_t element = 0; element < elements; element++) {                                 \
            struct payload_8 payload;                                                               \
            SET_8(&payload, element);                                                               \
            (void)oh_##KIND##_put(sensor, &payload);                                                \
        }                                                                                           \
    }

#define CROWD(KIND)                                                                                 \
    static void *enlist_##KIND(const char *instance, uint64_t slots)                                \
    {                                                                                               \
        oh_sensor_options options = {0};                                                            \
        oh_##KIND##_sensor *sensor;                                                                 \
        options.id = "crowd";                                                                       \
        options.instance = instance;                                                                \
        options.type = "bytes8";                                                                    \
        options.fields = fields_8;                                                                  \
        options.field_count = 1;                                                                    \
        options.size = 8;                                                                           \
        options.period_ns = PERIOD_NS;                                                              \
        options.distance_ns = PERIOD_NS;                                                            \
        options.capacity = slots;                                                                   \
        if (oh_##KIND##_register(&sensor, &options) != 0 || !oh_##KIND##_is_connected(sensor))      \
            return NULL;                                                                            \
        return sensor;                                                                              \
    }                                                                                               \
    PLACED_LOOPS(PUT_CROWD, KIND)

CROWD(laned)
CROWD(concurrent)

extern const struct crowd SHARED(_crowd);
const struct crowd SHARED(_crowd) = {enlist_laned, PLACED(put_laned), enlist_concurrent,
                                    PLACED(put_concurrent)};

#endif
