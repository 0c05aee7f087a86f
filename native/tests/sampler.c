/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. Samplers: what is refused and with which words, when a sample is taken, and that
 * a sample makes no system call but one read.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/sampler.h>

#include "system_calls.h"
#include "tap.h"

enum { SAMPLES = 100000 };

OH_SAMPLER(always, 0, "task-clock", "minor-faults", "page-faults");
OH_SAMPLER(hourly, 3600000000000u, "task-clock");
OH_SAMPLER(misspelled, 0, "task-clokc");
OH_SAMPLER(impossible, 0, "rffffffffffffffff", "task-clock");
OH_SAMPLER_FLAGS(possible, 0, OH_SAMPLER_SKIP_MISSING, "rffffffffffffffff", "task-clock");

static oh_sampler *sampler_of(const oh_sampler_options *options)
{
    oh_sampler *sampler;
    return oh_sampler_register(&sampler, options) == 0 ? sampler : NULL;
}

static void refused_with_a_sentence(void)
{
    oh_sampler *sampler = (oh_sampler *)&sampler;
    oh_sampler_options nameless = always;
    tap_check(oh_sampler_register(&sampler, &misspelled) == -EINVAL && sampler == NULL &&
                  strstr(oh_last_error(), "similar names: task-clock") != NULL,
              "an unknown name is refused with a similar one");
    tap_check(oh_sampler_register(&sampler, &impossible) == -ENODEV &&
                  strstr(oh_last_error(), "rffffffffffffffff") != NULL,
              "a counter that the machine lacks is refused with its name");
    nameless.id = "";
    tap_check(oh_sampler_register(&sampler, &nameless) == -EINVAL, "a sampler has an id");
    nameless = always;
    nameless.counter_count = 0;
    tap_check(oh_sampler_register(&sampler, &nameless) == -EINVAL, "a sampler has counters");
    tap_check(oh_sampler_register(NULL, &always) == -EINVAL &&
                  oh_sampler_register(&sampler, NULL) == -EINVAL,
              "NULL is refused");
    tap_check(oh_sampler_sample(NULL) == -EINVAL && oh_sampler_job_begin(NULL) == -EINVAL &&
                  oh_sampler_job_end(NULL) == -EINVAL && oh_sampler_missing(NULL, 0) == NULL &&
                  oh_sampler_register_again(NULL) == -EINVAL && oh_sampler_failed(NULL) == 0,
              "NULL is no sampler");
    oh_sampler_unregister(NULL);
}

static void left_out_with_a_sentence(void)
{
    oh_sampler *sampler = sampler_of(&possible);
    const char *missing = oh_sampler_missing(sampler, 0);
    tap_check(sampler != NULL && missing != NULL && strstr(missing, "rffffffffffffffff") != NULL &&
                  oh_sampler_missing(sampler, 1) == NULL && oh_sampler_sample(sampler) == 1,
              "what the machine lacks can be left out");
    oh_sampler_unregister(sampler);
}

static void taken_if_due(void)
{
    oh_sampler *sampler = sampler_of(&hourly);
    tap_check(oh_sampler_sample(sampler) == 1, "the first sample is due at once");
    tap_check(oh_sampler_sample(sampler) == 0, "the next one after the period");
    tap_check(oh_sampler_job_begin(sampler) == 0 && oh_sampler_job_end(sampler) == 1 &&
                  oh_sampler_job_end(sampler) == 1,
              "ends of jobs are always sampled");
    tap_check(oh_sampler_failed(sampler) == 0, "no sample has failed");
    oh_sampler_unregister(sampler);
}

static void *samples_of_another_thread(void *sampler)
{
    return (void *)(uintptr_t)(oh_sampler_sample((oh_sampler *)sampler) == -EPERM &&
                               oh_sampler_job_begin((oh_sampler *)sampler) == -EPERM &&
                               oh_sampler_job_end((oh_sampler *)sampler) == -EPERM);
}

static void other_threads_are_refused(void)
{
    oh_sampler *sampler = sampler_of(&always);
    pthread_t thread;
    void *refused = NULL;
    if (pthread_create(&thread, NULL, samples_of_another_thread, sampler) == 0)
        pthread_join(thread, &refused);
    tap_check(refused != NULL, "another thread takes no sample");
    oh_sampler_unregister(sampler);
}

static int wait_for(pid_t child)
{
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return status;
}

static void forked_child_registers_again(void)
{
    oh_sampler *sampler = sampler_of(&always);
    int status;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        const int refused = oh_sampler_sample(sampler) == -EPERM;
        const int again = oh_sampler_register_again(sampler) == 0;
        _exit(!refused || !again || oh_sampler_sample(sampler) != 1);
    }
    status = wait_for(child);
    tap_check(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "a forked child takes samples after it has registered again");
    tap_check(oh_sampler_sample(sampler) == 1, "its parent is not disturbed");
    oh_sampler_unregister(sampler);
}

/* Under a filter that kills at any system call but one and exit_group. */
static int takes_samples(uint32_t permitted)
{
    oh_sampler *sampler = sampler_of(&always);
    int number;
    if (sampler == NULL || oh_sampler_sample(sampler) != 1)
        return 1;
    if (forbid_system_calls_but(permitted) != 0)
        return REFUSED;
    for (number = 0; number < SAMPLES; number += 2)
        if (oh_sampler_sample(sampler) != 1 || oh_sampler_job_end(sampler) != 1)
            return 2;
    return 0;
}

static int in_child(uint32_t permitted)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(takes_samples(permitted));
    return wait_for(child);
}

static void one_read_for_each_sample(void)
{
    const char *name = "a sample makes no system call but read";
    const int status = in_child(SYS_read);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED) {
        tap_skip(name, "seccomp filters are refused here");
        return;
    }
    tap_check(WIFEXITED(status) && WEXITSTATUS(status) == 0, name);
    /* Software events are not read by rdpmc: this shows that the filter works. */
    tap_check(WIFSIGNALED(in_child(SYS_exit_group)), "without read, the filter ends the program");
}

int main(void)
{
    oh_sampler *sampler = sampler_of(&always);
    if (sampler == NULL) {
        printf("# %s\n", oh_last_error());
        tap_skip("samplers", "this user may not count");
        return tap_done();
    }
    tap_check(!oh_sampler_is_connected(sampler) || getenv("OVERHEAR_DIRECTORY") != NULL,
              "without a directory it is not connected");
    tap_check(!oh_sampler_uses_rdpmc(sampler), "software events need a system call");
    oh_sampler_unregister(sampler);
    oh_job_end();
    refused_with_a_sentence();
    left_out_with_a_sentence();
    taken_if_due();
    other_threads_are_refused();
    forked_child_registers_again();
    one_read_for_each_sample();
    return tap_done();
}
