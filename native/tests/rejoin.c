/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear. Messages in parts, put together again: whatever is missing, all come whole or
   are counted. */
#define _GNU_SOURCE 1
#pragma GCC diagnostic error "-Wpedantic"
#include <pthread.h>

#include <overhear/rejoin.h>

#include "stream.h"
#include "tap.h"

enum { DATA = 8, SIZE = 8 + 16, CAPACITY = 64, STRIDE = 8 + SIZE, PARTS = 10, MESSAGES = 5 };
enum { THREADS = 3, EACH = 5 };

static uint64_t memory[(OH_HEADER_SIZE + CAPACITY * STRIDE) / 8];
static uint8_t room[64];

static const oh_field fields[] = {OH_PART_FIELDS(DATA)};

/* With 1, 3, 1, 4 and 1 parts. */
static const char *const texts[MESSAGES] = {"one", "three parts of it", "", "four parts are a bit longer",
                                            "the end"};
static const int parts_of[MESSAGES] = {1, 3, 1, 4, 1};

static int is_text(const oh_rejoiner *rejoiner, uint64_t number)
{
    return rejoiner->number == number && number < MESSAGES &&
           rejoiner->length == strlen(texts[number]) &&
           memcmp(rejoiner->buffer, texts[number], rejoiner->length) == 0;
}

/* For all 1,024 sets of missing parts. */
static void all_come_whole_or_are_counted(const oh_sensor *sensor)
{
    uint32_t missing;
    int good = 1;
    for (missing = 0; missing < 1u << PARTS; missing++) {
        oh_rejoiner rejoiner;
        uint64_t lost = 0;
        int position = 0;
        int message;
        int part;
        good &= oh_rejoiner_begin(&rejoiner, room, sizeof room, SIZE, OH_REJOIN_FROM_START) == 0;
        for (message = 0; message < MESSAGES; message++) {
            int misses = 0;
            int came = 0;
            for (part = 0; part < parts_of[message]; part++, position++) {
                if (missing >> position & 1) {
                    misses++;
                    if (position % 2 == 0) /* with and without a reported gap */
                        oh_rejoiner_interrupted(&rejoiner);
                } else if (oh_rejoiner_part(&rejoiner, stream_payload(sensor, (uint64_t)position),
                                            SIZE)) {
                    came += is_text(&rejoiner, (uint64_t)message);
                }
            }
            good &= came == (misses == 0);
            /* A loss without a later part is not known. */
            lost += misses > 0;
        }
        oh_rejoiner_interrupted(&rejoiner);
        for (message = MESSAGES - 1, position = PARTS; message >= 0; message--) {
            position -= parts_of[message];
            if ((missing >> position & ((1u << parts_of[message]) - 1)) !=
                (1u << parts_of[message]) - 1)
                break;
            lost--;
        }
        good &= rejoiner.lost == lost && rejoiner.rejected_corrupt == 0;
    }
    tap_check(good, "whatever is missing, messages come whole or are counted, once");
}

static void rubbish_is_counted(const oh_sensor *sensor)
{
    oh_rejoiner rejoiner;
    oh_rejoiner unused;
    oh_part part = {0, 7, 9};
    uint8_t payload[SIZE] = {0};
    memset(&unused, 0, sizeof unused);
    tap_check(oh_rejoiner_begin(&rejoiner, room, 16, 16, OH_REJOIN_FROM_NOW) == -EINVAL &&
                  oh_rejoiner_part(&unused, payload, SIZE) == 0 && unused.rejected_corrupt == 1,
              "elements without room for a part carry none");
    oh_rejoiner_begin(&rejoiner, room, 16, SIZE, OH_REJOIN_FROM_START);
    memcpy(payload, &part, sizeof part);
    tap_check(oh_rejoiner_part(&rejoiner, payload, SIZE) == 0 &&
                  oh_rejoiner_part(&rejoiner, payload, SIZE - 1) == 0 &&
                  rejoiner.rejected_corrupt == 2 && rejoiner.lost == 0,
              "a part behind the end, and a payload of another size, are refused");
    part.part = UINT32_MAX;
    part.bytes = UINT32_MAX;
    part.message = UINT64_MAX;
    memcpy(payload, &part, sizeof part);
    oh_rejoiner_part(&rejoiner, payload, SIZE);
    part.part = 0;
    memcpy(payload, &part, sizeof part);
    tap_check(oh_rejoiner_part(&rejoiner, payload, SIZE) == 0 && rejoiner.lost_too_long == 1 &&
                  rejoiner.lost == UINT64_MAX,
              "4 GiB are lost without a place for them");
    oh_rejoiner_begin(&rejoiner, room, 16, SIZE, OH_REJOIN_FROM_NOW);
    tap_check(oh_rejoiner_part(&rejoiner, stream_payload(sensor, 2), SIZE) == 0 &&
                  oh_rejoiner_part(&rejoiner, stream_payload(sensor, 3), SIZE) == 0 &&
                  oh_rejoiner_part(&rejoiner, stream_payload(sensor, 4), SIZE) == 1 &&
                  is_text(&rejoiner, 2) && rejoiner.lost == 0,
              "a stream that is joined late begins with the next message");
    tap_check(oh_rejoiner_part(&rejoiner, stream_payload(sensor, 5), SIZE) == 0 &&
                  rejoiner.lost == 1 && rejoiner.lost_too_long == 1,
              "a message beyond the buffer is lost");
}

