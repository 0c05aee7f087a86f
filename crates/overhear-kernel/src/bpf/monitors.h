/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Monitors, the threads that they track, and their rings.
 *
 * 1. A monitor is a number below MONITORS; a set of monitors is a word with one bit per monitor. A
 *    tracked thread has task local storage with the set of its monitors, so one program per hook
 *    serves all monitors, and an untracked thread costs one look-up. The kernel frees the storage
 *    with the thread: a reused thread id is not tracked.
 *
 * 2. Each monitor has one map of rings per hook: `rings[monitor * SLOTS + slot]`. The map is an
 *    array of pages. The ring of a CPU consists of a header page and pages of elements, and starts
 *    at page `cpu * pages`. The kernel requires values of equal size in all inner maps of an outer
 *    map, here one page; the number of pages may differ (BPF_F_INNER_MAP). Elements never straddle
 *    a page, because strides are powers of two. User space maps the rings and reads without system
 *    calls; they are frozen, so that only the programs can write them.
 *
 * 3. `shared` is one page of words that user space maps writable: existing and resumed monitors,
 *    shapes of the rings, and the request to the program `select`. It belongs to the process that
 *    loaded the programs. Another process gets it only with a hand-over of all monitors
 *    (hand_over.rs).
 *
 * 4. End of a monitor: its bit leaves `live` first, so that no fork passes it on; then its rings
 *    leave the outer map, and the kernel waits for programs that still use one; then `select`
 *    clears its bit in all threads. Only then can its number be reused.
 *
 * 5. A held child is a copy of its parent until its execve: the process that starts a program has
 *    forked it, and holds it until it is tracked. What the child does before the execve is not part
 *    of the program. Only scheduling is recorded of it (`held` in its storage). The entry of the
 *    execve clears `held`.
 *
 * 6. A budget switches each sensor of a monitor separately (`off`, a word per slot). The programs
 *    do everything except writing: what later elements need is kept in the storage, and the event
 *    is counted as skipped in the header of the ring that it would have been written to. The lives
 *    of threads are never off, nor is the last departure of a thread: they are rare, and without
 *    them the set of threads is unknown. Where even that is too expensive, user space detaches
 *    programs that keep no state between events (switcher.rs). A system call that was entered
 *    meanwhile ends with number UNKNOWN.
 */
#pragma once

#include "core.h"
#include "elements.h"
#include "ring.h"

enum { MONITORS = 64, SLOTS = 64, PAGE_BYTES = 4096, MAX_CGROUPS = 256 };

/* Slot of a ring, one per hook. The numbers are those of the Rust enum `Hook`. */
enum slot {
	SLOT_SWITCH = 0,
	SLOT_WAKE = 1,
	SLOT_LIFE = 2,
	SLOT_FAULT = 3,
	SLOT_BLOCK = 4,
	SLOT_CALL = 5,
	SLOT_FUTEX = 6,
	SLOT_SIGNAL = 7,
	SLOT_IRQ = 8,
	SLOT_SOFTIRQ = 9,
	SLOT_TIMER = 10,
	SLOT_MIGRATE = 11,
	SLOT_IDLE = 12,
	SLOT_FREQUENCY = 13,
	SLOT_IPC = 14,
	SLOT_FLUTTER = 15,
	SLOT_SCHEDULE = 16,
	SLOT_LOCK = 17,
	SLOT_PROBE = 18, /* and the following */
};

/* Constants to the verifier; written by user space before the programs are loaded. */
struct settings {
	u32 mask_interrupts; /* 0 forces the busy word, for tests */
	u32 call_futex;	     /* numbers of system calls; the highest number where there is none */
	u32 call_read;
	u32 call_write;
	u32 call_readv;
	u32 call_writev;
	u32 call_execve;
	u32 call_execveat;
	u32 call_sendto;
	u32 call_sendmsg;
	u32 call_recvfrom;
	u32 call_recvmsg;
	u8 numbers[64]; /* of monitors, by `monitor_index`; not written by user space */
};
const volatile struct settings settings = {
	.numbers = {
		0, 1, 48, 2, 57, 49, 28, 3, 61, 58, 50, 42, 38, 29, 17, 4,
		62, 55, 59, 36, 53, 51, 43, 22, 45, 39, 33, 30, 24, 18, 12, 5,
		63, 47, 56, 27, 60, 41, 37, 16, 54, 35, 52, 21, 44, 32, 23, 11,
		46, 26, 40, 15, 34, 20, 31, 10, 25, 14, 19, 9, 13, 8, 7, 6,
	},
};

enum operation {
	TRACK = 1,   /* all tasks that the iterator visits */
	UNTRACK = 2, /* likewise, with an UNTRACKED element */
	FORGET = 3,  /* likewise, without an element */
	REGROUP = 4, /* track those in the monitor's cgroups, untrack those that have left them */
};

