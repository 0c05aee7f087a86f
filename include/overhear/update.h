/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Updates: the monitor's side of Overhear, for C11 and C++17. C++ programs include update.hpp,
 * which is built on this header.
 *
 * An *update* is an analysis that a user adds to a monitor. It gets every element of its sensors in
 * one total order, and every gap of missed elements, and reports its results at the end. Updates
 * are built into a shared object, a *plug-in*, which `overhear run --update FILE.so` calls while a
 * program runs and `overhear report DIR --update FILE.so` over a recorded trace, with the same
 * results.
 *
 *     struct count { uint64_t elements; };
 *
 *     static void *create(oh_host *host, const char *argument)
 *     {
 *         (void)host, (void)argument;
 *         return calloc(1, sizeof(struct count));
 *     }
 *     static int element(void *self, oh_host *host, const oh_element_view *element)
 *     {
 *         (void)host, (void)element;
 *         ((struct count *)self)->elements++;
 *         return 0;
 *     }
 *     static int report(void *self, oh_host *host)
 *     {
 *         oh_result_u64(host, "elements", ((struct count *)self)->elements);
 *         return 0;
 *     }
 *     static const oh_update count = {
 *         .size = sizeof(oh_update), .name = "count", .create = create, .element = element,
 *         .report = report, .destroy = free,
 *     };
 *     OH_EXPORT_UPDATES(&count)
 *
 * Build it with `cc -shared -fPIC -Iinclude`; it links against nothing. examples/updates has one
 * update in C, C++ and Rust.
 *
 * Rules. Calls for one update never overlap, and come from one thread at a time. `element`, `gap`
 * and `advance` may run in a real-time thread: there they do not allocate, block or print. All time
 * comes in through the arguments, or a replay would not find what the live run found. The arguments
 * of a call are valid during the call; a stream is valid, at the same address, until the update is
 * destroyed. Nothing is thrown out of a function: in C++ their types are noexcept, and update.hpp
 * catches.
 */
#ifndef OVERHEAR_UPDATE_H
#define OVERHEAR_UPDATE_H

#include <stddef.h>

#include "sensor.h"

