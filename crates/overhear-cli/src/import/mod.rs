// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import`: a trace of another tracer (LTTng's kernel and UST traces, perf's, whatever
//! babeltrace2 reads) as a recording of ours, so that metrics and constraints run on it.
//!
//! The program `babeltrace2` reads the trace and prints it, and its text is read here. Its library would
//! save the printing, but drives its readers by callbacks from C through a graph of components: a good
//! deal of unsafe code in a program that has none. The price is speed: some 0.3 million events per
//! second, once. The trace is read twice: first to learn the fields of every event, then to write.

mod map;
mod text;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use overhear_event::{ElementView, Gap, GapCause, StreamDescriptor, Timestamp, Update};
use overhear_trace::{TraceIdentity, TraceWriter};

use crate::exit::{Exit, Failure, COMPLETE, INCONCLUSIVE, UNAVAILABLE, USAGE};
use crate::recording::{Ending, Recording};
use crate::report::SourceReport;
use map::{Mapping, Shapes};
use text::Event;

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Events of the foreign trace.
    pub events: u64,
    /// Elements that they became.
    pub elements: u64,
    /// Streams.
    pub streams: usize,
    /// Events that the foreign tracer had discarded.
    pub discarded: u64,
    /// Lines and events that could not be taken over, as sentences.
    pub notes: Vec<String>,
}

/// Events that a tracer has discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    from: Timestamp,
    to: Timestamp,
    missed: u64,
}

/// Imports the trace in `foreign` as a recording in `out`.
///
/// # Errors
/// [`Failure`] if babeltrace2 is not there or cannot read the trace, or if the recording cannot be
/// written.
pub fn import(foreign: &Path, out: &Path) -> Result<Imported, Failure> {
    let mut shapes = Shapes::default();
    let (mut events, mut first, mut last) = (0_u64, None, Timestamp::ZERO);
    let mut strange = 0_u64;
    let losses = read(foreign, |line| match Event::parse(line) {
        Some(event) => {
            events += 1;
            first.get_or_insert(event.time);
            last = last.max(event.time);
            shapes.learn(&event);
            Ok(())
        }
        None => {
            strange += 1;
            Ok(())
        }
    })?;
    let Some(first) = first else {
        return Err(Failure::new(
            USAGE,
            format!("{} has no events", foreign.display()),
        ));
    };
    let mut import = Import {
        writer: TraceWriter::create(out, TraceIdentity::default())
            .map_err(|error| Failure::new(USAGE, error.to_string()))?,
        mapping: Mapping::new(shapes),
        written: Vec::new(),
        losses: losses.clone(),
        elements: 0,
    };
    let mut refused: Vec<String> = Vec::new();
    read(foreign, |line| {
        let Some(event) = Event::parse(line) else {
            return Ok(());
        };
        import.lose(event.time)?;
        if let Err(sentence) = import.take(&event)? {
            if refused.len() < 8 && !refused.contains(&sentence) {
                refused.push(sentence);
            }
        }
        Ok(())
    })?;
    import.lose(Timestamp::MAX)?;
    let mut notes = refused;
    if strange > 0 {
        notes.push(format!(
            "{strange} lines of babeltrace2 are no events that can be read"
        ));
    }
    let discarded = losses.iter().map(|loss| loss.missed).sum();
    let imported = Imported {
        events,
        elements: import.elements,
        streams: import.mapping.streams.len(),
        discarded,
        notes,
    };
    import.finish(foreign, first, last, &imported)?;
    Ok(imported)
}

struct Import {
    writer: TraceWriter,
    mapping: Mapping,
    // Per stream, the next sequence.
    written: Vec<u64>,
    losses: Vec<Loss>,
    elements: u64,
}

impl Import {
    fn take(&mut self, event: &Event) -> Result<Result<(), String>, Failure> {
        let mapped = match self.mapping.map(event) {
            Ok(mapped) => mapped,
            Err(error) => return Ok(Err(format!("{}: {error}", event.name))),
        };
        for (place, payload) in mapped {
            while self.written.len() < self.mapping.streams.len() {
                let stream = &self.mapping.streams[self.written.len()];
                self.writer.open(stream).map_err(unwritten)?;
                self.written.push(0);
            }
            let stream: Arc<StreamDescriptor> = Arc::clone(&self.mapping.streams[place]);
            let element = ElementView {
                stream: &stream,
                sequence: self.written[place],
                time: event.time,
                payload: &payload,
            };
            Update::element(&mut self.writer, &element);
            self.written[place] += 1;
            self.elements += 1;
        }
        Ok(Ok(()))
    }

