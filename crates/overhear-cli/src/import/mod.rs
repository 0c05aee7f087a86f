// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import`: a trace of another tracer (LTTng's kernel and UST traces, perf's, whatever
//! libbabeltrace2 reads) as a recording of ours, so that metrics and constraints run on it.
//!
//! The library reads the trace and hands over event by event ([`ForeignTrace`]); what they mean is
//! said in `map`. The trace is read twice: first to learn the fields of every event and what was lost, then
//! to write. The price is time; what it buys is that a trace may be larger than memory.

mod hook;
mod kernel;
mod map;
mod order;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use overhear_event::{ElementView, Gap, GapCause, Nanos, StreamDescriptor, Timestamp, Update};
use overhear_trace::{
    ForeignError, ForeignEvent, ForeignLoss, ForeignMessage, ForeignTrace, TraceIdentity,
    TraceWriter,
};

use crate::exit::{COMPLETE, INCONCLUSIVE};
use map::{Mapping, Shapes};
use order::SwitchOrder;
use overhear_session::conclusion::Exit;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::quantities::SourceReport;
use overhear_session::recording::{Ending, Recording};
use overhear_session::session::uncreated;

/// The recording's writer learns the time once this span of it has passed, so that packets of slow streams do not stay
/// in memory until they are full.
const ADVANCE: Nanos = Nanos::from_ms(50);

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Imported {
    /// Events of the foreign trace.
    pub(crate) events: u64,
    /// Elements that they became.
    pub(crate) elements: u64,
    /// Streams.
    pub(crate) streams: usize,
    /// Events that the foreign tracer had discarded.
    pub(crate) discarded: u64,
    /// Whether these are only the least that is certain.
    pub(crate) at_least: bool,
    /// Switches that were never recorded, as the others prove: at least so many.
    pub(crate) unrecorded: u64,
    /// What could not be taken over, as sentences.
    pub(crate) notes: Vec<String>,
}

/// Events that a tracer has discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    from: Timestamp,
    to: Timestamp,
    missed: u64,
}

/// What the first reading finds.
#[derive(Debug)]
struct Survey {
    shapes: Shapes,
    order: SwitchOrder,
    events: u64,
    times: Option<(Timestamp, Timestamp)>,
    losses: Vec<Loss>,
    at_least: bool,
    timeless: u64,
}

impl Survey {
    fn new() -> Self {
        Self {
            shapes: Shapes::default(),
            order: SwitchOrder::survey(),
            events: 0,
            times: None,
            losses: Vec::new(),
            at_least: false,
            timeless: 0,
        }
    }

    fn take(&mut self, message: &ForeignMessage) {
        match message {
            ForeignMessage::Event(event) => {
                self.events += 1;
                let (first, last) = self.times.unwrap_or((event.time, event.time));
                self.times = Some((first, last.max(event.time)));
                self.shapes.learn(event, &mut self.order);
            }
            ForeignMessage::Loss(loss) => {
                self.at_least |= loss.at_least;
                self.losses.push(self.dated(loss));
            }
            ForeignMessage::Timeless => self.timeless += 1,
        }
    }

    /// A loss without times lies where it is told, behind the last event.
    fn dated(&self, loss: &ForeignLoss) -> Loss {
        let last = self.times.map_or(Timestamp::ZERO, |(_, last)| last);
        let from = loss.from.unwrap_or(last);
        Loss {
            from,
            to: loss.to.unwrap_or(from).max(from),
            missed: loss.events,
        }
    }
}

/// Traces whose names are listed.
const MOST_NAMES: usize = 20;

/// Names of the traces that [`import`] reads, relative to `foreign`: `.` for the folder itself.
fn names(foreign: &Path) -> Vec<String> {
    let traces = ForeignTrace::traces(foreign);
    let names = traces
        .iter()
        .map(|trace| match trace.strip_prefix(foreign) {
            Ok(below) if below.as_os_str().is_empty() => ".".to_owned(),
            Ok(below) => below.display().to_string(),
            Err(_) => trace.display().to_string(),
        });
    names.collect()
}

/// These names, or the first of them.
fn listed(names: &[String]) -> String {
    let some = &names[..names.len().min(MOST_NAMES)];
    let more = match names.len() - some.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!(
        "{}{more}",
        overhear_session::format::printable(&some.join(", "))
    )
}

/// What becomes one recording, where that is more than one trace: a folder may hold the traces of several sessions.
#[must_use]
pub(crate) fn several(foreign: &Path) -> Option<String> {
    let names = names(foreign);
    (names.len() > 1).then(|| {
        format!(
            "{} traces in {} become one recording: {}; name a folder in it to import what is there alone",
            names.len(),
            foreign.display(),
            listed(&names)
        )
    })
}