static oh_concurrent_sensor *queue;
static oh_laned_sensor *lanes;

static void *write_all(void *argument)
{
    uint64_t to_queue = 0;
    uint64_t to_lane = 0;
    int good = 1;
    int index;
    for (index = 0; index < EACH; index++) {
        good &= oh_parts_write_concurrent(queue, &to_queue, texts[index], strlen(texts[index])) == 0;
        good &= oh_parts_write_laned(lanes, &to_lane, texts[index], strlen(texts[index])) == 0;
    }
    *(int *)argument = good && to_queue == EACH && to_lane == EACH;
    return NULL;
}

/* The element of a queue at a sequence. */
static const uint8_t *queued(uint64_t sequence)
{
    const uint64_t place = (sequence + queue->mask + 1) << 16;
    return oh_queue_element_(queue, __atomic_load_n(oh_queue_index_(queue, place), __ATOMIC_ACQUIRE));
}

static uint32_t writer_of(const uint8_t *element)
{
    uint32_t tid;
    memcpy(&tid, element + offsetof(oh_thread_element, tid), sizeof tid);
    return tid;
}

/* The number of complete messages in the elements of one stream. */
static int feed(oh_rejoiner *rejoiners, const uint8_t *element, int *strange)
{
    oh_rejoiner *rejoiner = oh_rejoiner_of(rejoiners, THREADS, writer_of(element));
    if (rejoiner == NULL) {
        ++*strange;
        return 0;
    }
    return oh_rejoiner_part(rejoiner, element + sizeof(oh_thread_element), SIZE) &&
           is_text(rejoiner, rejoiner->number);
}

static void begin_all(oh_rejoiner *rejoiners, uint8_t (*rooms)[64])
{
    int index;
    for (index = 0; index < THREADS; index++)
        oh_rejoiner_begin(&rejoiners[index], rooms[index], sizeof rooms[index], SIZE,
                          OH_REJOIN_FROM_START);
}

static void threads_are_told_apart(void)
{
    static uint8_t rooms[THREADS][64];
    oh_rejoiner rejoiners[THREADS];
    oh_sensor_options options;
    pthread_t threads[THREADS];
    int good[THREADS] = {0};
    int all = 1;
    int strange = 0;
    int whole = 0;
    int index;
    uint64_t sequence;
    uint64_t message = 0;
    memset(&options, 0, sizeof options);
    options.id = "log";
    options.type = "message";
    options.fields = fields;
    options.field_count = 4;
    options.size = OH_PART_SIZE(DATA);
    options.writers = THREADS;
    options.lanes = THREADS;
    all &= oh_concurrent_register(&queue, &options) == 0;
    all &= oh_laned_register(&lanes, &options) == 0;
    for (index = 0; index < THREADS; index++)
        all &= pthread_create(&threads[index], NULL, write_all, &good[index]) == 0;
    for (index = 0; index < THREADS; index++) {
        pthread_join(threads[index], NULL);
        all &= good[index];
    }
    tap_check(all, "three threads write to a queue and to lanes");
    begin_all(rejoiners, rooms);
    for (sequence = 0; sequence < THREADS * PARTS; sequence++)
        whole += feed(rejoiners, queued(sequence), &strange);
    tap_check(whole == THREADS * EACH && strange == 0 && rejoiners[0].lost == 0,
              "all messages of a queue come whole");
    begin_all(rejoiners, rooms);
    for (whole = 0, index = 0; index < THREADS; index++) {
        oh_lane_ *lane = &lanes->lanes[index];
        all &= lane->count == PARTS;
        for (sequence = 0; sequence < lane->count; sequence++)
            whole += feed(rejoiners, oh_lane_slot_(lane, sequence), &strange);
    }
    tap_check(all && whole == THREADS * EACH && strange == 0, "and those of lanes");
    tap_check(oh_rejoiner_of(rejoiners, THREADS, 1) == NULL, "a fourth thread has no rejoiner");
    /* All lanes belong to others. */
    tap_check(oh_parts_write_laned(lanes, &message, "lost", 4) == -EAGAIN && message == 1,
              "a message that is refused has a number, and so is lost to readers");
    oh_concurrent_unregister(queue);
    oh_laned_unregister(lanes);
}

int main(void)
{
    oh_sensor sensor = stream_begin(memory, SIZE, CAPACITY, OH_CLOCK_MONOTONIC, 1);
    uint64_t message = 0;
    int index;
    for (index = 0; index < MESSAGES; index++)
        oh_parts_write(&sensor, &message, texts[index], strlen(texts[index]));
    tap_check(sensor.count == PARTS, "ten parts");
    all_come_whole_or_are_counted(&sensor);
    rubbish_is_counted(&sensor);
    threads_are_told_apart();
    return tap_done();
}