#ifdef __cplusplus
#define OH_NOEXCEPT_ noexcept
extern "C" {
#else
#define OH_NOEXCEPT_
#endif

/* The version of everything below. Another version has another exported function. */
#define OH_UPDATE_ABI 1u

/* The writer of a stream. */
enum { OH_ORIGIN_PROGRAM = 1, OH_ORIGIN_KERNEL = 2, OH_ORIGIN_SAMPLER = 3 };

/* The properties of a stream. */
typedef struct oh_stream {
    uint32_t size;        /* of this struct; additions go to the end */
    uint32_t id;          /* the second key of the total order */
    const char *sensor;   /* id of the sensor; for kernel streams the hook */
    const char *instance; /* distinguishes sensors of one id; "" if there is only one */
    const char *label;    /* name for display: comm(pid)/sensor#instance */
    const char *type;     /* the type id of its payload */
    const oh_field *fields; /* field_count of them, without those that name the writer */
    uint32_t field_count;
    uint32_t payload_size; /* bytes */
    uint32_t origin;       /* OH_ORIGIN_* */
    uint32_t pid;          /* of programs, else 0 */
    uint32_t cpu;          /* of the kernel, else 0 */
    uint32_t names_writers; /* 1 if elements carry the id of the writing thread */
} oh_stream;

/* One element, validated and in order. */
typedef struct oh_element_view {
    const oh_stream *stream;
    uint64_t sequence;   /* its position in the stream */
    uint64_t time_ns;    /* CLOCK_MONOTONIC when it was committed */
    const void *payload; /* payload_size bytes of the stream, aligned to 8, a copy that does not change */
    uint32_t writer_tid; /* the thread that wrote it, where the stream names writers, else 0 */
    uint32_t writer_flags;
} oh_element_view;

/*
 * One large element in the memory of its writer, valid during `prepare`. The writer may overwrite
 * it at any moment, so a loaded value may be a mixture of two elements: check indices and lengths
 * before you use them. There is no pointer to the payload: it is loaded by value, with the
 * functions oh_in_place_*.
 */
typedef struct oh_element_in_place {
    uint32_t size;
    uint32_t reserved;
    const oh_stream *stream;
    uint64_t sequence;
    uint64_t time_ns;
    uint32_t writer_tid; /* as of oh_element_view; loaded like the payload */
    uint32_t writer_flags;
    void (*load)(const struct oh_element_in_place *element, uint32_t offset, uint32_t bytes, void *to);
} oh_element_in_place;

/* The element that `commit` refers to. */
typedef struct oh_element_key {
    const oh_stream *stream;
    uint64_t sequence;
    uint64_t time_ns;
} oh_element_key;

/* The cause of a gap. */
enum {
    OH_GAP_OVERWRITTEN = 1, /* the writer lapped the reader */
    OH_GAP_LATE = 2,        /* published when the merge had passed its time */
    OH_GAP_NESTED = 3,      /* a write nested in another was refused */
    OH_GAP_FULL = 4,        /* a write found no free element, or no lane */
    OH_GAP_KERNEL = 5,      /* the kernel reported a loss of its own */
    OH_GAP_CORRUPT = 6,     /* the writer's process damaged the stream */
    OH_GAP_EPOCH = 7,       /* the clock began a new epoch */
    OH_GAP_INCONSISTENT = 8, /* elements contradict each other; `missed` is a lower bound */
    OH_GAP_BUDGET = 9,      /* a budget had switched the sensor off */
    OH_GAP_DISK = 10,       /* left out of a recording to keep its rate or size */
    OH_GAP_UNSAMPLED = 11   /* a sampler took no sample in a period */
};

/* Missed elements of one stream. */
typedef struct oh_gap {
    const oh_stream *stream;
    uint64_t first;   /* the position of the first */
    uint64_t missed;  /* number of elements, 0 if it is unknown; a lower bound with OH_GAP_INCONSISTENT */
    uint64_t from_ns; /* the time of the last element before them */
    uint64_t to_ns;   /* the time of the first element after them */
    uint32_t cause;   /* OH_GAP_* */
    uint32_t reserved;
} oh_gap;

/* The calling monitor. Updates pass it to the functions below and do not access its members. */
typedef struct oh_host {
    uint32_t size;
    uint32_t abi;
    void (*fail)(struct oh_host *host, const char *message);
    void (*result_u64)(struct oh_host *host, const char *key, uint64_t value);
    void (*result_i64)(struct oh_host *host, const char *key, int64_t value);
    void (*result_f64)(struct oh_host *host, const char *key, double value);
    void (*result_text)(struct oh_host *host, const char *key, const char *value);
    void (*result_json)(struct oh_host *host, const char *key, const char *value);
    void (*react)(struct oh_host *host, uint32_t code, int64_t value);
    /* The pointer that the program passed to oh_monitor_add (monitor.h); in plug-ins NULL. */
    void *application;
} oh_host;

/* Policy for missed elements of an update's streams. `gap` is called in either case. */
enum {
    OH_MISSED_CONTINUE = 0, /* the update goes on, and missed elements are counted */
    OH_MISSED_STOP = 1      /* the update is not called after the gap, and the report names the gap */
};

/*
 * An update: its name, its sensors and its functions. Functions that are NULL are not called;
 * create and element are required. A function fails if it returns another value than 0, and create
 * fails if it returns NULL. Then the update is not called any more, and the report contains the
 * failure with the message of oh_fail.
 */
typedef struct oh_update {
    uint32_t size;       /* sizeof(oh_update); additions go to the end */
    uint32_t missed;     /* OH_MISSED_* */
    const char *name;    /* names it in `--update FILE.so:NAME` and in the report; required */
    const char *sensors; /* pattern: TASK/SENSOR#INSTANCE with *, ?, [abc], {a,b}, or an event's name, user:SENSOR;
                            NULL: all of programs. Streams of the kernel and probes are meant by kernel:NAME
                            or kernel/NAME alone, those of a sampler by sampler:SENSOR or sampler/SENSOR */
    const char *type;    /* only elements of this type id; NULL: of any */
    const oh_field *fields; /* and, if given, of exactly these fields: else the report complains */
    uint32_t field_count;
    uint32_t payload_size; /* sizeof the payload struct, with fields */
    /* Creates the update. `argument` is the ARGUMENT of `--update FILE.so:NAME=ARGUMENT`, or "". */
    void *(*create)(oh_host *host, const char *argument)OH_NOEXCEPT_;
    /* Called for a stream before its first element or gap. */
    int (*open)(void *self, oh_host *host, const oh_stream *stream) OH_NOEXCEPT_;
    int (*element)(void *self, oh_host *host, const oh_element_view *element) OH_NOEXCEPT_;
    int (*gap)(void *self, oh_host *host, const oh_gap *gap) OH_NOEXCEPT_;
    /* No element older than now_ns follows; UINT64_MAX at the end. */
    int (*advance)(void *self, oh_host *host, uint64_t now_ns) OH_NOEXCEPT_;
    /* Sets the results by oh_result_*. Not called in a real-time thread. It does not reset them:
     * `overhear top` calls it once per refresh. */
    int (*report)(void *self, oh_host *host) OH_NOEXCEPT_;
    /* Frees the update. Not called in a real-time thread. */
    void (*destroy)(void *self)OH_NOEXCEPT_;
    /*
     * If `prepare` and `commit` are given, elements of more than OH_IN_PLACE_BYTES are evaluated
     * without a copy, if possible; otherwise `element` is called, as by older monitors for all
     * elements.
     *
     * Prepares the evaluation without any effect outside of self. *prepared is 1; set it to 0 if
     * there is nothing to commit.
     */
    int (*prepare)(void *self, oh_host *host, const oh_element_in_place *element,
                   int *prepared) OH_NOEXCEPT_;
    /* Ends an evaluation in place. If valid is not 0, the element was whole until after `prepare`:
     * commit the result. Otherwise drop it; an overwritten element is also reported to `gap`. */
    int (*commit)(void *self, oh_host *host, const oh_element_key *element, int valid) OH_NOEXCEPT_;
    /*
     * Makes the allocations and page faults of the first element in advance. A monitor with
     * guarantees calls it once in the evaluating thread, after the first calls of `open` and before
     * the first element that counts. Other and older monitors do not call it, so no result may
     * depend on it. The memory of the process, including the plug-in's code, data and thread-local
     * variables, is already mapped and locked.
     */
    int (*warm_up)(void *self, oh_host *host) OH_NOEXCEPT_;
} oh_update;

/* Payloads of more bytes than this may be evaluated in place. */
#define OH_IN_PLACE_BYTES 256u

/* The cause of a reaction. */
enum {
    OH_ON_OVERRUN = 0,      /* an update took longer than its WCET: element, value = nanoseconds, bound = WCET */
    OH_ON_STREAM = 1,       /* a sensor was faster than its stream: element; observed, bound = distance, D or
                               earliness, tau */
    OH_ON_MISSED = 2,       /* elements were missed: element = the first, value = their number */
    OH_ON_VIOLATED = 3,     /* a constraint is violated: element, value = offences so far, observed, bound */
    OH_ON_INCONCLUSIVE = 4, /* a constraint cannot be found to hold any more */
    OH_ON_UPDATE = 5        /* an update has called oh_react: code, value */
};

/*
 * A reaction of overhear.toml that is carried out by a function of a shared object. Such a function
 * is
 *
 *     void lower_quality(const oh_reaction *reaction)
 *
 * named by `function = "FILE.so:lower_quality"`, and exported like any function of a library. It
 * runs in the thread that carries out reactions, never in one that evaluates, and at no real-time
 * priority: it may allocate, block and print, and later reactions wait for it. Updates of the same
 * plug-in run in another thread at the same time: shared variables need atomics or a lock. It
 * must not throw. Its argument is valid during the call.
 */
typedef struct oh_reaction {
    uint32_t size;        /* of this struct; additions go to the end */
    uint32_t on;          /* OH_ON_* */
    const char *name;     /* name of the reaction in overhear.toml */
    const char *of;       /* the update, sensor or constraint */
    const char *message;  /* what happened, as text for users */
    uint64_t at_ns;       /* time of the cause, CLOCK_MONOTONIC */
    uint64_t count;       /* number of occurrences; for OH_ON_MISSED the number of elements */
    uint64_t element;     /* its position in its stream; UINT64_MAX if there is none */
    int64_t value;
    uint32_t code;
    uint32_t reserved;
    double observed;      /* the offending value in the unit of its field, nanoseconds, or a count; NaN if
                             there is none */
    double bound;         /* the violated bound, in the same unit; NaN if there is none */
} oh_reaction;

/* The table that a plug-in exports. */
typedef struct oh_plugin {
    uint32_t size;
    uint32_t abi; /* OH_UPDATE_ABI */
    const oh_update *const *updates;
    uint32_t update_count;
    uint32_t reserved;
} oh_plugin;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_stream, fields, 40, 8);
OH_ASSERT_FIELD(oh_stream, field_count, 48, 4);
OH_ASSERT_FIELD(oh_stream, names_writers, 68, 4);
OH_STATIC_ASSERT(sizeof(oh_stream) == 72, "oh_stream: size");
OH_ASSERT_FIELD(oh_element_view, payload, 24, 8);
OH_STATIC_ASSERT(sizeof(oh_element_view) == 40, "oh_element_view: size");
OH_ASSERT_FIELD(oh_gap, cause, 40, 4);
OH_STATIC_ASSERT(sizeof(oh_gap) == 48, "oh_gap: size");
OH_ASSERT_FIELD(oh_host, fail, 8, 8);
OH_ASSERT_FIELD(oh_host, react, 56, 8);
OH_ASSERT_FIELD(oh_host, application, 64, 8);
OH_STATIC_ASSERT(sizeof(oh_host) == 72, "oh_host: size");
OH_ASSERT_FIELD(oh_reaction, at_ns, 32, 8);
OH_ASSERT_FIELD(oh_reaction, code, 64, 4);
OH_ASSERT_FIELD(oh_reaction, observed, 72, 8);
OH_STATIC_ASSERT(sizeof(oh_reaction) == 88, "oh_reaction: size");
OH_ASSERT_FIELD(oh_update, name, 8, 8);
OH_ASSERT_FIELD(oh_update, create, 48, 8);
OH_ASSERT_FIELD(oh_update, prepare, 104, 8);
OH_ASSERT_FIELD(oh_update, warm_up, 120, 8);
OH_STATIC_ASSERT(sizeof(oh_update) == 128, "oh_update: size");
OH_ASSERT_FIELD(oh_element_in_place, load, 40, 8);
OH_STATIC_ASSERT(sizeof(oh_element_in_place) == 48, "oh_element_in_place: size");
OH_STATIC_ASSERT(sizeof(oh_element_key) == 24, "oh_element_key: size");
OH_STATIC_ASSERT(sizeof(oh_plugin) == 24, "oh_plugin: size");
#endif

