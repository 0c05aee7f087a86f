// SPDX-License-Identifier: MIT OR Apache-2.0
// A library that ends the process if the thread of the preload library looks up a function,
// allocates memory of the program, or takes a mutex of the C library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/prctl.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void __libc_free(void *block);

static void *(*next_dlsym)(void *, const char *);
static int (*next_lock)(pthread_mutex_t *);

__attribute__((constructor)) static void look_up(void) {
    next_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!next_dlsym)
        next_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    next_lock = next_dlsym(RTLD_NEXT, "pthread_mutex_lock");
}

static void check(const char *name) {
    char own[16] = "";
    syscall(SYS_prctl, PR_GET_NAME, own, 0, 0, 0);
    if (strcmp(own, "overhear-naps") == 0) {
        (void)!write(2, name, strlen(name));
        _exit(99);
    }
}

void *dlsym(void *library, const char *name) {
    check("dlsym\n");
    if (!next_dlsym)
        look_up();
    return next_dlsym(library, name);
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    check("pthread_mutex_lock\n");
    if (!next_lock)
        look_up();
    return next_lock(mutex);
}

void *malloc(size_t size) {
    check("malloc\n");
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    check("calloc\n");
    return __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    check("realloc\n");
    return __libc_realloc(block, size);
}

void free(void *block) {
    check("free\n");
    __libc_free(block);
}
