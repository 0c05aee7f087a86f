// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Samples of threads, taken at points of the execution flow, at the ends of jobs and by a timer
 * [EPOS, section III].
 *
 * 1. One object per sampler. User space fills the constant `sampler` before loading. The verifier
 *    drops the branches that the constants exclude, so a program reads only the chosen quantities.
 *    Only the programs of the chosen points are loaded, and those of switches and of lives.
 *
 * 2. Accounts. A followed thread has an account in its task local storage: its totals at its
 *    previous sample. A sample has the differences. The kernel's own accounts are totals of the
 *    thread. Counters belong to CPUs: the account stores the counter at the arrival of the thread,
 *    and adds the difference at its departure (algorithm 1 of the paper). A sample that is not
 *    taken loses nothing: its differences are in the next one. So the sum of all samples of a
 *    thread is its total, and each thread has a last sample, POINT_THREAD_END, at its last
 *    departure, when no account changes any more.
 *
 * 3. Begin. The account of a child begins at its creation, that of a selected thread at the
 *    selection; counters of a thread that is on a CPU then begin with its next arrival. The account
 *    of a held thread, which is a copy of the process that starts a program, begins at the end of
 *    its execve.
 *
 * 4. Our own cost. At a switch, counters are read first for the leaving thread and last for the
 *    entering one: what the program does between belongs to none of them. At other points the
 *    counters are read first, and again after the sample. Where a followed thread follows another
 *    without a sample, the program does almost nothing between, and one reading serves both.
 *
 * 5. One at a time. The account and the ring of this CPU are changed with interrupts masked
 *    (sched.bpf.c, rule 3). The waker of a thread uses its account on another CPU; the run queue's
 *    lock keeps it apart from the thread's switches, but not from a timer. So with wake-ups, and on
 *    kernels where interrupts cannot be masked, a program claims the account. The loser takes no
 *    sample and counts it (lost_nested); nothing of the account is lost.
 *
 * 6. Distance. `point_ns` is the time of the last sample at a point. A sample of the timer does not
 *    change it, so it never makes a point be left out. The timer leaves its sample out if a point
 *    had one within the period (the hybrid policy).
 *
 * 7. Budget. While a budget has switched the sampler off, samples are counted as skipped; accounts
 *    go on. The last sample of a thread is always written.
 *
 * 8. Relative futexes. The place of a variable in a program is known before it starts, its address
 *    is not. Both differ by the place where the kernel has mapped the program, which `start_code`
 *    shows. The file of the program is compared as well, because children may execute another one.
 *
 * 9. CPU time within a slice. The kernel advances the CPU time of a running thread at ticks and
 *    switches. A sample of the current thread has the time since its arrival instead, as in
 *    sched.bpf.c (rule 8). That includes interrupts, which the kernel may subtract. So the account
 *    can be behind the sum of the samples; the following samples have less until it is not, and the
 *    sum is the total again.
 *
 * 10. Two series. A sample at the end of a job has the counts of the job. If a sampler has other
 *    points as well, their samples are a series of their own, with the counts since the last of
 *    them. The last sample of a thread continues the series of other points, or that of jobs if the
 *    thread had no other sample.
 */
#include "accounts.h"
#include "calls.h"
#include "files.h"
#include "ring.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static u64 (*const bpf_get_attach_cookie)(void *ctx) = (void *)174;

enum { PAGE_BYTES = 4096, TASK_DEAD = 0x80, PF_EXITING = 0x4 };

/* User space replaces it by a map of the rings of all CPUs. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(key_size, sizeof(u32));
	MAP_UINT(value_size, PAGE_BYTES);
	MAP_UINT(max_entries, 2);
} rings SEC(".maps");

/* Samples */

/* Counts a sample that a budget keeps from being written (stream-layout.md, section 5.5). */
static always_inline void skip_sample(struct ring_header *ring)
{
	u64 position = READ_ONCE(ring->counter);

	__sync_fetch_and_add(&ring->skipped, 1);
	if (READ_ONCE(ring->skipped_at) != position || !READ_ONCE(ring->skip_runs)) {
		WRITE_ONCE(ring->skipped_at, position);
		__sync_fetch_and_add(&ring->skip_runs, 1);
	}
}

