/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The byte layout of streams, version 1, for C11 and C++17.
 *
 * A stream is memory shared between one writer and any number of readers: a header of 4096 bytes
 * with the element counter, then a ring of elements of one size. This file mirrors
 * docs/abi/stream-layout.md, which is normative; "section" refers to that page. The Rust side is
 * crates/overhear-stream/src/layout.rs, and the golden image
 * crates/overhear-stream/tests/golden/simple-v1.bin is read and written by both.
 *
 * The file depends on nothing but <stddef.h> and <stdint.h>: it can be included where the rest of
 * Overhear is not installed. It defines no function that a linker sees.
 */
#ifndef OVERHEAR_ABI_H
#define OVERHEAR_ABI_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__cplusplus) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L)
#error "overhear/abi.h needs C11 or C++17; compile with -std=c11 or later"
#endif

#ifdef __cplusplus
#define OH_STATIC_ASSERT(condition, message) static_assert(condition, message)
#else
#define OH_STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#endif

#define OH_INLINE_ static inline __attribute__((always_inline))

/* Section 2: the first eight bytes of a stream, without the terminating zero. */
#define OH_STREAM_MAGIC "OVHRSTR1"
/* Section 8: the first eight bytes of a control page. */
#define OH_CONTROL_MAGIC "OVHRCTL1"

enum {
    OH_LAYOUT_VERSION = 1,
    OH_HEADER_SIZE = 4096,     /* section 2: bytes before the first element */
    OH_COUNTER_OFFSET = 64,    /* section 2: the counter's cache line */
    OH_MAX_PAYLOAD = 4088,     /* section 2: bytes, so that an element fits into a page */
    OH_CLOCK_PAGE_CAPACITY = 128 /* section 7 */
};

/* Section 5: kinds of writers. */
enum { OH_WRITER_SIMPLE = 1, OH_WRITER_LANED = 2, OH_WRITER_CONCURRENT = 3, OH_WRITER_KERNEL = 4 };

/* Section 3: units of stamps. */
enum { OH_CLOCK_MONOTONIC = 1, OH_CLOCK_X86_TSC = 2, OH_CLOCK_ARM_CNTVCT = 3 };

/* Section 8: states of a sensor's switch; other values are off. */
enum {
    OH_SWITCH_OFF = 0,    /* nobody wants the elements */
    OH_SWITCH_ON = 1,
    OH_SWITCH_COUNTED = 2 /* off for a budget: skipped writes are counted (section 5.5) */
};

/* Section 4, flags of an element with a writer. */
enum { OH_ELEMENT_VOID = 1 };

/*
 * Section 2. The fields at 0 to 63 are written once, before the memory is handed to the writer,
 * and readers never index with them: geometry comes from the directory's record.
 */
typedef struct oh_stream_header {
    uint8_t magic[8];      /* OH_STREAM_MAGIC */
    uint32_t version;      /* OH_LAYOUT_VERSION */
    uint32_t header_size;  /* OH_HEADER_SIZE */
    uint32_t flags;        /* OH_FLAG_* */
    uint32_t writer_kind;  /* OH_WRITER_* */
    uint32_t payload_size; /* bytes, 0 to OH_MAX_PAYLOAD */
    uint32_t stride;       /* bytes from one element to the next, a multiple of 8 */
    uint64_t capacity;     /* slots, a power of two from 2 to 2^32 */
    uint32_t clock_id;     /* OH_CLOCK_* */
    uint32_t reserved0;
    uint64_t stream_id;
    uint64_t reserved1;
    uint64_t counter; /* elements written; concurrent: head. Written by the writer alone */
    uint64_t reserved2[7];
    uint64_t tail_or_busy; /* concurrent: tail. Kernel: 1 while a program fills a slot */
    uint64_t lost_nested;  /* writes refused inside another write of the same thread or CPU */
    uint64_t lost_full;    /* concurrent, pool of lanes: writes refused for want of one; kernel:
                            * lost_inherit, children that could not be followed (section 5.4) */
    uint64_t ended;        /* kernel: threads whose end is recorded in this ring (section 5.4) */
    uint64_t owner; /* section 5.2, a lane: tid and number of its last claim, 0 for none */
    uint64_t skipped;    /* section 5.5: writes that a budget kept from being made */
    uint64_t skipped_at; /* position of the next element at the last of them */
    uint64_t skip_runs;  /* number of runs of them without an element between */
    uint64_t reserved4[488];
} oh_stream_header;

