/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: objects of attributes, and streams with them. */
#define _GNU_SOURCE 1
#include <spawn.h>
#include <sys/stat.h>

#include "posix.h"

extern char **environ;

/* An initialized object. */
static trace_attr_t initialized(void)
{
    trace_attr_t attr;
    if (CALL(posix_trace_attr_init(&attr)) != 0)
        exit(2);
    return attr;
}

static int has_name(const trace_attr_t *attr, const char *expected)
{
    char name[TRACE_NAME_MAX];
    memset(name, 'x', sizeof name);
    return CALL(posix_trace_attr_getname(attr, name)) == 0 && strcmp(name, expected) == 0;
}

static size_t stream_size_of(const trace_attr_t *attr)
{
    size_t bytes = 0;
    CALL(posix_trace_attr_getstreamsize(attr, &bytes));
    return bytes;
}

static int stream_policy_of(const trace_attr_t *attr)
{
    int policy = -1;
    CALL(posix_trace_attr_getstreamfullpolicy(attr, &policy));
    return policy;
}

static int log_policy_of(const trace_attr_t *attr)
{
    int policy = -1;
    CALL(posix_trace_attr_getlogfullpolicy(attr, &policy));
    return policy;
}

static int inheritance_of(const trace_attr_t *attr)
{
    int policy = -1;
    CALL(posix_trace_attr_getinherited(attr, &policy));
    return policy;
}

static size_t data_size_of(const trace_attr_t *attr)
{
    size_t bytes = 0;
    CALL(posix_trace_attr_getmaxdatasize(attr, &bytes));
    return bytes;
}

static size_t log_size_of(const trace_attr_t *attr)
{
    size_t bytes = 0;
    CALL(posix_trace_attr_getlogsize(attr, &bytes));
    return bytes;
}

static size_t event_size_of(const trace_attr_t *attr, size_t data)
{
    size_t bytes = 0;
    CALL(posix_trace_attr_getmaxusereventsize(attr, data, &bytes));
    return bytes;
}

static trace_attr_t attributes_of(trace_id_t stream)
{
    trace_attr_t attr = initialized();
    if (CALL(posix_trace_get_attr(stream, &attr)) != 0)
        exit(2);
    return attr;
}

/* Page posix_trace_attr_destroy. */
static void of_objects(void)
{
    trace_attr_t attr = initialized(), received = initialized(), wrong;
    char version[TRACE_NAME_MAX];
    struct timespec resolution = {-1, -1};
    trace_id_t first, second;
    int file = new_file();
    check("attr-01 An initialized object has the default of every attribute",
          has_name(&attr, "") && stream_policy_of(&attr) == POSIX_TRACE_LOOP &&
              log_policy_of(&attr) == POSIX_TRACE_LOOP &&
              inheritance_of(&attr) == POSIX_TRACE_CLOSE_FOR_CHILD && stream_size_of(&attr) > 0 &&
              log_size_of(&attr) > 0 && data_size_of(&attr) > 0);
    memset(version, 0, sizeof version);
    check("attr-02 Its generation-version is that of this trace system",
          CALL(posix_trace_attr_getgenversion(&attr, version)) == 0 && strlen(version) > 0);
    check("attr-03 Its clock-resolution is that of time stamps",
          CALL(posix_trace_attr_getclockres(&attr, &resolution)) == 0 && resolution.tv_sec == 0 &&
              resolution.tv_nsec > 0 && resolution.tv_nsec < 1000000000);
    CALL(posix_trace_attr_setname(&attr, "first"));
    CALL(posix_trace_attr_setmaxdatasize(&attr, 17));
    first = create_stream(&attr);
    received = attributes_of(first);
    check("attr-04 An object defines the attributes of a stream that is created with it",
          has_name(&received, "first") && data_size_of(&received) == 17);
    second = create_stream(&attr);
    received = attributes_of(second);
    check("attr-05 One object serves for several streams", has_name(&received, "first"));
    CALL(posix_trace_attr_setname(&attr, "second"));
    received = attributes_of(first);
    check("attr-06 A change of the object does not change streams that it has created",
          has_name(&received, "first"));
    check("attr-07 The destruction of an object succeeds", CALL(posix_trace_attr_destroy(&attr)) == 0);
    received = attributes_of(second);
    check("attr-08 The destruction of an object does not change streams that it has created",
          has_name(&received, "first") && CALL(posix_trace_start(second)) == 0);
    check("attr-09 A destroyed object is invalid", CALL(posix_trace_attr_destroy(&attr)) == EINVAL &&
                                                       CALL(posix_trace_attr_setlogsize(&attr, 1)) == EINVAL);
    check("attr-10 A destroyed object can be initialized again",
          CALL(posix_trace_attr_init(&attr)) == 0 && has_name(&attr, ""));
    check("attr-11 An initialized object receives the attributes of an active stream",
          CALL(posix_trace_get_attr(first, &attr)) == 0 && has_name(&attr, "first"));
    CALL(posix_trace_shutdown(first));
    CALL(posix_trace_shutdown(second));
    first = create_logged(&attr, file);
    CALL(posix_trace_shutdown(first));
    first = open_log(file);
    CALL(posix_trace_attr_init(&received));
    check("attr-12 An initialized object receives the attributes of a log",
          CALL(posix_trace_get_attr(first, &received)) == 0 && has_name(&received, "first"));
    CALL(posix_trace_close(first));
    memset(&wrong, 0x55, sizeof wrong);
    check("attr-13 An object that was never initialized is invalid",
          CALL(posix_trace_attr_destroy(&wrong)) == EINVAL && CALL(posix_trace_attr_destroy(NULL)) == EINVAL);
    check_errno("attr-14 Functions return zero or the error number, and leave errno as it was");
    close(file);
}

