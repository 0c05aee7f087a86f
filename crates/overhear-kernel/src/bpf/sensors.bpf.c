// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The kernel sensors other than scheduling. Each is loaded and attached only while a monitor
 * records it.
 *
 * 1. Attribution. An event that a thread causes or suffers goes to the monitors that track the
 *    thread; for a held thread only after its execve (monitors.h, rule 5). Interrupts and timers go
 *    to the monitors of the thread that they interrupt, and to monitors that track everything
 *    (`everything`), because no monitor tracks the idle thread. Idle states and frequencies belong
 *    to the CPU: all monitors with the sensor get them.
 *
 * 2. One ring per hook and CPU, as for scheduling. Programs of one hook (begin and end) share a
 *    ring, which keeps their order. emit_* masks interrupts, or claims the ring if it cannot
 *    (sched.bpf.c, rule 3). The kernel does not enter a program that is already running on the CPU;
 *    user space reports the number of these cases.
 *
 * 3. Begin and end. The number and first arguments of a system call are kept in the storage of the
 *    thread, because the registers at the exit do not have them on all machines. A call whose entry
 *    was not seen ends with number UNKNOWN. A block request is kept in a hash map, because it ends
 *    in an interrupt of another thread. If the map is full, lost_inherit of the ring is
 *    incremented, and user space reports a loss of cause `kernel`.
 *
 * 4. Pipes have no tracepoint. Transfers are seen at the return of the system calls that read and
 *    write: the descriptor leads to the inode, which both ends share. Sockets have tracepoints with
 *    the length of a transfer. The channel is the inode of the socket; the peer is the inode of the
 *    socket at the other end, known for Unix sockets only.
 *
 * 5. Lock holders. A tracepoint reports the waiting thread. The holder is read from the lock, if
 *    locks of its kind name theirs. The holder may have released it meanwhile: the result is a
 *    hint, and a task that is gone reads as none. The end of a wait names the same holder as its
 *    begin. Locks with priority inheritance, also of futexes, are reported when they change a
 *    priority. The holder of another futex is known to the program only; the thread that wakes its
 *    waiters releases it, and the wait times are computed from the begin of their calls.
 *
 * 6. Timer wake-ups. When a timer expires, it is not known yet which thread its handler wakes; on
 *    an idle CPU no monitor would record the timer. So the CPU stores the begin of the handler.
 *    When the handler wakes a thread, the element is written for the monitors of that thread, with
 *    the time of the begin. The stamps of the ring still ascend: only a hard handler that
 *    interrupts a soft one could write in between. The CPU stores both, and the begin of the soft
 *    one moves to the end of the hard one, with its delay increased by that time. A device
 *    interrupt that wakes a thread during a soft handler is attributed to the handler.
 *
 * 7. Time before the handler. Stamps ascend, so an element cannot report afterwards that an
 *    interrupt began before other elements. The CPU stores the entry time of the current hard and
 *    soft interrupt; a separate element has the time from there to the handler, or 0 if the entry
 *    has no tracepoint.
 *
 * 8. Scheduler time. The scheduler is entered in one thread and left in another one. The CPU stores
 *    the times of entry and switch. The whole time counts for a thread that displaces another one
 *    or ends the idling of a CPU; the time from the switch on counts for a thread that enters
 *    because another one left.
 */
#include "calls.h"
#include "monitors.h"
#include "sensors.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { UNKNOWN = 0xffffffff };

EMITTER(fault, struct fault_element, SLOT_FAULT)
EMITTER(block, struct block_element, SLOT_BLOCK)
EMITTER(call, struct call_element, SLOT_CALL)
EMITTER(futex, struct futex_element, SLOT_FUTEX)
EMITTER(signal, struct signal_element, SLOT_SIGNAL)
EMITTER(irq, struct irq_element, SLOT_IRQ)
EMITTER(softirq, struct softirq_element, SLOT_SOFTIRQ)
EMITTER(timer, struct timer_element, SLOT_TIMER)
STAMPED_EMITTER(timer, struct timer_element, SLOT_TIMER)
EMITTER(migrate, struct migrate_element, SLOT_MIGRATE)
EMITTER(idle, struct idle_element, SLOT_IDLE)
EMITTER(frequency, struct frequency_element, SLOT_FREQUENCY)
EMITTER(ipc, struct ipc_element, SLOT_IPC)
EMITTER(flutter, struct flutter_element, SLOT_FLUTTER)
EMITTER(schedule, struct schedule_element, SLOT_SCHEDULE)
EMITTER(lock, struct lock_element, SLOT_LOCK)

