// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit statuses, and errors that carry one.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

use crate::limits;

/// Held and complete.
pub const COMPLETE: u8 = 0;
/// A constraint is violated.
pub const VIOLATED: u8 = 1;
/// The command line, or a file it names, cannot be used.
pub const USAGE: u8 = 2;
/// Something was missed: what was found may not be all there is.
pub const INCONCLUSIVE: u8 = 3;
/// A guarantee was asked for and cannot be given.
pub const REFUSED: u8 = 4;
/// A permission or a feature of the kernel is missing.
pub const UNAVAILABLE: u8 = 5;
/// The program was found but cannot be run.
pub const NOT_RUNNABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// An error that ends the command: a sentence for the user and the exit status.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// What failed, on which object, what to do.
    pub sentence: String,
}

impl Failure {
    /// A failure with this status. An error of the operating system in the sentence that a resource limit causes is
    /// explained.
    pub fn new(status: u8, sentence: impl Into<String>) -> Self {
        Self {
            status,
            sentence: limits::explained(sentence.into()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Failure {}

/// How the program that was run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It ended by itself with this status.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Exit {
    /// From what `wait` reports.
    #[must_use]
    pub fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }

    /// The exit status to pass on: the program's own, as shells do it; if that is zero, whether
    /// the observation was complete.
    #[must_use]
    pub fn status(self, complete: bool) -> u8 {
        match self {
            Self::Code(0) if complete => COMPLETE,
            Self::Code(0) => INCONCLUSIVE,
            Self::Code(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn the_programs_own_status_wins() {
        assert_eq!(Exit::Code(0).status(true), 0);
        assert_eq!(Exit::Code(0).status(false), 3);
        assert_eq!(Exit::Code(7).status(false), 7);
        assert_eq!(Exit::Signal(9).status(true), 137);
    }
}
