// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocates the numbers of streams. Pure.
//!
//! A sensor takes one number per stream: a laned sensor as many consecutive ones as it has lanes.
//! It returns them when the directory forgets the sensor. Numbers are handed out in ascending
//! order; at the end of the range the search starts again at the first, and skips those in use. So
//! no sequence of registrations exhausts them, and a number is reused only after all others.

use std::collections::BTreeMap;

use overhear_event::{StreamId, StreamIdRange};

/// The numbers in use, out of a range.
#[derive(Debug)]
pub(crate) struct StreamNumbers {
    range: StreamIdRange,
    // Where the search for free numbers starts; from the range's first number to its end.
    next: u32,
    // First number of each allocation, and its count. No two overlap.
    in_use: BTreeMap<u32, u32>,
}

impl StreamNumbers {
    pub(super) const fn new(range: StreamIdRange) -> Self {
        Self {
            range,
            next: range.first().as_raw(),
            in_use: BTreeMap::new(),
        }
    }

    /// Takes `count` consecutive numbers and returns the first; `None` if no such run is free.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let (mut at, mut has_wrapped) = (self.next, false);
        loop {
            if u64::from(at) + u64::from(count) > u64::from(self.range.end().as_raw()) {
                if std::mem::replace(&mut has_wrapped, true) {
                    return None;
                }
                at = self.range.first().as_raw();
                continue;
            }
            // The last allocation that begins before the end of this one is the only one that can
            // overlap it at its end.
            match self.in_use.range(..at + count).next_back() {
                Some((first, used)) if first + used > at => at = first + used,
                _ => break,
            }
        }
        self.in_use.insert(at, count);
        self.next = at + count;
        Some(at)
    }

    /// Marks the numbers of a sensor from before a restart as in use.
    pub(super) fn claim(&mut self, first: u32, count: u32) {
        self.in_use.insert(first, count);
    }

    pub(super) fn give_back(&mut self, first: u32) {
        self.in_use.remove(&first);
    }

    /// Where the search for free numbers starts.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Sets the start of the search, as it was before a restart.
    pub(super) const fn resume_at(&mut self, next: u32) {
        let rest = self.range.starting_at(StreamId::from_raw(next));
        self.next = rest.first().as_raw();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use overhear_event::{StreamId, StreamIdRange};

    use super::StreamNumbers;

    const END: u32 = StreamIdRange::SESSION.end().as_raw();

    fn numbers_from(first: u32) -> StreamNumbers {
        let first = StreamId::from_raw(first);
        StreamNumbers::new(StreamIdRange::SESSION.starting_at(first))
    }

    #[test]
    fn allocation_wraps_at_the_end_of_the_range() {
        let mut numbers = numbers_from(5);
        assert_eq!(numbers.take(3), Some(5));
        assert_eq!(numbers.take(1), Some(8));
        numbers.give_back(5);
        numbers.resume_at(END - 2);
        assert_eq!(numbers.take(2), Some(END - 2));
        // Numbers 5 to 7 are free, and 8 is in use.
        assert_eq!(numbers.take(4), Some(9));
        numbers.resume_at(END);
        assert_eq!(numbers.take(3), Some(5));
        assert_eq!(numbers.take(u32::MAX), None);
        let mut few = numbers_from(END - 3);
        assert_eq!(few.take(2), Some(END - 3));
        assert_eq!(few.take(2), None);
        assert_eq!(few.take(1), Some(END - 1));
        few.give_back(END - 3);
        assert_eq!(few.take(2), Some(END - 3));
    }

    proptest! {
        #[test]
        fn allocated_numbers_never_overlap(steps in prop::collection::vec((1_u32..5, prop::bool::ANY), 0..200)) {
            let mut numbers = numbers_from(END - 40);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (count, gives_back) in steps {
                if gives_back && !held.is_empty() {
                    let (first, _) = held.remove(count as usize % held.len());
                    numbers.give_back(first);
                } else if let Some(first) = numbers.take(count) {
                    prop_assert!(first >= END - 40 && first + count <= END);
                    prop_assert!(held.iter().all(|(from, used)| first + count <= *from || from + used <= first));
                    held.push((first, count));
                } else {
                    let used: u32 = held.iter().map(|(_, used)| used).sum();
                    prop_assert!(used > 0);
                }
            }
        }
    }
}
