// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_trace_eventid_*`, `posix_trace_eventtypelist_*`: names of event types.

use std::ffi::{c_char, c_int, CStr};

use super::{call, store};
use crate::registry::{self, Entry};
use crate::{EventId, TraceError, EVENT_NAME_MAX};

/// The name that a pointer points to.
///
/// # Safety
/// `name` is null or points to a string that nothing changes during `'a`.
unsafe fn given_name<'a>(name: *const c_char) -> Result<&'a [u8], TraceError> {
    if name.is_null() {
        return Err(TraceError::invalid("the name is NULL"));
    }
    // SAFETY: by this function's condition.
    Ok(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// # Safety
/// `event_name` is null or a string, `event_id` is null or points to a `trace_event_id_t`; nothing
/// else changes them during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_eventid_open(
    event_name: *const c_char,
    event_id: *mut u32,
) -> c_int {
    call("posix_trace_eventid_open", || {
        // SAFETY: by this function's condition.
        let event = crate::open_event_type(unsafe { given_name(event_name) }?)?;
        // SAFETY: by this function's condition.
        unsafe { store(event_id, event.as_raw(), "the place for the event type") }
    })
}

/// # Safety
/// As [`posix_trace_eventid_open`].
#[no_mangle]
unsafe extern "C" fn posix_trace_trid_eventid_open(
    trid: u64,
    event_name: *const c_char,
    event: *mut u32,
) -> c_int {
    call("posix_trace_trid_eventid_open", || {
        let stream = registry::active(trid)?;
        // SAFETY: by this function's condition.
        let opened = stream.open_event_type(unsafe { given_name(event_name) }?)?;
        // SAFETY: by this function's condition.
        unsafe { store(event, opened.as_raw(), "the place for the event type") }
    })
}

#[no_mangle]
extern "C" fn posix_trace_eventid_equal(_trid: u64, event1: u32, event2: u32) -> c_int {
    (event1 == event2).into()
}

/// # Safety
/// `event_name` is null or has room for `TRACE_EVENT_NAME_MAX` characters and the end.
#[no_mangle]
unsafe extern "C" fn posix_trace_eventid_get_name(
    trid: u64,
    event: u32,
    event_name: *mut c_char,
) -> c_int {
    call("posix_trace_eventid_get_name", || {
        let entry = registry::get(trid)?;
        if event_name.is_null() {
            return Err(TraceError::invalid("the place for the name is NULL"));
        }
        let name = EventId::from_raw(event).and_then(|event| match &entry {
            Entry::Active(stream) => stream.event_name(event),
            Entry::Prerecorded(log) => log.with(|log| log.event_name(event)),
        });
        let name =
            name.ok_or_else(|| TraceError::invalid(format!("the event type {event} has no name")))?;
        let length = name.len().min(EVENT_NAME_MAX);
        // SAFETY: by this function's condition there is room for the name and its end.
        unsafe {
            event_name.copy_from_nonoverlapping(name.as_ptr().cast(), length);
            event_name.add(length).write(0);
        }
        Ok(())
    })
}

/// # Safety
/// `event` and `unavailable` are null or point to their types; nothing else uses them during the
/// call.
#[no_mangle]
unsafe extern "C" fn posix_trace_eventtypelist_getnext_id(
    trid: u64,
    event: *mut u32,
    unavailable: *mut c_int,
) -> c_int {
    call("posix_trace_eventtypelist_getnext_id", || {
        let entry = registry::get(trid)?;
        if event.is_null() || unavailable.is_null() {
            return Err(TraceError::invalid("the place for the event type is NULL"));
        }
        let next = match &entry {
            Entry::Active(stream) => stream.next_event_type()?,
            Entry::Prerecorded(log) => log.with(|log| log.next_event_type()),
        };
        if let Some(next) = next {
            // SAFETY: by this function's condition.
            unsafe { store(event, next.as_raw(), "the place for the event type") }?;
        }
        // SAFETY: by this function's condition.
        unsafe { store(unavailable, next.is_none().into(), "unavailable") }
    })
}

#[no_mangle]
extern "C" fn posix_trace_eventtypelist_rewind(trid: u64) -> c_int {
    call(
        "posix_trace_eventtypelist_rewind",
        || match registry::get(trid)? {
            Entry::Active(stream) => stream.rewind_event_types(),
            Entry::Prerecorded(log) => {
                log.with(|log| log.rewind_event_types());
                Ok(())
            }
        },
    )
}
