// SPDX-License-Identifier: MIT OR Apache-2.0
//! The import of foreign traces: a trace of another tracer (LTTng's kernel and UST traces, perf's,
//! all that libbabeltrace2 reads) becomes a recording, so that metrics and constraints run on it.
//!
//! Events flow from a [`ForeignTrace`] through the converter in `map`, which makes elements of
//! them, into a [`TraceWriter`]. The trace is read twice: the first pass collects the fields of
//! every event and the losses, the second one writes. The price is time; in return a trace may be
//! larger than memory.
//!
//! A pass that fails after the first event is damage: the recording has the events before it, and
//! ends with a gap in every stream.

mod hook;
mod kernel;
mod map;
mod order;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_event::{Analysis, ElementView, Gap, GapCause, Nanos, StreamDescriptor, Timestamp};

use crate::catalogue::TraceIdentity;
use crate::error::WriteError;
use crate::foreign::{
    ForeignError, ForeignEvent, ForeignLoss, ForeignMessage, ForeignReader, OpenTrace,
};
use crate::packet::LATEST;
use crate::writer::TraceWriter;
use map::{Converter, EventShapes};
use order::SwitchOrder;

/// Span of trace time after which the writer is advanced, so that packets of slow streams do not
/// stay in memory until they are full.
const ADVANCE: Nanos = Nanos::from_ms(50);

/// Limit of the sum of all losses: sequences stay below it.
const MAX_DISCARDED: u64 = 1 << 62;

/// Limit of notes about events that could not be converted.
const MAX_NOTES: usize = 8;

/// Totals and notes of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Events of the foreign trace.
    pub events: u64,
    /// Elements written.
    pub elements: u64,
    /// Streams written.
    pub streams: usize,
    /// Times of the first and the last event.
    pub times: (Timestamp, Timestamp),
    /// Events that the foreign tracer had discarded.
    pub discarded: u64,
    /// Whether `discarded` is a lower bound.
    pub at_least: bool,
    /// Lower bound of the context switches that were never recorded: the recorded ones contradict
    /// each other.
    pub unrecorded: u64,
    /// The part that could not be read; `None` if every event was read.
    pub damage: Option<ImportDamage>,
    /// Messages about events that were left out.
    pub notes: Vec<String>,
}

/// The part of a foreign trace that could not be read. In the recording it is a gap at the end of
/// every stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportDamage {
    /// The error, as a message.
    pub message: String,
    /// Events that are missing.
    pub missed: u64,
    /// Whether `missed` is a lower bound.
    pub at_least: bool,
}

/// Error of [`import_trace`].
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The foreign trace cannot be read.
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    /// The foreign trace is empty.
    #[error("{} has no events", path.display())]
    NoEvents {
        /// The trace.
        path: PathBuf,
    },
    /// The recording cannot be created.
    #[error(transparent)]
    Create(WriteError),
    /// The recording cannot be written.
    #[error(transparent)]
    Write(WriteError),
}

/// Events that a tracer has discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    from: Timestamp,
    to: Timestamp,
    missed: u64,
}

/// Results of the first pass.
#[derive(Debug)]
struct Survey {
    shapes: EventShapes,
    order: SwitchOrder,
    events: u64,
    times: Option<(Timestamp, Timestamp)>,
    losses: Vec<Loss>,
    /// Sum of the losses.
    discarded: u64,
    at_least: bool,
    timeless: u64,
    /// Number of events later than any recording can have.
    too_late: u64,
}

impl Survey {
    fn new() -> Self {
        Self {
            shapes: EventShapes::default(),
            order: SwitchOrder::survey(),
            events: 0,
            times: None,
            losses: Vec::new(),
            discarded: 0,
            at_least: false,
            timeless: 0,
            too_late: 0,
        }
    }

    fn push(&mut self, message: &ForeignMessage) {
        match message {
            ForeignMessage::Event(event) if event.time > LATEST => self.too_late += 1,
            ForeignMessage::Event(event) => {
                self.events += 1;
                let (first, last) = self.times.unwrap_or((event.time, event.time));
                self.times = Some((first, last.max(event.time)));
                self.shapes.push(event, &mut self.order);
            }
            ForeignMessage::Loss(loss) => {
                let loss = self.checked(loss);
                self.discarded += loss.missed;
                self.losses.push(loss);
            }
            ForeignMessage::Timeless => self.timeless += 1,
        }
    }

