/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Accounts of threads: their totals, and what they have counted since the previous sample. A part
 * of samples.bpf.c, which has the rules.
 */
#pragma once

#include "core.h"
#include "samples.h"

const volatile struct sampler sampler SEC(".rodata.sampler");

/* What a thread has at the previous sample of a series. */
struct series {
	u64 sample_ns; /* its time, or the begin */
	u64 samples;   /* number of samples */
	u64 last[MAX_QUANTITIES]; /* totals; of a level its value */
	u64 sum[MAX_COUNTERS];	  /* counted since, up to `base` */
};

struct account {
	u64 ready;   /* not 0 as soon as the members below are filled */
	u64 inherit; /* children are followed */
	u64 held;    /* not 0 before its first execve */
	u64 busy;    /* not 0 while a program uses it (rule 5) */
	u64 on_cpu;  /* CPU of `base` plus 1; 0 if its arrival was not seen */
	u64 arrived_ns; /* arrival on its CPU; 0 if it was not seen (rule 9) */
	u64 arrived_cpu_time; /* CPU time then */
	u64 point_ns;  /* previous sample at a point (rule 6) */
	u64 base[MAX_COUNTERS]; /* counters of the CPU at the arrival */
	struct series series[2]; /* rule 10 */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct account);
} accounts SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct sampler_words);
	MAP_UINT(max_entries, 1);
} words SEC(".maps");

/* At `cpu * MAX_COUNTERS + number`; user space sets the size. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	MAP_UINT(key_size, sizeof(u32));
	MAP_UINT(value_size, sizeof(u32));
	MAP_UINT(max_entries, MAX_COUNTERS);
} counters SEC(".maps");

static always_inline struct sampler_words *sampler_words(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&words, &zero);
}

static always_inline bool masks_interrupts(void)
{
	return sampler.mask_interrupts && bpf_local_irq_save && bpf_local_irq_restore;
}

static always_inline bool is_chosen(u32 point)
{
	return sampler.points >> point & 1;
}

/* Rule 5. */
static always_inline bool must_claim(void)
{
	return !masks_interrupts() || is_chosen(POINT_WAKE_UP);
}

/* The storage of a followed thread, also if it is held; as `tracking_of` in monitors.h. */
static always_inline struct account *storage_of(struct task_struct *task)
{
	if (FIELD_EXISTS(task->bpf_storage) && !task->bpf_storage)
		return 0;
	return bpf_task_storage_get(&accounts, task, 0, 0);
}

/* The account of a followed thread that is not held. */
static always_inline struct account *account_of(struct task_struct *task)
{
	struct account *account = storage_of(task);

	return account && READ_ONCE(account->ready) ? account : 0;
}

/* Totals */

struct percpu_counter {
	long long count;
} CORE;

struct mm_struct___counters {
	struct percpu_counter rss_stat[4];
} CORE;

/* Before Linux 6.2. */
struct atomic_long {
	long long counter;
} CORE;

struct mm_rss_stat {
	struct atomic_long count[4];
} CORE;

struct mm_struct___stat {
	struct mm_rss_stat rss_stat;
} CORE;

/* File pages, anonymous pages and shared pages, not the swapped ones. */
static always_inline u64 resident_pages(struct mm_struct *mm)
{
	enum { FILE_PAGES = 0, ANONYMOUS_PAGES = 1, SHARED_PAGES = 3, EXISTS = 0 };
	long long count[3] = {};

	if (__builtin_preserve_type_info(*(struct mm_rss_stat *)0, EXISTS)) {
		struct mm_struct___stat *old = (void *)mm;

		bpf_probe_read_kernel(&count[0], 8, &old->rss_stat.count[FILE_PAGES].counter);
		bpf_probe_read_kernel(&count[1], 8, &old->rss_stat.count[ANONYMOUS_PAGES].counter);
		bpf_probe_read_kernel(&count[2], 8, &old->rss_stat.count[SHARED_PAGES].counter);
	} else {
		struct mm_struct___counters *now = (void *)mm;

		bpf_probe_read_kernel(&count[0], 8, &now->rss_stat[FILE_PAGES].count);
		bpf_probe_read_kernel(&count[1], 8, &now->rss_stat[ANONYMOUS_PAGES].count);
		bpf_probe_read_kernel(&count[2], 8, &now->rss_stat[SHARED_PAGES].count);
	}

	long long pages = count[0] + count[1] + count[2];

	return pages > 0 ? pages : 0;
}

/* The total of an account of a thread; a level is its value. Fields that the kernel lacks are never
 * chosen: user space looks for them. */
