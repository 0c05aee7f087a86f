// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run, a recording or a judgement amounts to, and how a program ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// What results amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// All demands are met, and nothing was missed.
    Complete,
    /// Something was missed: the results may not be all there is.
    Inconclusive,
    /// A constraint or a deadline is violated.
    Violated,
}

impl Conclusion {
    /// The word that JSON documents and the page use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Inconclusive => "inconclusive",
            Self::Violated => "violated",
        }
    }
}

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
}