static always_inline struct ring_header *ring_of(u32 cpu)
{
	u32 first = cpu * (u32)sampler.pages;

	return bpf_map_lookup_elem(&rings, &first);
}

/* Rule 10. */
static always_inline struct series *series_of(struct account *account, u32 point)
{
	if (!sampler.two_series)
		return &account->series[0];
	if (point == POINT_JOB_END || (point == POINT_THREAD_END && !account->series[0].samples))
		return &account->series[1];
	return &account->series[0];
}

/* Writes a sample into the ring of this CPU. The caller has the account for itself. */
static always_inline bool write_sample(struct account *account, struct task_struct *task, u32 point,
				       u32 cpu, u64 now_ns, bool is_running)
{
	struct sampler_words *words = sampler_words();
	struct ring_header *ring = ring_of(cpu);

	if (!words || !ring || !READ_ONCE(words->active))
		return 0;
	if (READ_ONCE(words->off) && point != POINT_THREAD_END) {
		skip_sample(ring);
		return 0;
	}
	if (!masks_interrupts() && !claim(ring))
		return 0;

	struct series *series = series_of(account, point);
	u32 per_page_shift = 12 - (u32)sampler.stride_shift;
	u32 position = (u32)READ_ONCE(ring->counter) & (u32)sampler.ring_mask;
	u32 page = cpu * (u32)sampler.pages + 1 + (position >> per_page_shift);
	u8 *slots = bpf_map_lookup_elem(&rings, &page);

	if (slots) {
		u32 within = position & ((1u << per_page_shift) - 1);
		u64 *to = (void *)(slots + ((within << sampler.stride_shift) & (PAGE_BYTES - 1)));

		/* Whole words, as in `write_element`. */
		to[0] = masks_interrupts() ? now_ns : bpf_ktime_get_ns();
		to[1] = (u32)task->pid | (u64)(u32)task->tgid << 32;
		to[2] = point | (u64)cpu << 32;
		to[3] = now_ns - series->sample_ns;
#pragma clang loop unroll(full)
		for (u32 number = 0; number < MAX_QUANTITIES; number++)
			if (number < sampler.quantities)
				to[SAMPLE_WORDS + number] = quantity(account, series, task, number,
								     is_running ? now_ns : 0);
		publish(ring);
		series->sample_ns = now_ns;
		series->samples++;
		if (point != POINT_TIMER)
			account->point_ns = now_ns; /* rule 6 */
	}
	if (!masks_interrupts())
		release(ring);
	return slots;
}

/* Rule 6. */
static always_inline bool is_due(struct account *account, u32 point, u64 now_ns)
{
	switch (point) {
	case POINT_JOB_END:
	case POINT_THREAD_END:
		return 1;
	case POINT_TIMER:
		return now_ns - account->point_ns >= sampler.period_ns;
	default:
		return !sampler.least_ns || now_ns - account->point_ns >= sampler.least_ns;
	}
}

/* Rule 5. */
static always_inline bool claim_account(struct account *account, u32 cpu)
{
	if (!must_claim() || !__sync_lock_test_and_set(&account->busy, 1))
		return 1;

	struct ring_header *ring = ring_of(cpu);

	if (ring)
		__sync_fetch_and_add(&ring->lost_nested, 1);
	return 0;
}

static always_inline void release_account(struct account *account)
{
	barrier();
	if (must_claim())
		WRITE_ONCE(account->busy, 0);
}

/* A thread passes a point. Its counters are read if it is the current one. */
static always_inline void pass(struct account *account, struct task_struct *task, u32 point,
			       bool is_current)
{
	u32 cpu = bpf_get_smp_processor_id();
	u64 now_ns = bpf_ktime_get_ns();

	if (!is_due(account, point, now_ns) || !claim_account(account, cpu))
		return;
	if (is_current && sampler.counters)
		end_counting(account, cpu);
	write_sample(account, task, point, cpu, now_ns, is_current);
	if (is_current && sampler.counters && account->on_cpu)
		begin_counting(account, cpu);
	release_account(account);
}

/* The current thread passes a point; interrupts are on, unless they are off everywhere here. */
static always_inline int pass_current(u32 point)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct account *account = account_of(current);

	if (!account)
		return 0;
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		pass(account, current, point, 1);
		bpf_local_irq_restore(&interrupts);
	} else {
		pass(account, current, point, 1);
	}
	return 0;
}

