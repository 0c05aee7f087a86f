/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts the calls of malloc and its kin in a test program, whose own functions replace those of
 * the C library. Included by one source of the program.
 */
#ifndef OVERHEAR_TESTS_ALLOCATIONS_H
#define OVERHEAR_TESTS_ALLOCATIONS_H

#include <stddef.h>
#include <stdint.h>

/* Calls so far; always 0 with another C library than glibc. */
static uint64_t allocations;

#if defined(__GLIBC__)
#ifdef __cplusplus
extern "C" {
#define NOTHROW noexcept
#else
#define NOTHROW
#endif
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *old);

void *malloc(size_t size) NOTHROW
{
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) NOTHROW
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) NOTHROW
{
    allocations++;
    return __libc_realloc(old, size);
}

void free(void *old) NOTHROW
{
    allocations++;
    __libc_free(old);
}
#ifdef __cplusplus
}
#endif
#endif

#endif
