/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Kernel monitors, for C11 and C++17: what the kernel does with the threads that a program chooses.
 *
 *     oh_kernel_monitor *monitor;
 *     oh_kernel_monitor_options options = {.buffer_bytes = 1 << 20};
 *     oh_kernel_status status;
 *     if (oh_kernel_monitor_create(&monitor, &options, &status) != 0)
 *         fprintf(stderr, "%s\n", oh_kernel_last_error());
 *     oh_kernel_event *events = malloc(status.most_events * sizeof *events);
 *     oh_kernel_thread_monitor(monitor, thread, 7);
 *     oh_kernel_monitor_resume(monitor);
 *     ...
 *     uint64_t count;
 *     oh_kernel_monitor_read(monitor, events, status.most_events, &count);
 *     ...
 *     oh_kernel_monitor_terminate(monitor);
 *     oh_kernel_monitor_free(monitor);
 *
 * A kernel monitor (seed 003, section 4) is created suspended, then resumed and read. It tracks threads,
 * processes with all that they create, cgroups, or everything, and records in buffers of its own, one per
 * hook and CPU. It belongs to its creator, and ends with it, however that ends: the kernel removes its
 * programs and buffers. Another process reaches it only if it is handed over to it. Several monitors may
 * track the same threads.
 *
 * The functions are in a library of their own, which is linked with libbpf: -loverhear_kernel, or
 * `pkg-config overhear-kernel`, or Overhear::kernel in CMake.
 *
 * All functions that return an int return a negative errno on failure: -EINVAL for a monitor that is NULL or
 * terminated, and what is said below. oh_kernel_last_error has the sentence. They have in common, where
 * nothing else is said:
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: may block.
 */
#ifndef OVERHEAR_KERNEL_H
#define OVERHEAR_KERNEL_H

#include "update.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel monitor; made by oh_kernel_monitor_create or _receive, given back by oh_kernel_monitor_free. */
typedef struct oh_kernel_monitor oh_kernel_monitor;

/* How the kernel is heard. */
enum {
    OH_KERNEL_ANY = 0, /* by BPF programs, else by perf records */
    OH_KERNEL_BPF = 1, /* all that this header tells of; needs CAP_BPF and CAP_PERFMON */
    OH_KERNEL_PERF = 2 /* threads and processes of one's own, switches and lives alone */
};

/* What a monitor is created with. Zero-initialise it. */
typedef struct oh_kernel_monitor_options {
    uint64_t buffer_bytes; /* about how many all buffers may take together; 0: some MiB per possible CPU */
    const char *sensors;   /* besides scheduling: names, separated by commas, or "all"; NULL: none. One of
                              scheduling among them leaves out what is not named: "sched_switch" has no
                              wake-ups, and no program for them. sched_switch and task_life are always heard */
    uint32_t way;          /* OH_KERNEL_* */
    uint32_t apart;        /* not 0: with BPF programs of its own, so that it can be handed over whatever
                              other monitors this process has */
} oh_kernel_monitor_options;

/* What was granted. */
typedef struct oh_kernel_status {
    uint64_t granted_bytes; /* of all buffers */
    uint64_t most_events;   /* that one read can return: room for as many never leaves any behind */
    const char *sentence;   /* what is heard, and what this kernel lacks; as long as the monitor lives */
    uint32_t way;           /* OH_KERNEL_BPF or OH_KERNEL_PERF */
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
    OH_SWITCH_NEXT_TRACKED = 4, /* the entering one is */
    OH_SWITCH_VOLUNTARY = 8,    /* the kernel counts it as voluntary; of tracked threads */
    OH_SWITCH_RESUMED = 16      /* the first of its stream since the suspended monitor was resumed */
};

/* A wake-up: sched_wake. */
typedef struct oh_kernel_wake {
    uint32_t tid, pid;
    uint32_t waker_tid, waker_pid;
    uint32_t target_cpu;
    uint32_t kind; /* OH_WAKE_* */
} oh_kernel_wake;
enum { OH_WAKE_WAKING = 1, OH_WAKE_WAKEUP = 2, OH_WAKE_NEW = 3 };

