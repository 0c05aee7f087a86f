/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Monitors inside a program, and waiting for their results, for C11 and C++17. C++ programs include
 * monitor.hpp, which is built on this header.
 *
 * A program starts a monitor, which is a best-effort thread that reads sensors of this program or
 * of others, and adds updates (update.h) to it.
 *
 * Link with -loverhear_monitor, `pkg-config overhear-monitor`, or Overhear::monitor in CMake. This
 * library contains the functions of liboverhear, so -loverhear is not needed. A program that links
 * liboverhear alone gets the linker error "undefined reference to `oh_monitor_start_sized'".
 *
 *     oh_monitor *monitor;
 *     oh_monitor_options options = {.sensors = "request"};
 *     if (oh_monitor_start(&monitor, &options) != 0)
 *         fprintf(stderr, "%s\n", oh_last_error());
 *     int judge = oh_monitor_add(monitor, &judge_update, "", &verdicts);
 *     ...
 *     oh_sensor_put(sensor, &request);
 *     oh_monitor_wait(monitor, oh_now_ns(), 1000000000); // verdicts are known now
 *     ...
 *     oh_monitor_stop(monitor);
 *
 * Sensors never wait for monitors. A program that needs the verdict on an element before it goes on
 * writes the element, reads the clock, and waits until all older elements are evaluated by its own
 * monitor (oh_monitor_wait) or by that of another process (oh_waiter_wait). The wait takes at
 * least the hold-back.
 *
 * All functions that return an int return a negative errno on failure; oh_last_error returns the
 * message. Functions that take a monitor return -EDEADLK if an update calls them for its own
 * monitor: the thread cannot wait for itself. oh_monitor_stop does nothing there.
 */
#ifndef OVERHEAR_MONITOR_H
#define OVERHEAR_MONITOR_H

#include "clock.h"
#include "update.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Monitors, directories and waiters; made and ended by the functions below. */
typedef struct oh_monitor oh_monitor;
typedef struct oh_directory oh_directory;
typedef struct oh_waiter oh_waiter;

/* The settings of a monitor. Zero-initialise it. */
typedef struct oh_monitor_options {
    const char *sensors;   /* pattern of the sensors: TASK/SENSOR#INSTANCE; NULL: all sensors of programs */
    const char *announce;  /* name by which other processes wait for it; NULL: not announced */
    const char *directory; /* socket of the directory; NULL: the directory of the environment */
    uint64_t hold_back_ns; /* age of an element when it is evaluated; 0: 2 ms */
    const char *const *required; /* events that its updates require, in a list that ends with NULL, as from
                                    oh_metric_events; NULL: all that `sensors` matches. Their sensors are
                                    switched on if the directory disables sensors that are not needed. */
    uint32_t disable_unused; /* not 0: until the monitor stops, sensors that no monitor needs are off */
    uint32_t reserved;
} oh_monitor_options;

/* The state of an update. */
enum { OH_UPDATE_WAITING = 0, OH_UPDATE_RUNNING = 1, OH_UPDATE_STOPPED = 2, OH_UPDATE_FAILED = 3 };
typedef struct oh_update_status {
    uint64_t elements; /* evaluated elements; if it has failed, the last one is the cause */
    uint64_t missed;   /* missed elements, reported to it as gaps */
    uint32_t state;    /* OH_UPDATE_* */
    uint32_t refused;  /* sensors that match its pattern but write another type: it gets no element of them */
} oh_update_status;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_monitor_options, hold_back_ns, 24, 8);
OH_ASSERT_FIELD(oh_monitor_options, required, 32, 8);
OH_STATIC_ASSERT(sizeof(oh_monitor_options) == 48, "oh_monitor_options: size");
OH_ASSERT_FIELD(oh_update_status, state, 16, 4);
OH_ASSERT_FIELD(oh_update_status, refused, 20, 4);
OH_STATIC_ASSERT(sizeof(oh_update_status) == 24, "oh_update_status: size");
#endif

/*
 * oh_now_ns: CLOCK_MONOTONIC, the clock of all times here.
 * Thread safety: any thread. Async-signal safety: yes. Real-time class: wait-free.
 */
OH_INLINE_ uint64_t oh_now_ns(void)
{
    return oh_clock_ns_(OH_LINUX_CLOCK_MONOTONIC_);
}

/*
 * oh_directory_start: starts a directory in this program, for programs that need no other one. It
 * listens at `socket`, which must not exist yet. Set OVERHEAR_DIRECTORY to the same path before
 * sensors are registered.
 *
 * Ownership: *out belongs to the caller until oh_directory_stop. Stop it after
 * all sensors and monitors.
 * Returns 0, -EINVAL, or -EADDRINUSE if it cannot listen.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_directory_start(oh_directory **out, const char *socket);
/* Ends the directory. NULL is allowed. The fixed lines are those of oh_directory_start. */
void oh_directory_stop(oh_directory *directory);

