// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Points: tracepoints and functions of the kernel that a user names, as kernel sensors.
 *
 * 1. One object per point. User space selects its program and fills the constant `point` before
 *    loading. The verifier follows no branch that the constants exclude, and the kernel removes
 *    those branches. So a program reads only arguments that its function has, and costs only the
 *    fields that it fetches.
 *
 * 2. Sources of values. A tracepoint with an event passes the record of ftrace and perf, whose
 *    format file describes the fields. One without an event passes its arguments, as does a
 *    function entry; a function return has the result. Their names and types are in the type
 *    information of the kernel, which user space reads.
 *
 * 3. Texts have a maximum length and end with a zero. The address shows whether a text is in the
 *    program or in the kernel: kernel addresses are negative. A text that cannot be read (its page
 *    is not present) is empty.
 *
 * 4. An element belongs to the thread in whose context the point is passed, as for the other
 *    sensors, and to monitors of everything. A point belongs to one monitor and has rings of its
 *    own. Interrupts are masked for the length of an element, or the ring is claimed (sched.bpf.c,
 *    rule 3).
 *
 * 5. Skipped calls. The kernel does not enter a program on a CPU that runs it already, nor the
 *    program of a tracepoint while another one runs there. It counts both per program; user space
 *    reports the counts at the end.
 */
#include "monitors.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static long (*const bpf_probe_read_user_str)(void *to, u32 size, const void *from) = (void *)114;
static long (*const bpf_get_func_arg)(void *ctx, u32 number, u64 *value) = (void *)183;
static long (*const bpf_get_func_ret)(void *ctx, u64 *value) = (void *)184;

/* The numbers are those of the Rust enum `PointSource`. */
enum point_source {
	RECORD = 0,	     /* bytes of the record, at `from` */
	RECORD_LOCATED = 1,  /* a text in the record; at `from` is where, from the record's begin */
	RECORD_RELATIVE = 2, /* likewise, from the end of these 4 bytes */
	RECORD_POINTED = 3,  /* a text elsewhere; its address is at `from` */
	ARGUMENT = 4,	     /* the number of the argument is `from` */
	ARGUMENT_POINTED = 5,
	RESULT = 6,
	RESULT_POINTED = 7,
};

enum { MAX_FIELDS = 24, MAX_WORDS = 32, MAX_POINT_ARGUMENTS = 12 };

struct point_field {
	u16 source; /* enum point_source */
	u16 from;
	u16 to; /* in the element, whose stamp is at 0 */
	u16 size;
};

/* Written by user space before the program is loaded (rule 1). */
struct point {
	u32 fields;
	u32 words; /* of an element, with its stamp */
	u32 stride_shift;
	u32 monitor;
	u32 slot;
	u32 arguments; /* of a tracepoint without an event */
	struct point_field field[MAX_FIELDS];
};
const volatile struct point point SEC(".rodata.point");
_Static_assert(sizeof(struct point) == 24 + MAX_FIELDS * 8, "point");

struct point_element {
	u64 word[MAX_WORDS];
};

/* As `put`, for elements whose size is known only when the program is loaded. */
static always_inline void put_point(const struct shared *words, u32 cpu,
				    const struct point_element *element, bool exclusive)
{
	u32 index = point.monitor * SLOTS + point.slot;
	u64 shape = READ_ONCE(words->shapes[index & (MONITORS * SLOTS - 1)]);
	void *pages = bpf_map_lookup_elem(&rings, &index);

	if (!pages)
		return;

	u32 first = cpu * (u32)(shape >> 32);
	struct ring_header *ring = bpf_map_lookup_elem(pages, &first);

	if (!ring)
		return;
	if (!exclusive && !claim(ring))
		return;

	u32 per_page_shift = 12 - point.stride_shift;
	u32 position = (u32)READ_ONCE(ring->counter) & (u32)shape;
	u32 page = first + 1 + (position >> per_page_shift);
	u8 *slots = bpf_map_lookup_elem(pages, &page);

	if (slots) {
		u32 within = position & ((1u << per_page_shift) - 1);
		u64 *to = (void *)(slots + ((within << point.stride_shift) & (PAGE_BYTES - 1)));

		/* Whole words, as in `put`. */
#pragma clang loop unroll(full)
		for (u32 word = 1; word < MAX_WORDS; word++)
			if (word < point.words)
				to[word] = element->word[word];
		to[0] = exclusive ? element->word[0] : bpf_ktime_get_ns();
		publish(ring);
	}
	if (!exclusive)
		release(ring);
}

/* Rule 4. */
static always_inline int emit_point(struct point_element *element)
{
	struct shared *words = shared_words();
	u64 ids = bpf_get_current_pid_tgid();

	if (!words)
		return 0;
	((u32 *)element)[2] = (u32)ids; /* tid and pid follow the stamp */
	((u32 *)element)[3] = ids >> 32;
	if (masks_interrupts()) {
		unsigned long interrupts;

		bpf_local_irq_save(&interrupts);
		element->word[0] = bpf_ktime_get_ns();
		put_point(words, bpf_get_smp_processor_id(), element, 1);
		bpf_local_irq_restore(&interrupts);
	} else {
		put_point(words, bpf_get_smp_processor_id(), element, 0);
	}
	return 0;
}

