// SPDX-License-Identifier: MIT OR Apache-2.0
// Handlers of signals, and calls of the loader, in the middle of what the library does. Each part
// runs in a child, which must end by itself. Usage: signals exit|locks|loader
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64 * 1024, BLOCKS = 200, PATIENCE_MS = 100000 };

static void rest_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

// The status with which a child ends; it is killed if it waits for ever.
static int status_of(pid_t child) {
    int status;
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
        rest_us(1000);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    fprintf(stderr, "child %d waits for ever\n", (int)child);
    exit(1);
}

static void after_us(long us, long again_us) {
    struct itimerval timer = {{0, again_us}, {0, us}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static unsigned char *filled(int value) {
    unsigned char *block = malloc(SIZE);
    if (!block)
        abort();
    memset(block, value, SIZE);
    return block;
}

static void end_at_once(int signal) {
    (void)signal;
    _exit(3);
}

// A handler that ends the process interrupts the end of the process.
static void end_twice(long us) {
    for (int i = 0; i < BLOCKS; i++)
        filled(i);
    rest_us(20000);
    signal(SIGALRM, end_at_once);
    after_us(us, 0);
    _exit(3);
}

static volatile sig_atomic_t interruptions;

// Functions that a handler of signals may call, or that programs call there.
static void interrupt(int signal) {
    (void)signal;
    int error = errno;
    interruptions++;
    void *place = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        abort();
    memset(place, 7, SIZE);
    madvise(place, SIZE, MADV_DONTNEED);
    munmap(place, SIZE);
    if (interruptions % 16 == 0) {
        pid_t child = _Fork();
        if (child == 0)
            _exit(4);
        int status;
        while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        if (child > 0 && status != 4 << 8)
            abort();
    }
    errno = error;
}

static void interrupted_hooks(void) {
    signal(SIGALRM, interrupt);
    after_us(300, 300);
    unsigned char *blocks[64] = {0};
    for (int i = 0; interruptions < 3000; i++) {
        unsigned char **block = &blocks[i % 64];
        if (*block && (*block)[SIZE - 1] != (unsigned char)(i - 64))
            abort();
        free(*block);
        *block = filled(i);
        if (i % 512 == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit((*block)[5] != (unsigned char)i);
            int status;
            while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                ;
            if (status != 0)
                abort();
        }
    }
    after_us(0, 0);
    _exit(3);
}

// The only thread of the program locks the loader again and again, while the library's thread
// begins and works.
static void busy_loader(int round) {
    unsigned char *blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = filled(i);
    for (int i = 0; i < 20000 + 100 * round; i++) {
        if (dlsym(RTLD_DEFAULT, "there_is_no_such_function"))
            abort();
        if (blocks[i % 8][i % SIZE] != i % 8)
            abort();
    }
    _exit(3);
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    int rounds = !strcmp(part, "exit") ? 40 : !strcmp(part, "loader") ? 40 : !strcmp(part, "locks");
    for (int i = 0; i < rounds; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (part[0] == 'e')
                end_twice(50 + i * 40);
            if (part[1] == 'o' && part[2] == 'c')
                interrupted_hooks();
            busy_loader(i);
        }
        int status = status_of(child);
        if (status != 3 << 8) {
            fprintf(stderr, "%s %d: status %x\n", part, i, status);
            return 1;
        }
    }
    return rounds == 0;
}
