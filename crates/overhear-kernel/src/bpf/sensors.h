/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The elements of the sensors beyond scheduling. Their fields are those of the schemas in the Rust
 * module `overhear_event::kernel::events`; a test in `bpf/layout.rs` compares names and offsets.
 */
#pragma once

#include "core.h"

enum begin_end { KIND_BEGIN = 1, KIND_END = 2, KIND_RAISE = 3 };
enum fault_kind { FAULT_USER = 1, FAULT_KERNEL = 2, FAULT_SERVED = 3 };
enum lock_kind { LOCK_WAITS = 1, LOCK_GOES_ON = 2, LOCK_BOOSTED = 3, LOCK_RESTORED = 4 };
enum signal_kind { SIGNAL_GENERATE = 1, SIGNAL_DELIVER = 2 };
enum timer_kind {
	TIMER_BEGIN = 1,
	TIMER_END = 2,
	HRTIMER_BEGIN = 3,
	HRTIMER_END = 4,
	TIMER_WAKES = 5, /* begin and end of any timer, with the ids of the woken thread */
	TIMER_WOKE = 6,
	TIMER_ENTERED = 7, /* before TIMER_WAKES: late_ns before it the interrupt was entered */
};
enum futex_kind { FUTEX_WAKES = 3 };
enum ipc_kind { IPC_SEND = 1, IPC_RECEIVE = 2 };

struct fault_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u64 address;
	u32 code;
	u32 kind; /* enum fault_kind */
};

struct block_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 kind; /* enum begin_end */
	u32 operation;
	u64 sector;
	u32 device; /* major << 20 | minor */
	u32 bytes;
	u64 latency_ns;
	int error;
	u32 request;
};

struct call_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 number;
	u32 kind; /* enum begin_end */
	long long value;
};

struct futex_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 kind; /* enum begin_end, or FUTEX_WAKES */
	u32 operation;
	u64 address;
	u64 waited_ns;
	long long result;
	u32 other_tid;
	u32 inverted;
};

struct signal_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 sender_tid;
	u32 sender_pid;
	u32 number;
	u32 kind; /* enum signal_kind */
};

struct irq_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 number;
	u32 kind; /* enum begin_end */
	char name[16];
};

struct softirq_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 number;
	u32 kind; /* enum begin_end */
};

struct timer_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u64 function;
	u32 kind; /* enum timer_kind */
	u32 late_ns;
};

struct migrate_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 from_cpu;
	u32 to_cpu;
	u32 by_tid;
	u32 by_pid;
};

struct idle_element {
	u64 stamp_ns;
	u32 cpu;
	u32 state;
};

struct frequency_element {
	u64 stamp_ns;
	u32 cpu;
	u32 khz;
};

struct ipc_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 kind; /* enum ipc_kind */
	u32 bytes;
	u64 channel;
	u64 peer;
	u32 family;
	u32 protocol;
};

struct flutter_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
};

struct schedule_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 kind; /* enum begin_end */
	u32 flag;
	u64 took_ns;
};

struct lock_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 kind; /* enum lock_kind */
	u32 flags;
	u64 address;
	u32 other_tid;
	u32 inverted;
};

#define SIZE(name, bytes) \
	_Static_assert(sizeof(struct name##_element) == 8 + (bytes), "payload of " #name)
SIZE(fault, 24);
SIZE(block, 48);
SIZE(call, 24);
SIZE(futex, 48);
SIZE(signal, 24);
SIZE(irq, 32);
SIZE(softirq, 16);
SIZE(timer, 24);
SIZE(migrate, 24);
SIZE(idle, 8);
SIZE(frequency, 8);
SIZE(ipc, 40);
SIZE(flutter, 8);
SIZE(schedule, 24);
SIZE(lock, 32);
#undef SIZE
