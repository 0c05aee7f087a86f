/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_kernel. Kernel monitors in C: a thread's switches against the kernel's own count,
 * the life of [MKM, section 4], and a read that does not enter the kernel.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/kernel.h>

#include "system_calls.h"
#include "tap.h"

enum { TURNS = 200 };

/* A thread that sleeps once in each round. */
struct sleeper {
    pthread_t thread;
    sem_t turn, done;
    pid_t tid;
    int ends;
};

static void *sleep_in_turns(void *argument)
{
    struct sleeper *sleeper = (struct sleeper *)argument;
    sleeper->tid = (pid_t)syscall(SYS_gettid);
    do {
        sem_post(&sleeper->done);
        while (sem_wait(&sleeper->turn) != 0) {
        }
    } while (!sleeper->ends);
    return NULL;
}

/* Whether it sleeps: the kernel shows the system call of sleeping threads only. */
static int sleeps(const struct sleeper *sleeper)
{
    char path[64], line[64] = "";
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)sleeper->tid);
    file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        exit(1);
    fclose(file);
    return strncmp(line, "running", 7) != 0;
}

/* Each turn is at least one switch: it begins when the thread sleeps, or a fast one would not have
   to. */
static void turns(struct sleeper *sleeper, int count)
{
    while (count-- > 0) {
        while (!sleeps(sleeper))
            usleep(100);
        sem_post(&sleeper->turn);
        while (sem_wait(&sleeper->done) != 0) {
        }
    }
}

static void start(struct sleeper *sleeper)
{
    memset(sleeper, 0, sizeof *sleeper);
    sem_init(&sleeper->turn, 0, 0);
    sem_init(&sleeper->done, 0, 0);
    if (pthread_create(&sleeper->thread, NULL, sleep_in_turns, sleeper) != 0)
        exit(1);
    while (sem_wait(&sleeper->done) != 0) {
    }
}

static void end(struct sleeper *sleeper)
{
    sleeper->ends = 1;
    sem_post(&sleeper->turn);
    pthread_join(sleeper->thread, NULL);
}

/* The kernel's count of its departures, once it sleeps. */
static uint64_t switches(const struct sleeper *sleeper)
{
    char path[64], line[256];
    uint64_t sum = 0, number;
    FILE *file;
    while (!sleeps(sleeper))
        usleep(1000);
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)sleeper->tid);
    file = fopen(path, "r");
    if (!file)
        exit(1);
    while (fgets(line, sizeof line, file)) {
        const char *value = strstr(line, "ctxt_switches:");
        if (value && sscanf(value, "ctxt_switches: %" SCNu64, &number) == 1)
            sum += number;
    }
    fclose(file);
    return sum;
}

/* Elements of tracked threads: they may also name the untracked thread that gets the CPU. */
static uint64_t departures(const oh_kernel_event *events, uint64_t count, pid_t tid)
{
    uint64_t found = 0, at;
    for (at = 0; at < count; at++)
        found += events[at].cause == 0 && strcmp(events[at].stream->sensor, "sched_switch") == 0 &&
                 (events[at].payload.switched.flags & OH_SWITCH_PREV_TRACKED) != 0 &&
                 events[at].payload.switched.prev_tid == (uint32_t)tid;
    return found;
}

static int ordered(const oh_kernel_event *events, uint64_t count)
{
    uint64_t at;
    for (at = 1; at < count; at++)
        if (events[at].time_ns < events[at - 1].time_ns)
            return 0;
    return 1;
}

