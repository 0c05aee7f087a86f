/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The task set of [EPOS, table I]: six periodic tasks on three CPUs. T1 moves memory, T2, T3 and T6
 * compute disparity maps of two pictures, T4 and T5 compute Fibonacci numbers.
 *
 *   cc -O2 -pthread tasks.c -o tasks
 *   ./tasks calibrate                       prints turns for a job of each kind
 *   ./tasks SECONDS deadline|fifo[:PERIOD] TURNS [FAULT]
 *
 * TURNS are the numbers that `calibrate` has printed, with commas: all runs of an experiment do the
 * same work. With `deadline` a task asks for SCHED_DEADLINE in the cpuset (a partition) that its
 * process was put into: see `cpusets` below. With `fifo` the tasks are bound to their CPUs and have
 * fixed priorities in the order of their numbers: all deadlines of a round are equal, so this is
 * the order of EDF, too.
 *
 * With a PERIOD in ms other than 500, jobs are shorter in the same proportion.
 *
 * FAULT is KIND@ROUND+COUNT, and hurts one task:
 *   slow@20+3     jobs 20 to 22 of T3 take a path with four times the work for every other row
 *   thrash@20+3   in these rounds a neighbour on the CPU of T1 writes 2 MiB every ms, so that T1
 *                 finds its caches empty
 *   starve@20+3   in these rounds a neighbour takes half of the CPU of T3
 *
 * The neighbours have a higher priority, which does not help them with `deadline`.
 *
 * At the end each job has a line: task, job, release and completion in ns of CLOCK_MONOTONIC, CPU
 * time in ns, instructions and cycles of the task in user space (-1 without hardware counters), and
 * whether a fault was active.
 *
 * Exit status: 0; 2 for wrong arguments; 77 and a message where the scheduling policy is refused.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	TASKS = 6,
	USUAL_PERIOD_MS = 500,
	NS_PER_MS = 1000000,
	/* Work is calibrated to this part of the time that table I gives to a job. */
	WORK_PERCENT = 80,
	MOST_URGENT = 50,
};

enum kind { BANDWIDTH, DISPARITY, FIBONACCI, KINDS };

/* [EPOS, table I], by CPU. */
static const struct task {
	int cpu;
	int wcet_ms;
	enum kind kind;
} tasks[TASKS] = {
	{ 1, 100, BANDWIDTH }, { 1, 200, DISPARITY }, /* T1, T2 */
	{ 2, 200, DISPARITY }, { 2, 200, FIBONACCI }, /* T3, T4 */
	{ 3, 200, FIBONACCI }, { 3, 200, DISPARITY }, /* T5, T6 */
};

enum { T1 = 0, T3 = 2 };

struct job {
	uint64_t release_ns, end_ns, cpu_ns;
	int64_t instructions, cycles;
	bool is_faulty;
};

