/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Programs of interrupts and timers: a part of sensors.bpf.c, which has the rules and
 * `interrupted_context`.
 */
#pragma once

/* Hard interrupts */

struct irqaction {
	const char *name;
} CORE;

/* `element` has all but the thread and the stamp. */
static always_inline int irq(struct irq_element *element)
{
	struct task_context at = interrupted_context();

	if (!at.words || !at.monitors)
		return 0;
	element->tid = at.tid;
	element->pid = at.pid;
	emit_irq(at.words, at.monitors, element);
	return 0;
}

static always_inline int device(u32 number, struct irqaction *action, u32 kind)
{
	struct irq_element element = { .number = number, .kind = kind };

	bpf_probe_read_kernel_str(element.name, sizeof(element.name), action->name);
	return irq(&element);
}

SEC("tp_btf/irq_handler_entry")
int on_irq(u64 *ctx)
{
	return device(ctx[0], (void *)ctx[1], KIND_BEGIN);
}

SEC("tp_btf/irq_handler_exit")
int on_irq_end(u64 *ctx)
{
	return device(ctx[0], (void *)ctx[1], KIND_END);
}

/* Interrupts between CPUs and of the local timer have vectors and no handler's name. */
#define VECTOR(function, tracepoint, kind_, name_)                                       \
	SEC("tp_btf/" tracepoint)                                                        \
	int function(u64 *ctx)                                                           \
	{                                                                                \
		struct irq_element element = { .number = ctx[0], .kind = kind_, .name = name_ }; \
		return irq(&element);                                                    \
	}

VECTOR(on_local_timer, "local_timer_entry", KIND_BEGIN, "local_timer")
VECTOR(on_local_timer_end, "local_timer_exit", KIND_END, "local_timer")
VECTOR(on_reschedule, "reschedule_entry", KIND_BEGIN, "reschedule")
VECTOR(on_reschedule_end, "reschedule_exit", KIND_END, "reschedule")
VECTOR(on_function, "call_function_entry", KIND_BEGIN, "call_function")
VECTOR(on_function_end, "call_function_exit", KIND_END, "call_function")
VECTOR(on_single, "call_function_single_entry", KIND_BEGIN, "call_single")
VECTOR(on_single_end, "call_function_single_exit", KIND_END, "call_single")

/*
 * Interrupts between CPUs on arm64: one tracepoint for all, with a text of the kernel as its
 * reason. The numbers are those of the first letters, because this kernel has no vectors.
 */
static always_inline int ipi(const char *reason, u32 kind)
{
	struct irq_element element = { .kind = kind };
	char text[4] = {};

	bpf_probe_read_kernel(text, sizeof(text), reason);
	element.number = (u8)text[0];
	if (text[0] == 'R')
		__builtin_memcpy(element.name, "reschedule", sizeof("reschedule"));
	else if (text[0] == 'F')
		__builtin_memcpy(element.name, "call_function", sizeof("call_function"));
	else
		bpf_probe_read_kernel_str(element.name, sizeof(element.name), reason);
	return irq(&element);
}

SEC("tp_btf/ipi_entry")
int on_ipi(u64 *ctx)
{
	return ipi((void *)ctx[0], KIND_BEGIN);
}

SEC("tp_btf/ipi_exit")
int on_ipi_end(u64 *ctx)
{
	return ipi((void *)ctx[0], KIND_END);
}

/* Soft interrupts */

static always_inline int softirq(u32 number, u32 kind)
{
	struct task_context at = interrupted_context();

	if (!at.words || !at.monitors)
		return 0;

	struct softirq_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.number = number,
		.kind = kind,
	};

	emit_softirq(at.words, at.monitors, &element);
	return 0;
}

SEC("tp_btf/softirq_entry")
int on_softirq(u64 *ctx)
{
	return softirq(ctx[0], KIND_BEGIN);
}

SEC("tp_btf/softirq_exit")
int on_softirq_end(u64 *ctx)
{
	return softirq(ctx[0], KIND_END);
}

SEC("tp_btf/softirq_raise")
int on_softirq_raise(u64 *ctx)
{
	return softirq(ctx[0], KIND_RAISE);
}

