/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: nothing. An update written against update.h, called through the table that it exports, as
 * a monitor does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <overhear/update.h>

#include "tap.h"

struct sum {
    uint64_t values, missed, streams, advanced_ns, warmed;
};

static void *create(oh_host *host, const char *argument) OH_NOEXCEPT_
{
    if (strcmp(argument, "refuse") == 0) {
        oh_fail(host, "as you wish");
        return NULL;
    }
    return calloc(1, sizeof(struct sum));
}

static int open_stream(void *own, oh_host *host, const oh_stream *stream) OH_NOEXCEPT_
{
    (void)host;
    ((struct sum *)own)->streams += stream->id;
    return 0;
}

static int element(void *own, oh_host *host, const oh_element_view *element) OH_NOEXCEPT_
{
    uint64_t value;
    memcpy(&value, element->payload, sizeof value);
    if (value == 0) {
        oh_fail(host, "a value is zero");
        return 1;
    }
    ((struct sum *)own)->values += value;
    return 0;
}

static int prepare(void *own, oh_host *host, const oh_element_in_place *element,
                   int *prepared) OH_NOEXCEPT_
{
    uint16_t two;
    (void)own;
    (void)host;
    oh_in_place_load(element, 3, sizeof two, &two);
    *prepared = oh_in_place_u64(element, 8) == 9 && oh_in_place_u32(element, 16) == 17 &&
                oh_in_place_f64(element, 24) == 25 && two == 4;
    return 0;
}

static int commit(void *own, oh_host *host, const oh_element_key *element, int valid) OH_NOEXCEPT_
{
    (void)host;
    if (valid)
        ((struct sum *)own)->values += element->sequence;
    return 0;
}

static int warm_up(void *own, oh_host *host) OH_NOEXCEPT_
{
    (void)host;
    ((struct sum *)own)->warmed++;
    return 0;
}

static int gap(void *own, oh_host *host, const oh_gap *gap) OH_NOEXCEPT_
{
    (void)host;
    ((struct sum *)own)->missed += gap->missed;
    return gap->cause == OH_GAP_LATE ? 0 : 2;
}

static int advance(void *own, oh_host *host, uint64_t now_ns) OH_NOEXCEPT_
{
    (void)host;
    ((struct sum *)own)->advanced_ns = now_ns;
    return 0;
}

static int report(void *own, oh_host *host) OH_NOEXCEPT_
{
    const struct sum *sum = (const struct sum *)own;
    oh_result_u64(host, "values", sum->values);
    oh_result_i64(host, "missed", -(int64_t)sum->missed);
    oh_result_f64(host, "advanced", (double)sum->advanced_ns);
    oh_result_text(host, "text", "told");
    oh_result_json(host, "json", "[]");
    return 0;
}

static void destroy(void *own) OH_NOEXCEPT_
{
    free(own);
}

static const oh_field fields[] = {{"value", OH_U64, 0, 8, ""}};

static const oh_update sum = {
    sizeof(oh_update), OH_MISSED_STOP, "sum",   "*/values", "value", fields,  1,     8,
    create,            open_stream,    element, gap,        advance, report, destroy, prepare, commit,
    warm_up,
};

OH_EXPORT_UPDATES(&sum)

/* A host that stores the last item of each kind. */
static char failed[64], told[256];

static void on_fail(oh_host *host, const char *message)
{
    (void)host;
    snprintf(failed, sizeof failed, "%s", message);
}
static uint32_t asked;
static int64_t asked_value;
static void on_react(oh_host *host, uint32_t code, int64_t value)
{
    (void)host;
    asked = code;
    asked_value = value;
}
static void note(const char *key, const char *value)
{
    const size_t used = strlen(told);
    snprintf(told + used, sizeof told - used, "%s=%s;", key, value);
}
static void on_u64(oh_host *host, const char *key, uint64_t value)
{
    char text[32];
    (void)host;
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    note(key, text);
}
static void on_i64(oh_host *host, const char *key, int64_t value)
{
    char text[32];
    (void)host;
    snprintf(text, sizeof text, "%lld", (long long)value);
    note(key, text);
}
static void on_f64(oh_host *host, const char *key, double value)
{
    char text[32];
    (void)host;
    snprintf(text, sizeof text, "%g", value);
    note(key, text);
}
static void on_text(oh_host *host, const char *key, const char *value)
{
    (void)host;
    note(key, value);
}

