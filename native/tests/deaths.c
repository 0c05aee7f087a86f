/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. A writer dies at every instruction of its writes and commits.
 *
 * The memory is shared with a child, which writes. This process lets it execute one instruction
 * after the other, and treats the memory after each as if the child had died there: committed
 * elements are intact, and another writer continues. Then the memory gets the child's state again,
 * and the child continues. At some instructions it really dies.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "queue.h"
#include "stream.h"
#include "tap.h"

/* The writes exceed the memory. At every n-th instruction one child really dies. */
enum { CAPACITY = 4, WRITES = 6, WORDS = 3, PLACES = 53 };

#if defined(__x86_64__)
#define CLOCK OH_CLOCK_X86_TSC
#elif defined(__aarch64__)
#define CLOCK OH_CLOCK_ARM_CNTVCT
#else
#define CLOCK OH_CLOCK_MONOTONIC
#endif

/* Every word of an element is its number plus one. */
struct sample {
    uint64_t words[WORDS];
};

/* A kind of sensor: the work of the child, and the checks of the memory. */
struct subject {
    const char *whole, *goes_on;
    void (*begin)(void);
    /* Writes the elements with the numbers from .. to - 1. */
    void (*write)(uint64_t from, uint64_t to);
    /* The number of committed elements; -1 if a readable one is torn. */
    int64_t (*look)(void);
};

static void *memory;
static size_t memory_bytes;
/* A copy of the memory, while another writer uses it. */
static void *left_by_child;
static oh_sensor simple;
static oh_concurrent_sensor queue;
static oh_laned_sensor laned;
static oh_lane_ lane;

/* liboverhear has these functions for claimed lanes and nested writes. This test causes neither. */
#ifdef __cplusplus
extern "C" {
#endif
oh_lane_ *oh_lane_claim_(oh_laned_sensor *sensor)
{
    (void)sensor;
    return NULL;
}

int oh_lane_interrupt_(oh_laned_sensor *sensor, oh_lane_ *at, uint64_t place, uint32_t mark)
{
    (void)sensor, (void)at, (void)place, (void)mark;
    return 0;
}

void oh_lane_refuse_(oh_lane_ *at)
{
    (void)at;
}

/* The thread's slot, which contains lane 0 as its own. */
enum { KEY = 1 << 13 };
static __thread uint64_t entry = KEY ^ 0;

uint8_t *oh_thread_pointer_(void)
{
    uint8_t *pointer = (uint8_t *)&entry;
#if defined(__x86_64__) && defined(__LP64__)
    __asm__("movq %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__) && defined(__LP64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#endif
    return pointer;
}
#ifdef __cplusplus
}
#endif

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
    /* Another writer continues at the position in the memory. */
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
    /* An element is published by its index word, also if its writer died before it moved the
       head. */
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

static void begin_lane(void)
{
    memset(memory, 0, memory_bytes);
    memset(&lane, 0, sizeof lane);
    lane.base = (uint8_t *)memory;
    lane.words = memory_bytes / 8;
    lane.lead_words = sizeof(oh_thread_element) / 8;
    lane.payload_size = sizeof(struct sample);
    lane.stride_words = lane.lead_words + sizeof(struct sample) / 8;
    lane.capacity = CAPACITY;
    lane.tid = QUEUE_FIRST_TID;
    memset(&laned, 0, sizeof laned);
    laned.enabled = &stream_enabled;
    laned.key = KEY;
    laned.entry_distance = (uint64_t)((uint8_t *)&entry - oh_thread_pointer_());
    laned.lanes = &lane;
    laned.lane_count = 1;
    laned.payload_size = lane.payload_size;
    laned.clock_id = CLOCK;
}

static void write_lane(uint64_t from, uint64_t to)
{
    uint64_t number;
    /* The next owner takes the lane as the memory describes it. */
    lane.count = stream_counter(memory);
    lane.open = 0;
    lane.mark = 0;
    for (number = from; number < to; number++) {
        const struct sample sample = sample_of(number);
        if (number % 2 == 0) {
            oh_laned_put(&laned, &sample);
        } else {
            struct sample *taken = (struct sample *)oh_laned_write(&laned);
            if (taken == NULL)
                return;
            *taken = sample;
            oh_laned_commit(&laned);
        }
    }
}

static int64_t look_lane(void)
{
    const uint64_t count = stream_counter(memory);
    uint64_t number = count < CAPACITY ? 0 : count - (CAPACITY - 1);
    for (; number < count; number++) {
        const void *slot = oh_lane_slot_(&lane, number);
        const oh_thread_element *element = (const oh_thread_element *)slot;
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
    {"behind every instruction of a laned sensor what was committed is whole",
     "and the lane's next owner goes on, wherever the first has died", begin_lane, write_lane,
     look_lane},
    {"behind every instruction of a concurrent sensor what was committed is whole",
     "and the others go on, wherever one has died", begin_queue, write_queue, look_queue},
};

/* A child that is stopped before its write; -1 if this machine does not permit single steps. */
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

/* Executes one instruction; returns 0 if the child has ended. */
static int step(pid_t child)
{
    int status = 0;
    return ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 &&
           waitpid(child, &status, 0) == child && WIFSTOPPED(status);
}

/* Whether others continue, around the memory and past the position. */
static int goes_on(const struct subject *subject, int64_t left)
{
    if (left < 0)
        return 0;
    subject->write((uint64_t)left, (uint64_t)left + 3 * CAPACITY);
    return subject->look() == left + 3 * CAPACITY;
}

/* The end of a child that continued after every instruction. */
struct life {
    uint64_t steps;
    int whole, others_go_on;
};

static struct life look_everywhere(const struct subject *subject, pid_t child)
{
    struct life life = {0, 1, 1};
    int64_t before = 0;
    while (step(child)) {
        const int64_t now = subject->look();
        life.whole &= now == before || now == before + 1;
        before = now;
        life.steps++;
        memcpy(left_by_child, memory, memory_bytes);
        life.others_go_on &= goes_on(subject, now);
        memcpy(memory, left_by_child, memory_bytes);
    }
    life.whole &= before == WRITES;
    return life;
}

/* Dies after this number of instructions; returns whether others continue. */
static int die(const struct subject *subject, uint64_t steps)
{
    const pid_t child = start(subject);
    int status = 0;
    if (child < 0)
        return 0;
    while (steps-- > 0)
        if (!step(child))
            return 0;
    kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
        return 0;
    return goes_on(subject, subject->look());
}

int main(void)
{
    size_t at;
    alarm(100);
    memory_bytes = QUEUE_BYTES(sizeof(struct sample), CAPACITY);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    left_by_child = malloc(memory_bytes);
    if (memory == MAP_FAILED || left_by_child == NULL) {
        printf("Bail out! no shared memory: %s\n", strerror(errno));
        return 1;
    }
    for (at = 0; at < sizeof subjects / sizeof *subjects; at++) {
        const struct subject *subject = &subjects[at];
        const pid_t child = start(subject);
        struct life life;
        uint64_t place;
        int good;
        if (child < 0) {
            tap_skip(subject->whole, "processes cannot be traced here");
            continue;
        }
        life = look_everywhere(subject, child);
        printf("# %llu instructions\n", (unsigned long long)life.steps);
        tap_check(life.steps > 0 && life.whole, subject->whole);
        good = life.others_go_on;
        for (place = 0; place < life.steps; place += PLACES)
            good &= die(subject, place);
        tap_check(good && life.steps > 0, subject->goes_on);
    }
    return tap_done();
}
