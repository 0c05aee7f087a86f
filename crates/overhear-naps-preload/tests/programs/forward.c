// SPDX-License-Identifier: MIT OR Apache-2.0
// A library that passes the calls of malloc and its relatives on: the least that a preload library
// costs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static void (*next_free)(void *);

void *malloc(size_t size) {
    if (__builtin_expect(!next_malloc, 0))
        next_malloc = dlsym(RTLD_NEXT, "malloc");
    return next_malloc(size);
}

void *calloc(size_t count, size_t size) {
    if (__builtin_expect(!next_calloc, 0))
        next_calloc = dlsym(RTLD_NEXT, "calloc");
    return next_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    if (__builtin_expect(!next_realloc, 0))
        next_realloc = dlsym(RTLD_NEXT, "realloc");
    return next_realloc(block, size);
}

void free(void *block) {
    if (__builtin_expect(!next_free, 0))
        next_free = dlsym(RTLD_NEXT, "free");
    next_free(block);
}
