/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Makes the number of system calls (getppid) and of calls of `budget_step` that the arguments give,
 * one after the other, with some work between: as many times half a microsecond as the third
 * argument gives, once by default.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noinline)) uint64_t budget_step(uint64_t state)
{
    __asm__ volatile("" : "+r"(state));
    return state + 1;
}

static uint64_t work(uint64_t state, uint64_t times)
{
    for (uint64_t step = 0; step < 500 * times; step++) {
        state = state * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(state));
    }
    return state;
}

int main(int argc, char **argv)
{
    const uint64_t calls = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    const uint64_t times = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    uint64_t state = 1;
    for (uint64_t call = 0; call < calls; call++) {
        state = work(state, times);
        syscall(SYS_getppid);
    }
    for (uint64_t step = 0; step < steps; step++)
        state = budget_step(work(state, times));
    return state == 0;
}