static int between(const struct timespec *early, const struct timespec *time, const struct timespec *late)
{
    return (early->tv_sec < time->tv_sec ||
            (early->tv_sec == time->tv_sec && early->tv_nsec <= time->tv_nsec)) &&
           (time->tv_sec < late->tv_sec || (time->tv_sec == late->tv_sec && time->tv_nsec <= late->tv_nsec));
}

/* Page posix_trace_attr_getclockres. */
static void of_information(void)
{
    trace_attr_t attr = initialized(), wrong, of_stream;
    struct timespec time = {-1, -1}, before, after, resolution = {-1, -1};
    char version[TRACE_NAME_MAX], name[TRACE_NAME_MAX], longest[TRACE_NAME_MAX], longer[2 * TRACE_NAME_MAX];
    trace_id_t stream;
    memset(&wrong, 0, sizeof wrong);
    memset(version, 'x', sizeof version);
    check("info-01 posix_trace_attr_getclockres copies the clock resolution",
          CALL(posix_trace_attr_getclockres(&attr, &resolution)) == 0 && resolution.tv_nsec > 0);
    clock_gettime(CLOCK_REALTIME, &before);
    stream = create_stream(&attr);
    clock_gettime(CLOCK_REALTIME, &after);
    of_stream = attributes_of(stream);
    check("info-02 posix_trace_attr_getcreatetime copies the creation time",
          CALL(posix_trace_attr_getcreatetime(&of_stream, &time)) == 0);
    check("info-03 The creation time is the time at which the stream was created",
          between(&before, &time, &after));
    CALL(posix_trace_shutdown(stream));
    check("info-04 posix_trace_attr_getgenversion copies the version as a string",
          CALL(posix_trace_attr_getgenversion(&attr, version)) == 0 && memchr(version, 0, sizeof version) &&
              version[0] != 0);
    check("info-05 The string fits an array of TRACE_NAME_MAX characters",
          strnlen(version, sizeof version) < TRACE_NAME_MAX);
    memset(name, 'x', sizeof name);
    check("info-06 posix_trace_attr_getname copies the name as a string",
          CALL(posix_trace_attr_getname(&attr, name)) == 0 && memchr(name, 0, sizeof name));
    check("info-07 The name is the empty string by default", has_name(&attr, ""));
    check("info-08 posix_trace_attr_setname sets the name",
          CALL(posix_trace_attr_setname(&attr, "a name")) == 0 && has_name(&attr, "a name"));
    memset(longest, 'n', sizeof longest);
    longest[TRACE_NAME_MAX - 1] = 0;
    check("info-09 A name of one character less than TRACE_NAME_MAX is kept whole",
          CALL(posix_trace_attr_setname(&attr, longest)) == 0 && has_name(&attr, longest));
    memset(longer, 'n', sizeof longer);
    longer[sizeof longer - 1] = 0;
    check("info-10 A longer name is cut to one character less than TRACE_NAME_MAX",
          CALL(posix_trace_attr_setname(&attr, longer)) == 0 && has_name(&attr, longest));
    check("info-11 An invalid object or result is EINVAL",
          CALL(posix_trace_attr_getclockres(&wrong, &resolution)) == EINVAL &&
              CALL(posix_trace_attr_getcreatetime(&wrong, &time)) == EINVAL &&
              CALL(posix_trace_attr_getgenversion(&wrong, version)) == EINVAL &&
              CALL(posix_trace_attr_getname(&wrong, name)) == EINVAL &&
              CALL(posix_trace_attr_setname(&wrong, "")) == EINVAL &&
              CALL(posix_trace_attr_getname(&attr, NULL)) == EINVAL &&
              CALL(posix_trace_attr_setname(&attr, NULL)) == EINVAL);
    check_errno("info-12 Functions return zero or the error number, and leave errno as it was");
}

