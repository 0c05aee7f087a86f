/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: the creation, the flush and the shutdown of streams. */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "posix.h"

/* Refused and accepted operations of a stream, as bits: 0 to 13 for those that any active stream
   has, 16 to 18 for others. */
enum { COMMON = (1 << 14) - 1, FLUSH = 1 << 16, REWIND = 1 << 17, CLOSE = 1 << 18 };

/* The operations that do not return EINVAL. None waits: the stream has an event. */
static int accepted(trace_id_t stream, trace_event_id_t type, int reads)
{
    trace_event_set_t set;
    trace_event_id_t event = type;
    trace_attr_t attr;
    struct posix_trace_status_info status;
    struct event next;
    struct timespec past = {1, 0};
    char name[TRACE_EVENT_NAME_MAX + 1];
    int at = 0, result = 0, unavailable;
    posix_trace_attr_init(&attr);
    posix_trace_eventset_empty(&set);
#define TRY(call) (result |= (CALL(call) != EINVAL) << at++)
    TRY(posix_trace_start(stream));
    TRY(posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET));
    TRY(posix_trace_get_filter(stream, &set));
    TRY(posix_trace_eventid_get_name(stream, type, name));
    TRY(posix_trace_eventtypelist_getnext_id(stream, &event, &unavailable));
    TRY(posix_trace_eventtypelist_rewind(stream));
    TRY(posix_trace_get_attr(stream, &attr));
    TRY(posix_trace_get_status(stream, &status));
    TRY(posix_trace_trid_eventid_open(stream, "create event", &event));
    if (reads) {
        record(type, 1, 1);
        TRY(posix_trace_getnext_event(stream, &next.info, next.data, sizeof next.data, &next.length,
                                      &unavailable));
        TRY(posix_trace_timedgetnext_event(stream, &next.info, next.data, sizeof next.data, &next.length,
                                           &unavailable, &past));
        TRY(posix_trace_trygetnext_event(stream, &next.info, next.data, sizeof next.data, &next.length,
                                         &unavailable));
    } else {
        result |= 7 << at;
        at += 3;
    }
    TRY(posix_trace_clear(stream));
    TRY(posix_trace_stop(stream));
    at = 16;
    TRY(posix_trace_flush(stream));
    TRY(posix_trace_rewind(stream));
    TRY(posix_trace_close(stream));
#undef TRY
    return result;
}

static trace_attr_t named(const char *name)
{
    trace_attr_t attr;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setname(&attr, name);
    return attr;
}

static int has_name(trace_id_t stream, const char *expected)
{
    trace_attr_t attr;
    char name[TRACE_NAME_MAX] = "?";
    posix_trace_attr_init(&attr);
    return CALL(posix_trace_get_attr(stream, &attr)) == 0 &&
           CALL(posix_trace_attr_getname(&attr, name)) == 0 && strcmp(name, expected) == 0;
}

/* The id of a stream of the parent is invalid in the child. */
static int refuses_stream_of_parent(void *argument)
{
    trace_id_t stream = *(trace_id_t *)argument;
    trace_event_id_t type = user_type("create event");
    struct event event;
    if (accepted(stream, type, 0) != 7 << 9)
        return 1;
    if (try_next(stream, &event) != EINVAL || wait_next(stream, &event) != EINVAL)
        return 2;
    return CALL(posix_trace_shutdown(stream)) == EINVAL ? 0 : 3;
}

static int creates_stream(void *argument)
{
    trace_id_t stream;
    (void)argument;
    return CALL(posix_trace_create(0, NULL, &stream));
}

static int creates_for_pid(void *argument)
{
    trace_id_t stream;
    return CALL(posix_trace_create(*(pid_t *)argument, NULL, &stream));
}

/* Without privileges, for a process of another user. */
static int creates_for_other_user(void *argument)
{
    pid_t pid = geteuid() == 0 ? *(pid_t *)argument : 1;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return -1;
    return creates_for_pid(&pid);
}

