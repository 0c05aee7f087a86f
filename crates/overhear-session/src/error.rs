// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the application: their kind, and a message for the user.

use std::fmt;

use overhear_directory::AttachError;
use overhear_kernel::{ProbeError, SelectError, StartError};

use crate::limits;

/// The kind of an error. The command line has an exit status for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request, or a file that it names, cannot be used.
    Usage,
    /// A guarantee was required and cannot be given.
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

/// A setting of a request that an error is about. The command line adds the names of its options to
/// the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The calibration file, without which times cannot be compensated.
    Calibration,
    /// Whether times are compensated.
    Compensate,
    /// The program and its arguments.
    Command,
    /// Whether plug-ins, programs and functions may run.
    Execution,
    /// The source of kernel events, and the kernel sensors that are named besides.
    KernelOff,
    /// The named kernel sensors.
    KernelSensors,
    /// Whether execution times are measured.
    MeasureWcet,
    /// The metrics, by name or by file.
    Metrics,
    /// The file that is written.
    Output,
    /// The probes.
    Probes,
    /// The samplers.
    Sampling,
    /// The socket of the directory.
    Socket,
    /// The end of the run: the program alone, or all its processes.
    Until,
    /// The end of the run, which requires a source of kernel events.
    UntilWithoutKernel,
}

/// The error of an operation of this crate. `Display` is its message.
#[derive(Debug)]
pub struct SessionError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The message: what failed, on which object, what to do.
    pub message: String,
    /// The setting to change, if there is one.
    pub setting: Option<Setting>,
}

impl SessionError {
    /// An error of this kind. An error of the operating system in the message that a resource limit
    /// causes is explained.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: limits::explained(message.into()),
            setting: None,
        }
    }

    /// Names the setting to change.
    #[must_use]
    pub fn about(self, setting: Setting) -> Self {
        Self {
            setting: Some(setting),
            ..self
        }
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SessionError {}

impl From<&StartError> for SessionError {
    /// A wrong request is an error of usage. All else is a missing permission or feature.
    fn from(error: &StartError) -> Self {
        let kind = match error {
            StartError::RingSize { .. }
            | StartError::NoSuchProbeRing { .. }
            | StartError::Probe(
                ProbeError::NoFile { .. }
                | ProbeError::File { .. }
                | ProbeError::Missing { .. }
                | ProbeError::Ambiguous { .. }
                | ProbeError::NoPoint { .. }
                | ProbeError::TooMany { .. },
            ) => ErrorKind::Usage,
            StartError::Sampler(error) if error.is_usage() => ErrorKind::Usage,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<&SelectError> for SessionError {
    fn from(error: &SelectError) -> Self {
        let kind = match error {
            SelectError::NoSuchProcess { .. }
            | SelectError::NoSuchThread { .. }
            | SelectError::NoCgroup { .. } => ErrorKind::Usage,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<AttachError> for SessionError {
    fn from(error: AttachError) -> Self {
        Self::new(ErrorKind::Unavailable, error.to_string())
    }
}
