// SPDX-License-Identifier: MIT OR Apache-2.0
// An allocator of a program's own, as a library: each block is the beginning of a mapping. So the
// observed mapping has the address of a block that its own `free` must get.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAPPED = 128 * 1024, MAX_BLOCKS = 4096, SMALL = 1 << 20 };

static void *blocks[MAX_BLOCKS];
static unsigned char small[SMALL];
static size_t used;

// What is small comes from memory that is never freed.
static int is_small(const void *block) {
    return (uintptr_t)block - (uintptr_t)small < SMALL;
}

static int is_free(const void *block) {
    return block == NULL;
}

void *malloc(size_t size) {
    if (size < 4096) {
        void *block = small + used;
        used += (size + 15) / 16 * 16;
        if (used > SMALL)
            abort();
        return block;
    }
    if (size > MAPPED)
        return NULL;
    void *block = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (is_free(blocks[i])) {
            blocks[i] = block;
            return block;
        }
    abort();
}

void free(void *block) {
    if (block == NULL || is_small(block))
        return;
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i] == block) {
            blocks[i] = NULL;
            munmap(block, MAPPED);
            return;
        }
    // A block that this allocator did not make.
    abort();
}

void *calloc(size_t count, size_t size) {
    return memset(malloc(count * size), 0, count * size);
}

size_t malloc_usable_size(void *block) {
    return is_small(block) ? 0 : MAPPED;
}

void *realloc(void *block, size_t size) {
    if (block && !is_small(block))
        return size <= MAPPED ? block : NULL;
    unsigned char *new = malloc(size);
    for (size_t i = 0; block && i < size && (uintptr_t)block + i < (uintptr_t)small + SMALL; i++)
        new[i] = ((unsigned char *)block)[i];
    return new;
}

// All blocks of the program were freed here.
__attribute__((destructor)) static void check(void) {
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (!is_free(blocks[i]))
            _exit(9);
}
