// SPDX-License-Identifier: MIT OR Apache-2.0
//! Appendix: an element counter in two words of 32 bits, for targets without atomics of 64
//! (section 6 of the layout page; seed 000, section 4.1.1, figure 7).
//!
//! A ring whose geometry says so ([`Geometry::with_two_word_counter`]) has [`FLAG_TWO_WORD_COUNTER`] in its
//! header. [`TwoWordWriter`] writes it, and all readers of rings follow it. No directory hands one out so
//! far: the programs of the machines that it runs on have atomics of 64 bits.
//!
//! # Protocol
//!
//! The count has 63 bits: `high` holds all but the lowest 31, `low` holds those, and above them
//! the lowest bit of `high` again.
//!
//! Writer, alone, to publish a count:
//! 1. Store `low`, release: `SYNC(low)`.
//! 2. If its topmost bit changed, store `high`, release: `SYNC(high)`.
//!
//! Reader:
//! 1. Load `high`, acquire: `SYNC(high)`; `low`, acquire: `SYNC(low)`; `high` again, relaxed.
//! 2. If `high` changed, try again, three times at most. A second retry means that 2^31 elements and
//!    more were written meanwhile: the reader was asleep, or the memory is damaged.
//! 3. If the topmost bit of `low` differs from the lowest of `high`, the writer is between its two
//!    steps, or was when `low` was read: `high` is one more.
//!
//! Step 3 is never wrong by two: `low` of the count after next is stored after the next `high`, so
//! whoever has seen it finds `high` changed. Progress: wait-free on both sides.

use crate::layout::COUNTER_WORD;
use crate::sync::{AtomicU32, Ordering};
use crate::words::Words;

#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use writer::TwoWordWriter;

/// The header's flag for such a counter (section 2).
pub const FLAG_TWO_WORD_COUNTER: u32 = 1;

/// Bits of the count in `low`. Fewer under loom, so that a model sees `high` change.
const LOW_BITS: u32 = if cfg!(loom) { 1 } else { 31 };
const LOW_MASK: u64 = (1 << (LOW_BITS + 1)) - 1;
const RETRIES: u32 = 3;

/// The two words, as they lie in the header where others have one.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TwoWordCounter {
    low: AtomicU32,
    high: AtomicU32,
}

#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::offset_of!(TwoWordCounter, low) == 0);
    assert!(core::mem::offset_of!(TwoWordCounter, high) == 4);
    assert!(size_of::<TwoWordCounter>() == 8);
};

impl TwoWordCounter {
    /// A counter that says so many.
    #[must_use]
    pub fn new(count: u64) -> Self {
        Self {
            low: AtomicU32::new((count & LOW_MASK) as u32),
            high: AtomicU32::new((count >> LOW_BITS) as u32),
        }
    }

    /// Publishes the element behind `count` others, and returns their new number. Only the writer
    /// calls it, which knows the count; bit 63 is not kept.
    pub fn publish(&self, count: u64) -> u64 {
        let next = count.wrapping_add(1);
        // SYNC(low): pairs with the reader's load.
        self.low.store((next & LOW_MASK) as u32, Ordering::Release);
        if (next ^ count) >> LOW_BITS != 0 {
            // SYNC(high): pairs with the reader's first load.
            self.high
                .store((next >> LOW_BITS) as u32, Ordering::Release);
        }
        next
    }

    /// The number of elements that have been published; `None` if `high` changed again and again.
    #[must_use]
    pub fn load(&self) -> Option<u64> {
        // SYNC(high): pairs with the writer's store.
        let first = || self.high.load(Ordering::Acquire);
        // SYNC(low): pairs with the writer's store, and keeps the next load behind it.
        let low = || self.low.load(Ordering::Acquire);
        // Relaxed: SYNC(low) orders it.
        read(first, low, || self.high.load(Ordering::Relaxed))
    }
}

