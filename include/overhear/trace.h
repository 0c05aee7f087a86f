/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The POSIX trace interface [POSIX.1q], for C11 and C++17: <trace.h> of IEEE 1003.1-2001 to 2017
 * with the options Trace, Trace Event Filter, Trace Log and Trace Inherit.
 *
 *     trace_event_id_t began;
 *     trace_id_t stream;
 *     posix_trace_eventid_open("request began", &began);
 *     posix_trace_create(0, NULL, &stream);
 *     posix_trace_start(stream);
 *     posix_trace_event(began, &number, sizeof number);
 *     ...
 *     struct posix_trace_event_info event;
 *     size_t length;
 *     int unavailable;
 *     posix_trace_trygetnext_event(stream, &event, data, sizeof data, &length, &unavailable);
 *     posix_trace_shutdown(stream);
 *
 * A *controller* creates an active trace stream for itself or for another process. The *traced*
 * process records events into it: posix_trace_event takes no lock, allocates nothing, and may be
 * called by signal handlers. An *analyser* reads the events, live or from a log
 * (docs/posix-trace.md).
 *
 * Every function except posix_trace_event and posix_trace_eventid_equal returns 0 or an error
 * number, and leaves errno as it was. oh_posix_trace_last_error returns the message of the last
 * error.
 *
 * Unless a function states otherwise:
 * Thread safety: any thread. Async-signal safety: no. Real-time class: may block.
 *
 * The functions are in a library of their own: -loverhear_posixtrace, `pkg-config
 * overhear-posixtrace`, or Overhear::posixtrace in CMake. Both let `#include <trace.h>` find this
 * file.
 */
#ifndef OVERHEAR_TRACE_H
#define OVERHEAR_TRACE_H

#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#define OH_RESTRICT_ __restrict
#else
#define OH_RESTRICT_ restrict
#endif

/*
 * Options. The C library's <unistd.h> defines them as absent, and its sysconf() returns -1 for
 * them: the C library does not have this interface.
 */
#undef _POSIX_TRACE
#undef _POSIX_TRACE_EVENT_FILTER
#undef _POSIX_TRACE_INHERIT
#undef _POSIX_TRACE_LOG
#define _POSIX_TRACE 200809L
#define _POSIX_TRACE_EVENT_FILTER 200809L
#define _POSIX_TRACE_INHERIT 200809L
#define _POSIX_TRACE_LOG 200809L

/* Smallest values that the standard permits. */
#ifndef _POSIX_TRACE_EVENT_NAME_MAX
#define _POSIX_TRACE_EVENT_NAME_MAX 30
#endif
#ifndef _POSIX_TRACE_NAME_MAX
#define _POSIX_TRACE_NAME_MAX 8
#endif
#ifndef _POSIX_TRACE_SYS_MAX
#define _POSIX_TRACE_SYS_MAX 8
#endif
#ifndef _POSIX_TRACE_USER_EVENT_MAX
#define _POSIX_TRACE_USER_EVENT_MAX 32
#endif

/* Limits of this implementation. */
#define TRACE_EVENT_NAME_MAX 64  /* characters of the name of an event type, without the end */
#define TRACE_NAME_MAX 64        /* characters of the name of a stream, with the end */
#define TRACE_SYS_MAX 64         /* active trace streams of the system */
#define TRACE_USER_EVENT_MAX 256 /* user event types, with POSIX_TRACE_UNNAMED_USER_EVENT */

/* A trace stream, active or pre-recorded; valid in the process that created or opened it. */
typedef unsigned long trace_id_t;

/* An event type. */
typedef unsigned int trace_event_id_t;

/* A set of event types. Only the functions posix_trace_eventset_* access its members. */
typedef struct oh_trace_event_set {
    uint64_t oh_bits[5];
} trace_event_set_t;

/* Attributes of a stream. Only the functions posix_trace_attr_* access its members. */
typedef struct oh_trace_attr {
    uint64_t oh_words[32];
} trace_attr_t;