/* A read in a child that the kernel kills at any system call. */
static int reads_alone(oh_kernel_monitor *monitor, oh_kernel_event *events, uint64_t most)
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        uint64_t count = 0;
        if (forbid_system_calls() != 0)
            _exit(REFUSED);
        _exit(oh_kernel_monitor_read(monitor, events, most, &count) == 0 && count > 0 ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* One end hands over, the other continues to read; the unread events arrive, too. */
static void of_hand_over(struct sleeper *sleeper)
{
    oh_kernel_monitor_options options;
    oh_kernel_monitor *giver = NULL, *receiver = NULL;
    oh_kernel_status status;
    oh_kernel_event *events;
    uint64_t count = 0, before, counted;
    int sockets[2];
    memset(&options, 0, sizeof options);
    options.buffer_bytes = 1 << 20;
    options.backend = OH_KERNEL_BPF;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0 ||
        oh_kernel_monitor_create(&giver, &options, NULL) != 0)
        exit(1);
    tap_check(oh_kernel_monitor_give(giver, sockets[0]) == -EBUSY && strstr(oh_kernel_last_error(), "dedicated programs"),
              "a monitor that shares its programs is not handed over");
    oh_kernel_monitor_free(giver);
    options.dedicated_programs = 1;
    if (oh_kernel_monitor_create(&giver, &options, NULL) != 0)
        exit(1);
    oh_kernel_thread_monitor(giver, (uint32_t)sleeper->tid, 5);
    before = switches(sleeper);
    oh_kernel_monitor_resume(giver);
    turns(sleeper, 20);
    tap_check(oh_kernel_monitor_give(giver, sockets[0]) == 0 && oh_kernel_monitor_resume(giver) == -EINVAL &&
                  strstr(oh_kernel_last_error(), "handed over"),
              "one with dedicated programs is, and is not reached here any more");
    oh_kernel_monitor_free(giver);
    turns(sleeper, 20);
    tap_check(oh_kernel_monitor_receive(&receiver, sockets[1], &status) == 0, "it is received");
    turns(sleeper, 20);
    counted = switches(sleeper) - before;
    events = (oh_kernel_event *)calloc(status.max_events, sizeof *events);
    if (!events)
        exit(1);
    before = 0;
    do {
        if (oh_kernel_monitor_read(receiver, events, status.max_events, &count) != 0)
            break;
        before += departures(events, count, sleeper->tid);
    } while (count > 0);
    tap_check(before == counted && counted >= 60, "nothing was missed meanwhile");
    oh_kernel_monitor_free(receiver);
    close(sockets[0]);
    tap_check(oh_kernel_monitor_receive(&receiver, sockets[1], NULL) == -EPIPE && !receiver,
              "nobody gives any more");
    tap_check(oh_kernel_monitor_receive(&receiver, -1, NULL) == -EINVAL, "minus one is no socket");
    close(sockets[1]);
    free(events);
}

static void of_errors(void)
{
    oh_kernel_monitor_options options;
    oh_kernel_monitor *monitor = NULL;
    memset(&options, 0, sizeof options);
    options.sensors = "page_fault, nap";
    tap_check(oh_kernel_monitor_create(&monitor, &options, NULL) == -EINVAL && !monitor &&
                  strstr(oh_kernel_last_error(), "nap"),
              "a sensor that is none is named");
    options.sensors = NULL;
    options.backend = 9;
    tap_check(oh_kernel_monitor_create(&monitor, &options, NULL) == -EINVAL, "nor is there a ninth way");
    tap_check(oh_kernel_monitor_resume(NULL) == -EINVAL && oh_kernel_monitor_terminate(NULL) == -EINVAL,
              "NULL is no monitor");
    oh_kernel_monitor_free(NULL);
}

/* A monitor of switches alone has their departures, and no wake-up. */
static void of_switches(void)
{
    oh_kernel_monitor_options options;
    oh_kernel_monitor *monitor = NULL;
    oh_kernel_status status;
    oh_kernel_event *events;
    struct sleeper sleeper;
    uint64_t count = 0, i, left = 0, woken = 0;
    memset(&options, 0, sizeof options);
    options.buffer_bytes = 1 << 20;
    options.sensors = "sched_switch";
    options.backend = OH_KERNEL_BPF;
    if (oh_kernel_monitor_create(&monitor, &options, &status) != 0) {
        tap_skip("switches alone", oh_kernel_last_error());
        return;
    }
    tap_check(strstr(status.message, "without wake-ups") != NULL, "the status reports that there are no wake-ups");
    events = (oh_kernel_event *)calloc(status.max_events, sizeof *events);
    if (!events)
        exit(1);
    start(&sleeper);
    oh_kernel_thread_monitor(monitor, (uint32_t)sleeper.tid, 77);
    oh_kernel_monitor_resume(monitor);
    turns(&sleeper, TURNS);
    oh_kernel_monitor_suspend(monitor);
    tap_check(oh_kernel_monitor_read(monitor, events, status.max_events, &count) == 0, "it is read");
    for (i = 0; i < count; i++) {
        const char *sensor = events[i].stream->sensor;
        woken += strcmp(sensor, "sched_wake") == 0;
        left += strcmp(sensor, "sched_switch") == 0;
    }
    tap_check(left > 0 && woken == 0, "there are switches, and no wake-up");
    end(&sleeper);
    oh_kernel_monitor_free(monitor);
    free(events);
}