/*
 * Sets the message of a function that is about to return a failure. The text is copied.
 * Thread safety: from within a call alone. Async-signal safety: no. Real-time class: allocates.
 */
OH_INLINE_ void oh_fail(oh_host *host, const char *message)
{
    host->fail(host, message);
}

/*
 * oh_result_*: sets one result, from within `report`: a key with a number, a text, or a JSON
 * document. Keys and texts are UTF-8 and are copied. A second call with the same key replaces the
 * value. Invalid JSON becomes a complaint in the report.
 * Thread safety: from within a call alone. Async-signal safety: no. Real-time class: allocates.
 */
OH_INLINE_ void oh_result_u64(oh_host *host, const char *key, uint64_t value)
{
    host->result_u64(host, key, value);
}
OH_INLINE_ void oh_result_i64(oh_host *host, const char *key, int64_t value)
{
    host->result_i64(host, key, value);
}
OH_INLINE_ void oh_result_f64(oh_host *host, const char *key, double value)
{
    host->result_f64(host, key, value);
}
OH_INLINE_ void oh_result_text(oh_host *host, const char *key, const char *value)
{
    host->result_text(host, key, value);
}
OH_INLINE_ void oh_result_json(oh_host *host, const char *key, const char *json)
{
    host->result_json(host, key, json);
}