/* Numbers that are one more than the offset from which they are loaded. */
static void load(const oh_element_in_place *element, uint32_t offset, uint32_t bytes, void *to)
{
    const uint64_t number = offset + 1;
    const uint32_t half = offset + 1;
    const uint16_t quarter = (uint16_t)(offset + 1);
    const double real = offset + 1;
    (void)element;
    if (bytes == 8 && offset < 24)
        memcpy(to, &number, bytes);
    else if (bytes == 8)
        memcpy(to, &real, bytes);
    else
        memcpy(to, bytes == 4 ? (const void *)&half : (const void *)&quarter, bytes);
}

int main(void)
{
    oh_host host = {sizeof(oh_host), OH_UPDATE_ABI, on_fail, on_u64, on_i64, on_f64, on_text, on_text,
                    on_react, NULL};
    oh_stream stream = {sizeof(oh_stream), 5,      "values", "", "p(1)/values", "value",
                        fields,            1,      8,        OH_ORIGIN_PROGRAM,  1,    0, 0};
    uint64_t value = 40;
    oh_element_view view = {&stream, 0, 100, &value, 0, 0};
    oh_element_in_place placed = {sizeof(oh_element_in_place), 0, &stream, 2, 150, 0, 0, load};
    oh_element_key key = {&stream, 2, 150};
    int prepared = 7;
    oh_gap lost = {&stream, 1, 3, 100, 200, OH_GAP_LATE, 0};
    const oh_plugin *plugin = oh_plugin_v1();
    const oh_update *update = plugin->updates[0];
    void *own;

    tap_check(plugin->abi == OH_UPDATE_ABI && plugin->update_count == 1 && plugin->size == sizeof *plugin,
       "the table has its version and its updates");
    tap_check(strcmp(update->name, "sum") == 0 && update->size == sizeof *update, "an update has its name");
    tap_check(!update->create(&host, "refuse") && strcmp(failed, "as you wish") == 0,
       "a refusal has a message");
    own = update->create(&host, "");
    tap_check(own && update->open(own, &host, &stream) == 0 && ((struct sum *)own)->streams == 5,
       "a stream is announced");
    tap_check(update->warm_up(own, &host) == 0 && ((struct sum *)own)->warmed == 1, "it is warmed up");
    tap_check(update->element(own, &host, &view) == 0 && update->gap(own, &host, &lost) == 0 &&
           update->advance(own, &host, 250) == 0,
       "items are evaluated");
    tap_check(update->prepare(own, &host, &placed, &prepared) == 0 && prepared == 1 &&
           update->commit(own, &host, &key, 0) == 0 && ((struct sum *)own)->values == 40 &&
           update->commit(own, &host, &key, 1) == 0 && ((struct sum *)own)->values == 42,
       "an element is loaded in place, and committed if it was whole");
    value = 0;
    tap_check(update->element(own, &host, &view) == 1 && strcmp(failed, "a value is zero") == 0,
       "a failure has a message");
    tap_check(update->report(own, &host) == 0 &&
           strcmp(told, "values=42;missed=-3;advanced=250;text=told;json=[];") == 0,
       "results are delivered");
    oh_react(&host, 7, -1);
    tap_check(asked == 7 && asked_value == -1, "a reaction is requested");
    host.size = (uint32_t)offsetof(oh_host, react); /* a monitor of before */
    oh_react(&host, 8, 0);
    tap_check(asked == 7, "an older monitor gets no request");
    update->destroy(own);
    return tap_done();
}
