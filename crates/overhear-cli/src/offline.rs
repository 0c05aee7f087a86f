// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports from a recording.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};
use overhear_metrics::compensation::{Compensation, Delays};
use overhear_metrics::{Scheduling, SensorStatistics, Timeline};
use overhear_monitor::{Fanout, Losses};
use overhear_trace::{repair, TraceReader};
use serde::de::DeserializeOwned;

use crate::calibrate::Calibration;
use crate::check::{CheckReport, CHECK};
use crate::compensation::{self, CompensationReport};
use crate::exit::{Failure, INCONCLUSIVE, UNAVAILABLE, USAGE};
use crate::guaranteed::{GuaranteeReport, GUARANTEE};
use crate::intrusion::{Meter, CALIBRATION};
use crate::metrics::{MetricsReport, METRICS};
use crate::other_threads;
use crate::page;
use crate::picture::{self, PicturedGap, SensorColumns};
use crate::reactions::{ReactionsReport, REACTIONS};
use crate::recording::{self, report, Found, Recording};
use crate::report::{HistogramReport, OtherThread, Report, TraceReport};
use crate::updates::{UpdateReport, Updates, UPDATES};

/// Everything that a recording says.
struct Replayed {
    recording: Recording,
    scheduling: Scheduling<Timeline>,
    statistics: SensorStatistics,
    losses: Losses,
    columns: SensorColumns,
    gaps: Vec<PicturedGap>,
    /// Where costs are known.
    delays: Option<Delays>,
    compensated: Option<Compensated>,
    trace: TraceReport,
    updates: Vec<UpdateReport>,
    meter: Option<Meter>,
    others: Vec<OtherThread>,
    check: Option<CheckReport>,
    metrics: Option<MetricsReport>,
    guarantee: Option<GuaranteeReport>,
    reactions: Option<ReactionsReport>,
    own_histograms: Vec<HistogramReport>,
    begin: Timestamp,
    end: Timestamp,
}

/// What is found in compensated time.
struct Compensated {
    scheduling: Scheduling,
    statistics: SensorStatistics,
    delays: Delays,
}

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
    Ok(replay(dir, Evaluation::default())?.report())
}

/// The same, evaluated in this way.
///
/// # Errors
/// [`Failure`] if this is no recording, or its times are to be compensated and there is no calibration.
pub fn evaluate(dir: &Path, evaluation: Evaluation) -> Result<Report, Failure> {
    Ok(replay(dir, evaluation)?.report())
}

/// Writes the page of the recording in `dir`, by this calibration, if there is one, instead of the one that
/// was recorded. A report that is known already is not computed again.
///
/// # Errors
/// [`Failure`] if this is no recording or the page cannot be written.
pub fn write_page(
    dir: &Path,
    page: &Path,
    known: Option<&Report>,
    calibration: Option<Calibration>,
) -> Result<(), Failure> {
    write_html(page, &self::page(dir, known, calibration)?)
}