/* The program itself, executed again: it records one event of the type. */
static int records_and_exits(char **arguments)
{
    record(user_type(arguments[2]), atoi(arguments[3]), 1);
    return 0;
}

static int spawn_recorder(const char *type, const char *number)
{
    char program[] = "/proc/self/exe", verb[] = "record", name[64], text[16];
    char *arguments[] = {program, verb, name, text, NULL};
    pid_t child;
    snprintf(name, sizeof name, "%s", type);
    snprintf(text, sizeof text, "%s", number);
    if (posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0)
        return -1;
    return exit_of(child);
}

static int records_one(void *type)
{
    record(*(trace_event_id_t *)type, 100, 1);
    return 0;
}

/* Which of the numbers 100, 101 and 102 a stream has recorded, as bits 0 to 2. */
static int recorded_in(trace_id_t stream)
{
    struct event event;
    int found = 0;
    while (next_user(stream, &event, try_next))
        if (number_of(&event) >= 100 && number_of(&event) < 103)
            found |= 1 << (number_of(&event) - 100);
    return found;
}

static int child_traces_itself(void *type)
{
    trace_id_t stream = started_stream(NULL);
    struct event event;
    record(*(trace_event_id_t *)type, 5, 1);
    return next_user(stream, &event, try_next) && number_of(&event) == 5 ? 0 : 1;
}

static void of_inheritance(void)
{
    trace_attr_t attr = initialized();
    trace_event_id_t type = user_type("policy event");
    trace_id_t stream;
    int found;
    check("policy-01 The inheritance policy can be POSIX_TRACE_INHERITED",
          CALL(posix_trace_attr_setinherited(&attr, POSIX_TRACE_INHERITED)) == 0 &&
              inheritance_of(&attr) == POSIX_TRACE_INHERITED);
    check("policy-02 It can be POSIX_TRACE_CLOSE_FOR_CHILD",
          CALL(posix_trace_attr_setinherited(&attr, POSIX_TRACE_CLOSE_FOR_CHILD)) == 0 &&
              inheritance_of(&attr) == POSIX_TRACE_CLOSE_FOR_CHILD);
    attr = initialized();
    check("policy-03 The default is POSIX_TRACE_CLOSE_FOR_CHILD",
          inheritance_of(&attr) == POSIX_TRACE_CLOSE_FOR_CHILD);
    check("policy-04 Another value is EINVAL and changes nothing",
          CALL(posix_trace_attr_setinherited(&attr, 99)) == EINVAL &&
              inheritance_of(&attr) == POSIX_TRACE_CLOSE_FOR_CHILD);
    stream = started_stream(&attr);
    found = in_child(records_one, &type);
    record(type, 102, 1);
    found |= recorded_in(stream);
    check("policy-05 With POSIX_TRACE_CLOSE_FOR_CHILD a forked child is not traced, and its parent still is",
          found == 4);
    found = spawn_recorder("policy event", "101");
    record(type, 102, 1);
    found |= recorded_in(stream);
    check("policy-06 With POSIX_TRACE_CLOSE_FOR_CHILD a spawned child is not traced", found == 4);
    check("policy-07 A child that is not traced can have streams of its own", in_child(child_traces_itself, &type) == 0);
    CALL(posix_trace_shutdown(stream));
    CALL(posix_trace_attr_setinherited(&attr, POSIX_TRACE_INHERITED));
    stream = started_stream(&attr);
    found = in_child(records_one, &type);
    record(type, 102, 1);
    found |= recorded_in(stream);
    check("policy-08 With POSIX_TRACE_INHERITED a forked child is traced into the stream of its parent",
          found == 5);
    found = spawn_recorder("policy event", "101");
    record(type, 102, 1);
    found |= recorded_in(stream);
    check("policy-09 With POSIX_TRACE_INHERITED a spawned child is traced into the stream of its parent", found == 6);
    CALL(posix_trace_shutdown(stream));
}

