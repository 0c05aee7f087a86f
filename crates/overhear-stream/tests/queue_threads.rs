// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue under many real threads: order, wholeness and counts, checked afterwards.
//!
//! Loom explores small runs completely; this test runs long ones on a real CPU. It checks
//! linearizability: there is one order, that of positions, and it agrees with real time and with
//! the stamps.
#![cfg(not(any(loom, miri)))]
#![allow(
    clippy::disallowed_types,
    reason = "the test's own threads tell each other when to end"
)]

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::{AtomicBool, AtomicU64, Ordering};
use overhear_stream::{
    hardware_clock, read_hardware_ticks_ordered, OwnedWords, QueueGeometry, QueueWriter, ReadItem,
    Reader, Shape, Words,
};

const THREADS: u32 = 6;
/// Payload: thread, number, and a word that shows whether the others belong together.
const PAYLOAD: u32 = 24;

fn queue(capacity: u64) -> QueueWriter<OwnedWords> {
    let queue = QueueGeometry::new(PAYLOAD, capacity).unwrap();
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    QueueWriter::new(memory, queue).unwrap()
}

fn reader(writer: &QueueWriter<OwnedWords>) -> Reader<OwnedWords> {
    Reader::from_start(writer.words().share(), *writer.geometry()).unwrap()
}

/// The clock of all threads: the CPU's counter, or nanoseconds where there is none.
fn now(start: Instant) -> Ticks {
    if hardware_clock().is_some() {
        read_hardware_ticks_ordered()
    } else {
        Ticks::from_raw(u64::try_from(start.elapsed().as_nanos()).unwrap())
    }
}

fn payload(tid: u32, number: u64) -> [u8; PAYLOAD as usize] {
    let words = [u64::from(tid), number, seal(tid, number)];
    let mut payload = [0; PAYLOAD as usize];
    for (chunk, word) in payload.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    payload
}

fn seal(tid: u32, number: u64) -> u64 {
    (u64::from(tid) << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The elements of a reader; checks order and integrity during the run.
struct Seen {
    next: u64,
    last: Ticks,
    // The next permitted number of each thread.
    numbers: [u64; THREADS as usize],
    delivered: u64,
    missed: u64,
    void: u64,
}

impl Seen {
    const fn new() -> Self {
        Self {
            next: 0,
            last: Ticks::from_raw(0),
            numbers: [0; THREADS as usize],
            delivered: 0,
            missed: 0,
            void: 0,
        }
    }

    /// Polls and delivers (sequence, thread, number, stamp).
    fn poll(
        &mut self,
        reader: &mut Reader<OwnedWords>,
        mut each: impl FnMut(u64, u32, u64, Ticks),
    ) {
        let end = reader.published();
        let report = reader.poll_until(end, |found| match found {
            ReadItem::Element(element) => {
                assert!(element.sequence >= self.next, "positions ascend");
                self.next = element.sequence + 1;
                assert!(element.stamp >= self.last, "stamps ascend with positions");
                self.last = element.stamp;
                let tid = u32::from_ne_bytes(element.payload[..4].try_into().unwrap());
                let word = |index: usize| {
                    let bytes = &element.payload[8 + index * 8..][..8];
                    u64::from_ne_bytes(bytes.try_into().unwrap())
                };
                let number = word(1);
                assert_eq!(word(0), u64::from(tid), "the writer is the payload's");
                assert_eq!(word(2), seal(tid, number), "the element is whole");
                let expected = &mut self.numbers[tid as usize];
                assert!(number >= *expected, "no element comes twice or too late");
                *expected = number + 1;
                each(element.sequence, tid, number, element.stamp);
            }
            ReadItem::Missed { first, count } => {
                assert!(first >= self.next);
                self.next = first + count;
            }
        });
        let report = report.unwrap();
        assert_eq!(reader.position(), end);
        self.delivered += report.delivered;
        self.missed += report.missed;
        self.void += report.void;
    }
}

/// Every thread records the begin and the end of each write. A write that ended before another
/// began has the lower position, and each stamp lies inside its write.
#[test]
fn order_of_positions_is_that_of_time() {
    const WRITES: u64 = 10_000;
    let (writer, start) = (queue(1 << 16), Instant::now());
    let barrier = Barrier::new(THREADS as usize);
    let spans: Vec<Vec<(Ticks, Ticks)>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|tid| {
                let (writer, barrier) = (&writer, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let write = |number| {
                        let begin = now(start);
                        let payload = payload(tid, number);
                        writer.write(tid, &payload, || now(start)).unwrap();
                        (begin, now(start))
                    };
                    (0..WRITES).map(write).collect()
                })
            })
            .collect();
        let join = threads.into_iter().map(|thread| thread.join().unwrap());
        join.collect()
    });
    let (mut seen, mut latest) = (Seen::new(), Ticks::from_raw(0));
    seen.poll(&mut reader(&writer), |_, tid, number, stamp| {
        let (begin, end) = spans[tid as usize][number as usize];
        assert!(begin <= stamp && stamp <= end, "stamped inside the write");
        // The latest begin of all earlier ones.
        assert!(latest <= end, "nothing before it began after it ended");
        latest = latest.max(begin);
    });
    let writes = u64::from(THREADS) * WRITES;
    assert_eq!((seen.delivered, seen.missed, seen.void), (writes, 0, 0));
    assert_eq!(writer.lost_full(), 0);
}

/// A reader's record of one element in [`contend`].
type Read = (u64, u32, u64, Ticks);
/// The begin and the end of each write of one thread.
type Spans = Vec<(Ticks, Ticks)>;

