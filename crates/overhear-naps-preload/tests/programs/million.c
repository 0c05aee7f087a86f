// SPDX-License-Identifier: MIT OR Apache-2.0
// A million allocations that live at one time, most of them small, then as many that take their
// places. Some are used again and again, others never. Usage: million
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 1000000 };

static uint64_t state = 88172645463325252u;

static uint64_t drawn(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

typedef struct {
    unsigned char *data;
    uint32_t size;
    unsigned char value;
} block;

static void fill(block *b) {
    uint64_t draw = drawn() % 1000;
    // 95 % are small, 4 % have some KiB, 1 % have 16 to 48 KiB.
    uint32_t size = draw < 950 ? 16 + drawn() % 500 : draw < 990 ? 1024 + drawn() % 7168 : 16384 + drawn() % 32768;
    b->data = malloc(size);
    if (!b->data)
        abort();
    b->size = size;
    b->value = (unsigned char)drawn();
    memset(b->data, b->value, size);
}

int main(void) {
    block *blocks = calloc(BLOCKS, sizeof *blocks);
    uint64_t sum = 0;
    for (int i = 0; i < BLOCKS; i++)
        fill(&blocks[i]);
    for (int round = 0; round < 4 * BLOCKS; round++) {
        // A tenth of the blocks is used nine times of ten.
        int range = drawn() % 10 == 0 ? BLOCKS : BLOCKS / 10;
        block *b = &blocks[drawn() % (unsigned)range];
        if (b->data[drawn() % b->size] != b->value)
            abort();
        sum += b->value;
        if (round % 4 == 0) {
            free(b->data);
            fill(b);
        }
    }
    printf("%lu\n", sum);
    return 0;
}
