// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports from a recording.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overhear_event::{Gap, StreamDescriptor, Timestamp, Update};
use overhear_metrics::{Scheduling, SensorStatistics, Timeline};
use overhear_monitor::Losses;
use overhear_trace::{repair, TraceReader};
use serde::de::DeserializeOwned;

use crate::calibrate::Calibration;
use crate::exit::{Failure, INCONCLUSIVE, UNAVAILABLE, USAGE};
use crate::guaranteed::{GuaranteeReport, GUARANTEE};
use crate::intrusion::{Meter, CALIBRATION};
use crate::page;
use crate::picture::{self, SensorColumns};
use crate::reactions::{ReactionsReport, REACTIONS};
use crate::recording::{report, Found, Recording};
use crate::report::{HistogramReport, Report, TraceReport};
use crate::updates::{UpdateReport, Updates, UPDATES};

/// Everything that a recording says.
struct Replayed {
    recording: Recording,
    scheduling: Scheduling<Timeline>,
    statistics: SensorStatistics,
    losses: Losses,
    columns: SensorColumns,
    gaps: Vec<(Arc<StreamDescriptor>, Gap)>,
    trace: TraceReport,
    updates: Vec<UpdateReport>,
    meter: Option<Meter>,
    guarantee: Option<GuaranteeReport>,
    reactions: Option<ReactionsReport>,
    own_histograms: Vec<HistogramReport>,
    begin: Timestamp,
    end: Timestamp,
}

/// Repairs what a killed recorder left in `dir`, and says what was done.
///
/// # Errors
/// [`Failure`] if this is no trace or it cannot be changed.
pub fn mend(dir: &Path) -> Result<Vec<String>, Failure> {
    let repaired = repair(dir).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let mut sentences: Vec<String> = repaired
        .cut
        .iter()
        .map(|tail| format!("cut: {tail}"))
        .collect();
    sentences.extend(
        repaired
            .removed
            .iter()
            .map(|file| format!("removed: {} held no element", file.display())),
    );
    sentences.extend(repaired.restored.iter().map(|file| {
        format!(
            "restored: {} was cut short or overwritten, and other readers need it",
            file.display()
        )
    }));
    sentences.extend(repaired.corrupt.iter().map(ToString::to_string));
    Ok(sentences)
}

/// The report of the recording in `dir`.
///
/// # Errors
/// [`Failure`] if this is no recording.
pub fn read_report(dir: &Path) -> Result<Report, Failure> {
    Ok(replay(dir, None, None)?.report())
}

/// The same, with what these updates find in the recording instead of what others found live, and by
/// this calibration, if there is one, instead of the one that was recorded.
///
/// # Errors
/// [`Failure`] if this is no recording.
pub fn evaluate(
    dir: &Path,
    updates: Updates,
    calibration: Option<Calibration>,
) -> Result<Report, Failure> {
    Ok(replay(dir, Some(updates), calibration)?.report())
}

/// Writes the page of the recording in `dir`. A report that is known already is not computed
/// again.
///
/// # Errors
/// [`Failure`] if this is no recording or the page cannot be written.
pub fn write_page(dir: &Path, page: &Path, known: Option<&Report>) -> Result<(), Failure> {
    write_html(page, &self::page(dir, known)?)
}

/// The page of the recording in `dir`. A report that is known already is not computed again.
///
/// # Errors
/// [`Failure`] if this is no recording.
pub fn page(dir: &Path, known: Option<&Report>) -> Result<String, Failure> {
    let replayed = replay(dir, None, None)?;
    let computed;
    let report = match known {
        Some(report) => report,
        None => {
            computed = replayed.report();
            &computed
        }
    };
    let report = serde_json::to_value(report).unwrap_or_default();
    Ok(page::render(&report, &replayed.picture()))
}

/// One page of two recordings, on one scale.
///
/// # Errors
/// [`Failure`] if one of them is no recording.
pub fn page_beside(dir: &Path, beside: &Path) -> Result<String, Failure> {
    let documents = |dir: &Path| {
        let replayed = replay(dir, None, None)?;
        let report = serde_json::to_value(replayed.report()).unwrap_or_default();
        Ok((report, replayed.picture(), dir.display().to_string()))
    };
    let (one, other) = (documents(dir)?, documents(beside)?);
    fn run(documents: &(serde_json::Value, serde_json::Value, String)) -> page::Run<'_> {
        page::Run {
            report: &documents.0,
            timeline: &documents.1,
            label: &documents.2,
        }
    }
    Ok(page::render_beside(&run(&one), &run(&other)))
}

