/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A plug-in that evaluates large elements where they lie: how many frames have a bright pixel. The
 * argument is how bright, 200 without one.
 *
 *     cc -shared -fPIC -Iinclude examples/updates/bright_frames.c -o bright_frames.so
 */
#include <stdlib.h>

#include <overhear/update.h>

/* The payload: a number and its pixels. */
enum { PIXELS_AT = 8, BLOCK = 64 };

struct bright_frames {
    unsigned threshold;
    int is_bright; /* the frame between prepare and commit */
    uint64_t frames, in_place, bright;
};

static int has_bright(const struct bright_frames *self, const uint8_t *pixels, uint32_t count)
{
    for (uint32_t at = 0; at < count; at++)
        if (pixels[at] >= self->threshold)
            return 1;
    return 0;
}

static void *create(oh_host *host, const char *argument)
{
    struct bright_frames *self = calloc(1, sizeof *self);
    if (!self)
        oh_fail(host, "there is no memory");
    else
        self->threshold = *argument ? (unsigned)strtoul(argument, NULL, 10) : 200;
    return self;
}

/* Speculative: the writer may overwrite the frame meanwhile. Nothing but `is_bright` changes. */
static int prepare(void *own, oh_host *host, const oh_element_in_place *element, int *prepared)
{
    struct bright_frames *self = own;
    const uint32_t size = element->stream->payload_size;
    (void)host, (void)prepared;
    self->is_bright = 0;
    for (uint32_t at = PIXELS_AT; at < size && !self->is_bright; at += BLOCK) {
        uint8_t block[BLOCK];
        const uint32_t count = size - at < BLOCK ? size - at : BLOCK;
        oh_in_place_load(element, at, count, block);
        self->is_bright = has_bright(self, block, count);
    }
    return 0;
}

static int commit(void *own, oh_host *host, const oh_element_key *element, int valid)
{
    struct bright_frames *self = own;
    (void)host, (void)element;
    if (valid) {
        self->frames++;
        self->in_place++;
        self->bright += (uint64_t)self->is_bright;
    }
    return 0;
}

/* The same for a copy, as a recording has them. */
static int evaluate(void *own, oh_host *host, const oh_element_view *element)
{
    struct bright_frames *self = own;
    const uint32_t size = element->stream->payload_size;
    (void)host;
    self->frames++;
    if (size > PIXELS_AT)
        self->bright +=
            (uint64_t)has_bright(self, (const uint8_t *)element->payload + PIXELS_AT, size - PIXELS_AT);
    return 0;
}

static int report(void *own, oh_host *host)
{
    const struct bright_frames *self = own;
    oh_result_u64(host, "frames", self->frames);
    oh_result_u64(host, "in_place", self->in_place);
    oh_result_u64(host, "bright", self->bright);
    return 0;
}

static const oh_update bright_frames = {
    .size = sizeof(oh_update),
    .name = "bright_frames",
    .create = create,
    .element = evaluate,
    .report = report,
    .destroy = free,
    .prepare = prepare,
    .commit = commit,
};

OH_EXPORT_UPDATES(&bright_frames)
