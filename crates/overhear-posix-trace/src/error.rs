// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the interface: an error number for the program and a message for its user.

use std::fmt;

/// The error of a function. The standard fixes the error number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TraceError {
    /// The error number, positive.
    pub errno: i32,
    /// What failed, on which object, and what to do.
    pub message: String,
}

impl TraceError {
    /// An error with this number.
    pub fn new(errno: i32, message: impl fmt::Display) -> Self {
        Self {
            errno,
            message: message.to_string(),
        }
    }

    /// `EINVAL`.
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(libc::EINVAL, message)
    }
}
