// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The kernel sensors: context switches, wake-ups and lives of the tracked threads.
 *
 * 1. Who is tracked. A thread is tracked if it has task local storage in the map `tracked`. User
 *    space creates it for the first threads, through a pidfd, so that a reused thread id cannot
 *    be meant by mistake. From then on tracking is inherited: sched_process_fork runs in the
 *    parent before the child may run, so nothing of the child's life is missed. The kernel frees
 *    the storage with the thread; the last departure from the CPU still finds it.
 *
 * 2. What flows. Only tracked threads produce elements. A context switch is one element, even if
 *    both threads are tracked. Every hook has a ring per CPU: a value of an array map, a header
 *    page and then a power of two of elements. User space maps the rings read-only and never
 *    calls the kernel to read; the maps are frozen, so that nobody else can write.
 *
 * 3. One writer at a time. A program writes only into the ring of the CPU it runs on, so the
 *    only rival is what interrupts it there. sched_switch runs with interrupts off: it has none.
 *    Wake-ups of the current thread, forks and exits run with interrupts on; they mask them for
 *    the length of one element (bpf_local_irq_save). Where the kernel lacks that function they
 *    claim the ring with an atomic exchange of the header's busy word; who loses does not wait
 *    (it may be the interrupt of the holder) but counts itself in lost_nested. Hooks never share
 *    a ring, because one may interrupt the other.
 *
 * 4. Publication. The slot is counter & mask. The program fills it, then stores counter + 1. A
 *    reader that sees the new counter must see the element, and a reader that sees a part of the
 *    next element must see the new counter. x86 keeps the order of stores, so the compiler's
 *    barrier is enough. Elsewhere atomic_fetch_add does both, because it is a full barrier; its
 *    result must be used, or the compiler picks the form without one.
 *
 * 5. Reading. Slots are overwritten without asking. The reader copies, then looks at the counter
 *    again: the element at a position is intact if and only if 1 <= counter - position <
 *    capacity. At equality the writer may already be in the slot.
 *
 * 6. Time. The stamp is taken before the element is filled, inside the exclusive section, stamps
 *    of one ring ascend with the positions. It is CLOCK_MONOTONIC.
 *
 * 7. Voluntary or not. The kernel decides it before the tracepoint, by raising either nvcsw or
 *    nivcsw of the leaving thread; the arguments of the tracepoint do not tell when a pending
 *    signal kept the thread from sleeping. So the storage remembers nvcsw from the thread's last
 *    arrival or departure and a difference means voluntary. Hence our counts are the kernel's.
 *
 * 8. CPU time. The kernel adds to a running thread's account (sum_exec_runtime) only at ticks and
 *    switches, so at its exit a short-lived thread has run for 0 ns. The time since its last
 *    arrival, which the storage remembers, is added to the account of that moment.
 *
 *    At a switch the account of the leaving thread is up to date, and the difference to the one
 *    at its last departure goes into the element: readers need it where the arrival was not seen
 *    (the tracepoint stays silent when certain threads of a virtual machine's own agent leave).
 *
 * 9. The end. `ended` counts EXITs in the life ring and last departures in the switch ring.
 *    While their sums differ some thread has announced its exit but is still on a CPU; user
 *    space waits for it before it detaches.
 *
 * 10. A taken id. A thread that executes a program and is not the leader takes over the leader's
 *    id; the leader has exited before. No tracepoint tells the end of the thread's own id, so
 *    the EXEC element carries it.
 *
 * Thread ids are those of the initial PID namespace. The stores are plain words of their natural
 * size: the verifier wants them so, and so no reader ever sees half a word.
 */
#include "core.h"
#include "elements.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Written by user space before the programs are loaded; constants to the verifier. */
struct settings {
	u32 switch_mask; /* elements per ring less one */
	u32 wake_mask;
	u32 life_mask;
	u32 mask_interrupts; /* 0 forces the busy word, for tests */
};
const volatile struct settings settings = {};

/* User space sets the number of CPUs and the size of a ring. */
#define RINGS(name)                                   \
	struct {                                      \
		MAP_UINT(type, BPF_MAP_TYPE_ARRAY);   \
		MAP_UINT(map_flags, BPF_F_MMAPABLE);  \
		MAP_UINT(key_size, sizeof(u32));      \
		MAP_UINT(value_size, 2 * HEADER_BYTES); \
		MAP_UINT(max_entries, 1);             \
	} name SEC(".maps")

RINGS(rings_switch);
RINGS(rings_wake);
RINGS(rings_life);

struct tracking {
	u64 nvcsw;	/* of the thread, at its last arrival or departure */
	u64 arrived_ns; /* when it entered its CPU; 0 if it is on none or that was not seen */
	u64 ran_ns;	/* its CPU time then or at its last departure, by the kernel's account */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct tracking);
} tracked SEC(".maps");