int main(void)
{
    oh_kernel_monitor_options options;
    oh_kernel_monitor *monitor = NULL;
    oh_kernel_status status;
    oh_kernel_event *events;
    struct sleeper sleeper, other;
    uint64_t count = 0, before, counted, part = 0, first;
    int code;

    of_errors();
    of_switches();
    memset(&options, 0, sizeof options);
    options.buffer_bytes = 1 << 20;
    options.sensors = "softirq";
    options.backend = OH_KERNEL_BPF;
    code = oh_kernel_monitor_create(&monitor, &options, &status);
    if (code == -EPERM) {
        tap_skip("kernel monitors", oh_kernel_last_error());
        return tap_done();
    }
    tap_check(code == 0 && status.granted_bytes > 0 && status.granted_bytes <= 1 << 20 &&
                  status.backend == OH_KERNEL_BPF && strstr(status.message, "BPF"),
              "a monitor is created, and reports what was granted");
    events = (oh_kernel_event *)calloc(status.max_events, sizeof *events);
    if (!events)
        return 1;
    start(&sleeper);
    start(&other);
    tap_check(oh_kernel_thread_monitor(monitor, (uint32_t)sleeper.tid, 77) == 0, "a thread is tracked");
    turns(&sleeper, 5);
    tap_check(oh_kernel_monitor_read(monitor, events, status.max_events, &count) == 0 && count == 1 &&
                  events[0].payload.life.kind == OH_LIFE_TRACKED,
              "it is created suspended: only the tracking is reported");
    before = switches(&sleeper);
    tap_check(oh_kernel_monitor_resume(monitor) == 0, "it is resumed");
    turns(&sleeper, TURNS);
    turns(&other, 5);
    counted = switches(&sleeper) - before;
    tap_check(oh_kernel_monitor_suspend(monitor) == 0, "it is suspended again");
    code = reads_alone(monitor, events, status.max_events);
    if (code == REFUSED)
        tap_skip("a read does not enter the kernel", "this kernel permits no seccomp filter");
    else
        tap_check(code == 0, "a read does not enter the kernel");
    tap_check(oh_kernel_monitor_read(monitor, events, status.max_events, &count) == 0 &&
                  ordered(events, count),
              "what was recorded is read in order");
    tap_check(departures(events, count, sleeper.tid) == counted && counted >= TURNS,
              "as many switches as the kernel has counted");
    tap_check(departures(events, count, other.tid) == 0, "and none of a thread that is not tracked");

    before = switches(&sleeper);
    oh_kernel_monitor_resume(monitor);
    turns(&sleeper, TURNS);
    counted = switches(&sleeper) - before;
    oh_kernel_monitor_suspend(monitor);
    first = 0;
    do {
        code = oh_kernel_monitor_read(monitor, events, 7, &count);
        part += departures(events, count, sleeper.tid);
        first += count > 7;
    } while (code == 0 && count > 0);
    tap_check(code == 0 && first == 0 && part == counted, "what finds no room comes with the next read");

    oh_kernel_monitor_resume(monitor);
    tap_check(oh_kernel_thread_unmonitor(monitor, (uint32_t)sleeper.tid) == 0 &&
                  oh_kernel_thread_unmonitor(monitor, (uint32_t)sleeper.tid) == -ENOENT,
              "a thread is tracked no more");
    oh_kernel_thread_monitor(monitor, (uint32_t)other.tid, 4711);
    oh_kernel_monitor_read(monitor, events, status.max_events, &count);
    {
        uint64_t at;
        uint32_t code_of_other = 0;
        for (at = 0; at < count; at++)
            if (strcmp(events[at].stream->sensor, "task_life") == 0 &&
                events[at].payload.life.kind == OH_LIFE_TRACKED &&
                events[at].payload.life.tid == (uint32_t)other.tid)
                code_of_other = events[at].payload.life.code;
        tap_check(code_of_other == 4711, "the unique id comes with the thread");
    }
    tap_check(oh_kernel_process_monitor(monitor, (uint32_t)getpid()) == 0, "a process is tracked");
    tap_check(oh_kernel_all_monitor(monitor) == 0, "everything is");
    tap_check(oh_kernel_cgroup_monitor(monitor, "/proc") == -ENOENT &&
                  strstr(oh_kernel_last_error(), "cgroup"),
              "a folder that is no cgroup is not");
    of_hand_over(&sleeper);
    end(&sleeper);
    tap_check(oh_kernel_thread_monitor(monitor, (uint32_t)sleeper.tid, 1) == -ESRCH,
              "nor a thread that has ended");
    tap_check(oh_kernel_monitor_finish(monitor) == 0 &&
                  oh_kernel_monitor_read(monitor, events, status.max_events, &count) == 0 && count > 0,
              "the rest is read after its end");

    tap_check(oh_kernel_monitor_terminate(monitor) == 0, "it is terminated");
    tap_check(oh_kernel_monitor_resume(monitor) == -EINVAL && oh_kernel_monitor_suspend(monitor) == -EINVAL &&
                  oh_kernel_monitor_read(monitor, events, 1, &count) == -EINVAL &&
                  oh_kernel_thread_monitor(monitor, 1, 1) == -EINVAL &&
                  oh_kernel_monitor_status(monitor, &status) == -EINVAL &&
                  oh_kernel_monitor_terminate(monitor) == -EINVAL &&
                  strstr(oh_kernel_last_error(), "terminated"),
              "all further calls say so");
    oh_kernel_monitor_free(monitor);
    end(&other);
    free(events);
    return tap_done();
}
