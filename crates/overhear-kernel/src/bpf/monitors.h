/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Who hears what: the monitors, the threads they track, and their rings.
 *
 * 1. A monitor is a number below MONITORS, and a set of monitors is a word with a bit for each.
 *    A tracked thread has task local storage with the set of those who track it, so one program
 *    per hook serves all of them, and costs a thread that nobody tracks one look-up. The kernel
 *    frees the storage with the thread: a thread id that comes again is nobody's.
 *
 * 2. Each monitor has a map of rings for each hook it hears: `rings[monitor * SLOTS + slot]`. The
 *    map is an array of pages; the ring of a CPU is a header page and the pages of its elements,
 *    and begins at page `cpu * pages`. All such maps have values of one page, as the kernel
 *    demands of the members of one outer map, but each has as many as its monitor wants
 *    (BPF_F_INNER_MAP). Elements never straddle a page, because strides are powers of two.
 *    User space maps them and never calls the kernel to read; they are frozen, so that nobody
 *    but the programs can write them.
 *
 * 3. `shared` is one page of words that user space maps writable: which monitors exist and which
 *    are resumed, the shapes of the rings, and what the program `select` is asked for. It belongs
 *    to the process that loaded the programs, and reaches nobody else, but for who is given all
 *    monitors that there are (hand_over.rs).
 *
 * 4. A monitor that ends leaves `live` first, so that no fork passes it on; then its rings leave
 *    the outer map, and the kernel waits for the programs that still hold one; then `select`
 *    takes its bit from all threads. Only then may its number be given to another.
 *
 * 5. A child that whoever starts a program has forked, and holds until it is tracked, is a copy of its parent up to
 *    its execve. What it does until then (it returns from the call that it was held in) is not the program's, and
 *    is recorded by no program but those of scheduling: `held` in its storage. The entry of the execve clears it.
 */
#pragma once

#include "core.h"
#include "elements.h"

enum { MONITORS = 64, SLOTS = 64, PAGE_BYTES = 4096, MOST_CGROUPS = 256 };

/* What a ring is of. The numbers are those of the Rust enum `Hook`. */
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
	u8 numbers[64]; /* of monitors, by `number_of`; not written by user space */
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
	UNTRACK = 2, /* likewise; tells the monitor */
	FORGET = 3,  /* likewise; tells nobody */
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
	u64 reserved[49];
	u64 shapes[MONITORS * SLOTS]; /* pages per CPU << 32 | elements per CPU less one */
};
_Static_assert(sizeof(struct shared) == (64 + MONITORS * SLOTS) * 8, "shared");

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
	u64 monitors;  /* who tracks the thread */
	u64 inherit;   /* of these, who will track its children */
	u64 by_cgroup; /* of these, who does for the sake of its cgroup */
	u64 nvcsw;     /* of the thread, at its last arrival or departure */
	u64 arrived_ns; /* when it entered its CPU; 0 if it is on none or that was not seen */
	u64 ran_ns;	/* its CPU time then or at its last departure, by the kernel's account */
	u64 call;	/* the system call that it is in, plus 1; 0 if none or its entry was not seen */
	u64 call_ns;	/* when it began */
	u64 call_first; /* its first arguments */
	u64 call_second;
	u64 lock;	/* that it waits for, 0 if for none; not one for which it spins meanwhile */
	u64 holder; /* of that, when the wait began: the thread, and 1 << 32 if that is less urgent */
	u64 wakes; /* not 0 while it is in a call that wakes those who wait for a futex */
	u64 held; /* not 0 before its first execve (rule 5) */
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct tracking);
} tracked SEC(".maps");

/*
 * Most threads have no storage of any map, and are done with one load instead of a look-up that finds nothing:
 * untracked threads pay for it at each event.
 */
static always_inline struct tracking *tracking_of(struct task_struct *task)
{
	if (FIELD_EXISTS(task->bpf_storage) && !task->bpf_storage)
		return 0;
	return bpf_task_storage_get(&tracked, task, 0, 0);
}

/* Whether a thread is in an execve: the number is in the registers that it entered the kernel with. Where it is not
 * known in which, the end of the execve must do (on_exec). */
static always_inline bool executes(struct task_struct *task)
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

/* The storage of the current thread, if what it does is its program's (rule 5). */
static always_inline struct tracking *acting(struct task_struct *current)
{
	struct tracking *tracking = tracking_of(current);

	if (!tracking || !READ_ONCE(tracking->held))
		return tracking;
	if (!executes(current))
		return 0;
	WRITE_ONCE(tracking->held, 0);
	return tracking;
}

static always_inline struct shared *shared_words(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&shared, &zero);
}

/* Who tracks the thread and is resumed. */
static always_inline u64 heard_by(const struct shared *words, struct tracking *tracking)
{
	return tracking ? READ_ONCE(tracking->monitors) & READ_ONCE(words->active) : 0;
}

/*
 * The number of the only monitor in a set. Multiplied by this constant each power of two has other upper six
 * bits (a de Bruijn sequence); the table says whose they are. BPF has no instruction for it.
 */
static always_inline u32 number_of(u64 monitor)
{
	return settings.numbers[monitor * 0x03f79d71b4cb0a89ull >> 58];
}