/// Imports the trace in `foreign` as a recording in `out`.
///
/// # Errors
/// [`SessionError`] if libbabeltrace2 is not there or cannot read the trace, or if the recording cannot be
/// written.
pub(crate) fn import(foreign: &Path, out: &Path) -> Result<Imported, SessionError> {
    let mut survey = Survey::new();
    read(foreign, |message| {
        survey.take(&message);
        Ok(())
    })?;
    let Some((first, last)) = survey.times else {
        return Err(SessionError::new(
            ErrorKind::Usage,
            format!("{} has no events", foreign.display()),
        ));
    };
    survey.losses.sort_by_key(|loss| loss.to);
    let discarded = survey.losses.iter().map(|loss| loss.missed).sum();
    let mut import = Import {
        writer: TraceWriter::create(out, TraceIdentity::default())
            .map_err(|error| uncreated(&error))?,
        mapping: Mapping::new(survey.shapes),
        order: SwitchOrder::after(&survey.order),
        written: Vec::new(),
        first,
        losses: survey.losses.into(),
        before: None,
        elements: 0,
        unrecorded: 0,
        told: Timestamp::ZERO,
    };
    let mut notes: Vec<String> = Vec::new();
    read(foreign, |message| {
        let ForeignMessage::Event(event) = message else {
            return Ok(());
        };
        import.lose(event.time);
        if let Err(sentence) = import.take(&event)? {
            if notes.len() < 8 && !notes.contains(&sentence) {
                notes.push(sentence);
            }
        }
        Ok(())
    })?;
    for cpu in import.order.unfinished() {
        import.miss_switch(cpu, last);
    }
    import.lose(Timestamp::MAX);
    if import.mapping.nameless > 0 {
        notes.push(format!(
            "{} events of the kernel say no thread, and their CPU has no switch that does: they are left out",
            import.mapping.nameless
        ));
    }
    if survey.timeless > 0 {
        notes.push(format!(
            "{} events have no time, or none that can be said",
            survey.timeless
        ));
    }
    let imported = Imported {
        events: survey.events,
        elements: import.elements,
        streams: import.mapping.streams.len(),
        discarded,
        at_least: survey.at_least,
        unrecorded: import.unrecorded,
        notes,
    };
    import.finish(foreign, first, last, &imported)?;
    Ok(imported)
}

struct Import {
    writer: TraceWriter,
    mapping: Mapping,
    order: SwitchOrder,
    // Per stream, the next sequence, and the time of the last element or gap.
    written: Vec<(u64, Timestamp)>,
    // When the trace begins.
    first: Timestamp,
    // In the order of their ends; those that are over lie in `before`, as one.
    losses: VecDeque<Loss>,
    before: Option<Loss>,
    elements: u64,
    // Switches that others prove to be missing.
    unrecorded: u64,
    // The time that the writer has learned. It is that of an element in it, so the recording does not end later.
    told: Timestamp,
}

impl Import {
    fn take(&mut self, event: &ForeignEvent) -> Result<Result<(), String>, SessionError> {
        let mapped = match self.mapping.map(event) {
            Ok(mapped) => mapped,
            Err(error) => return Ok(Err(format!("{}: {error}", event.name))),
        };
        for (place, payload) in mapped {
            while self.written.len() < self.mapping.streams.len() {
                let stream = &self.mapping.streams[self.written.len()];
                self.writer.open(stream).map_err(unwritten)?;
                self.written.push((0, self.first));
                // What was discarded before may have been its first elements.
                if let Some(loss) = &self.before {
                    let written = self.written.last_mut().expect("it was pushed");
                    gap(&mut self.writer, stream, written, loss, GapCause::Kernel);
                }
            }
            let stream: Arc<StreamDescriptor> = Arc::clone(&self.mapping.streams[place]);
            for cpu in self.order.take(&stream, &payload) {
                self.miss_switch(cpu, event.time);
            }
            let element = ElementView {
                stream: &stream,
                sequence: self.written[place].0,
                time: event.time,
                payload: &payload,
            };
            // What could not be written comes out at the end.
            let is_written = self.writer.element(&element).is_ok();
            let (next, last) = &mut self.written[place];
            (*next, *last) = (*next + 1, event.time);
            self.elements += 1;
            if is_written && event.time > self.told.plus(ADVANCE) {
                self.told = event.time;
                Update::advance(&mut self.writer, self.told);
            }
        }
        Ok(Ok(()))
    }

    /// A switch of this CPU is missing before this time.
    fn miss_switch(&mut self, cpu: u32, time: Timestamp) {
        // What the tracer has counted explains as much.
        if self.losses.iter().any(|loss| loss.from <= time) {
            return;
        }
        let Some(place) = self.mapping.switches_of(cpu) else {
            return;
        };
        let (stream, written) = (&self.mapping.streams[place], &mut self.written[place]);
        let loss = Loss {
            from: written.1,
            to: time,
            missed: 1,
        };
        self.unrecorded += 1;
        let writer = &mut self.writer;
        gap(writer, stream, written, &loss, GapCause::Inconsistent);
    }