struct shared {
	u64 active;	     /* monitors that are resumed */
	u64 live;	     /* monitors that exist */
	u64 everything;	     /* monitors that track all threads, and so the CPUs themselves */
	u64 by_cgroup;	     /* monitors that select cgroups */
	u64 cgroup_moves;    /* counted by the program: processes that changed their cgroup */
	u64 operation;	     /* enum operation; what follows are its arguments */
	u64 monitor;	     /* the number */
	u64 inherit;	     /* TRACK: children are tracked as well */
	u64 unique_id;	     /* TRACK: goes into the TRACKED element */
	u64 announce;	     /* TRACK: whether there is one */
	u64 seen;	     /* answer: living threads that were visited */
	u64 changed;	     /* answer: those whose tracking changed */
	u64 failed;	     /* answer: those that found no memory */
	u64 requests; /* counted by the program: requests to block devices */
	u64 held; /* TRACK: the thread is held before its execve */
	u64 call_attachments; /* how often the programs of SLOT_CALL were attached again */
	u64 reserved[48];
	u64 shapes[MONITORS * SLOTS]; /* pages per CPU << 32 | elements per CPU less one */
	u64 off[SLOTS]; /* by slot: monitors whose sensor a budget has switched off (rule 6) */
};
_Static_assert(sizeof(struct shared) == (64 + MONITORS * SLOTS + SLOTS) * 8, "shared");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct shared);
	MAP_UINT(max_entries, 1);
} shared SEC(".maps");

struct ring_map {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	MAP_UINT(key_size, sizeof(u32));
	MAP_UINT(value_size, PAGE_BYTES);
	MAP_UINT(max_entries, 2);
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	MAP_UINT(key_size, sizeof(u32));
	MAP_UINT(value_size, sizeof(u32));
	MAP_UINT(max_entries, MONITORS * SLOTS);
	MAP_VALUES(values, struct ring_map);
} rings SEC(".maps");

struct tracking {
	u64 monitors;  /* set of monitors that track the thread */
	u64 inherit;   /* subset that tracks its children as well */
	u64 by_cgroup; /* subset that tracks it because of its cgroup */
	u64 nvcsw;     /* of the thread at its last arrival or departure */
	u64 arrived_ns; /* time of its arrival on a CPU; 0 if off CPU or not seen */
	u64 ran_ns;	/* its CPU time then or at its last departure, by the kernel's account */
	u64 call;	/* current system call plus 1; 0 if none or entry not seen */
	u64 call_ns;	/* begin of that call, if it is one of a futex */
	u64 call_first; /* its first arguments */
	u64 call_second;
	u64 lock;	/* lock that it waits for; 0 if none; without nested spinning */
	u64 holder; /* holder at the begin of the wait: tid, and 1 << 32 if less urgent */
	u64 wakes; /* not 0 in a call that wakes waiters of a futex */
	u64 held; /* not 0 before its first execve (rule 5) */
	u64 call_attachments; /* value of the word of this name at the entry of `call` */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct tracking);
} tracked SEC(".maps");

/*
 * Most threads have no storage of any map. One load detects them, instead of a look-up that finds
 * nothing; untracked threads pay this at each event.
 */
static always_inline struct tracking *tracking_of(struct task_struct *task)
{
	if (FIELD_EXISTS(task->bpf_storage) && !task->bpf_storage)
		return 0;
	return bpf_task_storage_get(&tracked, task, 0, 0);
}

/* Whether a thread is in an execve: the call number is in its saved registers. On processors whose
 * registers are unknown here, the end of the execve is used instead (on_exec). */
static always_inline bool is_in_execve(struct task_struct *task)
{
	struct pt_regs *regs = bpf_task_pt_regs(task);
	u32 number = 0xffffffff;

#if defined(OVERHEAR_ARCH_X86_64)
	number = regs->orig_ax;
#elif defined(OVERHEAR_ARCH_AARCH64)
	number = regs->syscallno;
#endif
	return number == settings.call_execve || number == settings.call_execveat;
}

/* The storage of the current thread, unless the thread is held (rule 5). */
static always_inline struct tracking *program_tracking(struct task_struct *current)
{
	struct tracking *tracking = tracking_of(current);

	if (!tracking || !READ_ONCE(tracking->held))
		return tracking;
	if (!is_in_execve(current))
		return 0;
	WRITE_ONCE(tracking->held, 0);
	return tracking;
}

static always_inline struct shared *shared_words(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&shared, &zero);
}

/* The monitors that are resumed. */
static always_inline u64 recording(const struct shared *words)
{
	return READ_ONCE(words->active);
}

/* Those of them that track the thread. */
static always_inline u64 active_trackers(const struct shared *words, struct tracking *tracking)
{
	return tracking ? READ_ONCE(tracking->monitors) & recording(words) : 0;
}

