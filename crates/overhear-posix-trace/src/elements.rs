// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of a trace stream as elements of Overhear.
//!
//! ```text
//!  TraceEvent ----> TraceElements ----> ElementSink: an Inbox of a monitor, or an Analysis
//!  a loss                               streams, elements, gaps
//! ```
//!
//! - Each user event type and each system event type of the standard, of each process, is a stream:
//!   the sensor's id is the name of the type, so metrics and constraints name it `user:NAME`. Its
//!   elements have the writing thread and [these fields](TraceElements::schema).
//! - An event type of Linux becomes a stream of the kernel sensor with that name for each CPU.
//! - The types of lost events are not recorded: each loss is a gap in every stream, also in those
//!   that begin later, and in that of `posix_trace_overflow`, which begins with the first loss.
//!
//! The converter reads no clock and keeps no events: the times in the items are those of events.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use overhear_event::{
    Analysis, ElementView, EventName, FieldKind, Gap, GapCause, Inbox, Origin, StreamDescriptor,
    StreamId, StreamIdRange, TypeSchema, HEXADECIMAL, MAX_PAYLOAD_BYTES,
};
use overhear_metrics::automaton::Catalogue;

use crate::{EventId, LogHeader, LostEvents, TraceEvent, Truncation};

/// Maximum number of streams of a converter: processes and threads in a log are not trusted.
const MAX_STREAMS: usize = 1 << 14;
/// Bytes of the payload of a user event before its data.
const HEAD_BYTES: usize = 40;
/// Bytes of data of system event types of the standard: two sets of event types.
const SYSTEM_DATA_BYTES: usize = 80;
/// Bytes after the payload of a kernel sensor in an event's data: the number of the CPU.
const CPU_BYTES: usize = 4;

/// Receives the items of [`TraceElements`].
pub trait ElementSink {
    /// A stream begins.
    fn open(&mut self, stream: &Arc<StreamDescriptor>);
    /// An element.
    fn element(&mut self, element: &ElementView<'_>);
    /// Missed elements.
    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap);
    /// A stream ends.
    fn close(&mut self, stream: StreamId) {
        let _ = stream;
    }
}

/// Delivers items to an inbox, for a [`Source`](overhear_event::Source).
pub struct InboxSink<'a>(pub &'a mut dyn Inbox);

impl ElementSink for InboxSink<'_> {
    fn open(&mut self, stream: &Arc<StreamDescriptor>) {
        self.0.open(Arc::clone(stream));
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let (sequence, time) = (element.sequence, element.time);
        self.0
            .element(element.stream.id, sequence, time, element.payload);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.gap(stream.id, gap.first, gap.missed, gap.cause);
    }

    fn close(&mut self, stream: StreamId) {
        self.0.close(stream);
    }
}

/// Delivers items to an analysis, without advances: the caller has the time of the last event.
pub struct AnalysisSink<'a>(pub &'a mut dyn Analysis);

impl ElementSink for AnalysisSink<'_> {
    fn open(&mut self, stream: &Arc<StreamDescriptor>) {
        self.0.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.0.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.gap(stream, gap);
    }
}

/// Numbers for streams, which several converters may share: each takes as many as it needs.
#[derive(Clone, Debug)]
pub struct StreamNumbers(Arc<Mutex<StreamIdRange>>);

impl StreamNumbers {
    /// The numbers of a range.
    #[must_use]
    pub fn of(range: StreamIdRange) -> Self {
        Self(Arc::new(Mutex::new(range)))
    }

    fn take(&self) -> Option<StreamId> {
        let mut range = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(range.take(1)?.first())
    }
}

/// The writer of the elements of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WriterOf {
    Process(u32),
    Cpu(u32),
}

#[derive(Debug)]
struct Stream {
    descriptor: Arc<StreamDescriptor>,
    /// Sequence of the next element.
    next: u64,
}

/// The schemas of kernel sensors.
fn kernel_schema(name: &str) -> Option<&'static TypeSchema> {
    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::linux);
    CATALOGUE.schema(&EventName::kernel(name))
}

