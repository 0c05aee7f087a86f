// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of a recording.

use std::path::Path;

use overhear_event::{Analysis, Timestamp};
use overhear_metrics::compensation::Compensation;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{Fanout, Losses};
use overhear_trace::{ReadError, ReplaySummary, TraceReader};
use serde::de::DeserializeOwned;

use crate::budget::BudgetOutcome;
use crate::calibrate::Calibration;
use crate::check::CheckReport;
use crate::compensation::{self, CompensationReport};
use crate::configured_monitor::MonitorReport;
use crate::documents::{self, read};
use crate::error::{ErrorKind, SessionError};
use crate::metrics::MetricsReport;
use crate::other_threads;
use crate::output;
use crate::overhead::CalibratedOverhead;
use crate::quantities::{HistogramReport, TraceReport};
use crate::reactions::ReactionsReport;
use crate::recording::{self, Recording};
use crate::report::{self, Report, RunFindings};
use crate::updates::{UpdateReport, Updates};

/// Options of the replay of a recording.
#[derive(Debug, Default)]
pub struct ReplayOptions {
    /// Updates to run over the recording. Without any, the report has the results of the live ones.
    pub updates: Updates,
    /// Costs of sensors; without them, those of the recording.
    pub calibration: Option<Calibration>,
    /// Whether the monitoring overhead is subtracted from all times.
    pub compensate: bool,
}

/// The report of the recording in `dir`.
///
/// # Errors
/// [`SessionError`] if this is no recording.
pub fn read_report(dir: &Path) -> Result<Report, SessionError> {
    read_report_with(dir, ReplayOptions::default())
}

/// Begin and end of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The release of the program.
    pub begin: Timestamp,
    /// The last time in the recording, or the end of the program if that is later.
    pub end: Timestamp,
    /// The end of the program; `end` if it is not known.
    pub ended: Timestamp,
}

/// The times of a recording.
#[must_use]
pub fn times(reader: &TraceReader, recording: &Recording) -> Times {
    let begin = recording::start_of(reader, Some(recording)).unwrap_or_default();
    let (_, end) = reader.times().unwrap_or_default();
    let ending = recording.end.map(|ending| ending.end_ns);
    let ended = ending.map_or(end, Timestamp::from_monotonic_ns);
    Times {
        begin,
        end: end.max(ended),
        ended,
    }
}

/// A report with the command and the sources of a recording that is still being written.
pub fn command_of(dir: &Path) -> serde_json::Value {
    let recording = recording_of(dir);
    serde_json::json!({ "command": recording.command, "sources": recording.sources, "goes_on": true })
}

/// The end of the program that is recorded in `dir`; `None` if it is not known.
pub fn end_of(dir: &Path) -> Option<Timestamp> {
    let end = recording_of(dir).end?;
    Some(Timestamp::from_monotonic_ns(end.end_ns))
}

fn recording_of(dir: &Path) -> Recording {
    let reader = TraceReader::open(dir).ok();
    let run = reader.and_then(|reader| Recording::read(&reader).ok().flatten());
    run.unwrap_or_default()
}

/// Adds histograms to the recording in `dir`, for every report made from it.
pub(crate) fn attach_histograms(
    dir: &Path,
    histograms: &[HistogramReport],
) -> Result<(), SessionError> {
    let json = overhear_trace::sealed_document(histograms).unwrap_or_default();
    let own = dir.join("trace").join("overhear");
    output::write_inside(&own, "histograms.json", |out| out.write_all(&json))
}

/// Reads a document; the default value if it has another type.
fn read_or_default<T: DeserializeOwned + Default>(
    reader: &TraceReader,
    name: &str,
) -> Result<T, ReadError> {
    match reader.document_as(name) {
        Err(ReadError::OtherContent { .. }) => Ok(T::default()),
        document => Ok(document?.unwrap_or_default()),
    }
}

