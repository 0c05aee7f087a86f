// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports from a recording.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use overhear_event::{Timestamp, Update};
use overhear_metrics::compensation::{Compensation, Delays};
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{Fanout, Losses};
use overhear_trace::{ReadError, ReplaySummary, TraceReader};
use serde::de::DeserializeOwned;

use crate::calibrate::Calibration;
use crate::check::{CheckReport, CHECK};
use crate::compensation::{self, CompensationReport};
use crate::exit::{Failure, USAGE};
use crate::guaranteed::{GuaranteeReport, GUARANTEE};
use crate::intrusion::{Meter, CALIBRATION};
use crate::metrics::{MetricsReport, METRICS};
use crate::other_threads;
use crate::output;
use crate::page::{self, Run};
use crate::picture::{Picture, Piece, Remedy, Room};
use crate::reactions::{ReactionsReport, REACTIONS};
use crate::recording::{self, report, Found, Recording};
use crate::report::{HistogramReport, Report, TraceReport};
use crate::updates::{UpdateReport, Updates, UPDATES};

pub use crate::picture::TimeRange;

/// The page beside a recording.
const PAGE: &str = "report.html";

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
/// [`Failure`] if this is no recording.
pub fn read_report(dir: &Path) -> Result<Report, Failure> {
    evaluate(dir, Evaluation::default())
}

/// What a page shows of a recording.
#[derive(Debug)]
pub struct PageRequest<'a> {
    /// The recording.
    pub dir: &'a Path,
    /// Its report.
    pub report: &'a Report,
    /// What sensors cost, instead of what the recording brings along.
    pub calibration: Option<Calibration>,
    /// The part of the run that the time-line shows.
    pub range: TimeRange,
}

impl<'a> PageRequest<'a> {
    /// All of the recording in `dir`.
    #[must_use]
    pub fn of(dir: &'a Path, report: &'a Report) -> Self {
        Self {
            dir,
            report,
            calibration: None,
            range: TimeRange::default(),
        }
    }
}

/// A page that can be written: the picture is in memory, within its bounds.
#[derive(Debug)]
pub struct Page<'a> {
    runs: Vec<Pictured<'a>>,
}

/// A recording's picture and its report.
#[derive(Debug)]
struct Pictured<'a> {
    request: &'a PageRequest<'a>,
    picture: Picture,
    begin: Timestamp,
}

impl<'a> Page<'a> {
    /// The page of one recording, or of several beside each other, on one scale: two have room.
    ///
    /// # Errors
    /// [`Failure`] if one of them is no recording.
    pub fn of(requests: &'a [PageRequest<'a>]) -> Result<Self, Failure> {
        let room = match requests.len() {
            1 => Room::PAGE,
            _ => Room::PAGE.half(),
        };
        let runs = requests.iter().map(|request| pictured(request, room));
        Ok(Self {
            runs: runs.collect::<Result<_, _>>()?,
        })
    }

    /// Sentences about what the page leaves out of the recordings, for want of room.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        let pieces = self.runs.iter().map(Pictured::timeline);
        pieces.flat_map(|piece| piece.left_out()).collect()
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let labels: Vec<String> = self.runs.iter().map(|run| run.label()).collect();
        let timelines: Vec<Piece<'_>> = self.runs.iter().map(Pictured::timeline).collect();
        let runs = self.runs.iter().zip(&timelines).zip(&labels);
        let runs: Vec<_> = runs
            .map(|((run, timeline), label)| Run {
                report: run.request.report,
                timeline,
                program: run
                    .request
                    .report
                    .command
                    .first()
                    .map_or("", String::as_str),
                // One alone needs no name.
                label: if labels.len() > 1 { label } else { "" },
            })
            .collect();
        match runs.as_slice() {
            [] => Ok(()),
            [run, rest @ ..] => page::write(out, run, rest.first()),
        }
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be written.
    pub fn write_to(&self, file: &Path) -> Result<(), Failure> {
        output::write(file, |out| self.write(out))
    }

    /// Writes it beside the recording in `dir`; returns its file.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be written, the folder is another user's, or a link is in the way.
    pub fn write_beside(&self, dir: &Path) -> Result<PathBuf, Failure> {
        output::write_inside(dir, PAGE, |out| self.write(out))?;
        Ok(dir.join(PAGE))
    }
}

impl Pictured<'_> {
    fn label(&self) -> String {
        self.request.dir.display().to_string()
    }

    fn timeline(&self) -> Piece<'_> {
        let piece = self.picture.whole(self.begin);
        piece.with_remedy(Remedy::Recording(self.label()))
    }
}