    /// A loss without times is placed after the last event before it. A loss with an impossible
    /// number, as from a counter that goes back, counts as one event.
    fn checked(&mut self, loss: &ForeignLoss) -> Loss {
        let last = self.times.map_or(Timestamp::ZERO, |(_, last)| last);
        let from = loss.from.unwrap_or(last).min(LATEST);
        let is_possible = loss.events <= MAX_DISCARDED.saturating_sub(self.discarded);
        self.at_least |= loss.at_least || !is_possible;
        Loss {
            from,
            to: loss.to.unwrap_or(from).clamp(from, LATEST),
            missed: if is_possible { loss.events } else { 1 },
        }
    }
}

/// Imports the trace in `foreign` as a recording in `out`. The writer has finished; documents can
/// be attached.
///
/// # Errors
/// [`ImportError`], a message for the user.
pub fn import_trace(
    foreign: &Path,
    out: &Path,
    reader: &ForeignReader<'_>,
) -> Result<(Imported, TraceWriter), ImportError> {
    let mut survey = Survey::new();
    let mut trace = reader.open(foreign)?;
    let first_pass = read(&mut trace, u64::MAX, |message| {
        survey.push(&message);
        Ok(())
    })?;
    drop(trace);
    let Some((first, last)) = survey.times else {
        return Err(match first_pass.error {
            Some(error) => error.into(),
            None => ImportError::NoEvents {
                path: foreign.to_path_buf(),
            },
        });
    };
    survey.losses.sort_by_key(|loss| loss.to);
    let mut import = Import {
        writer: TraceWriter::create(out, TraceIdentity::default()).map_err(ImportError::Create)?,
        converter: Converter::new(std::mem::take(&mut survey.shapes)),
        order: SwitchOrder::after(&survey.order),
        written: Vec::new(),
        first,
        losses: std::mem::take(&mut survey.losses).into(),
        before: None,
        events: 0,
        last: first,
        elements: 0,
        unrecorded: 0,
        advanced_to: Timestamp::ZERO,
    };
    let mut notes: Vec<String> = Vec::new();
    let mut trace = reader.open(foreign)?;
    // No further than the first pass: it has collected the fields of the events up to there.
    let second_pass = read(&mut trace, first_pass.messages, |message| {
        let ForeignMessage::Event(event) = message else {
            return Ok(());
        };
        if event.time > LATEST {
            return Ok(());
        }
        import.write_losses_until(event.time);
        if let Err(note) = import.push(&event)? {
            if notes.len() < MAX_NOTES && !notes.contains(&note) {
                notes.push(note);
            }
        }
        Ok(())
    })?;
    drop(trace);
    if let (0, Some(error)) = (import.events, second_pass.error.as_ref()) {
        return Err(ImportError::Foreign(error.clone()));
    }
    for cpu in import.order.unfinished() {
        import.write_missing_switch(cpu, last);
    }
    import.write_losses_until(Timestamp::MAX);
    let damage = damage(&survey, &first_pass, &second_pass, import.events);
    if let Some(damage) = &damage {
        import.write_damage(damage.missed, last);
    }
    if import.converter.without_thread > 0 {
        notes.push(format!(
            "{} events of the kernel have no thread, and no switch on their CPU has one: they are left out",
            import.converter.without_thread
        ));
    }
    if import.converter.without_shape > 0 {
        notes.push(format!(
            "{} events were written while the trace was read: they are left out",
            import.converter.without_shape
        ));
    }
    if survey.timeless > 0 {
        notes.push(format!(
            "{} events have no time, or one out of range",
            survey.timeless
        ));
    }
    let imported = Imported {
        events: survey.events,
        elements: import.elements,
        streams: import.converter.streams.len(),
        times: (first, last),
        discarded: survey.discarded,
        at_least: survey.at_least,
        unrecorded: import.unrecorded,
        damage,
        notes,
    };
    import.writer.finish().map_err(ImportError::Write)?;
    Ok((imported, import.writer))
}

