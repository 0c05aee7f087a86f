// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader and the writer of a queue over memory that a hostile process writes: any words, any
//! `head`, `tail` and indices, between calls and while elements are delivered. They must neither
//! panic nor loop, a poll must not deliver more than the queue holds, and its counts must add up to
//! the positions it passed.

use arbitrary::Arbitrary;
use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{OwnedWords, QueueGeometry, QueueWriter, Reader, Shape, Words};

/// Geometry, memory, and the operations on it.
#[derive(Arbitrary, Debug)]
pub(crate) struct Input {
    payload_bytes: u16,
    capacity_power: u8,
    begin: u8,
    words: Vec<(u16, u64)>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// `head` (false) or `tail` moves by this number of positions, its index follows.
    Move(bool, i16),
    /// A word of the stream changes.
    Store(u16, u64),
    /// A write, which may be refused; every other is abandoned.
    Write(bool),
    /// The reader polls; a word changes at its first element.
    Poll {
        limit: u16,
        meanwhile: Option<(u16, u64)>,
    },
}

/// Runs one input.
pub(crate) fn run(input: Input) {
    let payload_bytes = u32::from(input.payload_bytes % 64);
    let capacity = 1 << (1 + input.capacity_power % 10);
    let queue = QueueGeometry::new(payload_bytes, capacity).expect("these numbers are in range");
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    let store = |(at, word): (u16, u64)| {
        let at = usize::from(at) % memory.len();
        memory.word(at).store(word, Ordering::Relaxed);
    };
    input.words.into_iter().for_each(store);
    let writer = QueueWriter::new(memory.share(), queue).expect("enough memory");
    let payload = vec![7; payload_bytes as usize];
    let words = memory.share();
    let mut reader = match input.begin % 3 {
        0 => Reader::from_start(words, queue),
        1 => Reader::from_now(words, queue),
        _ => Reader::from_oldest(words, queue),
    }
    .expect("enough memory");
    for step in input.steps {
        match step {
            Step::Move(tail, by) => {
                let word = memory.word(if tail { 16 } else { 8 });
                let position = word.load(Ordering::Relaxed) >> 16;
                let position = position.wrapping_add_signed(by.into());
                let index = position << 16 | position & (capacity - 1);
                word.store(index, Ordering::Relaxed);
            }
            Step::Store(at, word) => store((at, word)),
            Step::Write(true) => {
                let _ = writer.write(1, &payload, || Ticks::from_raw(1));
            }
            Step::Write(false) => drop(writer.take()),
            Step::Poll {
                limit,
                mut meanwhile,
            } => {
                let (before, mut seen) = (reader.position(), 0);
                let report = reader.poll(usize::from(limit), |element| {
                    assert_eq!(element.payload.len(), 8 + payload.len());
                    seen += 1;
                    if let Some(change) = meanwhile.take() {
                        store(change);
                    }
                });
                assert!(seen <= capacity && seen <= u64::from(limit));
                if let Ok(report) = report {
                    assert_eq!(report.delivered, seen);
                    let passed = report.delivered + report.missed + report.void;
                    assert_eq!(passed, reader.position().wrapping_sub(before));
                }
            }
        }
    }
}
