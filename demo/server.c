/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The server of the demonstration: a caricature of a window server. It takes text commands from a
 * Unix socket, parses them, calls the function they name, and replies with text:
 *
 *     probemode SCREEN "WxH"     can the screen show this mode?
 *     setmode SCREEN "WxH"       shows it from now on
 *     settitle SCREEN "TEXT"     names the screen
 *     move SCREEN X Y            moves its upper left corner
 *     describe SCREEN            prints all of this
 *
 * Usage: demo-server [-p PERIOD_US] SOCKET. PERIOD_US is how often calls are expected: the sensors'
 * declared rate. The server ends when its last client has gone. One thread serves all clients, so
 * simple sensors do: P around parser and function, F around the function alone. Without a directory
 * it does the same, and no monitor can read it.
 */
#define _GNU_SOURCE /* accept4, struct ucred */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "call.h"

enum { CLIENTS = 8, ARGUMENTS = 4, SCREENS = 4, TITLE_BYTES = 32, PATIENCE_MS = 10000 };

/* --- the screens ------------------------------------------------------------------------- */

struct mode {
    unsigned width;
    unsigned height;
};

struct screen {
    char title[TITLE_BYTES];
    struct mode mode;
    long x, y;
    uint64_t memory_bytes;
};

static struct screen screens[SCREENS] = {
    {.title = "left", .mode = {1024, 768}, .memory_bytes = 4u << 20},
    {.title = "right", .mode = {1024, 768}, .memory_bytes = 4u << 20},
    {.title = "beamer", .mode = {800, 600}, .memory_bytes = 2u << 20},
    {.title = "virtual", .mode = {320, 240}, .memory_bytes = 8u << 20},
};

static const struct mode known_modes[] = {
    {320, 240},  {400, 300},  {512, 384},   {640, 400},   {640, 480},
    {800, 600},  {1024, 768}, {1152, 864}, {1280, 1024}, {1600, 1200},
};

/* --- a command, parsed ------------------------------------------------------------------- */

enum kind { NUMBER = 'n', TEXT = 't' };

struct argument {
    enum kind kind;
    long number;
    char text[MESSAGE_BYTES];
};

struct command {
    char name[32];
    struct argument arguments[ARGUMENTS];
    unsigned count;
};

static void skip_blanks(const char **at)
{
    while (isblank((unsigned char)**at))
        (*at)++;
}

/* A quoted text, in which a backslash takes the next character as it is. */
static const char *parse_text(const char **at, struct argument *argument)
{
    size_t length = 0;

    argument->kind = TEXT;
    for ((*at)++; **at != '"'; (*at)++) {
        if (**at == '\\')
            (*at)++;
        if (**at == '\0')
            return "a text does not end with a quotation mark";
        argument->text[length++] = **at; /* A text is shorter than the message it is part of. */
    }
    argument->text[length] = '\0';
    (*at)++;
    return NULL;
}

static const char *parse_number(const char **at, struct argument *argument)
{
    char *end;

    argument->kind = NUMBER;
    errno = 0;
    argument->number = strtol(*at, &end, 0);
    if (end == *at || errno != 0)
        return "an argument is neither a number nor a quoted text";
    *at = end;
    return NULL;
}

/* Takes a command apart. Returns NULL, or what is wrong with it. */
static const char *parse(const char *at, struct command *command)
{
    size_t length = 0;

    skip_blanks(&at);
    while (isalnum((unsigned char)*at) || *at == '_') {
        if (length == sizeof command->name - 1)
            return "the name is too long";
        command->name[length++] = *at++;
    }
    command->name[length] = '\0';
    if (length == 0)
        return "there is no name";
    for (command->count = 0;; command->count++) {
        const char *blank = at, *wrong;
        struct argument *argument;

        skip_blanks(&at);
        if (*at == '\0')
            return NULL;
        if (at == blank)
            return "a blank is missing before an argument";
        if (command->count == ARGUMENTS)
            return "there are too many arguments";
        argument = &command->arguments[command->count];
        wrong = *at == '"' ? parse_text(&at, argument) : parse_number(&at, argument);
        if (wrong != NULL)
            return wrong;
    }
}

/* --- the functions ----------------------------------------------------------------------- */

/* A function gets arguments of its declared kinds and writes its reply. */
typedef void function(struct screen *screen, const struct argument *rest, char *reply);

