// SPDX-License-Identifier: MIT OR Apache-2.0
// A million large allocations, each of which is filled, read and freed soon. Usage: churn
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 1000000, LIVE = 64 };

int main(void) {
    unsigned char *live[LIVE] = {0};
    uint64_t sum = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        unsigned char **place = &live[i * 7919u % LIVE];
        if (*place)
            sum += (*place)[i % 16384];
        free(*place);
        size_t size = 16384 + i % 32768;
        *place = malloc(size);
        if (!*place)
            abort();
        memset(*place, (int)i, size);
    }
    printf("%lu\n", sum);
    return 0;
}
