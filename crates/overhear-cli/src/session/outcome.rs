// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a session: the report, how the program ended, and the page.

use std::path::PathBuf;

use overhear_metrics::Histogram;

use crate::exit::{Exit, Failure, COMPLETE, VIOLATED};
use crate::offline;
use crate::report::{HistogramReport, Report};

/// What a session found.
#[derive(Debug)]
pub struct Outcome {
    /// The report.
    pub report: Report,
    /// How the program ended.
    pub exit: Exit,
    /// The page, if something was kept.
    pub page: Option<PathBuf>,
    out: Option<PathBuf>,
}
impl Outcome {
    /// A report, with its page if something was kept.
    pub(crate) fn kept(report: Report, exit: Exit, out: Option<PathBuf>) -> Self {
        let mut outcome = Self {
            report,
            exit,
            page: None,
            out,
        };
        outcome.write_page();
        outcome
    }

    /// Adds histograms of one's own to the report, the page and the recording.
    ///
    /// # Errors
    /// [`Failure`] if the page or the recording cannot be written.
    pub fn add_histograms(
        &mut self,
        histograms: Vec<(&str, &str, &Histogram)>,
    ) -> Result<(), Failure> {
        let histograms: Vec<HistogramReport> = histograms
            .into_iter()
            .map(|(title, unit, histogram)| HistogramReport::new(title, unit, histogram))
            .collect();
        if let Some(out) = &self.out {
            offline::attach_histograms(out, &histograms)?;
        }
        self.report.histograms.splice(0..0, histograms);
        self.write_page();
        Ok(())
    }

    /// The exit status to pass on.
    #[must_use]
    pub fn status(&self) -> u8 {
        let found = self.report.status();
        match self.exit {
            Exit::Code(0) if found == VIOLATED => VIOLATED,
            exit => exit.status(found == COMPLETE),
        }
    }

    fn write_page(&mut self) {
        let Some(out) = &self.out else { return };
        let page = out.join("report.html");
        match offline::write_page(out, &page, Some(&self.report), None) {
            Ok(()) => self.page = Some(page),
            // The program has run and its numbers are there: a page that cannot be written is a
            // note, not a failure.
            Err(failure) => {
                self.report.notes.push(failure.sentence);
                self.report.complete = false;
                self.report.conclude();
            }
        }
    }
}
