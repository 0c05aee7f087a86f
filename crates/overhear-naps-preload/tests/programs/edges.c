// SPDX-License-Identifier: MIT OR Apache-2.0
// What an observed program may do with its memory. Each part checks its own result; the program
// ends with status 0, or names the part that failed. Blocks get time to be protected in between.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <malloc.h>
#include <spawn.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 256 * 1024 };

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s (%s)\n", __func__, __LINE__, #x, strerror(errno));          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// The handler protects what nobody accesses for a while.
static void rest(void) {
    struct timespec t = {0, 60000000};
    nanosleep(&t, NULL);
}

static unsigned char *filled(size_t size, int value) {
    unsigned char *block = malloc(size);
    CHECK(block);
    memset(block, value, size);
    rest();
    return block;
}

static int holds(const unsigned char *block, size_t size, int value) {
    for (size_t i = 0; i < size; i++)
        if (block[i] != value)
            return 0;
    return 1;
}

static void system_calls(void) {
    unsigned char *a = filled(SIZE, 1), *b = filled(SIZE, 2);
    char name[] = "/tmp/overhear-naps-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    CHECK(write(fd, a, SIZE) == SIZE);
    CHECK(pread(fd, b, SIZE, 0) == SIZE);
    CHECK(holds(b, SIZE, 1));
    rest();
    struct iovec parts[2] = {{a, SIZE}, {b, SIZE}};
    CHECK(pwritev(fd, parts, 2, 0) == 2 * SIZE);
    memset(a, 0, SIZE);
    rest();
    CHECK(preadv(fd, parts, 2, 0) == 2 * SIZE);
    CHECK(holds(a, SIZE, 1));
    int ends[2];
    CHECK(pipe(ends) == 0);
    rest();
    CHECK(write(ends[1], a + 100, 4096) == 4096);
    rest();
    CHECK(read(ends[0], b + 5000, 4096) == 4096);
    close(ends[0]), close(ends[1]), close(fd);
    // A path and a time in protected memory.
    strcpy((char *)a, "/");
    rest();
    CHECK(access((char *)a, F_OK) == 0);
    rest();
    CHECK(syscall(SYS_clock_gettime, CLOCK_REALTIME, a) == 0);
    free(a), free(b);
}

static void direct_io(void) {
    char name[] = "/var/tmp/overhear-naps-XXXXXX";
    int plain = mkstemp(name);
    CHECK(plain >= 0);
    int fd = open(name, O_RDWR | O_DIRECT);
    unlink(name);
    close(plain);
    if (fd < 0)
        return;
    void *place;
    CHECK(posix_memalign(&place, 4096, SIZE) == 0);
    unsigned char *a = place;
    for (int round = 0; round < 5; round++) {
        memset(a, round, SIZE);
        rest();
        if (pwrite(fd, a, SIZE, 0) != SIZE)
            return;
        memset(a, 255, SIZE);
        rest();
        CHECK(pread(fd, a, SIZE, 0) == SIZE);
        CHECK(holds(a, SIZE, round));
    }
    close(fd);
    free(a);
}

static volatile int *volatile invalid = (volatile int *)8;
static sigjmp_buf back;
static volatile int caught;
static void handler(int signal) {
    (void)signal;
    caught++;
    siglongjmp(back, 1);
}

static void own_handler(void) {
    unsigned char *a = filled(SIZE, 3);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER}, before;
    CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    CHECK(holds(a, SIZE, 3));
    CHECK(caught == 0);
    if (sigsetjmp(back, 1) == 0)
        *invalid = 1;
    CHECK(caught == 1);
    CHECK(sigaction(SIGSEGV, &before, &action) == 0);
    CHECK(action.sa_handler == handler);
    free(a);
}

