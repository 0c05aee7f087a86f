/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear; sanitizes: threads. Laned sensors, written from threads and read back from
   private memory. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/sensor.h>

#include "tap.h"

enum { THREADS = 3, ELEMENTS = 20 };

struct sample {
    uint64_t value;
    uint64_t tenfold;
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, value, ""),
    OH_FIELD_U64(struct sample, tenfold, ""),
};

static oh_laned_sensor *begin(uint32_t lanes)
{
    oh_sensor_options options;
    oh_laned_sensor *sensor;
    memset(&options, 0, sizeof options);
    options.id = "laned";
    options.type = "laned_sample";
    options.fields = fields;
    options.field_count = 2;
    options.size = sizeof(struct sample);
    options.lanes = lanes;
    if (oh_laned_register(&sensor, &options) != 0) {
        printf("Bail out! %s\n", oh_last_error());
        return NULL;
    }
    return sensor;
}

static uint64_t counter(const oh_lane_ *lane)
{
    return __atomic_load_n(&((const oh_stream_header *)(const void *)lane->base)->counter,
                           __ATOMIC_ACQUIRE);
}

static const oh_thread_element *element(const oh_lane_ *lane, uint64_t position)
{
    return (const oh_thread_element *)(const void *)oh_lane_slot_(lane, position);
}

/* The element contains the value that its thread wrote at this position. */
static int is(const oh_lane_ *lane, uint64_t position, uint64_t value)
{
    const oh_thread_element *at = element(lane, position);
    const struct sample *payload = (const struct sample *)(const void *)(at + 1);
    return at->flags == 0 && at->stamp != 0 && payload->value == value &&
           payload->tenfold == value * 10;
}

static uint64_t lost_nested(const oh_lane_ *lane)
{
    return ((const oh_stream_header *)(const void *)lane->base)->lost_nested;
}

static uint64_t lost_full(const oh_laned_sensor *sensor)
{
    const uint8_t *pool = sensor->lanes[0].base - OH_HEADER_SIZE;
    return ((const oh_stream_header *)(const void *)pool)->lost_full;
}

static int put(oh_laned_sensor *sensor, uint64_t value)
{
    struct sample sample;
    sample.value = value;
    sample.tenfold = value * 10;
    return oh_laned_put(sensor, &sample);
}

static void *write_all(void *argument)
{
    oh_laned_sensor *sensor = (oh_laned_sensor *)argument;
    uint64_t value;
    for (value = 0; value < ELEMENTS; value += 2) {
        struct sample *payload;
        if (!put(sensor, value))
            return NULL;
        payload = (struct sample *)oh_laned_write(sensor);
        if (payload == NULL)
            return NULL;
        payload->value = value + 1;
        payload->tenfold = (value + 1) * 10;
        if (!oh_laned_commit(sensor))
            return NULL;
    }
    return (void *)(uintptr_t)syscall(SYS_gettid);
}

static void each_thread_writes_a_lane(void)
{
    oh_laned_sensor *sensor = begin(THREADS + 1);
    pthread_t threads[THREADS];
    uint32_t tids[THREADS];
    uint32_t lane;
    int thread, whole = 1, found = 0;
    for (thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], NULL, write_all, sensor);
    for (thread = 0; thread < THREADS; thread++) {
        void *tid;
        pthread_join(threads[thread], &tid);
        tids[thread] = (uint32_t)(uintptr_t)tid;
    }
    for (lane = 0; lane < sensor->lane_count; lane++) {
        const oh_lane_ *at = &sensor->lanes[lane];
        uint64_t position;
        if (counter(at) == 0)
            continue;
        whole &= counter(at) == ELEMENTS;
        for (thread = 0; thread < THREADS; thread++)
            found += tids[thread] != 0 && element(at, 0)->tid == tids[thread];
        for (position = 0; position < ELEMENTS; position++)
            whole &= is(at, position, position) && element(at, position)->tid == element(at, 0)->tid;
    }
    tap_check(whole, "every lane holds what one thread wrote, in order");
    tap_check(found == THREADS, "every thread has a lane with its id");
    tap_check(lost_full(sensor) == 0, "nothing is lost while there are lanes");
    oh_laned_unregister(sensor);
}

