/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Programs of waits for locks: a part of sensors.bpf.c, which has the rules.
 */
#pragma once

/* Locks (rule 5) */

struct owner_word {
	long long counter;
} CORE;

struct mutex {
	struct owner_word owner;
} CORE;

struct rw_semaphore {
	struct owner_word owner;
} CORE;

struct rt_mutex_base {
	struct task_struct *owner;
} CORE;

#define EXISTS(type, member) __builtin_preserve_field_info(((type *)0)->member, 2)

enum lock_flags { SPIN = 1, READ = 2, WRITE = 4, RT = 8, PER_CPU = 16, MUTEX = 32 };

/* Whether a thread that waits for the lock may sleep. It waits for one such lock at a time. */
static always_inline bool sleeps(u32 flags)
{
	return flags & (RT | MUTEX) || (flags & (READ | WRITE) && !(flags & SPIN));
}

/* The low bits of the word that names the owner are flags. */
static always_inline u64 owner_of(u64 lock, u32 flags)
{
	u64 owner = 0;

	if (flags & MUTEX) {
		if (EXISTS(struct mutex, owner))
			bpf_probe_read_kernel(&owner, sizeof(owner), &((struct mutex *)lock)->owner);
	} else if (flags & RT) {
		if (EXISTS(struct rt_mutex_base, owner))
			bpf_probe_read_kernel(&owner, sizeof(owner),
					      &((struct rt_mutex_base *)lock)->owner);
	} else if (flags & (READ | WRITE) && !(flags & (SPIN | PER_CPU))) {
		if (EXISTS(struct rw_semaphore, owner))
			bpf_probe_read_kernel(&owner, sizeof(owner),
					      &((struct rw_semaphore *)lock)->owner);
		/* Readers are many; the word names one that has been among them. */
		if (owner & 1)
			return 0;
	}
	return owner & ~7ull;
}

static always_inline u64 holder_of(u64 lock, u32 flags)
{
	struct task_struct *owner = (void *)owner_of(lock, flags);
	struct task_struct *current = bpf_get_current_task_btf();
	int tid = 0, prio = 0;

	if (!owner)
		return 0;
	if (bpf_probe_read_kernel(&tid, sizeof(tid), &owner->pid) ||
	    bpf_probe_read_kernel(&prio, sizeof(prio), &owner->prio))
		return 0;
	/* The kernel's priorities: less is more urgent. */
	return (u32)tid | (u64)(prio > current->prio) << 32;
}

static always_inline int lock(struct task_context *at, u64 address, u32 flags, u32 kind, u64 holder)
{
	struct lock_element element = {
		.tid = at->tid,
		.pid = at->pid,
		.kind = kind,
		.flags = flags,
		.address = address,
		.other_tid = (u32)holder,
		.inverted = holder >> 32,
	};

	emit_lock(at->words, at->monitors, &element);
	return 0;
}

/* A wait for a mutex may begin by spinning and continue asleep: then it begins twice and ends once.
 * It has one holder, that of its first begin, and blocks once. Spinning for another lock meanwhile
 * is a nested wait. */
SEC("tp_btf/contention_begin")
int on_contention(u64 *ctx)
{
	struct task_context at = current_context();
	u64 address = ctx[0];
	u32 flags = ctx[1];

	if (!at.words || !at.monitors || !at.tracking)
		return 0;
	if (at.tracking->lock == address)
		return lock(&at, address, flags, LOCK_WAITS, (u32)at.tracking->holder);

	u64 holder = holder_of(address, flags);

	if (!at.tracking->lock || sleeps(flags)) {
		at.tracking->lock = address;
		at.tracking->holder = holder;
	}
	return lock(&at, address, flags, LOCK_WAITS, holder);
}

SEC("tp_btf/contention_end")
int on_contention_end(u64 *ctx)
{
	struct task_context at = current_context();
	u64 holder = 0;

	if (!at.words || !at.monitors || !at.tracking)
		return 0;
	if (at.tracking->lock == ctx[0]) {
		holder = at.tracking->holder;
		at.tracking->lock = 0;
		at.tracking->holder = 0;
	}
	return lock(&at, ctx[0], 0, LOCK_GOES_ON, holder);
}

SEC("tp_btf/sched_pi_setprio")
int on_inheritance(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct task_struct *waiter = (void *)ctx[1];
	struct tracking *tracking = tracking_of(task);
	struct shared *words = shared_words();
	int tid = 0, prio = 0;

	if (!words || !tracking)
		return 0;
	if (waiter) {
		bpf_probe_read_kernel(&tid, sizeof(tid), &waiter->pid);
		bpf_probe_read_kernel(&prio, sizeof(prio), &waiter->prio);
	}

	bool boosted = waiter && prio < task->normal_prio;
	struct lock_element element = {
		.tid = task->pid,
		.pid = task->tgid,
		.kind = boosted ? LOCK_BOOSTED : LOCK_RESTORED,
		.other_tid = tid,
		.inverted = boosted,
	};

	emit_lock(words, active_trackers(words, tracking), &element);
	return 0;
}