/* Timers */

struct timer_list {
	void *function;
} CORE;

struct timerqueue_node {
	long long expires;
} CORE;

struct hrtimer {
	struct timerqueue_node node;
	void *function;
	u8 is_soft;
} CORE;

static always_inline int timer(u64 function, u32 kind, u64 late_ns)
{
	struct task_context at = interrupted_context();

	if (!at.words || !at.monitors)
		return 0;

	struct timer_element element = {
		.tid = at.tid,
		.pid = at.pid,
		.function = function,
		.kind = kind,
		.late_ns = late_ns > UNKNOWN ? UNKNOWN : late_ns,
	};

	emit_timer(at.words, at.monitors, &element);
	return 0;
}

/* Rule 6: effects of the handlers of expired timers on this CPU so far, of a hard interrupt and of
 * a soft one. */
enum { MAX_WOKEN = 4 };
enum level { LEVEL_HARD, LEVEL_SOFT, LEVELS };

struct woken {
	u64 monitors; /* monitors that got the element of its wake-up */
	u32 tid;
	u32 pid;
};

struct expiry {
	u64 entered_ns; /* when the interrupt began, 0 outside or if that was not seen */
	u64 begun_ns; /* 0 while no handler runs */
	u64 function;
	u64 by; /* the current thread, which stays the same while the handler runs */
	u32 late_ns;
	u32 count; /* of those woken */
	struct woken woken[MAX_WOKEN];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct expiry);
	MAP_UINT(max_entries, LEVELS);
} expiries SEC(".maps");

static always_inline struct expiry *expiry_of(u32 level)
{
	return bpf_map_lookup_elem(&expiries, &level);
}

static always_inline u32 at_most(u64 ns)
{
	return ns > UNKNOWN ? UNKNOWN : ns;
}

/* The expiry whose handler runs here: a hard one can interrupt a soft one. */
static always_inline struct expiry *running_expiry(void)
{
	struct expiry *hard = expiry_of(LEVEL_HARD);
	struct expiry *soft = expiry_of(LEVEL_SOFT);
	u64 by = bpf_get_current_pid_tgid();

	if (hard && hard->begun_ns && hard->by == by)
		return hard;
	return soft && soft->begun_ns && soft->by == by ? soft : 0;
}

/* A hard handler has written to the ring: elements of the interrupted soft handler must not be
 * older. */
static always_inline void postpone_soft(void)
{
	struct expiry *soft = expiry_of(LEVEL_SOFT);

	if (soft && soft->begun_ns) {
		u64 now_ns = bpf_ktime_get_ns();

		soft->late_ns = at_most(soft->late_ns + (now_ns - soft->begun_ns));
		soft->begun_ns = now_ns;
	}
}

static always_inline void begin_expiry(u32 level, u64 function, u64 late_ns)
{
	struct expiry *expiry = expiry_of(level);

	if (!expiry)
		return;
	expiry->function = function;
	expiry->by = bpf_get_current_pid_tgid();
	expiry->late_ns = at_most(late_ns);
	expiry->count = 0;
	expiry->begun_ns = bpf_ktime_get_ns();
	if (level == LEVEL_HARD)
		postpone_soft();
}

static always_inline void end_expiry(struct expiry *expiry)
{
	struct shared *words = shared_words();

	if (!expiry || !words || !expiry->begun_ns)
		return;
	expiry->begun_ns = 0;
#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_WOKEN; number++) {
		if (number >= expiry->count)
			break;

		struct timer_element element = {
			.tid = expiry->woken[number].tid,
			.pid = expiry->woken[number].pid,
			.function = expiry->function,
			.kind = TIMER_WOKE,
		};

		emit_timer(words, expiry->woken[number].monitors & recording(words),
			   &element);
	}
}

/* Rule 7: when the interrupt began. Hard interrupts do not nest, nor do soft ones. */
static always_inline int enter(u32 level, u64 now_ns)
{
	struct expiry *expiry = expiry_of(level);

	if (expiry)
		expiry->entered_ns = now_ns;
	return 0;
}

