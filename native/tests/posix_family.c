/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * links: overhear_posixtrace. Streams over fork, clone, exec and spawn: traced processes, and their
 * controllers.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <overhear/trace.h>

#include "tap.h"

extern char **environ;

enum { CHILDREN = 40, EACH = 50 };

static const char *program;
static trace_event_id_t user;

static void record(int value)
{
    posix_trace_event(user, &value, sizeof value);
}

static trace_id_t stream_of(pid_t pid, int inheritance)
{
    trace_id_t stream = 0;
    trace_attr_t attributes;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setinherited(&attributes, inheritance);
    posix_trace_attr_setstreamsize(&attributes, 4 << 20);
    if (posix_trace_create(pid, &attributes, &stream) != 0)
        printf("# %s\n", oh_posix_trace_last_error());
    else
        posix_trace_start(stream);
    return stream;
}

/* The events of a process in a stream, or of all if it is 0; discards the others. */
static int count_of(trace_id_t stream, pid_t pid, int value)
{
    int count = 0;
    for (;;) {
        struct posix_trace_event_info event;
        size_t length;
        int unavailable = 1, found = -1;
        if (posix_trace_trygetnext_event(stream, &event, &found, sizeof found, &length, &unavailable) != 0 ||
            unavailable)
            return count;
        count += event.posix_event_id == user && (pid == 0 || event.posix_pid == pid) &&
                 (value < 0 || found == value);
    }
}

/* Runs a function in a child of fork; returns its number when it has ended well, else -1. */
static pid_t in_child(int (*function)(void *), void *argument)
{
    int status = -1;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0)
        exit(function(argument));
    if (waitpid(child, &status, 0) != child || status != 0)
        return -1;
    return child;
}

static int record_one(void *argument)
{
    record(*(int *)argument);
    return 0;
}

static int grandchild(void *argument)
{
    return in_child(record_one, argument) < 0;
}

/* The parent's streams are invalid in a child. */
static int control(void *argument)
{
    const trace_id_t stream = *(trace_id_t *)argument;
    struct posix_trace_status_info status;
    trace_event_set_t set;
    trace_id_t own;
    int failed = posix_trace_start(stream) != EINVAL;
    failed |= posix_trace_stop(stream) != EINVAL;
    failed |= posix_trace_get_status(stream, &status) != EINVAL;
    failed |= posix_trace_get_filter(stream, &set) != EINVAL;
    failed |= posix_trace_shutdown(stream) != EINVAL;
    failed |= posix_trace_create(0, NULL, &own) != 0 || own == stream;
    return failed | posix_trace_shutdown(own);
}

/* A name that the child defines first. */
static int define(void *argument)
{
    trace_event_id_t *const event = (trace_event_id_t *)argument;
    return posix_trace_eventid_open("posix_family_child", event) != 0 || *event == user;
}

static void forks(void)
{
    const trace_id_t inherited = stream_of(0, POSIX_TRACE_INHERITED);
    const trace_id_t closed = stream_of(0, POSIX_TRACE_CLOSE_FOR_CHILD);
    trace_event_id_t *const first = (trace_event_id_t *)mmap(
        NULL, sizeof *first, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    trace_event_id_t second = 0;
    int value = 7;
    pid_t child = in_child(record_one, &value);
    record(8);
    tap_check(child > 0 && count_of(inherited, child, 7) == 1, "a child is traced into an inherited stream");
    tap_check(count_of(closed, 0, -1) == 1,
              "a stream that is not inherited has no event of the child, and continues");
    value = 9;
    child = in_child(grandchild, &value);
    tap_check(child > 0 && count_of(inherited, 0, 9) == 1 && count_of(closed, 0, -1) == 0,
              "a child's child is traced into an inherited stream only");
    child = in_child(control, (void *)&inherited);
    tap_check(child > 0, "a child does not control its parent's streams");
    record(10);
    tap_check(count_of(inherited, getpid(), 10) == 1,
              "streams of the parent continue after a child has used their ids");
    child = in_child(define, first);
    posix_trace_eventid_open("posix_family_child", &second);
    tap_check(child > 0 && second == *first && second != user,
              "a name has one event type in all processes of a family");
    posix_trace_shutdown(inherited);
    posix_trace_shutdown(closed);
}

/* A child that no handler of fork prepared. */
static void clones(void)
{
    const trace_id_t inherited = stream_of(0, POSIX_TRACE_INHERITED);
    int status = -1;
    pid_t child;
    fflush(stdout);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        record(1);
        _exit(0);
    }
    waitpid(child, &status, 0);
    record(2);
    tap_check(status == 0 && count_of(inherited, 0, -1) == 1, "a child of a raw clone is not traced");
    posix_trace_shutdown(inherited);
}

/* Replaces this program by the part of it that records. */
static int become(void *argument)
{
    char *const arguments[] = {(char *)(size_t)program, (char *)argument, NULL};
    record(2000);
    execv(program, arguments);
    return 1;
}

/* A stream of the old program's own. */
static int control_and_become(void *argument)
{
    const trace_id_t own = stream_of(0, POSIX_TRACE_CLOSE_FOR_CHILD);
    return own == 0 || become(argument);
}

