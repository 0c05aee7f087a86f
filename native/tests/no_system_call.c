/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. Ten million writes do not enter the kernel, and a million do not allocate.
 *
 * A child process installs a filter that kills it at any system call but exit_group, writes, and
 * ends with a status. malloc and its kin are replaced by ones that count. The test first shows that
 * both guards detect a violation.
 */
#define _GNU_SOURCE 1
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocations.h"
#include "queue.h"
#include "stream.h"
#include "system_calls.h"
#include "tap.h"

enum { WRITES = 10000000, COUNTED_WRITES = 1000000, CAPACITY = 1024 };

struct sample {
    uint64_t words[4];
};

static uint64_t memory[OH_HEADER_SIZE / 8 + CAPACITY * 5];

/* Runs a function in a child under the filter. Returns the child's wait status. */
static int guarded(int (*function)(void))
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(forbid_system_calls() == 0 ? function() : REFUSED);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

static int call_the_kernel(void)
{
    return syscall(SYS_getppid) > 0;
}

static int write_words(uint32_t clock_id, uint64_t writes)
{
    oh_sensor sensor = stream_begin(memory, sizeof(struct sample), CAPACITY, clock_id, 1);
    uint64_t before = allocations;
    uint64_t position;
    for (position = 0; position < writes; position += 2) {
        const struct sample value = {{position, 1, 2, 3}};
        struct sample *payload;
        oh_sensor_put(&sensor, &value);
        payload = (struct sample *)oh_sensor_write(&sensor);
        *payload = value;
        oh_sensor_commit(&sensor);
    }
    return stream_counter(memory) != writes || allocations != before;
}

static uint64_t queue[QUEUE_BYTES(sizeof(struct sample), CAPACITY) / 8];

/* The same into a queue; each sixteenth write is abandoned, and at last none finds an element. */
static int write_queue(uint32_t clock_id, uint64_t writes)
{
    oh_concurrent_sensor sensor;
    uint64_t before, position;
    memset(queue, 0, sizeof queue);
    sensor = queue_begin(queue, sizeof(struct sample), CAPACITY, clock_id, 1);
    queue_tid = 1;
    before = allocations;
    for (position = 0; position < writes; position += 2) {
        const struct sample value = {{position, 1, 2, 3}};
        struct sample *payload;
        oh_concurrent_put(&sensor, &value);
        payload = (struct sample *)oh_concurrent_write(&sensor);
        *payload = value;
        if (position % 32 == 0)
            oh_concurrent_abandon(&sensor, payload);
        else
            oh_concurrent_commit(&sensor, payload);
    }
    for (position = 0; position < CAPACITY; position++)
        (void)oh_concurrent_write(&sensor);
    return oh_concurrent_write(&sensor) != NULL || queue_lost_full(&sensor) != 1 ||
           queue_published(&sensor) != writes || allocations != before;
}

#if defined(__x86_64__)
static int write_hardware(void)
{
    return write_words(OH_CLOCK_X86_TSC, WRITES) + write_queue(OH_CLOCK_X86_TSC, WRITES);
}
#elif defined(__aarch64__)
static int write_hardware(void)
{
    return write_words(OH_CLOCK_ARM_CNTVCT, WRITES) + write_queue(OH_CLOCK_ARM_CNTVCT, WRITES);
}
#endif

int main(void)
{
    const char *name = "ten million writes without system call";
    int status = guarded(call_the_kernel);
    void *volatile block;
    uint64_t before;

    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED) {
        tap_skip(name, "seccomp filters are refused here");
    } else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS) {
        tap_check(0, "the filter kills a process that calls the kernel");
    } else {
        tap_check(1, "the filter kills a process that calls the kernel");
#if defined(__x86_64__) || defined(__aarch64__)
        status = guarded(write_hardware);
        tap_check(WIFEXITED(status) && WEXITSTATUS(status) == 0, name);
#else
        /* The vDSO decides whether CLOCK_MONOTONIC enters the kernel. */
        tap_skip(name, "this CPU's counter has no clock id");
#endif
    }

#if defined(__GLIBC__)
    before = allocations;
    block = malloc(1);
    free(block);
    tap_check(allocations == before + 2, "the guard counts allocations");
    tap_check(write_words(OH_CLOCK_MONOTONIC, COUNTED_WRITES) == 0, "a million writes without allocation");
    tap_check(write_queue(OH_CLOCK_MONOTONIC, COUNTED_WRITES) == 0, "and into a queue");
#else
    (void)before;
    (void)block;
    tap_skip("a million writes without allocation", "the guard needs glibc");
#endif
    return tap_done();
}