/* A thread begins, ends, is tracked: task_life. */
typedef struct oh_kernel_life {
    uint32_t tid, pid;
    uint32_t parent_tid, parent_pid;
    uint32_t kind; /* OH_LIFE_* */
    uint32_t code; /* of TRACKED the unique id, of EXIT the exit code */
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
 * The basic kernel event: an element of any stream, or, where `cause` is not 0, a gap in one. The stream
 * says what the payload consists of (its sensor, type and fields); the three of scheduling have structs.
 */
typedef struct oh_kernel_event {
    const oh_stream *stream; /* valid until the monitor is freed */
    uint64_t sequence;       /* the position of the element, or of the first that was missed */
    uint64_t time_ns;        /* CLOCK_MONOTONIC; of a gap, that of the element before it */
    uint64_t missed;         /* of a gap: how many elements; 0 is a damage of unknown extent */
    uint32_t cause;          /* OH_GAP_* of update.h; 0: this is an element */
    uint32_t reserved;
    union {
        uint64_t words[7];
        oh_kernel_switch switched;
        oh_kernel_wake woken;
        oh_kernel_life life;
    } payload;
} oh_kernel_event;

#if UINTPTR_MAX == UINT64_MAX
OH_ASSERT_FIELD(oh_kernel_monitor_options, apart, 20, 4);
OH_STATIC_ASSERT(sizeof(oh_kernel_monitor_options) == 24, "oh_kernel_monitor_options: size");
OH_ASSERT_FIELD(oh_kernel_status, sentence, 16, 8);
OH_STATIC_ASSERT(sizeof(oh_kernel_status) == 32, "oh_kernel_status: size");
OH_ASSERT_FIELD(oh_kernel_event, cause, 32, 4);
OH_ASSERT_FIELD(oh_kernel_event, payload, 40, 56);
OH_STATIC_ASSERT(sizeof(oh_kernel_event) == 96, "oh_kernel_event: size");
#endif
OH_STATIC_ASSERT(sizeof(oh_kernel_switch) == 24, "oh_kernel_switch: size");
OH_STATIC_ASSERT(sizeof(oh_kernel_wake) == 24, "oh_kernel_wake: size");
OH_STATIC_ASSERT(sizeof(oh_kernel_life) == 56, "oh_kernel_life: size");

/* What oh_kernel_monitor_create calls: with the size of the options of the program that is compiled. */
int oh_kernel_monitor_create_sized(oh_kernel_monitor **out, const oh_kernel_monitor_options *options,
                                   size_t options_size, oh_kernel_status *status);

/*
 * oh_kernel_monitor_create: creates a kernel monitor, suspended, and tracking nobody.
 *
 * Ownership: the options are copied; *out belongs to the caller until oh_kernel_monitor_free. `status` may
 * be NULL.
 * Returns 0, -EINVAL for an unknown sensor, -EPERM where this user hears nothing from this kernel; then *out is
 * NULL.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 */
OH_INLINE_ int oh_kernel_monitor_create(oh_kernel_monitor **out,
                                        const oh_kernel_monitor_options *options,
                                        oh_kernel_status *status)
{
    return oh_kernel_monitor_create_sized(out, options, sizeof *options, status);
}

/* oh_kernel_monitor_status: what was granted. Returns 0 or -EINVAL. */
int oh_kernel_monitor_status(const oh_kernel_monitor *monitor, oh_kernel_status *status);

/* oh_kernel_monitor_resume: records from now on. Returns 0, also if it does already, or -EINVAL. */
int oh_kernel_monitor_resume(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_suspend: records nothing until it is resumed. What happens meanwhile is not missed;
 * beginnings and ends of tracking are told all the same. Returns 0 or -EINVAL.
 */
int oh_kernel_monitor_suspend(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_read: gets what was recorded since the last call, at most `capacity` events. What finds no
 * room comes with the next call, which gets nothing newer. Events are in total order (time, stream, sequence);
 * one may be older than an event of another CPU that came with the call before.
 *
 * It neither calls the kernel nor allocates, as long as no process changes its cgroup; with perf
 * records it asks the kernel for runnable times.
 * Returns 0, and in *count how many; -EINVAL, or -EIO if a stream is damaged, of which the rest is good.
 * Thread safety: one thread at a time per monitor. Async-signal safety: no. Real-time class: wait-free by BPF.
 */
int oh_kernel_monitor_read(oh_kernel_monitor *monitor, oh_kernel_event *events, uint64_t capacity,
                           uint64_t *count);

/*
 * oh_kernel_monitor_finish: stops recording, and waits a little until threads that have announced their exit
 * have left their CPUs. One more read gets what is left; nothing can be resumed any more. Returns 0 or
 * -EINVAL.
 */
int oh_kernel_monitor_finish(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_terminate: ends it. What was not read is gone, and all further calls but
 * oh_kernel_monitor_free return -EINVAL, this one as well.
 */
int oh_kernel_monitor_terminate(oh_kernel_monitor *monitor);

/* Terminates a monitor, unless it is, and gives its memory back: its streams go, too. NULL is allowed. */
void oh_kernel_monitor_free(oh_kernel_monitor *monitor);

/*
 * oh_kernel_thread_monitor: tracks one thread, but not what it creates. The caller sees to it that the id
 * is unique; it comes as `code` of the thread's TRACKED element. A thread that is tracked already stays so.
 * Returns 0, -EINVAL, -ESRCH if there is no such thread, -EPERM if the kernel refuses.
 */
int oh_kernel_thread_monitor(oh_kernel_monitor *monitor, uint32_t thread, uint32_t unique_id);

/*
 * oh_kernel_thread_unmonitor: tracks it no more. Returns 0, -EINVAL, -ESRCH if there is no such thread,
 * -ENOENT if this monitor does not track it.
 */
int oh_kernel_thread_unmonitor(oh_kernel_monitor *monitor, uint32_t thread);

/*
 * oh_kernel_process_monitor: tracks all threads of a process, and all threads and processes that they
 * create from now on. Returns 0, -EINVAL, -ESRCH, -EPERM.
 */
int oh_kernel_process_monitor(oh_kernel_monitor *monitor, uint32_t process);

/*
 * oh_kernel_cgroup_monitor: tracks all threads in a cgroup of the unified hierarchy and below it, as long
 * as they are there. Returns 0, -EINVAL, -ENOENT if the path is none, -EPERM with perf records.
 */
int oh_kernel_cgroup_monitor(oh_kernel_monitor *monitor, const char *path);

/*
 * oh_kernel_all_monitor: tracks all threads of the machine, or of the PID namespace of this process, and
 * hears the CPUs themselves. Returns 0, -EINVAL, -EPERM with perf records.
 */
int oh_kernel_all_monitor(oh_kernel_monitor *monitor);

/*
 * oh_kernel_monitor_give: hands the monitor over to whoever receives it from the other end of a connected Unix
 * socket, with its buffers and all that is in them, its threads, and as resumed or suspended as it is. From
 * then on the receiver alone reads and controls it, and it ends with the receiver. Here all further calls but
 * oh_kernel_monitor_free return -EINVAL. Waits while the socket has no room, and with perf records until the
 * receiver has mapped their rings.
 *
 * Returns 0, -EBUSY if other monitors of this process use the same BPF programs (see `apart`), -ENOTSUP with
 * probes before Linux 6.6, -EPIPE if the socket does not take it; then the monitor stays.
 */
int oh_kernel_monitor_give(oh_kernel_monitor *monitor, int socket);

/*
 * oh_kernel_monitor_receive: waits for a monitor that is handed over, and reads on where its giver has ended. It
 * takes no privilege. What it hears is the giver's word.
 *
 * Ownership: as for oh_kernel_monitor_create; the socket stays the caller's. `status` may be NULL.
 * Returns 0, -EPIPE if the other side closes, -EPROTO if something else comes, -EPERM if the kernel refuses,
 * -ENOTSUP if it has a probe whose elements are larger than an oh_kernel_event.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: blocks.
 */
int oh_kernel_monitor_receive(oh_kernel_monitor **out, int socket, oh_kernel_status *status);

/*
 * oh_kernel_last_error: what the last call of this thread that failed says, for people. Never NULL; valid
 * until the next call of this thread.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: wait-free.
 */
const char *oh_kernel_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