static pid_t spawn(const char *what)
{
    char *const arguments[] = {(char *)(size_t)program, (char *)(size_t)what, NULL};
    int status = -1;
    pid_t child;
    if (posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0)
        return -1;
    if (waitpid(child, &status, 0) != child || status != 0)
        return -1;
    return child;
}

static void execs(void)
{
    const trace_id_t inherited = stream_of(0, POSIX_TRACE_INHERITED);
    const trace_id_t closed = stream_of(0, POSIX_TRACE_CLOSE_FOR_CHILD);
    char record_21[] = "21";
    pid_t child = in_child(become, record_21);
    tap_check(child > 0 && count_of(inherited, child, -1) == 2, "a process stays traced over exec");
    child = spawn("22");
    tap_check(child > 0 && count_of(inherited, child, 22) == 1, "a spawned process is traced from its start");
    child = in_child(control_and_become, record_21);
    tap_check(child > 0 && count_of(inherited, child, -1) == 2,
              "a process that controlled streams stays traced over exec");
    tap_check(count_of(closed, 0, -1) == 0, "a stream that is not inherited has no event of these processes");
    posix_trace_shutdown(inherited);
    child = spawn("23");
    tap_check(child > 0 && count_of(closed, 0, -1) == 0,
              "a spawned process without an inherited stream is not traced");
    posix_trace_shutdown(closed);
}

/* Streams of two processes for one process. */
static int control_parent(void *argument)
{
    const trace_id_t stream = stream_of(getppid(), POSIX_TRACE_CLOSE_FOR_CHILD);
    int *const pipes = (int *)argument;
    char byte = 0;
    int good;
    if (stream == 0 || write(pipes[1], "r", 1) != 1 || read(pipes[2], &byte, 1) != 1)
        return 1;
    good = count_of(stream, getppid(), 30) == 1;
    record(31);
    return !good || count_of(stream, 0, 31) != 0 || posix_trace_shutdown(stream) != 0;
}

static void controllers(void)
{
    const trace_id_t own = stream_of(0, POSIX_TRACE_CLOSE_FOR_CHILD);
    int pipes[4], status = -1;
    char byte;
    pid_t child;
    if (pipe(pipes) != 0 || pipe(pipes + 2) != 0)
        return;
    fflush(stdout);
    child = fork();
    if (child == 0)
        exit(control_parent(pipes));
    if (read(pipes[0], &byte, 1) == 1) {
        record(30);
        tap_check(write(pipes[3], "w", 1) == 1, "a child creates a stream for its parent");
    }
    waitpid(child, &status, 0);
    tap_check(status == 0 && count_of(own, 0, -1) == 1, "both controllers have the event");
    posix_trace_shutdown(own);
    tap_check(posix_trace_create(0x3fffffff, NULL, (trace_id_t *)&own) == ESRCH,
              "a process that does not exist is ESRCH");
}

/* Closes all descriptors, as daemons do, and uses their numbers again. */
static int close_all(void *argument)
{
    enum { NUMBERS = 600 };
    const trace_id_t stream = stream_of(0, POSIX_TRACE_CLOSE_FOR_CHILD);
    struct stat before, after;
    trace_id_t other;
    int number, good, error;
    (void)argument;
    for (number = 3; number < NUMBERS; number++)
        close(number);
    /* A sparse file of the program's, larger than an area: a write into it would allocate, a hole
       free its end. */
    number = memfd_create("posix_family", MFD_CLOEXEC);
    if (ftruncate(number, 1LL << 36) != 0 || pwrite(number, "x", 1, (1 << 18) + 5000) != 1)
        return 1;
    for (number = 4; number < NUMBERS; number++)
        if (dup(3) != number)
            return 0; /* The limit is lower. */
    fstat(3, &before);
    record(40);
    good = count_of(stream, 0, 40) == 1;
    error = posix_trace_create(0, NULL, &other);
    good &= error == ENOMEM || error == EAGAIN;
    good &= posix_trace_stop(stream) == 0 && posix_trace_shutdown(stream) == 0;
    for (number = 3; number < NUMBERS; number++)
        good &= fcntl(number, F_GETFD) >= 0;
    fstat(3, &after);
    return !good || after.st_blocks != before.st_blocks || after.st_size != before.st_size;
}

/* The same with a log; then it forks, and the child has the descriptors, too. */
static int close_all_and_fork(void *argument)
{
    enum { NUMBERS = 600 };
    trace_id_t stream = 0;
    struct stat before, after;
    char text[16] = "";
    int number, good, status = -1;
    int log = memfd_create("posix_family_log", MFD_CLOEXEC);
    pid_t child;
    (void)argument;
    if (posix_trace_create_withlog(0, NULL, log, &stream) != 0 || posix_trace_start(stream) != 0)
        return 1;
    for (number = 3; number < NUMBERS; number++)
        close(number);
    number = memfd_create("posix_family", MFD_CLOEXEC);
    if (pwrite(number, "the program's", 13, 0) != 13)
        return 1;
    for (number = 4; number < NUMBERS; number++)
        if (dup(3) != number)
            return 0; /* The limit is lower. */
    fstat(3, &before);
    record(41);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        for (good = 1, number = 3; number < NUMBERS; number++)
            good &= fcntl(number, F_GETFD) >= 0;
        _exit(!good);
    }
    waitpid(child, &status, 0);
    good = status == 0;
    if (!good)
        printf("# the child lost descriptors\n");
    good &= posix_trace_shutdown(stream) == EBADF;
    for (number = 3; number < NUMBERS; number++)
        good &= fcntl(number, F_GETFD) >= 0;
    fstat(3, &after);
    good &= pread(3, text, sizeof text - 1, 0) == 13 && strcmp(text, "the program's") == 0;
    return !good || after.st_size != before.st_size;
}

