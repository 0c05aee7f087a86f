/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* links: overhear_posixtrace. Conformance: events, event types, their names and lists. */
#define _GNU_SOURCE 1
#include <pthread.h>

#include "posix.h"

static const trace_id_t NO_STREAM = (trace_id_t)-1;

static int has_name(trace_id_t stream, trace_event_id_t type, const char *expected)
{
    char name[TRACE_EVENT_NAME_MAX + 1];
    memset(name, 'x', sizeof name);
    return CALL(posix_trace_eventid_get_name(stream, type, name)) == 0 && memchr(name, 0, sizeof name) &&
           strcmp(name, expected) == 0;
}

/* A log with an event of each of the two types. */
static trace_id_t some_log(trace_event_id_t one, trace_event_id_t two)
{
    trace_attr_t attr;
    int file = new_file();
    trace_id_t stream;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setlogfullpolicy(&attr, POSIX_TRACE_APPEND);
    stream = create_logged(&attr, file);
    CALL(posix_trace_start(stream));
    record(one, 1, 1);
    record(two, 2, 1);
    CALL(posix_trace_shutdown(stream));
    return open_log(file);
}

static int empty_next(trace_id_t stream)
{
    struct event event;
    return try_next(stream, &event) == 0 && event.unavailable != 0;
}

static trace_event_id_t signal_type;

static void records_in_handler(int number)
{
    posix_trace_event(signal_type, &number, sizeof number);
}

static int records_in_child(void *argument)
{
    record(*(trace_event_id_t *)argument, 77, 1);
    return 0;
}

/* Page posix_trace_event: the recording. */
static void of_events(void)
{
    trace_event_id_t type = user_type("an event"), filtered = user_type("a filtered event");
    trace_attr_t attr;
    trace_event_set_t set;
    trace_id_t stream, second;
    struct event event, other;
    struct timespec before, after;
    char text[] = "some data of the event";
    int found, pipes[2];
    pid_t child;
    posix_trace_attr_init(&attr);
    posix_trace_attr_setmaxdatasize(&attr, sizeof text - 5);
    record(type, 1, 1);
    stream = create_stream(&attr);
    check("event-01 posix_trace_event has no effect where there is no stream", empty_next(stream));
    record(type, 1, 1);
    check("event-02 It has none where the stream does not run", empty_next(stream));
    CALL(posix_trace_start(stream));
    try_next(stream, &event);
    clock_gettime(CLOCK_REALTIME, &before);
    errno = 4711;
    posix_trace_event(type, text, sizeof text - 5);
    found = errno == 4711;
    clock_gettime(CLOCK_REALTIME, &after);
    check("event-03 It leaves errno as it was", found);
    found = try_next(stream, &event) == 0 && event.unavailable == 0;
    check("event-04 It records the event type", found && event.info.posix_event_id == type);
    check("event-05 It records the data",
          event.length == sizeof text - 5 && memcmp(event.data, text, event.length) == 0);
    check("event-06 Data of at most max-data-size is POSIX_TRACE_NOT_TRUNCATED",
          event.info.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED);
    check("event-07 The event has the process and the thread that recorded it",
          event.info.posix_pid == getpid() && pthread_equal(event.info.posix_thread_id, pthread_self()));
    check("event-08 It has the address of the call", event.info.posix_prog_address != NULL);
    check("event-09 It has the time at which it was recorded",
          event.info.posix_timestamp.tv_sec >= before.tv_sec - 1 &&
              event.info.posix_timestamp.tv_sec <= after.tv_sec + 1);
    posix_trace_event(type, text, sizeof text);
    found = try_next(stream, &event) == 0 && event.unavailable == 0;
    check("event-10 More data is cut to max-data-size",
          found && event.length == sizeof text - 5 && memcmp(event.data, text, event.length) == 0);
    check("event-11 Such an event is POSIX_TRACE_TRUNCATED_RECORD",
          event.info.posix_truncation_status == POSIX_TRACE_TRUNCATED_RECORD);
    posix_trace_event(type, NULL, 0);
    check("event-12 An event can have no data",
          try_next(stream, &event) == 0 && event.unavailable == 0 && event.length == 0 &&
              event.info.posix_truncation_status == POSIX_TRACE_NOT_TRUNCATED);
    CALL(posix_trace_eventset_empty(&set));
    CALL(posix_trace_eventset_add(filtered, &set));
    CALL(posix_trace_stop(stream));
    CALL(posix_trace_set_filter(stream, &set, POSIX_TRACE_SET_EVENTSET));
    CALL(posix_trace_start(stream));
    second = started_stream(NULL);
    count_of(stream, type, try_next);
    record(filtered, 3, 1);
    check("event-13 An event whose type is filtered out has no effect on that stream", empty_next(stream));
    check("event-14 It is recorded in other streams", next_user(second, &event, try_next) &&
                                                          event.info.posix_event_id == filtered);
    record(type, 4, 1);
    check("event-15 An event is recorded in each stream into which the process is traced",
          next_user(stream, &event, try_next) && next_user(second, &other, try_next) &&
              number_of(&event) == 4 && number_of(&other) == 4);
    signal_type = type;
    signal(SIGUSR1, records_in_handler);
    raise(SIGUSR1);
    check("event-16 A signal handler can record events",
          next_user(stream, &event, try_next) && number_of(&event) == SIGUSR1);
    CALL(posix_trace_shutdown(second));
    CALL(posix_trace_shutdown(stream));

    /* Another process is traced: the one that this process created, and that waits meanwhile. */
    if (pipe(pipes) != 0)
        exit(2);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        char go;
        if (read(pipes[0], &go, 1) == 1)
            records_in_child(&type);
        _exit(0);
    }
    found = CALL(posix_trace_create(child, NULL, &stream)) == 0 && CALL(posix_trace_start(stream)) == 0;
    if (write(pipes[1], "x", 1) != 1 || exit_of(child) != 0)
        exit(2);
    check("event-17 Another process is traced by a stream for its id",
          found && next_user(stream, &event, try_next) && event.info.posix_pid == child &&
              number_of(&event) == 77);
    if (found)
        CALL(posix_trace_shutdown(stream));
    close(pipes[0]);
    close(pipes[1]);
}

