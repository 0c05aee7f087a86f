// SPDX-License-Identifier: MIT OR Apache-2.0
//! The documents of a recording: their names, and how they are written and read.

use overhear_trace::{TraceReader, TraceWriter};
use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::error::{ErrorKind, SessionError};

/// The description of the run: its command, its sources, its end.
pub(crate) const RUN: &str = "run";
/// The clock segments by which stamps were converted.
pub(crate) const CLOCK: &str = "clock";
/// Verdicts of the constraints.
pub(crate) const CHECK: &str = "check";
/// Results of the metrics.
pub(crate) const METRICS: &str = "metrics";
/// Reports of the updates.
pub(crate) const UPDATES: &str = "updates";
/// The report of the monitors of `overhear.toml`.
pub(crate) const GUARANTEE: &str = "guarantee";
/// The report of the reactions.
pub(crate) const REACTIONS: &str = "reactions";
/// The budget: what it allowed, and what was spent.
pub const BUDGET: &str = "budget";
/// The calibration of the machine.
pub const CALIBRATION: &str = "calibration";
/// Names of threads that were not tracked.
pub(crate) const OTHER_THREADS: &str = "other_threads";
/// Histograms of the caller.
pub(crate) const HISTOGRAMS: &str = "histograms";

/// Adds a document with results of the run that cannot be computed from the recording. An error is
/// kept by the writer, whose `finish` returns it.
pub(crate) fn attach(writer: &mut TraceWriter, name: &str, document: Option<&impl Serialize>) {
    if let Some(document) = document {
        let _ = writer.attach_document(name, document);
    }
}

/// Reads a document; `None` if the recording has none of this name.
///
/// # Errors
/// [`SessionError`] if it is damaged, or not of this type.
pub fn read<T: DeserializeOwned>(
    reader: &TraceReader,
    name: &str,
) -> Result<Option<T>, SessionError> {
    let document = reader.document_as(name);
    document.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
}