/// Converts the events of one trace stream.
#[derive(Debug)]
pub struct TraceElements {
    pid: u32,
    comm: String,
    // By event type: the name, the schema of an event type of Linux, and the stream that its last
    // event had.
    names: Vec<Option<String>>,
    kernel: Vec<Option<&'static TypeSchema>>,
    recent: Vec<Option<(WriterOf, usize)>>,
    user: Arc<TypeSchema>,
    system: Arc<TypeSchema>,
    numbers: StreamNumbers,
    streams: Vec<Stream>,
    index: HashMap<(EventId, WriterOf), usize>,
    /// The losses so far, one of each cause.
    losses: Vec<LostEvents>,
    payload: Vec<u8>,
    unconverted: u64,
    /// Those of them that are not reported as a loss yet.
    unreported: Option<LostEvents>,
}

impl TraceElements {
    /// A converter for a stream with these properties.
    #[must_use]
    pub fn new(header: &LogHeader) -> Self {
        Self {
            pid: header.pid,
            comm: header.comm.clone(),
            names: vec![None; EventId::COUNT],
            kernel: vec![None; EventId::COUNT],
            recent: vec![None; EventId::COUNT],
            user: Arc::new(Self::schema(header.attributes.max_data_size)),
            system: Arc::new(Self::schema(SYSTEM_DATA_BYTES)),
            numbers: StreamNumbers::of(StreamIdRange::SESSION),
            streams: Vec::new(),
            index: HashMap::new(),
            losses: Vec::new(),
            payload: Vec::new(),
            unconverted: 0,
            unreported: None,
        }
    }

    /// Takes the numbers of streams from these; without them, they begin with 1.
    #[must_use]
    pub fn with_numbers(mut self, numbers: StreamNumbers) -> Self {
        self.numbers = numbers;
        self
    }

    /// The schema of elements with at most this number of bytes of data.
    ///
    /// | field | value |
    /// |---|---|
    /// | `writer_tid` | the thread that recorded the event |
    /// | `value` | the first 8 bytes of the data, zero-filled, as a number of this machine |
    /// | `address` | return address of the call of `posix_trace_event` |
    /// | `data_len` | bytes of data; `data` may have fewer |
    /// | `truncated` | 1 if the program had more data than its stream permits, or the schema |
    /// | `thread` | the thread's `pthread_t` |
    /// | `data` | the data, zero-filled |
    #[must_use]
    pub fn schema(max_data_size: usize) -> TypeSchema {
        let most = MAX_PAYLOAD_BYTES as usize - HEAD_BYTES;
        let data_bytes = max_data_size.clamp(8, most).next_multiple_of(8);
        TypeSchema::builder("posix_trace_event")
            .field("value", FieldKind::U64, "")
            .field("address", FieldKind::U64, HEXADECIMAL)
            .field("data_len", FieldKind::U32, "B")
            .field("truncated", FieldKind::U32, "")
            .field("thread", FieldKind::U64, HEXADECIMAL)
            .field("data", FieldKind::Text(data_bytes as u16), "")
            .build()
            .and_then(|schema| schema.with_writer())
            .expect("its names are identifiers, and it has at most as many bytes as permitted")
    }

    /// Names an event type, before its first event. A sensor's id is never empty, so that a type
    /// with an empty name goes by its number.
    pub fn define(&mut self, event: EventId, name: &[u8]) {
        if name.is_empty() {
            return;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        if event.is_kernel() {
            self.kernel[event.index()] = kernel_schema(&name);
        }
        self.names[event.index()] = Some(name);
    }

    /// The streams so far.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<StreamDescriptor>> {
        self.streams.iter().map(|stream| &stream.descriptor)
    }

    /// Events that became no elements: they are damaged, or of too many processes and types.
    #[must_use]
    pub const fn unconverted(&self) -> u64 {
        self.unconverted
    }

    /// Converts an event. Times must not decrease.
    pub fn event(&mut self, event: &TraceEvent<'_>, sink: &mut dyn ElementSink) {
        let kernel = self.kernel[event.event.index()].map(|schema| schema.size() as usize);
        let origin = match kernel {
            Some(bytes) => cpu_of(event.data, bytes).map(WriterOf::Cpu),
            None => Some(WriterOf::Process(event.pid)),
        };
        let index = origin.and_then(|origin| self.stream(event.event, origin, sink));
        let Some(index) = index else {
            self.unconverted += 1;
            let (from, to) = (event.time, event.time);
            let cause = match origin {
                Some(_) => GapCause::Full,
                None => GapCause::Corrupt,
            };
            let loss = self.unreported.get_or_insert(LostEvents {
                from,
                to,
                missed: 0,
                cause,
            });
            loss.to = loss.to.max(to);
            loss.missed += 1;
            return;
        };
        let stream = &mut self.streams[index];
        let payload: &[u8] = match kernel {
            Some(bytes) => &event.data[..bytes],
            None => {
                let bytes = stream.descriptor.schema.size() as usize;
                fill(&mut self.payload, event, bytes);
                &self.payload
            }
        };
        let sequence = stream.next;
        stream.next += 1;
        sink.element(&ElementView {
            stream: &stream.descriptor,
            sequence,
            time: event.time,
            payload,
        });
    }

