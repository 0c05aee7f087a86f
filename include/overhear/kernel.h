/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Kernel monitors, for C11 and C++17: kernel events of selected threads.
 *
 *     oh_kernel_monitor *monitor;
 *     oh_kernel_monitor_options options = {.buffer_bytes = 1 << 20};
 *     oh_kernel_status status;
 *     if (oh_kernel_monitor_create(&monitor, &options, &status) != 0)
 *         fprintf(stderr, "%s\n", oh_kernel_last_error());
 *     oh_kernel_event *events = malloc(status.max_events * sizeof *events);
 *     oh_kernel_thread_monitor(monitor, thread, 7);
 *     oh_kernel_monitor_resume(monitor);
 *     ...
 *     uint64_t count;
 *     oh_kernel_monitor_read(monitor, events, status.max_events, &count);
 *     ...
 *     oh_kernel_monitor_terminate(monitor);
 *     oh_kernel_monitor_free(monitor);
 *
 * A kernel monitor [MKM, section 4] records the kernel events of the threads that it tracks.
 * Its life: created suspended, resumed, read, terminated. It tracks threads, processes with all
 * their descendants, cgroups, or the whole machine. It has its own buffers, one per hook and CPU.
 * Several monitors may track the same threads.
 *
 * A monitor belongs to the process that created it, and ends with that process: the kernel removes
 * its programs and buffers. Other processes have no access, unless the monitor is handed over.
 *
 * The functions are in a separate library, which links with libbpf: -loverhear_kernel,
 * `pkg-config overhear-kernel`, or Overhear::kernel in CMake.
 *
 * Every function with result int returns 0 or a negative errno. -EINVAL: the monitor is NULL or
 * terminated; further codes are listed at each function. oh_kernel_last_error returns the message.
 *
 * Unless a function states otherwise:
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: may
 * block.
 */
#ifndef OVERHEAR_KERNEL_H
#define OVERHEAR_KERNEL_H

#include "update.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel monitor. oh_kernel_monitor_create and _receive make one, oh_kernel_monitor_free frees
 * it. */
typedef struct oh_kernel_monitor oh_kernel_monitor;

/* Source of kernel events. */
enum {
    OH_KERNEL_ANY = 0, /* BPF programs if permitted, else perf records */
    OH_KERNEL_BPF = 1, /* everything in this header; needs CAP_BPF and CAP_PERFMON */
    OH_KERNEL_PERF = 2 /* threads and processes of this user; sched_switch and task_life only */
};

/* Options of a new monitor. Zero-initialise it. */
typedef struct oh_kernel_monitor_options {
    uint64_t buffer_bytes; /* approximate size of all buffers; 0: some MiB per possible CPU */
    const char *sensors;   /* sensors besides scheduling: names separated by commas, or "all"; NULL:
                              none. If the list names a sensor of scheduling, only the named ones of
                              scheduling are recorded, and sched_switch and task_life. Example:
                              "sched_switch" disables wake-ups and loads no program for them */
    uint32_t backend;      /* OH_KERNEL_* */
    uint32_t dedicated_programs; /* not 0: the monitor gets its own BPF programs, so that it can be
                                    handed over while this process has other monitors */
} oh_kernel_monitor_options;

/* Properties of a monitor. */
typedef struct oh_kernel_status {
    uint64_t granted_bytes; /* size of all buffers */
    uint64_t max_events;    /* largest number of events that one read can return */
    const char *message;   /* recorded sensors, and sensors that this kernel lacks, as text;
                               valid as long as the monitor */
    uint32_t backend;       /* OH_KERNEL_BPF or OH_KERNEL_PERF */
    uint32_t reserved;
} oh_kernel_status;

/* A context switch: the payload of streams of the sensor sched_switch (docs/trace.md). */
typedef struct oh_kernel_switch {
    uint32_t prev_tid, next_tid;
    uint32_t prev_pid, next_pid;
    uint16_t prev_state;
    uint16_t flags; /* OH_SWITCH_* */
    uint32_t prev_run_ns; /* UINT32_MAX: unknown */
} oh_kernel_switch;
enum {
    OH_SWITCH_PREEMPTED = 1,    /* the leaving thread did not call the scheduler itself */
    OH_SWITCH_PREV_TRACKED = 2, /* the leaving thread is tracked by this monitor */
    OH_SWITCH_NEXT_TRACKED = 4, /* the entering thread is tracked by this monitor */
    OH_SWITCH_VOLUNTARY = 8,    /* the kernel counts the switch as voluntary; set for tracked threads only */
    OH_SWITCH_RESUMED = 16      /* first switch of its stream after the monitor was resumed */
};

