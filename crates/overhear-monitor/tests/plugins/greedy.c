/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An update that uses memory of every kind. It uses all of it for the first time at the first
 * element, and counts the page faults of its thread meanwhile.
 */
#define _GNU_SOURCE
#include <overhear/update.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PAGE = 4096, PAGES = 64, STACK_PAGES = 16 };

static unsigned char zeroed[PAGES][PAGE];
static unsigned char filled[PAGES][PAGE] = {{1}};
static const unsigned char constant[PAGES][PAGE] = {{2}};
static _Thread_local unsigned char local[PAGES][PAGE];

struct greedy {
    unsigned char *own;
    uint64_t warmed;
    uint64_t elements;
    uint64_t before; /* the warm-up */
    int64_t first;   /* faults of the first element */
    int64_t faults;  /* faults since its begin */
    int64_t base;
    uint64_t sum;
};

static int64_t faults(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? -1 : usage.ru_minflt + usage.ru_majflt;
}

/* Code in pages of its own. */
#define FAR(name, number)                                                                           \
    __attribute__((noinline, aligned(PAGE))) static uint64_t name(uint64_t value)                    \
    {                                                                                               \
        return value * number;                                                                      \
    }
FAR(far_3, 3)
FAR(far_5, 5)
FAR(far_7, 7)

__attribute__((noinline)) static uint64_t deep(uint64_t value)
{
    volatile unsigned char stack[STACK_PAGES * PAGE];
    for (size_t page = 0; page < STACK_PAGES; page++)
        stack[page * PAGE] = (unsigned char)(value + page);
    return stack[PAGE];
}

static void *create(oh_host *host, const char *argument)
{
    (void)host, (void)argument;
    struct greedy *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->own = malloc((size_t)PAGES * PAGE);
    if (!self->own) {
        free(self);
        return NULL;
    }
    return self;
}

static int warm_up(void *raw, oh_host *host)
{
    (void)host;
    struct greedy *self = raw;
    self->warmed++;
    self->before = self->elements;
    return 0;
}

static int element(void *raw, oh_host *host, const oh_element_view *element)
{
    (void)host;
    struct greedy *self = raw;
    if (self->elements == 0)
        self->base = faults();
    for (size_t page = 0; page < PAGES; page++) {
        zeroed[page][1] = filled[page][1] = local[page][1] = (unsigned char)element->sequence;
        self->own[page * PAGE] = constant[page][0];
    }
    self->sum += far_3(1) + far_5(1) + far_7(1) + deep(element->sequence);
    self->faults = faults() - self->base;
    if (self->elements++ == 0)
        self->first = self->faults;
    return 0;
}

static int report(void *raw, oh_host *host)
{
    const struct greedy *self = raw;
    oh_result_u64(host, "elements", self->elements);
    oh_result_u64(host, "warmed", self->warmed);
    oh_result_u64(host, "before", self->before);
    oh_result_i64(host, "first", self->first);
    oh_result_i64(host, "faults", self->faults);
    return 0;
}

static void destroy(void *raw)
{
    struct greedy *self = raw;
    free(self->own);
    free(self);
}

static const oh_update greedy = {
    .size = sizeof(oh_update),
    .name = "greedy",
    .create = create,
    .element = element,
    .report = report,
    .destroy = destroy,
    .warm_up = warm_up,
};
OH_EXPORT_UPDATES(&greedy)
