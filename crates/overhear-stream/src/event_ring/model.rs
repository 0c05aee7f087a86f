// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runs and checks of the models of the event ring.

use std::vec::Vec;

use overhear_event::Ticks;

use super::writer::Claimed;
use super::{
    EventRecord, EventRing, LossCause, Next, RingConsumer, RingFull, RingGeometry, RingObserver,
    WhenFull,
};
use crate::sync::{AtomicU64, Ordering};
use crate::words::OwnedWords;

/// A ring, and a clock that no two moments share: an atomic addition reads the newest value, so
/// stamps are in the order in which they were read.
pub(super) struct Run {
    pub(super) ring: EventRing<OwnedWords>,
    when_full: WhenFull,
    clock: AtomicU64,
}

impl Run {
    pub(super) fn new(capacity: u64, when_full: WhenFull) -> Self {
        let geometry = RingGeometry::new(capacity, 8).expect("a valid geometry");
        let memory = OwnedWords::zeroed(geometry.words());
        let ring = EventRing::new(memory, geometry).expect("enough memory");
        let clock = AtomicU64::new(1);
        Self {
            ring,
            when_full,
            clock,
        }
    }

    fn stamp(&self) -> Ticks {
        Ticks::from_raw(self.clock.fetch_add(1, Ordering::Relaxed))
    }

    /// The thread's writes; returns how many were made.
    pub(super) fn write(&self, tid: u32, numbers: core::ops::Range<u64>) -> u64 {
        let write = |number| {
            let data = u64::to_ne_bytes(number);
            let record = record(tid, number, &data);
            self.ring.write(&record, self.when_full, || self.stamp())
        };
        numbers.filter(|&number| write(number).is_ok()).count() as u64
    }

    /// Step 1 to 4 of a write.
    pub(super) fn claim(&self) -> Result<Claimed, RingFull> {
        self.ring.claim(self.when_full, || self.stamp())
    }

    pub(super) fn fill(&self, claimed: Claimed, tid: u32, number: u64) {
        let data = number.to_ne_bytes();
        self.ring.fill(claimed, &record(tid, number, &data));
    }

    pub(super) fn consumer(&self) -> RingConsumer<OwnedWords> {
        let words = self.ring.words().share();
        let consumer = RingConsumer::new(words, *self.ring.geometry(), self.when_full);
        consumer.expect("enough memory")
    }

    pub(super) fn observer(&self) -> RingObserver<OwnedWords> {
        let words = self.ring.words().share();
        let observer = RingObserver::from_start(words, *self.ring.geometry());
        observer.expect("enough memory")
    }
}

fn record(tid: u32, number: u64, data: &[u8]) -> EventRecord<'_> {
    EventRecord {
        stamp: Ticks::from_raw(0),
        // See `LEAN`.
        address: 0,
        thread: 0,
        pid: tid,
        tid,
        event: tid as u16,
        flags: number as u16,
        data,
    }
}

pub(super) trait Reads {
    fn next<'c>(&mut self, copy: &'c mut [u8]) -> Next<'c>;
    fn abandon(&mut self, position: u64) -> bool;
}

impl Reads for RingConsumer<OwnedWords> {
    fn next<'c>(&mut self, copy: &'c mut [u8]) -> Next<'c> {
        RingConsumer::next(self, copy)
    }

    fn abandon(&mut self, position: u64) -> bool {
        RingConsumer::abandon(self, position)
    }
}

impl Reads for RingObserver<OwnedWords> {
    fn next<'c>(&mut self, copy: &'c mut [u8]) -> Next<'c> {
        RingObserver::next(self, copy)
    }

    fn abandon(&mut self, position: u64) -> bool {
        RingObserver::abandon(self, position)
    }
}

/// The events that a reader has seen: order and wholeness are checked at each.
#[derive(Default)]
pub(super) struct Seen {
    next: u64,
    last: u64,
    /// Thread and number.
    pub(super) delivered: Vec<(u32, u64)>,
    pub(super) missed: u64,
    pub(super) abandoned: u64,
}

impl Seen {
    /// Looks once; `false` at the end.
    pub(super) fn look(&mut self, reader: &mut impl Reads, abandons: bool) -> bool {
        match reader.next(&mut [0; 8]) {
            Next::Event {
                position,
                record: it,
                recorded,
            } => {
                assert!(position >= self.next, "positions ascend");
                self.next = position + 1;
                let stamp = it.stamp.as_raw();
                assert!(stamp > self.last, "stamps ascend with positions");
                self.last = stamp;
                let number = u64::from_ne_bytes(it.data.try_into().expect("the event has 8 bytes"));
                let expected = EventRecord {
                    stamp: it.stamp,
                    ..record(it.tid, number, it.data)
                };
                assert_eq!((it, recorded), (expected, 8), "the event is whole");
                self.delivered.push((it.tid, number));
                true
            }
            Next::Lost {
                first,
                missed,
                cause,
            } => {
                assert_eq!(cause, LossCause::Overwritten);
                assert!(first >= self.next && missed > 0);
                self.next = first + missed;
                self.missed += missed;
                true
            }
            Next::Pending { position } if abandons => {
                self.abandoned += u64::from(reader.abandon(position));
                true
            }
            Next::Pending { .. } | Next::Empty => false,
        }
    }

    pub(super) fn look_often(&mut self, reader: &mut impl Reads, looks: usize) {
        for _ in 0..looks {
            self.look(reader, false);
        }
    }

    /// Each thread's events come once, in its order, and those seen and lost are all.
    pub(super) fn conclude(mut self, reader: &mut impl Reads, written: u64) -> Self {
        while self.look(reader, false) {}
        assert_eq!(reader.next(&mut []), Next::Empty, "all is published");
        let seen = self.delivered.len() as u64 + self.missed + self.abandoned;
        assert_eq!(seen, written, "{:?}", self.delivered);
        for tid in 0..10 {
            let of_one = self.delivered.iter().filter(|event| event.0 == tid);
            let numbers: Vec<u64> = of_one.map(|event| event.1).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?} of {tid}");
        }
        self
    }
}