static void forks(void) {
    unsigned char *a = filled(SIZE, 4), *b = filled(8 << 20, 5);
    for (int round = 0; round < 8; round++) {
        rest();
        pid_t child = round % 4 == 1 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : round % 4 == 2 ? _Fork() : fork();
        CHECK(child >= 0);
        if (child == 0) {
            // The child has a copy of its own.
            int good = holds(a, SIZE, 4) && holds(b, 8 << 20, 5);
            memset(a, 9, SIZE);
            if (round == 0) {
                free(b);
                unsigned char *c = malloc(SIZE);
                memset(c, 1, SIZE);
                usleep(50000);
                good = good && holds(c, SIZE, 1);
                pid_t second = fork();
                if (second == 0)
                    _exit(!(holds(a, SIZE, 9) && holds(c, SIZE, 1)));
                int status;
                good = good && waitpid(second, &status, 0) == second && status == 0;
            }
            _exit(!good);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(holds(a, SIZE, 4));
    rest();
    char *const words[] = {"true", NULL};
    extern char **environ;
    pid_t child;
    int status;
    CHECK(posix_spawnp(&child, "true", NULL, NULL, words, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(system("true") == 0);
    CHECK(holds(b, 8 << 20, 5));
    free(a), free(b);
}

static void advice(void) {
    unsigned char *a = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED);
    for (int raw = 0; raw < 2; raw++) {
        memset(a, 6, SIZE);
        rest();
        long result = raw ? syscall(SYS_madvise, a, (size_t)SIZE / 2, MADV_DONTNEED)
                          : madvise(a, SIZE / 2, MADV_DONTNEED);
        CHECK(result == 0);
        CHECK(holds(a, SIZE / 2, 0));
        CHECK(holds(a + SIZE / 2, SIZE / 2, 6));
    }
    rest();
    CHECK(mprotect(a, 4096, PROT_READ) == 0);
    CHECK(holds(a, 4096, 0));
    rest();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER}, before;
    CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    int count = caught;
    if (sigsetjmp(back, 1) == 0)
        a[0] = 1;
    CHECK(caught == count + 1);
    CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
    // Half of it goes away, the other half stays.
    CHECK(munmap(a, SIZE / 2) == 0);
    rest();
    CHECK(holds(a + SIZE / 2, SIZE / 2, 6));
    CHECK(munmap(a + SIZE / 2, SIZE / 2) == 0);
    unsigned char *b = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(b, 7, SIZE);
    rest();
    b = mremap(b, SIZE, 4 * SIZE, MREMAP_MAYMOVE);
    CHECK(b != MAP_FAILED && holds(b, SIZE, 7) && holds(b + SIZE, 3 * SIZE, 0));
    rest();
    CHECK(munmap(b, 4 * SIZE) == 0);
}

static void resizing(void) {
    unsigned char *a = filled(20000, 8);
    for (size_t size = 20000, next; size < (32u << 20); size = next) {
        next = size * 2 + 777;
        if (size % 3 == 0)
            rest();
        a = realloc(a, next);
        CHECK(a && holds(a, size, 8));
        memset(a, 8, next);
    }
    rest();
    for (size_t size = 16u << 20; size > 100; size /= 3) {
        a = realloc(a, size);
        CHECK(a && holds(a, size, 8));
        if (size > 1u << 20)
            rest();
    }
    free(a);
    unsigned char *z = calloc(1, SIZE);
    CHECK(holds(z, SIZE, 0));
    memset(z, 1, SIZE);
    free(z);
    for (int i = 0; i < 100; i++) {
        z = calloc(1, SIZE);
        CHECK(holds(z, SIZE, 0));
        memset(z, 1, SIZE);
        CHECK(malloc_usable_size(z) >= SIZE);
        free(z);
    }
    for (size_t align = 16; align <= 1u << 21; align *= 2) {
        void *p = aligned_alloc(align, SIZE);
        CHECK(p && (uintptr_t)p % align == 0);
        free(p);
        CHECK(posix_memalign(&p, align, SIZE) == 0 && (uintptr_t)p % align == 0);
        p = realloc(p, 2 * SIZE);
        CHECK(p);
        free(p);
    }
    free(valloc(SIZE));
    free(pvalloc(SIZE));
    volatile size_t huge = SIZE_MAX / 2;
    CHECK(reallocarray(NULL, huge, 3) == NULL && errno == ENOMEM);
    CHECK(malloc(huge) == NULL && calloc(huge, 4) == NULL);
}

static unsigned char *shared[64];
static void *worker(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < 3000; i++) {
        int at = (int)((uintptr_t)argument * 8 + (unsigned)rand_r(&seed) % 8);
        if (!shared[at]) {
            shared[at] = malloc(16384 + (unsigned)rand_r(&seed) % 100000);
            memset(shared[at], at, 16384);
        } else if (rand_r(&seed) % 4 == 0) {
            CHECK(holds(shared[at], 16384, at));
            free(shared[at]);
            shared[at] = NULL;
        } else {
            CHECK(shared[at][(unsigned)rand_r(&seed) % 16384] == at);
            shared[at][(unsigned)rand_r(&seed) % 16384] = (unsigned char)at;
        }
        if (i % 50 == 0)
            usleep(1000);
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[8];
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&thread[i], NULL, worker, (void *)i) == 0);
    // Forks while others allocate and the handler protects.
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        usleep(3000);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(thread[i], NULL);
}

