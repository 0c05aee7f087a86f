// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom explores every interleaving of small runs of the queue, up to a number of preemptions, and
//! every value that the memory model allows.

use std::vec::Vec;

use loom::sync::atomic::AtomicU64;
use loom::sync::Arc;
use loom::thread;
use overhear_event::{ClockId, Ticks};

use super::{Place, QueueWriter, HEAD_WORD, TAIL_WORD};
use crate::reader::{Found, Reader};
use crate::shape::{QueueGeometry, Shape};
use crate::sync::Ordering;
use crate::words::{OwnedWords, Words};

/// A queue, and a clock that no two moments share: an atomic addition reads the newest value, so
/// stamps are in the order in which they were read.
struct Run {
    writer: QueueWriter<OwnedWords>,
    clock: AtomicU64,
}

impl Run {
    fn new(capacity: u64) -> Arc<Self> {
        let queue = QueueGeometry::new(8, capacity).expect("a valid geometry");
        let memory = OwnedWords::zeroed(queue.bytes() / 8);
        for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
            for (index, word) in words.into_iter().enumerate() {
                memory.word(at / 8 + index).store(word, Ordering::Relaxed);
            }
        }
        let writer = QueueWriter::new(memory, queue).expect("enough memory");
        let clock = AtomicU64::new(1);
        Arc::new(Self { writer, clock })
    }

    fn stamp(&self) -> Ticks {
        Ticks::from_raw(self.clock.fetch_add(1, Ordering::Relaxed))
    }

    /// The thread's writes; none is refused.
    fn write(&self, tid: u32, times: u64) {
        for number in 0..times {
            let payload = payload(tid, number);
            let written = self.writer.write(tid, &payload, || self.stamp());
            assert_eq!(written, Ok(()), "a write of {tid} is refused");
        }
    }

    fn reader(&self) -> Reader<OwnedWords> {
        let words = self.writer.words().share();
        Reader::from_start(words, *self.writer.geometry()).expect("enough memory")
    }

    /// Enqueues as a thread that dies before it moves `head`.
    fn die_before_advancing(&self, tid: u32) {
        let taken = self.writer.take().expect("an element is free");
        taken.fill_unchecked(&payload(tid, 0));
        taken.sign(tid, 0);
        let (words, queue) = (self.writer.words(), self.writer.geometry());
        let stamp = words.word(queue.element_word(taken.element));
        let head = Place(words.word(HEAD_WORD).load(Ordering::Acquire));
        stamp.store(self.stamp().as_raw(), Ordering::Relaxed);
        let filled = head.with_index(taken.element);
        let index = words.word(queue.index_word(head.position()));
        index.store(filled.0, Ordering::Release);
        core::mem::forget(taken);
    }
}

fn payload(tid: u32, number: u64) -> [u8; 8] {
    (u64::from(tid) * 100 + number).to_ne_bytes()
}

/// What a reader has seen: order and wholeness are checked as it goes.
#[derive(Default)]
struct Seen {
    next: u64,
    last: u64,
    delivered: Vec<(u64, u64)>,
    missed: u64,
    void: u64,
}

impl Seen {
    fn poll(&mut self, reader: &mut Reader<OwnedWords>) {
        let end = reader.published();
        let report = reader.poll_until(end, |found| match found {
            Found::Element(element) => {
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
            Found::Missed { first, count } => {
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
    fn conclude(mut self, run: &Run, mut reader: Reader<OwnedWords>, writes: u64) -> Self {
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

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Behind `before` elements of thread 1, threads 2, 3, ... write so often each; the model's own
/// thread polls meanwhile and afterwards.
fn race(preemptions: usize, before: u64, writes: &'static [u64], polls: usize) {
    explore(preemptions, move || {
        let run = Run::new(2);
        run.write(1, before);
        let (mut reader, mut seen) = (run.reader(), Seen::default());
        let threads: Vec<_> = (2..)
            .zip(writes)
            .map(|(tid, &times)| {
                let run = run.clone();
                thread::spawn(move || run.write(tid, times))
            })
            .collect();
        (0..polls).for_each(|_| seen.poll(&mut reader));
        for thread in threads {
            thread.join().expect("the writer ends");
        }
        let written = before + writes.iter().sum::<u64>();
        let _ = seen.conclude(&run, reader, written);
    });
}

#[test]
fn loom_queue_two_enqueue() {
    race(3, 0, &[1, 1], 0);
}

#[test]
fn loom_queue_is_not_empty_while_as_many_write_as_it_holds() {
    race(2, 0, &[2, 1], 0);
}

#[test]
fn loom_queue_reader_rejects_what_one_overwrites() {
    race(3, 1, &[2], 1);
}

#[test]
fn loom_queue_reader_sees_no_count_go_back() {
    race(2, 0, &[3], 1);
}

#[test]
fn loom_queue_reader_against_two() {
    race(2, 1, &[1, 1], 1);
}

#[test]
fn loom_queue_two_dequeue() {
    explore(3, || {
        let run = Run::new(2);
        let other = run.clone();
        let thread = thread::spawn(move || {
            let taken = other.writer.take().expect("an element is free");
            let element = taken.element;
            core::mem::forget(taken);
            element
        });
        let mine = run.writer.take().expect("an element is free");
        let theirs = thread.join().expect("the thread ends");
        assert_ne!(mine.element, theirs, "an element has one owner");
        assert!(run.writer.take().is_err(), "none is left");
        assert_eq!(run.writer.lost_full(), 1);
    });
}

#[test]
fn loom_queue_goes_on_without_a_dead_writer() {
    explore(2, || {
        let run = Run::new(4);
        core::mem::forget(run.writer.take().expect("an element is free"));
        let other = run.clone();
        let thread = thread::spawn(move || other.write(2, 1));
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let seen = Seen::default().conclude(&run, run.reader(), 2);
        assert_eq!(seen.missed, 0);
    });
}

#[test]
fn loom_queue_head_is_helped() {
    explore(2, || {
        let run = Run::new(4);
        run.die_before_advancing(3);
        let (mut reader, mut seen) = (run.reader(), Seen::default());
        let other = run.clone();
        let thread = thread::spawn(move || other.write(2, 1));
        seen.poll(&mut reader);
        assert_eq!(seen.delivered[0], (3, 0), "published although head lags");
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let _ = seen.conclude(&run, reader, 3);
    });
}

#[test]
fn loom_queue_what_lags_is_not_empty() {
    // One of two elements is dead, the other was enqueued by a thread that died behind it.
    explore(3, || {
        let run = Run::new(2);
        core::mem::forget(run.writer.take().expect("an element is free"));
        run.die_before_advancing(3);
        run.write(1, 1);
        let words = run.writer.words();
        let tail = Place(words.word(TAIL_WORD).load(Ordering::Relaxed));
        assert_eq!(tail.position(), 3);
        let _ = Seen::default().conclude(&run, run.reader(), 2);
    });
}

#[test]
fn loom_queue_abandoned_elements_are_void() {
    explore(2, || {
        let run = Run::new(2);
        let other = run.clone();
        let thread = thread::spawn(move || drop(other.writer.take().expect("an element is free")));
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let seen = Seen::default().conclude(&run, run.reader(), 2);
        assert_eq!((seen.delivered.len(), seen.void, seen.missed), (1, 1, 0));
    });
}