/* An event without its data. */
struct posix_trace_event_info {
    trace_event_id_t posix_event_id;
    /* The process that recorded the event, or that an event of the kernel is about; the traced
       process for system events of the standard. */
    pid_t posix_pid;
    /* Return address of the call of posix_trace_event; NULL for system events. */
    void *posix_prog_address;
    /* The thread of this process that recorded the event; 0 for events of the kernel, and for
       system events of a controller in another process. */
    pthread_t posix_thread_id;
    struct timespec posix_timestamp; /* CLOCK_REALTIME */
    /* POSIX_TRACE_NOT_TRUNCATED, POSIX_TRACE_TRUNCATED_RECORD or POSIX_TRACE_TRUNCATED_READ. */
    int posix_truncation_status;
    pid_t oh_tid; /* the kernel's id of the thread: an extension */
};

/* The status of a stream. */
struct posix_trace_status_info {
    int posix_stream_status;         /* POSIX_TRACE_RUNNING, _SUSPENDED */
    int posix_stream_full_status;    /* POSIX_TRACE_FULL, _NOT_FULL */
    int posix_stream_overrun_status; /* POSIX_TRACE_OVERRUN, _NO_OVERRUN */
    int posix_stream_flush_status;   /* POSIX_TRACE_FLUSHING, _NOT_FLUSHING */
    int posix_stream_flush_error;    /* an error number, 0 if none */
    int posix_log_full_status;       /* POSIX_TRACE_FULL, _NOT_FULL */
    int posix_log_overrun_status;    /* POSIX_TRACE_OVERRUN, _NO_OVERRUN */
};

/* States. */
#define POSIX_TRACE_SUSPENDED 0
#define POSIX_TRACE_RUNNING 1
#define POSIX_TRACE_NOT_FULL 0
#define POSIX_TRACE_FULL 1
#define POSIX_TRACE_NO_OVERRUN 0
#define POSIX_TRACE_OVERRUN 1
#define POSIX_TRACE_NOT_FLUSHING 0
#define POSIX_TRACE_FLUSHING 1
#define POSIX_TRACE_NOT_TRUNCATED 0
#define POSIX_TRACE_TRUNCATED_RECORD 1
#define POSIX_TRACE_TRUNCATED_READ 2

/* Policies of full streams and logs. */
#define POSIX_TRACE_LOOP 1
#define POSIX_TRACE_UNTIL_FULL 2
#define POSIX_TRACE_FLUSH 3  /* streams with a log */
#define POSIX_TRACE_APPEND 4 /* logs */

/* Inheritance. */
#define POSIX_TRACE_CLOSE_FOR_CHILD 0
#define POSIX_TRACE_INHERITED 1

/* For posix_trace_eventset_fill. */
#define POSIX_TRACE_WOPID_EVENTS 1
#define POSIX_TRACE_SYSTEM_EVENTS 2
#define POSIX_TRACE_ALL_EVENTS 3

/* For posix_trace_set_filter. */
#define POSIX_TRACE_SET_EVENTSET 1
#define POSIX_TRACE_ADD_EVENTSET 2
#define POSIX_TRACE_SUB_EVENTSET 3

/* System event types of the standard, and their data. */
#define POSIX_TRACE_ERROR ((trace_event_id_t)1)       /* int: an error number */
#define POSIX_TRACE_START ((trace_event_id_t)2)       /* trace_event_set_t: the filter */
#define POSIX_TRACE_STOP ((trace_event_id_t)3)        /* int: 0 after posix_trace_stop, else 1 */
#define POSIX_TRACE_OVERFLOW ((trace_event_id_t)4)    /* none */
#define POSIX_TRACE_RESUME ((trace_event_id_t)5)      /* none */
#define POSIX_TRACE_FILTER ((trace_event_id_t)6)      /* trace_event_set_t[2]: old, new filter */
#define POSIX_TRACE_FLUSH_START ((trace_event_id_t)7) /* none */
#define POSIX_TRACE_FLUSH_STOP ((trace_event_id_t)8)  /* none */

