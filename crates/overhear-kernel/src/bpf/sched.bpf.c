// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The kernel sensors of scheduling: context switches, wake-ups and life events of tracked threads.
 *
 * 1. Tracking. The task local storage of a thread has the set of monitors that track it
 *    (monitors.h). The first threads get it from `select`, which the kernel runs over the tasks
 *    that user space names. After that, children inherit it if the monitor requests it:
 *    sched_process_fork runs in the parent before the child can run, so no event of the child is
 *    missed. The kernel frees the storage with the thread; the last departure from the CPU still
 *    finds it.
 *
 * 2. Output. Only tracked threads produce elements, and only for the monitors that track them. A
 *    context switch is one element per monitor, even if the monitor tracks both threads. Every hook
 *    has one ring per monitor and CPU.
 *
 * 3. One writer at a time. A program writes only to the ring of its own CPU, so only an interrupt
 *    on this CPU can compete with it. sched_switch runs with interrupts off: no competitor.
 *    Wake-ups of the current thread, forks and exits run with interrupts on; they mask interrupts
 *    for one element (bpf_local_irq_save). Wake-ups of other threads hold the lock of that thread,
 *    with interrupts off. On kernels without that function, all programs claim the ring with an
 *    atomic exchange of the busy word in the header. The loser does not wait (it may have
 *    interrupted the holder); it counts itself in lost_nested. Hooks never share a ring, because
 *    one can interrupt another.
 *
 * 4. Publication. The slot is counter & mask. The program fills it, then stores counter + 1. A
 *    reader that sees the new counter must see the element, and a reader that sees a part of the
 *    next element must see the new counter. x86 keeps the order of stores, so the compiler's
 *    barrier is enough. Elsewhere atomic_fetch_add does both, because it is a full barrier; its
 *    result must be used, or the compiler picks the form without one.
 *
 * 5. Reading. Slots are overwritten without coordination. The reader copies the slot, then reads
 *    the counter again: the element at a position is intact if and only if 1 <= counter - position
 *    < capacity. At equality the writer may already be writing the slot.
 *
 * 6. Time. The stamp is CLOCK_MONOTONIC. It is taken inside the exclusive section, before the
 *    element is filled, so the stamps of one ring ascend with the positions.
 *
 * 7. Voluntary or not. Before the tracepoint, the kernel increments either nvcsw or nivcsw of the
 *    leaving thread. The arguments of the tracepoint do not show whether a pending signal kept the
 *    thread from sleeping. So the storage has the value of nvcsw at the last arrival or departure
 *    of the thread, and a difference means voluntary. Hence our counts are those of the kernel.
 *
 * 8. CPU time. The kernel updates the account of a running thread (sum_exec_runtime) only at ticks
 *    and switches, so at its exit a short-lived thread has run for 0 ns. The time since the last
 *    arrival, which is in the storage, is added to the account at that moment.
 *
 *    At a switch the account of the leaving thread is up to date, and the difference to the one
 *    at its last departure goes into the element: readers need it where the arrival was not seen
 *    (the tracepoint stays silent when certain threads of a virtual machine's own agent leave).
 *
 * 9. End. In the rings of each monitor `ended` counts EXITs (life ring) and last departures (switch
 *    ring). While the sums differ, some thread has announced its exit and is still on a CPU; user
 *    space waits for it before it detaches.
 *
 * 10. Id taken over. If a thread that is not the leader executes a program, it gets the id of the
 *     leader, which has exited before. No tracepoint reports the end of its old id, so the EXEC
 *     element has it.
 *
 * 11. Begin. A thread that is selected while it lives begins with a TRACKED element, written before
 *     the thread is tracked, so that all its other elements come later. The element is in the ring
 *     of the CPU that runs the selection, and has the id that the user gave.
 *
 * 12. Cgroups. A monitor that selects a cgroup tracks all threads in it and below. A child is born
 *     in its cgroup, so the fork decides. A process that moves to another cgroup is only counted
 *     here; user space then runs `select` again.
 *
 * 13. Nested forks. The kernel does not enter a program on a CPU that runs it already. A fork can
 *     be preempted there by another fork, whose child would never be tracked. So a second program
 *     checks the result of the first. A nested exit is only counted, like every call that is not
 *     entered: the last departure shows the end as well.
 *
 * Thread ids are those of the initial PID namespace. All stores are aligned words: the verifier
 * requires it, and no reader sees half a word.
 */
#include "monitors.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Sets of monitors that have selected a cgroup, by the id of the cgroup. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u64);
	MAP_UINT(max_entries, MAX_CGROUPS);
} cgroups SEC(".maps");

