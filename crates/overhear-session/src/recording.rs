// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a recording, and its damage.
//!
//! The document `run` is written before the program starts, so that the recording of a killed
//! recorder has a description, and again at the end.

use std::ffi::OsString;

use overhear_event::kernel::SCHED_WAKE;
use overhear_event::Timestamp;
use overhear_stream::Segment;
use overhear_trace::{ReadError, ReplaySummary, TornTail, TraceReader};
use serde::{Deserialize, Serialize};

use crate::conclusion::Exit;
use crate::documents;
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
    /// Messages about errors and limits of the observation.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Number of sensors that the directory refused or deferred.
    #[serde(default, alias = "unheard")]
    pub not_connected: u64,
}

/// Whether the recorder wrote all of its data. Not all recordings have a document `run`; each
/// recorder writes the summary last.
pub fn is_finished(reader: &TraceReader, run: Option<&Recording>) -> bool {
    run.is_none_or(|run| run.end.is_some()) && reader.summary().is_some()
}

/// Messages about the missing parts of a recording that was `replayed`, except its gaps.
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
    damage.extend(missing_elements(reader, replayed));
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

/// Torn tails with data. They have none if everything that the recorder wrote can be read.
pub fn lost_tails(reader: &TraceReader) -> impl Iterator<Item = &TornTail> {
    let is_complete = reader.summary().is_some_and(|summary| {
        (summary.events, summary.discarded) == (reader.events(), reader.discarded())
    });
    reader.torn().iter().filter(move |_| !is_complete)
}

/// A message if fewer elements could be `replayed` than the recorder wrote.
pub fn missing_elements(reader: &TraceReader, replayed: &ReplaySummary) -> Option<String> {
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

/// The begin of a recording, where the page begins: the release of the program, or the first
/// element if that is earlier. `None` without either.
pub fn start_of(reader: &TraceReader, run: Option<&Recording>) -> Option<Timestamp> {
    let first = reader.times().map(|(first, _)| first);
    first.into_iter().chain(release_of(run)).min()
}

/// The origin of times in messages, as in those of the run itself: the release of the program, also
/// if an element is earlier; without it, the first element. `None` without either.
pub fn origin_of(reader: &TraceReader, run: Option<&Recording>) -> Option<Timestamp> {
    release_of(run).or_else(|| Some(reader.times()?.0))
}

fn release_of(run: Option<&Recording>) -> Option<Timestamp> {
    let start = run.map(|run| run.start_ns).filter(|start| *start > 0);
    start.map(Timestamp::from_monotonic_ns)
}

/// How and when the program ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ending {
    /// Time of the end by `CLOCK_MONOTONIC`, in nanoseconds.
    pub end_ns: u64,
    /// How it ended.
    pub exit: Exit,
}

impl Recording {
    /// Reads the description; `None` if the recording has none.
    ///
    /// # Errors
    /// [`ReadError`] if it is damaged.
    pub fn read(reader: &TraceReader) -> Result<Option<Self>, ReadError> {
        let run: Option<Self> = match reader.document_as(documents::RUN) {
            Err(ReadError::OtherContent { .. }) => None,
            read => read?,
        };
        Ok(run.map(|run| run.bounded(reader)))
    }

    /// Replaces times that the recording cannot have, and adds a note about them.
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

    /// The description of a recording that begins at `start`.
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

    /// The source of kernel events: `bpf`, `perf` or `none`.
    pub fn kernel_backend(&self) -> &str {
        self.kernel().map_or("none", |source| &source.active)
    }

    fn kernel(&self) -> Option<&SourceReport> {
        self.sources.iter().find(|source| source.name == "kernel")
    }

    /// Whether wake-ups were recorded.
    pub fn records_wakeups(&self) -> bool {
        match self.kernel() {
            // Older recordings have no list of sensors. BPF programs recorded wake-ups then.
            Some(kernel) if kernel.sensors.is_empty() => kernel.active == "bpf",
            Some(kernel) => kernel.sensors.iter().any(|sensor| sensor == SCHED_WAKE),
            None => false,
        }
    }

    /// The document as it is written.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The document `clock`: the segments that converted the stamps of the sensors. Verdicts on a
/// recording need their errors.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{ElementView, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema};
    use overhear_trace::{TraceIdentity, TraceReader, TraceWriter};

    use super::{origin_of, start_of, Recording};

    /// A program is held until it is released, and the kernel may observe it before.
    #[test]
    fn messages_count_from_the_release_also_if_an_element_is_earlier() {
        let stream = StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::program(7, "held"),
            "early".to_owned(),
            Arc::new(TypeSchema::builder("early").build().unwrap()),
        );
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
        for (sequence, ns) in [(0, 4_000), (1, 9_000)] {
            let element = ElementView {
                stream: &stream,
                sequence,
                time: Timestamp::from_monotonic_ns(ns),
                payload: &[],
            };
            writer.element(&element).unwrap();
        }
        writer.finish().unwrap();
        let reader = TraceReader::open(folder.path()).unwrap();
        let at = |ns| Some(Timestamp::from_monotonic_ns(ns));
        let run = |start_ns| Recording {
            start_ns,
            ..Recording::default()
        };
        for (start_ns, start, origin) in [(5_000, 4_000, 5_000), (3_000, 3_000, 3_000)] {
            assert_eq!(start_of(&reader, Some(&run(start_ns))), at(start));
            assert_eq!(origin_of(&reader, Some(&run(start_ns))), at(origin));
        }
        // Without a release, as in recordings of other tracers.
        assert_eq!(origin_of(&reader, Some(&run(0))), at(4_000));
        assert_eq!(origin_of(&reader, None), at(4_000));
    }
}