/* A wake-up: the payload of streams of the sensor sched_wake. */
typedef struct oh_kernel_wake {
    uint32_t tid, pid;
    uint32_t waker_tid, waker_pid;
    uint32_t target_cpu;
    uint32_t kind; /* OH_WAKE_* */
} oh_kernel_wake;
enum { OH_WAKE_WAKING = 1, OH_WAKE_WAKEUP = 2, OH_WAKE_NEW = 3 };

/* Begin, end or tracking of a thread: the payload of streams of the sensor task_life. */
typedef struct oh_kernel_life {
    uint32_t tid, pid;
    uint32_t parent_tid, parent_pid;
    uint32_t kind; /* OH_LIFE_* */
    uint32_t code; /* TRACKED: the unique id; EXIT: the exit code */
    uint64_t cpu_ns;
    char comm[16];
    uint64_t reserved;
} oh_kernel_life;
enum {
    OH_LIFE_FORK = 1,
    OH_LIFE_EXEC = 2,
    OH_LIFE_EXIT = 3,
    OH_LIFE_NAME = 4,
    OH_LIFE_TRACKED = 5,
    OH_LIFE_UNTRACKED = 6
};

/*
 * A kernel event: an element of a stream, or, if `cause` is not 0, a gap in a stream. The stream
 * describes the payload (sensor, type, fields); the three sensors of scheduling have structs.
 */
typedef struct oh_kernel_event {
    const oh_stream *stream; /* valid until the monitor is freed */
    uint64_t sequence;       /* position of the element, or of the first missed one */
    uint64_t time_ns;        /* CLOCK_MONOTONIC; for a gap, the time of the element before it */
    uint64_t missed;         /* for a gap: number of missed elements; 0 if the number is unknown */
    uint32_t cause;          /* OH_GAP_* of update.h; 0 for an element */
    uint32_t reserved;
    union {
        uint64_t words[7];
        oh_kernel_switch switched;
        oh_kernel_wake woken;
        oh_kernel_life life;
    } payload;
} oh_kernel_event;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_kernel_monitor_options, dedicated_programs, 20, 4);
OH_STATIC_ASSERT(sizeof(oh_kernel_monitor_options) == 24, "oh_kernel_monitor_options: size");
OH_ASSERT_FIELD(oh_kernel_status, message, 16, 8);
OH_STATIC_ASSERT(sizeof(oh_kernel_status) == 32, "oh_kernel_status: size");
OH_ASSERT_FIELD(oh_kernel_event, cause, 32, 4);
OH_ASSERT_FIELD(oh_kernel_event, payload, 40, 56);
OH_STATIC_ASSERT(sizeof(oh_kernel_event) == 96, "oh_kernel_event: size");
#endif
OH_STATIC_ASSERT(sizeof(oh_kernel_switch) == 24, "oh_kernel_switch: size");
OH_STATIC_ASSERT(sizeof(oh_kernel_wake) == 24, "oh_kernel_wake: size");
OH_STATIC_ASSERT(sizeof(oh_kernel_life) == 56, "oh_kernel_life: size");

/* Called by oh_kernel_monitor_create, with the size of the options in the compiled program. */
int oh_kernel_monitor_create_sized(oh_kernel_monitor **out, const oh_kernel_monitor_options *options,
                                   size_t options_size, oh_kernel_status *status);

/*
 * oh_kernel_monitor_create: creates a kernel monitor. It is suspended and tracks no thread.
 *
 * Ownership: the options are copied; *out belongs to the caller until oh_kernel_monitor_free.
 * `status` may be NULL.
 * Returns 0; -EINVAL for an unknown sensor or backend; -EPERM if the kernel permits no backend to
 * this user. On failure *out is NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
OH_INLINE_ int oh_kernel_monitor_create(oh_kernel_monitor **out,
                                        const oh_kernel_monitor_options *options,
                                        oh_kernel_status *status)
{
    return oh_kernel_monitor_create_sized(out, options, sizeof *options, status);
}

/* oh_kernel_monitor_status: fills in the properties of the monitor. Returns 0 or -EINVAL. */
int oh_kernel_monitor_status(const oh_kernel_monitor *monitor, oh_kernel_status *status);

/* oh_kernel_monitor_resume: starts recording. Returns 0, also if the monitor records already, or
 * -EINVAL. */
