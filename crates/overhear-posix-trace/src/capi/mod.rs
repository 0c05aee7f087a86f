// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `include/overhear/trace.h`, one file per noun.
//!
//! An exported function converts its arguments and runs its body in [`call`]: an error or a panic
//! becomes a positive error number, with a message for `oh_posix_trace_last_error`. Nothing unwinds
//! into C, and errno stays as it was. No function is a cancellation point: the C library ends a
//! canceled thread by unwinding it, which must not happen to frames of Rust.

mod attributes;
mod control;
mod event_sets;
mod event_types;
mod log;
mod metrics;
mod reading;

use std::ffi::{c_char, c_int};
use std::panic::{catch_unwind, AssertUnwindSafe};

use overhear_ffi::LastError;

use crate::TraceError;

thread_local! {
    static LAST_ERROR: LastError = LastError::default();
}

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// The calling thread is not canceled as long as the value lives.
struct NotCanceled {
    before: c_int,
}

impl NotCanceled {
    fn begin() -> Self {
        /// Of `<pthread.h>`; 0 is to enable.
        const PTHREAD_CANCEL_DISABLE: c_int = 1;
        let mut before = 0;
        let _ = pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before);
        Self { before }
    }
}

impl Drop for NotCanceled {
    fn drop(&mut self) {
        let _ = pthread_setcancelstate(self.before, &mut 0);
    }
}

/// Runs the body of an exported function: 0, or the error's number.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Result<(), TraceError>) -> c_int {
    let _not_canceled = NotCanceled::begin();
    // SAFETY: the address of the calling thread's errno is valid as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; a plain int of this thread.
    let before = unsafe { *errno };
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        let message = "an internal error; please report it";
        Err(TraceError::new(libc::EINVAL, message))
    });
    let number = match result {
        Ok(()) => 0,
        Err(error) => {
            LastError::set(&LAST_ERROR, &format!("{name}: {error}"));
            error.errno
        }
    };
    // SAFETY: as above.
    unsafe { *errno = before };
    number
}

/// Makes an error the last one of this thread although its function succeeds.
pub(crate) fn set_last_error(error: &TraceError) {
    LastError::set(&LAST_ERROR, &error.to_string());
}

/// `oh_posix_trace_last_error`.
#[no_mangle]
pub(crate) extern "C" fn oh_posix_trace_last_error() -> *const c_char {
    LastError::as_ptr(&LAST_ERROR)
}

/// The object that a pointer of C points to.
///
/// # Errors
/// [`TraceError`] `EINVAL` if the pointer is null.
///
/// # Safety
/// A pointer that is not null points to a `T` that nothing else changes during `'a`.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, TraceError> {
    // SAFETY: by this function's condition.
    unsafe { pointer.as_ref() }.ok_or_else(|| TraceError::invalid(format!("{what} is NULL")))
}

/// Stores a result through a pointer of C.
///
/// # Errors
/// [`TraceError`] `EINVAL` if the pointer is null.
///
/// # Safety
/// A pointer that is not null may be written with a `T`.
pub(crate) unsafe fn store<T>(pointer: *mut T, value: T, what: &str) -> Result<(), TraceError> {
    if pointer.is_null() {
        return Err(TraceError::invalid(format!("{what} is NULL")));
    }
    // SAFETY: by this function's condition.
    unsafe { pointer.write(value) };
    Ok(())
}
