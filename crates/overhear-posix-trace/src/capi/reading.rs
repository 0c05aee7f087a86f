// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_trace_getnext_event` and its kin: analysers.

use std::ffi::{c_int, c_void};

use super::call;
use crate::registry::{self, Entry};
use crate::stream::{realtime_ns, Wait};
use crate::{TraceError, TraceEvent, Truncation};

/// `struct posix_trace_event_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawEvent {
    event_id: u32,
    pid: libc::pid_t,
    prog_address: *mut c_void,
    thread_id: libc::pthread_t,
    timestamp: libc::timespec,
    truncation_status: c_int,
    tid: libc::pid_t,
}

/// Where a program wants an event.
#[derive(Clone, Copy)]
struct Destination {
    event: *mut RawEvent,
    data: *mut c_void,
    num_bytes: usize,
    data_len: *mut usize,
    unavailable: *mut c_int,
}

impl Destination {
    fn check(&self) -> Result<(), TraceError> {
        let data = self.data.is_null() && self.num_bytes > 0;
        if self.event.is_null() || self.data_len.is_null() || self.unavailable.is_null() || data {
            return Err(TraceError::invalid("a place for the event is NULL"));
        }
        Ok(())
    }

    /// # Safety
    /// The pointers, which [`Destination::check`] accepted, point to memory of their types, `data`
    /// to `num_bytes` bytes; nothing else uses it during the call.
    unsafe fn store(&self, event: &TraceEvent<'_>, realtime_offset_ns: i64) {
        let size = event.data.len().min(self.num_bytes);
        let truncation = match event.truncation {
            _ if size < event.data.len() => Truncation::Read,
            truncation => truncation,
        };
        let time = realtime_ns(event.time, realtime_offset_ns);
        let raw = RawEvent {
            event_id: event.event.as_raw(),
            pid: event.pid as libc::pid_t,
            prog_address: event.address as *mut c_void,
            thread_id: event.thread as libc::pthread_t,
            timestamp: libc::timespec {
                tv_sec: (time / 1_000_000_000) as libc::time_t,
                tv_nsec: (time % 1_000_000_000) as libc::c_long,
            },
            truncation_status: match truncation {
                Truncation::None => 0,
                Truncation::Record => 1,
                Truncation::Read => 2,
            },
            tid: event.tid as libc::pid_t,
        };
        // SAFETY: by this function's condition; `data` is not null if there is a byte to copy.
        unsafe {
            self.event.write(raw);
            if size > 0 {
                self.data
                    .cast::<u8>()
                    .copy_from_nonoverlapping(event.data.as_ptr(), size);
            }
            self.data_len.write(size);
            self.unavailable.write(0);
        }
    }

    /// # Safety
    /// As [`Destination::store`].
    unsafe fn store_nothing(&self) {
        // SAFETY: by this function's condition.
        unsafe { self.unavailable.write(1) };
    }
}

/// Takes the next event of a stream.
///
/// # Safety
/// As [`Destination::store`], but the pointers may be null.
unsafe fn next(name: &'static str, trid: u64, to: Destination, wait: Wait) -> c_int {
    call(name, || {
        let entry = registry::get(trid)?;
        to.check()?;
        let stored = match entry {
            Entry::Active(stream) => {
                let offset = stream.realtime_offset_ns();
                // SAFETY: by this function's condition, and checked.
                stream.next_event(wait, |event| unsafe { to.store(&event, offset) })
            }
            Entry::Prerecorded(_) if matches!(wait, Wait::Try) => Err(TraceError::invalid(
                "a log is read by posix_trace_getnext_event",
            )),
            Entry::Prerecorded(log) => log.with(|log| {
                // SAFETY: as above.
                log.next_event(|event, offset| unsafe { to.store(&event, offset) })
            }),
        };
        if !matches!(stored, Ok(Some(()))) {
            // SAFETY: as above.
            unsafe { to.store_nothing() };
        }
        stored.map(drop)
    })
}

/// # Safety
/// The pointers are null or point to memory of their types, `data` to `num_bytes` bytes; nothing
/// else uses it during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_getnext_event(
    trid: u64,
    event: *mut RawEvent,
    data: *mut c_void,
    num_bytes: usize,
    data_len: *mut usize,
    unavailable: *mut c_int,
) -> c_int {
    let to = Destination {
        event,
        data,
        num_bytes,
        data_len,
        unavailable,
    };
    // SAFETY: by this function's condition.
    unsafe { next("posix_trace_getnext_event", trid, to, Wait::Forever) }
}

/// # Safety
/// As [`posix_trace_getnext_event`].
#[no_mangle]
unsafe extern "C" fn posix_trace_trygetnext_event(
    trid: u64,
    event: *mut RawEvent,
    data: *mut c_void,
    num_bytes: usize,
    data_len: *mut usize,
    unavailable: *mut c_int,
) -> c_int {
    let to = Destination {
        event,
        data,
        num_bytes,
        data_len,
        unavailable,
    };
    // SAFETY: by this function's condition.
    unsafe { next("posix_trace_trygetnext_event", trid, to, Wait::Try) }
}

/// # Safety
/// As [`posix_trace_getnext_event`]; `abstime` is null or points to a time that nothing changes
/// during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_timedgetnext_event(
    trid: u64,
    event: *mut RawEvent,
    data: *mut c_void,
    num_bytes: usize,
    data_len: *mut usize,
    unavailable: *mut c_int,
    abstime: *const libc::timespec,
) -> c_int {
    let to = Destination {
        event,
        data,
        num_bytes,
        data_len,
        unavailable,
    };
    // SAFETY: by this function's condition.
    let time = unsafe { abstime.as_ref() };
    // A time that is none matters only if there is no event.
    let until = time.map_or(Wait::Until(0, -1), |time| {
        Wait::Until(time.tv_sec, time.tv_nsec)
    });
    // SAFETY: by this function's condition.
    unsafe { next("posix_trace_timedgetnext_event", trid, to, until) }
}
