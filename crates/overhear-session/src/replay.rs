// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports from a recording.

use std::path::Path;

use overhear_event::{Analysis, Timestamp};
use overhear_metrics::compensation::Compensation;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{Fanout, Losses};
use overhear_trace::{ReadError, ReplaySummary, TraceReader};
use serde::de::DeserializeOwned;

use crate::calibrate::Calibration;
use crate::check::{CheckReport, CHECK};
use crate::compensation::{self, CompensationReport};
use crate::configured_monitor::{MonitorReport, GUARANTEE};
use crate::error::{ErrorKind, SessionError};
use crate::metrics::{MetricsReport, METRICS};
use crate::other_threads;
use crate::output;
use crate::overhead::{CalibratedOverhead, CALIBRATION};
use crate::quantities::{HistogramReport, TraceReport};
use crate::reactions::{ReactionsReport, REACTIONS};
use crate::recording::{self, kept, Recording};
use crate::report::{self, Report, RunFindings};
use crate::updates::{UpdateReport, Updates, UPDATES};

/// How a recording is evaluated.
#[derive(Debug, Default)]
pub struct Evaluation {
    /// Updates that find something in the recording, instead of what others found live.
    pub updates: Updates,
    /// What sensors cost, instead of what the recording brings along.
    pub calibration: Option<Calibration>,
    /// Whether what observing has cost is subtracted from all times.
    pub compensate: bool,
}

/// The report of the recording in `dir`.
///
/// # Errors
/// [`SessionError`] if this is no recording.
pub fn read_report(dir: &Path) -> Result<Report, SessionError> {
    evaluate(dir, Evaluation::default())
}

/// When what is recorded begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When the program was released.
    pub begin: Timestamp,
    /// The last time in the recording, or the end of the program if that is later.
    pub end: Timestamp,
    /// When the program ended; `end` if that is not known.
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

/// A report that says no more than which program is recorded in `dir`.
pub fn command_of(dir: &Path) -> serde_json::Value {
    let recording = recording_of(dir);
    serde_json::json!({ "command": recording.command, "sources": recording.sources, "goes_on": true })
}

/// When the program that is recorded in `dir` has ended, if that is known.
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

/// What was kept, or nothing where it is something else.
fn lenient<T: DeserializeOwned + Default>(
    reader: &TraceReader,
    name: &str,
) -> Result<T, ReadError> {
    match reader.document_as(name) {
        Err(ReadError::OtherContent { .. }) => Ok(T::default()),
        kept => Ok(kept?.unwrap_or_default()),
    }
}

/// The report of the recording in `dir`, evaluated in this way.
///
/// # Errors [`SessionError`] if this is no recording, or its times are to be compensated and there
/// is no calibration.
pub fn evaluate(dir: &Path, evaluation: Evaluation) -> Result<Report, SessionError> {
    let usage =
        |error: overhear_trace::ReadError| SessionError::new(ErrorKind::Usage, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let mut recording = Recording::read(&reader).map_err(usage)?.unwrap_or_default();
    let own: Vec<HistogramReport> = lenient(&reader, "histograms").map_err(usage)?;
    let check: Option<CheckReport> = kept(&reader, CHECK)?;
    let metrics: Option<MetricsReport> = kept(&reader, METRICS)?;
    let others = other_threads::kept(&reader)?;
    let guarantee: Option<MonitorReport> = kept(&reader, GUARANTEE)?;
    let reactions: Option<ReactionsReport> = kept(&reader, REACTIONS)?;
    let calibration = match evaluation.calibration {
        None => kept(&reader, CALIBRATION)?,
        named => named,
    };
    let mut overhead = calibration.map(|known: Calibration| {
        CalibratedOverhead::new(known.heard_by(recording.kernel_active()))
    });
    let costs = match (evaluation.compensate, &overhead) {
        (false, _) => None,
        (true, None) => return Err(compensation::no_calibration()),
        (true, Some(overhead)) => Some(overhead.costs()),
    };
    let mut scheduling = Scheduling::new(());
    if recording.hears_wakeups() {
        scheduling.expect_wakeups();
    }
    let mut statistics = SensorStatistics::default();
    for stream in reader.streams() {
        statistics.announce(stream);
    }
    let (mut losses, mut wanted) = (Losses::default(), evaluation.updates);
    let mut all: Vec<&mut dyn Analysis> = vec![&mut losses];
    all.extend(overhead.as_mut().map(CalibratedOverhead::update));
    let (replayed, delays) = match costs {
        None => {
            let accounts: [&mut dyn Analysis; 3] = [&mut scheduling, &mut statistics, wanted.set()];
            all.extend(accounts);
            (reader.replay(&mut all), None)
        }
        Some(costs) => {
            let accounts = Fanout(vec![&mut scheduling, &mut statistics, wanted.set()]);
            let mut compensation = Compensation::new(costs, accounts);
            all.push(&mut compensation);
            let replayed = reader.replay(&mut all);
            (replayed, Some(compensation.finish()))
        }
    };
    let updates: Vec<UpdateReport> = match wanted.finish() {
        none if none.is_empty() => lenient(&reader, UPDATES).map_err(usage)?,
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
        unrecorded: written.map_or(0, |summary| summary.unrecorded),
    };
    let found = RunFindings {
        scheduling: &scheduling,
        statistics: &statistics,
        losses: &losses,
        overhead: overhead.as_ref(),
        compensation: delays
            .as_ref()
            .map(|delays| CompensationReport::of(delays, recording.hears_wakeups())),
        trace,
    };
    let mut report = report::of(&recording, &found);
    report.check = check;
    report.metrics = metrics;
    report.add_updates(updates);
    report.add_guarantee(guarantee);
    report.reactions = reactions;
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

/// Adds what is damaged or missing of a recording that was replayed to its notes, and forgets its
/// end where that is not known then.
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
        // Part of the recording is gone, so its end is not known whatever the document says.
        recording.end = None;
    }
    if let Some(message) = recording::shrunk(reader, replayed) {
        recording.notes.push(message);
        recording.end = None;
    }
}
