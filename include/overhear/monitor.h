/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Monitors inside a program, and waiting for evaluations, for C11 and C++17. C++ programs rather include
 * monitor.hpp, which stands on this header.
 *
 * The monitoring framework is a library: a program starts a monitor, a thread of best effort that reads
 * sensors, of its own or of other programs, and adds the updates of update.h to it.
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
 * Sensors never wait for monitors. A program that needs the verdict on an element before it goes on says
 * so: it writes the element, reads the clock, and waits until everything older than that has been
 * evaluated, by a monitor of its own (oh_monitor_wait) or of another process (oh_waiter_wait). That takes
 * at least the hold-back.
 *
 * All functions that return an int return a negative errno on failure; oh_last_error has the sentence.
 * Those that take a monitor fail with -EDEADLK in functions of its own updates: its thread cannot wait for
 * itself. oh_monitor_stop does nothing there.
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

/* What a monitor is started with. Zero-initialise it. */
typedef struct oh_monitor_options {
    const char *sensors;   /* which it reads: TASK/SENSOR#INSTANCE, a pattern; NULL: all of programs */
    const char *announce;  /* the name by which other processes wait for it; NULL: nobody does */
    const char *directory; /* the socket of the directory; NULL: that of the environment */
    uint64_t hold_back_ns; /* how old an element must be before it is evaluated; 0: 2 ms */
    const char *const *required; /* the events that its evaluations require, as oh_metric_events lists them, ending
                                    with NULL; NULL: all that `sensors` names. Where only what is needed is
                                    observed, their sensors are switched on. */
    uint32_t only_needed; /* not 0: sensors that no monitor needs are switched off until it stops */
    uint32_t reserved;
} oh_monitor_options;

