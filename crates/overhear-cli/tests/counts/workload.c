/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The programs under observation.
 *
 *   workload park        Leaves the CPU in every way there is, between two rests: before the work
 *                        and after it all threads block in a read of standard input. It says
 *                        "rests PID" each time. A byte ends the first rest, the end of the input
 *                        every one.
 *   workload burn FILE   Threads of at least 100 ms of CPU time each, which end at different
 *                        times; FILE receives a line "TID NANOSECONDS" per thread, with its own
 *                        CPU clock read as its last act.
 *
 *   workload pass FILE   Two threads pass a byte to and fro. FILE receives a line "TID RUN WAIT"
 *                        per thread, with its schedstat in nanoseconds, read as its last act.
 *
 *   workload calls       System calls of one thread, so many of each as the enumeration says.
 *
 * How often a thread leaves its CPU is bounded, so that the rings have room for all of it even
 * where the monitor does not get a CPU for a while.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TURNS = 800, LONGEST_MS = 400 };

static uint64_t now_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void sleep_us(long us)
{
	struct timespec span = { .tv_nsec = us * 1000 };

	nanosleep(&span, NULL);
}

static void check(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	exit(70);
}

/* ---- park ---- */

struct turns {
	int left;
	uint64_t end_ns;
};

static int there[2], back[2];
static atomic_uint ball;
static pthread_barrier_t start, finish;

static int next(struct turns *turns)
{
	return turns->left-- > 0 && now_ns(CLOCK_MONOTONIC) < turns->end_ns;
}

/* Blocks until there is a byte of input, or no more input. */
static void rest(void)
{
	char byte;

	while (read(0, &byte, 1) < 0 && errno == EINTR)
		;
}

static void send_byte(int fd)
{
	check(write(fd, "", 1) == 1, "write");
}

/* A byte; gives up after 20 ms, when the partner has stopped. */
static int receive_byte(int fd)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };
	char byte;

	return poll(&wanted, 1, 20) == 1 && read(fd, &byte, 1) == 1;
}

static void ping(struct turns *turns)
{
	while (next(turns)) {
		send_byte(there[1]);
		receive_byte(back[0]);
	}
}

static void pong(struct turns *turns)
{
	while (next(turns))
		if (receive_byte(there[0]))
			send_byte(back[1]);
}

/* Waits until the ball has the other parity and returns it, for at most 20 ms. */
static void play(struct turns *turns, unsigned parity)
{
	struct timespec patience = { .tv_nsec = 20000000 };

	while (next(turns)) {
		unsigned seen = atomic_load(&ball);

		if (seen % 2 == parity) {
			syscall(SYS_futex, &ball, FUTEX_WAIT_PRIVATE, seen, &patience, NULL, 0);
		} else {
			atomic_fetch_add(&ball, 1);
			syscall(SYS_futex, &ball, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		}
	}
}

static void even(struct turns *turns)
{
	play(turns, 0);
}

static void odd(struct turns *turns)
{
	play(turns, 1);
}

static void doze(struct turns *turns)
{
	while (next(turns))
		sleep_us(50);
}

static void yield(struct turns *turns)
{
	while (next(turns))
		sched_yield();
}

static void spin(struct turns *turns)
{
	turns->left = INT32_MAX;
	while (next(turns))
		;
}

static void mix(struct turns *turns)
{
	while (next(turns)) {
		sleep_us(10);
		sched_yield();
	}
}

static void (*const works[])(struct turns *) = { ping, pong, even, odd, doze, yield, spin, mix };
enum { WORKERS = sizeof(works) / sizeof(works[0]) };

static void *work(void *argument)
{
	size_t index = (size_t)argument;
	struct turns turns = { .left = TURNS };

	pthread_barrier_wait(&start);
	turns.end_ns = now_ns(CLOCK_MONOTONIC) + LONGEST_MS * 1000000ull;
	works[index](&turns);
	pthread_barrier_wait(&finish);
	rest();
	return NULL;
}

static void say_rests(void)
{
	printf("rests %d\n", (int)getpid());
	fflush(stdout);
}

/* On machines with many CPUs nobody would be displaced: keeps us on at most two of ours. */
static void crowd(void)
{
	cpu_set_t all, two;

	CPU_ZERO(&two);
	check(sched_getaffinity(0, sizeof(all), &all) == 0, "sched_getaffinity");
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &two);
	check(sched_setaffinity(0, sizeof(two), &two) == 0, "sched_setaffinity");
}

