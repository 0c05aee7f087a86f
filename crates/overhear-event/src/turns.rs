// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose turn it is: the heap of a merge, live or over a trace.
//!
//! Streams that alternate change the heap's top with every element. The standard library's heap
//! would sift twice for that (pop, push) and does not show the runner-up while the top is held;
//! this one replaces the top in place, with one sift.

use alloc::vec::Vec;

use crate::{StreamId, Timestamp};

/// A stream's place in the total order: the time of what comes next from it, then the stream's
/// number. It also carries where the merge keeps the stream, its *index*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn(u128);

impl Turn {
    /// The place of the stream that is kept at `index`. Of two streams with the same number the
    /// index decides; there should be none.
    #[must_use]
    pub const fn new(time: Timestamp, stream: StreamId, index: u32) -> Self {
        let stream = (stream.as_raw() as u64) << 32 | index as u64;
        Self((time.as_monotonic_ns() as u128) << 64 | stream as u128)
    }

    /// The place before every stream's at this time.
    #[must_use]
    pub const fn begin_of(time: Timestamp) -> Self {
        Self((time.as_monotonic_ns() as u128) << 64)
    }

    /// The same stream's place at another time.
    #[inline(always)]
    #[must_use]
    pub const fn at(self, time: Timestamp) -> Self {
        Self((time.as_monotonic_ns() as u128) << 64 | (self.0 as u64) as u128)
    }

    /// Where the merge keeps the stream.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A binary heap, the least turn on top.
#[derive(Debug, Default)]
pub struct Turns(Vec<Turn>);

impl Turns {
    /// A heap of these turns, in whatever order they come.
    #[must_use]
    pub fn new(mut turns: Vec<Turn>) -> Self {
        // A sorted row is a heap.
        turns.sort_unstable();
        Self(turns)
    }

    /// Begins anew with these turns, in the memory that there is.
    pub fn refill(&mut self, turns: impl Iterator<Item = Turn>) {
        self.0.clear();
        self.0.extend(turns);
        self.0.sort_unstable();
    }

    /// Makes room for so many turns.
    pub fn reserve(&mut self, turns: usize) {
        self.0.reserve(turns.saturating_sub(self.0.len()));
    }

    /// The least.
    #[inline]
    #[must_use]
    pub fn top(&self) -> Option<Turn> {
        self.0.first().copied()
    }

    /// The one that comes after the top.
    #[inline]
    #[must_use]
    pub fn runner_up(&self) -> Option<Turn> {
        match self.0.get(1..3) {
            Some(&[left, right]) => Some(left.min(right)),
            _ => self.0.get(1).copied(),
        }
    }

    /// The top's stream has something later.
    #[inline]
    pub fn replace_top(&mut self, turn: Turn) {
        if let Some(top) = self.0.first_mut() {
            *top = turn;
            self.sift();
        }
    }

    /// The top's stream has nothing more.
    pub fn remove_top(&mut self) {
        if !self.0.is_empty() {
            self.0.swap_remove(0);
            self.sift();
        }
    }

    /// Moves the top to its place. It goes down to a leaf along the lesser children, and from there up
    /// (Floyd's way): streams that take turns put a late turn on top, and then each level costs one
    /// comparison whose outcome is used as a number, not as a branch that cannot be predicted.
    #[inline]
    fn sift(&mut self) {
        let heap = &mut self.0[..];
        let Some(&moving) = heap.first() else {
            return;
        };
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            let Some(&[first, second]) = heap.get(left..left + 2) else {
                break;
            };
            let is_second = second < first;
            heap[at] = if is_second { second } else { first };
            at = left + usize::from(is_second);
        }
        // A left child without a brother.
        if let Some(&only) = heap.get(2 * at + 1) {
            heap[at] = only;
            at = 2 * at + 1;
        }
        while at > 0 && moving < heap[(at - 1) / 2] {
            heap[at] = heap[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        heap[at] = moving;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Turn, Turns};
    use crate::{StreamId, Timestamp};

    proptest! {
        #[test]
        fn it_agrees_with_a_sorted_set(starts in proptest::collection::vec(0_u64..9, 0..9),
                                       steps in proptest::collection::vec(any::<Option<u8>>(), 0..99)) {
            let at = Timestamp::from_monotonic_ns;
            let turn = |(index, &time)| Turn::new(at(time), StreamId::from_raw(index), index);
            let all = (0_u32..).zip(starts.iter()).map(turn);
            let mut set: BTreeSet<_> = all.clone().collect();
            let mut turns = Turns::new(all.collect());
            for step in steps {
                prop_assert_eq!(turns.top(), set.first().copied());
                prop_assert_eq!(turns.runner_up(), set.iter().nth(1).copied());
                let Some(top) = set.pop_first() else { break };
                match step {
                    Some(later) => {
                        let next = top.at(at((top.0 >> 64) as u64 + u64::from(later % 5)));
                        prop_assert_eq!(next.index(), top.index());
                        set.insert(next);
                        turns.replace_top(next);
                    }
                    None => turns.remove_top(),
                }
            }
        }
    }
}
