/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The program that the suite `sensors` runs: each mode does one thing with sensors that a monitor
 * must get right. What it wrote goes to standard output as lines "NAME NUMBER", so that the suite
 * can compare.
 *
 *     program MODE [N]
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <overhear/parts.h>

extern char **environ;

struct sample {
    uint64_t number;
    double load;
    int32_t change;
    char word[4];
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct sample, number, ""),
    OH_FIELD_F64(struct sample, load, "%"),
    OH_FIELD_I32(struct sample, change, "K"),
    OH_FIELD_TEXT(struct sample, word, ""),
};

struct padded {
    uint8_t small;
    uint32_t large;
};

static const oh_field padded_fields[] = {
    OH_FIELD_U8(struct padded, small, ""),
    OH_FIELD_U32(struct padded, large, ""),
};

static oh_sensor_options options_of(const char *id)
{
    oh_sensor_options options;
    memset(&options, 0, sizeof options);
    options.id = id;
    options.type = "sample";
    options.fields = fields;
    options.field_count = sizeof fields / sizeof *fields;
    options.size = sizeof(struct sample);
    return options;
}

/* Registers or ends the program. */
static oh_sensor *sensor_of(const char *id)
{
    const oh_sensor_options options = options_of(id);
    oh_sensor *sensor;
    if (oh_sensor_register(&sensor, &options) != 0) {
        printf("refused: %s\n", oh_last_error());
        exit(1);
    }
    printf("heard-%s %d\n", id, oh_sensor_is_connected(sensor));
    if (!oh_sensor_is_connected(sensor))
        printf("why: %s\n", oh_last_error());
    fflush(stdout);
    return sensor;
}

static void write_some(oh_sensor *sensor, uint64_t count, useconds_t pause_us)
{
    for (uint64_t number = 0; number < count; number++) {
        const struct sample sample = {number, (double)number / 2, (int32_t)number - 10, "abc"};
        oh_sensor_put(sensor, &sample);
        if (pause_us != 0)
            usleep(pause_us);
    }
}

/* Ends with the status of the child, unless that is 0. */
static void await(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("child failed\n");
        exit(1);
    }
}

static void paced(uint64_t count)
{
    oh_sensor_options options = options_of("pace");
    oh_sensor *sensor;
    options.instance = "first";
    options.period_ns = 1000000;
    options.distance_ns = 100000;
    options.jitter_ns = 5000000;
    if (oh_sensor_register(&sensor, &options) != 0)
        exit(1);
    write_some(sensor, count, 1000);
    oh_sensor_unregister(sensor);
}

static void again(void)
{
    oh_sensor *sensor = sensor_of("again");
    write_some(sensor, 100, 0);
    oh_sensor_unregister(sensor);
    sensor = sensor_of("again");
    write_some(sensor, 50, 0);
    oh_sensor_unregister(sensor);
}

static void two(void)
{
    oh_sensor *a = sensor_of("a"), *b = sensor_of("b");
    write_some(a, 300, 0);
    write_some(b, 200, 0);
}

static void twin(void)
{
    oh_sensor *first = sensor_of("twin"), *second = sensor_of("twin");
    write_some(first, 100, 0);
    write_some(second, 100, 0);
    oh_sensor_unregister(second);
    oh_sensor_unregister(first);
}

static void padding(void)
{
    oh_sensor_options options = options_of("padded");
    oh_sensor *sensor;
    int result;
    options.fields = padded_fields;
    options.field_count = 2;
    options.size = sizeof(struct padded);
    result = oh_sensor_register(&sensor, &options);
    printf("einval %d\nmessage: %s\n", result == -EINVAL && sensor == NULL, oh_last_error());
}

/* As fast as possible: far more than the size of a buffer. */
static void tight(uint64_t count)
{
    oh_sensor *sensor = sensor_of("tight");
    write_some(sensor, count, 0);
    printf("written %llu\n", (unsigned long long)count);
}

/* Writes until the file `stop` exists, with or without a directory. */
static void patient(const char *started, const char *stop)
{
    oh_sensor *sensor = sensor_of("patient"), *late;
    const oh_sensor_options options = options_of("late");
    FILE *file = fopen(started, "w");
    if (file == NULL)
        exit(1);
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
    while (access(stop, F_OK) != 0)
        write_some(sensor, 10, 1000);
    if (oh_sensor_register(&late, &options) != 0)
        exit(1);
    write_some(late, 10, 0);
    file = fopen(stop, "w");
    if (file == NULL)
        exit(1);
    fprintf(file, "%d %s\n", oh_sensor_is_connected(late), oh_last_error());
    fclose(file);
    oh_sensor_unregister(late);
    oh_sensor_unregister(sensor);
}

