// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_trace_eventset_*`: sets of event types in memory of the program.

use std::ffi::c_int;

use super::{call, object, store};
use crate::{EventId, EventTypeSet, TraceError};

const WOPID_EVENTS: c_int = 1;
const SYSTEM_EVENTS: c_int = 2;
const ALL_EVENTS: c_int = 3;

/// Changes a set.
///
/// # Safety
/// `set` is null or points to a `trace_event_set_t`, which nothing else changes during the call.
unsafe fn change(
    name: &'static str,
    event: u32,
    set: *mut EventTypeSet,
    change: impl FnOnce(&mut EventTypeSet, EventId),
) -> c_int {
    call(name, || {
        let event = event_type(event)?;
        // SAFETY: by this function's condition.
        let mut changed = *unsafe { object(set.cast_const(), "the set") }?;
        change(&mut changed, event);
        // SAFETY: by this function's condition.
        unsafe { store(set, changed, "the set") }
    })
}

fn event_type(number: u32) -> Result<EventId, TraceError> {
    EventId::from_raw(number)
        .ok_or_else(|| TraceError::invalid(format!("the number {number} is of no event type")))
}

/// # Safety
/// As [`change`].
#[no_mangle]
unsafe extern "C" fn posix_trace_eventset_add(event_id: u32, set: *mut EventTypeSet) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        change(
            "posix_trace_eventset_add",
            event_id,
            set,
            EventTypeSet::insert,
        )
    }
}

/// # Safety
/// As [`change`].
#[no_mangle]
unsafe extern "C" fn posix_trace_eventset_del(event_id: u32, set: *mut EventTypeSet) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        change(
            "posix_trace_eventset_del",
            event_id,
            set,
            EventTypeSet::remove,
        )
    }
}

/// # Safety
/// `set` is null or points to memory of a `trace_event_set_t`.
#[no_mangle]
unsafe extern "C" fn posix_trace_eventset_empty(set: *mut EventTypeSet) -> c_int {
    call("posix_trace_eventset_empty", || {
        // SAFETY: by this function's condition.
        unsafe { store(set, EventTypeSet::EMPTY, "the set") }
    })
}

/// # Safety
/// `set` is null or points to memory of a `trace_event_set_t`.
#[no_mangle]
unsafe extern "C" fn posix_trace_eventset_fill(set: *mut EventTypeSet, what: c_int) -> c_int {
    call("posix_trace_eventset_fill", || {
        let members = match what {
            WOPID_EVENTS => EventTypeSet::KERNEL,
            SYSTEM_EVENTS => EventTypeSet::SYSTEM,
            ALL_EVENTS => EventTypeSet::ALL,
            _ => {
                return Err(TraceError::invalid(format!(
                    "{what} is no choice of event types; use POSIX_TRACE_ALL_EVENTS, \
                     POSIX_TRACE_SYSTEM_EVENTS or POSIX_TRACE_WOPID_EVENTS"
                )))
            }
        };
        // SAFETY: by this function's condition.
        unsafe { store(set, members, "the set") }
    })
}

/// # Safety
/// `set` is null or points to a `trace_event_set_t`, and `ismember` is null or points to an `int`.
#[no_mangle]
unsafe extern "C" fn posix_trace_eventset_ismember(
    event_id: u32,
    set: *const EventTypeSet,
    ismember: *mut c_int,
) -> c_int {
    call("posix_trace_eventset_ismember", || {
        let event = event_type(event_id)?;
        // SAFETY: by this function's condition.
        let set = unsafe { object(set, "the set") }?;
        let member = c_int::from(set.contains(event));
        // SAFETY: by this function's condition.
        unsafe { store(ismember, member, "the result") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(event: u32, set: &EventTypeSet) -> c_int {
        let mut result = -1;
        // SAFETY: pointers to values of this test.
        let error = unsafe { posix_trace_eventset_ismember(event, set, &mut result) };
        assert_eq!(error, 0);
        result
    }

    #[test]
    fn sets_of_c_are_those_of_rust() {
        let mut set = EventTypeSet::ALL;
        // SAFETY: pointers to values of this test.
        unsafe {
            assert_eq!(posix_trace_eventset_empty(&mut set), 0);
            assert_eq!(set, EventTypeSet::EMPTY);
            assert_eq!(posix_trace_eventset_add(64, &mut set), 0);
            assert_eq!(posix_trace_eventset_add(64, &mut set), 0);
            assert_eq!((member(64, &set), member(65, &set)), (1, 0));
            assert_eq!(posix_trace_eventset_del(64, &mut set), 0);
            assert_eq!(posix_trace_eventset_del(64, &mut set), 0);
            assert_eq!(set, EventTypeSet::EMPTY);
            for (what, members) in [
                (WOPID_EVENTS, EventTypeSet::KERNEL),
                (SYSTEM_EVENTS, EventTypeSet::SYSTEM),
                (ALL_EVENTS, EventTypeSet::ALL),
            ] {
                assert_eq!(posix_trace_eventset_fill(&mut set, what), 0);
                assert_eq!(set, members);
            }
        }
    }

    #[test]
    fn numbers_of_no_event_type_are_refused() {
        let mut set = EventTypeSet::ALL;
        let mut result = -1;
        // SAFETY: pointers to values of this test, and null, which is permitted.
        unsafe {
            for event in [0, 320, u32::MAX] {
                assert_eq!(posix_trace_eventset_add(event, &mut set), libc::EINVAL);
                assert_eq!(posix_trace_eventset_del(event, &mut set), libc::EINVAL);
                let refused = posix_trace_eventset_ismember(event, &set, &mut result);
                assert_eq!(refused, libc::EINVAL);
            }
            for what in [0, 4, -1] {
                assert_eq!(posix_trace_eventset_fill(&mut set, what), libc::EINVAL);
            }
            assert_eq!(
                posix_trace_eventset_add(1, std::ptr::null_mut()),
                libc::EINVAL
            );
            assert_eq!(
                posix_trace_eventset_empty(std::ptr::null_mut()),
                libc::EINVAL
            );
        }
        assert_eq!((set, result), (EventTypeSet::ALL, -1));
    }
}