static void thread_without_lane_is_counted(void)
{
    oh_laned_sensor *sensor = begin(1);
    pthread_t thread;
    void *tid;
    tap_check(oh_laned_prepare_thread(sensor) == 1, "a thread can be prepared");
    pthread_create(&thread, NULL, write_all, sensor);
    pthread_join(thread, &tid);
    tap_check(tid == NULL && lost_full(sensor) == 1, "a thread without lane is refused and counted");
    tap_check(put(sensor, 1) == 1, "the prepared thread writes");
    oh_laned_unregister(sensor);
}

static __attribute__((noinline)) int put_deeper(oh_laned_sensor *sensor, uint64_t value)
{
    volatile char room[256];
    room[0] = 0;
    return put(sensor, value) + room[0];
}

static void nested_write_is_refused(void)
{
    oh_laned_sensor *sensor = begin(1);
    struct sample *payload = (struct sample *)oh_laned_write(sensor);
    const oh_lane_ *lane = &sensor->lanes[0];
    payload->value = 7;
    tap_check(put_deeper(sensor, 99) == 0 && lost_nested(lane) == 1,
              "a function called between write and commit is refused and counted");
    payload->tenfold = 70;
    tap_check(oh_laned_commit(sensor) == 1 && counter(lane) == 1 && is(lane, 0, 7),
              "the open write is not disturbed");
    tap_check(oh_laned_commit(sensor) == 0 && lost_nested(lane) == 2 && counter(lane) == 1,
              "a commit without a write is refused and counted");
    (void)oh_laned_begin_(sensor, OH_FRAME_GUARDED_);
    tap_check(oh_laned_write(sensor) == NULL && lost_nested(lane) == 3,
              "a write beside one that is guarded in the same function is refused and counted");
    oh_laned_abandon(sensor);
    tap_check(put_deeper(sensor, 1) == 1 && counter(lane) == 2,
              "an abandoned write gives its slot back");
    oh_laned_unregister(sensor);
}

static jmp_buf landing;

static volatile int turn;

/* With a frame that no compiler makes smaller than that of oh_laned_put. */
static __attribute__((noinline)) void write_and_jump(oh_laned_sensor *sensor)
{
    volatile char room[1024];
    struct sample *payload = (struct sample *)oh_laned_write(sensor);
    room[turn] = 0;
    if (payload != NULL)
        payload->value = 99u + (unsigned char)room[turn];
    longjmp(landing, 1);
}

/* Overwrites the stack far below its caller, and writes from there. */
static __attribute__((noinline)) int put_far_deeper(oh_laned_sensor *sensor, uint64_t value)
{
    volatile char room[8192];
    size_t at;
    for (at = 0; at < sizeof room; at++)
        room[at] = (char)(at + 1);
    return put(sensor, value) + (room[turn] - 1);
}

static void jump_past_commit_frees_the_slot(void)
{
    oh_laned_sensor *const sensor = begin(1);
    const oh_lane_ *const lane = &sensor->lanes[0];
    put(sensor, 0);
    if (setjmp(landing) == 0)
        write_and_jump(sensor);
    tap_check(put(sensor, 2) == 1, "a jump past commit does not close the sensor");
    tap_check(element(lane, 1)->flags == OH_ELEMENT_VOID && is(lane, 2, 2) && counter(lane) == 3,
              "the slot that was jumped over is void");
    if (setjmp(landing) == 0)
        write_and_jump(sensor);
    oh_laned_abandon(sensor);
    tap_check(put_deeper(sensor, 3) == 1 && is(lane, 3, 3), "abandon leaves no doubt");
    if (setjmp(landing) == 0)
        write_and_jump(sensor);
    tap_check(put_far_deeper(sensor, 5) == 1 && element(lane, 4)->flags == OH_ELEMENT_VOID &&
                  is(lane, 5, 5),
              "an overwritten return address is detected, from any depth");
    tap_check(lost_nested(lane) == 0 && counter(lane) == 6, "nothing was lost");
    oh_laned_unregister(sensor);
}