static void of_policy_values(void)
{
    static const int stream_policies[] = {POSIX_TRACE_LOOP, POSIX_TRACE_UNTIL_FULL, POSIX_TRACE_FLUSH};
    static const int log_policies[] = {POSIX_TRACE_LOOP, POSIX_TRACE_UNTIL_FULL, POSIX_TRACE_APPEND};
    trace_attr_t attr = initialized(), wrong;
    trace_id_t stream;
    int at, kept = 0, result = -1, file = new_file();
    memset(&wrong, 0, sizeof wrong);
    for (at = 0; at < 3; at++)
        kept += CALL(posix_trace_attr_setlogfullpolicy(&attr, log_policies[at])) == 0 &&
                log_policy_of(&attr) == log_policies[at];
    check("policy-10 The log-full-policy can be POSIX_TRACE_LOOP, POSIX_TRACE_UNTIL_FULL and "
          "POSIX_TRACE_APPEND",
          kept == 3);
    check("policy-11 Another value is EINVAL and changes nothing",
          CALL(posix_trace_attr_setlogfullpolicy(&attr, 99)) == EINVAL &&
              log_policy_of(&attr) == POSIX_TRACE_APPEND);
    kept = 0;
    for (at = 0; at < 3; at++)
        kept += CALL(posix_trace_attr_setstreamfullpolicy(&attr, stream_policies[at])) == 0 &&
                stream_policy_of(&attr) == stream_policies[at];
    check("policy-12 The stream-full-policy can be POSIX_TRACE_LOOP, POSIX_TRACE_UNTIL_FULL and "
          "POSIX_TRACE_FLUSH",
          kept == 3);
    check("policy-13 Another value is EINVAL and changes nothing",
          CALL(posix_trace_attr_setstreamfullpolicy(&attr, 99)) == EINVAL &&
              stream_policy_of(&attr) == POSIX_TRACE_FLUSH);
    check("policy-14 POSIX_TRACE_FLUSH is invalid for a stream without log",
          CALL(posix_trace_create(0, &attr, &stream)) == EINVAL);
    attr = initialized();
    check("policy-15 The log-full-policy is POSIX_TRACE_LOOP by default",
          log_policy_of(&attr) == POSIX_TRACE_LOOP);
    stream = create_stream(&attr);
    attr = attributes_of(stream);
    check("policy-16 The stream-full-policy of a stream without log is POSIX_TRACE_LOOP by default",
          stream_policy_of(&attr) == POSIX_TRACE_LOOP);
    CALL(posix_trace_shutdown(stream));
    attr = initialized();
    stream = create_logged(&attr, file);
    attr = attributes_of(stream);
    check("policy-17 The stream-full-policy of a stream with log is POSIX_TRACE_FLUSH by default",
          stream_policy_of(&attr) == POSIX_TRACE_FLUSH);
    CALL(posix_trace_shutdown(stream));
    check("policy-18 An invalid object or result is EINVAL",
          CALL(posix_trace_attr_getinherited(&wrong, &result)) == EINVAL &&
              CALL(posix_trace_attr_getlogfullpolicy(&wrong, &result)) == EINVAL &&
              CALL(posix_trace_attr_getstreamfullpolicy(&wrong, &result)) == EINVAL &&
              CALL(posix_trace_attr_setinherited(&wrong, POSIX_TRACE_INHERITED)) == EINVAL &&
              CALL(posix_trace_attr_setlogfullpolicy(&wrong, POSIX_TRACE_LOOP)) == EINVAL &&
              CALL(posix_trace_attr_setstreamfullpolicy(&wrong, POSIX_TRACE_LOOP)) == EINVAL &&
              CALL(posix_trace_attr_getinherited(&attr, NULL)) == EINVAL && result == -1);
    close(file);
}

enum { SMALL = 16 };

