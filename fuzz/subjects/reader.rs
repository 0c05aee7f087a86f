// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader over memory that a hostile process writes: any words, any counter, between polls and
//! while elements are delivered. It must not panic, must not deliver more than a ring holds, and
//! its counts must add up to the positions it passed.

use arbitrary::Arbitrary;
use overhear_stream::sync::Ordering;
use overhear_stream::{Geometry, OwnedWords, Reader, Words, COUNTER_OFFSET};

/// Geometry, memory, and the operations on it.
#[derive(Arbitrary, Debug)]
pub(crate) struct Input {
    payload_bytes: u16,
    more_stride_words: u8,
    capacity_power: u8,
    from_now: bool,
    words: Vec<u64>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// The counter jumps.
    Counter(u64),
    /// The counter advances like that of an honest writer.
    Advance(u8),
    /// A word of the stream changes.
    Store(u16, u64),
    /// The reader polls; the counter changes at its first element.
    Poll { limit: u16, meanwhile: Option<u64> },
}

/// Runs one input.
pub(crate) fn run(input: Input) {
    let payload_bytes = u32::from(input.payload_bytes % 64);
    let stride_bytes = (payload_bytes.div_ceil(8) + 1 + u32::from(input.more_stride_words % 4)) * 8;
    let capacity = 1 << (1 + input.capacity_power % 10);
    let geometry = Geometry::with_stride(payload_bytes, stride_bytes, capacity)
        .expect("these numbers are in range");
    let memory = OwnedWords::zeroed(geometry.words());
    for (index, word) in input.words.into_iter().enumerate().take(memory.len()) {
        memory.word(index).store(word, Ordering::Relaxed);
    }
    let counter = || memory.word(COUNTER_OFFSET / 8);
    let make = if input.from_now {
        Reader::from_now
    } else {
        Reader::from_start
    };
    let mut reader = make(memory.share(), geometry).expect("enough memory");
    for step in input.steps {
        match step {
            Step::Counter(value) => counter().store(value, Ordering::Relaxed),
            Step::Advance(by) => {
                counter().fetch_add(u64::from(by), Ordering::Relaxed);
            }
            Step::Store(at, word) => {
                memory
                    .word(usize::from(at) % memory.len())
                    .store(word, Ordering::Relaxed);
            }
            Step::Poll { limit, meanwhile } => {
                let before = reader.position();
                let mut seen = 0;
                let report = reader.poll(usize::from(limit), |element| {
                    assert_eq!(element.payload.len(), payload_bytes as usize);
                    seen += 1;
                    if let Some(value) = meanwhile {
                        counter().store(value, Ordering::Relaxed);
                    }
                });
                assert!(seen < capacity && seen <= u64::from(limit));
                if let Ok(report) = report {
                    assert_eq!(report.delivered, seen);
                    let passed = reader.position().wrapping_sub(before);
                    assert_eq!(report.delivered.wrapping_add(report.missed), passed);
                }
            }
        }
    }
}