static void *on_own_stack(void *argument) {
    unsigned char local[10000];
    memset(local, 1, sizeof local);
    for (int i = 0; i < 3; i++)
        rest();
    *(int *)argument = holds(local, sizeof local, 1);
    return NULL;
}

static void stacks(void) {
    // A stack in an allocation, as coroutines and some threads have it.
    void *stack = filled(SIZE, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstack(&attributes, stack, SIZE) == 0);
    pthread_t thread;
    int good = 0;
    CHECK(pthread_create(&thread, &attributes, on_own_stack, &good) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && good);
    free(stack);
    // An alternate stack for signals.
    stack_t alternate = {.ss_sp = filled(SIZE, 0), .ss_size = SIZE}, none = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    rest();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER | SA_ONSTACK}, before;
    CHECK(sigaction(SIGUSR1, &action, &before) == 0);
    int count = caught;
    if (sigsetjmp(back, 1) == 0)
        raise(SIGUSR1);
    CHECK(caught == count + 1);
    CHECK(sigaltstack(&none, NULL) == 0);
    free(alternate.ss_sp);
}

static void huge_pages(void) {
    unsigned char *a;
    CHECK(posix_memalign((void **)&a, 4096, 16u << 20) == 0);
    madvise(a, 16u << 20, MADV_HUGEPAGE);
    memset(a, 5, 16u << 20);
    rest();
    CHECK(holds(a, 16u << 20, 5));
    free(a);
    a = filled(16u << 20, 5);
    CHECK(holds(a, 16u << 20, 5));
    free(a);
}

static void descriptors(void) {
    unsigned char *a = filled(SIZE, 4);
    int first = open("/dev/null", O_RDONLY);
    CHECK(first == 3);
    closefrom(3);
    rest();
    CHECK(holds(a, SIZE, 4));
    // A reader sees the end of a pipe when its only writer is closed.
    int ends[2];
    CHECK(pipe(ends) == 0);
    unsigned char *b = filled(SIZE, 2);
    close(ends[1]);
    CHECK(read(ends[0], b, 1) == 0);
    close(ends[0]);
    free(a), free(b);
}

static void namespaces(void) {
    unsigned char *a = filled(SIZE, 4);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *b = filled(SIZE, 7);
        // The kernel allows this for a process with one thread alone.
        int result = unshare(CLONE_NEWUSER);
        int good = result == 0 || errno == EPERM || errno == ENOSPC;
        if (!good)
            perror("unshare");
        good = good && holds(b, SIZE, 7);
        _exit(!good + 2 * !holds(a, SIZE, 4));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        fprintf(stderr, "status %#x\n", (unsigned)status);
    CHECK(status == 0);
    free(a);
}

static void *count_up(void *argument) {
    // Without locks, two threads that use one allocator destroy its lists.
    for (int i = 0; i < 200000; i++)
        free(malloc(2000 + (unsigned)i % 3000));
    return argument;
}

static void credentials(void) {
    unsigned char *a = filled(SIZE, 4);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *b = filled(SIZE, 7);
        // All threads get the new user, also the one of the library.
        uid_t user = getuid() == 0 ? 65534 : getuid();
        int good = setresuid(user, user, user) == 0;
        DIR *tasks = opendir("/proc/self/task");
        for (struct dirent *task; tasks && (task = readdir(tasks));) {
            char name[300], line[200];
            unsigned of_task = user;
            snprintf(name, sizeof name, "/proc/self/task/%s/status", task->d_name);
            FILE *status = task->d_name[0] == '.' ? NULL : fopen(name, "r");
            while (status && fgets(line, sizeof line, status))
                sscanf(line, "Uid: %u", &of_task);
            if (status)
                fclose(status);
            good = good && of_task == user;
        }
        pthread_t thread[4];
        for (int i = 0; i < 4; i++)
            good = good && pthread_create(&thread[i], NULL, count_up, NULL) == 0;
        for (int i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        _exit(!(good && holds(b, SIZE, 7) && holds(a, SIZE, 4)));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    free(a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        // First: as long as the program has one thread.
        {"credentials", credentials}, {"descriptors", descriptors}, {"system_calls", system_calls}, {"direct_io", direct_io},
        {"own_handler", own_handler}, {"forks", forks},               {"advice", advice},
        {"resizing", resizing},       {"threads", threads},           {"stacks", stacks},
        {"huge_pages", huge_pages},   {"namespaces", namespaces},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc < 2 || strcmp(argv[1], parts[i].name) == 0)
            parts[i].run();
    puts("all parts held");
    return 0;
}