/* A child of the controller does not keep the log's pipe open. */
static void pipe_of_log(void)
{
    trace_id_t stream = 0;
    trace_attr_t attributes;
    char bytes[4096];
    int pipes[2], ends[2], begins[2], status = -1;
    ssize_t count;
    pid_t child;
    posix_trace_attr_init(&attributes);
    posix_trace_attr_setlogfullpolicy(&attributes, POSIX_TRACE_APPEND);
    if (pipe(pipes) != 0 || pipe(ends) != 0 || pipe(begins) != 0 || fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20) < 0 ||
        posix_trace_create_withlog(0, &attributes, pipes[1], &stream) != 0)
        return;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        close(pipes[1]);
        close(ends[1]);
        _exit(write(begins[1], "b", 1) != 1 || read(ends[0], bytes, 1) != 0);
    }
    /* fork returns in the parent before the child has closed its copy. */
    if (read(begins[0], bytes, 1) != 1)
        return;
    posix_trace_shutdown(stream);
    close(pipes[1]);
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    do
        count = read(pipes[0], bytes, sizeof bytes);
    while (count > 0);
    tap_check(count == 0, "the pipe of a log ends with the log, although a child lives");
    close(pipes[0]);
    close(ends[0]);
    close(ends[1]);
    close(begins[0]);
    close(begins[1]);
    waitpid(child, &status, 0);
}

static void descriptors(void)
{
    tap_check(in_child(close_all, NULL) > 0, "a process that closes all descriptors stays traced");
    tap_check(in_child(close_all_and_fork, NULL) > 0,
              "its child keeps the files that it has opened since, and no log is written into them");
    pipe_of_log();
}

static volatile int is_done;

static void *write_always(void *argument)
{
    int *const count = (int *)argument;
    while (!is_done) {
        record(1000000);
        ++*count;
        if (*count % 8 == 0)
            sched_yield();
    }
    return NULL;
}

static int record_some(void *argument)
{
    int number;
    for (number = 0; number < EACH; number++)
        record(*(int *)argument);
    if (*(int *)argument % 4 == 0) {
        char text[16];
        snprintf(text, sizeof text, "%d", *(int *)argument);
        return become(text);
    }
    return 0;
}

/* Children come and go, and replace their programs, while threads write and a thread reads. */
static int counts[CHILDREN + 1];
static trace_id_t busy;

static void *count_all(void *argument)
{
    (void)argument;
    for (;;) {
        struct posix_trace_event_info event;
        size_t length;
        int unavailable, value = -1;
        int error = posix_trace_getnext_event(busy, &event, &value, sizeof value, &length, &unavailable);
        if (error == EINTR)
            continue;
        if (error != 0 || event.posix_event_id == POSIX_TRACE_STOP)
            return NULL;
        if (event.posix_event_id == user && value >= 0 && value <= CHILDREN)
            counts[value]++;
    }
}

static void midst(void)
{
    struct posix_trace_status_info status;
    pthread_t threads[2], reader;
    int written[2] = {0, 0}, number, good = 1;
    busy = stream_of(0, POSIX_TRACE_INHERITED);
    pthread_create(&reader, NULL, count_all, NULL);
    pthread_create(&threads[0], NULL, write_always, &written[0]);
    pthread_create(&threads[1], NULL, write_always, &written[1]);
    for (number = 1; number <= CHILDREN; number++)
        good &= in_child(record_some, &number) > 0;
    is_done = 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    tap_check(good, "children come, and become other programs, while threads write and read");
    posix_trace_get_status(busy, &status);
    posix_trace_stop(busy);
    pthread_join(reader, NULL);
    for (number = 1; number <= CHILDREN; number++)
        good &= counts[number] == EACH + (number % 4 == 0);
    tap_check(good || status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN,
              "every event of every child is read, or the loss is reported");
    printf("# %d written by threads%s\n", written[0] + written[1],
           status.posix_stream_overrun_status == POSIX_TRACE_OVERRUN ? ", overrun" : "");
    posix_trace_shutdown(busy);
}

int main(int argument_count, char **arguments)
{
    program = "/proc/self/exe";
    posix_trace_eventid_open("posix_family_user", &user);
    if (argument_count > 1) {
        record(atoi(arguments[1]));
        return 0;
    }
    forks();
    clones();
    execs();
    controllers();
    descriptors();
    midst();
    return tap_done();
}
