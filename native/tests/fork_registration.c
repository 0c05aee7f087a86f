/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. Registration and forks under a real directory.
 *
 * The program starts itself again under `overhear run`, which cargo builds beside the library. There
 * it is heard, so that the handlers of fork have streams to protect.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/sensor.h>

#include "tap.h"

struct sample {
    uint64_t number;
};

static const oh_field fields[] = {OH_FIELD_U64(struct sample, number, "")};

static oh_sensor *sensor_of(const char *id, const char *instance)
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
    return oh_sensor_register(&sensor, &options) == 0 ? sensor : NULL;
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

static void a_child_has_streams_of_its_own(void)
{
    oh_sensor *sensor = sensor_of("parent", NULL);
    pid_t child;
    tap_check(sensor != NULL && oh_sensor_is_heard(sensor), "the parent is heard");
    if (sensor == NULL)
        return;
    write_some(sensor, 10);
    child = fork();
    if (child == 0) {
        oh_sensor *own;
        /* The copy stays usable: a program need not know that a library has forked it. */
        write_some(sensor, 1000);
        if (oh_sensor_is_heard(sensor))
            _exit(1);
        oh_sensor_unregister(sensor);
        own = sensor_of("parent", NULL);
        if (own == NULL || !oh_sensor_is_heard(own))
            _exit(2);
        write_some(own, 5);
        if (published(own) != 5)
            _exit(3);
        oh_sensor_unregister(own);
        _exit(0);
    }
    tap_check(status_of(child) == 0, "a child writes unheard, and is heard with a sensor of its own");
    tap_check(published(sensor) == 10, "the parent's stream has the parent's elements alone");
    tap_check(oh_sensor_is_heard(sensor), "the child took nothing out of the directory");
    write_some(sensor, 10);
    tap_check(published(sensor) == 20, "the parent goes on");
    oh_sensor_unregister(sensor);
}

static volatile int is_over;

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

/* The command beside the library, or NULL. */
static const char *command(char *path)
{
    Dl_info library;
    char *name;
    if (dladdr((void *)(uintptr_t)oh_last_error, &library) == 0)
        return NULL;
    if (realpath(library.dli_fname, path) == NULL)
        return NULL;
    name = strrchr(path, '/') + 1;
    memcpy(name, "overhear", sizeof "overhear");
    return access(path, X_OK) == 0 ? path : NULL;
}

int main(int argc, char **argv)
{
    static char path[PATH_MAX + 16];
    const char *overhear;
    alarm(120);
    if (argc == 1 && (overhear = command(path)) != NULL) {
        execl(overhear, "overhear", "run", "--quiet", "--kernel", "off", "--json=/dev/null", "--", argv[0],
              "heard", (char *)NULL);
        return 1;
    }
    if (argc == 1) {
        tap_skip("registration under a directory", "the command overhear is not built");
        return tap_done();
    }
    a_child_has_streams_of_its_own();
    forks_do_not_hang();
    return tap_done();
}