/*
 * System event types of Linux, 16 to 63: an event of the kernel sensor of this name, with the
 * sensor's payload as data (docs/posix-metrics.md). A stream records them from the moment on at
 * which posix_trace_set_filter removes them from its filter.
 */
#define OH_TRACE_KERNEL_FIRST ((trace_event_id_t)16)
#define OH_TRACE_KERNEL_LAST ((trace_event_id_t)63)

/* User event types: 64 to 319. */
#define POSIX_TRACE_UNNAMED_USER_EVENT ((trace_event_id_t)64)
#define POSIX_TRACE_UNNAMED_USEREVENT POSIX_TRACE_UNNAMED_USER_EVENT

/* Attributes of streams. */
int posix_trace_attr_init(trace_attr_t *attr);
int posix_trace_attr_destroy(trace_attr_t *attr);
int posix_trace_attr_getclockres(const trace_attr_t *attr, struct timespec *resolution);
int posix_trace_attr_getcreatetime(const trace_attr_t *attr, struct timespec *createtime);
int posix_trace_attr_getgenversion(const trace_attr_t *attr, char *genversion);
int posix_trace_attr_getname(const trace_attr_t *attr, char *tracename);
int posix_trace_attr_setname(trace_attr_t *attr, const char *tracename);
int posix_trace_attr_getinherited(const trace_attr_t *OH_RESTRICT_ attr,
                                  int *OH_RESTRICT_ inheritancepolicy);
int posix_trace_attr_setinherited(trace_attr_t *attr, int inheritancepolicy);
int posix_trace_attr_getlogfullpolicy(const trace_attr_t *OH_RESTRICT_ attr,
                                      int *OH_RESTRICT_ logpolicy);
int posix_trace_attr_setlogfullpolicy(trace_attr_t *attr, int logpolicy);
int posix_trace_attr_getstreamfullpolicy(const trace_attr_t *OH_RESTRICT_ attr,
                                         int *OH_RESTRICT_ streampolicy);
int posix_trace_attr_setstreamfullpolicy(trace_attr_t *attr, int streampolicy);
int posix_trace_attr_getlogsize(const trace_attr_t *OH_RESTRICT_ attr,
                                size_t *OH_RESTRICT_ logsize);
int posix_trace_attr_setlogsize(trace_attr_t *attr, size_t logsize);
int posix_trace_attr_getmaxdatasize(const trace_attr_t *OH_RESTRICT_ attr,
                                    size_t *OH_RESTRICT_ maxdatasize);
int posix_trace_attr_setmaxdatasize(trace_attr_t *attr, size_t maxdatasize);
int posix_trace_attr_getmaxsystemeventsize(const trace_attr_t *OH_RESTRICT_ attr,
                                           size_t *OH_RESTRICT_ eventsize);
int posix_trace_attr_getmaxusereventsize(const trace_attr_t *OH_RESTRICT_ attr, size_t data_len,
                                         size_t *OH_RESTRICT_ eventsize);
int posix_trace_attr_getstreamsize(const trace_attr_t *OH_RESTRICT_ attr,
                                   size_t *OH_RESTRICT_ streamsize);
int posix_trace_attr_setstreamsize(trace_attr_t *attr, size_t streamsize);

/* Controllers. */
int posix_trace_create(pid_t pid, const trace_attr_t *OH_RESTRICT_ attr,
                       trace_id_t *OH_RESTRICT_ trid);
int posix_trace_create_withlog(pid_t pid, const trace_attr_t *OH_RESTRICT_ attr, int file_desc,
                               trace_id_t *OH_RESTRICT_ trid);
