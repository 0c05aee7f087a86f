/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the client and the server of the demonstration share: the size of a message and the payloads
 * of their three sensors, C in the client, P and F in the server [GRTMon, section 5.1].
 *
 * A call is one message with a text command, answered by one message with a text reply. Each sensor
 * is invoked twice per call, before and after what it is named for, and notes the CPU time that its
 * thread has used so far. The difference of two such notes is the time spent between them, without
 * the time in which the thread was preempted or blocked.
 */
#ifndef DEMO_CALL_H
#define DEMO_CALL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <overhear/sensor.h>

/* The longest command or reply, with the zero byte that ends it in memory. */
enum { MESSAGE_BYTES = 256 };

/* The flag in each payload. */
enum { BEFORE = 0, AFTER = 1 };

/* C: around a call, in the client. F: around the called function, in the server. */
struct call_sample {
    uint64_t cpu_ns; /* CPU time of the invoking thread */
    uint32_t call;   /* the call's number on its connection, from 0 */
    uint32_t after;  /* BEFORE or AFTER */
};

/* P: before a command is parsed, and before its reply is sent. */
struct parser_sample {
    uint64_t cpu_ns;     /* CPU time of the invoking thread */
    uint32_t call;       /* the call's number on its connection, from 0 */
    uint32_t after;      /* BEFORE or AFTER */
    uint32_t client;     /* process id of the caller, as the kernel vouches for it */
    uint32_t text_bytes; /* length of the command (BEFORE) or of the reply (AFTER) */
};

static const oh_field call_fields[] = {
    OH_FIELD_U64(struct call_sample, cpu_ns, "ns"),
    OH_FIELD_U32(struct call_sample, call, ""),
    OH_FIELD_U32(struct call_sample, after, ""),
};

/*
 * The declared rate (T, D, tau) of every sensor here, by a rule of thumb as in section 5.1: each is
 * invoked twice per call, so T is half a period. The second invocation of a pair comes early, by T
 * at most, and a pair comes early after one that the scheduler has delayed, for which a period is
 * allowed. D is 0: a function can be short, and after a late call the next one begins at once.
 */
static inline void declare_rate(oh_sensor_options *options, uint32_t period_us)
{
    const uint64_t period_ns = (uint64_t)period_us * 1000;

    options->period_ns = period_ns / 2;
    options->jitter_ns = period_ns / 2 + period_ns;
}

/*
 * Registers one of the sensors. A sensor without a directory writes into private memory, so only
 * options that contradict themselves are an error: a mistake in this program.
 */
static inline int register_sensor(oh_sensor **sensor, const oh_sensor_options *options)
{
    int error = oh_sensor_register(sensor, options);

    if (error != 0)
        fprintf(stderr, "sensor %s: %s: %s\n", options->id, strerror(-error), oh_last_error());
    return error;
}

/*
 * An invocation of C or F: write, fill, commit. To ask for the CPU time enters the kernel and is
 * the dearest part of it, so the element is stamped before that at the beginning of a span, and
 * after that at its end: the stamps of two invocations enclose what their CPU times measure, and
 * what lies outside of them is free of the sensor's own cost.
 */
static inline void put_call_sample(oh_sensor *sensor, uint32_t call, uint32_t after)
{
    const uint64_t begun_ticks = oh_sensor_stamp(sensor);
    struct call_sample *sample = (struct call_sample *)oh_sensor_write(sensor);

    sample->call = call;
    sample->after = after;
    sample->cpu_ns = oh_thread_cpu_ns();
    oh_sensor_commit_at(sensor, after ? oh_sensor_stamp(sensor) : begun_ticks);
}

#endif /* DEMO_CALL_H */