/* The current thread and its monitors. */
struct task_context {
	struct shared *words;
	struct tracking *tracking;
	u64 monitors;
	u32 tid;
	u32 pid;
};

static always_inline struct task_context current_context(void)
{
	u64 ids = bpf_get_current_pid_tgid();
	struct task_context context = {
		.words = shared_words(),
		.tracking = program_tracking(bpf_get_current_task_btf()),
		.tid = (u32)ids,
		.pid = ids >> 32,
	};

	if (context.words)
		context.monitors = active_trackers(context.words, context.tracking);
	return context;
}

/* Rule 1: the current thread, with the monitors of what interrupts it. */
static always_inline struct task_context interrupted_context(void)
{
	struct task_context context = current_context();

	if (context.words)
		context.monitors |= READ_ONCE(context.words->everything) & recording(context.words);
	return context;
}

/* Page faults */

static always_inline int fault(u64 address, u64 code, u32 kind)
{
	struct task_context at = current_context();

	if (!at.words || !at.monitors)
		return 0;

	struct fault_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.address = address,
		.code = code,
		.kind = kind,
	};

	emit_fault(at.words, at.monitors, &element);
	return 0;
}

/* What a program on software events receives: struct bpf_perf_event_data. */
#if defined(OVERHEAR_ARCH_X86_64)
struct fault_event {
	u64 registers[21];
	u64 sample_period;
	u64 address;
};

static always_inline bool is_from_user(struct fault_event *event)
{
	enum { CS = 17, PRIVILEGE = 3 };

	return event->registers[CS] & PRIVILEGE;
}
#elif defined(OVERHEAR_ARCH_AARCH64)
struct fault_event {
	u64 registers[34];
	u64 sample_period;
	u64 address;
};

static always_inline bool is_from_user(struct fault_event *event)
{
	enum { PSTATE = 33, EXCEPTION_LEVEL = 12 };

	return !(event->registers[PSTATE] & EXCEPTION_LEVEL);
}
#else
struct fault_event {
	u64 address;
};

static always_inline bool is_from_user(struct fault_event *event)
{
	(void)event;
	return true;
}
#endif

SEC("tp_btf/page_fault_user")
int on_fault_user(u64 *ctx)
{
	return fault(ctx[0], ctx[2], FAULT_USER);
}

SEC("tp_btf/page_fault_kernel")
int on_fault_kernel(u64 *ctx)
{
	return fault(ctx[0], ctx[2], FAULT_KERNEL);
}

/*
 * The software event at the begin of a fault, on kernels without tracepoints of faults. It does not
 * tell the reason of the fault.
 */
SEC("perf_event")
int on_fault(struct fault_event *event)
{
	return fault(event->address, 0, is_from_user(event) ? FAULT_USER : FAULT_KERNEL);
}

/* The memory management counts a fault when it has been served, as a software event. */
SEC("perf_event")
int on_fault_served(void *ctx)
{
	(void)ctx;
	return fault(0, 0, FAULT_SERVED);
}

/* Block I/O */

struct gendisk {
	int major;
	int first_minor;
} CORE;

struct request_queue {
	struct gendisk *disk;
} CORE;

struct request {
	struct request_queue *q;
	u32 cmd_flags;
	u32 __data_len;
	u64 __sector;
} CORE;

struct issued {
	u64 monitors;
	u64 at_ns;
	u32 tid;
	u32 pid;
	u32 request;
	u32 is_issued;
};

enum { MAX_REQUESTS = 8192 };

struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, struct issued);
	MAP_UINT(max_entries, MAX_REQUESTS);
} requests SEC(".maps");