/* Called by oh_monitor_start, with the size of the options when the program was compiled. */
int oh_monitor_start_sized(oh_monitor **out, const oh_monitor_options *options, size_t options_size);

/*
 * oh_monitor_start: attaches to the sensors and starts a thread that evaluates their elements.
 * Elements that were written before are not read.
 *
 * Ownership: the options are copied. *out belongs to the caller until oh_monitor_stop.
 * Returns 0, -EINVAL for a pattern or an event that cannot be parsed, -ENOENT if no directory
 * answers or the directory refuses, -EAGAIN if no thread can be created; then *out is NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
OH_INLINE_ int oh_monitor_start(oh_monitor **out, const oh_monitor_options *options)
{
    return oh_monitor_start_sized(out, options, sizeof *options);
}

/*
 * oh_monitor_add: adds an update. When the call returns, the update gets all elements that are
 * written from then on. Its `create` gets `argument`, and `application` in its host. Its functions
 * run in the monitor's thread. `report` is not called: the update stores its results in memory of
 * the program.
 *
 * Ownership: the update's table is copied. oh_monitor_remove or oh_monitor_stop destroys the object
 * that `create` has returned.
 * Returns the update's number, 0 or more, -EDEADLK, or -EINVAL: the message names the update and
 * the reason.
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: may
 * block.
 */
int oh_monitor_add(oh_monitor *monitor, const oh_update *update, const char *argument,
                   void *application);

/*
 * oh_monitor_add_kernel: adds a kernel monitor of kernel.h as a source. The monitor resumes and
 * reads it by the given functions, which are in another library:
 *
 *     oh_monitor_add_kernel(monitor, kernel, oh_kernel_monitor_resume, oh_kernel_monitor_read,
 *                           status.max_events);
 *
 * Ownership: select the threads of the kernel monitor before this call. Until oh_monitor_stop
 * returns, only the monitor's thread uses it; then the caller frees it.
 * Returns 0, -EDEADLK or -EINVAL. The fixed lines are those of oh_monitor_add.
 */
struct oh_kernel_monitor;
struct oh_kernel_event;
int oh_monitor_add_kernel(oh_monitor *monitor, struct oh_kernel_monitor *kernel,
                          int (*resume)(struct oh_kernel_monitor *),
                          int (*read)(struct oh_kernel_monitor *, struct oh_kernel_event *, uint64_t, uint64_t *),
                          uint64_t most_events);

/*
 * oh_monitor_remove: removes an update, or a metric, at the end of a round, without disturbing the
 * others, and destroys it. Returns 0, -EDEADLK or -EINVAL. The fixed lines are those of
 * oh_monitor_add.
 */
int oh_monitor_remove(oh_monitor *monitor, int update);

/*
 * oh_monitor_status: the state of an update at the end of the last round. oh_last_error then
 * returns why it has failed or was stopped and, for each refused sensor, the written and the
 * evaluated type; else it is empty.
 * Returns 0, -EDEADLK or -EINVAL. The fixed lines are those of oh_monitor_add.
 */
int oh_monitor_status(oh_monitor *monitor, int update, oh_update_status *status);

/*
 * oh_monitor_wait: waits until all elements stamped before until_ns are evaluated. Memory that the
 * updates wrote for them is then visible to the caller.
 * Returns 0, -ETIMEDOUT, -EDEADLK, or -ESRCH if the monitor has ended.
 * Thread safety: any thread, also several at once, but not during oh_monitor_add or _remove.
 * Async-signal safety: no.
 * Real-time class: blocks.
 */
int oh_monitor_wait(oh_monitor *monitor, uint64_t until_ns, uint64_t timeout_ns);

/*
 * oh_monitor_stop: evaluates all elements that were written before the call, ends the thread and
 * destroys the updates. NULL is allowed.
 * Thread safety: while no other thread uses it. Async-signal safety: no. Real-time class: may
 * block.
 */
void oh_monitor_stop(oh_monitor *monitor);

/*
 * oh_waiter_attach: attaches to the monitor, of this process or another, that announces itself by
 * this name. It need not run yet.
 * Ownership: *out belongs to the caller until oh_waiter_detach.
 * Returns 0, -EINVAL, or -ENOENT if no directory answers; then *out is NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_waiter_attach(oh_waiter **out, const char *monitor);

/*
 * oh_waiter_wait: waits until that monitor has evaluated all elements stamped before until_ns. The
 * elements of a sensor that was registered only just before may be evaluated later, when the
 * monitor has attached to it.
 * Returns 0, -ETIMEDOUT, -ENOENT if no monitor has announced itself until then, -ESRCH if it has
 * ended.
 * Thread safety: one thread at a time per waiter. Async-signal safety: no. Real-time class: blocks.
 */
int oh_waiter_wait(oh_waiter *waiter, uint64_t until_ns, uint64_t timeout_ns);

/* Ends it. NULL is allowed. The fixed lines are those of oh_waiter_attach. */
void oh_waiter_detach(oh_waiter *waiter);

#ifdef __cplusplus
}
#endif

#endif
