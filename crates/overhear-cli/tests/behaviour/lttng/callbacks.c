/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program that calls a callback TURNS times between two tracepoints of LTTng-UST. */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "callbacks.h"

#include <time.h>

enum { TURNS = 50 };

static void callback(void)
{
	const struct timespec length = {0, 100000};

	nanosleep(&length, NULL);
}

int main(void)
{
	void (*called)(void) = callback;
	const void *name = (const void *)&called;

	for (int turn = 0; turn < TURNS; turn++) {
		lttng_ust_tracepoint(ros2, callback_start, name, 0);
		called();
		lttng_ust_tracepoint(ros2, callback_end, name);
	}
	return 0;
}