/* The policies of full streams. */
static void of_full_streams(void)
{
    trace_attr_t attr;
    trace_event_id_t type = user_type("full event");
    struct posix_trace_status_info status;
    struct event event;
    trace_id_t stream;
    int last = -1, restarts = 0, stops = 0, users = 0, in_order = 1;
    small_stream(&attr, POSIX_TRACE_LOOP, SMALL);
    stream = started_stream(&attr);
    record(type, 0, 10 * SMALL);
    while (next_user(stream, &event, try_next)) {
        in_order &= number_of(&event) > last;
        last = number_of(&event);
        users++;
    }
    check("policy-19 A full stream with POSIX_TRACE_LOOP replaces its oldest events by the most recent ones",
          in_order && last == 10 * SMALL - 1 && users >= SMALL / 2 && users < 10 * SMALL);
    CALL(posix_trace_shutdown(stream));

    small_stream(&attr, POSIX_TRACE_UNTIL_FULL, SMALL);
    stream = started_stream(&attr);
    record(type, 0, 10 * SMALL);
    status = status_of(stream);
    check("policy-20 A full stream with POSIX_TRACE_UNTIL_FULL stops: its status is suspended and full",
          status.posix_stream_status == POSIX_TRACE_SUSPENDED &&
              status.posix_stream_full_status == POSIX_TRACE_FULL);
    last = -1;
    in_order = 1;
    while (try_next(stream, &event) == 0 && event.unavailable == 0) {
        if (event.info.posix_event_id == type) {
            in_order &= number_of(&event) == last + 1 && stops == 0;
            last = number_of(&event);
        }
        /* Another START may come as soon as the stream is empty. */
        restarts += stops && event.info.posix_event_id == POSIX_TRACE_START;
        stops += event.info.posix_event_id == POSIX_TRACE_STOP;
    }
    check("policy-21 When it is read, POSIX_TRACE_STOP is reported after the last recorded event",
          in_order && last >= SMALL / 2 && last < 10 * SMALL - 1 && stops == 1);
    record(type, 1000, 1);
    status = status_of(stream);
    check("policy-22 The stream starts again when it is empty",
          status.posix_stream_status == POSIX_TRACE_RUNNING &&
              status.posix_stream_full_status == POSIX_TRACE_NOT_FULL);
    while (try_next(stream, &event) == 0 && event.unavailable == 0 && event.info.posix_event_id != type)
        restarts += event.info.posix_event_id == POSIX_TRACE_START;
    check("policy-23 POSIX_TRACE_START is reported before the next recorded event",
          restarts == 1 && event.info.posix_event_id == type && number_of(&event) == 1000);
    record(type, 0, SMALL / 2);
    check("policy-24 The room of reported events is used again",
          count_of(stream, type, try_next) == SMALL / 2);
    CALL(posix_trace_shutdown(stream));
}

/* The numbers of a log: their count, the smallest, the largest, and whether they ascend. */
struct numbers {
    int count, first, last, ascend;
    trace_event_id_t last_event;
};

static struct numbers numbers_in(trace_id_t log, trace_event_id_t type)
{
    struct numbers numbers = {0, -1, -1, 1, 0};
    struct event event;
    while (wait_next(log, &event) == 0 && event.unavailable == 0) {
        numbers.last_event = event.info.posix_event_id;
        if (event.info.posix_event_id != type)
            continue;
        if (numbers.count++ == 0)
            numbers.first = number_of(&event);
        else
            numbers.ascend &= number_of(&event) > numbers.last;
        numbers.last = number_of(&event);
    }
    return numbers;
}

/* A log of `count` numbers with this policy and size, flushed after each `chunk` numbers. */
static int logged(int policy, size_t log_size, int count, int chunk, struct posix_trace_status_info *status)
{
    trace_attr_t attr = initialized();
    trace_event_id_t type = user_type("full event");
    trace_id_t stream;
    int file = new_file(), at;
    CALL(posix_trace_attr_setlogfullpolicy(&attr, policy));
    CALL(posix_trace_attr_setlogsize(&attr, log_size));
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (at = 0; at < count; at += chunk) {
        record(type, at, chunk);
        CALL(posix_trace_flush(stream));
        while (status_of(stream).posix_stream_flush_status == POSIX_TRACE_FLUSHING)
            usleep(100);
    }
    *status = status_of(stream);
    CALL(posix_trace_shutdown(stream));
    return file;
}

