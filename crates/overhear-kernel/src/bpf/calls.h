/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * System calls: their arguments, and what they do.
 */
#pragma once

#include "core.h"

static always_inline u64 first_argument(struct pt_regs *regs)
{
#if defined(OVERHEAR_ARCH_X86_64)
	return regs->di;
#elif defined(OVERHEAR_ARCH_AARCH64)
	return regs->regs[0];
#else
	return 0;
#endif
}

static always_inline u64 second_argument(struct pt_regs *regs)
{
#if defined(OVERHEAR_ARCH_X86_64)
	return regs->si;
#elif defined(OVERHEAR_ARCH_AARCH64)
	return regs->regs[1];
#else
	return 0;
#endif
}

static always_inline bool is_futex_wait(u64 operation)
{
	enum { FUTEX_WAIT = 0, LOCK_PI = 6, WAIT_BITSET = 9, WAIT_REQUEUE_PI = 11, LOCK_PI2 = 13 };
	u32 command = operation & 0x7f;

	return command == FUTEX_WAIT || command == LOCK_PI || command == WAIT_BITSET ||
	       command == WAIT_REQUEUE_PI || command == LOCK_PI2;
}