static struct {
	bool is_deadline;
	int period_ms;
	uint64_t begin_ns;
	int rounds;
	int turns[KINDS];
	char fault; /* first letter, or 0; x is starve */
	int victim;
	int fault_first, fault_count;
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

/*
 * The work. Results go into `sink`, so that the compiler keeps it.
 */
static volatile uint64_t sink;

/* [EPOS, section IV-B] wants at least the size of the L2 cache, there 512 KiB. */
enum { BANDWIDTH_BYTES = 1 << 20, NEIGHBOUR_BYTES = 8 << 20, LINE_BYTES = 64 };

/* A turn reads and writes a word of each cache line of a part of the data: 64 KiB. */
static void move_memory(uint64_t *data, size_t bytes, int turns)
{
	enum { STEP = LINE_BYTES / sizeof *data, TURN = 65536 / sizeof *data };
	size_t at = 0, words = bytes / sizeof *data;

	for (int turn = 0; turn < turns; turn++) {
		for (size_t word = 0; word < TURN; word += STEP)
			data[at + word] += 1;
		at = (at + TURN) % words;
	}
	sink += data[0];
}

enum { WIDTH = 320, HEIGHT = 240, WINDOW = 4, SHIFTS = 16 };

struct pictures {
	uint8_t left[HEIGHT][WIDTH], right[HEIGHT][WIDTH], depth[HEIGHT][WIDTH];
};

/* Two pictures of the same noise, with shifts that grow from top to bottom. */
static void draw(struct pictures *pictures)
{
	uint32_t state = 12345;

	for (int y = 0; y < HEIGHT; y++) {
		int shift = y * (SHIFTS - 1) / HEIGHT;

		for (int x = 0; x < WIDTH; x++) {
			state = state * 1664525 + 1013904223;
			pictures->left[y][x] = (uint8_t)(state >> 24);
		}
		for (int x = 0; x < WIDTH; x++)
			pictures->right[y][x] = pictures->left[y][(x + shift) % WIDTH];
	}
}

/* A turn is a row of the map: for each pixel the shift with the least sum of differences. */
static void disparity_row(struct pictures *pictures, int y)
{
	for (int x = 0; x + WINDOW + SHIFTS < WIDTH; x++) {
		uint32_t best = UINT32_MAX;

		for (int shift = 0; shift < SHIFTS; shift++) {
			uint32_t sum = 0;

			for (int dy = 0; dy < WINDOW; dy++) {
				const uint8_t *left = pictures->left[(y + dy) % HEIGHT];
				const uint8_t *right = pictures->right[(y + dy) % HEIGHT];

				for (int dx = 0; dx < WINDOW; dx++)
					sum += (uint32_t)abs(left[x + dx + shift] - right[x + dx]);
			}
			if (sum < best) {
				best = sum;
				pictures->depth[y][x] = (uint8_t)shift;
			}
		}
	}
}

static void map_disparity(struct pictures *pictures, int turns, bool is_slow)
{
	for (int turn = 0; turn < turns; turn++) {
		int repetitions = is_slow && turn % 2 == 0 ? 4 : 1;

		for (int repetition = 0; repetition < repetitions; repetition++)
			disparity_row(pictures, turn % HEIGHT);
	}
	sink += pictures->depth[HEIGHT / 2][WIDTH / 2];
}

/* A turn is the 90th Fibonacci number, by iteration. */
static void fibonacci(int turns)
{
	for (int turn = 0; turn < turns; turn++) {
		uint64_t a = 0, b = 1 + (sink & 1);

		for (int step = 0; step < 90; step++) {
			uint64_t next = a + b;

			a = b;
			b = next;
			/* The compiler must not compute the sum beforehand. */
			__asm__ volatile("" : "+r"(a), "+r"(b));
		}
		sink = a;
	}
}

/* Data of a task, touched before the tasks begin. */
static void *data_of(enum kind kind)
{
	size_t bytes = kind == BANDWIDTH ? BANDWIDTH_BYTES : kind == DISPARITY ? sizeof(struct pictures) : 1;
	void *data = aligned_alloc(LINE_BYTES, (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);

	if (!data) {
		fprintf(stderr, "tasks: no memory\n");
		exit(1);
	}
	memset(data, 1, bytes);
	if (kind == DISPARITY)
		draw(data);
	return data;
}

static void work(enum kind kind, void *data, int turns, bool is_slow)
{
	switch (kind) {
	case BANDWIDTH:
		move_memory(data, BANDWIDTH_BYTES, turns);
		break;
	case DISPARITY:
		map_disparity(data, turns, is_slow);
		break;
	case FIBONACCI:
	case KINDS:
		fibonacci(turns);
		break;
	}
}

/* Prints turns for the jobs of each kind: the least time of nine measurements. */
static void calibrate(void)
{
	for (int kind = 0; kind < KINDS; kind++) {
		void *data = data_of(kind);
		int wcet_ms = kind == BANDWIDTH ? 100 : 200;
		uint64_t least = UINT64_MAX;
		int turns = kind == FIBONACCI ? 20000 : kind == DISPARITY ? 8 : 400;

		for (int turn = 0; turn < 9; turn++) {
			uint64_t begin = now_ns(CLOCK_THREAD_CPUTIME_ID);

			work(kind, data, turns, false);
			begin = now_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
			if (begin < least)
				least = begin;
		}
		printf("%s%.0f", kind ? "," : "", (double)turns * wcet_ms * NS_PER_MS / (double)least * WORK_PERCENT / 100);
		free(data);
	}
	printf("\n");
}

/*
 * The task's own counters, for comparisons of runs: instructions and cycles in user space, as one
 * group. -1 where there are none.
 */
static int open_counters(void)
{
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_HARDWARE,
		.size = sizeof attributes,
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.read_format = PERF_FORMAT_GROUP,
		.exclude_kernel = 1,
		.exclude_hv = 1,
		.pinned = 1,
	};
	int leader = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);