static always_inline void emit_block_event(const struct issued *issued, struct shared *words,
				     struct request *request, u32 kind, u64 latency_ns, u32 bytes,
				     int error)
{
	struct gendisk *disk = request->q->disk;
	struct block_element element = {
		.tid = issued->tid,
		.pid = issued->pid,
		.kind = kind,
		.operation = request->cmd_flags & 0xff,
		.sector = request->__sector,
		.bytes = bytes,
		.latency_ns = latency_ns,
		.error = error,
		.request = issued->request,
	};
	int major = 0, minor = 0;

	bpf_probe_read_kernel(&major, sizeof(major), &disk->major);
	bpf_probe_read_kernel(&minor, sizeof(minor), &disk->first_minor);
	element.device = (u32)major << 20 | (u32)minor;
	emit_block(words, issued->monitors & recording(words), &element);
}

struct lost_request {
	struct shared *words;
	u64 monitors; /* as in struct emission */
	u64 cpu;
};

static noinline long count_lost_request(u64 monitor, struct lost_request *lost)
{
	u64 monitors = lost->monitors;

	if (!monitors)
		return 1;
	lost->monitors = monitors >> 1;
	if (!(monitors & 1))
		return 0;

	u32 index = (monitor & (MONITORS - 1)) * SLOTS + SLOT_BLOCK;
	u32 first = lost->cpu * (u32)(READ_ONCE(lost->words->shapes[index]) >> 32);
	void *pages = bpf_map_lookup_elem(&rings, &index);
	struct ring_header *ring = pages ? bpf_map_lookup_elem(pages, &first) : 0;

	if (ring)
		__sync_fetch_and_add(&ring->lost_inherit, 1);
	return 0;
}

static always_inline struct issued *open_request(struct task_context *at, u64 key)
{
	struct issued fresh = {
		.monitors = at->monitors,
		.tid = at->tid,
		.pid = at->pid,
		.request = __sync_fetch_and_add(&at->words->requests, 1),
	};

	if (bpf_map_update_elem(&requests, &key, &fresh, 0)) {
		struct lost_request lost = {
			.words = at->words,
			.monitors = at->monitors,
			.cpu = bpf_get_smp_processor_id(),
		};

		bpf_loop(MONITORS, count_lost_request, &lost, 0);
		return 0;
	}
	return bpf_map_lookup_elem(&requests, &key);
}

/* The thread that requests the I/O; another thread may issue it. */
SEC("tp_btf/block_io_start")
int on_block_start(u64 *ctx)
{
	struct task_context at = current_context();

	if (at.words && at.monitors)
		open_request(&at, ctx[0]);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int on_block_issue(u64 *ctx)
{
	struct task_context at = current_context();
	struct request *request = (void *)ctx[0];
	u64 key = ctx[0];
	struct issued *issued = bpf_map_lookup_elem(&requests, &key);

	if (!at.words)
		return 0;
	if (!issued) {
		if (!at.monitors)
			return 0;
		issued = open_request(&at, key);
		if (!issued)
			return 0;
	}
	issued->at_ns = bpf_ktime_get_ns();
	issued->is_issued = 1;
	emit_block_event(issued, at.words, request, KIND_BEGIN, 0, request->__data_len, 0);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int on_block_complete(u64 *ctx)
{
	struct shared *words = shared_words();
	struct request *request = (void *)ctx[0];
	u64 key = ctx[0];
	u32 bytes = ctx[2];
	struct issued *issued = bpf_map_lookup_elem(&requests, &key);

	if (!words || !issued)
		return 0;
	/* The completion of a part is not the end. */
	if (bytes < request->__data_len)
		return 0;
	if (issued->is_issued)
		emit_block_event(issued, words, request, KIND_END, bpf_ktime_get_ns() - issued->at_ns,
			   bytes, (int)(ctx[1] & 0xff));
	bpf_map_delete_elem(&requests, &key);
	return 0;
}

/* System calls */

static always_inline void enter_call(const struct shared *words, struct tracking *tracking,
				     struct pt_regs *regs, u64 number)
{
	tracking->call = number + 1;
	tracking->call_attachments = READ_ONCE(words->call_attachments);
	tracking->call_first = first_argument(regs);
	tracking->call_second = second_argument(regs);
}

SEC("tp_btf/sys_enter")
int on_call(u64 *ctx)
{
	struct task_context at = current_context();

	if (!at.words || !at.tracking)
		return 0;
	enter_call(at.words, at.tracking, (void *)ctx[0], ctx[1]);

	struct call_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.number = ctx[1],
		.kind = KIND_BEGIN,
		.value = at.tracking->call_first,
	};

	emit_call(at.words, at.monitors, &element);
	return 0;
}

SEC("tp_btf/sys_exit")
int on_return(u64 *ctx)
{
	struct task_context at = current_context();

	if (!at.words || !at.tracking)
		return 0;

	/* Rule 3; a call that was entered while the programs were detached has an older number. */
	bool is_known = at.tracking->call &&
			at.tracking->call_attachments == READ_ONCE(at.words->call_attachments);
	struct call_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.number = is_known ? at.tracking->call - 1 : UNKNOWN,
		.kind = KIND_END,
		.value = ctx[1],
	};

	emit_call(at.words, at.monitors, &element);
	return 0;
}