static void of_streams(void)
{
    trace_event_id_t type = user_type("create event");
    trace_attr_t attr = named("created"), wrong;
    trace_event_set_t filter, empty;
    trace_id_t stream = 0, second = 0;
    struct timespec before, created = {0, 0}, after;
    size_t size = 0, default_size = 1;
    struct event event;
    pid_t self = getpid();
    clock_gettime(CLOCK_REALTIME, &before);
    check("create-01 posix_trace_create creates an active stream with the given attributes",
          CALL(posix_trace_create(self, &attr, &stream)) == 0 && has_name(stream, "created"));
    clock_gettime(CLOCK_REALTIME, &after);
    check("create-02 It stores the id of the stream", stream != 0);
    posix_trace_attr_setname(&attr, "changed");
    check("create-03 Later changes of the object of attributes do not change the stream",
          has_name(stream, "created"));
    CALL(posix_trace_get_attr(stream, &attr));
    CALL(posix_trace_attr_getcreatetime(&attr, &created));
    check("create-04 The creation-time is the time of CLOCK_REALTIME",
          created.tv_sec >= before.tv_sec && created.tv_sec <= after.tv_sec);
    check("create-05 A stream is created suspended",
          status_of(stream).posix_stream_status == POSIX_TRACE_SUSPENDED);
    CALL(posix_trace_eventset_fill(&filter, POSIX_TRACE_ALL_EVENTS));
    CALL(posix_trace_eventset_empty(&empty));
    check("create-06 Its filter is empty",
          CALL(posix_trace_get_filter(stream, &filter)) == 0 && memcmp(&filter, &empty, sizeof filter) == 0);
    CALL(posix_trace_start(stream));
    record(type, 1, 1);
    check("create-07 A stream for the id of the calling process traces that process",
          next_user(stream, &event, try_next) && event.info.posix_pid == self);
    check("create-08 A stream can be used for the operations of active streams",
          (accepted(stream, type, 1) & COMMON) == COMMON);
    check("create-09 It cannot be used for posix_trace_flush, posix_trace_rewind and posix_trace_close",
          (accepted(stream, type, 1) & ~COMMON) == 0);
    check("create-10 The id is invalid in a child of the process", in_child(refuses_stream_of_parent, &stream) == 0);
    check("create-11 A stream continues after a child has used its id",
          CALL(posix_trace_start(stream)) == 0 &&
              status_of(stream).posix_stream_status == POSIX_TRACE_RUNNING);
    check("create-12 A process can create several streams", CALL(posix_trace_create(0, NULL, &second)) == 0);
    check("create-13 Their ids differ", second != stream && !has_name(second, "created"));
    check("create-14 Several processes can create streams", in_child(creates_stream, NULL) == 0);
    CALL(posix_trace_start(second));
    record(type, 2, 1);
    check("create-15 The id 0 is the calling process", next_user(second, &event, try_next) &&
                                                           event.info.posix_pid == self && number_of(&event) == 2);
    CALL(posix_trace_get_attr(second, &attr));
    CALL(posix_trace_attr_getstreamsize(&attr, &size));
    CALL(posix_trace_attr_init(&attr));
    CALL(posix_trace_attr_getstreamsize(&attr, &default_size));
    check("create-16 Without an object of attributes, a stream has the default attributes",
          has_name(second, "") && size >= default_size);
    CALL(posix_trace_shutdown(stream));
    CALL(posix_trace_shutdown(second));
    memset(&wrong, 0, sizeof wrong);
    check("create-17 Attributes that are invalid are EINVAL",
          CALL(posix_trace_create(0, &wrong, &stream)) == EINVAL);
    check("create-18 A process of another user is EPERM", in_child(creates_for_other_user, &self) == EPERM);
    self = 0x3ffffff0;
    check("create-19 A process that does not exist is ESRCH", in_child(creates_for_pid, &self) == ESRCH);
    posix_trace_attr_init(&attr);
    posix_trace_attr_setstreamsize(&attr, (size_t)-1 / 4);
    check("create-20 A size beyond the available memory is ENOMEM",
          CALL(posix_trace_create(0, &attr, &stream)) == ENOMEM);
}

/* In a network of its own, where no other process has streams, if the system permits one. */
static int creates_as_many_as_possible(void *argument)
{
    trace_id_t stream;
    int count, error = 0;
    (void)argument;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        errno = 0;
    for (count = 0; count <= TRACE_SYS_MAX && error == 0; count++)
        error = CALL(posix_trace_create(0, NULL, &stream));
    return error == EAGAIN && count > _POSIX_TRACE_SYS_MAX ? 0 : 1;
}

static void *waits_for_event(void *argument)
{
    static int error;
    struct event event;
    error = wait_next(*(trace_id_t *)argument, &event);
    return &error;
}