/* "640x480"; returns whether the screen can show it. */
static int usable_mode(const struct screen *screen, const char *text, struct mode *mode)
{
    char *end;
    size_t i;

    mode->width = (unsigned)strtoul(text, &end, 10);
    if (*end != 'x')
        return 0;
    mode->height = (unsigned)strtoul(end + 1, &end, 10);
    if (*end != '\0' || 4ull * mode->width * mode->height > screen->memory_bytes)
        return 0;
    for (i = 0; i < sizeof known_modes / sizeof known_modes[0]; i++)
        if (known_modes[i].width == mode->width && known_modes[i].height == mode->height)
            return 1;
    return 0;
}

static void probemode(struct screen *screen, const struct argument *rest, char *reply)
{
    struct mode mode;

    strcpy(reply, usable_mode(screen, rest[0].text, &mode) ? "ok yes" : "ok no");
}

static void setmode(struct screen *screen, const struct argument *rest, char *reply)
{
    struct mode mode;

    if (usable_mode(screen, rest[0].text, &mode)) {
        screen->mode = mode;
        strcpy(reply, "ok");
    } else {
        strcpy(reply, "error: the screen cannot show this mode");
    }
}

static void settitle(struct screen *screen, const struct argument *rest, char *reply)
{
    snprintf(screen->title, sizeof screen->title, "%.*s", TITLE_BYTES - 1, rest[0].text);
    strcpy(reply, "ok");
}

static void move(struct screen *screen, const struct argument *rest, char *reply)
{
    screen->x = rest[0].number;
    screen->y = rest[1].number;
    strcpy(reply, "ok");
}

static void describe(struct screen *screen, const struct argument *rest, char *reply)
{
    (void)rest;
    snprintf(reply, MESSAGE_BYTES, "ok \"%s\" %ux%u at %ld %ld", screen->title,
             screen->mode.width, screen->mode.height, screen->x, screen->y);
}

/* The arguments after the screen, one letter of enum kind each. */
static const struct {
    const char *name;
    const char *rest;
    function *call;
} functions[] = {
    {"describe", "", describe}, {"move", "nn", move},         {"probemode", "t", probemode},
    {"setmode", "t", setmode},  {"settitle", "t", settitle},
};

/* --- one call ---------------------------------------------------------------------------- */

static oh_sensor *sensor_p, *sensor_f;

struct client {
    int connection;
    uint32_t pid;
    uint32_t calls; /* so far */
};

/* Looks up the function and checks the arguments. Returns NULL, or what is wrong. */
static const char *find(const struct command *command, function **found)
{
    const struct argument *arguments = command->arguments;
    size_t i, k;

    for (i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, command->name) == 0)
            break;
    if (i == sizeof functions / sizeof functions[0])
        return "there is no such function";
    if (command->count != 1 + strlen(functions[i].rest))
        return "the number of arguments is wrong";
    for (k = 1; k < command->count; k++)
        if (arguments[k].kind != (enum kind)functions[i].rest[k - 1])
            return "an argument is of the wrong kind";
    if (arguments[0].kind != NUMBER || arguments[0].number < 0 || arguments[0].number >= SCREENS)
        return "there is no such screen";
    *found = functions[i].call;
    return NULL;
}

/* Parses the command, calls the function, writes the reply. */
static void execute(const char *text, uint32_t call, char reply[MESSAGE_BYTES])
{
    struct command command;
    function *found = NULL;
    const char *wrong = parse(text, &command);

    if (wrong == NULL)
        wrong = find(&command, &found);
    if (wrong != NULL) {
        snprintf(reply, MESSAGE_BYTES, "error: %s", wrong);
        return;
    }
    put_call_sample(sensor_f, call, BEFORE);
    found(&screens[command.arguments[0].number], command.arguments + 1, reply);
    put_call_sample(sensor_f, call, AFTER);
}

/* An invocation of P, as put_call_sample does it. */
static void put_parser_sample(const struct client *client, uint32_t after, size_t text_bytes)
{
    const uint64_t begun_ticks = oh_sensor_stamp(sensor_p);
    struct parser_sample *sample = (struct parser_sample *)oh_sensor_write(sensor_p);

    sample->call = client->calls;
    sample->after = after;
    sample->client = client->pid;
    sample->text_bytes = (uint32_t)text_bytes;
    sample->cpu_ns = oh_thread_cpu_ns();
    oh_sensor_commit_at(sensor_p, after ? oh_sensor_stamp(sensor_p) : begun_ticks);
}