    /// Converts a loss. An unknown number counts as one event.
    pub fn lost(&mut self, loss: LostEvents, sink: &mut dyn ElementSink) {
        let loss = LostEvents {
            from: loss.from.min(loss.to),
            missed: loss.missed.max(1),
            ..loss
        };
        // A stream for losses alone: there may be no other one.
        let _ = self.stream(EventId::OVERFLOW, WriterOf::Process(self.pid), sink);
        for stream in &mut self.streams {
            gap(stream, &loss, sink);
        }
        match self.losses.iter_mut().find(|it| it.cause == loss.cause) {
            Some(before) => {
                before.to = before.to.max(loss.to);
                before.missed = before.missed.saturating_add(loss.missed);
            }
            None => self.losses.push(loss),
        }
    }

    /// Reports the events since the last call that became no elements, as one loss. To be called
    /// from time to time: each loss is a gap in every stream.
    pub fn report_unconverted(&mut self, sink: &mut dyn ElementSink) {
        if let Some(loss) = self.unreported.take() {
            self.lost(loss, sink);
        }
    }

    /// Ends all streams.
    pub fn close(&mut self, sink: &mut dyn ElementSink) {
        for stream in self.streams.drain(..) {
            sink.close(stream.descriptor.id);
        }
        self.index.clear();
        self.recent.fill(None);
    }

    fn name_of(&self, event: EventId) -> Option<&str> {
        self.names[event.index()].as_deref()
    }

    /// Index of the stream of an event type; it is opened if it is new.
    fn stream(
        &mut self,
        event: EventId,
        origin: WriterOf,
        sink: &mut dyn ElementSink,
    ) -> Option<usize> {
        match self.recent[event.index()] {
            Some((recent, index)) if recent == origin => return Some(index),
            _ => {}
        }
        if let Some(&index) = self.index.get(&(event, origin)) {
            self.recent[event.index()] = Some((origin, index));
            return Some(index);
        }
        if self.streams.len() >= MAX_STREAMS {
            return None;
        }
        let id = self.numbers.take()?;
        let descriptor = Arc::new(self.descriptor(id, event, origin));
        let mut stream = Stream {
            descriptor,
            next: 0,
        };
        sink.open(&stream.descriptor);
        for loss in &self.losses {
            gap(&mut stream, loss, sink);
        }
        let index = self.streams.len();
        self.streams.push(stream);
        self.index.insert((event, origin), index);
        Some(index)
    }

    fn descriptor(&self, id: StreamId, event: EventId, origin: WriterOf) -> StreamDescriptor {
        let name = self.name_of(event).or_else(|| event.standard_name());
        let name = name.map_or_else(|| format!("event_{}", event.as_raw()), str::to_owned);
        match origin {
            WriterOf::Cpu(cpu) => {
                let schema = kernel_schema(&name)
                    .cloned()
                    .unwrap_or_else(|| Self::schema(0));
                StreamDescriptor::new(id, Origin::Kernel { cpu }, name, schema)
            }
            WriterOf::Process(pid) => {
                let schema = match event.is_user() {
                    true => &self.user,
                    false => &self.system,
                };
                let pid = if pid == 0 { self.pid } else { pid };
                let origin = Origin::program(pid, self.comm.clone());
                StreamDescriptor::new(id, origin, name, Arc::clone(schema))
            }
        }
    }
}

/// The CPU of a kernel event: after the payload, or the first one if the event has none.
fn cpu_of(data: &[u8], payload_bytes: usize) -> Option<u32> {
    match data.len().checked_sub(payload_bytes)? {
        0 => Some(0),
        CPU_BYTES => {
            let cpu = data.last_chunk().copied()?;
            Some(u32::from_ne_bytes(cpu))
        }
        _ => None,
    }
}

