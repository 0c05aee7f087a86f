/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Measurements of metrics, for C11 and C++17: the values that metric.h and metrics_trace.h return.
 */
#ifndef OVERHEAR_MEASUREMENT_H
#define OVERHEAR_MEASUREMENT_H

#include <stdint.h>

#include "abi.h"

/* One measurement: the five values of [POSIX-metrics, section 2], and further properties. */
typedef struct oh_measurement {
    uint64_t length_ns;           /* the measured time without the cost of observing */
    uint64_t begin_ns;            /* when it began, CLOCK_MONOTONIC */
    uint64_t end_ns;              /* when it was completed */
    uint64_t intermediate_events; /* elements in its segments, of all streams */
    uint64_t own_events;          /* of these, the elements of the task itself */
    uint64_t key;                 /* the kind of the measurement, if has_key is 1 */
    uint64_t missed;              /* elements that were missed during the measurement */
    uint32_t task;                /* the thread; the process if the sensor does not record threads */
    uint32_t has_key;             /* 1 if the metric classifies its measurements and this one has a kind */
} oh_measurement;

OH_ASSERT_FIELD(oh_measurement, key, 40, 8);
OH_ASSERT_FIELD(oh_measurement, task, 56, 4);
OH_STATIC_ASSERT(sizeof(oh_measurement) == 64, "oh_measurement: size");

/* A gap in a measurement: elements that were missed while it was running. */
typedef struct oh_measurement_gap {
    uint64_t measurement; /* its number, as of oh_results_at */
    uint64_t first;       /* the position of the first missed element in its stream */
    uint64_t missed;      /* number of missed elements */
    uint64_t from_ns;     /* the time of the last element before them */
    uint64_t to_ns;       /* the time of the first element after them */
    uint32_t stream;      /* the stream's number */
    uint32_t cause;       /* OH_GAP_* */
} oh_measurement_gap;

OH_ASSERT_FIELD(oh_measurement_gap, stream, 40, 4);
OH_STATIC_ASSERT(sizeof(oh_measurement_gap) == 48, "oh_measurement_gap: size");

#endif /* OVERHEAR_MEASUREMENT_H */
