// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_trace_create_withlog`, `_flush`, `_open`, `_rewind`, `_close`: logs.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::attributes::RawAttributes;
use super::control::given_attributes;
use super::{call, store};
use crate::prerecorded::Prerecorded;
use crate::registry::{self, Entry, OpenLog};
use crate::{ActiveStream, TraceError};

/// The descriptor of a program.
fn given_file<'a>(file_desc: c_int) -> Result<BorrowedFd<'a>, TraceError> {
    if file_desc < 0 {
        return Err(TraceError::new(
            libc::EBADF,
            format!("{file_desc} is no file descriptor"),
        ));
    }
    // SAFETY: the program keeps the descriptor open during the call; if the number is of no open
    // file, the system calls return an error.
    Ok(unsafe { BorrowedFd::borrow_raw(file_desc) })
}

/// # Safety
/// `attr` is null or points to a `trace_attr_t`, `trid` is null or points to a `trace_id_t`;
/// nothing else changes them during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_create_withlog(
    pid: libc::pid_t,
    attr: *const RawAttributes,
    file_desc: c_int,
    trid: *mut u64,
) -> c_int {
    call("posix_trace_create_withlog", || {
        // SAFETY: by this function's condition.
        let attributes = unsafe { given_attributes(attr) }?;
        if trid.is_null() {
            return Err(TraceError::invalid("the place for the identifier is NULL"));
        }
        let log = given_file(file_desc)?;
        let stream = ActiveStream::create_with_log(pid, &attributes, log)?;
        let entry = registry::add(Entry::Active(Arc::new(stream)));
        // SAFETY: by this function's condition.
        unsafe { store(trid, entry, "the place for the identifier") }
    })
}

#[no_mangle]
extern "C" fn posix_trace_flush(trid: u64) -> c_int {
    call("posix_trace_flush", || registry::active(trid)?.flush())
}

/// # Safety
/// `trid` is null or points to a `trace_id_t` that nothing else uses during the call.
#[no_mangle]
unsafe extern "C" fn posix_trace_open(file_desc: c_int, trid: *mut u64) -> c_int {
    call("posix_trace_open", || {
        if trid.is_null() {
            return Err(TraceError::invalid("the place for the identifier is NULL"));
        }
        let log = Prerecorded::open(given_file(file_desc)?)?;
        let entry = registry::add(Entry::Prerecorded(OpenLog::new(log)));
        // SAFETY: by this function's condition.
        unsafe { store(trid, entry, "the place for the identifier") }
    })
}

#[no_mangle]
extern "C" fn posix_trace_rewind(trid: u64) -> c_int {
    call("posix_trace_rewind", || {
        registry::prerecorded(trid)?.with(Prerecorded::rewind)
    })
}

#[no_mangle]
extern "C" fn posix_trace_close(trid: u64) -> c_int {
    call("posix_trace_close", || registry::close_prerecorded(trid))
}