static int opens_in_child(void *argument)
{
    trace_event_id_t *types = (trace_event_id_t *)argument, type = 0;
    if (CALL(posix_trace_eventid_open("of the parent", &type)) != 0 || type != types[0])
        return 1;
    if (CALL(posix_trace_eventid_open("of the child", &type)) != 0 || type == types[0] || type == types[1])
        return 2;
    record(type, 5, 1);
    return 0;
}

/* Page posix_trace_event: names. */
static void of_names(void)
{
    char longest[TRACE_EVENT_NAME_MAX + 1], longer[TRACE_EVENT_NAME_MAX + 2];
    trace_event_id_t first = 0, again = 0, other = 0, types[2], type = 0;
    trace_attr_t attr;
    trace_id_t stream;
    struct event event;
    memset(longest, 'n', sizeof longest);
    longest[TRACE_EVENT_NAME_MAX] = 0;
    memset(longer, 'n', sizeof longer);
    longer[TRACE_EVENT_NAME_MAX + 1] = 0;
    check("event-18 posix_trace_eventid_open stores the event type of a name",
          CALL(posix_trace_eventid_open("a name", &first)) == 0 && !is_system(first) &&
              first != POSIX_TRACE_UNNAMED_USER_EVENT);
    check("event-19 The same name has the same event type",
          CALL(posix_trace_eventid_open("a name", &again)) == 0 && again == first);
    check("event-20 Another name has another event type",
          CALL(posix_trace_eventid_open("another name", &other)) == 0 && other != first);
    check("event-21 A name can have TRACE_EVENT_NAME_MAX characters",
          CALL(posix_trace_eventid_open(longest, &type)) == 0 && type != first);
    check("event-22 A longer name is ENAMETOOLONG",
          CALL(posix_trace_eventid_open(longer, &type)) == ENAMETOOLONG);
    stream = create_stream(NULL);
    check("event-23 A name that was opened before there was a stream is one of later streams",
          has_name(stream, first, "a name") && has_name(stream, other, "another name"));
    CALL(posix_trace_shutdown(stream));
    posix_trace_attr_init(&attr);
    posix_trace_attr_setinherited(&attr, POSIX_TRACE_INHERITED);
    stream = started_stream(&attr);
    types[0] = user_type("of the parent");
    types[1] = first;
    check("event-24 A name has the same event type in all processes of a stream",
          in_child(opens_in_child, types) == 0);
    check("event-25 The event type of a name of a child is one of the stream",
          next_user(stream, &event, try_next) && has_name(stream, event.info.posix_event_id, "of the child") &&
              user_type("of the child") == event.info.posix_event_id);
    CALL(posix_trace_shutdown(stream));
    check_errno("event-26 posix_trace_eventid_open returns zero or the error number, and leaves errno as it was");
}