EMITTER(wake, struct wake_element, SLOT_WAKE)
EMITTER(life, struct life_element, SLOT_LIFE)

/* A context switch for several monitors: each gets the data of its own threads. */
struct switch_emission {
	const struct shared *words;
	struct switch_element *element;
	u64 leaving; /* monitors of the leaving thread, shifted as in struct emission */
	u64 entering;
	u64 cpu;
	u32 run_ns;
	u16 flags;
	u16 dies;
};

/* Writes the switch for one monitor, which tracks at least one of the two threads. */
static always_inline void emit_switch(u64 monitor, struct switch_emission *switching, bool leaving,
				      bool entering)
{
	struct switch_element *element = switching->element;

	/* A monitor does not get data of threads that it does not track. */
	element->flags = (switching->flags & SWITCH_PREEMPTED) | (entering ? SWITCH_NEXT_TRACKED : 0);
	element->prev_run_ns = SWITCH_RUN_UNKNOWN;
	if (leaving) {
		element->flags |= switching->flags | SWITCH_PREV_TRACKED;
		element->prev_run_ns = switching->run_ns;
	}

	struct ring_header *ring = write_element(switching->words, monitor, SLOT_SWITCH, switching->cpu,
				       element, sizeof(*element), sizeof(*element), 1);

	if (ring && leaving && switching->dies)
		WRITE_ONCE(ring->ended, READ_ONCE(ring->ended) + 1);
}

static noinline long put_switch(u64 monitor, struct switch_emission *switching)
{
	u64 leaving = switching->leaving, entering = switching->entering;

	switching->leaving = leaving >> 1;
	switching->entering = entering >> 1;
	if ((leaving | entering) & 1)
		emit_switch(monitor, switching, leaving & 1, entering & 1);
	return (leaving | entering) <= 1;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct tracking *leaving = tracking_of(prev);
	struct tracking *entering = tracking_of(next);

	/* Most switches involve no tracked thread. They cost two look-ups, and do not read the
	 * clock. The barrier keeps the two tests separate: a combined test becomes an OR of
	 * pointers, which the verifier refuses. */
	if (!leaving) {
		barrier();
		if (!entering)
			return 0;
	}

	struct shared *words = shared_words();
	u64 leaving_set = 0, entering_set = 0;

	if (!words)
		return 0;

	enum { TASK_DEAD = 0x80 };
	u32 prev_state = (u32)ctx[3];
	u64 now_ns = bpf_ktime_get_ns();
	u64 run_ns = SWITCH_RUN_UNKNOWN;
	u32 flags = 0;

	/* The storage is updated even while all monitors are suspended. */
	if (leaving) {
		u64 nvcsw = prev->nvcsw;

		leaving_set = active_trackers(words, leaving);
		if (nvcsw != leaving->nvcsw)
			flags |= SWITCH_VOLUNTARY;
		leaving->nvcsw = nvcsw;
		leaving->arrived_ns = 0;
		run_ns = prev->se.sum_exec_runtime - leaving->ran_ns;
		leaving->ran_ns += run_ns;
		if (run_ns > SWITCH_RUN_UNKNOWN)
			run_ns = SWITCH_RUN_UNKNOWN;
	}
	if (entering) {
		entering_set = active_trackers(words, entering);
		entering->nvcsw = next->nvcsw;
		entering->arrived_ns = now_ns;
		entering->ran_ns = next->se.sum_exec_runtime;
	}

	u64 off = READ_ONCE(words->off[SLOT_SWITCH]);

	if (off) {
		/* The last departure is a part of the thread's life (monitors.h, rule 6). */
		u64 last = prev_state & TASK_DEAD ? leaving_set : 0;

		without_switched_off(words, (leaving_set | entering_set) & ~last, SLOT_SWITCH);
		leaving_set &= ~off | last;
		entering_set &= ~off;
	}
	if (!(leaving_set | entering_set))
		return 0;
	if ((u8)ctx[0])
		flags |= SWITCH_PREEMPTED;

	struct switch_element element = {
		.stamp_ns = now_ns,
		.prev_tid = prev->pid,
		.next_tid = next->pid,
		.prev_pid = prev->tgid,
		.next_pid = next->tgid,
		.prev_state = prev_state,
	};
	struct switch_emission switching = {
		.words = words,
		.element = &element,
		.leaving = leaving_set,
		.entering = entering_set,
		.cpu = bpf_get_smp_processor_id(),
		.run_ns = run_ns,
		.flags = flags,
		.dies = !!(prev_state & TASK_DEAD),
	};

	u64 monitors = leaving_set | entering_set;

	if (is_single(monitors))
		emit_switch(monitor_index(monitors), &switching, !!leaving_set, !!entering_set);
	else
		bpf_loop(MONITORS, put_switch, &switching, 0);
	return 0;
}