/* Futex waits */

/* Calls that wake waiters, including those that move other waiters to another futex. */
static always_inline bool is_futex_wake(u64 operation)
{
	enum { FUTEX_WAKE = 1, REQUEUE = 3, CMP_REQUEUE = 4, WAKE_OP = 5, WAKE_BITSET = 10 };
	u32 command = operation & 0x7f;

	return command == FUTEX_WAKE || command == REQUEUE || command == CMP_REQUEUE ||
	       command == WAKE_OP || command == WAKE_BITSET;
}

SEC("tp_btf/sys_enter")
int on_futex(u64 *ctx)
{
	struct task_context at = current_context();

	if (!at.words || !at.tracking)
		return 0;
	enter_call(at.words, at.tracking, (void *)ctx[0], ctx[1]);
	if (ctx[1] != settings.call_futex)
		return 0;
	at.tracking->call_ns = bpf_ktime_get_ns();
	at.tracking->wakes = is_futex_wake(at.tracking->call_second);
	if (!is_futex_wait(at.tracking->call_second))
		return 0;

	struct futex_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.kind = KIND_BEGIN,
		.operation = at.tracking->call_second & 0x7f,
		.address = at.tracking->call_first,
	};

	emit_futex(at.words, at.monitors, &element);
	return 0;
}

SEC("tp_btf/sys_exit")
int on_futex_return(u64 *ctx)
{
	struct task_context at = current_context();

	if (!at.words || !at.tracking)
		return 0;
	at.tracking->wakes = 0;
	if (at.tracking->call != settings.call_futex + 1ull || !is_futex_wait(at.tracking->call_second))
		return 0;

	struct futex_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.kind = KIND_END,
		.operation = at.tracking->call_second & 0x7f,
		.address = at.tracking->call_first,
		.waited_ns = bpf_ktime_get_ns() - at.tracking->call_ns,
		.result = ctx[1],
	};

	emit_futex(at.words, at.monitors, &element);
	return 0;
}

/* Rule 5: a thread in a waking call wakes a thread in a waiting call. */
SEC("tp_btf/sched_waking")
int on_futex_waking(u64 *ctx)
{
	struct task_context at = current_context();

	if (!at.words || !at.tracking || !READ_ONCE(at.tracking->wakes))
		return 0;

	struct task_struct *task = (void *)ctx[0];
	struct tracking *waiter = tracking_of(task);

	if (!waiter || waiter->call != settings.call_futex + 1ull || !is_futex_wait(waiter->call_second))
		return 0;

	struct task_struct *current = bpf_get_current_task_btf();
	struct futex_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.kind = FUTEX_WAKES,
		.operation = waiter->call_second & 0x7f,
		.address = waiter->call_first,
		.waited_ns = bpf_ktime_get_ns() - waiter->call_ns,
		.other_tid = task->pid,
		/* The kernel's priorities: less is more urgent. */
		.inverted = task->prio < current->prio,
	};

	emit_futex(at.words, at.monitors | active_trackers(at.words, waiter), &element);
	return 0;
}

/* Signals */

SEC("tp_btf/signal_generate")
int on_signal(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[2];
	struct task_context at = current_context();

	if (!at.words)
		return 0;

	struct signal_element element = {
		.tid = task->pid,
		.pid = task->tgid,
		.sender_tid = at.tid,
		.sender_pid = at.pid,
		.number = ctx[0],
		.kind = SIGNAL_GENERATE,
	};

	emit_signal(at.words, at.monitors | active_trackers(at.words, tracking_of(task)), &element);
	return 0;
}

