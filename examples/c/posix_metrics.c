/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Metrics over a POSIX trace stream: the example of [POSIX-metrics,
 * section 2] in C.
 *
 *     ./posix_metrics [LOG]
 *
 * It traces periodic threads into a log, with the events that three metrics require, opens the log,
 * and prints the measurements. Where events of the kernel are not permitted it prints the reason
 * instead of measurements that need them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <trace.h>

#include <overhear/metrics_trace.h>

enum { TASKS = 5, RUN_MS = 200, NS_PER_MS = 1000000 };

static trace_event_id_t initial_event, final_event;
static uint64_t began_ns, release_ns, last_ns;

static void check(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "%s: error %d: %s\n", what, error, oh_posix_trace_last_error());
		exit(1);
	}
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec time = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
		;
}

static void *periodic(void *argument)
{
	uint64_t period_ns = (uint64_t)(uintptr_t)argument * NS_PER_MS;

	sleep_until(release_ns);
	for (uint64_t next = release_ns; next < last_ns;) {
		uint64_t end = now_ns() + 200000;

		posix_trace_event(initial_event, NULL, 0);
		while (now_ns() < end)
			;
		posix_trace_event(final_event, NULL, 0);
		next += period_ns;
		sleep_until(next);
	}
	return NULL;
}

static void run_application(void)
{
	pthread_t threads[TASKS];

	release_ns = now_ns() + 10 * NS_PER_MS;
	last_ns = release_ns + (uint64_t)RUN_MS * NS_PER_MS;
	for (uintptr_t i = 0; i < TASKS; i++)
		check(pthread_create(&threads[i], NULL, periodic, (void *)(10 + 5 * i)), "pthread_create");
	for (int i = 0; i < TASKS; i++)
		pthread_join(threads[i], NULL);
}

/* Records the application with the events that the metrics require. */
static void record(const char *path, oh_trace_metric *const *metrics, size_t count)
{
	trace_event_set_t all, required;
	trace_id_t stream;
	int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	check(file < 0 ? errno : 0, path);
	check(posix_trace_create_withlog(0, NULL, file, &stream), "posix_trace_create_withlog");
	posix_trace_eventset_fill(&all, POSIX_TRACE_ALL_EVENTS);
	check(posix_trace_set_filter(stream, &all, POSIX_TRACE_SET_EVENTSET), "posix_trace_set_filter");
	for (size_t i = 0; i < count; i++) {
		check(oh_trace_metric_events_required(metrics[i], stream, &required),
		      "oh_trace_metric_events_required");
		check(posix_trace_set_filter(stream, &required, POSIX_TRACE_SUB_EVENTSET),
		      "posix_trace_set_filter");
	}
	check(posix_trace_start(stream), "posix_trace_start");
	began_ns = now_ns();
	run_application();
	check(posix_trace_shutdown(stream), "posix_trace_shutdown");
	close(file);
}

static void show(const char *path, const char *title, const oh_trace_metric *metric)
{
	oh_trace_results *results = NULL;
	trace_id_t stream;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	check(file < 0 ? errno : 0, path);
	check(posix_trace_open(file, &stream), "posix_trace_open");
	printf("%s\n", title);
	int error = oh_trace_results_get(&results, metric, stream, 0);

	if (error == ENODATA)
		printf("%s\n", oh_posix_trace_last_error());
	else
		check(error, "oh_trace_results_get");
	if (results)
		printf("    Task  Length  Begin Time    End Time  Int Events\n");
	for (size_t i = 0; i < oh_trace_results_count(results); i++) {
		oh_measurement one;

		oh_trace_results_at(results, i, &one);
		printf("%8" PRIu32 "%8" PRIu64 "%12" PRId64 "%12" PRId64 "%12" PRIu64 "\n", one.task,
		       one.length_ns / 1000, (int64_t)(one.begin_ns - began_ns) / 1000,
		       (int64_t)(one.end_ns - began_ns) / 1000, one.intermediate_events);
	}
	if (oh_trace_results_missed(results) > 0)
		printf("lost events: %" PRIu64 "\n", oh_trace_results_missed(results));
	oh_trace_results_free(results);
	posix_trace_close(stream);
	close(file);
}

int main(int argc, char **argv)
{
	char made[] = "/tmp/posix_metrics.XXXXXX";
	const char *path = argc > 1 ? argv[1] : made;
	oh_trace_metric *metrics[3];

	if (argc < 2)
		close(mkstemp(made));
	check(posix_trace_eventid_open("Initial Event", &initial_event), "posix_trace_eventid_open");
	check(posix_trace_eventid_open("Final Event", &final_event), "posix_trace_eventid_open");
	check(oh_trace_metric_system(&metrics[0], "Delay Until Wakeup"), "oh_trace_metric_system");
	check(oh_trace_metric_system(&metrics[1], "Schedule And Dispatch"), "oh_trace_metric_system");
	check(oh_trace_metric_user(&metrics[2], "My Metric", initial_event, final_event, false),
	      "oh_trace_metric_user");

	record(path, metrics, 3);
	show(path, "Delay Until Wakeup", metrics[0]);
	show(path, "Schedule And Dispatch", metrics[1]);
	show(path, "My Metric", metrics[2]);

	for (int i = 0; i < 3; i++)
		oh_trace_metric_free(metrics[i]);
	if (argc < 2)
		unlink(made);
	return 0;
}
