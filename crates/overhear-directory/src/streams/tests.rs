// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams with jumps of the clock: a clock page and sensors made by hand.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, TryRecvError};
use std::sync::Arc;

use overhear_event::{
    ClockId, GapCause, Inbox, Origin, SourceError, StreamDescriptor, StreamId, Ticks, Timestamp,
    TypeSchema,
};
use overhear_stream::{
    Frame, Header, Lane, QueueWriter, Segment, Shape, SharedWords, SimpleWriter, Words, WriterKind,
    COUNTER_OFFSET,
};

use super::{Begin, StreamSet};
use crate::clock::page_geometry;
use crate::memory::{Mapping, MemoryFile};
use crate::registry::ReadableSensor;

/// Memory like the directory's, mapped by a writer and by readers.
struct Memory {
    writer: Mapping,
    readers: Arc<Mapping>,
}

impl Memory {
    fn new(bytes: usize, initial: &[(usize, Vec<u64>)]) -> Self {
        let file = MemoryFile::create("streams-test", bytes, initial).unwrap();
        Self {
            writer: Mapping::writable(&file, bytes).unwrap(),
            readers: Arc::new(Mapping::read_only(&file, bytes).unwrap()),
        }
    }

    fn words(&self) -> SharedWords {
        // SAFETY: each test keeps the memory until its end.
        unsafe { self.writer.words() }
    }
}

/// A clock page written by the test: one tick is a nanosecond, and the epochs are far apart.
struct ClockPage(Memory);

impl ClockPage {
    fn new() -> Self {
        let geometry = page_geometry();
        let header = Header::new(&geometry, WriterKind::Simple, ClockId::X86Tsc, 0);
        Self(Memory::new(
            geometry.bytes(),
            &[(0, header.to_words().to_vec())],
        ))
    }

    fn publish(&self, from: u64, time: u64, epoch: u32) {
        let mut writer = SimpleWriter::new(self.0.words(), page_geometry()).unwrap();
        let segment = Segment {
            from: Ticks::from_raw(from),
            time: Timestamp::from_monotonic_ns(time),
            mult: 1 << 20,
            shift: 20,
            error_ns: 1,
            epoch,
        };
        writer.write(&segment.to_payload(), || segment.from);
    }
}

/// A sensor without payload, and its memory.
fn sensor(kind: WriterKind, clock: ClockId, id: u32) -> (Memory, ReadableSensor) {
    let shape = Shape::new(kind, 0, 8, 2).unwrap();
    let memory = Memory::new(shape.bytes(), &shape.initial(clock, id.into()));
    let schema = TypeSchema::builder("tick").build().unwrap();
    let schema = match kind.names_threads() {
        true => schema.with_writer().unwrap(),
        false => schema,
    };
    let registered = ReadableSensor {
        descriptor: Arc::new(StreamDescriptor {
            capacity: shape.elements().capacity(),
            ..StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::program(1, "test"),
                format!("{kind:?}"),
                schema,
            )
        }),
        mapping: Arc::clone(&memory.readers),
        shape,
        clock,
    };
    (memory, registered)
}

/// The recorded items, in order: elements by stream and time, gaps by stream, position and cause.
#[derive(Debug, Default, PartialEq)]
struct RecordedItems(Vec<(u32, String)>);

impl Inbox for RecordedItems {
    fn open(&mut self, _: Arc<StreamDescriptor>) {}

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, _: &[u8]) {
        let what = format!("{sequence} at {}", time.as_monotonic_ns());
        self.0.push((stream.as_raw(), what));
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        let what = format!("{missed} missed from {first}: {cause:?}");
        self.0.push((stream.as_raw(), what));
    }

    fn complain(&mut self, complaint: SourceError) {
        panic!("{complaint:?}");
    }

    fn close(&mut self, _: StreamId) {}
}

