/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions of <trace.h> as the standard declares them, declared a second time: a compiler
 * refuses declarations that differ. A table has the address of each function.
 */
#ifndef OVERHEAR_TESTS_POSIX_PROTOTYPES_H
#define OVERHEAR_TESTS_POSIX_PROTOTYPES_H

#include <trace.h>

#ifdef __cplusplus
#define RESTRICT __restrict
extern "C" {
#else
#define RESTRICT restrict
#endif

int posix_trace_attr_destroy(trace_attr_t *);
int posix_trace_attr_getclockres(const trace_attr_t *, struct timespec *);
int posix_trace_attr_getcreatetime(const trace_attr_t *, struct timespec *);
int posix_trace_attr_getgenversion(const trace_attr_t *, char *);
int posix_trace_attr_getinherited(const trace_attr_t *RESTRICT, int *RESTRICT);
int posix_trace_attr_getlogfullpolicy(const trace_attr_t *RESTRICT, int *RESTRICT);
int posix_trace_attr_getlogsize(const trace_attr_t *RESTRICT, size_t *RESTRICT);
int posix_trace_attr_getmaxdatasize(const trace_attr_t *RESTRICT, size_t *RESTRICT);
int posix_trace_attr_getmaxsystemeventsize(const trace_attr_t *RESTRICT, size_t *RESTRICT);
int posix_trace_attr_getmaxusereventsize(const trace_attr_t *RESTRICT, size_t, size_t *RESTRICT);
int posix_trace_attr_getname(const trace_attr_t *, char *);
int posix_trace_attr_getstreamfullpolicy(const trace_attr_t *RESTRICT, int *RESTRICT);
int posix_trace_attr_getstreamsize(const trace_attr_t *RESTRICT, size_t *RESTRICT);
int posix_trace_attr_init(trace_attr_t *);
int posix_trace_attr_setinherited(trace_attr_t *, int);
int posix_trace_attr_setlogfullpolicy(trace_attr_t *, int);
int posix_trace_attr_setlogsize(trace_attr_t *, size_t);
int posix_trace_attr_setmaxdatasize(trace_attr_t *, size_t);
int posix_trace_attr_setname(trace_attr_t *, const char *);
int posix_trace_attr_setstreamfullpolicy(trace_attr_t *, int);
int posix_trace_attr_setstreamsize(trace_attr_t *, size_t);
int posix_trace_clear(trace_id_t);
int posix_trace_close(trace_id_t);
int posix_trace_create(pid_t, const trace_attr_t *RESTRICT, trace_id_t *RESTRICT);
int posix_trace_create_withlog(pid_t, const trace_attr_t *RESTRICT, int, trace_id_t *RESTRICT);
void posix_trace_event(trace_event_id_t, const void *RESTRICT, size_t);
int posix_trace_eventid_equal(trace_id_t, trace_event_id_t, trace_event_id_t);
int posix_trace_eventid_get_name(trace_id_t, trace_event_id_t, char *);
int posix_trace_eventid_open(const char *RESTRICT, trace_event_id_t *RESTRICT);
int posix_trace_eventset_add(trace_event_id_t, trace_event_set_t *);
int posix_trace_eventset_del(trace_event_id_t, trace_event_set_t *);
int posix_trace_eventset_empty(trace_event_set_t *);
int posix_trace_eventset_fill(trace_event_set_t *, int);
int posix_trace_eventset_ismember(trace_event_id_t, const trace_event_set_t *RESTRICT, int *RESTRICT);
int posix_trace_eventtypelist_getnext_id(trace_id_t, trace_event_id_t *RESTRICT, int *RESTRICT);
int posix_trace_eventtypelist_rewind(trace_id_t);
int posix_trace_flush(trace_id_t);
int posix_trace_get_attr(trace_id_t, trace_attr_t *);
int posix_trace_get_filter(trace_id_t, trace_event_set_t *);
int posix_trace_get_status(trace_id_t, struct posix_trace_status_info *);
int posix_trace_getnext_event(trace_id_t, struct posix_trace_event_info *RESTRICT, void *RESTRICT, size_t,
                              size_t *RESTRICT, int *RESTRICT);
int posix_trace_open(int, trace_id_t *);
int posix_trace_rewind(trace_id_t);
int posix_trace_set_filter(trace_id_t, const trace_event_set_t *, int);
int posix_trace_shutdown(trace_id_t);
int posix_trace_start(trace_id_t);
int posix_trace_stop(trace_id_t);
int posix_trace_timedgetnext_event(trace_id_t, struct posix_trace_event_info *RESTRICT, void *RESTRICT,
                                   size_t, size_t *RESTRICT, int *RESTRICT,
                                   const struct timespec *RESTRICT);
int posix_trace_trid_eventid_open(trace_id_t, const char *RESTRICT, trace_event_id_t *RESTRICT);
int posix_trace_trygetnext_event(trace_id_t, struct posix_trace_event_info *RESTRICT, void *RESTRICT,
                                 size_t, size_t *RESTRICT, int *RESTRICT);

typedef void any_function(void);

#define ADDRESS(name) (any_function *)name
static any_function *const addresses[] = {
    ADDRESS(posix_trace_attr_destroy),
    ADDRESS(posix_trace_attr_getclockres),
    ADDRESS(posix_trace_attr_getcreatetime),
    ADDRESS(posix_trace_attr_getgenversion),
    ADDRESS(posix_trace_attr_getinherited),
    ADDRESS(posix_trace_attr_getlogfullpolicy),
    ADDRESS(posix_trace_attr_getlogsize),
    ADDRESS(posix_trace_attr_getmaxdatasize),
    ADDRESS(posix_trace_attr_getmaxsystemeventsize),
    ADDRESS(posix_trace_attr_getmaxusereventsize),
    ADDRESS(posix_trace_attr_getname),
    ADDRESS(posix_trace_attr_getstreamfullpolicy),
    ADDRESS(posix_trace_attr_getstreamsize),
    ADDRESS(posix_trace_attr_init),
    ADDRESS(posix_trace_attr_setinherited),
    ADDRESS(posix_trace_attr_setlogfullpolicy),
    ADDRESS(posix_trace_attr_setlogsize),
    ADDRESS(posix_trace_attr_setmaxdatasize),
    ADDRESS(posix_trace_attr_setname),
    ADDRESS(posix_trace_attr_setstreamfullpolicy),
    ADDRESS(posix_trace_attr_setstreamsize),
    ADDRESS(posix_trace_clear),
    ADDRESS(posix_trace_close),
    ADDRESS(posix_trace_create),
    ADDRESS(posix_trace_create_withlog),
    ADDRESS(posix_trace_event),
    ADDRESS(posix_trace_eventid_equal),
    ADDRESS(posix_trace_eventid_get_name),
    ADDRESS(posix_trace_eventid_open),
    ADDRESS(posix_trace_eventset_add),
    ADDRESS(posix_trace_eventset_del),
    ADDRESS(posix_trace_eventset_empty),
    ADDRESS(posix_trace_eventset_fill),
    ADDRESS(posix_trace_eventset_ismember),
    ADDRESS(posix_trace_eventtypelist_getnext_id),
    ADDRESS(posix_trace_eventtypelist_rewind),
    ADDRESS(posix_trace_flush),
    ADDRESS(posix_trace_get_attr),
    ADDRESS(posix_trace_get_filter),
    ADDRESS(posix_trace_get_status),
    ADDRESS(posix_trace_getnext_event),
    ADDRESS(posix_trace_open),
    ADDRESS(posix_trace_rewind),
    ADDRESS(posix_trace_set_filter),
    ADDRESS(posix_trace_shutdown),
    ADDRESS(posix_trace_start),
    ADDRESS(posix_trace_stop),
    ADDRESS(posix_trace_timedgetnext_event),
    ADDRESS(posix_trace_trid_eventid_open),
    ADDRESS(posix_trace_trygetnext_event),
};

#ifdef __cplusplus
}
#endif

#endif