/* Whether another thread of this process sleeps. */
static int some_thread_waits(void)
{
    char path[300], line[128];
    struct dirent *entry;
    DIR *threads = opendir("/proc/self/task");
    FILE *file;
    int sleeps = 0;
    if (!threads)
        exit(2);
    while ((entry = readdir(threads)) != NULL) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/syscall", entry->d_name);
        file = fopen(path, "r");
        if (!file)
            continue;
        line[0] = 0;
        if (fgets(line, sizeof line, file))
            sleeps |= strncmp(line, "running", 7) != 0;
        fclose(file);
    }
    closedir(threads);
    return sleeps;
}

/* Ends in one of three ways, with a running stream. */
static int ends_with_stream(void *argument)
{
    char program[] = "/bin/true";
    char *arguments[] = {program, NULL};
    started_stream(NULL);
    switch (*(int *)argument) {
    case 0:
        exit(0);
    case 1:
        execv(program, arguments);
        return 1;
    default:
        raise(SIGKILL);
    }
    return 1;
}

/* Whether TRACE_SYS_MAX streams and more can be created one after the other. */
static int ends_free_streams(int how)
{
    int at;
    for (at = 0; at < TRACE_SYS_MAX + 2; at++) {
        trace_id_t stream;
        in_child(ends_with_stream, &how);
        if (CALL(posix_trace_create(0, NULL, &stream)) != 0)
            return 0;
        CALL(posix_trace_shutdown(stream));
    }
    return 1;
}

static void of_shutdown(void)
{
    trace_event_id_t type = user_type("create event");
    trace_id_t stream = started_stream(NULL), others[8];
    struct event event;
    pthread_t thread;
    void *error = NULL;
    int at, good = 1;
    record(type, 1, 10);
    check("create-21 posix_trace_shutdown succeeds, whether or not all events were read",
          CALL(posix_trace_shutdown(stream)) == 0);
    record(type, 1, 10);
    check("create-22 It stops the stream, and makes its id invalid",
          try_next(stream, &event) == EINVAL && CALL(posix_trace_shutdown(stream)) == EINVAL &&
              CALL(posix_trace_start(stream)) == EINVAL);
    for (at = 0; at < 4 * TRACE_SYS_MAX; at++) {
        good &= CALL(posix_trace_create(0, NULL, &others[0])) == 0;
        good &= CALL(posix_trace_shutdown(others[0])) == 0;
    }
    check("create-23 It frees all resources: streams can be created without end", good);
    stream = create_stream(NULL);
    if (pthread_create(&thread, NULL, waits_for_event, &stream) != 0)
        exit(2);
    while (!some_thread_waits())
        usleep(100);
    CALL(posix_trace_shutdown(stream));
    pthread_join(thread, &error);
    check("create-24 A thread that waits for an event of the stream returns with EINVAL",
          *(int *)error == EINVAL);
    check("create-25 The streams of a process that exits are shut down", ends_free_streams(0));
    check("create-26 The streams of a process that executes another program are shut down", ends_free_streams(1));
    check("create-27 The streams of a process that is terminated are shut down", ends_free_streams(2));
    check("create-28 More streams than TRACE_SYS_MAX are EAGAIN",
          in_child(creates_as_many_as_possible, NULL) == 0);
    check("create-29 An id of no stream is EINVAL",
          CALL(posix_trace_shutdown((trace_id_t)-1)) == EINVAL && CALL(posix_trace_flush(0)) == EINVAL);
}

static trace_attr_t with_log_policy(int policy)
{
    trace_attr_t attr;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, policy);
    return attr;
}

static void end_of_flush(trace_id_t stream)
{
    while (status_of(stream).posix_stream_flush_status == POSIX_TRACE_FLUSHING)
        usleep(100);
}