#ifdef __cplusplus
static __attribute__((noinline)) void write_and_throw(oh_laned_sensor *sensor)
{
    if (oh_laned_write(sensor) != NULL && turn == 0)
        throw 1;
    oh_laned_commit(sensor);
}

static void exception_past_commit_frees_the_slot(void)
{
    oh_laned_sensor *const sensor = begin(1);
    const oh_lane_ *const lane = &sensor->lanes[0];
    int caught = 0;
    try {
        write_and_throw(sensor);
    } catch (int thrown) {
        caught = thrown;
    }
    tap_check(caught == 1 && put_far_deeper(sensor, 1) == 1 && is(lane, 1, 1) &&
                  element(lane, 0)->flags == OH_ELEMENT_VOID && lost_nested(lane) == 0,
              "an exception past commit gives the slot back");
    oh_laned_unregister(sensor);
}
#endif

static void switched_off_sensor_writes_nothing(void)
{
    oh_laned_sensor *sensor = begin(1);
    uint32_t enabled = 0;
    const uint32_t *before = sensor->enabled;
    sensor->enabled = &enabled;
    tap_check(put(sensor, 1) == 0 && oh_laned_write(sensor) == NULL && !oh_laned_enabled(sensor),
              "a sensor that is switched off writes nothing");
    tap_check(lost_nested(&sensor->lanes[0]) == 0 && lost_full(sensor) == 0, "and counts no loss");
    enabled = 1;
    tap_check(put(sensor, 1) == 1 && oh_laned_enabled(sensor), "it can be switched on again");
    sensor->enabled = before;
    oh_laned_unregister(sensor);
}

/* Lanes whose last element has this thread id. */
static int lanes_of(const oh_laned_sensor *sensor, uint32_t tid)
{
    uint32_t lane;
    int found = 0;
    for (lane = 0; lane < sensor->lane_count; lane++) {
        const oh_lane_ *at = &sensor->lanes[lane];
        found += counter(at) > 0 && element(at, counter(at) - 1)->tid == tid;
    }
    return found;
}

static void forked_child_is_another_thread(void)
{
    oh_laned_sensor *sensor = begin(4);
    const uint32_t parent = (uint32_t)syscall(SYS_gettid);
    int status = 0;
    pid_t child;
    put(sensor, 1);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        const int written = put(sensor, 2);
        _exit(written && lanes_of(sensor, (uint32_t)syscall(SYS_gettid)) == 1 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    tap_check(child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "a forked child writes under its own thread id, in a lane of its own");
    put(sensor, 3);
    tap_check(lanes_of(sensor, parent) == 1 && lanes_of(sensor, (uint32_t)child) == 0,
              "its parent goes on in its own");
    oh_laned_unregister(sensor);
}

static void refuses_what_contradicts_itself(void)
{
    oh_sensor_options options;
    oh_laned_sensor *sensor;
    memset(&options, 0, sizeof options);
    tap_check(oh_laned_register(&sensor, &options) == -EINVAL && sensor == NULL,
              "a sensor without id is refused");
    options.id = "laned";
    options.type = "laned_sample";
    options.lanes = 4097;
    tap_check(oh_laned_register(&sensor, &options) == -EINVAL && oh_last_error()[0] != '\0',
              "too many lanes are refused");
    options.lanes = 1;
    tap_check(oh_laned_register_sized(&sensor, &options, sizeof options | (size_t)64 << 16)
                      == -EINVAL
                  && strstr(oh_last_error(), "compile it again") != NULL,
              "a program with lanes of another size is refused");
    tap_check(oh_laned_register_sized(&sensor, &options, sizeof options) == -EINVAL,
              "a program whose header does not say the size of lanes is refused");
    tap_check(oh_laned_register_again(NULL) == -EINVAL, "NULL cannot be registered again");
    oh_laned_unregister(NULL);
}

int main(void)
{
    each_thread_writes_a_lane();
    thread_without_lane_is_counted();
    nested_write_is_refused();
    jump_past_commit_frees_the_slot();
#ifdef __cplusplus
    exception_past_commit_frees_the_slot();
#endif
    switched_off_sensor_writes_nothing();
    forked_child_is_another_thread();
    refuses_what_contradicts_itself();
    return tap_done();
}