/*
 * Load from the payload of an element in place: bytes from an offset on, or one number. Bytes after
 * the payload are 0.
 * Thread safety: from within `prepare` alone. Async-signal safety: yes. Real-time class: wait-free.
 */
OH_INLINE_ void oh_in_place_load(const oh_element_in_place *element, uint32_t offset, uint32_t bytes,
                                 void *to)
{
    element->load(element, offset, bytes, to);
}
OH_INLINE_ uint64_t oh_in_place_u64(const oh_element_in_place *element, uint32_t offset)
{
    uint64_t value;
    element->load(element, offset, sizeof value, &value);
    return value;
}
OH_INLINE_ uint32_t oh_in_place_u32(const oh_element_in_place *element, uint32_t offset)
{
    uint32_t value;
    element->load(element, offset, sizeof value, &value);
    return value;
}
OH_INLINE_ double oh_in_place_f64(const oh_element_in_place *element, uint32_t offset)
{
    double value;
    element->load(element, offset, sizeof value, &value);
    return value;
}

/*
 * Requests the reactions of overhear.toml that are bound to this update (`on = ["update"]`). The
 * update defines the meaning of `code` and `value`. The call has no effect if no reaction is bound,
 * in a replay, and under monitors without this function. Call it from `element`, `commit`, `gap`
 * and `advance`; calls from `prepare` are ignored, because it must have no effect.
 * Thread safety: from within a call alone. Async-signal safety: no. Real-time class: wait-free.
 */
OH_INLINE_ void oh_react(oh_host *host, uint32_t code, int64_t value)
{
    if (host->size >= offsetof(oh_host, react) + sizeof host->react)
        host->react(host, code, value);
}

/* The symbol that a monitor looks up in a shared object; OH_EXPORT_UPDATES defines it. */
__attribute__((visibility("default"))) const oh_plugin *oh_plugin_v1(void) OH_NOEXCEPT_;

/* OH_EXPORT_UPDATES(&one, &another): makes a shared object a plug-in. Once in each. */
#define OH_EXPORT_UPDATES(...)                                                                      \
    const oh_plugin *oh_plugin_v1(void) OH_NOEXCEPT_                                                \
    {                                                                                               \
        static const oh_update *const oh_updates_[] = {__VA_ARGS__};                                \
        static const oh_plugin oh_plugin_ = {sizeof(oh_plugin), OH_UPDATE_ABI, oh_updates_,         \
                                             sizeof oh_updates_ / sizeof *oh_updates_, 0};          \
        return &oh_plugin_;                                                                         \
    }

#ifdef __cplusplus
}
#endif

#endif