static always_inline struct tracking *tracking_of(struct task_struct *task)
{
	return bpf_task_storage_get(&tracked, task, 0, 0);
}

static always_inline struct ring_header *ring_here(void *rings)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(rings, &cpu);
}

/* The slot of the next element. The mask is a constant, which bounds the offset. */
static always_inline void *next_slot(struct ring_header *ring, u32 mask, u32 stride_bytes)
{
	u32 index = (u32)READ_ONCE(ring->counter) & mask;

	return (u8 *)ring + HEADER_BYTES + index * stride_bytes;
}

static always_inline void publish(struct ring_header *ring)
{
#ifdef OVERHEAR_TOTAL_STORE_ORDER
	barrier();
	WRITE_ONCE(ring->counter, READ_ONCE(ring->counter) + 1);
	barrier();
#else
	u64 before = __sync_fetch_and_add(&ring->counter, 1);

	__asm__ volatile("" ::"r"(before) : "memory");
#endif
}

/* Rule 3, where interrupts cannot be masked. */
static always_inline bool claim(struct ring_header *ring)
{
	if (__sync_lock_test_and_set(&ring->busy, 1) == 0)
		return 1;
	__sync_fetch_and_add(&ring->lost_nested, 1);
	return 0;
}

static always_inline void release(struct ring_header *ring)
{
	barrier();
	WRITE_ONCE(ring->busy, 0);
}

static always_inline bool masks_interrupts(void)
{
	return settings.mask_interrupts && bpf_local_irq_save && bpf_local_irq_restore;
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct tracking *leaving = tracking_of(prev);
	struct tracking *entering = tracking_of(next);
	u32 prev_state = (u32)ctx[3];
	u64 now_ns = bpf_ktime_get_ns();
	u64 run_ns = SWITCH_RUN_UNKNOWN;
	u32 flags = 0;

	/* The two pointers are tested apart: a test of both at once becomes an OR of pointers,
	 * which the verifier refuses. */
	if (leaving) {
		u64 nvcsw = prev->nvcsw;

		flags = SWITCH_PREV_TRACKED;
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
		flags |= SWITCH_NEXT_TRACKED;
		entering->nvcsw = next->nvcsw;
		entering->arrived_ns = now_ns;
		entering->ran_ns = next->se.sum_exec_runtime;
	}
	if (!flags)
		return 0;
	if ((u8)ctx[0])
		flags |= SWITCH_PREEMPTED;

	struct ring_header *ring = ring_here(&rings_switch);

	if (!ring)
		return 0;

	struct switch_element *element = next_slot(ring, settings.switch_mask, sizeof(*element));

	element->stamp_ns = now_ns;
	element->prev_tid = prev->pid;
	element->next_tid = next->pid;
	element->prev_pid = prev->tgid;
	element->next_pid = next->tgid;
	element->prev_state = prev_state;
	element->flags = flags;
	element->prev_run_ns = run_ns;
	publish(ring);

	enum { TASK_DEAD = 0x80 };
	if (leaving && (prev_state & TASK_DEAD))
		WRITE_ONCE(ring->ended, READ_ONCE(ring->ended) + 1);
	return 0;
}

