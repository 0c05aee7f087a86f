/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The rings and their elements, as readers see them.
 *
 * The payloads are those of the Rust module `overhear_event::kernel`, field by field; the ring
 * header is version 1 of the stream layout, writer kind 4 (kernel). The assertions below and the
 * tests in `bpf/layout.rs` hold both sides to the same offsets.
 */
#pragma once

enum { HEADER_BYTES = 4096, COMM_BYTES = 16 };

enum switch_flags {
	SWITCH_PREEMPTED = 1,
	SWITCH_PREV_TRACKED = 2,
	SWITCH_NEXT_TRACKED = 4,
	SWITCH_VOLUNTARY = 8,
};
#define SWITCH_RUN_UNKNOWN 0xffffffffu
enum wake_kind { WAKE_WAKING = 1, WAKE_WAKEUP = 2, WAKE_NEW = 3 };
enum life_kind {
	LIFE_FORK = 1,
	LIFE_EXEC = 2,
	LIFE_EXIT = 3,
	LIFE_NAME = 4,
	LIFE_TRACKED = 5,
	LIFE_UNTRACKED = 6,
};

struct switch_element {
	u64 stamp_ns;
	u32 prev_tid;
	u32 next_tid;
	u32 prev_pid;
	u32 next_pid;
	u16 prev_state;
	u16 flags;	 /* enum switch_flags */
	u32 prev_run_ns; /* since the last departure; UNKNOWN if it does not fit */
};

struct wake_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 waker_tid;
	u32 waker_pid;
	u32 target_cpu;
	u32 kind; /* enum wake_kind */
};

struct life_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u32 parent_tid; /* FORK: the creator; EXEC: the caller's old id, if it has a new one;
			 * TRACKED: the thread's state bits */
	u32 parent_pid;
	u32 kind; /* enum life_kind */
	u32 code; /* EXIT: exit code; TRACKED: the unique id that the thread was given */
	u64 cpu_ns;
	char comm[COMM_BYTES];
	u64 reserved; /* zero: makes the stride a power of two */
};

/*
 * The first page of a ring. User space writes bytes 0..64 once, before it freezes the map; from
 * then on only the programs write, each word only on the CPU whose ring it is.
 */
struct ring_header {
	u64 geometry[8];
	u64 counter; /* elements committed since the start */
	u64 unused_counter_line[7];
	u64 busy;	  /* 1 while a program without masked interrupts fills an element */
	u64 lost_nested;  /* elements refused because the ring was busy */
	u64 lost_inherit; /* children that could not be tracked for want of memory; life ring */
	u64 ended;	  /* life ring: EXITs; switch ring: last departures of ended threads */
	u64 unused_owner;
	u64 skipped;	/* events that were not written because of a budget */
	u64 skipped_at; /* value of `counter` at the last of them */
	u64 skip_runs;	/* runs of them without an element between */
};

#define AT(type, field, offset) \
	_Static_assert(__builtin_offsetof(struct type, field) == (offset), #type "." #field)

_Static_assert(sizeof(struct switch_element) == 32, "stride of sched_switch");
AT(switch_element, stamp_ns, 0);
AT(switch_element, prev_tid, 8 + 0);
AT(switch_element, next_tid, 8 + 4);
AT(switch_element, prev_pid, 8 + 8);
AT(switch_element, next_pid, 8 + 12);
AT(switch_element, prev_state, 8 + 16);
AT(switch_element, flags, 8 + 18);
AT(switch_element, prev_run_ns, 8 + 20);

_Static_assert(sizeof(struct wake_element) == 32, "stride of sched_wake");
AT(wake_element, stamp_ns, 0);
AT(wake_element, tid, 8 + 0);
AT(wake_element, pid, 8 + 4);
AT(wake_element, waker_tid, 8 + 8);
AT(wake_element, waker_pid, 8 + 12);
AT(wake_element, target_cpu, 8 + 16);
AT(wake_element, kind, 8 + 20);

_Static_assert(sizeof(struct life_element) == 64, "stride of task_life");
AT(life_element, stamp_ns, 0);
AT(life_element, tid, 8 + 0);
AT(life_element, pid, 8 + 4);
AT(life_element, parent_tid, 8 + 8);
AT(life_element, parent_pid, 8 + 12);
AT(life_element, kind, 8 + 16);
AT(life_element, code, 8 + 20);
AT(life_element, cpu_ns, 8 + 24);
AT(life_element, comm, 8 + 32);
AT(life_element, reserved, 8 + 48);

AT(ring_header, counter, 64);
AT(ring_header, busy, 128);
AT(ring_header, lost_nested, 136);
AT(ring_header, lost_inherit, 144);
AT(ring_header, ended, 152);
AT(ring_header, skipped, 168);
AT(ring_header, skipped_at, 176);
AT(ring_header, skip_runs, 184);
#undef AT
