// SPDX-License-Identifier: MIT OR Apache-2.0
// Sleeps, by a function that can be probed: napper NAPS MICROSECONDS; or hands a byte back and
// forth with a child: napper pingpong TURNS.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int pingpong(long turns) {
    int there[2], back[2];
    char byte = 0;
    if (pipe(there) != 0 || pipe(back) != 0)
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        for (long turn = 0; turn < turns; turn++)
            if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
                _exit(1);
        _exit(0);
    }
    for (long turn = 0; turn < turns; turn++)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            return 1;
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

__attribute__((noinline)) long nap(long microseconds) {
    struct timespec length = {0, microseconds * 1000};
    nanosleep(&length, NULL);
    return microseconds;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    if (strcmp(argv[1], "pingpong") == 0)
        return pingpong(atol(argv[2]));
    for (long left = atol(argv[1]); left > 0; left--)
        nap(atol(argv[2]));
    return 0;
}