static always_inline void write_wake(struct ring_header *ring, struct task_struct *task, u32 kind)
{
	struct wake_element *element = next_slot(ring, settings.wake_mask, sizeof(*element));
	u64 waker = bpf_get_current_pid_tgid();

	element->stamp_ns = bpf_ktime_get_ns();
	element->tid = task->pid;
	element->pid = task->tgid;
	element->waker_tid = (u32)waker;
	element->waker_pid = waker >> 32;
	element->target_cpu = task->thread_info.cpu;
	element->kind = kind;
	publish(ring);
}

static always_inline int wake(struct task_struct *task, u32 kind)
{
	if (!tracking_of(task))
		return 0;

	struct ring_header *ring = ring_here(&rings_wake);

	if (!ring)
		return 0;
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		write_wake(ring, task, kind);
		bpf_local_irq_restore(&interrupts);
	} else if (claim(ring)) {
		write_wake(ring, task, kind);
		release(ring);
	}
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

struct life {
	u32 kind;
	u32 code;
	u32 parent_tid;
	u32 parent_pid;
	const char *comm;
};

/* Rule 8. The account can be ahead of the estimate, because a tick may have raised it. */
static always_inline u64 cpu_time_ns(struct task_struct *task, u64 now_ns)
{
	struct tracking *tracking = tracking_of(task);
	u64 account_ns = task->se.sum_exec_runtime;
	u64 estimate_ns = 0;

	if (tracking && tracking->arrived_ns)
		estimate_ns = tracking->ran_ns + (now_ns - tracking->arrived_ns);
	return estimate_ns > account_ns ? estimate_ns : account_ns;
}

static always_inline void write_life(struct ring_header *ring, struct task_struct *task,
				     const struct life *life)
{
	struct life_element *element = next_slot(ring, settings.life_mask, sizeof(*element));
	u64 now_ns = bpf_ktime_get_ns();

	element->stamp_ns = now_ns;
	element->tid = task->pid;
	element->pid = task->tgid;
	element->parent_tid = life->parent_tid;
	element->parent_pid = life->parent_pid;
	element->kind = life->kind;
	element->code = life->code;
	element->cpu_ns = cpu_time_ns(task, now_ns);
	element->reserved = 0;
	/* The copy stops at the name's end; what the slot held before must not show behind it. */
	__builtin_memset(element->comm, 0, sizeof(element->comm));
	bpf_probe_read_kernel_str(element->comm, sizeof(element->comm), life->comm);
	publish(ring);
	if (life->kind == LIFE_EXIT)
		WRITE_ONCE(ring->ended, READ_ONCE(ring->ended) + 1);
}

static always_inline int live(struct task_struct *task, const struct life *life)
{
	struct ring_header *ring = ring_here(&rings_life);

	if (!ring)
		return 0;
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		write_life(ring, task, life);
		bpf_local_irq_restore(&interrupts);
	} else if (claim(ring)) {
		write_life(ring, task, life);
		release(ring);
	}
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];

	if (!tracking_of(parent))
		return 0;

	struct tracking fresh = { .nvcsw = child->nvcsw };

	if (!bpf_task_storage_get(&tracked, child, &fresh, BPF_LOCAL_STORAGE_GET_F_CREATE)) {
		struct ring_header *ring = ring_here(&rings_life);

		if (ring)
			__sync_fetch_and_add(&ring->lost_inherit, 1);
	}

	struct life life = {
		.kind = LIFE_FORK,
		.parent_tid = parent->pid,
		.parent_pid = parent->tgid,
		.comm = parent->comm,
	};

	return live(child, &life);
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];

	if (!tracking_of(task))
		return 0;

	u32 old_tid = (u32)ctx[1]; /* rule 10 */
	struct life life = {
		.kind = LIFE_EXEC,
		.parent_tid = old_tid == (u32)task->pid ? 0 : old_tid,
		.comm = task->comm,
	};

	return live(task, &life);
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];

	if (!tracking_of(task))
		return 0;

	struct life life = { .kind = LIFE_EXIT, .code = task->exit_code, .comm = task->comm };

	return live(task, &life);
}

SEC("tp_btf/task_rename")
int on_rename(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];

	if (!tracking_of(task))
		return 0;

	/* The tracepoint fires before the task has its new name. */
	struct life life = { .kind = LIFE_NAME, .comm = (const char *)ctx[1] };

	return live(task, &life);
}
