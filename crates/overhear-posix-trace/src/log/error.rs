// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of logs.

use std::fmt;
use std::io;

use crate::TraceError;

/// An error in writing or reading a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LogError {
    errno: i32,
    message: String,
}

impl LogError {
    pub(super) fn new(errno: i32, message: impl fmt::Display) -> Self {
        Self {
            errno,
            message: message.to_string(),
        }
    }

    /// An error of a system call on the log.
    pub(super) fn system(what: &str, cause: &io::Error) -> Self {
        Self::new(
            cause.raw_os_error().unwrap_or(libc::EIO),
            format!("cannot {what} the log: {cause}"),
        )
    }

    /// The error number of the C functions: `EBADF`, `EINVAL`, `ENOSPC`, `EFBIG` and others.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.errno
    }
}

impl From<LogError> for TraceError {
    fn from(error: LogError) -> Self {
        Self::new(error.errno, error.message)
    }
}
