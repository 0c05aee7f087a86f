// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conclusion from the results of a run or a recording, and the end of a program.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// The conclusion from results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// All constraints and guarantees held, and nothing was missed.
    Complete,
    /// Something was missed, so the results may be incomplete.
    Inconclusive,
    /// A constraint or a deadline is violated.
    Violated,
}

impl Conclusion {
    /// The name in JSON documents and on the page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Inconclusive => "inconclusive",
            Self::Violated => "violated",
        }
    }
}

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Exit {
    /// The end that `wait` reports.
    #[must_use]
    pub fn from_status(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}