/* How an update is doing. */
enum { OH_UPDATE_WAITING = 0, OH_UPDATE_RUNNING = 1, OH_UPDATE_STOPPED = 2, OH_UPDATE_FAILED = 3 };
typedef struct oh_update_status {
    uint64_t elements; /* that reached it; where it has failed, the last is the one at which it did */
    uint64_t missed;   /* that it was told of */
    uint32_t state;    /* OH_UPDATE_* */
    uint32_t refused;  /* sensors that it asked for and whose elements are not of its type: it gets none */
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
 * oh_directory_start: a directory in this program, listening at `socket`, which must not exist yet: for
 * programs that need no other one. Set OVERHEAR_DIRECTORY to the same path before sensors are registered.
 *
 * Ownership: *out belongs to the caller until oh_directory_stop, which comes after everything else.
 * Returns 0, -EINVAL, or -EADDRINUSE where it cannot listen.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_directory_start(oh_directory **out, const char *socket);
/* Ends it. NULL is allowed. The fixed lines are those of oh_directory_start. */
void oh_directory_stop(oh_directory *directory);

/* What oh_monitor_start calls: with the size of the options of the program that is compiled. */
int oh_monitor_start_sized(oh_monitor **out, const oh_monitor_options *options, size_t options_size);

/*
 * oh_monitor_start: attaches to the sensors, of which elements are read from now on, and begins to
 * evaluate, in a thread of its own.
 *
 * Ownership: the options are copied. *out belongs to the caller until oh_monitor_stop.
 * Returns 0, -EINVAL for a pattern or an event that cannot be understood, -ENOENT where no directory answers or permits
 * it, -EAGAIN where there is no thread; then *out is NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
OH_INLINE_ int oh_monitor_start(oh_monitor **out, const oh_monitor_options *options)
{
    return oh_monitor_start_sized(out, options, sizeof *options);
}

/*
 * oh_monitor_add: adds an update, and returns when it is called for all elements that are written from then
 * on. Its `create` gets `argument`, and `application` in its host. Its `report` is not called: what it
 * finds it leaves where the program looks for it; its functions run in the monitor's thread.
 *
 * Ownership: the update's table is copied; what `create` makes is destroyed in oh_monitor_remove or
 * oh_monitor_stop.
 * Returns the update's number, 0 or more, -EDEADLK, or -EINVAL: oh_last_error names the update and the reason.
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: may block.
 */
int oh_monitor_add(oh_monitor *monitor, const oh_update *update, const char *argument,
                   void *application);

/*
 * oh_monitor_hear: lets the monitor resume a kernel monitor of kernel.h, and read it as well. The functions are given
 * because they are in another library:
 *
 *     oh_monitor_hear(monitor, kernel, oh_kernel_monitor_resume, oh_kernel_monitor_read, status.max_events);
 *
 * Ownership: from now on the monitor's thread alone uses the kernel monitor, whose threads have been chosen before,
 * until oh_monitor_stop has returned; then the caller may use it, and frees it.
 * Returns 0, -EDEADLK or -EINVAL. The fixed lines are those of oh_monitor_add.
 */
struct oh_kernel_monitor;
struct oh_kernel_event;
int oh_monitor_hear(oh_monitor *monitor, struct oh_kernel_monitor *kernel,
                    int (*resume)(struct oh_kernel_monitor *),
                    int (*read)(struct oh_kernel_monitor *, struct oh_kernel_event *, uint64_t, uint64_t *),
                    uint64_t most_events);

/*
 * oh_monitor_remove: removes an update, or a metric, at the end of a round, without disturbing the others, and
 * destroys it. Returns 0, -EDEADLK or -EINVAL. The fixed lines are those of oh_monitor_add.
 */
int oh_monitor_remove(oh_monitor *monitor, int update);

/*
 * oh_monitor_status: how an update is doing, as of the end of a round. Of one that has failed or was stopped
 * oh_last_error says why, and of each sensor that it refused which type was written and which is evaluated;
 * it is empty where there is nothing to say.
 * Returns 0, -EDEADLK or -EINVAL. The fixed lines are those of oh_monitor_add.
 */
int oh_monitor_status(oh_monitor *monitor, int update, oh_update_status *status);

/*
 * oh_monitor_wait: waits until everything stamped before until_ns has been evaluated; what the updates wrote
 * for it is visible to the caller then.
 * Returns 0, -ETIMEDOUT, -EDEADLK, or -ESRCH if the monitor has ended.
 * Thread safety: any thread, also several at once, while nobody adds or removes. Async-signal safety: no.
 * Real-time class: blocks.
 */
int oh_monitor_wait(oh_monitor *monitor, uint64_t until_ns, uint64_t timeout_ns);

/*
 * oh_monitor_stop: evaluates what has been written until now, ends the thread and destroys the updates. NULL
 * is allowed.
 * Thread safety: while no other thread uses it. Async-signal safety: no. Real-time class: may block.
 */
void oh_monitor_stop(oh_monitor *monitor);

/*
 * oh_waiter_attach: finds the monitor, of whatever process, that announces itself by this name. It need not
 * run yet.
 * Ownership: *out belongs to the caller until oh_waiter_detach.
 * Returns 0, -EINVAL, or -ENOENT where no directory answers; then *out is NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
int oh_waiter_attach(oh_waiter **out, const char *monitor);

/*
 * oh_waiter_wait: waits until everything stamped before until_ns has been evaluated there. A sensor that was
 * registered a moment ago may be unknown to the monitor; its elements are evaluated as soon as it attaches.
 * Returns 0, -ETIMEDOUT, -ENOENT if no monitor has announced itself until then, -ESRCH if it has ended.
 * Thread safety: one thread at a time per waiter. Async-signal safety: no. Real-time class: blocks.
 */
int oh_waiter_wait(oh_waiter *waiter, uint64_t until_ns, uint64_t timeout_ns);

/* Ends it. NULL is allowed. The fixed lines are those of oh_waiter_attach. */
void oh_waiter_detach(oh_waiter *waiter);

#ifdef __cplusplus
}
#endif

#endif
