/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Data sources of your own for samplers, for C11 and C++17. The header includes nothing of
 * Overhear.
 *
 * A *data source* delivers quantities: counts, which only grow, and levels. A sampler reads it when
 * its policy says so, and writes the differences of counts and the values of levels as one sample.
 * A data source is built into a shared object, which is named in the list of quantities:
 *
 *     overhear run --sample cpu-time,plugin:./queue.so --every 1ms -- ./server
 *
 *     static void *create(const char *argument, uint32_t pid, char *error, size_t error_size)
 *     {
 *         (void)argument, (void)pid, (void)error, (void)error_size;
 *         return calloc(1, sizeof(uint64_t));
 *     }
 *     static int read_values(void *self, oh_quantity_value *values)
 *     {
 *         values[0].count = ++*(uint64_t *)self;
 *         return 0;
 *     }
 *     static const oh_quantity quantities[] = {{"reads", "", OH_QUANTITY_COUNT, 0}};
 *     static const oh_data_source source = {
 *         sizeof(oh_data_source), OH_COST_INSTRUCTION, quantities, 1, 0, create, read_values, free,
 *     };
 *     OH_EXPORT_DATA_SOURCE(&source)
 *
 * Build it with `cc -shared -fPIC -Iinclude`; it links against nothing.
 *
 * Rules. Calls for one object never overlap; `read` is called from another thread than `create`.
 * That thread may have real-time priority: `read` does not allocate, block or print. Nothing is
 * thrown out of a function.
 */
#ifndef OVERHEAR_DATA_SOURCE_H
#define OVERHEAR_DATA_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The meaning of a quantity's values. */
enum {
    OH_QUANTITY_COUNT = 1, /* a total that only grows; samples have its differences */
    OH_QUANTITY_LEVEL = 2, /* a signed integer at the time of the sample */
    OH_QUANTITY_REAL = 3   /* a floating-point number at the time of the sample */
};

/* What a read costs, in its order of magnitude. */
enum {
    OH_COST_INSTRUCTION = 1, /* tens of nanoseconds */
    OH_COST_SYSTEM_CALL = 2, /* about a microsecond */
    OH_COST_FILE = 3         /* tens of microseconds */
};

/* A quantity. The strings stay as long as the shared object is loaded. */
typedef struct oh_quantity {
    const char *name; /* a C identifier */
    const char *unit; /* "" for a plain number */
    uint32_t kind;    /* OH_QUANTITY_* */
    uint32_t reserved; /* 0 */
} oh_quantity;

/* A value, by the kind of its quantity. */
typedef union oh_quantity_value {
    uint64_t count;
    int64_t level;
    double real;
} oh_quantity_value;

/* A data source. Additions go to the end. */
typedef struct oh_data_source {
    uint32_t size; /* of this struct */
    uint32_t cost; /* OH_COST_* */
    const oh_quantity *quantities;
    uint32_t quantity_count; /* 1 to 64 */
    uint32_t reserved;       /* 0 */
    /*
     * Makes an object. `argument` is what follows `=` in the name, or "". `pid` is the sampled
     * process, 0 without one. Returns NULL on failure, with a message in `error`. Not real-time
     * safe; may block.
     */
    void *(*create)(const char *argument, uint32_t pid, char *error, size_t error_size);
    /* Reads all quantities. Returns 0, or a number of errno: then this sample is missed. */
    int (*read)(void *self, oh_quantity_value *values);
    /* Frees the object. */
    void (*destroy)(void *self);
} oh_data_source;

#if defined(__GNUC__)
#define OH_DATA_SOURCE_VISIBLE_ __attribute__((visibility("default")))
#else
#define OH_DATA_SOURCE_VISIBLE_
#endif
#ifdef __cplusplus
#define OH_DATA_SOURCE_LINKAGE_ extern "C"
#else
#define OH_DATA_SOURCE_LINKAGE_
#endif

/* Exports the data source of a shared object. */
#define OH_EXPORT_DATA_SOURCE(source)                                                              \
    OH_DATA_SOURCE_LINKAGE_ OH_DATA_SOURCE_VISIBLE_ const oh_data_source *oh_data_source_v1(void); \
    OH_DATA_SOURCE_LINKAGE_ OH_DATA_SOURCE_VISIBLE_ const oh_data_source *oh_data_source_v1(void)  \
    {                                                                                              \
        return source;                                                                             \
    }

#ifdef __cplusplus
}
#endif

#endif
