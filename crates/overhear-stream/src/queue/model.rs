// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the models of the queue run and check.

use std::vec::Vec;

use overhear_event::{ClockId, Ticks};

use super::QueueWriter;
use crate::reader::{ReadItem, Reader};
use crate::shape::{QueueGeometry, Shape};
use crate::sync::{AtomicU64, Ordering};
use crate::words::{OwnedWords, Words};

/// A queue, and a clock that no two moments share: an atomic addition reads the newest value, so
/// stamps are in the order in which they were read.
pub(super) struct Run {
    pub(super) writer: QueueWriter<OwnedWords>,
    clock: AtomicU64,
}

impl Run {
    pub(super) fn new(capacity: u64) -> Self {
        let queue = QueueGeometry::new(8, capacity).expect("a valid geometry");
        let memory = OwnedWords::zeroed(queue.bytes() / 8);
        for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
            for (index, word) in words.into_iter().enumerate() {
                memory.word(at / 8 + index).store(word, Ordering::Relaxed);
            }
        }
        let writer = QueueWriter::new(memory, queue).expect("enough memory");
        let clock = AtomicU64::new(1);
        Self { writer, clock }
    }

    pub(super) fn stamp(&self) -> Ticks {
        Ticks::from_raw(self.clock.fetch_add(1, Ordering::Relaxed))
    }

    /// The thread's writes; none is refused.
    pub(super) fn write(&self, tid: u32, times: u64) {
        for number in 0..times {
            let payload = payload(tid, number);
            let written = self.writer.write(tid, &payload, || self.stamp());
            assert_eq!(written, Ok(()), "a write of {tid} is refused");
        }
    }

    pub(super) fn reader(&self) -> Reader<OwnedWords> {
        let words = self.writer.words().share();
        Reader::from_start(words, *self.writer.geometry()).expect("enough memory")
    }

    /// Enqueues as a thread that dies before it moves `head`.
    #[cfg(not(shuttle))]
    pub(super) fn die_before_advancing(&self, tid: u32) {
        let taken = self.writer.take().expect("an element is free");
        taken.fill_unchecked(&payload(tid, 0));
        taken.sign(tid, 0);
        let (words, queue) = (self.writer.words(), self.writer.geometry());
        let stamp = words.word(queue.element_word(taken.element));
        let head = super::QueuePos(words.word(super::HEAD_WORD).load(Ordering::Acquire));
        stamp.store(self.stamp().as_raw(), Ordering::Relaxed);
        let filled = head.with_index(taken.element);
        let index = words.word(queue.index_word(head.position()));
        index.store(filled.0, Ordering::Release);
        core::mem::forget(taken);
    }
}

pub(super) fn payload(tid: u32, number: u64) -> [u8; 8] {
    (u64::from(tid) * 100 + number).to_ne_bytes()
}

/// What a reader has seen: order and wholeness are checked as it goes.
#[derive(Default)]
pub(super) struct Seen {
    next: u64,
    last: u64,
    pub(super) delivered: Vec<(u64, u64)>,
    pub(super) missed: u64,
    pub(super) void: u64,
}

impl Seen {
    pub(super) fn poll(&mut self, reader: &mut Reader<OwnedWords>) {
        let end = reader.published();
        let report = reader.poll_until(end, |found| match found {
            ReadItem::Element(element) => {
                assert!(element.sequence >= self.next, "positions ascend");
                self.next = element.sequence + 1;
                let stamp = element.stamp.as_raw();
                assert!(stamp > self.last, "stamps ascend with positions");
                self.last = stamp;
                let tid = u32::from_ne_bytes(element.payload[..4].try_into().unwrap());
                assert_eq!(element.payload[4..8], [0; 4], "no flags");
                let value = u64::from_ne_bytes(element.payload[8..].try_into().unwrap());
                assert_eq!(value / 100, u64::from(tid), "the element is whole");
                self.delivered.push((value / 100, value % 100));
            }
            ReadItem::Missed { first, count } => {
                assert!(first >= self.next);
                self.next = first + count;
            }
        });
        let report = report.expect("honest words");
        assert_eq!(reader.position(), end);
        self.missed += report.missed;
        self.void += report.void;
    }

    /// Each thread's elements come once, in its order, and those seen and missed are all.
    pub(super) fn conclude(
        mut self,
        run: &Run,
        mut reader: Reader<OwnedWords>,
        writes: u64,
    ) -> Self {
        self.poll(&mut reader);
        assert_eq!(
            self.delivered.len() as u64 + self.missed + self.void,
            writes
        );
        for tid in 0..10 {
            let of_one = self.delivered.iter().filter(|element| element.0 == tid);
            let numbers: Vec<u64> = of_one.map(|element| element.1).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?} of {tid}");
        }
        assert_eq!(run.writer.lost_full(), 0);
        self
    }
}