/// The payload of a user event, or of a system event of the standard.
fn fill(payload: &mut Vec<u8>, event: &TraceEvent<'_>, bytes: usize) {
    let mut value = [0; 8];
    let count = event.data.len().min(8);
    value[..count].copy_from_slice(&event.data[..count]);
    if cfg!(target_endian = "big") {
        value.rotate_right(8 - count);
    }
    let room = bytes.saturating_sub(HEAD_BYTES);
    let data = &event.data[..event.data.len().min(room)];
    let is_truncated = event.truncation != Truncation::None || data.len() < event.data.len();
    payload.clear();
    payload.extend(event.tid.to_ne_bytes());
    payload.extend(0_u32.to_ne_bytes());
    payload.extend(value);
    payload.extend(event.address.to_ne_bytes());
    payload.extend((event.data.len() as u32).to_ne_bytes());
    payload.extend(u32::from(is_truncated).to_ne_bytes());
    payload.extend(event.thread.to_ne_bytes());
    payload.extend(data);
    payload.resize(bytes, 0);
}

fn gap(stream: &mut Stream, loss: &LostEvents, sink: &mut dyn ElementSink) {
    let gap = Gap {
        stream: stream.descriptor.id,
        first: stream.next,
        missed: loss.missed,
        from: loss.from,
        to: loss.to,
        cause: loss.cause,
    };
    stream.next = stream.next.saturating_add(loss.missed);
    sink.gap(&stream.descriptor, &gap);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::kernel::Wake;
    use overhear_event::{
        ElementView, Gap, GapCause, Origin, StreamDescriptor, StreamId, StreamIdRange, Timestamp,
        Value,
    };

    use super::{ElementSink, StreamNumbers, TraceElements};
    use crate::{EventId, LogHeader, LostEvents, TraceEvent, Truncation};

    /// Items as texts.
    #[derive(Default)]
    struct Items(Vec<String>);

    impl ElementSink for Items {
        fn open(&mut self, stream: &Arc<StreamDescriptor>) {
            self.0
                .push(format!("open {} {}", stream.id, stream.label()));
        }

        fn element(&mut self, element: &ElementView<'_>) {
            assert_eq!(element.payload.len(), element.stream.schema.size() as usize);
            let field = |name| match element.field(name) {
                Some(Value::Unsigned(value)) => value.to_string(),
                Some(Value::Text(text)) => text.to_owned(),
                _ => "-".to_owned(),
            };
            let fields = [
                "writer_tid",
                "value",
                "data_len",
                "truncated",
                "data",
                "tid",
            ];
            let fields = fields.map(field).join(" ");
            self.0.push(format!(
                "{}/{} {fields}",
                element.stream.id, element.sequence
            ));
        }

        fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
            self.0
                .push(format!("{} gap {}+{}", stream.id, gap.first, gap.missed));
        }

        fn close(&mut self, stream: StreamId) {
            self.0.push(format!("close {stream}"));
        }
    }

    fn event(event: EventId, pid: u32, data: &[u8]) -> TraceEvent<'_> {
        TraceEvent {
            time: Timestamp::from_monotonic_ns(10),
            event,
            pid,
            tid: pid + 1,
            thread: 3,
            address: 4,
            truncation: Truncation::None,
            data,
        }
    }

    fn converter() -> TraceElements {
        let mut header = LogHeader {
            pid: 7,
            comm: "program".to_owned(),
            ..LogHeader::default()
        };
        header.attributes.max_data_size = 12;
        let mut elements = TraceElements::new(&header);
        elements.define(EventId::user(1).unwrap(), b"first");
        elements.define(EventId::from_raw(17).unwrap(), b"sched_wake");
        elements
    }

    #[test]
    fn event_types_of_processes_are_streams() {
        let (mut elements, mut items) = (converter(), Items::default());
        let first = EventId::user(1).unwrap();
        elements.event(&event(first, 7, b"abcd"), &mut items);
        elements.event(&event(first, 7, b"a text of 20 bytes.."), &mut items);
        elements.event(&event(first, 8, &300_u32.to_ne_bytes()), &mut items);
        elements.event(&event(EventId::STOP, 0, &1_u32.to_ne_bytes()), &mut items);
        elements.event(&event(EventId::user(9).unwrap(), 7, b""), &mut items);
        elements.close(&mut items);
        let value = u64::from(u32::from_ne_bytes(*b"abcd"));
        let long = u64::from_ne_bytes(*b"a text o");
        assert_eq!(
            items.0,
            [
                "open 1 program(7)/first".to_owned(),
                format!("1/0 8 {value} 4 0 abcd -"),
                format!("1/1 8 {long} 20 1 a text of 20 byt -"),
                "open 2 program(8)/first".to_owned(),
                "2/0 9 300 4 0 ,\u{1} -".to_owned(),
                "open 3 program(7)/posix_trace_stop".to_owned(),
                "3/0 1 1 4 0 \u{1} -".to_owned(),
                "open 4 program(7)/event_73".to_owned(),
                "4/0 8 0 0 0  -".to_owned(),
                "close 1".to_owned(),
                "close 2".to_owned(),
                "close 3".to_owned(),
                "close 4".to_owned(),
            ]
        );
    }

    #[test]
    fn losses_are_gaps_in_every_stream() {
        let (mut elements, mut items) = (converter(), Items::default());
        let [from, to] = [1, 2].map(Timestamp::from_monotonic_ns);
        let first = EventId::user(1).unwrap();
        elements.lost(
            LostEvents {
                from,
                to,
                missed: 5,
                cause: GapCause::Overwritten,
            },
            &mut items,
        );
        elements.event(&event(first, 7, b""), &mut items);
        elements.lost(
            LostEvents {
                from,
                to,
                missed: 0,
                cause: GapCause::Overwritten,
            },
            &mut items,
        );
        elements.event(&event(first, 7, b""), &mut items);
        elements.event(&event(EventId::UNNAMED, 7, b""), &mut items);
        assert_eq!(
            items.0,
            [
                "open 1 program(7)/posix_trace_overflow",
                "1 gap 0+5",
                "open 2 program(7)/first",
                "2 gap 0+5",
                "2/5 8 0 0 0  -",
                "1 gap 5+1",
                "2 gap 6+1",
                "2/7 8 0 0 0  -",
                "open 3 program(7)/posix_trace_unnamed_userevent",
                "3 gap 0+6",
                "3/6 8 0 0 0  -",
            ]
        );
    }

    #[test]
    fn converters_share_numbers_and_take_what_they_need() {
        let range = StreamIdRange::SESSION.starting_at(StreamId::from_raw(7));
        let numbers = StreamNumbers::of(range);
        let mut items = Items::default();
        for pid in [1, 2] {
            let mut elements = converter().with_numbers(numbers.clone());
            elements.event(&event(EventId::UNNAMED, pid, b""), &mut items);
        }
        let opened: Vec<&str> = items.0.iter().step_by(2).map(|it| &it[..6]).collect();
        assert_eq!(opened, ["open 7", "open 8"]);
    }

    #[test]
    fn events_of_too_many_processes_are_a_loss() {
        let (mut elements, mut items) = (converter(), Items::default());
        let most = super::MAX_STREAMS as u32;
        for pid in 1..=most + 3 {
            elements.event(&event(EventId::UNNAMED, pid, b""), &mut items);
        }
        assert_eq!(elements.unconverted(), 3);
        items.0.clear();
        elements.report_unconverted(&mut items);
        assert_eq!(items.0.len(), most as usize);
        assert_eq!(items.0[0], "1 gap 1+3");
        items.0.clear();
        elements.report_unconverted(&mut items);
        assert!(items.0.is_empty());
    }

    #[test]
    fn kernel_types_are_streams_of_cpus() {
        let (mut elements, mut items) = (converter(), Items::default());
        let wake = Wake {
            tid: 70,
            pid: 7,
            waker_tid: 1,
            waker_pid: 1,
            target_cpu: 0,
            kind: Wake::NEW,
        };
        let payload = wake.to_payload();
        let kind = EventId::from_raw(17).unwrap();
        let with_cpu = [payload.as_slice(), &3_u32.to_ne_bytes()].concat();
        elements.event(&event(kind, 7, &payload), &mut items);
        elements.event(&event(kind, 7, &with_cpu), &mut items);
        elements.event(&event(kind, 7, &payload[1..]), &mut items);
        assert_eq!(elements.unconverted(), 1);
        assert_eq!(
            items.0,
            [
                "open 1 kernel/sched_wake@0",
                "1/0 - - - - - 70",
                "open 2 kernel/sched_wake@3",
                "2/0 - - - - - 70",
            ]
        );
        let stream = elements.streams().nth(1).unwrap();
        assert_eq!(stream.origin, Origin::Kernel { cpu: 3 });
        assert_eq!(*stream.schema, Wake::schema());
    }
}
