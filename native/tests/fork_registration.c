/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. Registration and forks under a real directory.
 *
 * The program starts itself again under `overhear run`, which cargo builds beside the library.
 * There it is connected, so that the handlers of fork have streams to protect.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <overhear/sensor.h>

#include "connected.h"
#include "tap.h"

struct sample {
    uint64_t number;
};

static const oh_field fields[] = {OH_FIELD_U64(struct sample, number, "")};

/* A sensor with at least this number of slots; 0: the directory decides. */
static oh_sensor *sensor_with(const char *id, const char *instance, uint64_t capacity)
{
    oh_sensor_options options;
    oh_sensor *sensor = NULL;
    memset(&options, 0, sizeof options);
    options.id = id;
    options.instance = instance;
    options.type = "sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    options.period_ns = 1000000000;
    options.distance_ns = 1000000;
    options.capacity = capacity;
    return oh_sensor_register(&sensor, &options) == 0 ? sensor : NULL;
}

static oh_sensor *sensor_of(const char *id, const char *instance)
{
    return sensor_with(id, instance, 0);
}

static void write_some(oh_sensor *sensor, uint64_t count)
{
    for (struct sample sample = {0}; sample.number < count; sample.number++)
        oh_sensor_put(sensor, &sample);
}

static uint64_t published(const oh_sensor *sensor)
{
    return __atomic_load_n((const uint64_t *)(const void *)(sensor->base + OH_COUNTER_OFFSET),
                           __ATOMIC_ACQUIRE);
}

/* The exit status of the child, -1 if a signal ended it. */
static int status_of(pid_t child)
{
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static void child_has_streams_of_its_own(void)
{
    oh_sensor *sensor = sensor_of("parent", NULL);
    pid_t child;
    tap_check(sensor != NULL && oh_sensor_is_connected(sensor), "the parent is connected");
    if (sensor == NULL)
        return;
    write_some(sensor, 10);
    child = fork();
    if (child == 0) {
        oh_sensor *own;
        /* The copy stays usable: the program may not know that a library has forked it. */
        write_some(sensor, 1000);
        if (oh_sensor_is_connected(sensor))
            _exit(1);
        oh_sensor_unregister(sensor);
        own = sensor_of("parent", NULL);
        if (own == NULL || !oh_sensor_is_connected(own))
            _exit(2);
        write_some(own, 5);
        if (published(own) != 5)
            _exit(3);
        oh_sensor_unregister(own);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "a child writes into private memory, and is connected with a sensor of its own");
    tap_check(published(sensor) == 10, "the parent's stream has the parent's elements alone");
    tap_check(oh_sensor_is_connected(sensor), "the child took nothing out of the directory");
    write_some(sensor, 10);
    tap_check(published(sensor) == 20, "the parent goes on");
    oh_sensor_unregister(sensor);
}

static pthread_key_t key;

/* Runs behind the destructors of C++ and Rust: the thread has no thread-locals of theirs any
   more. */
static void fork_at_the_end(void *of)
{
    oh_sensor *sensor = (oh_sensor *)of;
    const pid_t child = fork();
    if (child == 0) {
        write_some(sensor, 1000);
        _exit(oh_sensor_is_connected(sensor) ? 1 : 0);
    }
    tap_check(status_of(child) == 0, "a thread that ends forks a child that is not connected");
}

static void *fork_twice(void *of)
{
    const pid_t child = fork();
    if (child == 0) {
        write_some((oh_sensor *)of, 1000);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "a thread forks");
    pthread_setspecific(key, of);
    return NULL;
}

static void thread_that_ends_may_fork(void)
{
    oh_sensor *sensor = sensor_of("ending", NULL);
    pthread_t thread;
    if (sensor == NULL)
        return;
    write_some(sensor, 10);
    if (pthread_key_create(&key, fork_at_the_end) != 0 ||
        pthread_create(&thread, NULL, fork_twice, sensor) != 0) {
        tap_check(0, "a thread that forks");
        return;
    }
    pthread_join(thread, NULL);
    pthread_key_delete(key);
    tap_check(published(sensor) == 10, "neither child wrote into its parent's stream");
    oh_sensor_unregister(sensor);
}

/* Connects a copy of the parent's sensor. Returns 0, or the number of the failed step. */
static int speaks_again(oh_sensor *copy)
{
    write_some(copy, 3);
    if (oh_sensor_is_connected(copy))
        return 1;
    if (oh_sensor_register_again(copy) != 1 || !oh_sensor_is_connected(copy))
        return 2;
    if (copy->count != 0 || published(copy) != 0)
        return 3;
    write_some(copy, 7);
    if (oh_sensor_register_again(copy) != 1 || copy->count != 7 || published(copy) != 7)
        return 4;
    return 0;
}

/* Whether the map that contains an address is shared with other processes. */
static int is_shared(const void *address)
{
    char line[512];
    int shared = -1;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long from, to;
        char rights[8];
        if (sscanf(line, "%llx-%llx %7s", &from, &to, rights) == 3 && from <= (uintptr_t)address &&
            (uintptr_t)address < to)
            shared = rights[3] == 's';
    }
    if (maps != NULL)
        fclose(maps);
    return shared;
}