#define INTERRUPT(function, tracepoint, level)             \
	SEC("tp_btf/" tracepoint "_entry")                 \
	int function(u64 *ctx)                             \
	{                                                  \
		(void)ctx;                                 \
		return enter(level, bpf_ktime_get_ns());   \
	}                                                  \
                                                           \
	SEC("tp_btf/" tracepoint "_exit")                  \
	int function##_end(u64 *ctx)                       \
	{                                                  \
		(void)ctx;                                 \
		return enter(level, 0);                    \
	}

INTERRUPT(on_timer_interrupt, "local_timer", LEVEL_HARD)
INTERRUPT(on_timer_irq, "irq_handler", LEVEL_HARD)
INTERRUPT(on_timer_softirq, "softirq", LEVEL_SOFT)

SEC("tp_btf/timer_expire_entry")
int on_timer(u64 *ctx)
{
	struct timer_list *list = (void *)ctx[0];
	u64 function = (u64)list->function;

	timer(function, TIMER_BEGIN, 0);
	begin_expiry(LEVEL_SOFT, function, 0);
	return 0;
}

SEC("tp_btf/timer_expire_exit")
int on_timer_end(u64 *ctx)
{
	(void)ctx;
	end_expiry(expiry_of(LEVEL_SOFT));
	return timer(0, TIMER_END, 0);
}

SEC("tp_btf/hrtimer_expire_entry")
int on_hrtimer(u64 *ctx)
{
	struct hrtimer *hrtimer = (void *)ctx[0];
	u64 function = (u64)hrtimer->function;
	long long now = 0;

	bpf_probe_read_kernel(&now, sizeof(now), (void *)ctx[1]);

	long long late = now - hrtimer->node.expires;
	u64 late_ns = late > 0 ? late : 0;

	timer(function, HRTIMER_BEGIN, late_ns);
	if (hrtimer->is_soft)
		begin_expiry(LEVEL_SOFT, function, late_ns);
	else
		begin_expiry(LEVEL_HARD, function, late_ns);
	return 0;
}

static always_inline void emit_timer_wakeup(struct expiry *expiry, struct task_struct *task)
{
	struct shared *words = shared_words();
	u64 monitors = words ? active_trackers(words, tracking_of(task)) : 0;
	u32 number = expiry->count;

	if (!monitors || number >= MAX_WOKEN)
		return;

	u64 entered_ns = expiry->entered_ns;
	struct timer_element element = {
		.stamp_ns = expiry->begun_ns,
		.tid = task->pid,
		.pid = task->tgid,
		.function = expiry->function,
		.kind = TIMER_ENTERED,
		.late_ns = entered_ns ? at_most(expiry->begun_ns - entered_ns) : 0,
	};

	expiry->woken[number].monitors = monitors;
	expiry->woken[number].tid = element.tid;
	expiry->woken[number].pid = element.pid;
	expiry->count = number + 1;
	emit_timer_as_stamped(words, monitors, &element);
	element.kind = TIMER_WAKES;
	element.late_ns = expiry->late_ns;
	emit_timer_as_stamped(words, monitors, &element);
}

/* A soft handler may find the thread on the CPU, about to sleep, and wake it with interrupts on. No
 * hard handler may write between the reading of the clock and the element. */
SEC("tp_btf/sched_waking")
int on_timer_waking(u64 *ctx)
{
	unsigned long interrupts;

	if (!masks_interrupts() || !running_expiry())
		return 0;
	bpf_local_irq_save(&interrupts);

	struct expiry *expiry = running_expiry();

	if (expiry)
		emit_timer_wakeup(expiry, (void *)ctx[0]);
	bpf_local_irq_restore(&interrupts);
	return 0;
}

/* The timer may be freed already: its handler, not the timer itself, shows which of the two it
 * was. */
SEC("tp_btf/hrtimer_expire_exit")
int on_hrtimer_end(u64 *ctx)
{
	(void)ctx;
	end_expiry(running_expiry());
	timer(0, HRTIMER_END, 0);
	postpone_soft();
	return 0;
}
