// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace in the formats of other tools. Each export is an analysis, fed by a replay.

mod csv;
mod output;
mod perfetto;
mod schema;
mod spans;

use std::io;

pub use csv::CsvExport;
pub use perfetto::PerfettoExport;

/// Totals of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Elements of the trace.
    pub elements: u64,
    /// Gaps of the trace; the export contains each of them.
    pub gaps: u64,
    /// Elements that were missed in these gaps.
    pub missed: u64,
}

/// An export could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the export after {elements} elements: {source}")]
pub struct ExportError {
    elements: u64,
    source: io::Error,
}

impl ExportError {
    /// Kind of the error of the output.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Elements that were wholly written before.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }
}
