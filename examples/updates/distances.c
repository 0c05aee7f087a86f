/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An update with a distribution: how far apart in time are neighbouring elements of a sensor?
 *
 *     cc -shared -fPIC -Iinclude examples/updates/distances.c -o distances.so
 *     overhear run --out DIR --update ./distances.so -- PROGRAM
 *     overhear report DIR --update ./distances.so=50000 --html page.html
 *
 * The argument is the width of a bucket in nanoseconds; the last bucket has the rest. Without it
 * each bucket is twice as wide as the one before. Its result is drawn by the text report, the
 * page and `overhear top`.
 */
#include <stdio.h>
#include <stdlib.h>

#include <overhear/update.h>

enum { BUCKETS = 64 };

/* What is known of one stream. */
struct stream {
    const oh_stream *stream;
    uint64_t last_ns; /* of its last element; 0 before the first and behind a gap */
    struct stream *next;
};

struct distances {
    uint64_t width_ns; /* 0: powers of two */
    uint64_t counts[BUCKETS];
    struct stream *streams;
};

static void *create(oh_host *host, const char *argument)
{
    char *end = NULL;
    const unsigned long long width_ns = *argument ? strtoull(argument, &end, 10) : 0;
    if (end && (*end || width_ns == 0)) {
        oh_fail(host, "the argument is a number of nanoseconds above 0, for example 50000");
        return NULL;
    }
    struct distances *self = calloc(1, sizeof *self);
    if (self)
        self->width_ns = width_ns;
    return self;
}

/* Memory is had here, not where elements are evaluated. */
static int open_stream(void *own, oh_host *host, const oh_stream *stream)
{
    struct distances *self = own;
    struct stream *known = calloc(1, sizeof *known);
    if (!known) {
        oh_fail(host, "there is no memory for another stream");
        return 1;
    }
    known->stream = stream;
    known->next = self->streams;
    self->streams = known;
    return 0;
}

static struct stream *find(struct distances *self, const oh_stream *stream)
{
    struct stream *known = self->streams;
    while (known->stream != stream) /* every stream was opened */
        known = known->next;
    return known;
}

static unsigned bucket_of(const struct distances *self, uint64_t distance_ns)
{
    unsigned bucket = 0;
    if (self->width_ns)
        return distance_ns / self->width_ns < BUCKETS ? (unsigned)(distance_ns / self->width_ns)
                                                      : BUCKETS - 1;
    while (distance_ns >>= 1)
        bucket++;
    return bucket;
}

static int evaluate(void *own, oh_host *host, const oh_element_view *element)
{
    struct distances *self = own;
    struct stream *known = find(self, element->stream);
    (void)host;
    if (known->last_ns)
        self->counts[bucket_of(self, element->time_ns - known->last_ns)]++;
    known->last_ns = element->time_ns;
    return 0;
}

/* Across a gap no distance is known. */
static int learn(void *own, oh_host *host, const oh_gap *gap)
{
    (void)host;
    find(own, gap->stream)->last_ns = 0;
    return 0;
}

/* The least and the largest distance that a bucket counts. */
static uint64_t low_ns(const struct distances *self, unsigned bucket)
{
    if (self->width_ns)
        return bucket * self->width_ns;
    return bucket ? (uint64_t)1 << bucket : 0;
}

static uint64_t high_ns(const struct distances *self, unsigned bucket)
{
    return bucket < BUCKETS - 1 ? low_ns(self, bucket + 1) - 1 : UINT64_MAX;
}

static int report(void *own, oh_host *host)
{
    const struct distances *self = own;
    char json[BUCKETS * 112 + 64];
    size_t end = (size_t)snprintf(json, sizeof json, "{\"unit\":\"ns\",\"buckets\":[");
    const char *comma = "";
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++) {
        if (self->counts[bucket] == 0)
            continue;
        end += (size_t)snprintf(json + end, sizeof json - end,
                                "%s{\"low\":%llu,\"high\":%llu,\"count\":%llu}", comma,
                                (unsigned long long)low_ns(self, bucket),
                                (unsigned long long)high_ns(self, bucket),
                                (unsigned long long)self->counts[bucket]);
        comma = ",";
    }
    (void)snprintf(json + end, sizeof json - end, "]}");
    oh_result_json(host, "distances", json);
    return 0;
}

static void destroy(void *own)
{
    struct distances *self = own;
    while (self->streams) {
        struct stream *next = self->streams->next;
        free(self->streams);
        self->streams = next;
    }
    free(self);
}

static const oh_update distances = {
    .size = sizeof(oh_update),
    .name = "distances",
    .create = create,
    .open = open_stream,
    .element = evaluate,
    .gap = learn,
    .report = report,
    .destroy = destroy,
};

OH_EXPORT_UPDATES(&distances)
