// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of streams. Pure.
//!
//! A sensor takes as many as it has lanes, one behind the other, and gives them back when the directory
//! forgets it. They are handed out in ascending order and begin again at the first, passing over those in
//! use: nobody can use them up, and a number comes back only after all others.

use std::collections::BTreeMap;

/// Numbers from here on are those of streams that no directory knows (`overhear`'s further sources).
const END: u32 = 1 << 30;

/// Which numbers are in use.
#[derive(Debug)]
pub(crate) struct StreamNumbers {
    // The least number; smaller ones are the kernel's.
    first: u32,
    // Where the next free one is looked for.
    next: u32,
    // How many are in use from a number on.
    in_use: BTreeMap<u32, u32>,
}

impl StreamNumbers {
    pub(super) const fn new(first: u32) -> Self {
        Self {
            first,
            next: first,
            in_use: BTreeMap::new(),
        }
    }

    /// Takes numbers that follow one another; none if there are none so many.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let (mut at, mut has_begun_again) = (self.next, false);
        loop {
            if u64::from(at) + u64::from(count) > u64::from(END) {
                if std::mem::replace(&mut has_begun_again, true) {
                    return None;
                }
                at = self.first;
                continue;
            }
            // The last range that begins before the end of this one is the only one that can overlap it
            // at its end.
            match self.in_use.range(..at + count).next_back() {
                Some((first, used)) if first + used > at => at = first + used,
                _ => break,
            }
        }
        self.in_use.insert(at, count);
        self.next = at + count;
        Some(at)
    }

    /// Numbers that a sensor of an earlier life has.
    pub(super) fn claim(&mut self, first: u32, count: u32) {
        self.in_use.insert(first, count);
    }

    pub(super) fn give_back(&mut self, first: u32) {
        self.in_use.remove(&first);
    }

    /// Where the next free number is looked for.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// The same, of an earlier life.
    pub(super) fn go_on_from(&mut self, next: u32) {
        self.next = next.clamp(self.first, END);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest};

    use super::{StreamNumbers, END};

    #[test]
    fn numbers_begin_again_behind_the_last() {
        let mut numbers = StreamNumbers::new(5);
        assert_eq!(numbers.take(3), Some(5));
        assert_eq!(numbers.take(1), Some(8));
        numbers.give_back(5);
        numbers.go_on_from(END - 2);
        assert_eq!(numbers.take(2), Some(END - 2));
        // Only three are free before the one in use.
        assert_eq!(numbers.take(4), Some(9));
        numbers.go_on_from(END);
        assert_eq!(numbers.take(3), Some(5));
        assert_eq!(numbers.take(u32::MAX), None);
        let mut few = StreamNumbers::new(END - 3);
        assert_eq!(few.take(2), Some(END - 3));
        assert_eq!(few.take(2), None);
        assert_eq!(few.take(1), Some(END - 1));
        few.give_back(END - 3);
        assert_eq!(few.take(2), Some(END - 3));
    }

    proptest! {
        #[test]
        fn no_number_is_taken_twice(steps in prop::collection::vec((1_u32..5, prop::bool::ANY), 0..200)) {
            let mut numbers = StreamNumbers::new(END - 40);
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
