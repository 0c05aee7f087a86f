// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings whose content exceeds the memory are read and evaluated alternately.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, Inbox, Nanos, Origin, Source, SourceError,
    StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_monitor::Monitor;

const HOLD_BACK: Nanos = Nanos::from_ms(2);

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

/// A stream whose elements are all there, one per `distance_ns` from `first_ns` on.
struct Backlog {
    stream: Arc<StreamDescriptor>,
    first_ns: u64,
    distance_ns: u64,
    elements: u64,
    read: u64,
}

/// The deliveries of the source, poll by poll.
#[derive(Default)]
struct Polls {
    bytes: Vec<usize>,
    /// Streams that still have elements.
    left: usize,
}

/// Delivers at most the capacity of the inbox.
struct Rings {
    backlogs: Vec<Backlog>,
    is_open: bool,
    polls: Rc<RefCell<Polls>>,
}

impl Source for Rings {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if !std::mem::replace(&mut self.is_open, true) {
            for backlog in &self.backlogs {
                inbox.open(Arc::clone(&backlog.stream));
            }
        }
        let mut polls = self.polls.borrow_mut();
        let (mut bytes, mut left) = (0, 0);
        for backlog in &mut self.backlogs {
            let id = backlog.stream.id;
            let size = backlog.stream.schema.size() as usize;
            let rest = backlog.elements - backlog.read;
            let room = inbox.room(id).min(rest);
            for sequence in backlog.read..backlog.read + room {
                let ns = backlog.first_ns + sequence * backlog.distance_ns;
                inbox.element(id, sequence, at(ns), &vec![0; size]);
            }
            backlog.read += room;
            bytes += room as usize * (16 + size);
            if room < rest {
                inbox.leave(id);
                left += 1;
            }
        }
        polls.bytes.push(bytes);
        polls.left = left;
        Ok(())
    }
}

/// Counts elements by stream, and checks their order.
#[derive(Default)]
struct Seen {
    elements: Vec<u64>,
    last: (Timestamp, u32),
    advanced: Timestamp,
}

impl Analysis for Seen {
    fn element(&mut self, element: &ElementView<'_>) {
        let (time, stream) = (element.time, element.stream.id.as_raw());
        assert!((time, stream) >= self.last && time >= self.advanced);
        self.last = (time, stream);
        let index = stream as usize;
        self.elements.resize(self.elements.len().max(index + 1), 0);
        assert_eq!(element.sequence, self.elements[index]);
        self.elements[index] += 1;
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        panic!("{gap:?}");
    }

    fn advance(&mut self, now: Timestamp) {
        assert!(now >= self.advanced);
        self.advanced = now;
    }
}

/// Streams of elements that take 80 bytes while they are held.
fn monitor(backlogs: &[(u64, u64, u64)]) -> (Monitor, Rc<RefCell<Polls>>) {
    let schema = TypeSchema::builder("t").field("text", FieldKind::Text(64), "");
    let schema = Arc::new(schema.build().unwrap());
    let backlogs = backlogs.iter().zip(0..);
    let backlogs = backlogs.map(|(&(first_ns, distance_ns, elements), raw)| Backlog {
        stream: Arc::new(StreamDescriptor {
            capacity: 1 << 20,
            ..StreamDescriptor::new(
                StreamId::from_raw(raw),
                Origin::Kernel { cpu: raw },
                "t",
                Arc::clone(&schema),
            )
        }),
        first_ns,
        distance_ns,
        elements,
        read: 0,
    });
    let polls = Rc::default();
    let rings = Rings {
        backlogs: backlogs.collect(),
        is_open: false,
        polls: Rc::clone(&polls),
    };
    let mut monitor = Monitor::new(HOLD_BACK);
    monitor.add_source(Box::new(rings));
    (monitor, polls)
}

/// Bytes that a poll may deliver: those that rounds read, and the least of each stream.
const MOST_BYTES: usize = (16 << 20) + 8 * 1_024 * 80 + 80;

#[test]
fn round_evaluates_a_backlog_that_does_not_fit_into_memory() {
    // 64 MB in four streams; one is far behind the others, one has few elements.
    let streams = [
        (1_000, 100, 300_000),
        (1_050, 1_000, 200_000),
        (90_000_000, 100, 300_000),
        (7, 50_000_000, 3),
    ];
    let (mut monitor, polls) = monitor(&streams);
    let mut seen = Seen::default();
    monitor.round(at(1_000_000_000), &mut seen);
    assert_eq!(seen.elements, streams.map(|(.., elements)| elements));
    assert_eq!(polls.borrow().left, 0);
    let bytes = &polls.borrow().bytes;
    assert!(bytes.len() > 3, "{bytes:?}");
    assert!(bytes.iter().all(|&bytes| bytes <= MOST_BYTES), "{bytes:?}");
}

#[test]
fn end_evaluates_all_that_was_left() {
    let streams = [(1_000, 100, 300_000), (1_050, 100, 300_000)];
    let (mut monitor, polls) = monitor(&streams);
    let mut seen = Seen::default();
    monitor.finish(at(1_000_000_000), &mut seen);
    assert_eq!(seen.elements, [300_000, 300_000]);
    assert!(polls.borrow().bytes.len() > 2);
}

#[test]
fn elements_within_the_hold_back_stay_queued() {
    let (mut monitor, polls) = monitor(&[(1_000, 1, 600_000), (500, 1, 600_000)]);
    let mut seen = Seen::default();
    // The hold-back begins before any of the elements.
    monitor.round(at(2_000_000), &mut seen);
    assert_eq!(seen.elements, []);
    assert_eq!(polls.borrow().left, 2);
    let bytes: usize = polls.borrow().bytes.iter().sum();
    assert!(bytes <= MOST_BYTES, "{bytes}");
    monitor.finish(at(9_000_000), &mut seen);
    assert_eq!(seen.elements, [600_000, 600_000]);
}

#[test]
fn elements_of_one_time_do_not_block_each_other() {
    let streams = [(1_000, 0, 250_000), (1_000, 0, 250_000), (1_000, 1, 10)];
    let (mut monitor, _) = monitor(&streams);
    let mut seen = Seen::default();
    monitor.finish(at(1_000_000_000), &mut seen);
    assert_eq!(seen.elements, [250_000, 250_000, 10]);
}