/* The policies of full logs. */
static void of_full_logs(void)
{
    trace_attr_t attr = initialized();
    trace_event_id_t type = user_type("full event");
    struct posix_trace_status_info status, of_log;
    const size_t log_size = 200 * event_size_of(&attr, sizeof(int));
    struct numbers numbers;
    struct stat state;
    trace_id_t log, stream;
    int file, at, in_loop;
    file = logged(POSIX_TRACE_LOOP, log_size, 4000, 50, &status);
    log = open_log(file);
    numbers = numbers_in(log, type);
    check("policy-25 A full log with POSIX_TRACE_LOOP has the most recent events that were flushed",
          numbers.last == 3999 && numbers.ascend && numbers.first > 0 && numbers.count >= 50);
    in_loop = numbers.count;
    CALL(posix_trace_close(log));
    close(file);

    file = logged(POSIX_TRACE_UNTIL_FULL, log_size, 4000, 50, &status);
    fstat(file, &state);
    log = open_log(file);
    numbers = numbers_in(log, type);
    of_log = status_of(log);
    check("policy-26 A stream with POSIX_TRACE_UNTIL_FULL for its log is flushed until the log is full",
          numbers.first == 0 && numbers.ascend && numbers.count >= 50 && numbers.count < 4000 &&
              numbers.last == numbers.count - 1);
    check("policy-27 The member posix_log_full_status shows that the log is full",
          status.posix_log_full_status == POSIX_TRACE_FULL &&
              of_log.posix_log_full_status == POSIX_TRACE_FULL);
    check("policy-28 The last event in a full log with POSIX_TRACE_UNTIL_FULL is POSIX_TRACE_STOP",
          numbers.last_event == POSIX_TRACE_STOP);
    check("size-01 log-max-size is the most bytes of events in a log with POSIX_TRACE_UNTIL_FULL",
          numbers.count * sizeof(int) < log_size && (size_t)state.st_size < 2 * log_size);
    check("size-02 It is that in a log with POSIX_TRACE_LOOP: such a log has no more events",
          in_loop <= numbers.count);
    CALL(posix_trace_close(log));
    close(file);

    file = logged(POSIX_TRACE_APPEND, log_size, 4000, 50, &status);
    log = open_log(file);
    numbers = numbers_in(log, type);
    check("policy-29 A log with POSIX_TRACE_APPEND has no limit of its size",
          numbers.count == 4000 && numbers.first == 0 && numbers.last == 3999 && numbers.ascend &&
              status.posix_log_full_status == POSIX_TRACE_NOT_FULL);
    check("size-03 log-max-size is ignored with POSIX_TRACE_APPEND", numbers.count == 4000);
    CALL(posix_trace_close(log));
    close(file);

    small_stream(&attr, POSIX_TRACE_FLUSH, 64);
    file = new_file();
    CALL(posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND));
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    for (at = 0; at < 20; at++) {
        record(type, 32 * at, 32);
        /* Until a flush has made room. */
        while (status_of(stream).posix_stream_status == POSIX_TRACE_SUSPENDED)
            usleep(1000);
    }
    CALL(posix_trace_shutdown(stream));
    log = open_log(file);
    numbers = numbers_in(log, type);
    check("policy-30 A stream with POSIX_TRACE_FLUSH is flushed regularly without a call of "
          "posix_trace_flush, and never stays stopped",
          numbers.ascend && numbers.count > 64);
    CALL(posix_trace_close(log));
    close(file);
    check_errno("policy-31 Functions return zero or the error number, and leave errno as it was");
}