static void forks(void)
{
    oh_sensor *sensor = sensor_of("forks");
    pid_t child;
    write_some(sensor, 100, 0);
    child = fork();
    if (child == 0) {
        /* A child that closed its parent's sensor would end the stream for the parent. */
        write_some(sensor, 1000, 0);
        _exit(oh_sensor_is_connected(sensor) ? 9 : 0);
    }
    await(child);
    child = fork();
    if (child == 0) {
        oh_sensor_unregister(sensor);
        _exit(0);
    }
    await(child);
    write_some(sensor, 100, 0);
}

static volatile int forking_is_over;

static void *registers(void *unused)
{
    const oh_sensor_options options = options_of("churn");
    (void)unused;
    while (!forking_is_over) {
        oh_sensor *sensor;
        if (oh_sensor_register(&sensor, &options) != 0)
            exit(1);
        write_some(sensor, 10, 0);
        oh_sensor_unregister(sensor);
    }
    return NULL;
}

/* Forks while another thread registers: the copy of every lock must be usable in the child. */
static void fork_storm(void)
{
    oh_sensor *sensor = sensor_of("storm");
    pthread_t thread;
    if (pthread_create(&thread, NULL, registers, NULL) != 0)
        exit(1);
    for (int round = 0; round < 200; round++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(40); /* A child that hangs fails the test. */
            write_some(sensor, 100, 0);
            if (round % 10 == 0) {
                const oh_sensor_options options = options_of("own");
                oh_sensor *own;
                if (oh_sensor_register(&own, &options) != 0)
                    _exit(1);
                oh_sensor_unregister(own);
            }
            _exit(0);
        }
        await(child);
        write_some(sensor, 1, 0);
    }
    forking_is_over = 1;
    pthread_join(thread, NULL);
}

static void spawns(void)
{
    oh_sensor *sensor = sensor_of("spawns");
    char name[] = "true";
    char *arguments[] = {name, NULL};
    pid_t child;
    write_some(sensor, 100, 0);
    child = vfork();
    if (child == 0) {
        execvp("true", arguments);
        _exit(1);
    }
    await(child);
    write_some(sensor, 100, 0);
    if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ) != 0)
        exit(1);
    await(child);
    write_some(sensor, 100, 0);
}

static void family(void)
{
    oh_sensor *sensor = sensor_of("family");
    pid_t child;
    write_some(sensor, 10, 0);
    child = fork();
    if (child == 0) {
        sensor = sensor_of("family");
        write_some(sensor, 20, 0);
        printf("child %d\n", (int)getpid());
        fflush(stdout);
        _exit(0);
    }
    await(child);
    write_some(sensor, 30, 0);
    printf("parent %d\n", (int)getpid());
}

/* A sensor with a declared rate. */
static oh_sensor *declared(const char *id)
{
    oh_sensor_options options = options_of(id);
    oh_sensor *sensor = NULL;
    options.period_ns = 500000;
    options.distance_ns = 50000;
    options.jitter_ns = 4500000;
    if (oh_sensor_register(&sensor, &options) != 0)
        exit(1);
    return sensor;
}

/* Two sensors that one pattern names, each as fast as its declared rate allows. */
static void twins(uint64_t count)
{
    oh_sensor *one = declared("eager"), *other = declared("eagle");
    for (uint64_t number = 0; number < count; number++) {
        if (oh_sensor_pace(one) != 0)
            exit(1);
        write_some(one, 1, 0);
        if (oh_sensor_pace(other) != 0)
            exit(1);
        write_some(other, 1, 0);
    }
    oh_sensor_unregister(one);
    oh_sensor_unregister(other);
}

/* As fast as the declared rate allows. */
static void eager(uint64_t count)
{
    oh_sensor *sensor = declared("eager");
    for (uint64_t number = 0; number < count; number++) {
        if (oh_sensor_pace(sensor) != 0)
            exit(1);
        write_some(sensor, 1, 0);
    }
    oh_sensor_unregister(sensor);
}

/* Frames of 1 KiB, each with one bright pixel in an even one, none in an odd one. */
static void films(uint64_t count)
{
    struct frame {
        uint64_t number;
        char pixels[1016];
    };
    static const oh_field fields[] = {OH_FIELD_U64(struct frame, number, ""),
                                      {"pixels", OH_TEXT, 8, 1016, ""}};
    static struct frame frame;
    oh_sensor_options options = options_of("frame");
    oh_sensor *sensor = NULL;
    options.type = "frame";
    options.fields = fields;
    options.field_count = sizeof fields / sizeof *fields;
    options.size = sizeof frame;
    options.period_ns = 500000;
    options.distance_ns = 50000;
    options.jitter_ns = 4500000;
    if (oh_sensor_register(&sensor, &options) != 0)
        exit(1);
    for (uint64_t number = 0; number < count; number++) {
        if (oh_sensor_pace(sensor) != 0)
            exit(1);
        frame.number = number;
        frame.pixels[number % 1016] = (char)(number % 2 == 0 ? 255 : 100);
        oh_sensor_put(sensor, &frame);
        frame.pixels[number % 1016] = 0;
    }
    oh_sensor_unregister(sensor);
}