/// The page of the recording in `dir`, as [`write_page`] writes it.
///
/// # Errors
/// [`Failure`] if this is no recording.
pub fn page(
    dir: &Path,
    known: Option<&Report>,
    calibration: Option<Calibration>,
) -> Result<String, Failure> {
    let evaluation = Evaluation {
        calibration,
        ..Evaluation::default()
    };
    let replayed = replay(dir, evaluation)?;
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
        let replayed = replay(dir, Evaluation::default())?;
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

fn replay(dir: &Path, evaluation: Evaluation) -> Result<Replayed, Failure> {
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
        delays: None,
        compensated: None,
        trace: TraceReport::default(),
        updates: Vec::new(),
        meter: match evaluation.calibration {
            None => kept(&reader, CALIBRATION)?,
            named => named,
        }
        .map(|known: Calibration| Meter::new(known.heard_by(recording.kernel_active()))),
        others: other_threads::kept(&reader)?,
        check: kept(&reader, CHECK)?,
        metrics: kept(&reader, METRICS)?,
        guarantee: kept(&reader, GUARANTEE)?,
        reactions: kept(&reader, REACTIONS)?,
        own_histograms: serde_json::from_value(own).unwrap_or_default(),
        begin: Timestamp::ZERO,
        end: Timestamp::ZERO,
        recording: Recording::default(),
    };
    if replayed.meter.is_some() {
        let timeline = Timeline::default().compensated();
        replayed.scheduling = Scheduling::new(timeline);
    }
    if recording.hears_wakeups() {
        replayed.scheduling.expect_wakeups();
    }
    for stream in reader.streams() {
        replayed.statistics.announce(stream);
        replayed.columns.announce(stream);
    }
    let costs = replayed.meter.as_ref().map(Meter::costs);
    let mut wanted = evaluation.updates;
    let mut compensated = match (evaluation.compensate, &replayed.meter) {
        (false, _) => None,
        (true, None) => return Err(compensation::no_calibration()),
        (true, Some(_)) => Some((Scheduling::new(()), SensorStatistics::default())),
    };
    if let Some((scheduling, statistics)) = &mut compensated {
        if recording.hears_wakeups() {
            scheduling.expect_wakeups();
        }
        for stream in reader.streams() {
            statistics.announce(stream);
        }
    }
    let mut pictured = Pictured {
        delays: costs.clone().map(Delays::new),
        scheduling: &mut replayed.scheduling,
        columns: &mut replayed.columns,
        gaps: &mut replayed.gaps,
    };
    let mut all: Vec<&mut dyn Update> = vec![
        &mut pictured,
        &mut replayed.statistics,
        &mut replayed.losses,
    ];
    let meter = replayed.meter.as_mut();
    all.extend(meter.map(|meter| meter as &mut dyn Update));
    let summary = match &mut compensated {
        None => {
            all.push(wanted.set());
            reader.replay(&mut all)
        }
        Some((scheduling, statistics)) => {
            let moved: Vec<&mut dyn Update> = vec![scheduling, statistics, wanted.set()];
            let mut compensation = Compensation::new(costs.unwrap_or_default(), Fanout(moved));
            all.push(&mut compensation);
            let summary = reader.replay(&mut all);
            compensation.finish();
            summary
        }
    };
    let delays = pictured.delays.take();
    replayed.updates = match wanted.finish() {
        none if none.is_empty() => {
            let live = reader.document(UPDATES).map_err(usage)?;
            serde_json::from_value(live.unwrap_or_default()).unwrap_or_default()
        }
        found => found,
    };
    let begin = recording::start_of(&reader, Some(&recording)).unwrap_or_default();
    let (_, mut end) = reader.times().unwrap_or_default();
    if let Some(ending) = recording.end {
        end = end.max(Timestamp::from_monotonic_ns(ending.end_ns));
        replayed.finish(
            Timestamp::from_monotonic_ns(ending.end_ns),
            delays,
            compensated,
        );
    } else {
        replayed.finish(end, delays, compensated);
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
    /// Ends what goes on at `end`.
    fn finish(
        &mut self,
        end: Timestamp,
        delays: Option<Delays>,
        compensated: Option<(Scheduling, SensorStatistics)>,
    ) {
        self.scheduling.finish(end);
        if let Some(delays) = &delays {
            let moved_end = compensation::end(end, Some(delays));
            let moved = |tid: u32, at: Timestamp| match at == end {
                true => moved_end,
                false => delays.moved(tid, at),
            };
            self.scheduling.observer_mut().settle(moved);
        }
        if let (Some((mut scheduling, statistics)), Some(delays)) = (compensated, &delays) {
            scheduling.finish(compensation::end(end, Some(delays)));
            self.compensated = Some(Compensated {
                scheduling,
                statistics,
                delays: delays.clone(),
            });
        }
        self.delays = delays;
    }

    fn report(&self) -> Report {
        let (losses, meter, trace) = (&self.losses, self.meter.as_ref(), self.trace.clone());
        let mut report = match &self.compensated {
            None => report(
                &self.recording,
                &Found {
                    scheduling: &self.scheduling,
                    statistics: &self.statistics,
                    losses,
                    meter,
                    compensation: None,
                    trace,
                },
            ),
            Some(compensated) => report(
                &self.recording,
                &Found {
                    scheduling: &compensated.scheduling,
                    statistics: &compensated.statistics,
                    losses,
                    meter,
                    compensation: Some(CompensationReport::of(
                        &compensated.delays,
                        &self.recording,
                    )),
                    trace,
                },
            ),
        };
        report.check.clone_from(&self.check);
        report.metrics.clone_from(&self.metrics);
        report.add_updates(self.updates.clone());
        report.add_guarantee(self.guarantee.clone());
        report.reactions.clone_from(&self.reactions);
        report.add_other_threads(self.others.clone());
        if self.recording.end.is_none() {
            let removed = report.compensation.map_or(0, |found| found.removed_ns);
            let duration = self.end.since(self.begin).as_ns();
            report.duration_ns = duration.saturating_sub(removed);
        }
        report
            .histograms
            .splice(0..0, self.own_histograms.iter().cloned());
        report.conclude();
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
        let mut timeline = picture::timeline(&parts);
        if let (Some(delays), Some(timeline)) = (&self.delays, timeline.as_object_mut()) {
            let end = compensation::end(self.end, Some(delays));
            timeline.insert("moved_end_ns".to_string(), end.as_monotonic_ns().into());
        }
        timeline
    }
}

/// Keeps what the picture shows, where costs are known both as recorded and compensated.
struct Pictured<'a> {
    delays: Option<Delays>,
    scheduling: &'a mut Scheduling<Timeline>,
    columns: &'a mut SensorColumns,
    gaps: &'a mut Vec<PicturedGap>,
}

impl Pictured<'_> {
    fn settle(&mut self) {
        if let Some(delays) = &self.delays {
            let timeline = self.scheduling.observer_mut();
            timeline.settle(|tid, at| delays.moved(tid, at));
        }
    }
}

impl Update for Pictured<'_> {
    fn element(&mut self, element: &ElementView<'_>) {
        let moved = self.delays.as_mut().map(|delays| delays.element(element));
        self.scheduling.element(element);
        self.settle();
        self.columns.push(element, moved.map(|moved| moved.time));
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let moved = self.delays.as_mut().map(|delays| delays.gap(stream, gap));
        self.scheduling.gap(stream, gap);
        self.settle();
        self.gaps.push(PicturedGap {
            stream: Arc::new(stream.clone()),
            gap: *gap,
            moved,
        });
    }

    fn advance(&mut self, _: Timestamp) {}
}
