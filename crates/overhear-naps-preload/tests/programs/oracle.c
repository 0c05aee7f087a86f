// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that knows its accesses: it logs, for each block, when an access began and when it was
// complete. Usage: oracle FILE SECONDS THREADS
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 36, SHARED = 8, LOG = 400000, HUGE_BYTES = 4 << 20 };

// How a block is accessed.
enum {
    LOAD,
    STORE,
    CALL_WRITES, // A system call writes into the block.
    CALL_READS,  // A system call reads from the block.
    SIGNAL,      // A signal handler reads it.
    DIRECT,      // Direct I/O into it.
    REMOTE,      // The kernel reads it as a debugger does.
    RESIZE,      // It moves.
    DISCARD,     // Its pages go away, and are written again.
    HUGE,        // It has huge pages, where the kernel grants them.
    IN_CHILD,    // A child of fork changes its copy. This is no access of the program.
    KINDS,
};

typedef struct {
    unsigned char *data;
    size_t size;
    uint64_t period_ns, next_ns;
    int kind, value;
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

static void must(int condition) {
    if (!condition)
        abort();
}

static __thread block *of_signal;
static __thread size_t signal_at;

static void read_in_handler(int signal) {
    (void)signal;
    must(of_signal->data[signal_at] == of_signal->value);
}

static char direct_name[] = "/var/tmp/overhear-naps-XXXXXX";
static int zero, null, direct = -1;

// A file for direct I/O: a page of each value. File systems without direct I/O have none.
static void open_direct(void) {
    int plain = mkstemp(direct_name);
    must(plain >= 0);
    unsigned char page[4096];
    for (int value = 0; value < BLOCKS; value++) {
        memset(page, value, sizeof page);
        must(write(plain, page, sizeof page) == sizeof page);
    }
    fsync(plain);
    direct = open(direct_name, O_RDONLY | O_DIRECT);
    close(plain);
    unlink(direct_name);
}

static void make(block *b, int number, unsigned *seed) {
    b->kind = number % KINDS;
    b->value = number;
    b->size = b->kind == HUGE ? HUGE_BYTES : 16384u * (1u + (unsigned)rand_r(seed) % 40u);
    b->data = malloc(b->size);
    // From permanently hot to idle for seconds, and some never again.
    b->period_ns = number % 6 == 5 ? UINT64_MAX : 1000000ull << (rand_r(seed) % 12);
    if (b->kind == HUGE)
        madvise(b->data, b->size, MADV_HUGEPAGE);
    memset(b->data, b->value, b->size);
    b->next_ns = now();
}

// The block keeps its pattern: what is read is what was written. Returns whether it was accessed.
static int access_block(block *b, unsigned *seed) {
    size_t at = (unsigned)rand_r(seed) % (b->size - 64);
    unsigned char *place = b->data + at, copy[64];
    switch (b->kind) {
    case HUGE:
    case LOAD:
        must(*place == b->value);
        break;
    case STORE:
        *(volatile unsigned char *)place = (unsigned char)b->value;
        break;
    case CALL_WRITES:
        must(pread(zero, place, 64, 0) == 64);
        memset(place, b->value, 64);
        break;
    case CALL_READS:
        must(write(null, place, 64) == 64 && *place == b->value);
        break;
    case SIGNAL:
        of_signal = b, signal_at = at;
        raise(SIGUSR1);
        break;
    case DIRECT:
        place = b->data + at / 4096 * 4096;
        if (direct < 0 || pread(direct, place, 4096, 4096L * b->value) != 4096)
            return 0;
        break;
    case REMOTE: {
        struct iovec here = {copy, 64}, there = {place, 64};
        must(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 64 && copy[63] == b->value);
        break;
    }
    case DISCARD:
        place = (unsigned char *)(((uintptr_t)place + 4095) & ~(uintptr_t)4095);
        if (place + 4096 > b->data + b->size)
            return 0;
        must(madvise(place, 4096, MADV_DONTNEED) == 0);
        memset(place, b->value, 4096);
        break;
    case IN_CHILD: {
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            int good = *place == b->value;
            memset(b->data, 255, b->size);
            _exit(!good);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0);
        return 0;
    }
    }
    return 1;
}

// Blocks that all threads read.
static block shared[SHARED];

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument + 1;
    entry *log = calloc(LOG, sizeof *log);
    size_t count = 0;
    block blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        make(&blocks[i], i, &seed);
    uint64_t shared_next_ns = now();
    while (now() < end_ns) {
        for (int i = 0; i < BLOCKS; i++) {
            block *b = &blocks[i];
            uint64_t before = now();
            if (b->period_ns == UINT64_MAX || before < b->next_ns || count == LOG)
                continue;
            if (b->kind == RESIZE) {
                size_t size = 16384u * (1u + (unsigned)rand_r(&seed) % 40u);
                unsigned char *moved = realloc(b->data, size);
                must(moved && moved[0] == b->value);
                b->data = moved;
                must(moved[(size < b->size ? size : b->size) - 1] == b->value);
                b->size = size;
                memset(b->data, b->value, b->size);
            } else if (!access_block(b, &seed)) {
                b->next_ns = before + b->period_ns;
                continue;
            }
            uint64_t after = now();
            log[count++] = (entry){(uint64_t)(uintptr_t)b->data, before, after};
            b->next_ns = after + b->period_ns;
        }
        uint64_t before = now();
        if (before >= shared_next_ns && count < LOG) {
            block *b = &shared[(unsigned)rand_r(&seed) % SHARED];
            must(b->data[(unsigned)rand_r(&seed) % b->size] == b->value);
            log[count++] = (entry){(uint64_t)(uintptr_t)b->data, before, now()};
            shared_next_ns = before + 200000000u;
        }
        usleep(200);
    }
    for (int i = 0; i < BLOCKS; i++)
        for (size_t k = 0; k < blocks[i].size; k++)
            must(blocks[i].data[k] == i);
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
    zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    open_direct();
    must(signal(SIGUSR1, read_in_handler) != SIG_ERR);
    for (int i = 0; i < SHARED; i++) {
        shared[i] = (block){.data = malloc(50000), .size = 50000, .value = i};
        memset(shared[i].data, i, 50000);
    }
    pthread_t thread[16];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    fclose(out);
    return 0;
}