	if (leader < 0)
		return -1;
	attributes.config = PERF_COUNT_HW_CPU_CYCLES;
	attributes.pinned = 0;
	if (syscall(SYS_perf_event_open, &attributes, 0, -1, leader, 0) < 0) {
		close(leader);
		return -1;
	}
	return leader;
}

static void read_counters(int leader, int64_t counts[2])
{
	uint64_t values[3];

	counts[0] = counts[1] = -1;
	if (leader >= 0 && read(leader, values, sizeof values) == sizeof values) {
		counts[0] = (int64_t)values[1];
		counts[1] = (int64_t)values[2];
	}
}

static bool fault_is_active(char fault, int round)
{
	return plan.fault == fault && round >= plan.fault_first && round < plan.fault_first + plan.fault_count;
}

/* As the kernel defines it. */
struct deadline_attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/*
 * `cpusets` gives each CPU of the task set the file to which a thread's id is written to move it
 * there: `/sys/fs/cgroup/overhear-epos-1/cgroup.threads`, for example. The runner makes these
 * partitions; OVERHEAR_EPOS_CPUSETS has the three paths with colons between them.
 */
static const char *cpusets[3];

static int enter_cpuset(int cpu)
{
	char text[16];
	int file = cpusets[cpu - 1] ? open(cpusets[cpu - 1], O_WRONLY | O_CLOEXEC) : -1;
	int length = snprintf(text, sizeof text, "%ld", syscall(SYS_gettid));
	bool is_done = file >= 0 && write(file, text, (size_t)length) == length;

	if (file >= 0)
		close(file);
	return is_done ? 0 : -1;
}

static int bind_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof set, &set);
}

static int take_policy(int number)
{
	const struct task *task = &tasks[number];

	if (plan.is_deadline) {
		struct deadline_attributes attributes = {
			.size = sizeof attributes,
			.policy = 6, /* SCHED_DEADLINE */
			.runtime = (uint64_t)task->wcet_ms * NS_PER_MS * (uint64_t)plan.period_ms / USUAL_PERIOD_MS,
			.deadline = (uint64_t)plan.period_ms * NS_PER_MS,
			.period = (uint64_t)plan.period_ms * NS_PER_MS,
		};

		if (enter_cpuset(task->cpu))
			return -1;
		return (int)syscall(SYS_sched_setattr, 0, &attributes, 0);
	}
	struct sched_param priority = { .sched_priority = MOST_URGENT - number };

	if (bind_to(task->cpu))
		return -1;
	return sched_setscheduler(0, SCHED_FIFO, &priority);
}

static pthread_barrier_t ready;
static volatile bool is_refused;
static struct job *jobs[TASKS];

