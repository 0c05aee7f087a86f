/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does each thing that a built-in metric measures TURNS times, in threads whose names say what they
 * do: sleeps, calls, faults, waits for futexes with and without priority inheritance and for a lock
 * of the kernel, and is displaced on its CPU.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TURNS = 20, PAGE = 4096, CHANNEL = 1 << 20 };

static unsigned word;
static pthread_mutex_t lock;
static pthread_barrier_t both;
static const char *file;
static int channel[2];

static long futex(unsigned *at, int operation, unsigned value, const struct timespec *limit)
{
	return syscall(SYS_futex, at, operation | FUTEX_PRIVATE_FLAG, value, limit, NULL, 0);
}

/* Of less priority than the other threads. */
static void step_back(void)
{
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
}

static void compute(long ms)
{
	struct timespec used, since;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &since);
	do {
		for (volatile int step = 0; step < 20000; step++)
			;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	} while ((used.tv_sec - since.tv_sec) * 1000 + (used.tv_nsec - since.tv_nsec) / 1000000 < ms);
}

static void *sleeps(void *nothing)
{
	const struct timespec length = {0, 1000000};

	for (int turn = 0; turn < TURNS; turn++)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL);
	return nothing;
}

static void *calls(void *nothing)
{
	for (int turn = 0; turn < TURNS; turn++)
		syscall(SYS_getppid);
	return nothing;
}

static void *faults(void *nothing)
{
	char *pages = mmap(NULL, TURNS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		abort();
	madvise(pages, TURNS * PAGE, MADV_NOHUGEPAGE);
	for (int turn = 0; turn < TURNS; turn++)
		((volatile char *)pages)[turn * PAGE] = 1;
	return nothing;
}

static void *waits(void *nothing)
{
	for (int turn = 0; turn < TURNS; turn++)
		futex(&word, FUTEX_WAIT, 0, NULL);
	return nothing;
}

static void *wakes(void *nothing)
{
	step_back();
	for (int turn = 0; turn < TURNS; turn++)
		while (futex(&word, FUTEX_WAKE, 1, NULL) == 0)
			sched_yield(); /* the other cannot go on, and so waits at last */
	return nothing;
}

static void *holds(void *nothing)
{
	step_back();
	for (int turn = 0; turn < TURNS; turn++) {
		pthread_mutex_lock(&lock);
		pthread_barrier_wait(&both);
		while (!(*(volatile unsigned *)&lock & FUTEX_WAITERS))
			sched_yield();
		pthread_mutex_unlock(&lock);
		pthread_barrier_wait(&both);
	}
	return nothing;
}

static void *wants(void *nothing)
{
	for (int turn = 0; turn < TURNS; turn++) {
		pthread_barrier_wait(&both);
		pthread_mutex_lock(&lock);
		pthread_mutex_unlock(&lock);
		pthread_barrier_wait(&both);
	}
	return nothing;
}

/*
 * Two of these threads want the lock of one pipe. Copying takes nearly all of their time, under the
 * lock. A displaced thread keeps the lock, so they wait for each other on a single CPU, too.
 */
static void *pushes(void *nothing)
{
	char *bytes = calloc(1, CHANNEL);

	if (!bytes)
		abort();
	pthread_barrier_wait(&both);
	for (int turn = 0; turn < 100 * TURNS; turn++) {
		if (write(channel[1], bytes, CHANNEL) < 0 && errno != EAGAIN)
			abort();
		if (read(channel[0], bytes, CHANNEL) < 0 && errno != EAGAIN)
			abort();
	}
	free(bytes);
	return nothing;
}

/* Two of these displace each other. */
static void *computes(void *nothing)
{
	compute(150);
	return nothing;
}

static void *writes(void *nothing)
{
	void *block = NULL;
	int to = open(file, O_WRONLY | O_CREAT | O_DIRECT | O_DSYNC, 0600);

	if (to >= 0 && posix_memalign(&block, PAGE, PAGE) == 0) {
		memset(block, 7, PAGE);
		for (int turn = 0; turn < TURNS; turn++)
			if (pwrite(to, block, PAGE, 0) != PAGE)
				break;
	}
	free(block);
	if (to >= 0)
		close(to);
	return nothing;
}

struct role {
	const char *name;
	void *(*does)(void *);
};

static void *play(void *role)
{
	const struct role *own = role;

	pthread_setname_np(pthread_self(), own->name);
	return own->does(NULL);
}

static void together(struct role one, struct role other)
{
	pthread_t threads[2];

	pthread_create(&threads[0], NULL, play, &one);
	pthread_create(&threads[1], NULL, play, &other);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
}

int main(int count, char **words)
{
	pthread_mutexattr_t inherits;
	cpu_set_t first;
	int cpu = 0;

	file = count > 1 ? words[1] : "/nonexistent/file";
	pthread_mutexattr_init(&inherits);
	pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&lock, &inherits);
	pthread_barrier_init(&both, NULL, 2);

	together((struct role){"sleeps", sleeps}, (struct role){"calls", calls});
	together((struct role){"faults", faults}, (struct role){"writes", writes});
	together((struct role){"waits", waits}, (struct role){"wakes", wakes});
	together((struct role){"holds", holds}, (struct role){"wants", wants});
	if (pipe2(channel, O_NONBLOCK) != 0)
		abort();
	/* Ordinary users may not make it so large: the lock is held for a shorter time then. */
	fcntl(channel[1], F_SETPIPE_SZ, CHANNEL);
	together((struct role){"pushes", pushes}, (struct role){"pushes", pushes});
	sched_getaffinity(0, sizeof(first), &first);
	while (!CPU_ISSET(cpu, &first))
		cpu++;
	CPU_ZERO(&first);
	CPU_SET(cpu, &first);
	sched_setaffinity(0, sizeof(first), &first);
	together((struct role){"computes", computes}, (struct role){"computes", computes});
	return 0;
}
