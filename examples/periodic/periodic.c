/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Fifteen periodic tasks on one CPU, the experiment of [POSIX-metrics, section 4]:
 *
 *   cc -O2 -pthread periodic.c -o periodic overhear run --kernel-sensors
 *   syscall,page_fault,irq,softirq,timer,schedule,lock --out DIR -- ./periodic 60 1 overhear
 *   response-times DIR --config overhear.toml
 *
 * `periodic SECONDS [CPU]` runs them under SCHED_FIFO, with shorter periods more urgent, on the CPU
 * or on the last one that it may use. A job computes for so much CPU time of its thread, then
 * sleeps until its next release. Periods, computation times and priorities stand in overhear.toml,
 * too; together the tasks need 0.65 of the CPU. At the end it prints for each task the most CPU
 * time that a job has computed for.
 *
 * Exit status: 0, or 77 and a message where SCHED_FIFO is not permitted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { TASKS = 15, MOST_URGENT = 50, NS_PER_MS = 1000000 };

/* Over 200 ms they compute for 130. */
static struct task {
	int period_ms;
	int compute_ms;
	uint64_t longest_ns; /* that a job has computed for */
} tasks[TASKS] = {
	{ 25, 2, 0 },  { 40, 2, 0 },  { 50, 2, 0 },  { 50, 2, 0 },  { 50, 2, 0 },
	{ 80, 2, 0 },  { 100, 2, 0 }, { 100, 3, 0 }, { 100, 3, 0 }, { 100, 4, 0 },
	{ 125, 5, 0 }, { 160, 4, 0 }, { 200, 4, 0 }, { 200, 14, 0 }, { 200, 20, 0 },
};

static struct {
	uint64_t begin_ns;
	uint64_t end_ns;
	int cpu;
} plan;

static uint64_t now_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec time = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
		;
}

/* Measured once, before the tasks begin. */
static double turns_per_ns;

static void turns(uint64_t number)
{
	for (volatile uint64_t turn = 0; turn < number; turn++)
		;
}

static void calibrate(void)
{
	enum { TURNS = 5000000 };
	uint64_t begin = now_ns(CLOCK_THREAD_CPUTIME_ID);

	turns(TURNS);
	turns_per_ns = TURNS / (double)(now_ns(CLOCK_THREAD_CPUTIME_ID) - begin);
}

/*
 * Loops until the thread has had this much CPU time more. To look at that clock is a system call,
 * so it loops for a quarter of what is left before it looks again: some twenty looks, and not too
 * long a loop where the CPU has become slower since it was measured. Returns how much CPU time it
 * has had.
 */
static uint64_t compute(uint64_t ns)
{
	uint64_t begin = now_ns(CLOCK_THREAD_CPUTIME_ID), now = begin;

	while (now - begin < ns) {
		double left = (double)(ns - (now - begin)) * 0.25;

		turns((uint64_t)((left < 20000 ? 20000 : left) * turns_per_ns));
		now = now_ns(CLOCK_THREAD_CPUTIME_ID);
	}
	return now - begin;
}

static void *run(void *argument)
{
	struct task *task = argument;
	uint64_t period_ns = (uint64_t)task->period_ms * NS_PER_MS;

	/* All are released together at first: the worst case that response-time analysis assumes. */
	for (uint64_t release = plan.begin_ns; release < plan.end_ns; release += period_ns) {
		sleep_until(release);

		uint64_t ns = compute((uint64_t)task->compute_ms * NS_PER_MS);

		if (ns > task->longest_ns)
			task->longest_ns = ns;
	}
	sleep_until(plan.end_ns + 500 * NS_PER_MS);
	return NULL;
}

static int start(pthread_t *thread, int number)
{
	struct sched_param priority = { .sched_priority = MOST_URGENT - number };
	pthread_attr_t attributes;
	cpu_set_t cpus;
	char name[16];

	CPU_ZERO(&cpus);
	CPU_SET(plan.cpu, &cpus);
	pthread_attr_init(&attributes);
	/* Stacks are locked in memory, too. */
	pthread_attr_setstacksize(&attributes, 256 << 10);
	pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
	pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
	pthread_attr_setschedparam(&attributes, &priority);

	int error = pthread_create(thread, &attributes, run, &tasks[number]);

	pthread_attr_destroy(&attributes);
	if (error)
		return error;
	snprintf(name, sizeof(name), "task-%02d", number + 1);
	return pthread_setname_np(*thread, name);
}

static int last_cpu(void)
{
	cpu_set_t cpus;
	int last = 0;

	sched_getaffinity(0, sizeof(cpus), &cpus);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus))
			last = cpu;
	return last;
}

int main(int argc, char **argv)
{
	pthread_t threads[TASKS];

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: periodic SECONDS [CPU]\n");
		return 64;
	}
	plan.cpu = argc > 2 ? atoi(argv[2]) : last_cpu();
	/* A page fault in a job is not what is measured. Where it is not permitted they stay. */
	mlockall(MCL_CURRENT | MCL_FUTURE);
	calibrate();
	plan.begin_ns = now_ns(CLOCK_MONOTONIC) + 200 * NS_PER_MS;
	plan.end_ns = plan.begin_ns + (uint64_t)atoi(argv[1]) * 1000 * NS_PER_MS;
	for (int number = 0; number < TASKS; number++) {
		int error = start(&threads[number], number);

		if (error) {
			fprintf(stderr, "cannot start a task under SCHED_FIFO: %s\n", strerror(error));
			return 77;
		}
	}
	for (int number = 0; number < TASKS; number++)
		pthread_join(threads[number], NULL);
	for (int number = 0; number < TASKS; number++)
		printf("task-%02d: computed for at most %llu ns\n", number + 1,
		       (unsigned long long)tasks[number].longest_ns);
	return 0;
}
