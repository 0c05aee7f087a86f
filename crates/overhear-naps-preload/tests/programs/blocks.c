// SPDX-License-Identifier: MIT OR Apache-2.0
// Blocks below the least observed size, from whichever allocator is loaded.
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    for (int round = 0; round < 50; round++) {
        unsigned char *blocks[16];
        for (int i = 0; i < 16; i++) {
            blocks[i] = malloc(8000);
            memset(blocks[i], i, 8000);
        }
        usleep(3000);
        for (int i = 0; i < 16; i++) {
            if (malloc_usable_size(blocks[i]) != 128 * 1024)
                return 3;
            blocks[i] = realloc(blocks[i], 9000);
            if (blocks[i][7999] != i)
                return 2;
            free(blocks[i]);
        }
    }
    return 0;
}
