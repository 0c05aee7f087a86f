// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a header that count and order nothing (section 2).

use overhear_event::WriterKind;

use crate::layout::COUNTER_OFFSET;
use crate::shape::Shape;
use crate::sync::Ordering;
use crate::words::Words;

const COUNTER: usize = COUNTER_OFFSET / 8;
const LOST_NESTED: usize = 136 / 8;
const LOST_FULL: usize = 144 / 8;
const OWNER: usize = 160 / 8;

/// The counts of written and refused elements in a header page. Statistics: the words come from the
/// sensor's process, are read relaxed and one after the other, and prove nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Elements written since the sensor was registered.
    pub published: u64,
    /// Writes refused because they were nested in another of the same thread.
    pub lost_nested: u64,
    /// Writes refused because no element or lane was free.
    pub lost_full: u64,
}

impl Tally {
    /// Whether nothing was written and nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the header page that begins at the word `at`.
    ///
    /// # Panics
    /// If there is no header.
    #[must_use]
    pub fn of_header(words: &impl Words, at: usize) -> Self {
        // Relaxed: statistics.
        let load = |word| words.word(at + word).load(Ordering::Relaxed);
        Self {
            published: load(COUNTER),
            lost_nested: load(LOST_NESTED),
            lost_full: load(LOST_FULL),
        }
    }

    /// Reads all header pages of a sensor and adds them up.
    ///
    /// # Panics
    /// If the memory is smaller than the shape.
    #[must_use]
    pub fn of_sensor(words: &impl Words, shape: &Shape) -> Self {
        let head = Self::of_header(words, 0);
        match shape {
            Shape::Simple(_) => head,
            // `head` is a position in the upper 48 bits, and begins behind the dummy elements.
            Shape::Concurrent(queue) => Self {
                published: (head.published >> 16).wrapping_sub(queue.capacity()) & (u64::MAX >> 16),
                ..head
            },
            Shape::Laned(pool) => (0..pool.lanes()).fold(
                Self {
                    published: 0,
                    ..head
                },
                |sum, lane| {
                    let lane = Self::of_header(words, pool.lane_offset(lane) / 8);
                    Self {
                        published: sum.published.wrapping_add(lane.published),
                        lost_nested: sum.lost_nested.wrapping_add(lane.lost_nested),
                        lost_full: sum.lost_full.wrapping_add(lane.lost_full),
                    }
                },
            ),
        }
    }
}

/// The owner word of a lane: its thread, 0 if not claimed yet (section 5.2).
///
/// # Panics
/// If the shape has no such lane, or the memory is smaller than the shape.
#[must_use]
pub fn lane_owner(words: &impl Words, shape: &Shape, lane: u32) -> u64 {
    let Shape::Laned(pool) = shape else {
        panic!("a {} sensor has no lanes", WriterKind::name(shape.kind()));
    };
    assert!(lane < pool.lanes(), "lane {lane} of {}", pool.lanes());
    let word = pool.lane_offset(lane) / 8 + OWNER;
    // Relaxed: the directory acts on it only once the thread it names has ended, and gives back
    // exactly this word, so a claim that it did not see stays as it is.
    words.word(word).load(Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use overhear_event::WriterKind;

    use super::{lane_owner, Tally, COUNTER, LOST_FULL, LOST_NESTED, OWNER};
    use crate::shape::Shape;
    use crate::sync::Ordering;
    use crate::words::{OwnedWords, Words};

    #[test]
    fn sensor_is_the_sum_of_its_lanes() {
        let shape = Shape::new(WriterKind::Laned, 8, 16, 3).unwrap();
        let memory = OwnedWords::zeroed(shape.bytes() / 8);
        let set = |word: usize, value| memory.word(word).store(value, Ordering::Relaxed);
        set(LOST_FULL, 5);
        for (lane, count) in [(0, 7), (2, 11)] {
            let at = (4096 + lane * 8192) / 8;
            set(at + COUNTER, count);
            set(at + LOST_NESTED, 1);
            set(at + OWNER, 40 + lane as u64);
        }
        let expected = Tally {
            published: 18,
            lost_nested: 2,
            lost_full: 5,
        };
        assert_eq!(Tally::of_sensor(&memory, &shape), expected);
        let owners = [0, 1, 2].map(|lane| lane_owner(&memory, &shape, lane));
        assert_eq!(owners, [40, 0, 42]);
    }

    #[test]
    fn queue_counts_from_behind_its_dummies() {
        let shape = Shape::new(WriterKind::Concurrent, 8, 16, 0).unwrap();
        let memory = OwnedWords::zeroed(shape.bytes() / 8);
        memory
            .word(COUNTER)
            .store((16 + 3) << 16, Ordering::Relaxed);
        assert_eq!(Tally::of_sensor(&memory, &shape).published, 3);
    }
}
