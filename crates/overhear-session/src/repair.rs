// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear repair`: cuts the torn tails of a recording. It is the only verb that changes a
//! recording; all others ignore torn tails, with the same results.

use std::io;
use std::path::Path;

use overhear_trace::{is_being_written, RepairError, RepairReport, TraceReader};

use crate::conclusion::Conclusion;
use crate::error::{ErrorKind, SessionError};

/// The result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// Message about the changes.
    pub message: String,
    /// Messages about damage that remains.
    pub damage: Vec<String>,
}

/// Cuts the torn tails that a killed recorder left in `dir`, so that other readers accept the
/// recording.
///
/// # Errors
/// [`SessionError`] if this is no recording, another user owns it, it is being recorded,
/// or it cannot be changed.
pub fn repair(dir: &Path) -> Result<Repaired, SessionError> {
    let report = overhear_trace::repair(dir).map_err(|error| {
        let kind = match &error {
            RepairError::Folder(_) => ErrorKind::Unavailable,
            RepairError::Change { kind, .. } => match kind {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    ErrorKind::Unavailable
                }
                io::ErrorKind::StorageFull => ErrorKind::Incomplete,
                _ => ErrorKind::Usage,
            },
            RepairError::Read(_) | RepairError::InUse { .. } => ErrorKind::Usage,
        };
        SessionError::new(kind, error.to_string())
    })?;
    Ok(Repaired {
        message: message(dir, &report),
        damage: report.corrupt.iter().map(ToString::to_string).collect(),
    })
}

impl Repaired {
    /// Inconclusive if damage remains.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        match self.damage.is_empty() {
            true => Conclusion::Complete,
            false => Conclusion::Inconclusive,
        }
    }
}

fn message(dir: &Path, report: &RepairReport) -> String {
    let counted = |count: usize, one: &str, several: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {several}"),
    };
    let mut done = Vec::new();
    if !report.cut.is_empty() {
        let bytes: u64 = report.cut.iter().map(|tail| tail.bytes).sum();
        let streams = counted(report.cut.len(), "stream", "streams");
        done.push(format!("cut the torn tails of {streams} ({bytes} bytes)"));
    }
    if !report.removed.is_empty() {
        let files = counted(report.removed.len(), "file", "files");
        done.push(format!("removed {files} without an element"));
    }
    if report.restored.is_some() {
        done.push("wrote the metadata anew".to_owned());
    }
    let done = match done.is_empty() {
        true => "nothing to repair".to_owned(),
        false => done.join(", "),
    };
    format!("{}: {done}", dir.display())
}

/// A message, if other readers would need a repair of the recording in `dir`.
///
/// # Errors
/// [`SessionError`] if this is no recording, or it is still being recorded.
pub fn advice(dir: &Path) -> Result<Option<String>, SessionError> {
    if is_being_written(dir) {
        let dir = dir.to_path_buf();
        let message = RepairError::InUse { dir }.to_string();
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let reader = TraceReader::open(dir)
        .map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
    Ok((reader.uncut_tails() > 0).then(|| {
        format!(
            "{}: what the recorder had half written is left out; `overhear repair` cuts it for other readers",
            dir.display()
        )
    }))
}
