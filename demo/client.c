/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The client of the demonstration: it calls one function of the server again and again, at a steady
 * period, and invokes the sensor C before and after each call.
 *
 *     demo-client [-n CALLS] [-p PERIOD_US] [-s SERVER] SOCKET [COMMAND]
 *
 * With -s it starts the server itself, so that one `overhear run` follows both, and waits for its
 * end. Without a directory it does the same, and no monitor can read it.
 */
#define _GNU_SOURCE /* SOCK_CLOEXEC, clock_nanosleep */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "call.h"

enum { NS_PER_US = 1000, NS_PER_S = 1000000000 };

struct options {
    uint32_t calls;
    uint32_t period_us;
    const char *server; /* NULL: it runs already */
    const char *socket;
    const char *command;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t time_ns)
{
    const struct timespec until = {(time_t)(time_ns / NS_PER_S), (long)(time_ns % NS_PER_S)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

static int complain(const char *what, const char *object)
{
    fprintf(stderr, "demo-client: cannot %s %s: %s\n", what, object, strerror(errno));
    return -1;
}

/*
 * The period is passed on because the server declares the rate of its sensors with it. This comes
 * before the client registers its own sensor: a child starts with nothing to inherit.
 */
static pid_t start_server(const struct options *options)
{
    char period[16];
    pid_t child;

    snprintf(period, sizeof period, "%" PRIu32, options->period_us);
    child = fork();
    if (child == 0) {
        execl(options->server, options->server, "-p", period, options->socket, (char *)NULL);
        complain("execute", options->server);
        _exit(127);
    }
    if (child < 0)
        complain("start", options->server);
    return child;
}

/* Connects; a server that has just been started gets five seconds to listen. */
static int connect_to(const char *path)
{
    const uint64_t patience_until = now_ns() + 5 * (uint64_t)NS_PER_S;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int connection;

    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return complain("connect to", path);
    }
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return complain("make a socket for", path);
    while (connect(connection, (const struct sockaddr *)&address, sizeof address) != 0) {
        if ((errno != ENOENT && errno != ECONNREFUSED) || now_ns() > patience_until) {
            complain("connect to", path);
            close(connection);
            return -1;
        }
        sleep_until(now_ns() + 1000 * NS_PER_US);
    }
    return connection;
}

/* C: two elements per call. */
static int register_c(oh_sensor **sensor, uint32_t period_us)
{
    oh_sensor_options options = {
        .id = "C",
        .type = "demo_call",
        .fields = call_fields,
        .field_count = sizeof call_fields / sizeof call_fields[0],
        .size = sizeof(struct call_sample),
    };

    declare_rate(&options, period_us);
    return register_sensor(sensor, &options);
}

/* What section 5.1 calls the client-side stub: the text goes there, a text comes back. */
static int call_server(int connection, const char *command, char reply[MESSAGE_BYTES])
{
    ssize_t size;

    if (send(connection, command, strlen(command), MSG_NOSIGNAL) < 0)
        return complain("send", command);
    size = recv(connection, reply, MESSAGE_BYTES - 1, 0);
    if (size <= 0) {
        errno = size == 0 ? ECONNRESET : errno;
        return complain("get a reply to", command);
    }
    reply[size] = '\0';
    return 0;
}

static int call_all(int connection, const struct options *options)
{
    const uint64_t period_ns = (uint64_t)options->period_us * NS_PER_US;
    char reply[MESSAGE_BYTES] = "";
    uint32_t refused = 0;
    oh_sensor *sensor;
    uint64_t begin_ns;
    uint32_t call;

    if (register_c(&sensor, options->period_us) != 0)
        return -1;
    begin_ns = now_ns();
    for (call = 0; call < options->calls; call++) {
        int failed;

        put_call_sample(sensor, call, BEFORE);
        failed = call_server(connection, options->command, reply);
        put_call_sample(sensor, call, AFTER);
        if (failed)
            break;
        refused += strncmp(reply, "ok", 2) != 0;
        /* After a late call the period begins anew, so that calls never come in bursts. */
        begin_ns += period_ns;
        if (now_ns() < begin_ns)
            sleep_until(begin_ns);
        else
            begin_ns = now_ns();
    }
    oh_sensor_unregister(sensor);
    if (refused != 0)
        fprintf(stderr, "demo-client: %" PRIu32 " calls were refused; the last reply: %s\n",
                refused, reply);
    return call == options->calls && refused == 0 ? 0 : -1;
}

static int number(const char *text, uint32_t *value)
{
    char *end;
    unsigned long parsed;

    errno = 0;
    parsed = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || parsed > INT32_MAX)
        return -1;
    *value = (uint32_t)parsed;
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = {
        .calls = 2000,
        .period_us = 500,
        .command = "probemode 3 \"640x480\"",
    };
    int wrong = 0, failed, connection, status, option;
    pid_t server = 0;

    while ((option = getopt(argc, argv, "+n:p:s:")) != -1) {
        if (option == 'n')
            wrong |= number(optarg, &options.calls);
        else if (option == 'p')
            wrong |= number(optarg, &options.period_us);
        else if (option == 's')
            options.server = optarg;
        else
            wrong = 1;
    }
    if (wrong != 0 || argc - optind < 1 || argc - optind > 2) {
        fprintf(stderr,
                "usage: %s [-n CALLS] [-p PERIOD_US] [-s SERVER] SOCKET [COMMAND]\n", argv[0]);
        return 2;
    }
    options.socket = argv[optind];
    if (argc - optind == 2)
        options.command = argv[optind + 1];
    if (strlen(options.command) >= MESSAGE_BYTES) {
        fprintf(stderr, "demo-client: a command has at most %d bytes\n", MESSAGE_BYTES - 1);
        return 2;
    }

    if (options.server != NULL && (server = start_server(&options)) < 0)
        return 1;
    connection = connect_to(options.socket);
    failed = connection < 0 || call_all(connection, &options) != 0;
    /* The server ends when its last client has gone. */
    if (connection >= 0)
        close(connection);
    if (server > 0 && (waitpid(server, &status, 0) != server || status != 0)) {
        fprintf(stderr, "demo-client: the server failed\n");
        failed = 1;
    }
    return failed ? 1 : 0;
}