static void child_has_no_memory_of_its_parents_sensors(void)
{
    oh_sensor *first = sensor_of("memory", "a");
    oh_sensor *second = sensor_of("memory", "b");
    pid_t child;
    if (first == NULL || second == NULL)
        return;
    tap_check(is_shared(first->base) == 1 && is_shared(first->enabled) == 1,
              "stream and switch are shared with the directory");
    child = fork();
    if (child == 0) {
        if (is_shared(first->base) != 0 || is_shared(first->enabled) != 0)
            _exit(1);
        /* The sensors have lines in one page. */
        if (!oh_sensor_enabled(first) || !oh_sensor_enabled(second))
            _exit(2);
        if (oh_sensor_register_again(first) != 1 || is_shared(first->enabled) != 1)
            _exit(3);
        if (is_shared(second->enabled) != 0 || !oh_sensor_enabled(second))
            _exit(4);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "a child has neither, its sensors are on, until one call");
    oh_sensor_unregister(first);
    oh_sensor_unregister(second);
}

static uint64_t in_lanes(const oh_laned_sensor *sensor)
{
    uint64_t count = 0;
    for (uint32_t lane = 0; lane < sensor->lane_count; lane++)
        count += sensor->lanes[lane].count;
    return count;
}

static void laned_copy_is_connected_after_one_call(void)
{
    const struct sample sample = {1};
    oh_sensor_options options;
    oh_laned_sensor *sensor = NULL;
    pid_t child;
    memset(&options, 0, sizeof options);
    options.id = "laned";
    options.type = "sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    options.lanes = 2;
    if (oh_laned_register(&sensor, &options) != 0 || !oh_laned_put(sensor, &sample)) {
        tap_check(0, "a laned sensor is registered and written");
        return;
    }
    child = fork();
    if (child == 0) {
        (void)oh_laned_put(sensor, &sample);
        if (oh_laned_is_connected(sensor) || is_shared(sensor->lanes[0].base) != 0)
            _exit(1);
        if (oh_laned_register_again(sensor) != 1 || is_shared(sensor->lanes[0].base) != 1)
            _exit(2);
        if (in_lanes(sensor) != 0 || !oh_laned_put(sensor, &sample) || in_lanes(sensor) != 1)
            _exit(3);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "a laned copy is connected after one call");
    tap_check(in_lanes(sensor) == 1 && oh_laned_put(sensor, &sample), "the parent's is left alone");
    oh_laned_unregister(sensor);
}

