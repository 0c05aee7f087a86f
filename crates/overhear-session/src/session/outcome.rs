// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outcome of a session: the report, the end of the program, and the folder of the recording.

use std::path::{Path, PathBuf};

use overhear_metrics::Histogram;

use crate::conclusion::Exit;
use crate::error::SessionError;
use crate::quantities::HistogramReport;
use crate::replay;
use crate::report::Report;

/// The outcome of a session.
#[derive(Debug)]
pub struct Outcome {
    /// The report.
    pub report: Report,
    /// The end of the program.
    pub exit: Exit,
    pub(crate) out: Option<PathBuf>,
}

impl Outcome {
    /// Adds histograms of the caller to the report and the recording. Each has a title and a unit.
    ///
    /// # Errors
    /// [`SessionError`] if the recording cannot be written.
    pub fn add_histograms(
        &mut self,
        histograms: Vec<(&str, &str, &Histogram)>,
    ) -> Result<(), SessionError> {
        let histograms: Vec<HistogramReport> = histograms
            .into_iter()
            .map(|(title, unit, histogram)| HistogramReport::new(title, unit, histogram))
            .collect();
        if let Some(out) = &self.out {
            replay::attach_histograms(out, &histograms)?;
        }
        self.report.histograms.splice(0..0, histograms);
        Ok(())
    }

    /// The folder of the recording, if there is one.
    #[must_use]
    pub fn out(&self) -> Option<&Path> {
        self.out.as_deref()
    }
}
