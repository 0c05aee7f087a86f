// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose turn it is: the heap of the merge.
//!
//! Streams that alternate change the heap's top with every element. The standard library's heap
//! would sift twice for that (pop, push) and does not show the runner-up while the top is held;
//! this one replaces the top in place, with one sift.

use overhear_event::Timestamp;

/// A stream's place in the total order: the time of what comes next from it, then its index,
/// which ascends with the stream's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u128);

impl Turn {
    pub(crate) const fn new(time: Timestamp, index: usize) -> Self {
        Self((time.as_monotonic_ns() as u128) << 64 | index as u128)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as u64 as usize
    }
}

/// A binary heap, the least turn on top.
#[derive(Debug, Default)]
pub(crate) struct Turns(Vec<Turn>);

impl Turns {
    pub(crate) fn new(mut turns: Vec<Turn>) -> Self {
        // A sorted row is a heap.
        turns.sort_unstable();
        Self(turns)
    }

    pub(crate) fn top(&self) -> Option<Turn> {
        self.0.first().copied()
    }

    /// The one that comes after the top.
    pub(crate) fn runner_up(&self) -> Option<Turn> {
        match self.0.get(1..3) {
            Some(&[left, right]) => Some(left.min(right)),
            _ => self.0.get(1).copied(),
        }
    }

    /// The top's stream has something later.
    pub(crate) fn replace_top(&mut self, turn: Turn) {
        if let Some(top) = self.0.first_mut() {
            *top = turn;
            self.sift();
        }
    }

    /// The top's stream has nothing more.
    pub(crate) fn remove_top(&mut self) {
        if !self.0.is_empty() {
            self.0.swap_remove(0);
            self.sift();
        }
    }

    /// Moves the top down until both of its children are later.
    fn sift(&mut self) {
        let heap = &mut self.0[..];
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= heap.len() {
                return;
            }
            if child + 1 < heap.len() && heap[child + 1] < heap[child] {
                child += 1;
            }
            if heap[at] <= heap[child] {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use overhear_event::Timestamp;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Turn, Turns};

    proptest! {
        #[test]
        fn it_agrees_with_a_sorted_set(starts in proptest::collection::vec(0_u64..9, 0..9),
                                       steps in proptest::collection::vec(any::<Option<u8>>(), 0..99)) {
            let turn = |time, index| Turn::new(Timestamp::from_monotonic_ns(time), index);
            let all = starts.iter().enumerate().map(|(index, &time)| turn(time, index));
            let mut set: BTreeSet<_> = all.clone().collect();
            let mut turns = Turns::new(all.collect());
            for step in steps {
                prop_assert_eq!(turns.top(), set.first().copied());
                prop_assert_eq!(turns.runner_up(), set.iter().nth(1).copied());
                let Some(top) = set.pop_first() else { break };
                match step {
                    Some(later) => {
                        let next = turn((top.0 >> 64) as u64 + u64::from(later % 5), top.index());
                        set.insert(next);
                        turns.replace_top(next);
                    }
                    None => turns.remove_top(),
                }
            }
        }
    }
}