/* Points */

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct account *leaving = storage_of(prev);
	struct account *entering = storage_of(next);

	/* As in sched.bpf.c: most switches involve no followed thread. */
	if (!leaving) {
		barrier();
		if (!entering)
			return 0;
	}

	u32 cpu = bpf_get_smp_processor_id();
	bool is_sampled = 0, was_counted = 0;

	if (leaving)
		WRITE_ONCE(leaving->arrived_ns, 0);
	if (leaving && READ_ONCE(leaving->ready)) {
		bool dies = (u32)ctx[3] & TASK_DEAD;

		if (sampler.counters) {
			was_counted = end_counting(leaving, cpu);
			leaving->on_cpu = 0;
		}
		if (dies || is_chosen(POINT_SWITCH)) {
			u32 point = dies ? POINT_THREAD_END : POINT_SWITCH;
			u64 now_ns = bpf_ktime_get_ns();

			if (is_due(leaving, point, now_ns) && claim_account(leaving, cpu)) {
				is_sampled = write_sample(leaving, prev, point, cpu, now_ns, 0);
				release_account(leaving);
			}
		}
		if (dies) {
			struct sampler_words *words = sampler_words();

			if (words)
				__sync_fetch_and_add(&words->ends, 1);
		}
	}
	/* A held thread begins its account while it runs. */
	if (entering && (estimates_cpu_time() || !READ_ONCE(entering->ready))) {
		entering->arrived_cpu_time = next->se.sum_exec_runtime;
		entering->arrived_ns = bpf_ktime_get_ns();
	}
	if (entering && sampler.counters) {
		/* Rule 4. */
		if (leaving && was_counted && !is_sampled)
			continue_counting(entering, leaving, cpu);
		else
			begin_counting(entering, cpu);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct account *account = account_of(task);

	if (!account)
		return 0;
	/* A wake-up by the thread itself has interrupts on. */
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		pass(account, task, POINT_WAKE_UP, 0);
		bpf_local_irq_restore(&interrupts);
	} else {
		pass(account, task, POINT_WAKE_UP, 0);
	}
	return 0;
}

static always_inline bool is_file(struct file *file)
{
	struct inode *inode = 0;
	struct super_block *super = 0;
	unsigned long number = 0;
	u32 device = 0;

	if (!file)
		return 0;
	bpf_probe_read_kernel(&inode, sizeof(inode), &file->f_inode);
	bpf_probe_read_kernel(&number, sizeof(number), &inode->i_ino);
	if (number != sampler.file_inode)
		return 0;
	bpf_probe_read_kernel(&super, sizeof(super), &inode->i_sb);
	bpf_probe_read_kernel(&device, sizeof(device), &super->s_dev);
	return device == sampler.file_device;
}

/* Rule 8. */
static always_inline bool is_futex(u64 address)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct mm_struct *mm = current->mm;
	struct file *program = 0;
	unsigned long start = 0;

	if (!sampler.futex_relative)
		return address == sampler.futex;
	if (!mm)
		return 0;
	bpf_probe_read_kernel(&start, sizeof(start), &mm->start_code);
	if (address - start != sampler.futex)
		return 0;
	bpf_probe_read_kernel(&program, sizeof(program), &mm->exe_file);
	return is_file(program);
}

static always_inline bool reads(u64 call)
{
	return call == sampler.call_read || call == sampler.call_readv ||
	       call == sampler.call_pread || call == sampler.call_preadv ||
	       call == sampler.call_recvfrom || call == sampler.call_recvmsg;
}

/* Whether a job ends with the entry of this system call. */
static always_inline bool ends_job(struct pt_regs *regs, u64 call)
{
	struct task_struct *current = bpf_get_current_task_btf();
	enum { SCHED_DEADLINE = 6 };

	if (sampler.jobs & JOB_YIELD && call == sampler.call_yield)
		return 1;
	if (sampler.jobs & JOB_DEADLINE_YIELD && call == sampler.call_yield)
		if (current->policy == SCHED_DEADLINE)
			return 1;
	if (sampler.jobs & JOB_SLEEP &&
	    (call == sampler.call_nanosleep || call == sampler.call_clock_nanosleep))
		return 1;
	if (sampler.jobs & JOB_FUTEX && call == sampler.call_futex &&
	    is_futex_wait(second_argument(regs)) && is_futex(first_argument(regs)))
		return 1;
	if (sampler.jobs & JOB_READ_DESCRIPTOR && reads(call) &&
	    first_argument(regs) == sampler.descriptor)
		return 1;
	if (sampler.jobs & JOB_READ_FILE && reads(call) && is_file(open_file(first_argument(regs))))
		return 1;
	return 0;
}