/* Section 4: an element of a simple or kernel stream begins so; its payload follows. */
typedef struct oh_element {
    uint64_t stamp; /* ticks of clock_id */
} oh_element;

/* Section 4: an element of a laned or concurrent stream begins so; its payload follows. */
typedef struct oh_thread_element {
    uint64_t stamp; /* ticks of clock_id */
    uint32_t tid;   /* the writing thread */
    uint32_t flags; /* OH_ELEMENT_* */
} oh_thread_element;

/*
 * Section 7: the payload of an element of the clock page, whose stamp is from_ticks.
 * time = ns + (ticks - from_ticks) * mult / 2^shift, in 128-bit arithmetic.
 */
typedef struct oh_clock_segment {
    uint64_t ns;       /* CLOCK_MONOTONIC at from_ticks */
    uint64_t mult;     /* nanoseconds per tick, times 2^shift */
    uint32_t shift;    /* see mult */
    uint32_t error_ns; /* by how much a converted time can be wrong */
    uint32_t epoch;    /* jumps of the clock since the directory started */
    uint32_t reserved0;
} oh_clock_segment;

/* Section 8: written by the directory, mapped read-only by the sensors' process. */
typedef struct oh_control_page {
    uint8_t magic[8];     /* OH_CONTROL_MAGIC */
    uint32_t version;     /* OH_LAYOUT_VERSION */
    uint32_t header_size; /* OH_HEADER_SIZE */
    uint32_t lines;       /* number of the oh_control_line that follow */
    uint32_t reserved0;
    uint64_t reserved1[509];
} oh_control_page;

/*
 * Section 8: the cache line of one sensor. Behind that of a laned sensor follow lines with a
 * uint64_t per lane, `reclaimed`: the owner word of the last thread that has ended.
 */
typedef struct oh_control_line {
    uint32_t enabled; /* OH_SWITCH_* */
    uint32_t reserved0;
    uint64_t reclaims; /* laned: how often a lane has been reclaimed */
    uint64_t deferred; /* 1 while the sensor waits for memory */
    uint64_t reserved1[5];
} oh_control_line;

