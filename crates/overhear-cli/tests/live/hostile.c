/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program with names and values that contain control sequences. It runs until its standard input
   is closed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <overhear/sensor.h>

struct message {
    uint64_t number;
    char text[40];
};

static const oh_field fields[] = {
    OH_FIELD_U64(struct message, number, "\xe2\x80\xae" "s"),
    OH_FIELD_TEXT(struct message, text, ""),
};

int main(void)
{
    const oh_sensor_options options = {
        .id = "=1+cmd\xe2\x80\xae" "gpj",
        .instance = "\xe2\x81\xa6zero\xe2\x80\x8bwidth",
        .type = "message",
        .fields = fields,
        .field_count = sizeof fields / sizeof *fields,
        .size = sizeof(struct message),
    };
    struct message message = {7, "@\x1b]0;PWN\x07\x7f\xc2\x9b" "31m\r\n,\"x"};
    const struct timespec pause = {0, 1000000};
    oh_sensor *sensor;
    char byte;

    prctl(PR_SET_NAME, "-\x1b[2J\xe2\x80\xae\t\x07");
    if (oh_sensor_register(&sensor, &options) != 0) {
        fprintf(stderr, "%s\n", oh_last_error());
        return 1;
    }
    do {
        oh_sensor_put(sensor, &message);
        nanosleep(&pause, NULL);
    } while (message.number++ < 300 || read(0, &byte, 1) > 0);
    oh_sensor_unregister(sensor);
    return 0;
}