    /// Writes the losses that end before this time: a gap in every stream, because what was discarded
    /// is not known.
    fn lose(&mut self, now: Timestamp) -> Result<(), Failure> {
        while let Some(loss) = self.losses.first().copied().filter(|loss| loss.to <= now) {
            self.losses.remove(0);
            for (stream, written) in self.mapping.streams.iter().zip(&mut self.written) {
                let gap = Gap {
                    stream: stream.id,
                    first: *written,
                    missed: loss.missed,
                    from: loss.from,
                    to: loss.to,
                    cause: GapCause::Kernel,
                };
                Update::gap(&mut self.writer, stream, &gap);
                *written += loss.missed;
            }
        }
        Ok(())
    }

    /// Says what the recording is, so that reports and verdicts know its end.
    fn finish(
        mut self,
        foreign: &Path,
        first: Timestamp,
        last: Timestamp,
        imported: &Imported,
    ) -> Result<(), Failure> {
        let source = SourceReport {
            name: "import".to_owned(),
            active: "babeltrace2".to_owned(),
            sentence: format!("imported from {}", foreign.display()),
        };
        let command = ["import".into(), foreign.as_os_str().to_os_string()];
        let mut recording = Recording::begin(&command, vec![source], first);
        recording.notes.clone_from(&imported.notes);
        recording.end = Some(Ending {
            end_ns: last.as_monotonic_ns(),
            exit: Exit::Code(0),
        });
        self.writer.finish().map_err(unwritten)?;
        self.writer
            .attach_document("run", &recording.to_json())
            .map_err(unwritten)
    }
}

fn unwritten(error: impl std::error::Error) -> Failure {
    Failure::new(INCONCLUSIVE, error.to_string())
}

/// Hands every line that babeltrace2 prints to `take`; returns the losses that it warned of, in the
/// order of their ends.
fn read(
    foreign: &Path,
    mut take: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Vec<Loss>, Failure> {
    let mut child = Command::new("babeltrace2")
        .args(["--clock-seconds", "--no-delta", "--fields=trace:vpid"])
        .arg(foreign)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let sentence = format!(
                "cannot run babeltrace2, which reads foreign traces: {error}; install it (Debian: \
                 babeltrace2)"
            );
            Failure::new(UNAVAILABLE, sentence)
        })?;
    let errors = child.stderr.take();
    // Both pipes are read at once, so that neither fills up.
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut taken = Ok(());
    if let Some(lines) = child.stdout.take() {
        let mut lines = BufReader::new(lines);
        let mut line = Vec::new();
        while taken.is_ok()
            && lines
                .read_until(b'\n', &mut line)
                .is_ok_and(|read| read > 0)
        {
            taken = take(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    }
    let status = child.wait();
    let errors = errors.join().unwrap_or_default();
    taken?;
    if !status.is_ok_and(|status| status.success()) {
        let why = errors.lines().rev().find(|line| !line.trim().is_empty());
        let why = why.unwrap_or_default().trim();
        return Err(Failure::new(
            USAGE,
            format!("babeltrace2 cannot read {}: {why}", foreign.display()),
        ));
    }
    let mut losses: Vec<Loss> = errors.lines().filter_map(loss).collect();
    losses.sort_by_key(|loss| loss.to);
    Ok(losses)
}

/// `... discarded 3 events between [1.000000000] and [2.000000000] in ...`
fn loss(line: &str) -> Option<Loss> {
    let (before, behind) = line.split_once(" between [")?;
    let mut words = before.rsplit(' ');
    let (unit, missed) = (words.next()?, words.next()?);
    if !unit.starts_with("event") {
        return None;
    }
    let (from, behind) = behind.split_once("] and [")?;
    let (to, _) = behind.split_once(']')?;
    Some(Loss {
        from: text::seconds(from)?,
        to: text::seconds(to)?,
        // "may have discarded events": how many is not known, but one at least is missing.
        missed: missed.parse().unwrap_or(1),
    })
}

impl Imported {
    /// The exit status: 0, or 3 if something is missing.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self.discarded == 0 && self.notes.is_empty() {
            true => COMPLETE,
            false => INCONCLUSIVE,
        }
    }
}

/// What was imported, as text.
#[must_use]
pub fn render(imported: &Imported, out: &Path) -> String {
    let mut text = format!(
        "{}: {} elements in {} streams, from {} events\n",
        out.display(),
        imported.elements,
        imported.streams,
        imported.events
    );
    if imported.discarded > 0 {
        text.push_str(&format!(
            "inconclusive: the tracer had discarded {} events\n",
            imported.discarded
        ));
    }
    for note in &imported.notes {
        text.push_str(&format!("note: {}\n", crate::columns::printable(note)));
    }
    text
}