/// The second pass: from events to a recording.
struct Import {
    writer: TraceWriter,
    converter: Converter,
    order: SwitchOrder,
    // By index of the stream: the next sequence, and the time of the last element or gap.
    written: Vec<(u64, Timestamp)>,
    // Time of the first event.
    first: Timestamp,
    // By their ends; those that were written are summed up in `before`.
    losses: VecDeque<Loss>,
    before: Option<Loss>,
    // Number of events that were read, and the time of the last one.
    events: u64,
    last: Timestamp,
    elements: u64,
    // Number of switches that are provably missing.
    unrecorded: u64,
    // Time to which the writer was advanced. It is that of an element, so that the recording does
    // not end later.
    advanced_to: Timestamp,
}

impl Import {
    /// Writes the elements of an event. The inner error is a note about an event that is left out.
    fn push(&mut self, event: &ForeignEvent) -> Result<Result<(), String>, ImportError> {
        self.events += 1;
        self.last = event.time;
        let converted = match self.converter.convert(event) {
            Ok(converted) => converted,
            Err(error) => return Ok(Err(format!("{}: {error}", event.name))),
        };
        for (index, payload) in converted {
            while self.written.len() < self.converter.streams.len() {
                let stream = &self.converter.streams[self.written.len()];
                self.writer.open(stream).map_err(ImportError::Write)?;
                self.written.push((0, self.first));
                // Events that were discarded earlier may have been its first elements.
                if let Some(loss) = &self.before {
                    let written = self.written.last_mut().expect("it was pushed");
                    gap(&mut self.writer, stream, written, loss, GapCause::Kernel);
                }
            }
            let stream: Arc<StreamDescriptor> = Arc::clone(&self.converter.streams[index]);
            for cpu in self.order.push(&stream, &payload) {
                self.write_missing_switch(cpu, event.time);
            }
            let element = ElementView {
                stream: &stream,
                sequence: self.written[index].0,
                time: event.time,
                payload: &payload,
            };
            // `finish` returns the error.
            let is_written = self.writer.element(&element).is_ok();
            let (next, last) = &mut self.written[index];
            (*next, *last) = (*next + 1, event.time);
            self.elements += 1;
            if is_written && event.time > self.advanced_to.plus(ADVANCE) {
                self.advanced_to = event.time;
                Analysis::advance(&mut self.writer, self.advanced_to);
            }
        }
        Ok(Ok(()))
    }

    /// Writes the gap of a switch that is missing on a CPU before this time.
    fn write_missing_switch(&mut self, cpu: u32, time: Timestamp) {
        // A loss that the tracer has counted explains the missing switch.
        if self.losses.iter().any(|loss| loss.from <= time) {
            return;
        }
        let Some(index) = self.converter.switches_of(cpu) else {
            return;
        };
        let (stream, written) = (&self.converter.streams[index], &mut self.written[index]);
        let loss = Loss {
            from: written.1,
            to: time,
            missed: 1,
        };
        self.unrecorded += 1;
        let writer = &mut self.writer;
        gap(writer, stream, written, &loss, GapCause::Inconsistent);
    }

    /// Writes a gap at the end of every stream: the streams of these events are not known.
    fn write_damage(&mut self, missed: u64, last: Timestamp) {
        let loss = Loss {
            from: self.last,
            to: last.max(self.last),
            missed,
        };
        for (stream, written) in self.converter.streams.iter().zip(&mut self.written) {
            gap(&mut self.writer, stream, written, &loss, GapCause::Corrupt);
        }
    }

    /// Writes the losses that end before this time: a gap in every stream, because the streams of
    /// discarded events are not known.
    fn write_losses_until(&mut self, now: Timestamp) {
        while let Some(loss) = self.losses.front().copied().filter(|loss| loss.to <= now) {
            self.losses.pop_front();
            self.order.forget();
            for (stream, written) in self.converter.streams.iter().zip(&mut self.written) {
                gap(&mut self.writer, stream, written, &loss, GapCause::Kernel);
            }
            let before = self.before.get_or_insert(Loss { missed: 0, ..loss });
            before.from = before.from.min(loss.from);
            before.to = loss.to;
            before.missed = before.missed.saturating_add(loss.missed);
        }
    }
}

