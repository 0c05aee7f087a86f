/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Publication in a ring, and its claim where interrupts cannot be masked (sched.bpf.c, rules 3
 * and 4).
 */
#pragma once

#include "core.h"
#include "elements.h"

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
