// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a recording says about itself, and the report that follows from it.
//!
//! The document `run` is written before the program starts, so that a trace whose recorder was
//! killed still says what it is a trace of, and again at the end.

use crate::error::{ErrorKind, SessionError};
use serde::de::DeserializeOwned;
use std::ffi::OsString;

use overhear_event::kernel::SCHED_WAKE;
use overhear_event::Timestamp;
use overhear_stream::Segment;
use overhear_trace::{ReadError, ReplaySummary, TornTail, TraceReader};
use serde::{Deserialize, Serialize};

use crate::conclusion::Exit;
use crate::quantities::SourceReport;

/// The document `run`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Recording {
    pub(crate) overhear_version: String,
    pub(crate) command: Vec<String>,
    pub(crate) sources: Vec<SourceReport>,
    /// `CLOCK_MONOTONIC` when the program was released.
    pub start_ns: u64,
    /// Null until the program has ended.
    pub end: Option<Ending>,
    /// Messages about what else should be known.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Number of sensors that the directory refused or deferred.
    #[serde(default, alias = "unheard")]
    pub not_connected: u64,
}

/// Whether the recorder wrote all that it had. Not all recordings are of a `run`; the summary is
/// the last that any recorder writes.
pub fn is_finished(reader: &TraceReader, run: Option<&Recording>) -> bool {
    run.is_none_or(|run| run.end.is_some()) && reader.summary().is_some()
}

/// Messages about what keeps a recording that was `replayed` from being whole, besides its gaps.
pub fn damage(
    reader: &TraceReader,
    run: Option<&Recording>,
    replayed: &ReplaySummary,
) -> Vec<String> {
    let mut damage = Vec::new();
    if !is_finished(reader, run) {
        damage.push("the recorder did not finish".to_owned());
    }
    if let Some(summary) = reader.summary().filter(|summary| summary.unrecorded > 0) {
        let unrecorded = summary.unrecorded;
        damage.push(format!("{unrecorded} elements could not be recorded"));
    }
    damage.extend(lost_tails(reader).map(ToString::to_string));
    damage.extend(shrunk(reader, replayed));
    damage.extend(corrupt(reader, replayed));
    damage
}

/// Messages about the damaged parts of a recording that was `replayed`.
pub fn corrupt<'a>(
    reader: &'a TraceReader,
    replayed: &'a ReplaySummary,
) -> impl Iterator<Item = String> + 'a {
    let corrupt = reader.corrupt().iter().chain(&replayed.corrupt);
    corrupt.map(ToString::to_string)
}

/// Torn tails that held something. They held nothing if all that the recorder wrote can be read.
pub fn lost_tails(reader: &TraceReader) -> impl Iterator<Item = &TornTail> {
    let is_whole = reader.summary().is_some_and(|summary| {
        (summary.events, summary.discarded) == (reader.events(), reader.discarded())
    });
    reader.torn().iter().filter(move |_| !is_whole)
}

/// A message, if less could be `replayed` than the recorder wrote.
pub fn shrunk(reader: &TraceReader, replayed: &ReplaySummary) -> Option<String> {
    let summary = reader.summary()?;
    let message = |written: u64, read: u64, what: &str| {
        format!("the recorder wrote {written} {what}, {read} can be read: the recording was damaged later")
    };
    if summary.events != replayed.events {
        return Some(message(summary.events, replayed.events, "elements"));
    }
    let (written, read) = (summary.discarded, replayed.discarded);
    (written != read).then(|| message(written, read, "missed elements"))
}

/// The start of a recording, from which messages and the page count times: the release of the
/// program, or what is recorded of before. `None` where there is neither.
pub fn start_of(reader: &TraceReader, run: Option<&Recording>) -> Option<Timestamp> {
    let first = reader.times().map(|(first, _)| first);
    let start = run.map_or(0, |run| run.start_ns);
    let start = (start > 0).then(|| Timestamp::from_monotonic_ns(start));
    first.into_iter().chain(start).min()
}

/// How and when the program ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ending {
    /// When, by CLOCK_MONOTONIC, in nanoseconds.
    pub end_ns: u64,
    /// How the program ended.
    pub exit: Exit,
}

impl Recording {
    /// Of a recording that is one of a run.
    pub fn read(reader: &TraceReader) -> Result<Option<Self>, ReadError> {
        let run: Option<Self> = match reader.document_as("run") {
            Err(ReadError::OtherContent { .. }) => None,
            read => read?,
        };
        Ok(run.map(|run| run.bounded(reader)))
    }

    /// Without times that the recording cannot have.
    pub fn bounded(mut self, reader: &TraceReader) -> Self {
        let latest = reader.latest().as_monotonic_ns();
        let is_later = |ns: u64| ns > latest && reader.times().is_some();
        let has_ended_later = self.end.is_some_and(|end| is_later(end.end_ns));
        if is_later(self.start_ns) || has_ended_later {
            let message = "run.json is damaged: it states a start or an end of the program more than a day after the end of the recording; the end is taken as not known";
            self.notes.push(message.to_owned());
            self.end = None;
            self.start_ns = if is_later(self.start_ns) {
                0
            } else {
                self.start_ns
            };
        }
        self
    }

    /// A recording of this command that begins now.
    pub fn begin(command: &[OsString], sources: Vec<SourceReport>, start: Timestamp) -> Self {
        Self {
            overhear_version: env!("CARGO_PKG_VERSION").to_string(),
            command: command
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            sources,
            start_ns: start.as_monotonic_ns(),
            end: None,
            notes: Vec::new(),
            not_connected: 0,
        }
    }

    /// How the kernel was heard: `bpf`, `perf` or `none`.
    pub fn kernel_active(&self) -> &str {
        self.kernel().map_or("none", |source| &source.active)
    }

    fn kernel(&self) -> Option<&SourceReport> {
        self.sources.iter().find(|source| source.name == "kernel")
    }

    /// Whether wake-ups would have been heard, had there been any.
    pub fn hears_wakeups(&self) -> bool {
        match self.kernel() {
            // Older recordings do not say what was heard. BPF programs heard them then.
            Some(kernel) if kernel.sensors.is_empty() => kernel.active == "bpf",
            Some(kernel) => kernel.sensors.iter().any(|sensor| sensor == SCHED_WAKE),
            None => false,
        }
    }

    /// As the document is written.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The document `clock`: the segments that converted the stamps of the sensors, so that what was
/// computed live can be computed again.
pub fn clock_document(segments: &[Segment]) -> serde_json::Value {
    let segments: Vec<serde_json::Value> = segments
        .iter()
        .map(|segment| {
            serde_json::json!({
                "from_ticks": segment.from.as_raw(),
                "ns": segment.time.as_monotonic_ns(),
                "mult": segment.mult,
                "shift": segment.shift,
                "error_ns": segment.error_ns,
                "epoch": segment.epoch,
            })
        })
        .collect();
    serde_json::json!({ "segments": segments })
}

/// What was found live and kept, if it was.
pub fn kept<T: DeserializeOwned>(
    reader: &TraceReader,
    name: &str,
) -> Result<Option<T>, SessionError> {
    let document = reader.document_as(name);
    document.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
}