static void concurrent_copy_is_connected_after_one_call(void)
{
    const struct sample sample = {1};
    oh_sensor_options options;
    oh_concurrent_sensor *sensor = NULL;
    void *taken;
    pid_t child;
    memset(&options, 0, sizeof options);
    options.id = "concurrent";
    options.type = "sample";
    options.fields = fields;
    options.field_count = 1;
    options.size = sizeof(struct sample);
    if (oh_concurrent_register(&sensor, &options) != 0 || !oh_concurrent_put(sensor, &sample)) {
        tap_check(0, "a concurrent sensor is registered and written");
        return;
    }
    taken = oh_concurrent_write(sensor);
    child = fork();
    if (child == 0) {
        /* It finds no element in the empty memory, and does not search for ever. */
        alarm(40);
        for (int write = 0; write < 1000; write++)
            (void)oh_concurrent_put(sensor, &sample);
        /* The end of a write that its parent began does not block for ever either. */
        if (taken != NULL)
            oh_concurrent_commit(sensor, taken);
        if (oh_concurrent_is_connected(sensor) || is_shared(sensor->base) != 0)
            _exit(1);
        if (oh_concurrent_register_again(sensor) != 1 || is_shared(sensor->base) != 1)
            _exit(2);
        if (!oh_concurrent_put(sensor, &sample))
            _exit(3);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "a concurrent copy is connected after one call");
    memcpy(taken, &sample, sizeof sample);
    oh_concurrent_commit(sensor, taken);
    tap_check(oh_concurrent_put(sensor, &sample), "the parent's is left alone");
    oh_concurrent_unregister(sensor);
}

static void copy_is_connected_after_one_call(void)
{
    oh_sensor *sensor = sensor_of("again", NULL);
    pid_t child;
    if (sensor == NULL)
        return;
    write_some(sensor, 10);
    tap_check(oh_sensor_register_again(sensor) == 1 && sensor->count == 10,
              "a sensor that is connected stays as it is");
    child = fork();
    if (child == 0) {
        const int step = speaks_again(sensor);
        pid_t grandchild;
        if (step != 0)
            _exit(step);
        grandchild = fork();
        if (grandchild == 0)
            _exit(speaks_again(sensor));
        if (status_of(grandchild) != 0)
            _exit(5);
        write_some(sensor, 2);
        if (published(sensor) != 9)
            _exit(6);
        oh_sensor_unregister(sensor);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "child and grandchild are connected through their copies");
    tap_check(published(sensor) == 10 && oh_sensor_is_connected(sensor), "their parent is left alone");
    tap_check(oh_sensor_register_again(NULL) < 0, "NULL cannot be registered again");

    /* The handlers of fork do not run here: the call must come before the first write. */
    child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        if (oh_sensor_register_again(sensor) != 1)
            _exit(1);
        write_some(sensor, 7);
        _exit(published(sensor) == 7 ? 0 : 2);
    }
    tap_check(status_of(child) == 0, "a child of raw clone is connected if it calls first");
    tap_check(published(sensor) == 10 && oh_sensor_is_connected(sensor), "its parent is left alone");
    oh_sensor_unregister(sensor);
}

static volatile int is_over;

struct writer {
    pthread_t thread;
    oh_sensor *sensor;
};