static always_inline u64 total(struct task_struct *task, u64 source, u64 before)
{
	struct mm_struct *mm;

	switch (source) {
	case CPU_TIME:
		return task->se.sum_exec_runtime;
	case WAIT_TIME:
		return FIELD_EXISTS(task->sched_info.run_delay) ? task->sched_info.run_delay : 0;
	case VOLUNTARY_SWITCHES:
		return task->nvcsw;
	case INVOLUNTARY_SWITCHES:
		return task->nivcsw;
	case SWITCHES:
		return task->nvcsw + task->nivcsw;
	case MIGRATIONS:
		return FIELD_EXISTS(task->se.nr_migrations) ? task->se.nr_migrations : 0;
	case MINOR_FAULTS:
		return task->min_flt;
	case MAJOR_FAULTS:
		return task->maj_flt;
	case FAULTS:
		return task->min_flt + task->maj_flt;
	case READ_BYTES:
		return FIELD_EXISTS(task->ioac.read_bytes) ? task->ioac.read_bytes : 0;
	case WRITE_BYTES:
		return FIELD_EXISTS(task->ioac.write_bytes) ? task->ioac.write_bytes : 0;
	case RESIDENT:
		/* An ended thread has no memory; its last value stays. */
		mm = task->mm;
		return mm ? resident_pages(mm) * sampler.page_bytes : before;
	}
	return 0;
}

/* The other helper that reads a counter also computes times, which costs as much again. Counters
 * are pinned: they count all the time. */
static always_inline bool read_counter(u32 cpu, u32 number, u64 *count)
{
	enum { MAX_ERRNO = 4095 };
	u64 value = bpf_perf_event_read(&counters, cpu * MAX_COUNTERS + number);

	if (value >= -(u64)MAX_ERRNO) {
		struct sampler_words *words = sampler_words();

		if (words)
			__sync_fetch_and_add(&words->unread, 1);
		return 0;
	}
	*count = value;
	return 1;
}

/* The thread arrives on this CPU, or continues after our own work (rule 4). */
static always_inline void begin_counting(struct account *account, u32 cpu)
{
	bool is_read = sampler.counters;

#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_COUNTERS; number++)
		if (number < sampler.counters)
			is_read &= read_counter(cpu, number, &account->base[number]);
	account->on_cpu = is_read ? cpu + 1 : 0;
}

/* The thread arrives right after another one, whose departure has read the counters. */
static always_inline void continue_counting(struct account *account, struct account *before,
					    u32 cpu)
{
#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_COUNTERS; number++)
		if (number < sampler.counters)
			account->base[number] = before->base[number];
	account->on_cpu = cpu + 1;
}

static always_inline void count_for(struct series *series, u32 number, u64 counted)
{
	if (must_claim())
		__sync_fetch_and_add(&series->sum[number], counted);
	else
		series->sum[number] += counted;
}

/* Adds what this CPU has counted since the arrival. Returns whether `base` has the counters of now,
 * all of them. */
static always_inline bool end_counting(struct account *account, u32 cpu)
{
	bool is_read = 1;
	u64 count;

	if (account->on_cpu != cpu + 1)
		return 0;
#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_COUNTERS; number++) {
		if (number >= sampler.counters)
			break;
		if (!read_counter(cpu, number, &count)) {
			is_read = 0;
			continue;
		}
		count_for(&account->series[0], number, count - account->base[number]);
		if (sampler.two_series)
			count_for(&account->series[1], number, count - account->base[number]);
		account->base[number] = count;
	}
	return is_read;
}

/* Rule 9. */
static always_inline bool estimates_cpu_time(void)
{
	return sampler.within_slices;
}

static always_inline u64 running_cpu_time(struct account *account, u64 kept, u64 now_ns)
{
	u64 estimate = account->arrived_cpu_time + (now_ns - account->arrived_ns);

	return account->arrived_ns && estimate > kept ? estimate : kept;
}

/* What a quantity of a sample is: the difference of a count, the value of a level. `running_ns` is
 * the time if the thread is running, else 0. */
static always_inline u64 quantity(struct account *account, struct series *series,
				  struct task_struct *task, u32 number, u64 running_ns)
{
	u64 source = sampler.source[number], before = series->last[number];

	if (source >= COUNTER) {
		u64 *sum = &series->sum[(source - COUNTER) & (MAX_COUNTERS - 1)];

		if (must_claim())
			return __sync_lock_test_and_set(sum, 0);
		before = *sum;
		*sum = 0;
		return before;
	}

	u64 now = total(task, source, before);

	if (source == CPU_TIME) {
		if (running_ns && estimates_cpu_time())
			now = running_cpu_time(account, now, running_ns);
		/* The account can be behind where it began within a slice, too. */
		if (now < before)
			return 0;
	}
	series->last[number] = now;
	return source == RESIDENT ? now : now - before;
}

/* The account begins here: what was counted before belongs to no sample. */
static always_inline void begin_account(struct account *account, struct task_struct *task,
					bool is_running)
{
	u64 now_ns = bpf_ktime_get_ns();

#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_QUANTITIES; number++) {
		if (number >= sampler.quantities)
			break;
		if (sampler.source[number] >= COUNTER)
			continue;

		u64 now = total(task, sampler.source[number], 0);

		if (sampler.source[number] == CPU_TIME && is_running)
			now = running_cpu_time(account, now, now_ns);
		account->series[0].last[number] = now;
		account->series[1].last[number] = now;
	}
	account->series[0].sample_ns = now_ns;
	account->series[1].sample_ns = now_ns;
	account->point_ns = 0;
	barrier();
	WRITE_ONCE(account->ready, 1);
}
