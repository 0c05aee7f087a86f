/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An update: which elements came later after their predecessors than they should?
 *
 *     cc -shared -fPIC -Iinclude examples/updates/late_elements.c -o late_elements.so
 *     overhear run --out DIR --update ./late_elements.so=2000000 -- PROGRAM
 *     overhear report DIR --update ./late_elements.so=1000000
 *
 * The argument is the longest distance that is not late, in nanoseconds; 1 ms without it. The same
 * in C++ and Rust is in this folder.
 */
#include <stdlib.h>

#include <overhear/update.h>

/* What is known of one stream. */
struct stream {
    const oh_stream *stream;
    uint64_t last_ns; /* of its last element; 0 before the first and behind a gap */
    struct stream *next;
};

struct late_elements {
    uint64_t limit_ns;
    uint64_t elements, late, missed, longest_ns;
    struct stream *streams;
};

static void *create(oh_host *host, const char *argument)
{
    char *end = NULL;
    const unsigned long long limit_ns = *argument ? strtoull(argument, &end, 10) : 1000000;
    if (end && *end) {
        oh_fail(host, "the argument is a number of nanoseconds, for example 1000000");
        return NULL;
    }
    struct late_elements *self = calloc(1, sizeof *self);
    if (self)
        self->limit_ns = limit_ns;
    return self;
}

/* Memory is had here, not where elements are evaluated. */
static int open_stream(void *own, oh_host *host, const oh_stream *stream)
{
    struct late_elements *self = own;
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

static struct stream *find(struct late_elements *self, const oh_stream *stream)
{
    struct stream *known = self->streams;
    while (known->stream != stream) /* every stream was opened */
        known = known->next;
    return known;
}

static int evaluate(void *own, oh_host *host, const oh_element_view *element)
{
    struct late_elements *self = own;
    struct stream *known = find(self, element->stream);
    const uint64_t distance_ns = known->last_ns ? element->time_ns - known->last_ns : 0;
    (void)host;
    self->elements++;
    if (distance_ns > self->limit_ns)
        self->late++;
    if (distance_ns > self->longest_ns)
        self->longest_ns = distance_ns;
    known->last_ns = element->time_ns;
    return 0;
}

/* Across a gap no distance is known. */
static int learn(void *own, oh_host *host, const oh_gap *gap)
{
    struct late_elements *self = own;
    (void)host;
    self->missed += gap->missed;
    find(self, gap->stream)->last_ns = 0;
    return 0;
}

static int report(void *own, oh_host *host)
{
    const struct late_elements *self = own;
    oh_result_u64(host, "elements", self->elements);
    oh_result_u64(host, "late", self->late);
    oh_result_u64(host, "longest_ns", self->longest_ns);
    oh_result_u64(host, "missed", self->missed);
    return 0;
}

static void destroy(void *own)
{
    struct late_elements *self = own;
    while (self->streams) {
        struct stream *next = self->streams->next;
        free(self->streams);
        self->streams = next;
    }
    free(self);
}

static const oh_update late_elements = {
    .size = sizeof(oh_update),
    .name = "late_elements",
    .create = create,
    .open = open_stream,
    .element = evaluate,
    .gap = learn,
    .report = report,
    .destroy = destroy,
};

OH_EXPORT_UPDATES(&late_elements)