static void *writes(void *argument)
{
    struct writer *writer = (struct writer *)argument;
    struct sample sample = {0};
    const struct timespec pause = {0, 40000};
    while (!is_over) {
        oh_sensor_put(writer->sensor, &sample);
        sample.number++;
        /* The ring holds what is written in ten seconds, so that nothing is missed, which would be
           the run's exit status, however seldom the monitor gets a CPU. */
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* This program, started anew: 0 if it is connected. */
static int spawned(void)
{
    oh_sensor *sensor = sensor_of("spawned", NULL);
    if (sensor == NULL || !oh_sensor_is_connected(sensor))
        return 1;
    write_some(sensor, 5);
    oh_sensor_unregister(sensor);
    return 0;
}

extern char **environ;

/* A separate function, because a child of vfork runs on its parent's stack. */
static __attribute__((noinline)) pid_t vfork_and_exec(char *program, char **arguments)
{
    const pid_t child = vfork();
    if (child == 0) {
        execv(program, arguments);
        _exit(127);
    }
    return child;
}

static void children_of_a_threaded_program(char *program)
{
    static char names[2][2] = {"c", "d"};
    char word[] = "spawned";
    char *arguments[] = {program, word, NULL};
    struct writer writers[2];
    int undisturbed = 1;
    int failed = 0;
    for (int index = 0; index < 2; index++) {
        writers[index].sensor = sensor_with("written", names[index], 1 << 18);
        if (writers[index].sensor == NULL ||
            pthread_create(&writers[index].thread, NULL, writes, &writers[index]) != 0)
            return;
    }
    for (int round = 0; round < 20; round++) {
        const pid_t child = fork();
        if (child == 0) {
            /* The threads are not here. What they were writing when the process was copied may be
               half done; registering again begins anew. */
            alarm(40);
            for (int index = 0; index < 2; index++)
                if (speaks_again(writers[index].sensor) != 0)
                    _exit(1 + index);
            _exit(0);
        }
        failed += status_of(child) != 0;
    }
    tap_check(failed == 0, "copies of sensors that other threads were writing are connected");

    failed = 0;
    for (int round = 0; round < 5; round++) {
        pid_t child = vfork_and_exec(program, arguments);
        failed += status_of(child) != 0;
        failed += posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0 ||
                  status_of(child) != 0;
    }
    tap_check(failed == 0, "programs started by vfork and exec, and by posix_spawn, are connected");

    is_over = 1;
    for (int index = 0; index < 2; index++) {
        pthread_join(writers[index].thread, NULL);
        undisturbed &= oh_sensor_is_connected(writers[index].sensor) &&
                       published(writers[index].sensor) == writers[index].sensor->count;
        oh_sensor_unregister(writers[index].sensor);
    }
    is_over = 0;
    tap_check(undisturbed, "the threads have written on, undisturbed");
}

static void *churns(void *argument)
{
    while (!is_over) {
        oh_sensor *sensor = sensor_of("churn", (const char *)argument);
        if (sensor != NULL)
            write_some(sensor, 10);
        oh_sensor_unregister(sensor);
    }
    return NULL;
}

static void forks_do_not_hang(void)
{
    static char names[2][2] = {"a", "b"};
    pthread_t threads[2];
    int hung = 0;
    for (int thread = 0; thread < 2; thread++)
        if (pthread_create(&threads[thread], NULL, churns, names[thread]) != 0)
            return;
    for (int round = 0; round < 100; round++) {
        const pid_t child = fork();
        if (child == 0) {
            oh_sensor *own;
            alarm(40);
            own = sensor_of("own", NULL);
            if (own == NULL)
                _exit(1);
            write_some(own, 10);
            oh_sensor_unregister(own);
            _exit(0);
        }
        hung += status_of(child) != 0;
    }
    is_over = 1;
    for (int thread = 0; thread < 2; thread++)
        pthread_join(threads[thread], NULL);
    tap_check(hung == 0, "children forked while other threads register can register too");
}

int main(int argc, char **argv)
{
    alarm(120);
    if (argc == 2 && strcmp(argv[1], "spawned") == 0)
        return spawned();
    if (argc == 1) {
        start_connected(argv[0]);
        tap_skip("registration under a directory", "the command overhear is not built");
        return tap_done();
    }
    child_has_streams_of_its_own();
    thread_that_ends_may_fork();
    copy_is_connected_after_one_call();
    child_has_no_memory_of_its_parents_sensors();
    laned_copy_is_connected_after_one_call();
    concurrent_copy_is_connected_after_one_call();
    children_of_a_threaded_program(argv[0]);
    forks_do_not_hang();
    return tap_done();
}
