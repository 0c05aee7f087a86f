// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an error in Rust to a negative errno and a message in C.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::LocalKey;

use crate::c_text;

/// Why an exported function fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FfiError {
    /// What the function returns: a negative errno.
    pub code: c_int,
    /// The message of the last error without the function's name.
    pub message: String,
}

impl FfiError {
    /// An error with this negative errno.
    #[must_use]
    pub fn new(code: c_int, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// `-EINVAL`: the arguments are wrong.
    #[must_use]
    pub fn invalid(message: impl ToString) -> Self {
        Self::new(-libc::EINVAL, message)
    }
}

/// A C library: its name, and where its functions leave the last error.
#[derive(Clone, Copy, Debug)]
pub struct CLibrary {
    /// The name of the shared library, without its suffix.
    pub name: &'static str,
    /// Replaces the last error of the calling thread. An empty message means that there is none.
    pub set_last_error: fn(&str),
}

impl CLibrary {
    /// Runs the body of the exported function `function`. Returns its result; an error or a panic
    /// is the last error of the calling thread, and the negative errno is returned.
    pub fn guard(&self, function: &str, call: impl FnOnce() -> Result<c_int, FfiError>) -> c_int {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(code)) => code,
            Ok(Err(error)) => self.fail(function, &error),
            Err(_) => {
                (self.set_last_error)(&format!(
                    "{function} failed inside {}; this is a bug of the library",
                    self.name
                ));
                -libc::EINVAL
            }
        }
    }

    /// Makes an error of `function` the last one, and returns its negative errno.
    #[cold]
    pub fn fail(&self, function: &str, error: &FfiError) -> c_int {
        (self.set_last_error)(&format!("{function}: {}", error.message));
        error.code
    }
}

/// The last error of a thread, for a `thread_local!` variable of a C library.
#[derive(Debug, Default)]
pub struct LastError(RefCell<CString>);

impl LastError {
    /// Replaces the calling thread's last error. A thread whose variables are already destroyed
    /// keeps none.
    pub fn set(last: &'static LocalKey<Self>, message: &str) {
        let _ = last.try_with(|last| last.0.replace(c_text(message)));
    }

    /// The calling thread's last error as C gets it: valid until the thread's next
    /// [`LastError::set`].
    pub fn as_ptr(last: &'static LocalKey<Self>) -> *const c_char {
        // A CString's bytes stay where they are until it is replaced.
        let pointer = last.try_with(|last| last.0.borrow().as_ptr());
        pointer.unwrap_or(c"".as_ptr())
    }

    /// The same as a string of Rust.
    #[must_use]
    pub fn read(last: &'static LocalKey<Self>) -> String {
        let text = last.try_with(|last| last.0.borrow().to_string_lossy().into_owned());
        text.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{CLibrary, FfiError, LastError};

    thread_local! {
        static LAST: LastError = LastError::default();
    }

    const LIBRARY: CLibrary = CLibrary {
        name: "libtest",
        set_last_error: |message| LastError::set(&LAST, message),
    };

    #[test]
    fn error_becomes_errno_and_last_error_of_the_thread() {
        assert_eq!(LIBRARY.guard("f", || Ok(7)), 7);
        assert_eq!(LastError::read(&LAST), "");
        let code = LIBRARY.guard("f", || Err(FfiError::new(-libc::ENOENT, "no\0file")));
        assert_eq!(code, -libc::ENOENT);
        assert_eq!(LastError::read(&LAST), "f: no file");
        let other = std::thread::spawn(|| LastError::read(&LAST)).join();
        assert_eq!(other.unwrap(), "");
        // A success keeps it: only failures replace the last error.
        assert_eq!(LIBRARY.guard("f", || Ok(0)), 0);
        assert_eq!(LastError::read(&LAST), "f: no file");
    }

    #[test]
    fn panic_does_not_leave_the_guard() {
        let code = LIBRARY.guard("f", || panic!("a bug"));
        assert_eq!(code, -libc::EINVAL);
        let expected = "f failed inside libtest; this is a bug of the library";
        assert_eq!(LastError::read(&LAST), expected);
    }
}