/* Messages of up to 500 bytes, faster than any reader. */
static void talks(uint64_t count)
{
    static const oh_field parts[] = {OH_PART_FIELDS(40)};
    oh_sensor_options options = options_of("log");
    oh_sensor *sensor = NULL;
    uint64_t message = 0;
    uint8_t text[501];
    options.type = "message";
    options.fields = parts;
    options.field_count = sizeof parts / sizeof *parts;
    options.size = OH_PART_SIZE(40);
    options.capacity = 64;
    if (oh_sensor_register(&sensor, &options) != 0)
        exit(1);
    for (uint64_t number = 0; number < count; number++) {
        const size_t length = number * 37 % 501;
        for (size_t at = 0; at < length; at++)
            text[at] = (uint8_t)(number + at);
        if (oh_parts_write(sensor, &message, text, length) != 0)
            exit(1);
    }
    oh_sensor_unregister(sensor);
}

/* Forked workers that register their copies of one sensor. */
static void workers(void)
{
    oh_sensor *sensor = sensor_of("work");
    write_some(sensor, 10, 0);
    for (uint32_t worker = 1; worker <= 2; worker++) {
        const pid_t child = fork();
        if (child == 0) {
            write_some(sensor, 1000, 0);
            if (oh_sensor_register_again(sensor) != 1)
                _exit(9);
            write_some(sensor, 20 * worker, 0);
            _exit(0);
        }
        await(child);
    }
    write_some(sensor, 30, 0);
}

static void closes(void)
{
    oh_sensor *sensor = sensor_of("closes");
    write_some(sensor, 100, 0);
    for (int file = 3; file < 4096; file++)
        close(file);
    write_some(sensor, 100, 1000);
    /* A second one, now that the program's descriptors are numbered anew. */
    oh_sensor_unregister(sensor);
    sensor = sensor_of("reopens");
    write_some(sensor, 50, 0);
}

static void crashes(int by_abort)
{
    oh_sensor *sensor = sensor_of("crashes");
    write_some(sensor, 500, 0);
    if (by_abort)
        abort();
    raise(SIGSEGV);
}

/* The same process goes on as another program, with a sensor of the same name. */
static void executes(const char *self, const char *left)
{
    oh_sensor *sensor = sensor_of("reborn");
    char again[8];
    write_some(sensor, 100, 0);
    if (left[0] == '0')
        return;
    snprintf(again, sizeof again, "%c", left[0] - 1);
    execl(self, self, "exec", again, (char *)NULL);
    exit(1);
}

/* Overwrites a part of the stream's header, or of its elements, once the monitor has read some. */
static void damages(const char *what)
{
    oh_sensor *sensor = sensor_of("damaged");
    oh_stream_header *header = (oh_stream_header *)(void *)sensor->base;
    write_some(sensor, 50, 1000);
    if (strcmp(what, "magic") == 0) {
        memcpy(header->magic, "NONSENSE", 8);
    } else if (strcmp(what, "version") == 0) {
        header->version = 77;
    } else if (strcmp(what, "header-size") == 0) {
        header->header_size = 64;
    } else if (strcmp(what, "payload-size") == 0) {
        header->payload_size = 4000;
    } else if (strcmp(what, "stride") == 0) {
        header->stride = 0;
    } else if (strcmp(what, "capacity") == 0) {
        header->capacity = ~0ull;
    } else if (strcmp(what, "clock") == 0) {
        header->clock_id = 99;
    } else if (strcmp(what, "backwards") == 0) {
        header->counter = 7;
        usleep(200000);
        return;
    } else if (strcmp(what, "ahead") == 0) {
        sensor->count += 1ull << 60;
    } else if (strcmp(what, "wrapped") == 0) {
        header->counter = ~0ull;
        usleep(200000);
        return;
    } else if (strcmp(what, "stamps") == 0) {
        const struct sample sample = {0, 0, 0, "abc"};
        oh_sensor_put_at(sensor, &sample, ~0ull);
        oh_sensor_put_at(sensor, &sample, 0);
        oh_sensor_put_at(sensor, &sample, 1ull << 63);
        oh_sensor_put_at(sensor, &sample, 12345);
    } else if (strcmp(what, "everything") == 0) {
        memset(header, 0xa5, OH_HEADER_SIZE);
        usleep(200000);
        return;
    }
    write_some(sensor, 50, 1000);
}

