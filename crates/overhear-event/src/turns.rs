// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose turn it is: the tree of a merge, live or over a trace.
//!
//! Streams that alternate change what comes first with every element. In a heap each level then waits for the
//! one above, because the comparison there says where to look next. Here the streams are the leaves of a tournament
//! whose nodes keep who lost there: the way of a stream from its leaf to the root is known before the first
//! comparison, and no comparison is a branch.

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
        Self(Self::high(time) | stream as u128)
    }

    /// The place before every stream's at this time.
    #[must_use]
    pub const fn begin_of(time: Timestamp) -> Self {
        Self(Self::high(time))
    }

    /// Behind every place.
    const NEVER: Self = Self(u128::MAX >> 1);

    /// The time as the higher half: the highest bit stays free, so that the difference of two places has the sign of
    /// their order. Times beyond 292 years are one.
    #[inline(always)]
    const fn high(time: Timestamp) -> u128 {
        const LATEST: u64 = u64::MAX >> 1;
        let ns = time.as_monotonic_ns();
        (if ns < LATEST { ns } else { LATEST } as u128) << 64
    }

    /// The earlier one and the later one. Which is which cannot be foreseen where streams alternate: a branch
    /// would cost more than all else here.
    #[inline(always)]
    fn in_order(self, other: Self) -> (Self, Self) {
        // All ones where the other one is earlier, and then both change their places.
        let is_later = (other.0.wrapping_sub(self.0).cast_signed() >> 127).cast_unsigned();
        let change = is_later & (self.0 ^ other.0);
        (Self(self.0 ^ change), Self(other.0 ^ change))
    }

    /// Right behind this place: before it comes this stream's element alone, and others of the same time.
    const fn after(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The same stream's place at another time.
    #[inline(always)]
    #[must_use]
    pub const fn at(self, time: Timestamp) -> Self {
        Self(Self::high(time) | (self.0 as u64) as u128)
    }

    /// Where the merge keeps the stream.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A tournament of streams, the least turn on top. Each stream has its own index, and small ones are best: the
/// memory is that of the largest.
#[derive(Debug)]
pub struct Turns {
    top: Turn,
    // Who lost at each node: the root is 1, the children of `at` are `2 * at` and `2 * at + 1`. Behind the nodes
    // lie the leaves, which are used only while the tournament is set up.
    losers: Vec<Turn>,
    leaves: usize,
    // The stream that had the turn last.
    last: Option<usize>,
    // Those with which it is set up.
    given: Vec<Turn>,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Turns {
    /// A tournament of these turns, in whatever order they come.
    #[must_use]
    pub fn new(turns: Vec<Turn>) -> Self {
        let mut made = Self {
            top: Turn::NEVER,
            losers: Vec::new(),
            leaves: 1,
            last: None,
            given: turns,
        };
        made.set_up();
        made
    }

    /// Begins anew with these turns, in the memory that there is.
    pub fn refill(&mut self, turns: impl Iterator<Item = Turn>) {
        self.given.clear();
        self.given.extend(turns);
        self.set_up();
    }

    fn set_up(&mut self) {
        let indices = self.given.iter().map(|turn| turn.index() + 1);
        self.leaves = indices.max().unwrap_or(1).next_power_of_two();
        self.losers.clear();
        self.losers.resize(2 * self.leaves, Turn::NEVER);
        for &turn in &self.given {
            self.losers[self.leaves + turn.index()] = turn;
        }
        // First who wins at each node, from the leaves up, then who loses, from the root down.
        for at in (1..self.leaves).rev() {
            self.losers[at] = self.losers[2 * at].min(self.losers[2 * at + 1]);
        }
        self.top = self.losers[1];
        for at in 1..self.leaves {
            self.losers[at] = self.losers[2 * at].max(self.losers[2 * at + 1]);
        }
        self.last = None;
    }

    /// Makes room for streams with indices below this.
    pub fn reserve(&mut self, turns: usize) {
        let room = |has: usize, wanted: usize| wanted.saturating_sub(has);
        self.given.reserve(room(self.given.len(), turns));
        let nodes = 2 * turns.max(1).next_power_of_two();
        self.losers.reserve(room(self.losers.len(), nodes));
    }

    /// The least.
    #[inline]
    #[must_use]
    pub fn top(&self) -> Option<Turn> {
        (self.top != Turn::NEVER).then_some(self.top)
    }

    /// How far the top's stream may go before somebody asks for the top again: up to this place, which it must not
    /// reach. That is the place of the next other stream, if this one has had the turn before; else only right
    /// behind its own. So streams that alternate are not asked for their runner-up in vain.
    #[inline]
    #[must_use]
    pub fn reach(&mut self) -> Turn {
        let index = self.top.index();
        if self.last.replace(index) != Some(index) {
            return self.top.after();
        }
        self.runner_up()
    }

    /// The one that comes after the top, behind every place if there is none.
    #[inline]
    #[must_use]
    pub fn runner_up(&self) -> Turn {
        let mut least = Turn::NEVER;
        // Whoever comes second has lost against the top.
        let mut at = (self.leaves + self.top.index()) / 2;
        while at > 0 {
            (least, _) = least.in_order(self.losers[at]);
            at /= 2;
        }
        least
    }

    /// The top's stream has something later.
    #[inline]
    pub fn replace_top(&mut self, turn: Turn) {
        let mut rising = turn;
        let mut at = (self.leaves + self.top.index()) / 2;
        while at > 0 {
            (rising, self.losers[at]) = rising.in_order(self.losers[at]);
            at /= 2;
        }
        self.top = rising;
    }

    /// The top's stream has nothing more.
    pub fn remove_top(&mut self) {
        if self.top != Turn::NEVER {
            self.replace_top(Turn::NEVER);
        }
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
            let mut before = None;
            for step in steps {
                prop_assert_eq!(turns.top(), set.first().copied());
                let Some(top) = set.pop_first() else { break };
                let next = set.first().copied().unwrap_or(Turn::NEVER);
                let own = before.replace(top.index()) == Some(top.index());
                prop_assert_eq!(turns.runner_up(), next);
                prop_assert_eq!(turns.reach(), if own { next } else { top.after() });
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
