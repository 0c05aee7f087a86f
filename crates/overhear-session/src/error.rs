// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the application: what kind they are, and a message for the user.

use std::fmt;

use crate::limits;

/// What an operation failed for. The command line has an exit status for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request, or a file that it names, cannot be used.
    Usage,
    /// A guarantee was demanded and cannot be given.
    Refused,
    /// A permission, a feature of the kernel or another process is missing.
    Unavailable,
    /// Part of the result is missing.
    Incomplete,
    /// The program was found but cannot be run.
    NotRunnable,
    /// The program was not found.
    NotFound,
}

impl ErrorKind {
    /// The word that the attribute `kind` of exceptions in Python uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::Incomplete => "incomplete",
            Self::NotRunnable => "not_runnable",
            Self::NotFound => "not_found",
        }
    }
}

/// The error of an operation of this crate. `Display` is its message.
#[derive(Debug)]
pub struct SessionError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The message: what failed, on which object, what to do.
    pub message: String,
}

impl SessionError {
    /// An error of this kind. An error of the operating system in the message that a resource limit
    /// causes is explained.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: limits::explained(message.into()),
        }
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SessionError {}
