/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. Ten million writes of each kind into memory that a directory owns neither enter
 * the kernel nor fault.
 *
 * The program starts itself again under `overhear run`, which cargo builds beside the library.
 * There a child for each kind registers a sensor of its own, and writes between two counts of its
 * page faults, under a filter that kills at any system call but that count and exit_group. The test
 * shows that both guards detect a violation.
 */
#define _GNU_SOURCE 1
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/sensor.h>

#include "connected.h"
#include "system_calls.h"
#include "tap.h"

enum { WRITES = 10000000, NOT_CONNECTED = 98, FAULTED = 97, TRIES = 3 };

/* Whether filters are permitted here, and the clock does not need the kernel. */
static int filter_works;

static oh_sensor *simple;
static oh_laned_sensor *laned;
static oh_concurrent_sensor *concurrent;

static oh_sensor_options options(void)
{
    static const oh_field field = {"value", OH_U64, 0, 8, ""};
    static int made;
    static const char *const instances[] = {"first", "second"};
    oh_sensor_options asked;
    memset(&asked, 0, sizeof asked);
    asked.id = "connected_hot_path";
    asked.instance = instances[made++];
    asked.type = "value";
    asked.fields = &field;
    asked.field_count = 1;
    asked.size = 8;
    asked.lanes = 4;
    asked.writers = 4;
    return asked;
}

static int begin_simple(void)
{
    const oh_sensor_options asked = options();
    return oh_sensor_register(&simple, &asked) == 0 && oh_sensor_is_connected(simple);
}

static int begin_laned(void)
{
    const oh_sensor_options asked = options();
    return oh_laned_register(&laned, &asked) == 0 && oh_laned_is_connected(laned) &&
           oh_laned_prepare_thread(laned);
}

static int begin_concurrent(void)
{
    const oh_sensor_options asked = options();
    oh_prepare_thread();
    return oh_concurrent_register(&concurrent, &asked) == 0 && oh_concurrent_is_connected(concurrent);
}

/* Half of the elements are put, half are written and committed. Returns whether all were
   published. */
static int write_simple(uint64_t writes)
{
    const uint64_t before = simple->count;
    uint64_t value;
    for (value = 0; value < writes; value += 2) {
        oh_sensor_put(simple, &value);
        *(uint64_t *)oh_sensor_write(simple) = value + 1;
        oh_sensor_commit(simple);
    }
    return simple->count == before + writes;
}

static int write_laned(uint64_t writes)
{
    uint64_t value, refused = 0;
    for (value = 0; value < writes; value += 2) {
        uint64_t *payload;
        refused += !oh_laned_put(laned, &value);
        payload = (uint64_t *)oh_laned_write(laned);
        if (payload != NULL)
            *payload = value + 1;
        refused += payload == NULL || !oh_laned_commit(laned);
    }
    return refused == 0;
}

static int write_concurrent(uint64_t writes)
{
    const uint64_t *head = oh_queue_word_(concurrent, OH_COUNTER_OFFSET);
    const uint64_t before = __atomic_load_n(head, __ATOMIC_RELAXED) >> 16;
    uint64_t value, refused = 0;
    for (value = 0; value < writes; value += 2) {
        uint64_t *payload;
        refused += !oh_concurrent_put(concurrent, &value);
        payload = (uint64_t *)oh_concurrent_write(concurrent);
        if (payload == NULL) {
            refused++;
            continue;
        }
        *payload = value + 1;
        oh_concurrent_commit(concurrent, payload);
    }
    return refused == 0 && __atomic_load_n(head, __ATOMIC_RELAXED) >> 16 == before + writes;
}

struct kind {
    const char *name;
    int (*begin)(void);
    int (*write)(uint64_t);
};

static const struct kind kinds[] = {
    {"simple", begin_simple, write_simple},
    {"laned", begin_laned, write_laned},
    {"concurrent", begin_concurrent, write_concurrent},
};

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Under the filter, unless it is refused: only getrusage is permitted. */
static int stays_in_the_program(const struct kind *kind)
{
    long before;
    int whole;
    /* The test does not check the pages of code and stack: a first sensor maps them. */
    if (!kind->begin() || !kind->write(2) || !kind->begin() || faults() < 0)
        return NOT_CONNECTED;
    if (filter_works && forbid_system_calls_but(SYS_getrusage) != 0)
        return REFUSED;
    before = faults();
    whole = kind->write(WRITES);
    if (faults() != before)
        return FAULTED;
    return !whole;
}

static int calls_the_kernel(const struct kind *kind)
{
    (void)kind;
    if (forbid_system_calls_but(SYS_getrusage) != 0)
        return REFUSED;
    return syscall(SYS_getppid) > 0;
}

static int touches_a_new_page(const struct kind *kind)
{
    const long before = faults();
    volatile char *page = (volatile char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)kind;
    *page = 1;
    if (faults() != before)
        return FAULTED;
    return 0;
}

/* The wait status of a child that runs the function. */
static int in_child(int (*function)(const struct kind *), const struct kind *kind)
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(function(kind));
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

static int ended_with(int status, int code)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

static void guards_bite(void)
{
#if defined(__x86_64__) || defined(__aarch64__)
    const int status = in_child(calls_the_kernel, NULL);
    filter_works = !ended_with(status, REFUSED);
    if (filter_works)
        tap_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS,
                  "the filter kills a process that calls the kernel");
    else
        tap_skip("writes without system call", "seccomp filters are refused here");
#else
    /* The vDSO decides whether CLOCK_MONOTONIC enters the kernel. */
    tap_skip("writes without system call", "this CPU's counter has no clock id");
#endif
    tap_check(ended_with(in_child(touches_a_new_page, NULL), FAULTED), "faults are counted");
}

static void ten_million_writes(const struct kind *kind)
{
    char name[100];
    int status, tries = TRIES;
    /* A kernel that is short of memory may take pages of code away, once: each child begins anew,
       so that a write that faults does so in all of them. */
    do
        status = in_child(stays_in_the_program, kind);
    while (ended_with(status, FAULTED) && --tries > 0);
    snprintf(name, sizeof name, "%s, connected: ten million writes without %spage fault", kind->name,
             filter_works ? "system call or " : "");
    tap_check(ended_with(status, 0), name);
}

/* What `overhear run` ends with if the program ended well, but elements were missed: nobody can
   evaluate all of these. */
enum { INCONCLUSIVE = 3, NOT_BUILT = 96 };

static int run_connected(const char *program)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        start_connected(program);
        _exit(NOT_BUILT);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 1;
    if (WEXITSTATUS(status) == NOT_BUILT) {
        tap_skip("writes under a directory", "the command overhear is not built");
        return tap_done();
    }
    return WEXITSTATUS(status) == INCONCLUSIVE ? 0 : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    size_t index;
    if (argc == 1)
        return run_connected(argv[0]);
    guards_bite();
    for (index = 0; index < sizeof kinds / sizeof *kinds; index++)
        ten_million_writes(&kinds[index]);
    return tap_done();
}
