/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. After oh_laned_prepare_thread ten million writes neither enter the kernel, nor
 * fault in the sensor's memory, nor allocate. Without it a thread enters the kernel once, with
 * gettid.
 *
 * Each case runs in a child of its own. One filter kills at any system call but exit_group; the
 * other counts system calls, by the signal that it sends for each. The test shows that both filters
 * and the log of faults detect a violation.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <overhear/sensor.h>

#include "allocations.h"
#include "page_faults.h"
#include "system_calls.h"
#include "tap.h"

enum { WRITES = 10000000 };

static oh_laned_sensor *begin(void)
{
    static const oh_field field = {"value", OH_U64, 0, 8, ""};
    oh_sensor_options options;
    oh_laned_sensor *sensor;
    memset(&options, 0, sizeof options);
    options.id = "laned_no_system_call";
    options.type = "value";
    options.fields = &field;
    options.field_count = 1;
    options.size = 8;
    options.lanes = 4;
    return oh_laned_register(&sensor, &options) == 0 ? sensor : NULL;
}

/* Runs a function in a child. Returns the child's wait status. */
static int in_child(int (*function)(void))
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(function());
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

static int good(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int call_the_kernel(void)
{
    if (filter_system_calls(SYS_rt_sigreturn, SECCOMP_RET_KILL_PROCESS) != 0)
        return REFUSED;
    return syscall(SYS_getppid) > 0;
}

/* Returns the number of refused writes. */
static uint64_t write_all(oh_laned_sensor *sensor)
{
    uint64_t value, refused = 0;
    for (value = 0; value < WRITES; value += 2) {
        uint64_t *payload;
        refused += !oh_laned_put(sensor, &value);
        payload = (uint64_t *)oh_laned_write(sensor);
        if (payload == NULL) {
            refused++;
            continue;
        }
        *payload = value + 1;
        refused += !oh_laned_commit(sensor);
    }
    return refused;
}

static int prepared_writes(void)
{
    oh_laned_sensor *sensor = begin();
    uint64_t before;
    if (sensor == NULL || !oh_laned_prepare_thread(sensor))
        return 1;
    if (filter_system_calls(SYS_rt_sigreturn, SECCOMP_RET_KILL_PROCESS) != 0)
        return REFUSED;
    before = allocations;
    return write_all(sensor) != 0 || allocations != before;
}

/* The exit status of a child whose writes faulted, and of one that may not log faults. */
enum { FAULTED = 98, UNLOGGED = 97, TRIES = 5 };

static int write_and_log_faults(int prepares)
{
    oh_laned_sensor *first = begin(), *sensor = begin();
    struct fault_log faults;
    const uint64_t value = 1;
    if (first == NULL || sensor == NULL || (prepares && !oh_laned_prepare_thread(sensor)))
        return 1;
    /* The test does not check the pages of code and stack: another sensor maps them. */
    if (!oh_laned_put(first, &value) || fault_log_begin(&faults) != 0)
        return UNLOGGED;
    if (write_all(sensor) != 0)
        return 1;
    return fault_log_of_data(&faults) == 0 ? 0 : FAULTED;
}

static int prepared_writes_do_not_fault(void)
{
    const int status = write_and_log_faults(1);
    fflush(stdout);
    return status;
}

/* The thread is the first one in its lane's pages. */
static int unprepared_writes_fault(void)
{
    return write_and_log_faults(0);
}

static int ended_with(int status, int code)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/* A kernel that moves pages, or is short of memory, may take some away, once: each child begins
   anew, so that a write that faults does so in all of them. */
static void ten_million_writes_do_not_fault(void)
{
    int status, tries = TRIES;
    do
        status = in_child(prepared_writes_do_not_fault);
    while (ended_with(status, FAULTED) && --tries > 0);
    if (ended_with(status, UNLOGGED)) {
        tap_skip("ten million writes without page fault", "perf events are refused here");
        return;
    }
    tap_check(good(status), "ten million writes of a prepared thread without page fault");
    tap_check(ended_with(in_child(unprepared_writes_fault), FAULTED), "faults are found");
}

static volatile int calls, last_call;
static volatile pid_t own_id;

static void count_call(int number, siginfo_t *info, void *context)
{
    ucontext_t *registers = (ucontext_t *)context;
    (void)number;
    calls++;
    last_call = info->si_syscall;
#if defined(__x86_64__)
    registers->uc_mcontext.gregs[REG_RAX] = own_id;
#elif defined(__aarch64__)
    registers->uc_mcontext.regs[0] = (uint64_t)own_id;
#else
    (void)registers;
#endif
}

static int count_calls(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = count_call;
    action.sa_flags = SA_SIGINFO;
    own_id = (pid_t)syscall(SYS_gettid);
    if (sigaction(SIGSYS, &action, NULL) != 0)
        return REFUSED;
    return filter_system_calls(SYS_rt_sigreturn, SECCOMP_RET_TRAP);
}

static int unprepared_writes(void)
{
    oh_laned_sensor *sensor = begin();
    oh_laned_sensor *other = begin();
    const uint64_t value = 1;
    if (sensor == NULL || other == NULL || count_calls() != 0)
        return REFUSED;
    if (!oh_laned_put(sensor, &value) || calls != 1 || last_call != SYS_gettid)
        return 1;
    /* The id is known now: another sensor needs a lane, but no system call. */
    if (write_all(sensor) != 0 || write_all(other) != 0 || calls != 1)
        return 2;
    (void)syscall(SYS_getppid);
    return calls != 2;
}

static int prepared_by_id_alone(void)
{
    oh_laned_sensor *sensor = begin();
    const uint64_t value = 1;
    oh_prepare_thread();
    if (sensor == NULL || count_calls() != 0)
        return REFUSED;
    return !oh_laned_put(sensor, &value) || calls != 0;
}

int main(void)
{
    int status = in_child(call_the_kernel);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED) {
        tap_skip("ten million writes without system call", "seccomp filters are refused here");
    } else {
        tap_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS,
                  "the filter kills a process that calls the kernel");
#if defined(__x86_64__) || defined(__aarch64__)
        tap_check(good(in_child(prepared_writes)),
                  "ten million writes of a prepared thread without system call or allocation");
        tap_check(good(in_child(unprepared_writes)),
                  "a thread that is not prepared calls gettid, once");
        tap_check(good(in_child(prepared_by_id_alone)),
                  "a thread that knows its id claims a lane without the kernel");
#else
        /* The vDSO decides whether CLOCK_MONOTONIC enters the kernel. */
        tap_skip("ten million writes without system call", "this CPU's counter has no clock id");
#endif
    }
    ten_million_writes_do_not_fault();
    return tap_done();
}