static void of_logs(void)
{
    trace_event_id_t type = user_type("create event"), next;
    trace_attr_t attr = with_log_policy(POSIX_TRACE_LOOP);
    int file = new_file(), reading = reopened(file, O_RDONLY), pipes[2], at, unavailable, found = 0;
    trace_id_t stream = 0, log;
    struct stat before, after;
    struct event event;
    char name[TRACE_EVENT_NAME_MAX + 1];
    posix_trace_attr_setname(&attr, "of a log");
    check("create-30 posix_trace_create_withlog creates an active stream with a log, and stores its id",
          CALL(posix_trace_create_withlog(0, &attr, file, &stream)) == 0 && has_name(stream, "of a log") &&
              status_of(stream).posix_stream_status == POSIX_TRACE_SUSPENDED);
    check("create-31 It can be used for the operations of active streams, and posix_trace_flush",
          (accepted(stream, type, 0) & (COMMON | FLUSH)) == (COMMON | FLUSH));
    check("create-32 It cannot be used for posix_trace_rewind and posix_trace_close",
          (accepted(stream, type, 0) & (REWIND | CLOSE)) == 0);
    CALL(posix_trace_start(stream));
    record(type, 0, 100);
    fstat(file, &before);
    check("create-33 posix_trace_flush begins a flush", CALL(posix_trace_flush(stream)) == 0);
    end_of_flush(stream);
    fstat(file, &after);
    check("create-34 Its end can be seen by posix_trace_get_status",
          status_of(stream).posix_stream_flush_status == POSIX_TRACE_NOT_FLUSHING);
    check("create-35 A flush copies the events of the stream to the log", after.st_size > before.st_size);
    CALL(posix_trace_flush(stream));
    record(type, 100, 100);
    end_of_flush(stream);
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    while (next_user(log, &event, wait_next))
        found += number_of(&event) == found;
    check("create-36 Events can be recorded during a flush", found == 200);
    check("create-37 posix_trace_shutdown flushes all events to the log before it returns", found == 200);
    check("create-38 A closed log has the attributes", has_name(log, "of a log"));
    found = 0;
    while (CALL(posix_trace_eventtypelist_getnext_id(log, &next, &unavailable)) == 0 && !unavailable)
        found += CALL(posix_trace_eventid_get_name(log, next, name)) == 0 && strcmp(name, "create event") == 0;
    check("create-39 It has the list of event types with their names", found == 1);
    check("create-40 It has the status of the stream",
          status_of(log).posix_stream_status == POSIX_TRACE_SUSPENDED &&
              status_of(log).posix_stream_overrun_status == POSIX_TRACE_NO_OVERRUN);
    CALL(posix_trace_close(log));
    if (ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0)
        exit(2);
    check("create-41 A file that is not a log is refused",
          CALL(posix_trace_open(reading, &log)) == EINVAL);

    small_stream(&attr, POSIX_TRACE_UNTIL_FULL, 32);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (at = 0; at < 20; at++) {
        record(type, 16 * at, 16);
        CALL(posix_trace_flush(stream));
        end_of_flush(stream);
    }
    found = status_of(stream).posix_stream_full_status == POSIX_TRACE_NOT_FULL;
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    check("create-42 The room of flushed events is used again", found && count_of(log, type, wait_next) == 320);
    CALL(posix_trace_close(log));

    stream = create_stream(NULL);
    check("create-43 A flush of a stream without log is EINVAL", CALL(posix_trace_flush(stream)) == EINVAL);
    CALL(posix_trace_shutdown(stream));
    if (pipe(pipes) != 0)
        exit(2);
    attr = with_log_policy(POSIX_TRACE_LOOP);
    check("create-44 A file of a type that the log policy does not permit is EINVAL",
          CALL(posix_trace_create_withlog(0, &attr, pipes[1], &stream)) == EINVAL);
    attr = with_log_policy(POSIX_TRACE_APPEND);
    check("create-45 The policies POSIX_TRACE_APPEND and POSIX_TRACE_UNTIL_FULL permit a pipe",
          CALL(posix_trace_create_withlog(0, &attr, pipes[1], &stream)) == 0 &&
              CALL(posix_trace_shutdown(stream)) == 0);
    attr = with_log_policy(POSIX_TRACE_LOOP);
    check("create-46 No file descriptor is EBADF",
          CALL(posix_trace_create_withlog(0, &attr, -1, &stream)) == EBADF);
    check("create-47 One that is open for reading is EBADF",
          CALL(posix_trace_create_withlog(0, &attr, reading, &stream)) == EBADF);
    close(pipes[0]);
    close(pipes[1]);
    close(reading);
    close(file);
}

/* Numbers in a log of few bytes after `flushes` flushes of 50 numbers: from `first` to `last`. */
static void overfill(int policy, int flushes, int *first, int *last)
{
    trace_event_id_t type = user_type("create event");
    trace_attr_t attr = with_log_policy(policy);
    struct event event;
    size_t bytes = 0;
    trace_id_t stream, log;
    int file = new_file(), at;
    posix_trace_attr_getmaxusereventsize(&attr, 4, &bytes);
    posix_trace_attr_setlogsize(&attr, 200 * bytes);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (at = 0; at < flushes; at++) {
        record(type, 50 * at, 50);
        CALL(posix_trace_flush(stream));
        end_of_flush(stream);
    }
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    *first = *last = -1;
    while (next_user(log, &event, wait_next)) {
        if (*first < 0)
            *first = number_of(&event);
        *last = number_of(&event);
    }
    CALL(posix_trace_close(log));
    close(file);
}

