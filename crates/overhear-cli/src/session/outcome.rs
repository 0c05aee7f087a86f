// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a session: the report, how the program ended, and where the recording is.

use std::path::{Path, PathBuf};

use overhear_metrics::Histogram;

use crate::exit::{Exit, Failure, COMPLETE, VIOLATED};
use crate::heap;
use crate::offline::{self, Page, PageRequest};
use crate::report::{HistogramReport, Report};

/// What a session found.
#[derive(Debug)]
pub struct Outcome {
    /// The report.
    pub report: Report,
    /// How the program ended.
    pub exit: Exit,
    pub(crate) out: Option<PathBuf>,
}

/// A page that was written.
#[derive(Debug)]
pub struct WrittenPage {
    /// The file.
    pub file: PathBuf,
    /// Sentences about what it leaves out, for want of room.
    pub left_out: Vec<String>,
}

impl Outcome {
    /// Adds histograms of one's own to the report and the recording.
    ///
    /// # Errors
    /// [`Failure`] if the recording cannot be written.
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

    /// Writes the page beside the recording; nothing if nothing was kept. It takes time and memory of its
    /// own: whoever has the report to show does that first.
    ///
    /// # Errors
    /// [`Failure`] if the page cannot be written.
    pub fn write_page(&mut self) -> Result<Option<WrittenPage>, Failure> {
        let Some(out) = self.out.clone() else {
            return Ok(None);
        };
        let metrics = self.report.take_long_metrics();
        let written = self.write_page_to(&out);
        self.report.metrics = self.report.metrics.take().or(metrics);
        written.map(Some)
    }

    fn write_page_to(&self, out: &Path) -> Result<WrittenPage, Failure> {
        // What the session had.
        heap::give_back();
        let requests = [PageRequest::of(out, &self.report)];
        let page = Page::of(&requests)?;
        let file = page.write_beside(out)?;
        let left_out = page.left_out();
        Ok(WrittenPage { file, left_out })
    }
}
