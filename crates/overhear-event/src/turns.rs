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
        Self((time.as_monotonic_ns() as u128) << 64 | stream as u128)
    }

    /// The place before every stream's at this time.
    #[must_use]
    pub const fn begin_of(time: Timestamp) -> Self {
        Self((time.as_monotonic_ns() as u128) << 64)
    }

    /// Behind every place.
    const NEVER: Self = Self(u128::MAX);

    #[inline(always)]
    const fn ns(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The stream's number and, below it, the index.
    #[inline(always)]
    const fn stream(self) -> u64 {
        self.0 as u64
    }

    /// Right behind this place: before it comes this stream's element alone, and others of the same time.
    const fn after(self) -> Self {
        Self(self.0.saturating_add(1))
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

/// A tournament of streams, the least turn on top. Each stream has its own index.
///
/// What is compared is one word for each: how far its time lies behind the earliest one, and its rank among the
/// streams. Times that lie too far ahead for that are one, behind all others; once nothing else is left, the
/// tournament is set up again from there.
#[derive(Debug)]
pub struct Turns {
    // The word of the top.
    top: u64,
    // The words of who lost at each node: the root is 1, the children of `at` are `2 * at` and `2 * at + 1`. Behind
    // the nodes lie the leaves, by rank, which are used only while the tournament is set up.
    losers: Vec<u64>,
    // A power of two, and which one.
    leaves: usize,
    bits: u32,
    // The largest distance of a time that is told apart: with a rank it is less than [`GONE`].
    farthest: u64,
    // The earliest time when it was set up.
    base: u64,
    // The stream that had the turn last.
    last: Option<usize>,
    // The turns by rank: in the order of streams, with the index to decide.
    given: Vec<Turn>,
}

/// The word of a stream that has nothing more.
const GONE: u64 = u64::MAX;

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
            top: GONE,
            losers: Vec::new(),
            leaves: 1,
            bits: 0,
            farthest: 0,
            base: 0,
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
        self.given.sort_unstable_by_key(|turn| turn.stream());
        self.play_all();
    }

    /// Plays all games, from the earliest turn on.
    fn play_all(&mut self) {
        self.leaves = self.given.len().next_power_of_two();
        self.bits = self.leaves.trailing_zeros();
        self.farthest = (u64::MAX >> self.bits) - 1;
        self.base = self.given.iter().map(|turn| turn.ns()).min().unwrap_or(0);
        self.losers.clear();
        self.losers.resize(2 * self.leaves, GONE);
        for rank in 0..self.given.len() {
            if self.given[rank] != Turn::NEVER {
                self.losers[self.leaves + rank] = self.word(self.given[rank], rank);
            }
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

    #[inline(always)]
    fn word(&self, turn: Turn, rank: usize) -> u64 {
        let ahead = turn.ns().saturating_sub(self.base).min(self.farthest);
        ahead << self.bits | rank as u64
    }

    /// The rank in a word.
    #[inline(always)]
    const fn rank(&self, word: u64) -> usize {
        word as usize & (self.leaves - 1)
    }

    /// The node above the leaf of the top.
    #[inline(always)]
    const fn above_top(&self) -> usize {
        (self.leaves + self.rank(self.top)) / 2
    }

    /// Makes room for this many streams.
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
        (self.top != GONE).then(|| self.given[self.rank(self.top)])
    }

    /// The how many-th stream has the least turn, of all that there were in the beginning, in the order of their
    /// numbers.
    #[inline(always)]
    #[must_use]
    pub fn top_rank(&self) -> Option<usize> {
        (self.top != GONE).then(|| self.rank(self.top))
    }

    /// How far the top's stream may go before somebody asks for the top again: up to this place, which it must not
    /// reach. That is the place of the next other stream, if this one has had the turn before; else only right
    /// behind its own. So streams that alternate are not asked for their runner-up in vain.
    #[inline]
    #[must_use]
    pub fn reach(&mut self) -> Turn {
        let Some(top) = self.top() else {
            return Turn::NEVER;
        };
        let index = top.index();
        if self.last.replace(index) != Some(index) {
            return top.after();
        }
        self.runner_up()
    }

    /// The one that comes after the top, behind every place if there is none.
    #[inline]
    #[must_use]
    pub fn runner_up(&self) -> Turn {
        let mut least = GONE;
        // Whoever comes second has lost against the top.
        let mut at = self.above_top();
        while at > 0 {
            least = least.min(self.losers[at]);
            at /= 2;
        }
        if least == GONE {
            return Turn::NEVER;
        }
        if least >> self.bits == self.farthest {
            // Which of those that are too far ahead comes first its word does not say.
            return self.earliest_but_top();
        }
        self.given[self.rank(least)]
    }

    #[cold]
    fn earliest_but_top(&self) -> Turn {
        let top = self.rank(self.top);
        let others = self.given.iter().enumerate().filter(|it| it.0 != top);
        others.map(|it| *it.1).min().unwrap_or(Turn::NEVER)
    }

    /// The top's stream has something later.
    #[inline]
    pub fn replace_top(&mut self, turn: Turn) {
        let rank = self.rank(self.top);
        self.given[rank] = turn;
        self.rise(self.word(turn, rank));
    }

    /// The top's stream has something at this time.
    #[inline(always)]
    pub fn go_on_at(&mut self, time: Timestamp) {
        let turn = self.given[self.rank(self.top)].at(time);
        self.replace_top(turn);
    }

    /// The top's stream has nothing more.
    pub fn remove_top(&mut self) {
        if self.top != GONE {
            let rank = self.rank(self.top);
            self.given[rank] = Turn::NEVER;
            self.rise(GONE);
        }
    }

    /// Plays the top's games again, with this word.
    #[inline(always)]
    fn rise(&mut self, mut rising: u64) {
        // Who wins cannot be foreseen where streams alternate, and a branch would cost more than all else here:
        // the least and the greatest of two words need none.
        let mut at = self.above_top();
        while at > 0 {
            let other = self.losers[at];
            self.losers[at] = rising.max(other);
            rising = rising.min(other);
            at /= 2;
        }
        self.top = rising;
        if rising >> self.bits >= self.farthest {
            self.go_on_from_top();
        }
    }

    /// Sets the tournament up again, if all that is left was too far ahead.
    #[cold]
    fn go_on_from_top(&mut self) {
        if self.top == GONE {
            return;
        }
        let last = self.last;
        self.play_all();
        self.last = last;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use proptest::prelude::{any, prop_assert_eq, prop_oneof, proptest, Strategy};

    use super::{Turn, Turns};
    use crate::{StreamId, Timestamp};

    fn time() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..9, (u64::MAX - 99)..=u64::MAX, any::<u64>()]
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_sorted_set(starts in proptest::collection::vec(time(), 0..9),
                                       steps in proptest::collection::vec(any::<Option<u8>>(), 0..99)) {
            let at = Timestamp::from_monotonic_ns;
            let turn = |(index, &time)| Turn::new(at(time), StreamId::from_raw(index), index);
            let all = (0_u32..).zip(starts.iter()).map(turn);
            let mut set: BTreeSet<_> = all.clone().collect();
            let mut turns = Turns::new(all.collect());
            let mut before = None;
            for step in steps {
                prop_assert_eq!(turns.top(), set.first().copied());
                // Streams and indices are in the same order here.
                prop_assert_eq!(turns.top_rank(), set.first().map(|top| top.index()));
                let Some(top) = set.pop_first() else { break };
                let next = set.first().copied().unwrap_or(Turn::NEVER);
                let own = before.replace(top.index()) == Some(top.index());
                prop_assert_eq!(turns.runner_up(), next);
                prop_assert_eq!(turns.reach(), if own { next } else { top.after() });
                match step {
                    Some(later) => {
                        // Rarely more than a word has room for, with the ranks.
                        let later = if later > 250 { u64::MAX - 99 } else { u64::from(later % 5) };
                        let next = top.at(at(top.ns().saturating_add(later)));
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