/* Numbers that nobody can guess, and the same for the same seed. */
static uint64_t chance;

static uint64_t draw(void)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return chance;
}

/* Overwrites memory; also by numbers that could be true: small ones, and those of a queue's
   places. */
static void scribble(uint8_t *base, size_t bytes, unsigned round)
{
    uint64_t *word = (uint64_t *)(void *)base;
    for (size_t at = 0; at < bytes / 8; at++) {
        const uint64_t drawn = draw();
        switch (round % 4) {
        case 0:
            word[at] = drawn;
            break;
        case 1:
            word[at] = drawn >> 48;
            break;
        case 2:
            word[at] = (drawn >> 56) << 16 | (drawn & 63);
            break;
        default:
            word[at] = drawn >> (drawn & 63);
        }
    }
}

/* Rubbish over the whole of a sensor of each kind, headers included, while a monitor reads. */
static void rubbish(uint64_t seed)
{
    oh_sensor_options options = options_of("rubbish");
    oh_sensor *simple = NULL;
    oh_laned_sensor *laned = NULL;
    oh_concurrent_sensor *queue = NULL;
    oh_sensor *sound;
    options.period_ns = 1000000000;
    options.lanes = options.writers = 4;
    options.instance = "simple";
    if (oh_sensor_register(&simple, &options) != 0)
        exit(1);
    options.instance = "laned";
    if (oh_laned_register(&laned, &options) != 0)
        exit(1);
    options.instance = "concurrent";
    if (oh_concurrent_register(&queue, &options) != 0)
        exit(1);
    sound = sensor_of("sound");
    chance = seed * 0x9e3779b97f4a7c15u + 1;
    for (unsigned turn = 0; turn < 3000; turn++) {
        const size_t header = OH_HEADER_SIZE;
        /* The order of the kinds of rubbish depends on the seed. */
        const unsigned round = turn + (unsigned)seed;
        scribble(simple->base, header + (simple->mask + 1) * simple->stride, round);
        scribble(laned->lanes[0].base - header, header, round);
        for (uint32_t lane = 0; lane < laned->lane_count; lane++) {
            const oh_lane_ *at = &laned->lanes[lane];
            scribble(at->base, header + at->capacity * at->stride_words * 8, round);
        }
        scribble(queue->base,
                 (size_t)(queue->elements - queue->base) + (size_t)(queue->mask + 1) * queue->stride,
                 round);
        write_some(sound, 1, 0);
        /* Some of it stays long enough for a monitor to read it. */
        if (round % 64 < 4)
            usleep(1000);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const char *argument = argc > 2 ? argv[2] : "";
    /* A program that hangs is ended before the suite's watchdog expires. */
    alarm(50);
    if (strcmp(mode, "paced") == 0)
        paced(strtoull(argument, NULL, 10));
    else if (strcmp(mode, "again") == 0)
        again();
    else if (strcmp(mode, "two") == 0)
        two();
    else if (strcmp(mode, "twin") == 0)
        twin();
    else if (strcmp(mode, "padding") == 0)
        padding();
    else if (strcmp(mode, "tight") == 0)
        tight(strtoull(argument, NULL, 10));
    else if (strcmp(mode, "patient") == 0 && argc > 3)
        patient(argument, argv[3]);
    else if (strcmp(mode, "fork") == 0)
        forks();
    else if (strcmp(mode, "fork-storm") == 0)
        fork_storm();
    else if (strcmp(mode, "spawn") == 0)
        spawns();
    else if (strcmp(mode, "family") == 0)
        family();
    else if (strcmp(mode, "eager") == 0)
        eager(strtoull(argument, NULL, 10));
    else if (strcmp(mode, "twins") == 0)
        twins(strtoull(argument, NULL, 10));
    else if (strcmp(mode, "film") == 0)
        films(strtoull(argument, NULL, 10));
    else if (strcmp(mode, "talk") == 0)
        talks(strtoull(argument, NULL, 10));
    else if (strcmp(mode, "workers") == 0)
        workers();
    else if (strcmp(mode, "close") == 0)
        closes();
    else if (strcmp(mode, "abort") == 0)
        crashes(1);
    else if (strcmp(mode, "segv") == 0)
        crashes(0);
    else if (strcmp(mode, "exec") == 0)
        executes(argv[0], argument);
    else if (strcmp(mode, "damage") == 0)
        damages(argument);
    else if (strcmp(mode, "rubbish") == 0)
        rubbish(strtoull(argument, NULL, 10));
    else
        return 2;
    return 0;
}
