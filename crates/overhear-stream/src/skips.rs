// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that a budget keeps from being made, counted by their writer (section 5.5).
//!
//! While the switch of a sensor is [`SwitchState::Counted`](crate::SwitchState), a write stores
//! nothing but these words of the header page:
//!
//! - `skipped`: number of skipped writes.
//! - `skipped_at`: the position of the next element at the last of them.
//! - `skip_runs`: number of runs. A run is a series of skipped writes without an element between.
//!
//! # Protocol
//!
//! The words are statistics: they order nothing and are relaxed on both sides. But the writer
//! stores them before it publishes its next element, with release. A reader that has loaded the
//! counter with acquire finds all skipped writes before the elements that it may read. If it finds
//! one run since it last looked, it knows between which elements the run lies. If it finds more, it
//! knows that of the last one.

use crate::layout::{SKIPPED_AT_WORD, SKIPPED_WORD, SKIP_RUNS_WORD};
use crate::sync::Ordering;
use crate::words::Words;

/// Skipped writes of a ring, or of a queue, since it was registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    /// Number of skipped writes.
    pub count: u64,
    /// Position of the next element at the last one; in a queue's header, modulo 2^48.
    pub at: u64,
    /// Number of runs.
    pub runs: u64,
}

impl Skips {
    /// Reads the words of a header page.
    ///
    /// # Panics
    /// If there is no header.
    #[must_use]
    pub fn of_header(words: &impl Words) -> Self {
        // Relaxed: statistics, see the protocol.
        let load = |word| words.word(word).load(Ordering::Relaxed);
        Self {
            count: load(SKIPPED_WORD),
            at: load(SKIPPED_AT_WORD),
            runs: load(SKIP_RUNS_WORD),
        }
    }

    /// What was added since an earlier look. The words come from another process: the number of
    /// runs is at least one if writes were skipped.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let count = self.count.wrapping_sub(earlier.count);
        let runs = self.runs.wrapping_sub(earlier.runs);
        Self {
            count,
            at: self.at,
            runs: runs.max(u64::from(count > 0)),
        }
    }
}

/// Counts a write of the only writer of a ring. `position` is that of the next element.
#[cold]
pub(crate) fn skip_in_ring(words: &impl Words, position: u64) {
    // Relaxed: see the protocol. One writer, so the additions need not be atomic.
    let add = |word| {
        let word = words.word(word);
        let value = word.load(Ordering::Relaxed);
        word.store(value.wrapping_add(1), Ordering::Relaxed);
        value
    };
    let is_first = add(SKIPPED_WORD) == 0;
    let at = words.word(SKIPPED_AT_WORD);
    if is_first || at.load(Ordering::Relaxed) != position {
        at.store(position, Ordering::Relaxed);
        add(SKIP_RUNS_WORD);
    }
}

/// Counts a write of one of several writers of a queue. `position` is that of `head`.
#[cold]
pub(crate) fn skip_in_queue(words: &impl Words, position: u64) {
    // Relaxed: see the protocol.
    let is_first = words.word(SKIPPED_WORD).fetch_add(1, Ordering::Relaxed) == 0;
    let at = words.word(SKIPPED_AT_WORD);
    // Two threads that find the same new position count two runs: one too many does no harm.
    if is_first || at.load(Ordering::Relaxed) != position {
        at.store(position, Ordering::Relaxed);
        words.word(SKIP_RUNS_WORD).fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{skip_in_queue, skip_in_ring, Skips};
    use crate::words::{OwnedWords, Words};

    fn runs_of(skip: impl Fn(&OwnedWords, u64)) -> Skips {
        let memory = OwnedWords::zeroed(512);
        for position in [0, 0, 7, 7, 7, 9] {
            skip(&memory, position);
        }
        assert_eq!(memory.len(), 512);
        Skips::of_header(&memory)
    }

    #[test]
    fn skipped_writes_at_one_position_are_one_run() {
        let (count, at, runs) = (6, 9, 3);
        let expected = Skips { count, at, runs };
        assert_eq!(runs_of(skip_in_ring), expected);
        assert_eq!(runs_of(skip_in_queue), expected);
        let earlier = Skips {
            count: 5,
            at: 7,
            runs: 2,
        };
        let one = Skips {
            count: 1,
            at: 9,
            runs: 1,
        };
        assert_eq!(expected.since(&earlier), one);
        assert_eq!(expected.since(&expected).runs, 0);
    }

    #[test]
    fn damaged_number_of_runs_is_at_least_one() {
        let damaged = Skips {
            count: 3,
            at: 0,
            runs: 0,
        };
        assert_eq!(damaged.since(&Skips::default()).runs, 1);
    }
}
