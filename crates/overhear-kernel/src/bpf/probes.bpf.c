// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Probes: functions and static probes (USDT) of running programs as kernel sensors.
 *
 * 1. A probe belongs to one monitor and has its own rings. The cookie of its attachment has the
 *    number of the monitor, the ring slot, and the size of an element slot. It is attached for all
 *    processes that map the file, now or later; only tracked threads are recorded.
 *
 * 2. A probe interrupts its thread in user space, where no other program of ours runs on this CPU;
 *    the probe of a signal handler comes after ours has returned. Interrupts are masked (or the
 *    ring claimed) all the same, because another thread may preempt this one.
 *
 * 3. Arguments of a function are six whole words: the argument registers of the calling convention.
 *    Only the caller knows which of them are used. Arguments of a static probe are fetched as its
 *    note in the file describes: a constant, a register, or memory that a register points to.
 *    libbpf parses the notes and stores the result in `__bpf_usdt_specs`, whose layout is its own.
 */
#include "monitors.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static long (*const bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static u64 (*const bpf_get_attach_cookie)(void *ctx) = (void *)174;

enum { ARGUMENTS = 6, MAX_ARGUMENTS = 12 };

struct call_probe_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u64 argument[ARGUMENTS];
};
_Static_assert(sizeof(struct call_probe_element) == 8 + 56, "payload of probe");

/* Of a static probe; it has no more arguments than its schema says, and the rest is not read. */
struct static_probe_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u64 argument[MAX_ARGUMENTS];
};
_Static_assert(sizeof(struct static_probe_element) == 8 + 104, "payload of usdt");

struct return_probe_element {
	u64 stamp_ns;
	u32 tid;
	u32 pid;
	u64 value;
};
_Static_assert(sizeof(struct return_probe_element) == 8 + 16, "payload of probe_return");

/* The registers of arguments and of the result, as words of the saved ones. */
#if defined(OVERHEAR_ARCH_X86_64)
enum { FIRST = 14, SECOND = 13, THIRD = 12, FOURTH = 11, FIFTH = 9, SIXTH = 8, RESULT = 10 };
#elif defined(OVERHEAR_ARCH_AARCH64)
enum { FIRST = 0, SECOND = 1, THIRD = 2, FOURTH = 3, FIFTH = 4, SIXTH = 5, RESULT = 0 };
#else
#define REGISTERS_UNKNOWN /* the values are then 0 */
#endif

#ifdef REGISTERS_UNKNOWN
#define REGISTER(ctx, name) 0
#else
#define REGISTER(ctx, name) (ctx)[name]
#endif

/* Rule 1. `element` has all but stamp and thread. */
static always_inline int emit_probe(u64 cookie, void *element, u32 size_bytes)
{
	u32 monitor = (cookie >> 8) & (MONITORS - 1), slot = cookie & (SLOTS - 1);
	struct tracking *tracking = program_tracking(bpf_get_current_task_btf());
	struct shared *words = shared_words();
	u64 ids = bpf_get_current_pid_tgid();

	if (slot < SLOT_PROBE || !words || !tracking || !(active_trackers(words, tracking) >> monitor & 1))
		return 0;
	if (!without_switched_off(words, 1ull << monitor, slot))
		return 0;
	((u32 *)element)[2] = (u32)ids; /* tid and pid follow the stamp */
	((u32 *)element)[3] = ids >> 32;
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		*(u64 *)element = bpf_ktime_get_ns();
		write_element(words, monitor, slot, bpf_get_smp_processor_id(), element, size_bytes,
		    stride_of(size_bytes), 1);
		bpf_local_irq_restore(&interrupts);
	} else {
		write_element(words, monitor, slot, bpf_get_smp_processor_id(), element, size_bytes,
		    stride_of(size_bytes), 0);
	}
	return 0;
}

SEC("uprobe")
int on_probe(u64 *ctx)
{
	struct call_probe_element element = {
		.argument = { REGISTER(ctx, FIRST), REGISTER(ctx, SECOND), REGISTER(ctx, THIRD),
			      REGISTER(ctx, FOURTH), REGISTER(ctx, FIFTH), REGISTER(ctx, SIXTH) },
	};

	return emit_probe(bpf_get_attach_cookie(ctx), &element, sizeof(element));
}

SEC("uprobe")
int on_probe_return(u64 *ctx)
{
	struct return_probe_element element = { .value = REGISTER(ctx, RESULT) };

	return emit_probe(bpf_get_attach_cookie(ctx), &element, sizeof(element));
}

enum usdt_kind { USDT_CONSTANT, USDT_REGISTER, USDT_MEMORY, USDT_INDEXED };

/* Both structs are those of libbpf 1.7 (usdt.c), member by member, because the types of bit-fields
 * determine their place. */
struct usdt_argument {
	u64 offset;
	enum usdt_kind kind : 8;
	u16 index_register : 12;
	u16 scale : 4;
	u8 reserved : 8;
	short register_;
	bool is_signed;
	char shift;
};
_Static_assert(sizeof(struct usdt_argument) == 24, "libbpf's __bpf_usdt_arg_spec");

struct usdt_specification {
	struct usdt_argument arguments[MAX_ARGUMENTS];
	u64 cookie;
	short count;
};
_Static_assert(sizeof(struct usdt_specification) == 12 * 24 + 16, "libbpf's __bpf_usdt_spec");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct usdt_specification);
	MAP_UINT(max_entries, 256);
} __bpf_usdt_specs SEC(".maps");

/* libbpf fills it on kernels without cookies, which are older than those we load on. */
struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u32);
	MAP_UINT(max_entries, 1);
} __bpf_usdt_ip_to_spec_id SEC(".maps");

static always_inline u64 fetch(void *ctx, const struct usdt_argument *argument)
{
	u64 value = argument->offset, base = 0, index = 0;

	if (argument->kind != USDT_CONSTANT)
		bpf_probe_read_kernel(&base, sizeof(base), ctx + argument->register_);
	switch (argument->kind) {
	case USDT_CONSTANT:
		break;
	case USDT_REGISTER:
		value = base;
		break;
	case USDT_INDEXED:
		bpf_probe_read_kernel(&index, sizeof(index), ctx + argument->index_register);
		base += index << argument->scale;
		/* fall through */
	case USDT_MEMORY:
		value = 0;
		bpf_probe_read_user(&value, sizeof(value), (void *)(base + argument->offset));
		break;
	}
	value <<= argument->shift & 63;
	if (argument->is_signed)
		return (long long)value >> (argument->shift & 63);
	return value >> (argument->shift & 63);
}

SEC("usdt")
int on_usdt(u64 *ctx)
{
	int id = bpf_get_attach_cookie(ctx);
	struct usdt_specification *specification = bpf_map_lookup_elem(&__bpf_usdt_specs, &id);
	struct static_probe_element element = {};

	if (!specification)
		return 0;
#pragma clang loop unroll(full)
	for (int number = 0; number < MAX_ARGUMENTS; number++)
		if (number < specification->count)
			element.argument[number] = fetch(ctx, &specification->arguments[number]);
	/* The size of the slots is that of the probe, whichever of its places this is: the cookie
	 * has it as a shift. */
	switch (specification->cookie >> 16) {
	case 4:
		return emit_probe(specification->cookie, &element, 16);
	case 5:
		return emit_probe(specification->cookie, &element, 32);
	case 6:
		return emit_probe(specification->cookie, &element, 64);
	default:
		return emit_probe(specification->cookie, &element, sizeof(element));
	}
}
