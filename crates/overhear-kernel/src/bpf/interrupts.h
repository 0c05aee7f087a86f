/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Programs of interrupts and timers: a part of sensors.bpf.c, which has the rules and `interrupted`.
 */
#pragma once

/* Hard interrupts */

struct irqaction {
	const char *name;
} CORE;

/* `element` has all but the thread and the stamp. */
static always_inline int irq(struct irq_element *element)
{
	struct here at = interrupted();

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

/* Soft interrupts */

static always_inline int softirq(u32 number, u32 kind)
{
	struct here at = interrupted();

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
} CORE;

static always_inline int timer(u64 function, u32 kind, u64 late_ns)
{
	struct here at = interrupted();

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

SEC("tp_btf/timer_expire_entry")
int on_timer(u64 *ctx)
{
	struct timer_list *list = (void *)ctx[0];

	return timer((u64)list->function, TIMER_BEGIN, 0);
}

SEC("tp_btf/timer_expire_exit")
int on_timer_end(u64 *ctx)
{
	(void)ctx;
	return timer(0, TIMER_END, 0);
}

/* Rule 6: what the handler of a timer that has expired on this CPU has done so far. */
enum { MOST_WOKEN = 4 };

struct woken {
	u64 monitors; /* who were told that it is being woken */
	u32 tid;
	u32 pid;
};

struct expiry {
	u64 begun_ns; /* 0 while no handler runs */
	u64 function;
	u32 late_ns;
	u32 count; /* of those woken */
	struct woken woken[MOST_WOKEN];
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct expiry);
	MAP_UINT(max_entries, 1);
} expiries SEC(".maps");

static always_inline struct expiry *expiry_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&expiries, &zero);
}

SEC("tp_btf/hrtimer_expire_entry")
int on_hrtimer(u64 *ctx)
{
	struct hrtimer *hrtimer = (void *)ctx[0];
	struct expiry *expiry = expiry_here();
	long long now = 0;

	bpf_probe_read_kernel(&now, sizeof(now), (void *)ctx[1]);

	long long late = now - hrtimer->node.expires;
	u64 late_ns = late > 0 ? late : 0;

	timer((u64)hrtimer->function, HRTIMER_BEGIN, late_ns);
	if (expiry) {
		expiry->function = (u64)hrtimer->function;
		expiry->late_ns = late_ns > UNKNOWN ? UNKNOWN : late_ns;
		expiry->count = 0;
		expiry->begun_ns = bpf_ktime_get_ns();
	}
	return 0;
}

SEC("tp_btf/sched_waking")
int on_timer_waking(u64 *ctx)
{
	struct expiry *expiry = expiry_here();

	if (!expiry || !expiry->begun_ns || !masks_interrupts())
		return 0;

	struct task_struct *task = (void *)ctx[0];
	struct shared *words = shared_words();
	u64 monitors = words ? heard_by(words, tracking_of(task)) : 0;
	u32 number = expiry->count;

	if (!monitors || number >= MOST_WOKEN)
		return 0;

	struct timer_element element = {
		.stamp_ns = expiry->begun_ns,
		.tid = task->pid,
		.pid = task->tgid,
		.function = expiry->function,
		.kind = HRTIMER_WAKES,
		.late_ns = expiry->late_ns,
	};

	expiry->woken[number].monitors = monitors;
	expiry->woken[number].tid = element.tid;
	expiry->woken[number].pid = element.pid;
	expiry->count = number + 1;
	emit_timer_as_stamped(words, monitors, &element);
	return 0;
}

SEC("tp_btf/hrtimer_expire_exit")
int on_hrtimer_end(u64 *ctx)
{
	struct expiry *expiry = expiry_here();
	struct shared *words = shared_words();

	(void)ctx;
	if (expiry && words && expiry->begun_ns) {
		expiry->begun_ns = 0;
#pragma clang loop unroll(full)
		for (u32 number = 0; number < MOST_WOKEN; number++) {
			if (number >= expiry->count)
				break;

			struct timer_element element = {
				.tid = expiry->woken[number].tid,
				.pid = expiry->woken[number].pid,
				.function = expiry->function,
				.kind = HRTIMER_WOKE,
			};

			emit_timer(words,
				   expiry->woken[number].monitors & READ_ONCE(words->active),
				   &element);
		}
	}
	return timer(0, HRTIMER_END, 0);
}