    /// Writes the losses that end before this time: a gap in every stream, because what was discarded
    /// is not known.
    fn lose(&mut self, now: Timestamp) {
        while let Some(loss) = self.losses.front().copied().filter(|loss| loss.to <= now) {
            self.losses.pop_front();
            self.order.forget();
            for (stream, written) in self.mapping.streams.iter().zip(&mut self.written) {
                gap(&mut self.writer, stream, written, &loss, GapCause::Kernel);
            }
            let before = self.before.get_or_insert(Loss { missed: 0, ..loss });
            before.from = before.from.min(loss.from);
            before.to = loss.to;
            before.missed += loss.missed;
        }
    }

    /// Says what the recording is, so that reports and verdicts know its end.
    fn finish(
        mut self,
        foreign: &Path,
        first: Timestamp,
        last: Timestamp,
        imported: &Imported,
    ) -> Result<(), SessionError> {
        let source = SourceReport {
            name: "import".to_owned(),
            active: "libbabeltrace2".to_owned(),
            sentence: match names(foreign).as_slice() {
                [] => format!("imported from {}", foreign.display()),
                [one] if one == "." => format!("imported from {}", foreign.display()),
                several => format!("imported from {}: {}", foreign.display(), listed(several)),
            },
            sensors: Vec::new(),
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

fn unwritten(error: impl std::error::Error) -> SessionError {
    SessionError::new(ErrorKind::Incomplete, error.to_string())
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
    *next += loss.missed;
    *last = loss.to.max(*last);
    Update::gap(writer, stream, &gap);
}

/// Hands every message of the trace to `take`.
fn read(
    foreign: &Path,
    mut take: impl FnMut(ForeignMessage) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let unread = |error: ForeignError| {
        let status = match error {
            ForeignError::Library { .. } => ErrorKind::Unavailable,
            ForeignError::NoTrace { .. } | ForeignError::Unreadable { .. } => ErrorKind::Usage,
        };
        SessionError::new(status, error.to_string())
    };
    let mut trace = ForeignTrace::open(foreign).map_err(unread)?;
    while let Some(message) = trace.next_message().map_err(unread)? {
        take(message)?;
    }
    Ok(())
}

impl Imported {
    /// The exit status: 0, or 3 if something is missing.
    #[must_use]
    pub(crate) fn status(&self) -> u8 {
        match self.discarded == 0 && self.unrecorded == 0 && self.notes.is_empty() {
            true => COMPLETE,
            false => INCONCLUSIVE,
        }
    }
}

/// What was imported, as text.
#[must_use]
pub(crate) fn render(imported: &Imported, out: &Path) -> String {
    let mut text = format!(
        "{}: {} elements in {} streams, from {} events\n",
        out.display(),
        imported.elements,
        imported.streams,
        imported.events
    );
    if imported.discarded > 0 {
        text.push_str(&format!(
            "inconclusive: the tracer had discarded {}{} events\n",
            if imported.at_least { "at least " } else { "" },
            imported.discarded
        ));
    }
    if imported.unrecorded > 0 {
        text.push_str(&format!(
            "inconclusive: at least {} context switches were never recorded: without them the others contradict each \
             other\n",
            imported.unrecorded
        ));
    }
    for note in &imported.notes {
        text.push_str(&format!(
            "note: {}\n",
            overhear_session::format::printable(note)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use overhear_event::{Nanos, Timestamp};
    use overhear_trace::{
        ForeignEvent, ForeignMessage, ForeignValue, TraceIdentity, TraceReader, TraceWriter,
    };

    use super::{Import, Survey, SwitchOrder};
    use crate::import::map::Mapping;

    #[test]
    fn what_slow_streams_say_does_not_stay_in_memory() {
        let begin = Timestamp::from_monotonic_ns(1_700_000_000_000_000_000);
        let event = |number: u64| ForeignEvent {
            time: begin.plus(Nanos::from_ms(10 * number)),
            name: format!("app:event{}", number % 20).into(),
            context: vec![("vpid".into(), ForeignValue::Whole(7))],
            payload: vec![("number".into(), ForeignValue::Whole(number.into()))],
        };
        let mut survey = Survey::new();
        (0..400).for_each(|number| survey.take(&ForeignMessage::Event(event(number))));
        let folder = tempfile::tempdir().unwrap();
        let mut import = Import {
            writer: TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap(),
            mapping: Mapping::new(survey.shapes),
            order: SwitchOrder::after(&survey.order),
            written: Vec::new(),
            first: begin,
            losses: VecDeque::new(),
            before: None,
            elements: 0,
            unrecorded: 0,
            told: Timestamp::ZERO,
        };
        for number in 0..400 {
            import.take(&event(number)).unwrap().unwrap();
            // Those of a quarter of a second.
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