/* Whether the monitor records events of the current thread. */
static always_inline bool is_recorded(void)
{
	struct shared *words = shared_words();
	struct tracking *tracking = program_tracking(bpf_get_current_task_btf());

	if (!words)
		return 0;

	u64 monitors = active_trackers(words, tracking) |
		    (READ_ONCE(words->everything) & recording(words));

	monitors &= 1ull << (point.monitor & (MONITORS - 1));
	return monitors && without_switched_off(words, monitors, point.slot);
}

/* Rule 3. */
static always_inline void read_text(void *to, u32 size, u64 address)
{
	if ((long long)address < 0)
		bpf_probe_read_kernel_str(to, size, (void *)address);
	else if (address)
		bpf_probe_read_user_str(to, size, (void *)address);
}

static always_inline void store(void *to, u32 size, u64 value)
{
	switch (size) {
	case 1:
		*(u8 *)to = value;
		break;
	case 2:
		*(u16 *)to = value;
		break;
	case 4:
		*(u32 *)to = value;
		break;
	default:
		*(u64 *)to = value;
		break;
	}
}

/* A field of a record. The record is `ctx`, whose parts only helpers may read at places that are no
 * constants. */
static always_inline void fetch_record(void *ctx, const volatile struct point_field *field, void *to)
{
	u32 location = 0, size = field->size;
	u64 address = 0;

	switch (field->source) {
	case RECORD:
		bpf_probe_read_kernel(to, size, ctx + field->from);
		break;
	case RECORD_LOCATED:
		bpf_probe_read_kernel(&location, sizeof(location), ctx + field->from);
		bpf_probe_read_kernel_str(to, size, ctx + (location & 0xffff));
		break;
	case RECORD_RELATIVE:
		bpf_probe_read_kernel(&location, sizeof(location), ctx + field->from);
		bpf_probe_read_kernel_str(to, size, ctx + field->from + 4 + (location & 0xffff));
		break;
	case RECORD_POINTED:
		bpf_probe_read_kernel(&address, sizeof(address), ctx + field->from);
		read_text(to, size, address);
		break;
	}
}

SEC("tp")
int on_tracepoint(void *ctx)
{
	struct point_element element = {};

	if (!is_recorded())
		return 0;
#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_FIELDS; number++)
		if (number < point.fields)
			fetch_record(ctx, &point.field[number],
				     (u8 *)&element + (point.field[number].to & 0xff));
	return emit_point(&element);
}

static always_inline void take_value(const volatile struct point_field *field, bool is_text,
				     u64 value, void *to)
{
	if (is_text)
		read_text(to, field->size, value);
	else
		store(to, field->size, value);
}

SEC("raw_tp")
int on_raw_tracepoint(u64 *ctx)
{
	struct point_element element = {};
	u64 argument[MAX_POINT_ARGUMENTS] = {};

	if (!is_recorded())
		return 0;
	/* Each is read by an instruction of its own, or none (rule 1). */
#define ARGUMENT_AT(n)                                                             \
	if (n < point.arguments)                                                    \
		argument[n] = READ_ONCE(ctx[n]);
	ARGUMENT_AT(0) ARGUMENT_AT(1) ARGUMENT_AT(2) ARGUMENT_AT(3) ARGUMENT_AT(4) ARGUMENT_AT(5)
	ARGUMENT_AT(6) ARGUMENT_AT(7) ARGUMENT_AT(8) ARGUMENT_AT(9) ARGUMENT_AT(10) ARGUMENT_AT(11)
#undef ARGUMENT_AT
#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_FIELDS; number++) {
		if (number >= point.fields)
			break;

		const volatile struct point_field *field = &point.field[number];
		u32 from = field->from;

		if (from < MAX_POINT_ARGUMENTS)
			take_value(field, field->source == ARGUMENT_POINTED, argument[from],
				   (u8 *)&element + (field->to & 0xff));
	}
	return emit_point(&element);
}

SEC("fentry")
int on_function(void *ctx)
{
	struct point_element element = {};

	if (!is_recorded())
		return 0;
#pragma clang loop unroll(full)
	for (u32 number = 0; number < MAX_FIELDS; number++) {
		if (number >= point.fields)
			break;

		const volatile struct point_field *field = &point.field[number];
		u64 value = 0;

		bpf_get_func_arg(ctx, field->from, &value);
		take_value(field, field->source == ARGUMENT_POINTED, value,
			   (u8 *)&element + (field->to & 0xff));
	}
	return emit_point(&element);
}

SEC("fexit")
int on_function_return(void *ctx)
{
	struct point_element element = {};

	if (!is_recorded())
		return 0;
	if (point.fields) {
		const volatile struct point_field *field = &point.field[0];
		u64 value = 0;

		bpf_get_func_ret(ctx, &value);
		take_value(field, field->source == RESULT_POINTED, value,
			   (u8 *)&element + (field->to & 0xff));
	}
	return emit_point(&element);
}