/*
 * The number of the only monitor in a set. The product of this constant (a de Bruijn sequence) with
 * each power of two has unique upper six bits; the table maps them to numbers. BPF has no
 * instruction for it.
 */
static always_inline u32 monitor_index(u64 monitor)
{
	return settings.numbers[monitor * 0x03f79d71b4cb0a89ull >> 58];
}

/* Whether a set that is not empty has one monitor only, as most have. */
static always_inline bool is_single(u64 monitors)
{
	return !(monitors & (monitors - 1));
}

static always_inline bool masks_interrupts(void)
{
	return settings.mask_interrupts && bpf_local_irq_save && bpf_local_irq_restore;
}

/* Strides are powers of two. */
static always_inline u32 stride_of(u32 size_bytes)
{
	return size_bytes <= 16 ? 16 : size_bytes <= 32 ? 32 : size_bytes <= 64 ? 64 : 128;
}

/*
 * Writes an element to the ring of this CPU of one monitor, and returns the header of the ring;
 * NULL if the monitor does not record this hook or the element was refused. `element` begins with
 * its stamp. If `exclusive` is false, the ring is claimed, and the stamp is taken again inside.
 */
static always_inline struct ring_header *write_element(const struct shared *words, u32 monitor, u32 slot,
					     u32 cpu, const void *element, u32 size_bytes,
					     u32 stride_bytes, bool exclusive)
{
	u32 index = (monitor & (MONITORS - 1)) * SLOTS + slot;

	/* Before Linux 6.2 the verifier does not know the bounds of such a sum if the slot is no
	 * constant; the compiler knows them and would drop the mask. */
	if (!__builtin_constant_p(slot)) {
		__asm__ volatile("" : "+r"(index));
		index &= MONITORS * SLOTS - 1;
	}
	/* Read first: after the call the verifier has lost the bounds of the index, whose address
	 * was taken. Shapes change only while the monitor tracks no thread. */
	u64 shape = READ_ONCE(words->shapes[index]);
	void *pages = bpf_map_lookup_elem(&rings, &index);

	if (!pages)
		return 0;

	u32 first = cpu * (u32)(shape >> 32);
	struct ring_header *ring = bpf_map_lookup_elem(pages, &first);

	if (!ring)
		return 0;
	if (!exclusive && !claim(ring))
		return 0;

	u32 per_page = PAGE_BYTES / stride_bytes;
	u32 position = (u32)READ_ONCE(ring->counter) & (u32)shape;
	u32 page = first + 1 + position / per_page;
	u8 *slots = bpf_map_lookup_elem(pages, &page);

	if (slots) {
		u64 *to = (void *)(slots + (position % per_page) * stride_bytes);
		const u64 *from = element;

		/* Whole words: the verifier requires them, and no reader sees half a word. */
#pragma clang loop unroll(full)
		for (u32 word = 0; word < size_bytes / 8; word++)
			to[word] = from[word];
		if (!exclusive)
			to[0] = bpf_ktime_get_ns();
		publish(ring);
	}
	if (!exclusive)
		release(ring);
	return slots ? ring : 0;
}

/* Counts an event that a budget keeps from being written, as `stream-layout.md`, section 5.5,
 * describes. The additions are atomic, because an interrupt, or another thread in the same program,
 * may count on this CPU as well. Two of them that find the same new position count two runs. */
static always_inline void skip_element(const struct shared *words, u32 monitor, u32 slot, u32 cpu)
{
	u32 index = (monitor & (MONITORS - 1)) * SLOTS + slot;

	/* As in `write_element`. */
	__asm__ volatile("" : "+r"(index));
	index &= MONITORS * SLOTS - 1;

	u32 first = cpu * (u32)(READ_ONCE(words->shapes[index]) >> 32);
	void *pages = bpf_map_lookup_elem(&rings, &index);

	if (!pages)
		return;

	struct ring_header *ring = bpf_map_lookup_elem(pages, &first);

	if (!ring)
		return;

	u64 position = READ_ONCE(ring->counter);

	__sync_fetch_and_add(&ring->skipped, 1);
	if (READ_ONCE(ring->skipped_at) != position || !READ_ONCE(ring->skip_runs)) {
		WRITE_ONCE(ring->skipped_at, position);
		__sync_fetch_and_add(&ring->skip_runs, 1);
	}
}

struct skipping {
	const struct shared *words;
	u64 monitors; /* as in struct emission */
	u64 slot;
	u64 cpu;
};

static noinline long skip_one(u64 monitor, struct skipping *skipping)
{
	u64 monitors = skipping->monitors;

	skipping->monitors = monitors >> 1;
	if (monitors & 1)
		skip_element(skipping->words, monitor, skipping->slot, skipping->cpu);
	return monitors <= 1;
}

