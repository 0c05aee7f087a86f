/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The part of posix_trace_event that each call runs, in C for its return address, and for
 * thread-local variables that cost one instruction.
 *
 * Whether the event is recorded at all costs three loads and a branch: the address of the gate, the
 * gate's word of the event type, and the mask of the process. The rest is oh_posix_trace_record_,
 * in Rust (src/local.rs).
 */
#define _GNU_SOURCE 1
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <overhear/trace.h>

enum { FIRST_USER_EVENT = 64, USER_EVENTS = 256 };

/*
 * Addresses in the trace area of the process: the beginning of `WipedPage` in src/local.rs. The
 * memory is zero in a child of a raw clone(), which is not traced then.
 */
struct local {
    const uint64_t *gate; /* of the event type 0; NULL if the process is not traced */
    const uint64_t *mask; /* of the streams that trace the process */
};

static const struct local nothing;
static const struct local *here = &nothing;

/* The kernel's id of the thread, 0 before its first event. */
static __thread uint32_t thread_id __attribute__((tls_model("initial-exec")));

void oh_posix_trace_record_(uint64_t streams, trace_event_id_t event, const void *data, size_t size,
                            void *address, uint32_t tid);
void oh_posix_trace_load_(void);
void oh_posix_trace_unload_(void);
void oh_posix_trace_set_local_(const struct local *local);
uint32_t oh_posix_trace_thread_id_(void);
void oh_posix_trace_forget_thread_(void);
void oh_posix_trace_event_(trace_event_id_t event, const void *data, size_t size);

/* The local memory of the process. */
void oh_posix_trace_set_local_(const struct local *local)
{
    __atomic_store_n(&here, local, __ATOMIC_RELEASE);
}

/* The kernel's id of the thread: a system call for its first event. */
uint32_t oh_posix_trace_thread_id_(void)
{
    if (thread_id == 0)
        thread_id = (uint32_t)syscall(SYS_gettid);
    return thread_id;
}

/* In the child of a fork: the thread has another id. */
void oh_posix_trace_forget_thread_(void)
{
    thread_id = 0;
}

static __attribute__((noinline, cold)) void record_first(uint64_t streams, trace_event_id_t event,
                                                         const void *data, size_t size, void *address)
{
    oh_posix_trace_record_(streams, event, data, size, address, oh_posix_trace_thread_id_());
}

void oh_posix_trace_event_(trace_event_id_t event, const void *data, size_t size)
{
    const struct local *local = __atomic_load_n(&here, __ATOMIC_CONSUME);
    const uint64_t *gate = __atomic_load_n(&local->gate, __ATOMIC_ACQUIRE);
    uint64_t streams;
    if (__builtin_expect(gate == NULL || event - FIRST_USER_EVENT >= USER_EVENTS, 0))
        return;
    /* Relaxed: a stream that starts or stops at this time may or may not get the event. */
    streams = __atomic_load_n(&gate[event], __ATOMIC_RELAXED) &
              __atomic_load_n(local->mask, __ATOMIC_RELAXED);
    if (__builtin_expect(streams == 0, 1))
        return;
    if (__builtin_expect(thread_id == 0, 0))
        record_first(streams, event, data, size, __builtin_return_address(0));
    else
        oh_posix_trace_record_(streams, event, data, size, __builtin_return_address(0), thread_id);
}

/*
 * A program that only observes others, and is linked with the library in Rust, defines this symbol.
 * It is not traced.
 */
extern const unsigned char oh_posix_trace_observer_ __attribute__((weak, visibility("hidden")));

static __attribute__((constructor)) void load(void)
{
    if (&oh_posix_trace_observer_ == NULL)
        oh_posix_trace_load_();
}

static __attribute__((destructor)) void unload(void)
{
    oh_posix_trace_unload_();
}