SEC("tp_btf/signal_deliver")
int on_signal_deliver(u64 *ctx)
{
	struct task_context at = current_context();

	if (!at.words || !at.monitors)
		return 0;

	struct signal_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.number = ctx[0],
		.kind = SIGNAL_DELIVER,
	};

	emit_signal(at.words, at.monitors, &element);
	return 0;
}

#include "interrupts.h"

/* Migrations */

SEC("tp_btf/sched_migrate_task")
int on_migrate(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct tracking *tracking = tracking_of(task);
	struct shared *words = shared_words();

	if (!words || !tracking)
		return 0;

	u64 ids = bpf_get_current_pid_tgid();
	struct migrate_element element = {
		.tid = task->pid,
		.pid = task->tgid,
		.from_cpu = task->thread_info.cpu,
		.to_cpu = ctx[1],
		.by_tid = (u32)ids,
		.by_pid = ids >> 32,
	};

	emit_migrate(words, active_trackers(words, tracking), &element);
	return 0;
}

/* Switches of a thread to itself: the scheduler returns to the thread that called it. sched_switch
 * does not fire then. The program costs every call of the scheduler, so it is not part of
 * scheduling. */

SEC("tp_btf/sched_exit_tp")
int on_schedule_end(u64 *ctx)
{
	bool switched = ctx[0];

	if (switched)
		return 0;

	struct task_struct *task = bpf_get_current_task_btf();
	struct tracking *tracking = tracking_of(task);
	struct shared *words = shared_words();

	if (!words || !tracking)
		return 0;

	struct flutter_element element = { .tid = task->pid, .pid = task->tgid };

	emit_flutter(words, active_trackers(words, tracking), &element);
	return 0;
}

/* CPUs */

SEC("tp_btf/cpu_idle")
int on_idle(u64 *ctx)
{
	struct shared *words = shared_words();
	struct idle_element element = { .cpu = ctx[1], .state = ctx[0] };

	if (words)
		emit_idle(words, recording(words), &element);
	return 0;
}

SEC("tp_btf/cpu_frequency")
int on_frequency(u64 *ctx)
{
	struct shared *words = shared_words();
	struct frequency_element element = { .cpu = ctx[1], .khz = ctx[0] };

	if (words)
		emit_frequency(words, recording(words), &element);
	return 0;
}

/* The scheduler at work, in the thread that called it or was made to (rule 8) */

struct scheduler {
	u64 since_ns; /* since when it works for the thread that it chooses; 0 outside, or if that was not seen */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct scheduler);
	MAP_UINT(max_entries, 1);
} schedulers SEC(".maps");

static always_inline struct scheduler *scheduler_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&schedulers, &zero);
}

static always_inline int scheduler(u32 kind, bool flag, u64 took_ns)
{
	struct task_context at = current_context();

	if (!at.words || !at.monitors)
		return 0;

	struct schedule_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.kind = kind,
		.flag = flag,
		.took_ns = took_ns,
	};

	emit_schedule(at.words, at.monitors, &element);
	return 0;
}

SEC("tp_btf/sched_entry_tp")
int on_scheduler(u64 *ctx)
{
	struct scheduler *scheduler_ = scheduler_here();

	if (scheduler_)
		scheduler_->since_ns = bpf_ktime_get_ns();
	return scheduler(KIND_BEGIN, ctx[0] & 1, 0);
}

SEC("tp_btf/sched_switch")
int on_scheduler_switch(u64 *ctx)
{
	struct scheduler *scheduler_ = scheduler_here();
	/* The idle thread never sleeps: it has the state of one that is displaced. */
	bool is_displaced = (ctx[0] & 1) || !(u32)ctx[3];

	if (scheduler_ && !is_displaced)
		scheduler_->since_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_exit_tp")
int on_scheduler_end(u64 *ctx)
{
	struct scheduler *scheduler_ = scheduler_here();
	u64 since_ns = scheduler_ ? scheduler_->since_ns : 0;
	u64 took_ns = since_ns ? bpf_ktime_get_ns() - since_ns : 0;

	if (scheduler_)
		scheduler_->since_ns = 0;
	return scheduler(KIND_END, ctx[0] & 1, took_ns);
}

#include "locks.h"

#include "messages.h"