static always_inline int wake(struct task_struct *task, u32 kind)
{
	struct tracking *tracking = tracking_of(task);

	if (!tracking)
		return 0;

	struct shared *words = shared_words();
	u64 monitors = words ? active_trackers(words, tracking) : 0;

	if (!monitors)
		return 0;

	u64 waker = bpf_get_current_pid_tgid();
	struct wake_element element = {
		.tid = task->pid,
		.pid = task->tgid,
		.waker_tid = (u32)waker,
		.waker_pid = waker >> 32,
		.target_cpu = task->thread_info.cpu,
		.kind = kind,
	};

	/* Rule 3. */
	if ((u32)waker == (u32)task->pid)
		emit_wake(words, monitors, &element);
	else
		emit_wake_masked(words, monitors, &element);
	return 0;
}

SEC("tp_btf/sched_waking")
int on_waking(u64 *ctx)
{
	return wake((void *)ctx[0], WAKE_WAKING);
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(u64 *ctx)
{
	return wake((void *)ctx[0], WAKE_WAKEUP);
}

SEC("tp_btf/sched_wakeup_new")
int on_wakeup_new(u64 *ctx)
{
	return wake((void *)ctx[0], WAKE_NEW);
}

/* Rule 8. The account can be ahead of the estimate, because a tick may have raised it. */
static always_inline u64 cpu_time_ns(struct task_struct *task, struct tracking *tracking,
				     u64 now_ns)
{
	u64 account_ns = task->se.sum_exec_runtime;
	u64 estimate_ns = 0;

	if (tracking && tracking->arrived_ns)
		estimate_ns = tracking->ran_ns + (now_ns - tracking->arrived_ns);
	return estimate_ns > account_ns ? estimate_ns : account_ns;
}

/* Writes a life event for each of the monitors; `life` has all fields except thread and CPU
 * time. */
static always_inline void emit_life_of(const struct shared *words, u64 monitors, struct task_struct *task,
			       struct tracking *tracking, struct life_element *life,
			       const char *comm)
{
	life->tid = task->pid;
	life->pid = task->tgid;
	bpf_probe_read_kernel_str(life->comm, sizeof(life->comm), comm);
	life->cpu_ns = cpu_time_ns(task, tracking, bpf_ktime_get_ns());
	emit_life(words, monitors, life);
}

/* The monitor's life ring of this CPU; NULL if it has none. */
static always_inline struct ring_header *life_ring(const struct shared *words, u32 monitor, u32 cpu)
{
	u32 index = (monitor & (MONITORS - 1)) * SLOTS + SLOT_LIFE;
	u32 first = cpu * (u32)(READ_ONCE(words->shapes[index]) >> 32);
	void *pages = bpf_map_lookup_elem(&rings, &index);

	if (!pages)
		return 0;

	return bpf_map_lookup_elem(pages, &first);
}

enum life_count { COUNT_ENDED, COUNT_LOST_INHERIT };

struct counting {
	const struct shared *words;
	u64 monitors; /* as in struct emission */
	u64 cpu;
	u64 what;
};

static noinline long count_one(u64 monitor, struct counting *counting)
{
	u64 monitors = counting->monitors;
	bool is_last = monitors <= 1;

	counting->monitors = monitors >> 1;
	if (!(monitors & 1))
		return is_last;

	struct ring_header *ring = life_ring(counting->words, monitor, counting->cpu);

	if (!ring)
		return is_last;
	if (counting->what == COUNT_ENDED)
		__sync_fetch_and_add(&ring->ended, 1);
	else
		__sync_fetch_and_add(&ring->lost_inherit, 1);
	return is_last;
}

static always_inline void count(const struct shared *words, u64 monitors, enum life_count what)
{
	struct counting counting = {
		.words = words,
		.monitors = monitors,
		.cpu = bpf_get_smp_processor_id(),
		.what = what,
	};

	bpf_loop(MONITORS, count_one, &counting, 0);
}

/* The set of monitors that have selected a cgroup of the thread. */
static always_inline u64 cgroup_monitors(struct task_struct *task)
{
	enum { DEEPEST = 32 };
	struct css_set *set = task->cgroups;
	struct cgroup *cgroup = 0;
	u64 monitors = 0;

	bpf_probe_read_kernel(&cgroup, sizeof(cgroup), &set->dfl_cgrp);
#pragma clang loop unroll(disable)
	for (u32 level = 0; level < DEEPEST && cgroup; level++) {
		struct kernfs_node *node = 0;
		u64 id = 0;

		bpf_probe_read_kernel(&node, sizeof(node), &cgroup->kn);
		bpf_probe_read_kernel(&id, sizeof(id), &node->id);

		u64 *selecting = bpf_map_lookup_elem(&cgroups, &id);

		if (selecting)
			monitors |= *selecting;
		/* The parent's state is the first member of the parent. */
		bpf_probe_read_kernel(&cgroup, sizeof(cgroup), &cgroup->self.parent);
	}
	return monitors;
}

static always_inline int fork(u64 *ctx, bool again)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct tracking *tracking = tracking_of(parent);
	struct shared *words = shared_words();

	if (!words)
		return 0;
	if (again && tracking_of(child))
		return 0;

	struct tracking fresh = { .nvcsw = child->nvcsw };

	if (tracking)
		fresh.inherit = READ_ONCE(tracking->inherit);
	if (READ_ONCE(words->by_cgroup))
		fresh.by_cgroup = cgroup_monitors(child);
	fresh.monitors = (fresh.inherit | fresh.by_cgroup) & READ_ONCE(words->live);
	if (!fresh.monitors)
		return 0;

	u64 monitors = fresh.monitors & READ_ONCE(words->active);

	if (!bpf_task_storage_get(&tracked, child, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE)) {
		if (again)
			return 0; /* counted already */
		count(words, monitors, COUNT_LOST_INHERIT);
	}

	struct life_element life = {
		.kind = LIFE_FORK,
		.parent_tid = parent->pid,
		.parent_pid = parent->tgid,
	};

	emit_life_of(words, monitors, child, 0, &life, parent->comm);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	return fork(ctx, 0);
}

