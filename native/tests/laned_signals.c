/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear. Writes in signal handlers that interrupt writes, by a timer as fast as it goes.
 *
 * Whatever is interrupted where, the lane holds whole elements in the order in which they were
 * committed, and what was not published was counted.
 */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include <overhear/sensor.h>

#include "tap.h"

enum { HANDLED = 400, WORDS = 12, CAPACITY = 64 };

struct sample {
    uint64_t words[WORDS];
};

static oh_laned_sensor *sensor;
static volatile uint64_t handled, published_inside, refused_inside, jumps;
/* A number for the next element; a handler may get the same number as the interrupted program. */
static volatile uint64_t next;
static sigjmp_buf landing;
static volatile sig_atomic_t may_jump;

static oh_laned_sensor *begin(void)
{
    static oh_field fields[WORDS];
    static const char *const names[WORDS] = {"a", "b", "c", "d", "e", "f",
                                             "g", "h", "i", "j", "k", "l"};
    oh_sensor_options options;
    oh_laned_sensor *made;
    int word;
    for (word = 0; word < WORDS; word++) {
        fields[word].name = names[word];
        fields[word].kind = OH_U64;
        fields[word].offset = (uint32_t)word * 8;
        fields[word].size = 8;
    }
    memset(&options, 0, sizeof options);
    options.id = "laned_signals";
    options.type = "laned_signals_sample";
    options.fields = fields;
    options.field_count = WORDS;
    options.size = sizeof(struct sample);
    options.lanes = 2;
    if (oh_laned_register(&made, &options) != 0) {
        printf("Bail out! %s\n", oh_last_error());
        return NULL;
    }
    handled = published_inside = refused_inside = jumps = next = 0;
    return made;
}

/* The lane that the program has claimed. */
static const oh_lane_ *lane(void)
{
    uint32_t at;
    for (at = 0; at < sensor->lane_count; at++) {
        const oh_lane_ *found = &sensor->lanes[at];
        if (((const oh_stream_header *)(const void *)found->base)->owner != 0)
            return found;
    }
    return NULL;
}

/* The lane's elements are intact, and their stamps do not go back. Void ones are skipped. */
static int whole(uint64_t *voids)
{
    const oh_lane_ *at = lane();
    const uint64_t count = at->count;
    uint64_t position = count < CAPACITY ? 0 : count - (CAPACITY - 1);
    uint64_t last = 0;
    for (; position < count; position++) {
        const oh_thread_element *element =
            (const oh_thread_element *)(const void *)oh_lane_slot_(at, position);
        const struct sample *value = (const struct sample *)(const void *)(element + 1);
        int word;
        if (element->stamp < last)
            return 0;
        last = element->stamp;
        if (element->flags & OH_ELEMENT_VOID) {
            ++*voids;
            continue;
        }
        for (word = 1; word < WORDS; word++)
            if (value->words[word] != value->words[0] + (uint64_t)word)
                return 0;
    }
    return 1;
}

static int put(void)
{
    struct sample value;
    int word;
    const uint64_t number = next;
    next = number + 100;
    for (word = 0; word < WORDS; word++)
        value.words[word] = number + (uint64_t)word;
    return oh_laned_put(sensor, &value);
}

static void handle(int number)
{
    (void)number;
    handled++;
    if (put())
        published_inside++;
    else
        refused_inside++;
    if (may_jump && handled % 3 == 0) {
        jumps++;
        siglongjmp(landing, 1);
    }
}

static void start(int flags)
{
    struct sigaction action;
    struct itimerval often;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = flags;
    sigaction(SIGALRM, &action, NULL);
    memset(&often, 0, sizeof often);
    often.it_interval.tv_usec = often.it_value.tv_usec = 50;
    setitimer(ITIMER_REAL, &often, NULL);
}

static void stop(void)
{
    const struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_IGN);
}

/* Writes until enough signals have arrived; returns the number of elements that the program itself
   published. */
static uint64_t write_through_the_storm(uint64_t *refused)
{
    uint64_t published = 0;
    while (handled < HANDLED) {
        struct sample *value;
        uint64_t number;
        volatile int pause;
        int word;
        if (put())
            published++;
        else
            ++*refused;
        value = (struct sample *)oh_laned_write(sensor);
        if (value == NULL) {
            ++*refused;
            continue;
        }
        /* Slowly, so that many signals find the write open. */
        for (pause = 0; pause < 200; pause++)
            ;
        number = next;
        next = number + 100;
        for (word = 0; word < WORDS; word++)
            value->words[word] = number + (uint64_t)word;
        if (oh_laned_commit(sensor))
            published++;
        else
            ++*refused;
    }
    return published;
}

static void storm(int flags, const char *name)
{
    uint64_t refused = 0, voids = 0, published;
    const oh_lane_ *at;
    int good;
    sensor = begin();
    oh_laned_prepare_thread(sensor);
    start(flags);
    published = write_through_the_storm(&refused);
    stop();
    at = lane();
    good = whole(&voids);
    printf("# %llu published, %llu by handlers, %llu refused inside\n",
           (unsigned long long)published, (unsigned long long)published_inside,
           (unsigned long long)refused_inside);
    tap_check(good && voids == 0, name);
    tap_check(refused == 0 && at->count == published + published_inside &&
                  ((const oh_stream_header *)(const void *)at->base)->lost_nested == refused_inside,
              "every write is in the lane or counted");
    tap_check(refused_inside > 0, "some signals found a write open");
    oh_laned_unregister(sensor);
}

/* The handler jumps out of the program's writes, at any instruction. */
static void jumping_storm(int flags, const char *name)
{
    volatile uint64_t refused = 0, published = 0;
    uint64_t voids = 0;
    const oh_lane_ *at;
    sensor = begin();
    oh_laned_prepare_thread(sensor);
    may_jump = 0;
    start(flags);
    sigsetjmp(landing, 1);
    may_jump = 1;
    while (handled < HANDLED) {
        uint64_t lost = 0;
        published += write_through_the_storm(&lost);
        refused += lost;
    }
    may_jump = 0;
    stop();
    at = lane();
    tap_check(whole(&voids) && jumps > 0, name);
    printf("# %llu jumps, %llu refused\n", (unsigned long long)jumps, (unsigned long long)refused);
    put();
    tap_check(at->open == 0 && put() == 1, "the lane goes on");
    oh_laned_unregister(sensor);
}

int main(void)
{
    static char room[64 * 1024];
    stack_t stack;
    memset(&stack, 0, sizeof stack);
    storm(0, "writes in handlers tear nothing");
    jumping_storm(0, "nor do handlers that jump out of writes");
    stack.ss_sp = room;
    stack.ss_size = sizeof room;
    sigaltstack(&stack, NULL);
    storm(SA_ONSTACK, "writes in handlers on the alternate stack tear nothing");
    jumping_storm(SA_ONSTACK, "nor do those that jump from there");
    return tap_done();
}