/// The same while the ring wraps again and again, every element is dequeued and enqueued, and
/// readers read and are lapped meanwhile. All readers must get the same order, and every missed
/// element is counted.
fn contend(capacity: u64) {
    const WRITES: u64 = 3_000;
    const READERS: usize = 2;
    let (writer, start) = (queue(capacity), Instant::now());
    let running = AtomicBool::new(true);
    let barrier = Barrier::new(THREADS as usize + READERS);
    let (spans, readers): (Vec<Spans>, Vec<(Seen, Vec<Read>)>) = thread::scope(|scope| {
        let reading: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let (mut seen, mut reader) = (Seen::new(), reader(&writer));
                    let mut elements = Vec::new();
                    let mut keep = |sequence, tid, number, stamp| {
                        elements.push((sequence, tid, number, stamp));
                    };
                    barrier.wait();
                    while running.load(Ordering::Relaxed) {
                        seen.poll(&mut reader, &mut keep);
                    }
                    seen.poll(&mut reader, &mut keep);
                    (seen, elements)
                })
            })
            .collect();
        let writing: Vec<_> = (0..THREADS)
            .map(|tid| {
                let (writer, barrier) = (&writer, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let write = |number| {
                        let begin = now(start);
                        let mut taken = writer.take().expect("an element for each thread");
                        taken.fill(&payload(tid, number));
                        if number % 1024 == 0 {
                            // The others continue with one element less.
                            thread::yield_now();
                        }
                        taken.commit(tid, || now(start));
                        (begin, now(start))
                    };
                    (0..WRITES).map(write).collect()
                })
            })
            .collect();
        let join = writing.into_iter().map(|thread| thread.join().unwrap());
        let spans = join.collect();
        running.store(false, Ordering::Relaxed);
        let join = reading.into_iter().map(|thread| thread.join().unwrap());
        (spans, join.collect())
    });
    let published = u64::from(THREADS) * WRITES;
    assert_eq!(writer.lost_full(), 0);
    let mut all = BTreeMap::new();
    let mut positions = BTreeMap::new();
    for (seen, elements) in &readers {
        assert_eq!(seen.delivered + seen.missed, published, "exact");
        assert_eq!((seen.delivered, seen.void), (elements.len() as u64, 0));
        assert!(
            seen.delivered >= capacity.min(published),
            "the last are there"
        );
        for &(sequence, tid, number, stamp) in elements {
            let first = *all.entry(sequence).or_insert((tid, number, stamp));
            assert_eq!(first, (tid, number, stamp), "one element at a position");
            let place = *positions.entry((tid, number)).or_insert(sequence);
            assert_eq!(place, sequence, "one position of an element");
        }
    }
    let (mut latest, mut last) = (Ticks::from_raw(0), Ticks::from_raw(0));
    for (tid, number, stamp) in all.values() {
        let (begin, end) = spans[*tid as usize][*number as usize];
        assert!(begin <= *stamp && *stamp <= end, "stamped inside the write");
        assert!(last <= *stamp, "stamps ascend with positions");
        assert!(latest <= end, "nothing before it began after it ended");
        (latest, last) = (latest.max(begin), *stamp);
    }
    println!(
        "capacity {capacity}: {} of {published} read, in {} rounds of the ring",
        all.len(),
        published / capacity
    );
}

#[test]
fn order_of_positions_is_that_of_time_in_a_ring_that_is_used_again() {
    [8, 64, 256].into_iter().for_each(contend);
}

/// A small queue, so that the reader is lapped. Every tenth write is abandoned; some are held until
/// the thread is preempted.
fn race(capacity: u64, writes: u64) {
    let (writer, start) = (queue(capacity), Instant::now());
    let (running, refused) = (AtomicBool::new(true), AtomicU64::new(0));
    let mut seen = Seen::new();
    let mut abandoned = 0;
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut seen, mut reader) = (Seen::new(), reader(&writer));
            while running.load(Ordering::Relaxed) {
                seen.poll(&mut reader, |_, _, _, _| ());
            }
            seen.poll(&mut reader, |_, _, _, _| ());
            seen
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|tid| {
                let (writer, refused) = (&writer, &refused);
                scope.spawn(move || {
                    let mut abandoned = 0;
                    for number in 0..writes {
                        let Ok(mut taken) = writer.take() else {
                            refused.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            continue;
                        };
                        taken.fill(&payload(tid, number));
                        if number % 64 == 0 {
                            thread::yield_now();
                        }
                        if number % 10 == 3 {
                            abandoned += 1;
                            drop(taken);
                        } else {
                            taken.commit(tid, || now(start));
                        }
                    }
                    abandoned
                })
            })
            .collect();
        for thread in threads {
            abandoned += thread.join().unwrap();
        }
        running.store(false, Ordering::Relaxed);
        seen = reading.join().unwrap();
    });
    let refused = refused.load(Ordering::Relaxed);
    let written = u64::from(THREADS) * writes - refused;
    assert_eq!(seen.delivered + seen.missed + seen.void, written);
    assert_eq!(writer.lost_full(), refused, "each refusal is counted once");
    assert!(seen.void <= abandoned);
    assert!(seen.delivered + seen.void >= capacity.min(written));
    if capacity >= u64::from(THREADS) {
        assert_eq!(refused, 0, "an element for each thread");
    }
    // No thread holds one: all elements are there again, each once.
    let all: Vec<_> = (0..capacity).map(|_| writer.take().unwrap()).collect();
    assert!(writer.take().is_err());
    drop(all);
    println!(
        "capacity {capacity}: {} delivered, {} missed, {} void, {refused} refused",
        seen.delivered, seen.missed, seen.void
    );
}

#[test]
fn every_element_of_many_threads_is_intact_or_counted() {
    race(8, 30_000);
    race(256, 30_000);
}

#[test]
fn too_few_elements_refuse_and_count() {
    race(2, 20_000);
    race(4, 20_000);
}