int posix_trace_flush(trace_id_t trid);
int posix_trace_shutdown(trace_id_t trid);
int posix_trace_clear(trace_id_t trid);
int posix_trace_start(trace_id_t trid);
int posix_trace_stop(trace_id_t trid);
int posix_trace_get_filter(trace_id_t trid, trace_event_set_t *set);
int posix_trace_set_filter(trace_id_t trid, const trace_event_set_t *set, int how);
int posix_trace_get_attr(trace_id_t trid, trace_attr_t *attr);
int posix_trace_get_status(trace_id_t trid, struct posix_trace_status_info *statusinfo);

/* Sets of event types. */
int posix_trace_eventset_add(trace_event_id_t event_id, trace_event_set_t *set);
int posix_trace_eventset_del(trace_event_id_t event_id, trace_event_set_t *set);
int posix_trace_eventset_empty(trace_event_set_t *set);
int posix_trace_eventset_fill(trace_event_set_t *set, int what);
int posix_trace_eventset_ismember(trace_event_id_t event_id,
                                  const trace_event_set_t *OH_RESTRICT_ set,
                                  int *OH_RESTRICT_ ismember);

/* Event types. */
int posix_trace_eventid_equal(trace_id_t trid, trace_event_id_t event1, trace_event_id_t event2);
int posix_trace_eventid_get_name(trace_id_t trid, trace_event_id_t event, char *event_name);
int posix_trace_trid_eventid_open(trace_id_t trid, const char *OH_RESTRICT_ event_name,
                                  trace_event_id_t *OH_RESTRICT_ event);
int posix_trace_eventtypelist_getnext_id(trace_id_t trid, trace_event_id_t *OH_RESTRICT_ event,
                                         int *OH_RESTRICT_ unavailable);
int posix_trace_eventtypelist_rewind(trace_id_t trid);

/* Traced processes. */
int posix_trace_eventid_open(const char *OH_RESTRICT_ event_name,
                             trace_event_id_t *OH_RESTRICT_ event_id);

/*
 * posix_trace_event: records an event in each running stream that traces the calling process and
 * does not filter its type out. An event that a full stream cannot hold is counted as lost.
 *
 * Thread safety: any thread. Async-signal safety: yes. Real-time class: lock-free; one system call
 * if an analyser waits for the event.
 */
void posix_trace_event(trace_event_id_t event_id, const void *OH_RESTRICT_ data_ptr, size_t data_len);

/* Analysers. */
int posix_trace_open(int file_desc, trace_id_t *trid);
int posix_trace_rewind(trace_id_t trid);
int posix_trace_close(trace_id_t trid);
int posix_trace_getnext_event(trace_id_t trid, struct posix_trace_event_info *OH_RESTRICT_ event,
                              void *OH_RESTRICT_ data, size_t num_bytes,
                              size_t *OH_RESTRICT_ data_len, int *OH_RESTRICT_ unavailable);
int posix_trace_timedgetnext_event(trace_id_t trid,
                                   struct posix_trace_event_info *OH_RESTRICT_ event,
                                   void *OH_RESTRICT_ data, size_t num_bytes,
                                   size_t *OH_RESTRICT_ data_len, int *OH_RESTRICT_ unavailable,
                                   const struct timespec *OH_RESTRICT_ abstime);
int posix_trace_trygetnext_event(trace_id_t trid, struct posix_trace_event_info *OH_RESTRICT_ event,
                                 void *OH_RESTRICT_ data, size_t num_bytes,
                                 size_t *OH_RESTRICT_ data_len, int *OH_RESTRICT_ unavailable);

/*
 * oh_posix_trace_last_error: the message of the last failed call of this thread, for the user.
 * Never NULL; valid until the next call of this thread.
 * Thread safety: any thread. Async-signal safety: no. Real-time class: wait-free.
 */
const char *oh_posix_trace_last_error(void);

#undef OH_RESTRICT_

#ifdef __cplusplus
}
#endif

#endif