#define OH_ASSERT_FIELD(type, field, offset, size)                                                  \
    OH_STATIC_ASSERT(offsetof(type, field) == (offset), #type "." #field ": offset");               \
    OH_STATIC_ASSERT(sizeof(((type *)0)->field) == (size), #type "." #field ": size")

/* Section 2. */
OH_ASSERT_FIELD(oh_stream_header, magic, 0, 8);
OH_ASSERT_FIELD(oh_stream_header, version, 8, 4);
OH_ASSERT_FIELD(oh_stream_header, header_size, 12, 4);
OH_ASSERT_FIELD(oh_stream_header, flags, 16, 4);
OH_ASSERT_FIELD(oh_stream_header, writer_kind, 20, 4);
OH_ASSERT_FIELD(oh_stream_header, payload_size, 24, 4);
OH_ASSERT_FIELD(oh_stream_header, stride, 28, 4);
OH_ASSERT_FIELD(oh_stream_header, capacity, 32, 8);
OH_ASSERT_FIELD(oh_stream_header, clock_id, 40, 4);
OH_ASSERT_FIELD(oh_stream_header, reserved0, 44, 4);
OH_ASSERT_FIELD(oh_stream_header, stream_id, 48, 8);
OH_ASSERT_FIELD(oh_stream_header, reserved1, 56, 8);
OH_ASSERT_FIELD(oh_stream_header, counter, OH_COUNTER_OFFSET, 8);
OH_ASSERT_FIELD(oh_stream_header, reserved2, 72, 56);
OH_ASSERT_FIELD(oh_stream_header, tail_or_busy, 128, 8);
OH_ASSERT_FIELD(oh_stream_header, lost_nested, 136, 8);
OH_ASSERT_FIELD(oh_stream_header, lost_full, 144, 8);
OH_ASSERT_FIELD(oh_stream_header, ended, 152, 8);
OH_ASSERT_FIELD(oh_stream_header, owner, 160, 8); /* section 5.2 */
OH_ASSERT_FIELD(oh_stream_header, skipped, 168, 8); /* section 5.5 */
OH_ASSERT_FIELD(oh_stream_header, skipped_at, 176, 8);
OH_ASSERT_FIELD(oh_stream_header, skip_runs, 184, 8);
OH_ASSERT_FIELD(oh_stream_header, reserved4, 192, 3904);
OH_STATIC_ASSERT(sizeof(oh_stream_header) == OH_HEADER_SIZE, "oh_stream_header: size");

/* Section 4. */
OH_ASSERT_FIELD(oh_element, stamp, 0, 8);
OH_STATIC_ASSERT(sizeof(oh_element) == 8, "oh_element: size");
OH_ASSERT_FIELD(oh_thread_element, stamp, 0, 8);
OH_ASSERT_FIELD(oh_thread_element, tid, 8, 4);
OH_ASSERT_FIELD(oh_thread_element, flags, 12, 4);
OH_STATIC_ASSERT(sizeof(oh_thread_element) == 16, "oh_thread_element: size");

/* Section 7. */
OH_ASSERT_FIELD(oh_clock_segment, ns, 0, 8);
OH_ASSERT_FIELD(oh_clock_segment, mult, 8, 8);
OH_ASSERT_FIELD(oh_clock_segment, shift, 16, 4);
OH_ASSERT_FIELD(oh_clock_segment, error_ns, 20, 4);
OH_ASSERT_FIELD(oh_clock_segment, epoch, 24, 4);
OH_ASSERT_FIELD(oh_clock_segment, reserved0, 28, 4);
OH_STATIC_ASSERT(sizeof(oh_clock_segment) == 32, "oh_clock_segment: size");

/* Section 8. */
OH_ASSERT_FIELD(oh_control_page, magic, 0, 8);
OH_ASSERT_FIELD(oh_control_page, version, 8, 4);
OH_ASSERT_FIELD(oh_control_page, header_size, 12, 4);
OH_ASSERT_FIELD(oh_control_page, lines, 16, 4);
OH_ASSERT_FIELD(oh_control_page, reserved0, 20, 4);
OH_ASSERT_FIELD(oh_control_page, reserved1, 24, 4072);
OH_STATIC_ASSERT(sizeof(oh_control_page) == OH_HEADER_SIZE, "oh_control_page: size");
OH_ASSERT_FIELD(oh_control_line, enabled, 0, 4);
OH_ASSERT_FIELD(oh_control_line, reserved0, 4, 4);
OH_ASSERT_FIELD(oh_control_line, reclaims, 8, 8);
OH_ASSERT_FIELD(oh_control_line, deferred, 16, 8);
OH_ASSERT_FIELD(oh_control_line, reserved1, 24, 40);
OH_STATIC_ASSERT(sizeof(oh_control_line) == 64, "oh_control_line: size");

/*
 * Problem: section 1 wants atomic operations on shared words, and one header must serve C11 and
 * C++17. C11's <stdatomic.h> cannot be included from C++17, C++'s <atomic> cannot be included from
 * C, and neither promises that _Atomic(uint64_t) and std::atomic<uint64_t> have one layout.
 *
 * The __atomic builtins of GCC and Clang work on plain integers in both languages and have exactly
 * the memory model of C11. Assumption: the compiler is one of these two, and 64-bit accesses are
 * lock-free. A target without them is refused at compile time, instead of calling a lock in
 * libatomic.
 */
#if !defined(__GNUC__)
#error "overhear/abi.h needs the __atomic builtins of GCC or Clang"
#elif __GCC_ATOMIC_LLONG_LOCK_FREE != 2
#error "this target has no lock-free 64-bit words, which the layout needs"
#endif

#endif /* OVERHEAR_ABI_H */