static void *run(void *argument)
{
	int number = (int)(intptr_t)argument;
	const struct task *task = &tasks[number];
	struct job *own = jobs[number];
	void *data = data_of(task->kind);
	int leader = open_counters();
	int64_t before[2], after[2];
	char name[16];

	snprintf(name, sizeof name, "T%d", number + 1);
	pthread_setname_np(pthread_self(), name);
	if (take_policy(number))
		is_refused = true;
	pthread_barrier_wait(&ready); /* all have their policies */
	pthread_barrier_wait(&ready); /* the begin is set */
	if (is_refused)
		return NULL;
	for (int round = 0; round < plan.rounds; round++) {
		struct job *job = &own[round];
		uint64_t cpu_ns;

		job->release_ns = plan.begin_ns + (uint64_t)round * (uint64_t)plan.period_ms * NS_PER_MS;
		if (plan.is_deadline && round)
			sched_yield(); /* the job's end: the thread waits for its next period */
		sleep_until(job->release_ns);
		read_counters(leader, before);
		cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
		job->is_faulty = number == plan.victim && (fault_is_active('s', round) || fault_is_active('t', round) ||
						      fault_is_active('x', round));
		work(task->kind, data, plan.turns[task->kind], number == plan.victim && fault_is_active('s', round));
		job->cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
		job->end_ns = now_ns(CLOCK_MONOTONIC);
		read_counters(leader, after);
		job->instructions = after[0] < 0 ? -1 : after[0] - before[0];
		job->cycles = after[1] < 0 ? -1 : after[1] - before[1];
	}
	/* The last job ends like all others. */
	sleep_until(plan.begin_ns + (uint64_t)plan.rounds * (uint64_t)plan.period_ms * NS_PER_MS);
	free(data);
	return NULL;
}

/* Version 2 of cgroups moves threads only between groups whose processes are at the root. */
static void enter_root(void)
{
	char path[512];
	int file;

	if (!cpusets[0] || !strstr(cpusets[0], "cgroup.threads"))
		return;
	snprintf(path, sizeof path, "%s", cpusets[0]);
	for (int level = 0; level < 2; level++)
		*strrchr(path, '/') = '\0';
	strncat(path, "/cgroup.procs", sizeof path - strlen(path) - 1);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file >= 0) {
		/* 0 is the writing process. If it is refused, entering a cpuset is refused, too. */
		if (write(file, "0", 1) != 1)
			perror(path);
		close(file);
	}
}

/* The neighbour of a fault. */
static void *disturb(void *argument)
{
	bool is_thief = plan.fault == 'x';
	uint64_t *data = aligned_alloc(LINE_BYTES, NEIGHBOUR_BYTES);
	uint64_t begin, end;
	struct sched_param priority = { .sched_priority = MOST_URGENT + 1 };

	(void)argument;
	if (!data)
		exit(1);
	memset(data, 1, NEIGHBOUR_BYTES);
	pthread_setname_np(pthread_self(), "neighbour");
	if (bind_to(tasks[plan.victim].cpu) || sched_setscheduler(0, SCHED_FIFO, &priority))
		is_refused = true;
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&ready);
	if (is_refused)
		return NULL;
	begin = plan.begin_ns + (uint64_t)plan.fault_first * (uint64_t)plan.period_ms * NS_PER_MS;
	end = begin + (uint64_t)plan.fault_count * (uint64_t)plan.period_ms * NS_PER_MS;
	sleep_until(begin);
	for (uint64_t now = begin; now < end; now = now_ns(CLOCK_MONOTONIC)) {
		if (is_thief) {
			while (now_ns(CLOCK_MONOTONIC) < now + 5 * NS_PER_MS)
				fibonacci(100);
			sleep_until(now + 10 * NS_PER_MS);
		} else {
			move_memory(data, NEIGHBOUR_BYTES, NEIGHBOUR_BYTES / 4 / 65536);
			sleep_until(now + NS_PER_MS);
		}
	}
	free(data);
	return NULL;
}