#[test]
fn clock_jump_is_a_gap_in_every_stream_of_the_clock() {
    let page = ClockPage::new();
    page.publish(0, 1_000_000, 0);
    let mut set = StreamSet::new(Some(Arc::clone(&page.0.readers)));
    let (simple, simple_record) = sensor(WriterKind::Simple, ClockId::X86Tsc, 1);
    let (laned, laned_record) = sensor(WriterKind::Laned, ClockId::X86Tsc, 10);
    let (kernel_clock, kernel_clock_record) = sensor(WriterKind::Simple, ClockId::Monotonic, 20);
    // In use, as the directory hands them to its monitors.
    set.poll(&mut RecordedItems::default());
    for record in [&simple_record, &laned_record, &kernel_clock_record] {
        set.admit(record.clone(), Some(Begin::Now)).unwrap();
    }
    let Shape::Laned(pool) = laned_record.shape else {
        panic!("{:?}", laned_record.shape);
    };
    let write_simple = |memory: &Memory, record: &ReadableSensor, ticks| {
        let geometry = *record.shape.elements();
        let mut writer = SimpleWriter::new(memory.words(), geometry).unwrap();
        writer.write(&[], || Ticks::from_raw(ticks));
    };
    let lane = Lane::new(lane_words(&laned, pool.lane_offset(0)), *pool.lane()).unwrap();
    lane.take(7);
    let write_all = |ticks: u64| {
        write_simple(&simple, &simple_record, ticks);
        let stamp = || Ticks::from_raw(ticks);
        let frame = Frame::from_raw(64, 0);
        lane.write(frame, |_, _| false, &[], stamp).unwrap();
        write_simple(&kernel_clock, &kernel_clock_record, ticks);
    };
    let drain = |set: &mut StreamSet| {
        let mut recorded = RecordedItems::default();
        assert_eq!(set.poll(&mut recorded), []);
        recorded.0
    };
    let line = |stream: u32, what: &str| (stream, what.to_owned());

    write_all(500);
    assert_eq!(
        drain(&mut set),
        [
            line(1, "0 at 1000500"),
            line(10, "0 at 1000500"),
            line(20, "0 at 500"),
        ]
    );
    // A longer segment of the same epoch is no gap.
    page.publish(1_000, 1_001_000, 0);
    write_all(1_500);
    assert_eq!(drain(&mut set).len(), 3);
    // The machine slept: the counter stood still, the time did not.
    page.publish(2_000, 9_000_000, 1);
    write_all(2_500);
    assert_eq!(
        drain(&mut set),
        [
            line(1, "0 missed from 2: Epoch"),
            line(1, "2 at 9000500"),
            line(10, "0 missed from 2: Epoch"),
            line(10, "2 at 9000500"),
            line(20, "2 at 2500"),
        ]
    );
    // It is reported once.
    write_all(2_600);
    assert_eq!(drain(&mut set).len(), 3);
}

/// An inbox with capacity for some elements of each stream per poll.
struct LimitedInbox {
    room: u64,
    recorded: RecordedItems,
    left: Vec<u32>,
    closed: u32,
}

impl Inbox for LimitedInbox {
    fn open(&mut self, _: Arc<StreamDescriptor>) {}

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        self.recorded.element(stream, sequence, time, payload);
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        self.recorded.gap(stream, first, missed, cause);
    }

    fn room(&mut self, _: StreamId) -> u64 {
        self.room
    }

    fn leave(&mut self, stream: StreamId) {
        self.left.push(stream.as_raw());
    }

    fn close(&mut self, _: StreamId) {
        self.closed += 1;
    }
}

#[test]
fn sensor_that_ended_is_closed_once_all_of_it_is_read() {
    let mut set = StreamSet::new(None);
    let (memory, record) = sensor(WriterKind::Simple, ClockId::Monotonic, 1);
    set.admit(record.clone(), None).unwrap();
    let geometry = *record.shape.elements();
    let mut writer = SimpleWriter::new(memory.words(), geometry).unwrap();
    // Two laps: the first one is overwritten.
    for tick in 0..20 {
        writer.write(&[], || Ticks::from_raw(tick));
    }
    set.end(StreamId::from_raw(1));
    let mut inbox = LimitedInbox {
        room: 3,
        recorded: RecordedItems::default(),
        left: Vec::new(),
        closed: 0,
    };
    let mut polls = 0;
    while set.poll(&mut inbox).is_empty() {
        polls += 1;
        assert_eq!((inbox.left.len(), inbox.closed), (polls, 0));
    }
    assert_eq!((polls, inbox.closed), (2, 1));
    let recorded: Vec<_> = inbox.recorded.0.into_iter().map(|(_, what)| what).collect();
    let mut expected = vec!["13 missed from 0: Overwritten".to_owned()];
    expected.extend((13..20).map(|tick| format!("{tick} at {tick}")));
    assert_eq!(recorded, expected);
}