/* Page posix_trace_attr_getlogsize. */
static void of_sizes(void)
{
    trace_attr_t attr = initialized(), wrong;
    trace_event_id_t type = user_type("size event");
    char text[64] = "abcdefghijklmnopqrstuvwxyz";
    struct event event;
    size_t bytes = 0, one;
    trace_id_t stream;
    int found;
    memset(&wrong, 0, sizeof wrong);
    check("size-04 posix_trace_attr_setlogsize sets log-max-size, and posix_trace_attr_getlogsize copies it",
          CALL(posix_trace_attr_setlogsize(&attr, 123456)) == 0 &&
              CALL(posix_trace_attr_getlogsize(&attr, &bytes)) == 0 && bytes == 123456);
    check("size-05 posix_trace_attr_setmaxdatasize sets max-data-size, and posix_trace_attr_getmaxdatasize "
          "copies it",
          CALL(posix_trace_attr_setmaxdatasize(&attr, 10)) == 0 &&
              CALL(posix_trace_attr_getmaxdatasize(&attr, &bytes)) == 0 && bytes == 10);
    stream = started_stream(&attr);
    posix_trace_event(type, text, 10);
    posix_trace_event(type, text, 11);
    found = next_user(stream, &event, try_next) && event.length == 10 && memcmp(event.data, text, 10) == 0;
    check("size-06 Data of max-data-size is recorded whole", found);
    found = next_user(stream, &event, try_next) && event.length == 10 && memcmp(event.data, text, 10) == 0;
    check("size-07 Longer data is cut to that size", found);
    CALL(posix_trace_shutdown(stream));
    check("size-08 posix_trace_attr_setstreamsize sets stream-min-size, and posix_trace_attr_getstreamsize "
          "copies it",
          CALL(posix_trace_attr_setstreamsize(&attr, 54321)) == 0 &&
              CALL(posix_trace_attr_getstreamsize(&attr, &bytes)) == 0 && bytes == 54321);
    attr = initialized();
    check("size-09 posix_trace_attr_getmaxsystemeventsize computes the memory of a system event: at least its "
          "data",
          CALL(posix_trace_attr_getmaxsystemeventsize(&attr, &bytes)) == 0 &&
              bytes >= 2 * sizeof(trace_event_set_t) && bytes < 4096);
    one = event_size_of(&attr, 4);
    check("size-10 posix_trace_attr_getmaxusereventsize computes the memory of a user event with the given "
          "length of data",
          one >= 4 && event_size_of(&attr, 80) >= 80 && event_size_of(&attr, 80) < 4096);
    CALL(posix_trace_attr_setmaxdatasize(&attr, 4000));
    check("size-11 The computation is for the attributes of the object",
          event_size_of(&attr, 4000) >= 4000 && event_size_of(&attr, 1000000) < 8192);
    attr = initialized();
    CALL(posix_trace_attr_setstreamfullpolicy(&attr, POSIX_TRACE_UNTIL_FULL));
    CALL(posix_trace_attr_getmaxsystemeventsize(&attr, &bytes));
    CALL(posix_trace_attr_setstreamsize(&attr, 1000 * one + bytes));
    stream = started_stream(&attr);
    record(type, 0, 1000);
    check("size-12 Events whose sizes are together at most stream-min-size are recorded without loss",
          status_of(stream).posix_stream_overrun_status == POSIX_TRACE_NO_OVERRUN &&
              count_of(stream, type, try_next) == 1000);
    attr = attributes_of(stream);
    check("size-13 The size of a stream is at least the requested one, and does not include other data",
          stream_size_of(&attr) >= 1000 * one + bytes);
    CALL(posix_trace_shutdown(stream));
    check("size-14 An invalid object or result is EINVAL",
          CALL(posix_trace_attr_getlogsize(&wrong, &bytes)) == EINVAL &&
              CALL(posix_trace_attr_getmaxdatasize(&wrong, &bytes)) == EINVAL &&
              CALL(posix_trace_attr_getmaxsystemeventsize(&wrong, &bytes)) == EINVAL &&
              CALL(posix_trace_attr_getmaxusereventsize(&wrong, 1, &bytes)) == EINVAL &&
              CALL(posix_trace_attr_getstreamsize(&wrong, &bytes)) == EINVAL &&
              CALL(posix_trace_attr_setlogsize(&wrong, 1)) == EINVAL &&
              CALL(posix_trace_attr_setmaxdatasize(&wrong, 1)) == EINVAL &&
              CALL(posix_trace_attr_setstreamsize(&wrong, 1)) == EINVAL &&
              CALL(posix_trace_attr_getstreamsize(&attr, NULL)) == EINVAL);
    check_errno("size-15 Functions return zero or the error number, and leave errno as it was");
}

int main(int count, char **arguments)
{
    if (count == 4)
        return records_and_exits(arguments);
    begin_tests();
    of_objects();
    of_information();
    of_inheritance();
    of_policy_values();
    of_full_streams();
    of_full_logs();
    of_sizes();
    return tap_done();
}