static int park(void)
{
	pthread_t threads[WORKERS];

	crowd();
	check(pipe(there) == 0 && pipe(back) == 0, "pipe");
	pthread_barrier_init(&start, NULL, WORKERS);
	pthread_barrier_init(&finish, NULL, WORKERS + 1);
	say_rests();
	rest();
	for (size_t i = 0; i < WORKERS; i++)
		check(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "pthread_create");
	pthread_barrier_wait(&finish);
	say_rests();
	rest();
	for (size_t i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

/* ---- burn ---- */

struct burner {
	pthread_t thread;
	unsigned cpu_ms;   /* to use up */
	unsigned burst_us; /* of it between two sleeps; 0 for none */
	int tid;
	uint64_t used_ns;
};

static void *burn(void *argument)
{
	struct burner *burner = argument;
	uint64_t end_ns = burner->cpu_ms * 1000000ull;
	uint64_t burst_ns = burner->burst_us ? burner->burst_us * 1000ull : end_ns;
	uint64_t used_ns = 0;

	while (used_ns < end_ns) {
		uint64_t sleep_at_ns = used_ns + burst_ns;

		while (used_ns < sleep_at_ns)
			used_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
		if (burner->burst_us)
			sleep_us(50);
	}
	burner->tid = (int)syscall(SYS_gettid);
	burner->used_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
	return NULL;
}

static void tell(FILE *file, const struct burner *burner)
{
	fprintf(file, "%d %llu\n", burner->tid, (unsigned long long)burner->used_ns);
}

static int burn_all(const char *path)
{
	struct burner burners[] = {
		{ .cpu_ms = 120 },
		{ .cpu_ms = 120, .burst_us = 1000 },
		{ .cpu_ms = 120, .burst_us = 50 },
		{ .cpu_ms = 240 },
	};
	struct burner own = { .cpu_ms = 160 };
	enum { BURNERS = sizeof(burners) / sizeof(burners[0]) };

	for (size_t i = 0; i < BURNERS; i++) {
		int error = pthread_create(&burners[i].thread, NULL, burn, &burners[i]);

		check(error == 0, "pthread_create");
	}
	for (size_t i = 0; i < BURNERS; i++)
		pthread_join(burners[i].thread, NULL);
	/* The others have ended; the process goes on for a time that must not be theirs. */
	sleep_us(100000);
	burn(&own);

	FILE *file = fopen(path, "w");

	check(file != NULL, path);
	for (size_t i = 0; i < BURNERS; i++)
		tell(file, &burners[i]);
	own.used_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
	tell(file, &own);
	check(fclose(file) == 0, path);
	return 0;
}

/* ---- pass ---- */

enum { PASSES = 4000 };

struct passer {
	pthread_t thread;
	int from, to;
	int tid;
	unsigned long long run_ns, wait_ns; /* by schedstat, at the thread's last act */
};

static void *pass(void *argument)
{
	struct passer *passer = argument;
	char byte;

	for (int turn = 0; turn < PASSES; turn++) {
		check(read(passer->from, &byte, 1) == 1, "read");
		check(write(passer->to, &byte, 1) == 1, "write");
	}
	FILE *file = fopen("/proc/thread-self/schedstat", "r");

	check(file != NULL, "/proc/thread-self/schedstat");
	check(fscanf(file, "%llu %llu", &passer->run_ns, &passer->wait_ns) == 2, "schedstat");
	fclose(file);
	passer->tid = (int)syscall(SYS_gettid);
	return NULL;
}

static int pass_all(const char *path)
{
	struct passer passers[2];

	check(pipe(there) == 0 && pipe(back) == 0, "pipe");
	passers[0] = (struct passer){ .from = there[0], .to = back[1] };
	passers[1] = (struct passer){ .from = back[0], .to = there[1] };
	for (size_t i = 0; i < 2; i++)
		check(pthread_create(&passers[i].thread, NULL, pass, &passers[i]) == 0, "pthread_create");
	send_byte(there[1]);
	for (size_t i = 0; i < 2; i++)
		pthread_join(passers[i].thread, NULL);

	FILE *file = fopen(path, "w");

	check(file != NULL, path);
	for (size_t i = 0; i < 2; i++)
		fprintf(file, "%d %llu %llu\n", passers[i].tid, passers[i].run_ns, passers[i].wait_ns);
	check(fclose(file) == 0, path);
	return 0;
}

/* ---- calls ---- */

enum { NOTHINGS = 300, SLEEPS = 50, WRITES = 200 };

static int calls(void)
{
	int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);

	check(nothing >= 0, "open /dev/null");
	for (int turn = 0; turn < NOTHINGS; turn++)
		syscall(SYS_getppid);
	for (int turn = 0; turn < SLEEPS; turn++)
		sleep_us(100);
	for (int turn = 0; turn < WRITES; turn++)
		check(write(nothing, &turn, sizeof(turn)) == sizeof(turn), "write");
	close(nothing);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "park") == 0)
		return park();
	if (argc == 3 && strcmp(argv[1], "burn") == 0)
		return burn_all(argv[2]);
	if (argc == 3 && strcmp(argv[1], "pass") == 0)
		return pass_all(argv[2]);
	if (argc == 2 && strcmp(argv[1], "calls") == 0)
		return calls();
	fprintf(stderr, "usage: workload park | burn FILE | pass FILE | calls\n");
	return 64;
}