/* Removes the monitors whose sensor a budget has switched off from a set, and counts the event for
 * them (rule 6). */
static always_inline u64 without_switched_off(const struct shared *words, u64 monitors, u32 slot)
{
	u64 off = monitors & READ_ONCE(words->off[slot & (SLOTS - 1)]);

	if (!off)
		return monitors;
	if (is_single(off)) {
		skip_element(words, monitor_index(off), slot, bpf_get_smp_processor_id());
	} else {
		struct skipping skipping = {
			.words = words,
			.monitors = off,
			.slot = slot,
			.cpu = bpf_get_smp_processor_id(),
		};

		bpf_loop(MONITORS, skip_one, &skipping, 0);
	}
	return monitors & ~off;
}

/* One element for several monitors. */
struct emission {
	const struct shared *words;
	const void *element;
	u64 monitors; /* those that are left, shifted so that bit 0 is the next */
	u64 cpu;
	u64 exclusive;
};

/*
 * Defines `emit_NAME`, which writes an element for each of the monitors while interrupts may be on,
 * and `emit_NAME_masked` for callers whose interrupts are masked.
 *
 * The loop is bpf_loop, because the verifier then checks its body once, not once per monitor. It
 * ends after the highest monitor of the set.
 */
#define EMITTER(name, type, slot)                                                            \
	static noinline long put_##name(u64 monitor, struct emission *emission)              \
	{                                                                                    \
		u64 monitors = emission->monitors;                                           \
		emission->monitors = monitors >> 1;                                          \
		if (monitors & 1)                                                            \
			write_element(emission->words, monitor, slot, emission->cpu, emission->element, \
			    sizeof(type), stride_of(sizeof(type)), emission->exclusive);         \
		return monitors <= 1;                                                        \
	}                                                                                    \
	static always_inline void emit_##name##_if(const struct shared *words, u64 monitors,  \
						   type *element, bool masked)               \
	{                                                                                    \
		monitors = without_switched_off(words, monitors, slot);                      \
		struct emission emission = {                                                 \
			.words = words,                                                      \
			.element = element,                                                  \
			.monitors = monitors,                                                \
			.cpu = bpf_get_smp_processor_id(),                                   \
			.exclusive = masks_interrupts(),                                         \
		};                                                                           \
		if (!monitors)                                                               \
			return;                                                              \
		if (masks_interrupts() && masked && is_single(monitors)) {                      \
			element->stamp_ns = bpf_ktime_get_ns();                              \
			write_element(words, monitor_index(monitors), slot, emission.cpu, element,         \
			    sizeof(type), stride_of(sizeof(type)), 1);                       \
		} else if (masks_interrupts() && masked) {                                   \
			element->stamp_ns = bpf_ktime_get_ns();                              \
			bpf_loop(MONITORS, put_##name, &emission, 0);                        \
		} else if (masks_interrupts()) {                                             \
			unsigned long interrupts;                                            \
			bpf_local_irq_save(&interrupts);                                     \
			element->stamp_ns = bpf_ktime_get_ns();                              \
			bpf_loop(MONITORS, put_##name, &emission, 0);                        \
			bpf_local_irq_restore(&interrupts);                                  \
		} else {                                                                     \
			bpf_loop(MONITORS, put_##name, &emission, 0);                        \
		}                                                                            \
	}                                                                                    \
	static always_inline void emit_##name##_masked(const struct shared *words,           \
						       u64 monitors, type *element)          \
	{                                                                                    \
		emit_##name##_if(words, monitors, element, 1);                               \
	}                                                                                    \
	static always_inline void emit_##name(const struct shared *words, u64 monitors,     \
					      type *element)                                 \
	{                                                                                    \
		emit_##name##_if(words, monitors, element, 0);                               \
	}

/*
 * Defines `emit_NAME_as_stamped`, to be used after `EMITTER` of the same name: the element has its
 * stamp already. The caller guarantees that the ring has no newer element, and that interrupts can
 * be masked.
 */
#define STAMPED_EMITTER(name, type, slot)                                                    \
	static always_inline void emit_##name##_as_stamped(const struct shared *words,        \
							   u64 monitors, type *element)      \
	{                                                                                    \
		unsigned long interrupts;                                                    \
		monitors = without_switched_off(words, monitors, slot);                      \
		struct emission emission = {                                                 \
			.words = words,                                                      \
			.element = element,                                                  \
			.monitors = monitors,                                                \
			.cpu = bpf_get_smp_processor_id(),                                   \
			.exclusive = 1,                                                          \
		};                                                                           \
		if (!monitors)                                                               \
			return;                                                              \
		bpf_local_irq_save(&interrupts);                                             \
		bpf_loop(MONITORS, put_##name, &emission, 0);                                \
		bpf_local_irq_restore(&interrupts);                                          \
	}