/// The reader's steps, with its loads.
#[inline(always)]
fn read(first: impl Fn() -> u32, low: impl Fn() -> u32, again: impl Fn() -> u32) -> Option<u64> {
    for _ in 0..=RETRIES {
        let (high, low) = (first(), low());
        if again() != high {
            continue;
        }
        let behind = (low >> LOW_BITS ^ high) & 1;
        let high = high.wrapping_add(behind);
        let below = u64::from(low) & (LOW_MASK >> 1);
        return Some(u64::from(high) << LOW_BITS | below);
    }
    None
}

/// The counter of a ring that has two words.
#[cfg(not(loom))]
fn counter(words: &impl Words) -> &TwoWordCounter {
    let word = words.word(COUNTER_WORD);
    // SAFETY: both are as large and at least as aligned as two words of 32 bits that may change while they are
    // shared; and whoever reaches this ring's counter does so by halves.
    unsafe { &*core::ptr::from_ref(word).cast() }
}

/// What the counter of such a ring says.
#[cfg(not(loom))]
pub(crate) fn load(words: &impl Words) -> Option<u64> {
    counter(words).load()
}

/// Models have no memory that is words of 64 bits to one and of 32 to another, and none with this flag.
#[cfg(loom)]
pub(crate) fn load(words: &impl Words) -> Option<u64> {
    Some(words.word(COUNTER_WORD).load(Ordering::Acquire))
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use core::cell::Cell;

    use overhear_event::{ClockId, Ticks, WriterKind};

    use super::{counter, read, TwoWordCounter, TwoWordWriter, RETRIES};
    use crate::layout::{Header, HeaderUntrusted};
    use crate::sync::Ordering;
    use crate::{Geometry, LayoutError, OwnedWords, Reader, SimpleWriter};

    #[test]
    fn a_reader_gives_up_after_its_retries() {
        // A high word that is another one at each load, as often as it has to be.
        for changes in 0..=2 * (RETRIES + 1) {
            let loads = Cell::new(0);
            let high = || {
                loads.set(loads.get() + 1);
                u32::min(loads.get() / 2, changes)
            };
            let found = read(high, || 0, high);
            let tries = u32::min(changes, RETRIES) + 1;
            assert_eq!(loads.get(), 2 * tries, "{changes} changes");
            assert_eq!(found.is_none(), changes > RETRIES, "{changes} changes");
        }
    }

    /// A writer and a reader beyond the border of the lower word.
    #[test]
    fn a_ring_with_two_words_is_written_and_read() {
        let geometry = Geometry::new(8, 16).unwrap();
        let flagged = geometry.with_two_word_counter();
        let memory = OwnedWords::zeroed(geometry.words());
        let header = |geometry| Header::new(geometry, WriterKind::Simple, ClockId::Monotonic, 7);
        header(&flagged).store(&memory);
        let found = HeaderUntrusted::load(&memory).unwrap();
        assert_eq!(found.check(&header(&flagged)), Ok(()));
        assert!(matches!(
            found.check(&header(&geometry)),
            Err(LayoutError::Contradiction {
                field: "flags",
                found: 1,
                expected: 0
            })
        ));
        assert!(matches!(
            SimpleWriter::new(memory.share(), flagged),
            Err(LayoutError::TwoWordCounter)
        ));

        let first = (1 << 31) - 100;
        let start = TwoWordCounter::new(first);
        counter(&memory)
            .low
            .store(start.low.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut reader = Reader::from_position(memory.share(), flagged, first).unwrap();
        const ELEMENTS: u64 = 100_000;
        let writing = memory.share();
        let writer = std::thread::spawn(move || {
            let mut writer = TwoWordWriter::new(writing, geometry).unwrap();
            for number in first..first + ELEMENTS {
                writer.write(&number.to_ne_bytes(), || Ticks::from_raw(number));
            }
        });
        let (mut delivered, mut missed) = (0, 0);
        while delivered + missed < ELEMENTS {
            let is_over = writer.is_finished();
            let report = reader
                .poll(usize::MAX, |element| {
                    let number = u64::from_ne_bytes(element.payload.try_into().unwrap());
                    assert_eq!(number, element.stamp.as_raw());
                    assert_eq!(number, element.sequence);
                })
                .unwrap();
            delivered += report.delivered;
            missed += report.missed;
            assert!(
                !is_over || delivered + missed == ELEMENTS,
                "all are passed at the end"
            );
        }
        writer.join().unwrap();
        assert!(delivered > 0);
        assert_eq!(reader.published(), first + ELEMENTS);
    }

    #[test]
    fn the_count_crosses_both_borders() {
        for border in [1_u64 << 31, 1 << 32, 3 << 31, 1 << 62] {
            let counter = TwoWordCounter::new(border - 2);
            let mut count = border - 2;
            for _ in 0..4 {
                assert_eq!(counter.load(), Some(count));
                count = counter.publish(count);
            }
        }
    }

    #[test]
    fn a_writer_between_its_steps_is_understood() {
        let count = (1 << 31) - 1;
        let counter = TwoWordCounter::new(count);
        // Step 1 of the next one.
        counter.low.store(1 << 31, Ordering::Relaxed);
        assert_eq!(counter.load(), Some(count + 1));
        assert_eq!(counter.high.load(Ordering::Relaxed), 0);
    }
}

#[cfg(all(test, loom, not(shuttle)))]
mod loom_tests {
    use loom::sync::atomic::AtomicU64;
    use loom::sync::Arc;
    use loom::thread;

    use super::{TwoWordCounter, RETRIES};
    use crate::sync::Ordering;

    use std::sync::atomic::{AtomicBool, Ordering as Plain};

    /// `high` changes as often as the reader tries: then it says that it does not know, and does not try
    /// for ever. If it says a count, it is one of those that were published.
    #[test]
    fn loom_a_reader_that_is_outrun_gives_up() {
        // Outside the models, to see what any of them has found.
        static GAVE_UP: AtomicBool = AtomicBool::new(false);
        static COUNTED: AtomicBool = AtomicBool::new(false);
        let changes = u64::from(RETRIES) + 1;
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(1);
        builder.check(move || {
            let (first, writes) = (1, 2 * changes);
            let counter = Arc::new(TwoWordCounter::new(first));
            let writing = {
                let counter = counter.clone();
                thread::spawn(move || {
                    (0..writes).fold(first, |count, _| counter.publish(count));
                })
            };
            match counter.load() {
                None => GAVE_UP.store(true, Plain::Relaxed),
                Some(count) => {
                    assert!((first..=first + writes).contains(&count), "{count}");
                    COUNTED.store(true, Plain::Relaxed);
                }
            }
            writing.join().expect("the writer ends");
            assert_eq!(counter.load(), Some(first + writes), "it is at rest");
        });
        assert!(GAVE_UP.load(Plain::Relaxed) && COUNTED.load(Plain::Relaxed));
    }

    /// `high` changes with every second element, twice in all. What is read lies between what was published before
    /// and what will be, never goes back, and comes with the elements.
    #[test]
    fn loom_two_words_are_read_as_one() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let first = 1;
            let shared = Arc::new((TwoWordCounter::new(first), AtomicU64::new(first)));
            let writing = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (counter, newest) = &*shared;
                    (0..3).fold(first, |count, _| {
                        newest.store(count + 1, Ordering::Relaxed);
                        counter.publish(count)
                    })
                })
            };
            let (counter, newest) = &*shared;
            let mut last = first;
            for _ in 0..2 {
                // Fewer than the retries.
                let count = counter.load().expect("few changes");
                assert!((last..=first + 3).contains(&count), "{last} to {count}");
                assert!(newest.load(Ordering::Relaxed) >= count, "with its element");
                last = count;
            }
            let count = writing.join().expect("the writer ends");
            assert_eq!(counter.load(), Some(count));
        });
    }
}