/* Rule 13. */
SEC("tp_btf/sched_process_fork")
int on_fork_again(u64 *ctx)
{
	return fork(ctx, 1);
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct tracking *tracking = tracking_of(task);
	struct shared *words = shared_words();

	if (!words || !tracking)
		return 0;

	WRITE_ONCE(tracking->held, 0);

	u32 old_tid = (u32)ctx[1]; /* rule 10 */
	struct life_element life = {
		.kind = LIFE_EXEC,
		.parent_tid = old_tid == (u32)task->pid ? 0 : old_tid,
	};

	emit_life_of(words, active_trackers(words, tracking), task, tracking, &life, task->comm);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct tracking *tracking = tracking_of(task);
	struct shared *words = shared_words();

	if (!words || !tracking)
		return 0;

	u64 monitors = active_trackers(words, tracking);
	struct life_element life = { .kind = LIFE_EXIT, .code = task->exit_code };

	emit_life_of(words, monitors, task, tracking, &life, task->comm);
	count(words, monitors, COUNT_ENDED);
	return 0;
}

SEC("tp_btf/task_rename")
int on_rename(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct tracking *tracking = tracking_of(task);
	struct shared *words = shared_words();

	if (!words || !tracking)
		return 0;

	/* The tracepoint fires before the task has its new name. */
	struct life_element life = { .kind = LIFE_NAME };

	emit_life_of(words, active_trackers(words, tracking), task, tracking, &life, (const char *)ctx[1]);
	return 0;
}