SEC("tp_btf/sys_enter")
int on_call(u64 *ctx)
{
	if (!account_of(bpf_get_current_task_btf()))
		return 0;
	if (sampler.jobs && ends_job((void *)ctx[0], (u32)ctx[1]))
		return pass_current(POINT_JOB_END);
	if (is_chosen(POINT_CALL_ENTRY))
		return pass_current(POINT_CALL_ENTRY);
	return 0;
}

SEC("tp_btf/sys_exit")
int on_return(u64 *ctx)
{
	(void)ctx;
	return pass_current(POINT_CALL_EXIT);
}

/* The cookie of a probe is its point. */
static always_inline int probe(u64 cookie)
{
	if (cookie == POINT_JOB_END)
		return pass_current(POINT_JOB_END);
	return pass_current(POINT_PROBE);
}

SEC("uprobe")
int on_probe(u64 *ctx)
{
	return probe(bpf_get_attach_cookie(ctx));
}

SEC("uprobe")
int on_probe_return(u64 *ctx)
{
	return probe(bpf_get_attach_cookie(ctx));
}

/* A clock of each CPU, which interrupts the current thread. */
SEC("perf_event")
int on_timer(void *ctx)
{
	(void)ctx;
	return pass_current(POINT_TIMER);
}

/* Lives of threads */

static always_inline int fork(u64 *ctx, bool again)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct sampler_words *words = sampler_words();

	struct account *creator = storage_of(parent);

	if (!words || !READ_ONCE(words->live))
		return 0;
	if (!creator || !READ_ONCE(creator->inherit))
		return 0;
	if (again && account_of(child))
		return 0;

	struct account *account =
		bpf_task_storage_get(&accounts, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!account) {
		struct ring_header *ring = again ? 0 : ring_of(bpf_get_smp_processor_id());

		if (ring)
			__sync_fetch_and_add(&ring->lost_inherit, 1);
		return 0;
	}
	account->inherit = 1;
	begin_account(account, child, 0);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	return fork(ctx, 0);
}

/* A fork can interrupt another one on its CPU (sched.bpf.c, rule 13). */
SEC("tp_btf/sched_process_fork")
int on_fork_again(u64 *ctx)
{
	return fork(ctx, 1);
}

/* Rule 3: the account of a held thread begins. */
SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];

	struct account *account = storage_of(task);

	if (!account || !READ_ONCE(account->held))
		return 0;
	account->held = 0;
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		begin_account(account, task, 1);
		if (sampler.counters)
			begin_counting(account, bpf_get_smp_processor_id());
		bpf_local_irq_restore(&interrupts);
	} else {
		begin_account(account, task, 1);
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct sampler_words *words = sampler_words();

	if (words && account_of(task))
		__sync_fetch_and_add(&words->exits, 1);
	return 0;
}

static always_inline void follow(struct sampler_words *words, struct task_struct *task)
{
	struct account *account =
		bpf_task_storage_get(&accounts, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!account) {
		words->failed++;
		return;
	}
	if (words->inherit && !account->inherit) {
		WRITE_ONCE(account->inherit, 1);
		words->changed++;
	}
	if (account->ready || account->held)
		return;
	words->changed++;
	if (words->held)
		WRITE_ONCE(account->held, 1);
	else
		begin_account(account, task, 0);
}

/* The kernel runs it once per visited task, and once more without a task. */
SEC("iter/task")
int select(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[1];
	struct sampler_words *words = sampler_words();

	if (!task || !words)
		return 0;
	switch (words->operation) {
	case FOLLOW:
		if (task->flags & PF_EXITING)
			return 0;
		follow(words, task);
		break;
	case LEAVE:
		if (!bpf_task_storage_delete(&accounts, task))
			words->changed++;
		break;
	}
	words->seen++;
	return 0;
}
