// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that knows its accesses: it logs, for each block, when an access began and when it was
// complete. Usage: oracle FILE SECONDS THREADS
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 24, LOG = 400000 };

typedef struct {
    unsigned char *data;
    size_t size;
    uint64_t period_ns, next_ns;
    int kind;
} block;

typedef struct {
    uint64_t address, before_ns, after_ns;
} entry;

static uint64_t end_ns;
static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument + 1;
    entry *log = calloc(LOG, sizeof *log);
    size_t count = 0;
    block blocks[BLOCKS];
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &blocks[i];
        b->size = 16384u * (1u + (unsigned)rand_r(&seed) % 40u);
        b->data = malloc(b->size);
        // From permanently hot to idle for seconds, and some never again.
        b->period_ns = i % 6 == 5 ? UINT64_MAX : 1000000ull << (rand_r(&seed) % 12);
        b->kind = i % 4;
        memset(b->data, i, b->size);
        b->next_ns = now();
    }
    while (now() < end_ns) {
        for (int i = 0; i < BLOCKS; i++) {
            block *b = &blocks[i];
            uint64_t before = now();
            if (b->period_ns == UINT64_MAX || before < b->next_ns || count == LOG)
                continue;
            size_t at = (unsigned)rand_r(&seed) % (b->size - 64);
            // The block keeps its pattern: what is read is what was written.
            switch (b->kind) {
            case 0:
                if (b->data[at] != i)
                    abort();
                break;
            case 1:
                *(volatile unsigned char *)&b->data[at] = (unsigned char)i;
                break;
            case 2: // A system call writes into the block.
                if (pread(zero, b->data + at, 64, 0) != 64)
                    abort();
                memset(b->data + at, i, 64);
                break;
            case 3: // A system call reads from the block.
                if (write(null, b->data + at, 64) != 64 || b->data[at] != i)
                    abort();
                break;
            }
            uint64_t after = now();
            log[count++] = (entry){(uint64_t)(uintptr_t)b->data, before, after};
            b->next_ns = after + b->period_ns;
        }
        usleep(200);
    }
    for (int i = 0; i < BLOCKS; i++)
        for (size_t k = 0; k < blocks[i].size; k++)
            if (blocks[i].data[k] != i)
                abort();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%lu %lu %lu\n", log[i].address, log[i].before_ns, log[i].after_ns);
    fflush(out);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    out = fopen(argv[1], "w");
    end_ns = now() + (uint64_t)(atof(argv[2]) * 1e9);
    int threads = atoi(argv[3]);
    pthread_t thread[16];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    fclose(out);
    return 0;
}