/* Page posix_trace_eventid_equal. */
static void of_types(void)
{
    static const struct {
        trace_event_id_t type;
        const char *name;
    } standard[] = {
        {POSIX_TRACE_ERROR, "posix_trace_error"},
        {POSIX_TRACE_START, "posix_trace_start"},
        {POSIX_TRACE_STOP, "posix_trace_stop"},
        {POSIX_TRACE_OVERFLOW, "posix_trace_overflow"},
        {POSIX_TRACE_RESUME, "posix_trace_resume"},
        {POSIX_TRACE_FILTER, "posix_trace_filter"},
        {POSIX_TRACE_FLUSH_START, "posix_trace_flush_start"},
        {POSIX_TRACE_FLUSH_STOP, "posix_trace_flush_stop"},
        {POSIX_TRACE_UNNAMED_USER_EVENT, "posix_trace_unnamed_userevent"},
    };
    char longer[TRACE_EVENT_NAME_MAX + 2], longest[TRACE_EVENT_NAME_MAX + 1], name[TRACE_EVENT_NAME_MAX + 1];
    trace_event_id_t one = user_type("type one"), two = user_type("type two"), type = 0, again = 0;
    trace_id_t stream = create_stream(NULL), log = some_log(one, two);
    size_t at, named = 0;
    memset(longer, 't', sizeof longer);
    longer[TRACE_EVENT_NAME_MAX + 1] = 0;
    memset(longest, 't', sizeof longest);
    longest[TRACE_EVENT_NAME_MAX] = 0;
    check("type-01 posix_trace_eventid_equal returns a value that is not zero for equal event types",
          posix_trace_eventid_equal(stream, one, one) != 0 &&
              posix_trace_eventid_equal(stream, POSIX_TRACE_STOP, POSIX_TRACE_STOP) != 0);
    check("type-02 It returns zero for others",
          posix_trace_eventid_equal(stream, one, two) == 0 &&
              posix_trace_eventid_equal(stream, one, POSIX_TRACE_STOP) == 0);
    check("type-03 It compares event types of a log, too",
          posix_trace_eventid_equal(log, one, one) != 0 && posix_trace_eventid_equal(log, one, two) == 0);
    check("type-04 posix_trace_eventid_get_name stores the name of an event type of a stream",
          has_name(stream, one, "type one") && has_name(stream, two, "type two"));
    check("type-05 It stores the same name in each call", has_name(stream, one, "type one"));
    check("type-06 It stores the name of an event type of a log",
          has_name(log, one, "type one") && has_name(log, two, "type two"));
    for (at = 0; at < sizeof standard / sizeof *standard; at++)
        named += has_name(stream, standard[at].type, standard[at].name);
    check("type-07 The event types of the standard have its names", named == sizeof standard / sizeof *standard);
    check("type-08 posix_trace_trid_eventid_open stores the event type of a name for the stream",
          CALL(posix_trace_trid_eventid_open(stream, "type three", &type)) == 0 && type != one && type != two &&
              has_name(stream, type, "type three"));
    check("type-09 The same name has the same event type in each call",
          CALL(posix_trace_trid_eventid_open(stream, "type three", &again)) == 0 && again == type &&
              CALL(posix_trace_trid_eventid_open(stream, "type one", &again)) == 0 && again == one);
    check("type-10 It is that of posix_trace_eventid_open in the traced process",
          user_type("type three") == type);
    check("type-11 A name can have TRACE_EVENT_NAME_MAX characters",
          CALL(posix_trace_trid_eventid_open(stream, longest, &type)) == 0 && has_name(stream, type, longest));
    check("type-12 A longer name is ENAMETOOLONG",
          CALL(posix_trace_trid_eventid_open(stream, longer, &type)) == ENAMETOOLONG);
    check("type-13 An id of no stream is EINVAL",
          CALL(posix_trace_eventid_get_name(NO_STREAM, one, name)) == EINVAL &&
              CALL(posix_trace_trid_eventid_open(NO_STREAM, "type one", &type)) == EINVAL);
    check("type-14 A stream that is not active has no names to be opened: EINVAL",
          CALL(posix_trace_trid_eventid_open(log, "type one", &type)) == EINVAL);
    check("type-15 An event type without a name is EINVAL",
          CALL(posix_trace_eventid_get_name(stream, (trace_event_id_t)-1, name)) == EINVAL &&
              CALL(posix_trace_eventid_get_name(stream, 64 + TRACE_USER_EVENT_MAX - 1, name)) == EINVAL);
    check_errno("type-16 Functions return zero or the error number, and leave errno as it was");
    CALL(posix_trace_close(log));
    CALL(posix_trace_shutdown(stream));
}

/* The list of a stream from its current position: the number of types, and which of the two. */
struct list {
    int count, wrong, twice, one, two;
    trace_event_id_t first;
};

