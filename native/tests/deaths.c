/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. A writer dies at every instruction of its writes and commits.
 *
 * The memory is shared with a child, which writes. This process lets it execute one instruction after
 * the other, and looks behind each at the stream as if the child had died there: what was committed
 * is whole. At many places the child dies indeed, and another writer goes on.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "queue.h"
#include "stream.h"
#include "tap.h"

/* More is written than the memory holds. Every so many instructions one child dies for good. */
enum { CAPACITY = 4, WRITES = 6, WORDS = 3, PLACES = 53 };

#if defined(__x86_64__)
#define CLOCK OH_CLOCK_X86_TSC
#elif defined(__aarch64__)
#define CLOCK OH_CLOCK_ARM_CNTVCT
#else
#define CLOCK OH_CLOCK_MONOTONIC
#endif

/* Every word of the element with a number is that number and one. */
struct sample {
    uint64_t words[WORDS];
};

/* A kind of sensor: what the child does, and what can be said of the memory. */
struct subject {
    const char *whole, *goes_on;
    void (*begin)(void);
    /* Writes the elements with the numbers from .. to - 1. */
    void (*write)(uint64_t from, uint64_t to);
    /* How many elements were committed; -1 if one that can be read is not whole. */
    int64_t (*look)(void);
};

static void *memory;
static size_t memory_bytes;
static oh_sensor simple;
static oh_concurrent_sensor queue;

static struct sample sample_of(uint64_t number)
{
    struct sample sample;
    int word;
    for (word = 0; word < WORDS; word++)
        sample.words[word] = number + 1;
    return sample;
}

static int is_sample(const void *payload, uint64_t number)
{
    const struct sample expected = sample_of(number);
    return memcmp(payload, &expected, sizeof expected) == 0;
}

static void begin_simple(void)
{
    memset(memory, 0, memory_bytes);
    simple = stream_begin(memory, sizeof(struct sample), CAPACITY, CLOCK, 1);
}

static void write_simple(uint64_t from, uint64_t to)
{
    uint64_t number;
    /* Another writer goes on where the memory says. */
    simple.count = stream_counter(memory);
    for (number = from; number < to; number++) {
        const struct sample sample = sample_of(number);
        if (number % 2 == 0) {
            oh_sensor_put(&simple, &sample);
        } else {
            *(struct sample *)oh_sensor_write(&simple) = sample;
            oh_sensor_commit(&simple);
        }
    }
}

static int64_t look_simple(void)
{
    const uint64_t count = stream_counter(memory);
    uint64_t number = count < CAPACITY ? 0 : count - (CAPACITY - 1);
    for (; number < count; number++)
        if (!is_sample(stream_payload(&simple, number), number) ||
            stream_element(&simple, number)->stamp == 0)
            return -1;
    return (int64_t)count;
}

static void begin_queue(void)
{
    memset(memory, 0, memory_bytes);
    queue = queue_begin(memory, sizeof(struct sample), CAPACITY, CLOCK, 1);
}

static void write_queue(uint64_t from, uint64_t to)
{
    uint64_t number;
    for (number = from; number < to; number++) {
        const struct sample sample = sample_of(number);
        if (number % 2 == 0) {
            oh_concurrent_put(&queue, &sample);
        } else {
            struct sample *taken = (struct sample *)oh_concurrent_write(&queue);
            if (taken == NULL)
                return;
            *taken = sample;
            oh_concurrent_commit(&queue, taken);
        }
    }
}

static int64_t look_queue(void)
{
    const uint64_t head = __atomic_load_n(oh_queue_word_(&queue, OH_COUNTER_OFFSET), __ATOMIC_ACQUIRE);
    const uint64_t index = __atomic_load_n(oh_queue_index_(&queue, head), __ATOMIC_ACQUIRE);
    /* An element is published by its index word, also if its writer died before it moved the head. */
    const uint64_t count = queue_published(&queue) + (oh_queue_ahead_(index, head) >= 0);
    uint64_t number = queue_oldest(&queue);
    if (number + CAPACITY < count)
        number = count - CAPACITY;
    for (; number < count; number++) {
        const oh_thread_element *element = queue_element(&queue, number);
        if (element->flags != 0 || element->tid != QUEUE_FIRST_TID || element->stamp == 0 ||
            !is_sample(element + 1, number))
            return -1;
    }
    return (int64_t)count;
}

static const struct subject subjects[] = {
    {"behind every instruction of a simple sensor what was committed is whole",
     "and another writer goes on, wherever the first has died", begin_simple, write_simple,
     look_simple},
    {"behind every instruction of a concurrent sensor what was committed is whole",
     "and the others go on, wherever one has died", begin_queue, write_queue, look_queue},
};

/* A child that is about to write, stopped; -1 if this machine does not let us step. */
static pid_t start(const struct subject *subject)
{
    int status = 0;
    pid_t child;
    subject->begin();
    fflush(stdout);
    child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(99);
        raise(SIGSTOP);
        subject->write(0, WRITES);
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status) ? child : -1;
}

/* One instruction; 0 if the child has ended. */
static int step(pid_t child)
{
    int status = 0;
    return ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 &&
           waitpid(child, &status, 0) == child && WIFSTOPPED(status);
}

/* How many instructions the child lives; 0 if an element was torn, or the count went back. */
static uint64_t look_everywhere(const struct subject *subject, pid_t child)
{
    uint64_t steps = 0;
    int64_t before = 0;
    int whole = 1;
    while (step(child)) {
        const int64_t now = subject->look();
        whole &= now == before || now == before + 1;
        before = now;
        steps++;
    }
    return whole && before == WRITES ? steps : 0;
}

/* Dies behind so many instructions; whether others go on, around the memory and past the place. */
static int die(const struct subject *subject, uint64_t steps)
{
    const pid_t child = start(subject);
    int64_t left;
    int status = 0;
    if (child < 0)
        return 0;
    while (steps-- > 0)
        if (!step(child))
            return 0;
    kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
        return 0;
    left = subject->look();
    if (left < 0)
        return 0;
    subject->write((uint64_t)left, (uint64_t)left + 3 * CAPACITY);
    return subject->look() == left + 3 * CAPACITY;
}

int main(void)
{
    size_t at;
    alarm(100);
    memory_bytes = QUEUE_BYTES(sizeof(struct sample), CAPACITY);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        printf("Bail out! no shared memory: %s\n", strerror(errno));
        return 1;
    }
    for (at = 0; at < sizeof subjects / sizeof *subjects; at++) {
        const struct subject *subject = &subjects[at];
        const pid_t child = start(subject);
        uint64_t steps, place;
        int good = 1;
        if (child < 0) {
            tap_skip(subject->whole, "processes cannot be traced here");
            continue;
        }
        steps = look_everywhere(subject, child);
        printf("# %llu instructions\n", (unsigned long long)steps);
        tap_check(steps > 0, subject->whole);
        for (place = 0; place < steps; place += PLACES)
            good &= die(subject, place);
        tap_check(good && steps > 0, subject->goes_on);
    }
    return tap_done();
}
