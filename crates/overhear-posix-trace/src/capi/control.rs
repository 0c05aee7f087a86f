// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_trace_create`, `_start`, `_stop`, `_clear`, `_set_filter`, `_get_*`: controllers.

use std::ffi::c_int;
use std::sync::Arc;

use super::attributes::{attributes_of, RawAttributes};
use super::{call, object, store};
use crate::registry::{self, Entry};
use crate::stream::{FilterChange, StreamStatus};
use crate::{ActiveStream, Attributes, EventTypeSet, TraceError};

const SET_EVENTSET: c_int = 1;
const ADD_EVENTSET: c_int = 2;
const SUB_EVENTSET: c_int = 3;

/// `struct posix_trace_status_info`. All constants of states are 0 or 1.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawStatus {
    stream_status: c_int,
    stream_full_status: c_int,
    stream_overrun_status: c_int,
    stream_flush_status: c_int,
    stream_flush_error: c_int,
    log_full_status: c_int,
    log_overrun_status: c_int,
}

impl From<StreamStatus> for RawStatus {
    fn from(status: StreamStatus) -> Self {
        Self {
            stream_status: status.running.into(),
            stream_full_status: status.full.into(),
            stream_overrun_status: status.overrun.into(),
            stream_flush_status: status.flushing.into(),
            stream_flush_error: status.flush_error,
            log_full_status: status.log_full.into(),
            log_overrun_status: status.log_overrun.into(),
        }
    }
}

/// The attributes that a pointer points to; the default ones for a null pointer.
///
/// # Safety
/// `attr` is null or points to a `trace_attr_t` that nothing else changes during the call.
pub(super) unsafe fn given_attributes(
    attr: *const RawAttributes,
) -> Result<Attributes, TraceError> {
    if attr.is_null() {
        return Ok(Attributes::default());
    }
    // SAFETY: by this function's condition.
    attributes_of(unsafe { object(attr, "the attributes object") }?)
}

/// # Safety
/// `attr` is null or points to a `trace_attr_t`, `trid` points to a `trace_id_t`; nothing else
/// changes them during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_create(
    pid: libc::pid_t,
    attr: *const RawAttributes,
    trid: *mut u64,
) -> c_int {
    call("posix_trace_create", || {
        // SAFETY: by this function's condition.
        let attributes = unsafe { given_attributes(attr) }?;
        if trid.is_null() {
            return Err(TraceError::invalid("the place for the identifier is NULL"));
        }
        let stream = ActiveStream::create(pid, &attributes)?;
        let entry = registry::add(Entry::Active(Arc::new(stream)));
        // SAFETY: by this function's condition.
        unsafe { store(trid, entry, "the place for the identifier") }
    })
}

#[no_mangle]
extern "C" fn posix_trace_shutdown(trid: u64) -> c_int {
    call("posix_trace_shutdown", || {
        registry::remove_active(trid)?.shut_down()
    })
}

#[no_mangle]
extern "C" fn posix_trace_start(trid: u64) -> c_int {
    call("posix_trace_start", || registry::active(trid)?.start())
}

#[no_mangle]
extern "C" fn posix_trace_stop(trid: u64) -> c_int {
    call("posix_trace_stop", || registry::active(trid)?.stop())
}

#[no_mangle]
extern "C" fn posix_trace_clear(trid: u64) -> c_int {
    call("posix_trace_clear", || registry::active(trid)?.clear())
}

/// # Safety
/// `set` is null or points to a `trace_event_set_t` that nothing else uses during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_get_filter(trid: u64, set: *mut EventTypeSet) -> c_int {
    call("posix_trace_get_filter", || {
        let filter = registry::active(trid)?.filter()?;
        // SAFETY: by this function's condition.
        unsafe { store(set, filter, "the set") }
    })
}

/// # Safety
/// `set` is null or points to a `trace_event_set_t` that nothing else changes during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_set_filter(
    trid: u64,
    set: *const EventTypeSet,
    how: c_int,
) -> c_int {
    call("posix_trace_set_filter", || {
        let stream = registry::active(trid)?;
        // SAFETY: by this function's condition.
        let set = *unsafe { object(set, "the set") }?;
        let how = match how {
            SET_EVENTSET => FilterChange::Set,
            ADD_EVENTSET => FilterChange::Add,
            SUB_EVENTSET => FilterChange::Subtract,
            _ => {
                return Err(TraceError::invalid(format!(
                    "{how} is no change of a filter; use POSIX_TRACE_SET_EVENTSET, \
                     POSIX_TRACE_ADD_EVENTSET or POSIX_TRACE_SUB_EVENTSET"
                )))
            }
        };
        // Bits of no event type are dropped.
        stream.set_filter(EventTypeSet::from_words(set.words()), how)
    })
}

/// # Safety
/// `attr` is null or points to memory of a `trace_attr_t` that nothing else uses during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_get_attr(trid: u64, attr: *mut RawAttributes) -> c_int {
    call("posix_trace_get_attr", || {
        let attributes = match registry::get(trid)? {
            Entry::Active(stream) => RawAttributes::from(stream.attributes()),
            Entry::Prerecorded(log) => log.with(|log| RawAttributes::from(log.attributes())),
        };
        // SAFETY: by this function's condition.
        unsafe { store(attr, attributes, "the attributes object") }
    })
}

/// # Safety
/// `statusinfo` is null or points to a status that nothing else uses during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_get_status(trid: u64, statusinfo: *mut RawStatus) -> c_int {
    call("posix_trace_get_status", || {
        let entry = registry::get(trid)?;
        if statusinfo.is_null() {
            return Err(TraceError::invalid("the status is NULL"));
        }
        let status = match entry {
            Entry::Active(stream) => stream.status()?,
            Entry::Prerecorded(log) => log.with(|log| log.status()),
        };
        // SAFETY: by this function's condition.
        unsafe { store(statusinfo, status.into(), "the status") }
    })
}