/// Replays a recording into a picture.
fn pictured<'a>(request: &'a PageRequest<'a>, room: Room) -> Result<Pictured<'a>, Failure> {
    let usage = |error: overhear_trace::ReadError| Failure::new(USAGE, error.to_string());
    let reader = TraceReader::open(request.dir).map_err(usage)?;
    let recording = Recording::read(&reader).map_err(usage)?.unwrap_or_default();
    let times = times(&reader, &recording);
    let calibration = match &request.calibration {
        None => kept(&reader, CALIBRATION)?,
        Some(named) => Some(named.clone()),
    };
    let costs = calibration.map(|known: Calibration| {
        let known = known.heard_by(recording.kernel_active());
        Meter::new(known).costs()
    });
    let range = request.range.of_run(times.begin);
    let mut picture = Picture::new(room, costs.map(Delays::new), range);
    if recording.hears_wakeups() {
        picture.expect_wakeups();
    }
    reader.streams().for_each(|stream| picture.announce(stream));
    let count = |id| reader.count(id).map_or(0, |(elements, _)| elements);
    let streams = reader.streams();
    picture.expect(streams.map(|stream| (stream, count(stream.id))));
    let _ = reader.replay(&mut [&mut picture]);
    picture.end(times.ended);
    picture.advance(times.end);
    Ok(Pictured {
        request,
        picture,
        begin: times.begin,
    })
}

/// When what is recorded begins and ends.
struct Times {
    begin: Timestamp,
    end: Timestamp,
    /// When the program ended; `end` if that is not known.
    ended: Timestamp,
}

fn times(reader: &TraceReader, recording: &Recording) -> Times {
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
    let run = reader.and_then(|reader| Recording::read(&reader).ok().flatten());
    run.unwrap_or_default()
}

/// Adds histograms to the recording in `dir`, for every report made from it.
pub(crate) fn attach_histograms(dir: &Path, histograms: &[HistogramReport]) -> Result<(), Failure> {
    let json = serde_json::to_vec(histograms).unwrap_or_default();
    let own = dir.join("trace").join("overhear");
    output::write_inside(&own, "histograms.json", |out| out.write_all(&json))
}

/// What was found live and kept, if it was.
pub(crate) fn kept<T: DeserializeOwned>(
    reader: &TraceReader,
    name: &str,
) -> Result<Option<T>, Failure> {
    let document = reader.document_as(name);
    document.map_err(|error| Failure::new(USAGE, error.to_string()))
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
/// # Errors
/// [`Failure`] if this is no recording, or its times are to be compensated and there is no calibration.
pub fn evaluate(dir: &Path, evaluation: Evaluation) -> Result<Report, Failure> {
    let usage = |error: overhear_trace::ReadError| Failure::new(USAGE, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let mut recording = Recording::read(&reader).map_err(usage)?.unwrap_or_default();
    let own: Vec<HistogramReport> = lenient(&reader, "histograms").map_err(usage)?;
    let check: Option<CheckReport> = kept(&reader, CHECK)?;
    let metrics: Option<MetricsReport> = kept(&reader, METRICS)?;
    let others = other_threads::kept(&reader)?;
    let guarantee: Option<GuaranteeReport> = kept(&reader, GUARANTEE)?;
    let reactions: Option<ReactionsReport> = kept(&reader, REACTIONS)?;
    let calibration = match evaluation.calibration {
        None => kept(&reader, CALIBRATION)?,
        named => named,
    };
    let mut meter =
        calibration.map(|known: Calibration| Meter::new(known.heard_by(recording.kernel_active())));
    let costs = match (evaluation.compensate, &meter) {
        (false, _) => None,
        (true, None) => return Err(compensation::no_calibration()),
        (true, Some(meter)) => Some(meter.costs()),
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
    let mut all: Vec<&mut dyn Update> = vec![&mut losses];
    all.extend(meter.as_mut().map(|meter| meter as &mut dyn Update));
    let (replayed, delays) = match costs {
        None => {
            let accounts: [&mut dyn Update; 3] = [&mut scheduling, &mut statistics, wanted.set()];
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
    let found = Found {
        scheduling: &scheduling,
        statistics: &statistics,
        losses: &losses,
        meter: meter.as_ref(),
        compensation: delays
            .as_ref()
            .map(|delays| CompensationReport::of(delays, &recording)),
        trace,
    };
    let mut report = report(&recording, &found);
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

/// Adds what is damaged or missing of a recording that was replayed to its notes, and forgets its end where that
/// is not known then.
fn note_damage(reader: &TraceReader, replayed: &ReplaySummary, recording: &mut Recording) {
    if recording.end.is_none() {
        let sentence =
            "the recorder did not finish: what happened after the last element is not known";
        recording.notes.push(sentence.to_string());
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
    if let Some(sentence) = recording::shrunk(reader, replayed) {
        recording.notes.push(sentence);
        recording.end = None;
    }
}