/* Flushes, and returns the error of the flush: of the call, or of the status. */
static int flushed(trace_id_t stream)
{
    struct posix_trace_status_info status;
    int error = CALL(posix_trace_flush(stream));
    do {
        status = status_of(stream);
        error = error ? error : status.posix_stream_flush_error;
    } while (status.posix_stream_flush_status == POSIX_TRACE_FLUSHING);
    return error;
}

/* A flush to a file system of few pages: 0 if it is ENOSPC, 77 if there can be none. */
static int fills_disk(void *argument)
{
    trace_event_id_t type = user_type("create event");
    trace_attr_t attr = with_log_policy(POSIX_TRACE_APPEND);
    trace_id_t stream;
    int file, error = 0, round;
    (void)argument;
    if ((geteuid() == 0 ? unshare(CLONE_NEWNS) : unshare(CLONE_NEWUSER | CLONE_NEWNS)) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("full", "/tmp", "tmpfs", 0, "size=64k") != 0)
        return 77;
    file = new_file();
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (round = 0; round < 100 && error == 0; round++) {
        record(type, 0, 1000);
        error = flushed(stream);
    }
    return error == ENOSPC ? 0 : 1;
}

/* A log of a limited size: 0 if the flush is EFBIG, plus 2 if the log has no event of it. */
static int exceeds_file_size(void *argument)
{
    trace_event_id_t type = user_type("create event");
    trace_attr_t attr = with_log_policy(POSIX_TRACE_APPEND);
    struct rlimit limit;
    struct event event;
    trace_id_t stream, log;
    int error = 0, round, file = new_file();
    (void)argument;
    stream = create_logged(&attr, file);
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 77;
    limit.rlim_cur = 20000;
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 77;
    CALL(posix_trace_start(stream));
    for (round = 0; round < 100 && error == 0; round++) {
        record(type, 0, 1000);
        error = flushed(stream);
    }
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    return (error != EFBIG) + 2 * !(next_of(log, POSIX_TRACE_ERROR, &event, wait_next) &&
                                    number_of(&event) == EFBIG);
}

static int logs_and_exits(void *argument)
{
    trace_attr_t attr = with_log_policy(POSIX_TRACE_APPEND);
    trace_id_t stream = create_logged(&attr, *(int *)argument);
    CALL(posix_trace_start(stream));
    record(user_type("create event"), 0, 50);
    fflush(stdout);
    exit(0);
}

static void of_full_logs(void)
{
    trace_event_id_t type = user_type("create event");
    int first, last, result, file = new_file();
    trace_id_t log;
    overfill(POSIX_TRACE_UNTIL_FULL, 20, &first, &last);
    check("create-48 With POSIX_TRACE_UNTIL_FULL, events that do not fit the log are discarded",
          first == 0 && last > 0 && last < 999);
    overfill(POSIX_TRACE_LOOP, 20, &first, &last);
    check("create-49 With POSIX_TRACE_LOOP, they overwrite the oldest events of the log",
          first > 0 && last == 999);
    overfill(POSIX_TRACE_APPEND, 20, &first, &last);
    check("create-50 With POSIX_TRACE_APPEND, they are appended to the log", first == 0 && last == 999);
    result = in_child(fills_disk, NULL);
    if (result == 77)
        tap_skip("create-51 A log for which there is no space is ENOSPC", "no file system can be mounted");
    else
        check("create-51 A log for which there is no space is ENOSPC", result == 0);
    result = in_child(exceeds_file_size, NULL);
    check("create-52 A log beyond the greatest size of files is EFBIG", (result & 1) == 0);
    check("create-55 An error of a flush is recorded as POSIX_TRACE_ERROR with its number",
          (result & 2) == 0);
    result = in_child(logs_and_exits, &file);
    log = open_log(file);
    check("create-53 The log of a process that exits has all its events",
          result == 0 && log != 0 && count_of(log, type, wait_next) == 50);
    CALL(posix_trace_close(log));
    close(file);
    check_errno("create-54 Functions return zero or the error number, and leave errno as it was");
}

int main(void)
{
    begin_tests();
    of_streams();
    of_shutdown();
    of_logs();
    of_full_logs();
    return tap_done();
}