/// The report of the recording in `dir`, with these options.
///
/// # Errors
/// [`SessionError`] if this is no recording, or its times are to be compensated and there is no
/// calibration.
pub fn read_report_with(dir: &Path, options: ReplayOptions) -> Result<Report, SessionError> {
    let usage =
        |error: overhear_trace::ReadError| SessionError::new(ErrorKind::Usage, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let mut recording = Recording::read(&reader).map_err(usage)?.unwrap_or_default();
    let own: Vec<HistogramReport> =
        read_or_default(&reader, documents::HISTOGRAMS).map_err(usage)?;
    let check: Option<CheckReport> = read(&reader, documents::CHECK)?;
    let metrics: Option<MetricsReport> = read(&reader, documents::METRICS)?;
    let others = other_threads::read(&reader)?;
    let guarantee: Option<MonitorReport> = read(&reader, documents::GUARANTEE)?;
    let reactions: Option<ReactionsReport> = read(&reader, documents::REACTIONS)?;
    let budget: Option<BudgetOutcome> = read(&reader, documents::BUDGET)?;
    let calibration = match options.calibration {
        None => read(&reader, documents::CALIBRATION)?,
        named => named,
    };
    let mut overhead = calibration.map(|known: Calibration| {
        CalibratedOverhead::new(known.for_backend(recording.kernel_backend()))
    });
    let costs = match (options.compensate, &overhead) {
        (false, _) => None,
        (true, None) => return Err(compensation::no_calibration()),
        (true, Some(overhead)) => Some(overhead.costs()),
    };
    let mut scheduling = Scheduling::new(());
    if recording.records_wakeups() {
        scheduling.expect_wakeups();
    }
    let mut statistics = SensorStatistics::default();
    for stream in reader.streams() {
        statistics.announce(stream);
    }
    let (mut losses, mut updates) = (Losses::default(), options.updates);
    let mut all: Vec<&mut dyn Analysis> = vec![&mut losses];
    all.extend(overhead.as_mut().map(CalibratedOverhead::analysis));
    let (replayed, delays) = match costs {
        None => {
            let accounts: [&mut dyn Analysis; 3] =
                [&mut scheduling, &mut statistics, updates.set()];
            all.extend(accounts);
            (reader.replay(&mut all), None)
        }
        Some(costs) => {
            let accounts = Fanout(vec![&mut scheduling, &mut statistics, updates.set()]);
            let mut compensation = Compensation::new(costs, accounts);
            all.push(&mut compensation);
            let replayed = reader.replay(&mut all);
            (replayed, Some(compensation.finish()))
        }
    };
    let updates: Vec<UpdateReport> = match updates.finish() {
        none if none.is_empty() => read_or_default(&reader, documents::UPDATES).map_err(usage)?,
        found => found,
    };
    let times = times(&reader, &recording);
    scheduling.finish(compensation::end(times.ended, delays.as_ref()));
    note_damage(&reader, &replayed, &mut recording);
    let written = reader.summary();
    let trace = TraceReport {
        directory: Some(dir.display().to_string()),
        events: replayed.events,
        bytes: written.map_or_else(|| reader.bytes(), |summary| summary.bytes),
        left_out: reader.left_out(),
        unrecorded: written.map_or(0, |summary| summary.unrecorded),
    };
    let found = RunFindings {
        scheduling: &scheduling,
        statistics: &statistics,
        losses: &losses,
        overhead: overhead.as_ref(),
        compensation: delays
            .as_ref()
            .map(|delays| CompensationReport::of(delays, recording.records_wakeups())),
        trace,
    };
    let mut report = report::of(&recording, &found);
    report.check = check;
    report.metrics = metrics;
    report.add_updates(updates);
    report.add_guarantee(guarantee);
    report.reactions = reactions;
    report.budget = budget;
    report.add_other_threads(others);
    if recording.end.is_none() {
        let removed = report.compensation.map_or(0, |found| found.removed_ns);
        let duration = times.end.since(times.begin).as_ns();
        report.duration_ns = duration.saturating_sub(removed);
    }
    report.histograms.splice(0..0, own);
    report.conclude();
    Ok(report)
}

/// Adds notes about the damaged and missing parts of a recording that was replayed. If its end may
/// be missing, the end is cleared.
fn note_damage(reader: &TraceReader, replayed: &ReplaySummary, recording: &mut Recording) {
    if recording.end.is_none() {
        let message =
            "the recorder did not finish: what happened after the last element is not known";
        recording.notes.push(message.to_string());
    }
    let torn: Vec<String> = recording::lost_tails(reader)
        .map(ToString::to_string)
        .collect();
    let is_torn = !torn.is_empty();
    recording.notes.extend(torn);
    let damage: Vec<String> = recording::corrupt(reader, replayed).collect();
    let is_damaged = !damage.is_empty();
    recording.notes.extend(damage);
    if is_damaged || is_torn {
        // Part of the recording is lost, so the end in the document may not be its end.
        recording.end = None;
    }
    if let Some(message) = recording::missing_elements(reader, replayed) {
        recording.notes.push(message);
        recording.end = None;
    }
}