/* Rule 12. The event names the leader only; user space handles the other threads. */
SEC("tp_btf/cgroup_attach_task")
int on_cgroup(void)
{
	struct shared *words = shared_words();

	if (words && READ_ONCE(words->by_cgroup))
		__sync_fetch_and_add(&words->cgroup_moves, 1);
	return 0;
}

static always_inline void emit_tracking(const struct shared *words, u64 bit, struct task_struct *task,
			       struct tracking *tracking, u32 kind)
{
	struct life_element life = { .kind = kind };

	if (kind == LIFE_TRACKED) {
		life.code = words->unique_id;
		life.parent_tid = task->__state & 0xff;
	}
	emit_life_of(words, bit, task, tracking, &life, task->comm);
}

static always_inline void track(struct shared *words, u64 bit, struct task_struct *task,
				bool by_cgroup)
{
	struct tracking fresh = {
		.nvcsw = task->nvcsw,
		.ran_ns = task->se.sum_exec_runtime,
		.held = words->held,
	};
	struct tracking *tracking = bpf_task_storage_get(&tracked, task, &fresh,
							 BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!tracking) {
		words->failed++;
		return;
	}
	if (words->inherit && !(tracking->inherit & bit)) {
		__sync_fetch_and_or(&tracking->inherit, bit);
		words->changed++;
	}
	if (tracking->monitors & bit)
		return;
	words->changed++;
	if (words->announce)
		emit_tracking(words, bit, task, tracking, LIFE_TRACKED); /* rule 11 */
	if (by_cgroup)
		__sync_fetch_and_or(&tracking->by_cgroup, bit);
	__sync_fetch_and_or(&tracking->monitors, bit);
}

static always_inline void untrack(struct shared *words, u64 bit, struct task_struct *task,
				  struct tracking *tracking, bool announce)
{
	if (!(tracking->monitors & bit))
		return;
	words->changed++;
	__sync_fetch_and_and(&tracking->inherit, ~bit);
	__sync_fetch_and_and(&tracking->by_cgroup, ~bit);
	__sync_fetch_and_and(&tracking->monitors, ~bit);
	if (announce)
		emit_tracking(words, bit, task, tracking, LIFE_UNTRACKED);
	/* A fork adds no monitor to an existing storage, and selections are serialised. */
	if (!tracking->monitors)
		bpf_task_storage_delete(&tracked, task);
}

/* The kernel runs it once per visited task, and once more without a task. */
SEC("iter/task")
int select(u64 *ctx)
{
	enum { PF_EXITING = 0x4 };
	struct task_struct *task = (void *)ctx[1];
	struct shared *words = shared_words();

	if (!task || !words)
		return 0;

	u64 bit = 1ull << (words->monitor & (MONITORS - 1));
	struct tracking *tracking = tracking_of(task);
	bool ends = task->flags & PF_EXITING;

	switch (words->operation) {
	case TRACK:
		if (ends)
			return 0;
		track(words, bit, task, 0);
		break;
	case UNTRACK:
		if (tracking)
			untrack(words, bit, task, tracking, 1);
		break;
	case FORGET:
		if (tracking)
			untrack(words, bit, task, tracking, 0);
		break;
	case REGROUP:
		if (cgroup_monitors(task) & bit) {
			if (!ends)
				track(words, bit, task, 1);
		} else if (tracking && (tracking->by_cgroup & bit)) {
			untrack(words, bit, task, tracking, 1);
		}
		break;
	}
	words->seen++;
	return 0;
}
