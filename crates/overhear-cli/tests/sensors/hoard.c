/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An update that allocates memory and keeps it until it is destroyed. Its argument contains the
 * function and the size in KiB: `create 64`, `open 64`, `warm_up 64` or `element 64` (at the
 * first).
 */
#include <overhear/update.h>

#include <stdlib.h>
#include <string.h>

struct hoard {
    char when[16];
    size_t bytes;
    void *taken;
};

static int take(struct hoard *self, const char *when)
{
    if (self->taken || strcmp(self->when, when) != 0)
        return 0;
    self->taken = malloc(self->bytes);
    return self->taken ? 0 : 1;
}

static void *create(oh_host *host, const char *argument)
{
    const char *number = strchr(argument, ' ');
    struct hoard *self = calloc(1, sizeof *self);
    if (!self || !number || (size_t)(number - argument) >= sizeof self->when) {
        oh_fail(host, "write `WHEN KIB`");
        free(self);
        return NULL;
    }
    memcpy(self->when, argument, (size_t)(number - argument));
    self->bytes = (size_t)strtoul(number, NULL, 10) * 1024;
    (void)take(self, "create");
    return self;
}

static int open_stream(void *self, oh_host *host, const oh_stream *stream)
{
    (void)host, (void)stream;
    return take(self, "open");
}

static int warm_up(void *self, oh_host *host)
{
    (void)host;
    return take(self, "warm_up");
}

static int element(void *self, oh_host *host, const oh_element_view *element)
{
    (void)host, (void)element;
    return take(self, "element");
}

static void destroy(void *raw)
{
    struct hoard *self = raw;
    free(self->taken);
    free(self);
}

static const oh_update hoard = {
    .size = sizeof(oh_update),
    .name = "hoard",
    .create = create,
    .open = open_stream,
    .element = element,
    .destroy = destroy,
    .warm_up = warm_up,
};
OH_EXPORT_UPDATES(&hoard)