/// The items from a ring of 8 slots with this number of published elements. Its header contains
/// several runs of skipped writes, the last one before the element at this position.
fn delivered_with_runs(published: u64, at: u64) -> Vec<String> {
    let mut set = StreamSet::new(None);
    let (memory, record) = sensor(WriterKind::Simple, ClockId::Monotonic, 1);
    set.admit(record, None).unwrap();
    let words = memory.words();
    let header = [
        (COUNTER_OFFSET, published),
        (SKIPPED, 5),
        (SKIPPED_AT, at),
        (SKIP_RUNS, 3),
    ];
    for (offset, value) in header {
        words.word(offset / 8).store(value, Ordering::Release);
    }
    let mut inbox = LimitedInbox {
        room: u64::MAX,
        recorded: RecordedItems::default(),
        left: Vec::new(),
        closed: 0,
    };
    set.poll(&mut inbox);
    inbox.recorded.0.into_iter().map(|(_, what)| what).collect()
}

/// Offsets of words in the header page (docs/abi/stream-layout.md).
const SKIPPED: usize = 168;
const SKIPPED_AT: usize = 176;
const SKIP_RUNS: usize = 184;

#[test]
fn runs_of_skipped_writes_are_gaps_only_before_the_last_one() {
    let gap = |at| format!("0 missed from {at}: Budget");
    let element = |at| format!("{at} at 0");
    let mut expected: Vec<String> = (0..3).flat_map(|at| [gap(at), element(at)]).collect();
    expected.push("5 missed from 3: Budget".to_owned());
    expected.extend((3..5).map(element));
    assert_eq!(delivered_with_runs(5, 3), expected);
}

#[test]
fn damaged_counters_cost_at_most_a_buffer_of_gaps() {
    for at in [0, 3, 1 << 39, 1 << 40, 1 << 62, 1 << 63, u64::MAX] {
        let items = delivered_with_runs(1 << 40, at);
        assert!(items.len() <= 18, "{at}: {} items", items.len());
    }
}

#[test]
fn what_is_read_is_counted_if_a_monitor_attaches_while_a_program_writes() {
    for kind in [WriterKind::Simple, WriterKind::Concurrent] {
        for begin in [Begin::Now, Begin::Buffer] {
            attach_while_writing(kind, begin);
        }
    }
}

/// Attaches many monitors while a thread writes. After its end each of them must have counted what
/// it reads.
fn attach_while_writing(kind: WriterKind, begin: Begin) {
    let (memory, record) = sensor(kind, ClockId::Monotonic, 1);
    let (stop, stopped) = channel::<()>();
    let (start, started) = channel();
    let mut sets = Vec::new();
    std::thread::scope(|scope| {
        let (memory, shape) = (&memory, &record.shape);
        scope.spawn(move || {
            let mut write = writer(memory, shape);
            write(0);
            start.send(()).unwrap();
            let mut tick = 1;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                (0..1_000).for_each(|more| write(tick + more));
                tick += 1_000;
            }
        });
        started.recv().unwrap();
        for _ in 0..1_000 {
            let mut set = StreamSet::new(None);
            set.admit(record.clone(), Some(begin)).unwrap();
            sets.push(set);
        }
        stop.send(()).unwrap();
    });
    for mut set in sets {
        let mut read = Coverage::default();
        set.poll(&mut read);
        let writes = set.writes();
        let in_buffer = read.0 - writes[0].written;
        let most = match begin {
            Begin::Now => 0,
            Begin::Buffer => record.shape.elements().capacity(),
        };
        assert!(in_buffer <= most, "{kind:?} {begin:?}: {in_buffer}");
    }
}

/// A function that writes an element with this time.
fn writer(memory: &Memory, shape: &Shape) -> Box<dyn FnMut(u64)> {
    let words = memory.words();
    match shape {
        Shape::Concurrent(queue) => {
            let queue = QueueWriter::new(words, *queue).unwrap();
            Box::new(move |tick| {
                queue.write(1, &[], || Ticks::from_raw(tick)).unwrap();
            })
        }
        _ => {
            let mut writer = SimpleWriter::new(words, *shape.elements()).unwrap();
            Box::new(move |tick| writer.write(&[], || Ticks::from_raw(tick)))
        }
    }
}

/// The number of elements that were read or missed.
#[derive(Debug, Default)]
struct Coverage(u64);

impl Inbox for Coverage {
    fn open(&mut self, _: Arc<StreamDescriptor>) {}

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, _: &[u8]) {
        self.0 += 1;
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.0 += missed;
    }

    fn close(&mut self, _: StreamId) {}
}

fn lane_words(memory: &Memory, at: usize) -> SharedWords {
    let bytes = memory.writer.bytes() - at;
    // SAFETY: within the map, aligned to a page; the test keeps the memory until its end.
    unsafe { SharedWords::new(memory.writer.base().add(at).cast(), bytes / 8) }
}