/// A report that says no more than which program is recorded in `dir`.
pub(crate) fn command_of(dir: &Path) -> serde_json::Value {
    let recording = recording_of(dir);
    serde_json::json!({ "command": recording.command, "sources": recording.sources, "goes_on": true })
}

/// When the program that is recorded in `dir` has ended, if that is known.
pub(crate) fn end_of(dir: &Path) -> Option<Timestamp> {
    let end = recording_of(dir).end?;
    Some(Timestamp::from_monotonic_ns(end.end_ns))
}

fn recording_of(dir: &Path) -> Recording {
    let reader = TraceReader::open(dir).ok();
    let run = reader.and_then(|reader| reader.document("run").ok().flatten());
    serde_json::from_value(run.unwrap_or_default()).unwrap_or_default()
}

/// Writes a page.
///
/// # Errors
/// [`Failure`] if it cannot be written.
pub fn write_html(page: &Path, html: &str) -> Result<(), Failure> {
    // A link stays a link: its target is replaced.
    let target = fs::canonicalize(page).unwrap_or_else(|_| page.to_path_buf());
    let is_special = fs::metadata(&target).is_ok_and(|metadata| !metadata.is_file());
    // Written beside and renamed, so that a browser never sees half a page; but a device or a pipe
    // is written into.
    let beside = target.with_extension("html.tmp");
    let written = if is_special {
        fs::write(&target, html)
    } else {
        fs::write(&beside, html).and_then(|()| fs::rename(&beside, &target))
    };
    written.map_err(|error| {
        let _ = fs::remove_file(&beside);
        let status = match error.kind() {
            std::io::ErrorKind::StorageFull => INCONCLUSIVE,
            std::io::ErrorKind::PermissionDenied => UNAVAILABLE,
            _ => USAGE,
        };
        Failure::new(status, format!("cannot write {}: {error}", page.display()))
    })
}

/// Adds histograms to the recording in `dir`, for every report made from it.
pub(crate) fn attach_histograms(dir: &Path, histograms: &[HistogramReport]) -> Result<(), Failure> {
    let path = dir.join("trace/overhear/histograms.json");
    let json = serde_json::to_vec(histograms).unwrap_or_default();
    fs::write(&path, json).map_err(|error| {
        Failure::new(
            INCONCLUSIVE,
            format!("cannot write {}: {error}", path.display()),
        )
    })
}

/// What was found live and kept, if it was.
pub(crate) fn kept<T: DeserializeOwned>(
    reader: &TraceReader,
    name: &str,
) -> Result<Option<T>, Failure> {
    let document = reader
        .document(name)
        .map_err(|error| Failure::new(USAGE, error.to_string()))?;
    let parsed = document.map(serde_json::from_value).transpose();
    parsed.map_err(|error| {
        let sentence = format!(
            "what the recording keeps in {name}.json cannot be read: {error}; remove the file to go on without it"
        );
        Failure::new(USAGE, sentence)
    })
}

