/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Measures a program by a POSIX trace stream: runs it with the events that metrics require, writes
 * them into a log, opens the log, and prints every measurement.
 *
 *     ./measure LOG METRIC,METRIC... COST_NS PROGRAM ARGUMENT...
 *     ./measure periodic.log job_system_time,system_blocking,delay_until_wakeup 0 ./periodic 10
 *
 * COST_NS is the time that a task needs to record one event. It is subtracted from the lengths. The
 * program's output goes to stderr. Lines of the output:
 *
 *     task,TID,NAME
 *     METRIC,TID,LENGTH_NS,BEGIN_NS,END_NS,INTERMEDIATE,OWN,MISSED
 *     lost,METRIC,EVENTS
 *
 * Exit status: that of the program; 77 and a message where events of the kernel are not permitted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trace.h>

#include <overhear/kernel.h>
#include <overhear/metrics_trace.h>

enum { MAX_METRICS = 16 };

static void check(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "%s: error %d: %s\n", what, error, oh_posix_trace_last_error());
		exit(error == ENODATA ? 77 : 1);
	}
}

/* Runs a program, whose output goes to stderr. Returns its exit status. */
static int run(char **arguments)
{
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		dup2(2, 1);
		execvp(arguments[0], arguments);
		_exit(127);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Runs the program in a stream with a log that has the events of the metrics. */
static int record(int file, oh_trace_metric *const *metrics, size_t count, char **arguments)
{
	trace_event_set_t set;
	trace_attr_t attributes;
	trace_id_t stream;

	posix_trace_attr_init(&attributes);
	/* The program is a child of this one. */
	posix_trace_attr_setinherited(&attributes, POSIX_TRACE_INHERITED);
	posix_trace_attr_setlogfullpolicy(&attributes, POSIX_TRACE_APPEND);
	check(posix_trace_create_withlog(0, &attributes, file, &stream), "posix_trace_create_withlog");
	posix_trace_attr_destroy(&attributes);
	posix_trace_eventset_fill(&set, POSIX_TRACE_ALL_EVENTS);
	check(posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET), "posix_trace_set_filter");
	posix_trace_eventset_empty(&set);
	posix_trace_eventset_add(POSIX_TRACE_ERROR, &set);
	check(posix_trace_set_filter(stream, &set, POSIX_TRACE_SUB_EVENTSET), "posix_trace_set_filter");
	for (size_t i = 0; i < count; i++) {
		check(oh_trace_metric_events_required(metrics[i], stream, &set),
		      "oh_trace_metric_events_required");
		check(posix_trace_set_filter(stream, &set, POSIX_TRACE_SUB_EVENTSET),
		      "posix_trace_set_filter");
	}
	check(posix_trace_start(stream), "posix_trace_start");
	int status = run(arguments);

	check(posix_trace_shutdown(stream), "posix_trace_shutdown");
	return status;
}

/*
 * Prints the names of the tasks, from events of the type task_life. Returns whether events of the
 * kernel were refused.
 */
static int print_tasks(trace_id_t stream)
{
	struct posix_trace_event_info event;
	trace_event_id_t lives;
	oh_kernel_life life;
	size_t length;
	int unavailable, is_refused = 0;

	/* Types of the kernel have the same numbers in all streams. */
	char name[TRACE_EVENT_NAME_MAX + 1] = "";
	for (lives = OH_TRACE_KERNEL_FIRST; lives <= OH_TRACE_KERNEL_LAST; lives++)
		if (posix_trace_eventid_get_name(stream, lives, name) == 0 && strcmp(name, "task_life") == 0)
			break;
	for (;;) {
		check(posix_trace_getnext_event(stream, &event, &life, sizeof life, &length, &unavailable),
		      "posix_trace_getnext_event");
		if (unavailable)
			return is_refused;
		if (event.posix_event_id == POSIX_TRACE_ERROR)
			is_refused = 1;
		else if (event.posix_event_id == lives && length == sizeof life)
			printf("task,%" PRIu32 ",%.16s\n", life.tid, life.comm);
	}
}

static void print(trace_id_t stream, const char *name, const oh_trace_metric *metric,
                  uint64_t cost_ns)
{
	oh_trace_results *results = NULL;

	check(oh_trace_results_get(&results, metric, stream, cost_ns), "oh_trace_results_get");
	for (size_t i = 0; i < oh_trace_results_count(results); i++) {
		oh_measurement one;

		oh_trace_results_at(results, i, &one);
		printf("%s,%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, name, one.task, one.length_ns,
		       one.begin_ns, one.end_ns);
		printf(",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", one.intermediate_events, one.own_events,
		       one.missed);
	}
	printf("lost,%s,%" PRIu64 "\n", name, oh_trace_results_missed(results));
	oh_trace_results_free(results);
}

int main(int argc, char **argv)
{
	const char *names[MAX_METRICS];
	oh_trace_metric *metrics[MAX_METRICS];
	size_t count = 0;
	trace_id_t stream;

	if (argc < 5) {
		fprintf(stderr, "usage: measure LOG METRIC,METRIC... COST_NS PROGRAM ARGUMENT...\n");
		return 64;
	}
	for (char *name = strtok(argv[2], ","); name; name = strtok(NULL, ",")) {
		if (count == MAX_METRICS) {
			fprintf(stderr, "measure takes at most %d metrics\n", MAX_METRICS);
			return 64;
		}
		names[count] = name;
		check(oh_trace_metric_system(&metrics[count++], name), "oh_trace_metric_system");
	}
	int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	check(file < 0 ? errno : 0, argv[1]);
	int status = record(file, metrics, count, &argv[4]);

	close(file);
	file = open(argv[1], O_RDONLY | O_CLOEXEC);
	check(file < 0 ? errno : 0, argv[1]);
	check(posix_trace_open(file, &stream), "posix_trace_open");
	if (print_tasks(stream)) {
		fprintf(stderr, "events of the kernel are not permitted, or this kernel lacks some\n");
		status = 77;
	}
	for (size_t i = 0; i < count && status == 0; i++)
		print(stream, names[i], metrics[i], strtoull(argv[3], NULL, 10));
	for (size_t i = 0; i < count; i++)
		oh_trace_metric_free(metrics[i]);
	check(posix_trace_close(stream), "posix_trace_close");
	close(file);
	return status;
}