/* Whether a set that is not empty has one monitor alone, as most have. */
static always_inline bool is_one(u64 monitors)
{
	return !(monitors & (monitors - 1));
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

/* Strides are powers of two. */
static always_inline u32 stride_of(u32 size_bytes)
{
	return size_bytes <= 16 ? 16 : size_bytes <= 32 ? 32 : size_bytes <= 64 ? 64 : 128;
}

/*
 * Writes an element into the ring of this CPU of one monitor, and returns the ring's header; NULL
 * if the monitor does not hear this hook or the element was refused. `element` begins with its
 * stamp. Without `alone` the ring is claimed, and the stamp taken anew inside.
 */
static always_inline struct ring_header *put(const struct shared *words, u32 monitor, u32 slot,
					     u32 cpu, const void *element, u32 size_bytes,
					     u32 stride_bytes, bool alone)
{
	u32 index = (monitor & (MONITORS - 1)) * SLOTS + slot;

	/* Before Linux 6.2 the verifier does not know the bounds of such a sum if the slot is no constant; the
	 * compiler does, and would leave the mask out. */
	if (!__builtin_constant_p(slot)) {
		__asm__ volatile("" : "+r"(index));
		index &= MONITORS * SLOTS - 1;
	}
	/* Read first: behind the call the verifier no longer knows the index, which then has an
	 * address. Shapes change only while nobody is tracked for the monitor. */
	u64 shape = READ_ONCE(words->shapes[index]);
	void *pages = bpf_map_lookup_elem(&rings, &index);

	if (!pages)
		return 0;

	u32 first = cpu * (u32)(shape >> 32);
	struct ring_header *ring = bpf_map_lookup_elem(pages, &first);

	if (!ring)
		return 0;
	if (!alone && !claim(ring))
		return 0;

	u32 per_page = PAGE_BYTES / stride_bytes;
	u32 position = (u32)READ_ONCE(ring->counter) & (u32)shape;
	u32 page = first + 1 + position / per_page;
	u8 *slots = bpf_map_lookup_elem(pages, &page);

	if (slots) {
		u64 *to = (void *)(slots + (position % per_page) * stride_bytes);
		const u64 *from = element;

		/* Whole words: the verifier wants them so, and no reader ever sees half a one. */
#pragma clang loop unroll(full)
		for (u32 word = 0; word < size_bytes / 8; word++)
			to[word] = from[word];
		if (!alone)
			to[0] = bpf_ktime_get_ns();
		publish(ring);
	}
	if (!alone)
		release(ring);
	return slots ? ring : 0;
}

/* One element for several monitors. */
struct emission {
	const struct shared *words;
	const void *element;
	u64 monitors; /* those that are left, shifted so that bit 0 is the next */
	u64 cpu;
	u64 alone;
};

/*
 * Defines `emit_NAME`, which writes an element for each of the monitors where interrupts may be on, and
 * `emit_NAME_masked`, where the kernel has masked them.
 *
 * The loop is bpf_loop, because the verifier looks at its body once, and not once per monitor.
 * Numbers are given from below, so it is left with the last monitor.
 */
#define EMITTER(name, type, slot)                                                            \
	static noinline long put_##name(u64 monitor, struct emission *emission)              \
	{                                                                                    \
		u64 monitors = emission->monitors;                                           \
		emission->monitors = monitors >> 1;                                          \
		if (monitors & 1)                                                            \
			put(emission->words, monitor, slot, emission->cpu, emission->element, \
			    sizeof(type), stride_of(sizeof(type)), emission->alone);         \
		return monitors <= 1;                                                        \
	}                                                                                    \
	static always_inline void emit_##name##_if(const struct shared *words, u64 monitors,  \
						   type *element, bool masked)               \
	{                                                                                    \
		struct emission emission = {                                                 \
			.words = words,                                                      \
			.element = element,                                                  \
			.monitors = monitors,                                                \
			.cpu = bpf_get_smp_processor_id(),                                   \
			.alone = masks_interrupts(),                                         \
		};                                                                           \
		if (!monitors)                                                               \
			return;                                                              \
		if (masks_interrupts() && masked && is_one(monitors)) {                      \
			element->stamp_ns = bpf_ktime_get_ns();                              \
			put(words, number_of(monitors), slot, emission.cpu, element,         \
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
 * Defines `emit_NAME_as_stamped`, behind `EMITTER` of the same name: the element has its stamp already. The
 * caller sees to it that nothing younger is in the ring, and calls it only where interrupts can be masked.
 */
#define STAMPED_EMITTER(name, type)                                                          \
	static always_inline void emit_##name##_as_stamped(const struct shared *words,        \
							   u64 monitors, type *element)      \
	{                                                                                    \
		unsigned long interrupts;                                                    \
		struct emission emission = {                                                 \
			.words = words,                                                      \
			.element = element,                                                  \
			.monitors = monitors,                                                \
			.cpu = bpf_get_smp_processor_id(),                                   \
			.alone = 1,                                                          \
		};                                                                           \
		bpf_local_irq_save(&interrupts);                                             \
		bpf_loop(MONITORS, put_##name, &emission, 0);                                \
		bpf_local_irq_restore(&interrupts);                                          \
	}