fn replay(
    dir: &Path,
    updates: Option<Updates>,
    calibration: Option<Calibration>,
) -> Result<Replayed, Failure> {
    let usage = |error: overhear_trace::ReadError| Failure::new(USAGE, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let run = reader.document("run").map_err(usage)?.unwrap_or_default();
    let mut recording: Recording = serde_json::from_value(run).unwrap_or_default();
    let own = reader
        .document("histograms")
        .map_err(usage)?
        .unwrap_or_default();
    let mut replayed = Replayed {
        scheduling: Scheduling::new(Timeline::default()),
        statistics: SensorStatistics::default(),
        losses: Losses::default(),
        columns: SensorColumns::default(),
        gaps: Vec::new(),
        trace: TraceReport::default(),
        updates: Vec::new(),
        meter: match calibration {
            None => kept(&reader, CALIBRATION)?,
            named => named,
        }
        .map(Meter::new),
        guarantee: kept(&reader, GUARANTEE)?,
        reactions: kept(&reader, REACTIONS)?,
        own_histograms: serde_json::from_value(own).unwrap_or_default(),
        begin: Timestamp::ZERO,
        end: Timestamp::ZERO,
        recording: Recording::default(),
    };
    if recording.hears_wakeups() {
        replayed.scheduling.expect_wakeups();
    }
    for stream in reader.streams() {
        replayed.statistics.announce(stream);
        replayed.columns.announce(stream);
    }
    let mut gaps = Gaps(Vec::new());
    let mut wanted = updates.unwrap_or_default();
    let mut all: Vec<&mut dyn Update> = vec![
        &mut replayed.scheduling,
        &mut replayed.statistics,
        &mut replayed.losses,
        &mut replayed.columns,
        &mut gaps,
        wanted.set(),
    ];
    let meter = replayed.meter.as_mut();
    all.extend(meter.map(|meter| meter as &mut dyn Update));
    let summary = reader.replay(&mut all);
    replayed.updates = match wanted.finish() {
        none if none.is_empty() => {
            let live = reader.document(UPDATES).map_err(usage)?;
            serde_json::from_value(live.unwrap_or_default()).unwrap_or_default()
        }
        found => found,
    };
    replayed.gaps = gaps.0;
    let first = reader.times();
    let (mut begin, mut end) = first.unwrap_or_default();
    if recording.start_ns > 0 {
        let start = Timestamp::from_monotonic_ns(recording.start_ns);
        begin = if first.is_some() {
            begin.min(start)
        } else {
            start
        };
    }
    if let Some(ending) = recording.end {
        end = end.max(Timestamp::from_monotonic_ns(ending.end_ns));
        replayed
            .scheduling
            .finish(Timestamp::from_monotonic_ns(ending.end_ns));
    } else {
        replayed.scheduling.finish(end);
        let sentence =
            "the recorder did not finish: what happened after the last element is not known";
        recording.notes.push(sentence.to_string());
    }
    recording
        .notes
        .extend(reader.torn().iter().map(ToString::to_string));
    let damage: Vec<String> = reader
        .corrupt()
        .iter()
        .chain(&summary.corrupt)
        .map(ToString::to_string)
        .collect();
    let is_damaged = !damage.is_empty();
    recording.notes.extend(damage);
    if is_damaged || !reader.torn().is_empty() {
        // Part of the recording is gone, so its end is not known whatever the document says.
        recording.end = None;
    }
    let (events, written) = (reader.events(), reader.summary());
    // What a repair has cut is not torn any more, but the recorder has said how much there was.
    if let Some(recorded) = written.map(|summary| summary.events) {
        if recorded != events {
            recording.notes.push(format!(
                "the recorder wrote {recorded} elements, {events} can be read: the recording was damaged later"
            ));
            recording.end = None;
        }
    }
    replayed.trace = TraceReport {
        directory: Some(dir.display().to_string()),
        events,
        bytes: written.map_or_else(|| stream_bytes(dir), |summary| summary.bytes),
        unrecorded: written.map_or(0, |summary| summary.unrecorded),
    };
    replayed.recording = recording;
    (replayed.begin, replayed.end) = (begin, end);
    Ok(replayed)
}

/// The size of the streams' files, where the recorder could not write it down.
fn stream_bytes(dir: &Path) -> u64 {
    // Either folder may be named, as for the reader.
    let folder = if dir.join("trace").is_dir() {
        dir.join("trace")
    } else {
        dir.to_path_buf()
    };
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with("stream-"))
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum()
}

impl Replayed {
    fn report(&self) -> Report {
        let found = Found {
            scheduling: &self.scheduling,
            statistics: &self.statistics,
            losses: &self.losses,
            meter: self.meter.as_ref(),
            trace: self.trace.clone(),
        };
        let mut report = report(&self.recording, &found);
        report.add_updates(self.updates.clone());
        report.add_guarantee(self.guarantee.clone());
        report.reactions.clone_from(&self.reactions);
        if self.recording.end.is_none() {
            report.duration_ns = self.end.since(self.begin).as_ns();
        }
        report
            .histograms
            .splice(0..0, self.own_histograms.iter().cloned());
        report
    }

    fn picture(&self) -> serde_json::Value {
        let parts = picture::Parts {
            scheduling: &self.scheduling,
            columns: &self.columns,
            gaps: &self.gaps,
            begin: self.begin,
            end: self.end,
        };
        picture::timeline(&parts)
    }
}

/// Keeps every gap, for the picture.
struct Gaps(Vec<(Arc<StreamDescriptor>, Gap)>);

impl Update for Gaps {
    fn element(&mut self, _: &overhear_event::ElementView<'_>) {}

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.push((Arc::new(stream.clone()), *gap));
    }

    fn advance(&mut self, _: Timestamp) {}
}