static struct list rest_of_list(trace_id_t stream, trace_event_id_t one, trace_event_id_t two)
{
    struct list list = {0, 0, 0, 0, 0, 0};
    trace_event_set_t seen;
    trace_event_id_t type = 0;
    char name[TRACE_EVENT_NAME_MAX + 1];
    int unavailable = -1, member = 0;
    posix_trace_eventset_empty(&seen);
    while (CALL(posix_trace_eventtypelist_getnext_id(stream, &type, &unavailable)) == 0 && unavailable == 0) {
        if (list.count++ == 0)
            list.first = type;
        posix_trace_eventset_ismember(type, &seen, &member);
        list.twice += member;
        posix_trace_eventset_add(type, &seen);
        list.wrong += CALL(posix_trace_eventid_get_name(stream, type, name)) != 0;
        list.one += type == one;
        list.two += type == two;
        unavailable = -1;
    }
    /* After the loop, -1 is a call that failed, and another value the end. */
    list.wrong += unavailable == -1;
    return list;
}

/* Page posix_trace_eventtypelist_getnext_id. */
static void of_lists(void)
{
    trace_event_id_t one = user_type("list one"), two = user_type("list two"), first = 0;
    trace_id_t stream = create_stream(NULL), log = some_log(one, two);
    struct list list, again, of_log;
    int unavailable = -1;
    check("list-01 The first call of posix_trace_eventtypelist_getnext_id stores the first event type",
          CALL(posix_trace_eventtypelist_getnext_id(stream, &first, &unavailable)) == 0 && first != 0);
    check("list-02 It sets unavailable to zero", unavailable == 0);
    list = rest_of_list(stream, one, two);
    check("list-03 Further calls store the next event types, each once",
          list.count > 1 && list.twice == 0 && list.first != first);
    check("list-04 At the end, unavailable is not zero", list.wrong == 0);
    check("list-05 The list has the user event types of the traced process", list.one == 1 && list.two == 1);
    check("list-06 posix_trace_eventtypelist_rewind succeeds", CALL(posix_trace_eventtypelist_rewind(stream)) == 0);
    again = rest_of_list(stream, one, two);
    check("list-07 After that, the next event type is the first", again.first == first);
    check("list-08 The same list follows", again.count == list.count + 1 && again.twice == 0);
    of_log = rest_of_list(log, one, two);
    CALL(posix_trace_eventtypelist_rewind(log));
    check("list-09 A log has a list, too",
          of_log.one == 1 && of_log.two == 1 && of_log.wrong == 0 &&
              rest_of_list(log, one, two).count == of_log.count);
    check("list-10 An id of no stream is EINVAL",
          CALL(posix_trace_eventtypelist_getnext_id(NO_STREAM, &first, &unavailable)) == EINVAL &&
              CALL(posix_trace_eventtypelist_rewind(NO_STREAM)) == EINVAL);
    check_errno("list-11 Functions return zero or the error number, and leave errno as it was");
    CALL(posix_trace_close(log));
    CALL(posix_trace_shutdown(stream));
}

/* Last: no name can be opened afterwards. */
static void of_the_limit(void)
{
    trace_event_id_t type = 0, later = 0, previous = 0, known = user_type("an event");
    trace_id_t stream = create_stream(NULL);
    char name[32];
    int opened, differ = 1;
    for (opened = 0; opened < TRACE_USER_EVENT_MAX + 10; opened++) {
        snprintf(name, sizeof name, "limit %d", opened);
        if (CALL(posix_trace_eventid_open(name, &type)) != 0 || type == POSIX_TRACE_UNNAMED_USER_EVENT)
            break;
        differ &= type != previous;
        previous = type;
    }
    check("event-27 A process can open _POSIX_TRACE_USER_EVENT_MAX names and more",
          opened > _POSIX_TRACE_USER_EVENT_MAX && opened < TRACE_USER_EVENT_MAX && differ);
    check("event-28 A name beyond TRACE_USER_EVENT_MAX has the unnamed user event type",
          type == POSIX_TRACE_UNNAMED_USER_EVENT);
    check("event-29 Names that were opened before keep their event types", user_type("an event") == known);
    check("type-17 posix_trace_trid_eventid_open stores the unnamed user event type for a name beyond the limit",
          CALL(posix_trace_trid_eventid_open(stream, "one more", &later)) == 0 &&
              later == POSIX_TRACE_UNNAMED_USER_EVENT);
    CALL(posix_trace_shutdown(stream));
}

int main(void)
{
    begin_tests();
    of_events();
    of_names();
    of_types();
    of_lists();
    of_the_limit();
    return tap_done();
}