/// Writes a loss as a gap of a stream.
fn gap(
    writer: &mut TraceWriter,
    stream: &StreamDescriptor,
    (next, last): &mut (u64, Timestamp),
    loss: &Loss,
    cause: GapCause,
) {
    let gap = Gap {
        stream: stream.id,
        first: *next,
        missed: loss.missed,
        from: loss.from,
        to: loss.to,
        cause,
    };
    *next = next.saturating_add(loss.missed);
    *last = loss.to.max(*last);
    Analysis::gap(writer, stream, &gap);
}

/// The result of a pass.
#[derive(Debug)]
struct Pass {
    /// Number of messages that were read; the largest number if there are no more.
    messages: u64,
    /// The damage at which it ended.
    error: Option<ForeignError>,
}

/// Passes the messages of the trace to `push`, no more than `most`.
///
/// # Errors
/// Errors of `push`, and of a trace of which nothing can be read. Later ones end the pass.
fn read(
    trace: &mut OpenTrace,
    most: u64,
    mut push: impl FnMut(ForeignMessage) -> Result<(), ImportError>,
) -> Result<Pass, ImportError> {
    for messages in 0..most {
        match trace.next_message() {
            Ok(Some(message)) => push(message)?,
            Ok(None) => break,
            Err(error) if messages == 0 => return Err(error.into()),
            Err(error) => {
                return Ok(Pass {
                    messages,
                    error: Some(error),
                })
            }
        }
    }
    Ok(Pass {
        messages: u64::MAX,
        error: None,
    })
}

/// The part that could not be read. The number of missing events is exact up to the end of the
/// first pass.
fn damage(survey: &Survey, first: &Pass, second: &Pass, events: u64) -> Option<ImportDamage> {
    let error = second.error.as_ref().or(first.error.as_ref());
    let known = survey.events.saturating_sub(events);
    let message = match (error, known, survey.too_late) {
        (Some(error), ..) => error.to_string(),
        (None, 0, 0) => return None,
        (None, 0, _) => "events are later than the year 2116".to_owned(),
        (None, ..) => "the trace has become shorter while it was read".to_owned(),
    };
    let at_least = first.error.is_some();
    let missed = known.saturating_add(survey.too_late);
    Some(ImportDamage {
        message,
        missed: missed.saturating_add(u64::from(at_least)),
        at_least,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{Converter, Import, Survey, SwitchOrder};
    use crate::catalogue::TraceIdentity;
    use crate::foreign::{ForeignEvent, ForeignMessage, ForeignValue};
    use crate::reader::TraceReader;
    use crate::writer::TraceWriter;
    use overhear_event::{Nanos, Timestamp};

    #[test]
    fn elements_of_slow_streams_do_not_stay_in_memory() {
        let begin = Timestamp::from_monotonic_ns(1_700_000_000_000_000_000);
        let event = |number: u64| ForeignEvent {
            time: begin.plus(Nanos::from_ms(10 * number)),
            name: format!("app:event{}", number % 20).into(),
            context: vec![("vpid".into(), ForeignValue::Whole(7))],
            payload: vec![("number".into(), ForeignValue::Whole(number.into()))],
        };
        let mut survey = Survey::new();
        (0..400).for_each(|number| survey.push(&ForeignMessage::Event(event(number))));
        let folder = tempfile::tempdir().unwrap();
        let mut import = Import {
            writer: TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap(),
            converter: Converter::new(survey.shapes),
            order: SwitchOrder::after(&survey.order),
            written: Vec::new(),
            first: begin,
            losses: VecDeque::new(),
            before: None,
            events: 0,
            last: begin,
            elements: 0,
            unrecorded: 0,
            advanced_to: Timestamp::ZERO,
        };
        for number in 0..400 {
            import.push(&event(number)).unwrap().unwrap();
            // The elements of a quarter of a second.
            let pending = import.elements - import.writer.summary().events;
            assert!(pending <= 26, "{pending} after {number}");
        }
        assert_eq!(import.writer.finish().unwrap().events, import.elements);
        let last = event(399).time;
        let reader = TraceReader::open(folder.path()).unwrap();
        let replayed = reader.replay(&mut []);
        assert_eq!((replayed.events, replayed.advanced_to), (400, last));
    }
}
