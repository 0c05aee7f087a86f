/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs jobs that end in different ways, a different number of each. With an argument it runs jobs
 * that end with a sleep until its standard input ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The waits expect another value, so they return at once. */
int gate = 1;

__attribute__((noinline)) int step(int number)
{
	__asm__ volatile("" : "+r"(number));
	return number + 1;
}

static void work(void)
{
	for (volatile int turn = 0; turn < 20000; turn++)
		;
}

static void nap(long ns)
{
	struct timespec length = { 0, ns };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &length, 0);
}

static int periodic(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };

	while (poll(&input, 1, 0) == 0) {
		work();
		nap(1000000);
	}
	return 0;
}

int main(int count, char **arguments)
{
	int zeros = open("/dev/zero", O_RDONLY);
	char byte;

	(void)arguments;
	if (count > 1)
		return periodic();
	for (int job = 0; job < 20; job++) {
		work();
		sched_yield();
	}
	for (int job = 0; job < 21; job++) {
		work();
		nap(1000);
	}
	for (int job = 0; job < 22; job++) {
		work();
		syscall(SYS_futex, &gate, FUTEX_WAIT, 2, 0, 0, 0);
	}
	for (int job = 0; job < 23; job++) {
		work();
		if (read(zeros, &byte, 1) != 1)
			return 1;
	}
	for (int job = 0; job < 24; job++) {
		work();
		if (step(job) != job + 1)
			return 1;
	}
	return 0;
}