static bool parse_fault(const char *text)
{
	static const char *const names[] = { "slow", "thrash", "starve" };
	static const char letters[] = "stx";

	for (int kind = 0; kind < 3; kind++) {
		size_t length = strlen(names[kind]);

		if (strncmp(text, names[kind], length) == 0 &&
		    sscanf(text + length, "@%d+%d", &plan.fault_first, &plan.fault_count) == 2) {
			plan.fault = letters[kind];
			plan.victim = plan.fault == 't' ? T1 : T3;
			return true;
		}
	}
	return false;
}

static void parse_cpusets(void)
{
	char *text = getenv("OVERHEAR_EPOS_CPUSETS"), *rest = NULL;

	for (int cpu = 0; cpu < 3 && text; cpu++)
		cpusets[cpu] = strtok_r(cpu ? NULL : strdup(text), ":", &rest);
}

int main(int argc, char **argv)
{
	pthread_t threads[TASKS], disturber;
	bool is_disturbed;

	if (argc == 2 && strcmp(argv[1], "calibrate") == 0) {
		calibrate();
		return 0;
	}
	if (argc < 4 || argc > 5 || atof(argv[1]) <= 0 ||
	    sscanf(argv[3], "%d,%d,%d", &plan.turns[0], &plan.turns[1], &plan.turns[2]) != 3 ||
	    (argc == 5 && !parse_fault(argv[4]))) {
		fprintf(stderr, "usage: tasks calibrate | tasks SECONDS deadline|fifo TURNS,TURNS,TURNS [FAULT]\n");
		return 2;
	}
	plan.is_deadline = strncmp(argv[2], "deadline", 8) == 0;
	plan.period_ms = strchr(argv[2], ':') ? atoi(strchr(argv[2], ':') + 1) : USUAL_PERIOD_MS;
	if (plan.period_ms <= 0) {
		fprintf(stderr, "tasks: %s has no period\n", argv[2]);
		return 2;
	}
	plan.rounds = (int)(atof(argv[1]) * 1000 / plan.period_ms);
	for (int kind = 0; kind < KINDS; kind++)
		plan.turns[kind] = (int)((int64_t)plan.turns[kind] * plan.period_ms / USUAL_PERIOD_MS);
	parse_cpusets();
	if (plan.is_deadline)
		enter_root();
	is_disturbed = plan.fault == 't' || plan.fault == 'x';
	for (int number = 0; number < TASKS; number++)
		jobs[number] = calloc((size_t)plan.rounds + 1, sizeof **jobs);
	pthread_barrier_init(&ready, NULL, TASKS + 1 + is_disturbed);
	for (int number = 0; number < TASKS; number++)
		pthread_create(&threads[number], NULL, run, (void *)(intptr_t)number);
	if (is_disturbed)
		pthread_create(&disturber, NULL, disturb, NULL);
	/* All pages, now that the stacks exist. Without the permission the first round is slower. */
	(void)mlockall(MCL_CURRENT);
	pthread_barrier_wait(&ready);
	plan.begin_ns = now_ns(CLOCK_MONOTONIC) + 200 * NS_PER_MS;
	pthread_barrier_wait(&ready);
	for (int number = 0; number < TASKS; number++)
		pthread_join(threads[number], NULL);
	if (is_disturbed)
		pthread_join(disturber, NULL);
	if (is_refused) {
		fprintf(stderr, "tasks: %s is refused\n", plan.is_deadline ? "SCHED_DEADLINE in a partition" : "SCHED_FIFO");
		return 77;
	}
	for (int number = 0; number < TASKS; number++) {
		for (int round = 0; round < plan.rounds; round++) {
			const struct job *job = &jobs[number][round];

			printf("T%d,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRId64 ",%" PRId64 ",%d\n", number + 1,
			       round, job->release_ns, job->end_ns, job->cpu_ns, job->instructions, job->cycles,
			       job->is_faulty);
		}
	}
	return 0;
}