int oh_kernel_monitor_resume(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_suspend: pauses recording until the monitor is resumed. Events in the pause do
 * not count as missed. TRACKED and UNTRACKED are still recorded. Returns 0 or -EINVAL.
 */
int oh_kernel_monitor_suspend(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_read: copies the events since the last call, at most `capacity`. Events that do
 * not fit are returned by the next calls, before any newer event. Events are in total order (time,
 * stream, sequence). An event may be older than an event of another CPU in the previous call.
 *
 * With BPF it makes no system call, unless a process changes its cgroup; with perf records it reads
 * schedstat files. It never allocates.
 * Returns 0, with the number of events in *count; -EINVAL; -EIO if a stream is damaged (the events
 * in the array are valid).
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class:
 * wait-free with BPF.
 */
int oh_kernel_monitor_read(oh_kernel_monitor *monitor, oh_kernel_event *events, uint64_t capacity,
                           uint64_t *count);

/*
 * oh_kernel_monitor_finish: stops recording. Waits a bounded time until exiting threads have left
 * their CPUs. Reads return the remaining events; the monitor cannot be resumed. Returns 0 or
 * -EINVAL.
 */
int oh_kernel_monitor_finish(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_terminate: ends the monitor and discards unread events. Afterwards every call
 * except oh_kernel_monitor_free returns -EINVAL, this one as well.
 */
int oh_kernel_monitor_terminate(oh_kernel_monitor *monitor);

/* oh_kernel_monitor_free: terminates the monitor and frees it with its streams. NULL is allowed. */
void oh_kernel_monitor_free(oh_kernel_monitor *monitor);

/*
 * oh_kernel_thread_monitor: tracks one thread, without its children. The caller chooses the unique
 * id; it is the `code` of the thread's TRACKED element. No effect if the thread is tracked already.
 * Returns 0, -EINVAL, -ESRCH if there is no such thread, -EPERM if the kernel refuses.
 */
int oh_kernel_thread_monitor(oh_kernel_monitor *monitor, uint32_t thread, uint32_t unique_id);

/*
 * oh_kernel_thread_unmonitor: stops tracking a thread. Returns 0, -EINVAL, -ESRCH if there is no
 * such thread, -ENOENT if this monitor does not track it.
 */
int oh_kernel_thread_unmonitor(oh_kernel_monitor *monitor, uint32_t thread);

/*
 * oh_kernel_process_monitor: tracks all threads of a process, and all threads and processes that
 * they create from now on. Returns 0, -EINVAL, -ESRCH, -EPERM.
 */
int oh_kernel_process_monitor(oh_kernel_monitor *monitor, uint32_t process);

/*
 * oh_kernel_cgroup_monitor: tracks all threads in a cgroup of the unified hierarchy and in its
 * descendants, until they leave. Returns 0, -EINVAL, -ENOENT if the path is no cgroup, -EPERM with
 * perf records.
 */
int oh_kernel_cgroup_monitor(oh_kernel_monitor *monitor, const char *path);

/*
 * oh_kernel_all_monitor: tracks all threads of the machine, or of the PID namespace of this
 * process, and records events of idle CPUs. Returns 0, -EINVAL, -EPERM with perf records.
 */
int oh_kernel_all_monitor(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_give: hands the monitor over to the process that receives it at the other end
 * of a connected Unix socket, with its buffers, unread events, tracked threads and state (resumed
 * or suspended). Afterwards the receiver alone reads and controls the monitor, and the monitor ends
 * with the receiver; here every call except oh_kernel_monitor_free returns -EINVAL. Blocks while
 * the socket is full, and with perf records until the receiver has mapped the rings.
 *
 * Returns 0; -EBUSY if other monitors of this process use the same BPF programs (see
 * `dedicated_programs`); -ENOTSUP with probes before Linux 6.6; -EPIPE if the socket fails. On
 * failure the monitor stays here.
 */
int oh_kernel_monitor_give(oh_kernel_monitor *monitor, int socket);

/*
 * oh_kernel_monitor_receive: waits for a monitor from the other end of a socket. Reading continues
 * where the giver stopped. The receiver needs no privilege, and must trust the giver for the
 * content of the events.
 *
 * Ownership: as for oh_kernel_monitor_create; the caller keeps the socket. `status` may be NULL.
 * Returns 0; -EPIPE if the other side closes; -EPROTO if the message is invalid; -EPERM if the
 * kernel refuses; -ENOTSUP if the monitor has a probe with elements larger than an oh_kernel_event.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: blocks.
 */
int oh_kernel_monitor_receive(oh_kernel_monitor **out, int socket, oh_kernel_status *status);

/*
 * oh_kernel_last_error: the message of the last failed call of this thread, for people. Never NULL;
 * valid until the next call of this thread.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: wait-free.
 */
const char *oh_kernel_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