/* Serves one call. Returns 0, or -1 if the client has gone. */
static int serve(struct client *client)
{
    char text[MESSAGE_BYTES], reply[MESSAGE_BYTES];
    const ssize_t size = recv(client->connection, text, sizeof text - 1, 0);
    size_t length;

    if (size <= 0)
        return size < 0 && errno == EINTR ? 0 : -1;
    text[size] = '\0';

    put_parser_sample(client, BEFORE, (size_t)size);
    execute(text, client->calls, reply);
    length = strlen(reply);
    put_parser_sample(client, AFTER, length);

    client->calls++;
    return send(client->connection, reply, length, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

/* --- clients come and go ----------------------------------------------------------------- */

static int complain(const char *what, const char *object)
{
    fprintf(stderr, "demo-server: cannot %s %s: %s\n", what, object, strerror(errno));
    return -1;
}

/* P and F: two elements each per call. */
static int register_sensors(uint32_t period_us)
{
    static const oh_field parser_fields[] = {
        OH_FIELD_U64(struct parser_sample, cpu_ns, "ns"),
        OH_FIELD_U32(struct parser_sample, call, ""),
        OH_FIELD_U32(struct parser_sample, after, ""),
        OH_FIELD_U32(struct parser_sample, client, ""),
        OH_FIELD_U32(struct parser_sample, text_bytes, "B"),
    };
    oh_sensor_options options = {0};
    int error;

    declare_rate(&options, period_us);
    options.id = "P";
    options.type = "demo_parser";
    options.fields = parser_fields;
    options.field_count = sizeof parser_fields / sizeof parser_fields[0];
    options.size = sizeof(struct parser_sample);
    error = register_sensor(&sensor_p, &options);
    if (error != 0)
        return error;
    options.id = "F";
    options.type = "demo_call";
    options.fields = call_fields;
    options.field_count = sizeof call_fields / sizeof call_fields[0];
    options.size = sizeof(struct call_sample);
    return register_sensor(&sensor_f, &options);
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener;

    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return complain("listen at", path);
    }
    strcpy(address.sun_path, path);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, CLIENTS) != 0) {
        complain("listen at", path);
        if (listener >= 0)
            close(listener);
        return -1;
    }
    return listener;
}

/* Accepts the next client. The kernel identifies it: a message could claim anything. */
static int welcome(int listener, struct client *client)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    const int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (connection < 0)
        return -1;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(connection);
        return -1;
    }
    *client = (struct client){connection, (uint32_t)peer.pid, 0};
    return 0;
}

/* Serves until the last client has gone. Returns 0, or -1 if none ever came. */
static int serve_all(int listener)
{
    struct client clients[CLIENTS];
    struct pollfd waiting[1 + CLIENTS] = {{.fd = listener}};
    unsigned count = 0, came = 0, i;

    while (came == 0 || count > 0) {
        int ready;

        waiting[0].events = count < CLIENTS ? POLLIN : 0;
        for (i = 0; i < count; i++)
            waiting[1 + i] = (struct pollfd){.fd = clients[i].connection, .events = POLLIN};
        ready = poll(waiting, 1 + count, came == 0 ? PATIENCE_MS : -1);
        if (ready < 0 && errno != EINTR)
            return complain("wait for", "clients");
        if (ready == 0) {
            errno = ETIMEDOUT;
            return complain("wait for", "the first client");
        }
        if (ready < 0)
            continue;
        /* From the last to the first: the last client takes the place of one that has gone. */
        for (i = count; i-- > 0;) {
            if (waiting[1 + i].revents != 0 && serve(&clients[i]) != 0) {
                close(clients[i].connection);
                clients[i] = clients[--count];
            }
        }
        if (waiting[0].revents != 0 && count < CLIENTS && welcome(listener, &clients[count]) == 0) {
            count++;
            came = 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    unsigned long period_us = 0;
    const char *path;
    int failed, listener, option, wrong = 0;
    char *end;

    while ((option = getopt(argc, argv, "+p:")) != -1) {
        if (option == 'p') {
            period_us = strtoul(optarg, &end, 10);
            wrong |= end == optarg || *end != '\0' || period_us > INT32_MAX;
        } else {
            wrong = 1;
        }
    }
    if (wrong || argc - optind != 1) {
        fprintf(stderr, "usage: %s [-p PERIOD_US] SOCKET\n", argv[0]);
        return 2;
    }
    path = argv[optind];

    if (register_sensors((uint32_t)period_us) != 0)
        return 1;
    listener = listen_at(path);
    if (listener < 0)
        return 1;
    failed = serve_all(listener) != 0;
    unlink(path);
    close(listener);
    oh_sensor_unregister(sensor_f);
    oh_sensor_unregister(sensor_p);
    return failed;
}
