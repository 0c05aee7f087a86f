// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loser tree of a merge, live or over a trace (Knuth, TAOCP 3, section 5.4.1).
//!
//! If streams alternate, the first one changes with every element. In a heap each level then waits
//! for the one above, because the comparison there selects the next node. In a loser tree the
//! streams are the leaves of a tournament, and each node keeps the loser of its game: the path of a
//! stream from its leaf to the root is known before the first comparison, and no comparison is a
//! branch.

use alloc::vec::Vec;

use crate::{StreamId, Timestamp};

/// The key by which streams are merged: the time of the stream's next item, then the stream's
/// number. It also has the *index* at which the merge keeps the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergeKey(u128);

impl MergeKey {
    /// The key of the stream at `index`. Streams have distinct numbers; of equal ones the index
    /// decides.
    #[must_use]
    pub const fn new(time: Timestamp, stream: StreamId, index: u32) -> Self {
        let stream = (stream.as_raw() as u64) << 32 | index as u64;
        Self((time.as_monotonic_ns() as u128) << 64 | stream as u128)
    }

    /// The key before those of all streams at this time.
    #[must_use]
    pub const fn start_of(time: Timestamp) -> Self {
        Self((time.as_monotonic_ns() as u128) << 64)
    }

    /// The key after all others.
    const END: Self = Self(u128::MAX);

    /// The time of the stream's next item.
    #[inline(always)]
    #[must_use]
    pub const fn time(self) -> Timestamp {
        Timestamp::from_monotonic_ns((self.0 >> 64) as u64)
    }

    /// The stream's number in the upper half, the index in the lower half.
    #[inline(always)]
    const fn stream(self) -> u64 {
        self.0 as u64
    }

    /// The key right after this one: of this stream, only items of the same time are before it.
    const fn after(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The key of the same stream at another time.
    #[inline(always)]
    #[must_use]
    pub const fn at(self, time: Timestamp) -> Self {
        Self((time.as_monotonic_ns() as u128) << 64 | (self.0 as u64) as u128)
    }

    /// The index at which the merge keeps the stream.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A merge key in one word: the distance of its time from an origin in the upper half, the stream's
/// *rank* in the lower half, which is the stream's index in the order of numbers. A [`KeyOrigin`]
/// makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CompactKey(u64);

impl CompactKey {
    /// Less than the key of every stream.
    pub const UNKNOWN: Self = Self(0);
    /// Greater than the key of every stream with items: of a stream that has none left.
    const ENDED: Self = Self(u64::MAX);
    /// The least key without its time, because the distance from the origin is too large.
    const FAR: Self = Self(MAX_DISTANCE_NS << RANK_BITS);

    /// The rank of the stream.
    #[inline(always)]
    #[must_use]
    pub const fn rank(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Bits of a rank: those of a stream's number, so that every number of streams fits.
const RANK_BITS: u32 = 32;
/// The largest distance, in nanoseconds, about two seconds. It stands for all larger ones.
const MAX_DISTANCE_NS: u64 = i32::MAX as u64;

/// The origin of compact keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyOrigin {
    // One nanosecond before the earliest time, so that no distance is 0. Distances wrap around:
    // that of a time before the origin is larger than the maximum.
    origin: u64,
}

impl KeyOrigin {
    const fn new(earliest: Timestamp) -> Self {
        // Distances wrap around after the last time: the first times must not become near ones.
        let latest = u64::MAX - MAX_DISTANCE_NS + 2;
        let earliest = earliest.as_monotonic_ns();
        let earliest = if earliest < latest { earliest } else { latest };
        Self {
            origin: earliest.wrapping_sub(1),
        }
    }

    #[inline(always)]
    const fn distance(self, time: Timestamp) -> u64 {
        time.as_monotonic_ns().wrapping_sub(self.origin)
    }

    /// The key of the stream with this rank at this time. [`CompactKey::UNKNOWN`] if the time is
    /// before the earliest one, or too far after the origin.
    #[inline(always)]
    #[must_use]
    pub const fn key(self, time: Timestamp, rank: usize) -> CompactKey {
        let distance = self.distance(time);
        if distance >= MAX_DISTANCE_NS {
            return CompactKey::UNKNOWN;
        }
        CompactKey(distance << RANK_BITS | rank as u64)
    }

    /// As [`Self::key`], for a time that is not before the earliest one. A time too far after the
    /// origin gives a key from [`CompactKey::FAR`] on.
    #[inline(always)]
    fn key_clamped(self, time: Timestamp, rank: usize) -> CompactKey {
        // From the time 0 to the last time the distance is 2^64.
        let beyond_first = self.distance(time).wrapping_sub(1);
        CompactKey((beyond_first.min(MAX_DISTANCE_NS - 1) + 1) << RANK_BITS | rank as u64)
    }

    /// The key after those of all streams at this time, at most [`CompactKey::FAR`].
    #[inline(always)]
    const fn end_key(self, time: Timestamp) -> CompactKey {
        let earliest = self.origin.wrapping_add(1);
        let ns = time.as_monotonic_ns();
        if ns < earliest {
            CompactKey::UNKNOWN
        } else if ns - earliest >= MAX_DISTANCE_NS - 2 {
            CompactKey::FAR
        } else {
            CompactKey((ns - earliest + 2) << RANK_BITS)
        }
    }

    /// The time of a key.
    #[inline(always)]
    #[must_use]
    pub const fn time(self, key: CompactKey) -> Timestamp {
        Timestamp::from_monotonic_ns((key.0 >> RANK_BITS).wrapping_add(self.origin))
    }
}

/// A tournament of streams with the least key at the top. Each stream has its own index.
///
/// It compares [`CompactKey`]s. Keys whose times are too far after the origin come after all
/// others; once no others are left, the tree is built again with a later origin.
#[derive(Debug)]
pub struct LoserTree {
    origin: KeyOrigin,
    top: CompactKey,
    // The loser at each node: the root is 1, the children of `at` are `2 * at` and `2 * at + 1`.
    // The leaves follow, by rank; they are used only while the tree is built.
    losers: Vec<CompactKey>,
    // Index of the stream that was at the top at the last `run_limit`.
    last: Option<usize>,
    // Number of leaves, a power of two.
    leaves: usize,
    // The merge keys, by rank. Up to date only for streams whose compact key is far or ended; near
    // keys have their own times. `earliest_but_top` and `play_all` use these alone, and are called
    // only if no near key is concerned.
    keys: Vec<MergeKey>,
}

impl Default for LoserTree {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl LoserTree {
    /// The tree of these keys, which may come in any order.
    #[must_use]
    pub fn new(tree: Vec<MergeKey>) -> Self {
        let mut made = Self {
            origin: KeyOrigin::new(Timestamp::ZERO),
            top: CompactKey::ENDED,
            losers: Vec::new(),
            last: None,
            leaves: 1,
            keys: tree,
        };
        made.rebuild();
        made
    }

    /// Builds the tree again from these keys, in the existing memory.
    pub fn refill(&mut self, tree: impl Iterator<Item = MergeKey>) {
        self.keys.clear();
        self.keys.extend(tree);
        self.rebuild();
    }

    fn rebuild(&mut self) {
        self.keys.sort_unstable_by_key(|key| key.stream());
        self.play_all();
    }

    /// Plays all games, with the earliest of `keys` as origin: at the beginning, or when no key is
    /// near any more, since only then all of `keys` are up to date.
    fn play_all(&mut self) {
        let leaves = self.keys.len().next_power_of_two();
        let times = self.keys.iter().map(|key| key.time());
        let earliest = times.min().unwrap_or(Timestamp::ZERO);
        self.origin = KeyOrigin::new(earliest);
        self.losers.clear();
        self.losers.resize(2 * leaves, CompactKey::ENDED);
        let begun = self.losers[leaves..].iter_mut().zip(&self.keys);
        for (rank, (node, key)) in begun.enumerate().filter(|it| *it.1 .1 != MergeKey::END) {
            *node = self.origin.key_clamped(key.time(), rank);
        }
        // First the winners of all nodes, from the leaves up, then the losers, from the root down.
        for at in (1..leaves).rev() {
            self.losers[at] = self.losers[2 * at].min(self.losers[2 * at + 1]);
        }
        self.top = self.losers[1];
        for at in 1..leaves {
            self.losers[at] = self.losers[2 * at].max(self.losers[2 * at + 1]);
        }
        self.leaves = leaves;
        self.last = None;
    }

    /// The node above the leaf of the top.
    #[inline(always)]
    const fn above_top(&self) -> usize {
        (self.leaves + self.top.rank()) / 2
    }

    /// Reserves memory for this many streams.
    pub fn reserve(&mut self, tree: usize) {
        let room = |has: usize, wanted: usize| wanted.saturating_sub(has);
        self.keys.reserve(room(self.keys.len(), tree));
        let nodes = 2 * tree.max(1).next_power_of_two();
        self.losers.reserve(room(self.losers.len(), nodes));
    }

    /// The least key.
    #[inline]
    #[must_use]
    pub fn top(&self) -> Option<MergeKey> {
        (self.top != CompactKey::ENDED).then(|| self.full_key(self.top))
    }

    /// The merge key of a compact key of this tree.
    #[inline(always)]
    fn full_key(&self, key: CompactKey) -> MergeKey {
        let full = self.keys[key.rank()];
        if key >= CompactKey::FAR {
            return full;
        }
        full.at(self.origin.time(key))
    }

    /// The origin of the compact keys, until the tree is built again.
    #[inline(always)]
    #[must_use]
    pub const fn origin(&self) -> KeyOrigin {
        self.origin
    }

    /// The key up to which the stream at the top may be processed before the next call of
    /// [`Self::top`]; exclusive. If the same stream was at the top before, it is the key of the
    /// runner-up; else the key right after its own, so that the runner-up is not searched for while
    /// streams alternate.
    #[inline]
    #[must_use]
    pub fn run_limit(&mut self) -> MergeKey {
        let Some(top) = self.top() else {
            return MergeKey::END;
        };
        let index = top.index();
        if self.last.replace(index) != Some(index) {
            return top.after();
        }
        self.runner_up()
    }

    /// The least key but the top, the end of all keys if there is none.
    #[inline]
    #[must_use]
    pub fn runner_up(&self) -> MergeKey {
        if self.top == CompactKey::ENDED {
            return MergeKey::END;
        }
        let mut least = CompactKey::ENDED;
        // The runner-up has lost against the top.
        let mut at = self.above_top();
        while at > 0 {
            least = least.min(self.losers[at]);
            at /= 2;
        }
        if least == CompactKey::ENDED {
            return MergeKey::END;
        }
        if least >= CompactKey::FAR {
            // Compact keys do not order times that are too far after the origin.
            return self.earliest_but_top();
        }
        self.full_key(least)
    }

    /// The runner-up if the compact keys of all but the top are far: then their `keys` are up to
    /// date.
    #[cold]
    fn earliest_but_top(&self) -> MergeKey {
        let top = self.top.rank();
        let others = self.keys.iter().enumerate().filter(|it| it.0 != top);
        others.map(|it| *it.1).min().unwrap_or(MergeKey::END)
    }

    /// Replaces the key of the top's stream by a later one.
    ///
    /// # Panics
    /// May panic if there is no top.
    #[inline]
    pub fn replace_top(&mut self, key: MergeKey) {
        let rank = self.top.rank();
        let compact = self.origin.key_clamped(key.time(), rank);
        if compact >= CompactKey::FAR {
            self.keys[rank] = key;
        }
        self.replay_top(compact);
    }

    /// The next item of the top's stream has this time.
    ///
    /// # Panics
    /// If there is no top.
    #[inline(always)]
    pub fn advance_top(&mut self, time: Timestamp) {
        let key = self.keys[self.top.rank()].at(time);
        self.replace_top(key);
    }

    /// Removes the top's stream, which has no more items. Does nothing if there is no top.
    pub fn remove_top(&mut self) {
        if self.top != CompactKey::ENDED {
            let rank = self.top.rank();
            self.keys[rank] = MergeKey::END;
            self.replay_top(CompactKey::ENDED);
        }
    }

    /// Processes streams in order up to this time: `next` is called with the key at the top, and
    /// returns the next key of the same stream, made with [`LoserTree::origin`].
    ///
    /// It ends when `next` returns `None`. It also ends when `next` returns a key that is less than
    /// the current one, as [`CompactKey::UNKNOWN`] is. Then it returns true: the item of the top
    /// was taken, and the caller has to replace or remove the top.
    #[inline(always)]
    #[must_use]
    pub fn run_until(
        &mut self,
        until: Timestamp,
        next: impl FnMut(CompactKey) -> Option<CompactKey>,
    ) -> bool {
        let end = self.origin.end_key(until);
        // Local references instead of `self`. For few streams the loop over the levels is unrolled.
        let (losers, top) = (&mut self.losers[..], &mut self.top);
        match self.leaves {
            2 => run_keys(top, end, next, |top, next| play_few::<2>(losers, top, next)),
            4 => run_keys(top, end, next, |top, next| play_few::<4>(losers, top, next)),
            8 => run_keys(top, end, next, |top, next| play_few::<8>(losers, top, next)),
            leaves => run_keys(top, end, next, |top, next| play(losers, leaves, top, next)),
        }
    }

    /// Plays the games of the top's stream again, with this key.
    #[inline(always)]
    fn replay_top(&mut self, key: CompactKey) {
        self.top = play(&mut self.losers, self.leaves, self.top, key);
        if self.top >= CompactKey::FAR {
            self.rebuild_from_top();
        }
    }

    /// Builds the tree again, if only far keys are left.
    #[cold]
    fn rebuild_from_top(&mut self) {
        if self.top == CompactKey::ENDED {
            return;
        }
        let last = self.last;
        self.play_all();
        self.last = last;
    }
}

/// As [`LoserTree::run_until`], up to the key `end`. `play` plays the games of the top.
#[inline(always)]
fn run_keys(
    top: &mut CompactKey,
    end: CompactKey,
    mut next: impl FnMut(CompactKey) -> Option<CompactKey>,
    mut play: impl FnMut(CompactKey, CompactKey) -> CompactKey,
) -> bool {
    let mut now = *top;
    let mut is_open = false;
    while now < end {
        let Some(following) = next(now) else { break };
        is_open = following < now;
        if is_open {
            break;
        }
        now = play(now, following);
    }
    // The new top is near, because keys below `end` are.
    *top = now;
    is_open
}

/// As [`play`], for a constant number of leaves.
#[inline(always)]
fn play_few<const LEAVES: usize>(
    losers: &mut [CompactKey],
    top: CompactKey,
    mut rising: CompactKey,
) -> CompactKey {
    let nodes = losers
        .first_chunk_mut::<LEAVES>()
        .expect("there are twice as many");
    let mut at = (LEAVES + top.rank() % LEAVES) / 2;
    for _ in 0..LEAVES.ilog2() {
        let other = nodes[at];
        nodes[at] = rising.max(other);
        rising = rising.min(other);
        at /= 2;
    }
    rising
}

/// Plays the games of the top's stream again, with another key; returns the new top.
#[inline(always)]
fn play(
    losers: &mut [CompactKey],
    leaves: usize,
    top: CompactKey,
    mut rising: CompactKey,
) -> CompactKey {
    // The winner is unpredictable if streams alternate, and a mispredicted branch would cost more
    // than everything else here: minimum and maximum of two words need none.
    let mut at = (leaves + top.rank()) / 2;
    while at > 0 {
        let other = losers[at];
        losers[at] = rising.max(other);
        rising = rising.min(other);
        at /= 2;
    }
    rising
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;
    use std::vec::Vec;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, prop_oneof, proptest, Strategy};

    use super::{CompactKey, KeyOrigin, LoserTree, MergeKey, MAX_DISTANCE_NS};
    use crate::{Nanos, StreamId, Timestamp};

    fn time() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..9, (u64::MAX - 99)..=u64::MAX, any::<u64>()]
    }

    /// Often 0, rarely more than the maximum distance.
    fn span() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0_u64..4, 2 => 0_u64..1 << 20, 1 => (1_u64 << 31) - 4..(1 << 31) + 2, 1 => any::<u64>()]
    }

    proptest! {
        #[test]
        fn merge_agrees_with_a_sorted_set(starts in proptest::collection::vec(time(), 0..9),
                                       steps in proptest::collection::vec(any::<Option<u8>>(), 0..99)) {
            let at = Timestamp::from_monotonic_ns;
            let key = |(index, &time)| MergeKey::new(at(time), StreamId::from_raw(index), index);
            let all = (0_u32..).zip(starts.iter()).map(key);
            let mut set: BTreeSet<_> = all.clone().collect();
            let mut tree = LoserTree::new(all.collect());
            let mut before = None;
            prop_assert!(!set.is_empty() || tree.runner_up() == MergeKey::END);
            for step in steps {
                prop_assert_eq!(tree.top(), set.first().copied());
                let Some(top) = set.pop_first() else { break };
                let next = set.first().copied().unwrap_or(MergeKey::END);
                let own = before.replace(top.index()) == Some(top.index());
                prop_assert_eq!(tree.runner_up(), next);
                prop_assert_eq!(tree.run_limit(), if own { next } else { top.after() });
                match step {
                    Some(later) => {
                        // Sometimes more than the maximum distance.
                        let later = match later {
                            251.. => u64::MAX - 99,
                            240.. => u64::from(later - 239) << 28,
                            _ => u64::from(later % 5),
                        };
                        let next = top.at(top.time().plus(Nanos::from_ns(later)));
                        prop_assert_eq!(next.index(), top.index());
                        set.insert(next);
                        tree.replace_top(next);
                    }
                    None => tree.remove_top(),
                }
                prop_assert!(!set.is_empty() || tree.runner_up() == MergeKey::END);
            }
        }

        #[test]
        fn compact_key_has_near_times_only(earliest in time(), other in time(), span in span(), rank in 0_usize..9) {
            let earliest = Timestamp::from_monotonic_ns(earliest);
            let origin = KeyOrigin::new(earliest);
            let first = origin.key(earliest, 0);
            prop_assert_eq!(origin.time(first), earliest);
            for time in [earliest.plus(Nanos::from_ns(span)), earliest.minus(Nanos::from_ns(span)), Timestamp::from_monotonic_ns(other)] {
                let key = origin.key(time, rank);
                let is_near = time >= earliest && time.since(earliest) < Nanos::from_ns(MAX_DISTANCE_NS - 1);
                prop_assert_eq!(key >= first, is_near, "{} {}", earliest, time);
                let either = origin.key_clamped(time.max(earliest), rank);
                prop_assert_eq!(either < CompactKey::FAR, is_near || time < earliest);
                if is_near {
                    prop_assert_eq!((origin.time(key), key.rank(), either), (time, rank, key));
                    prop_assert!(key < origin.end_key(time) && origin.end_key(time) <= CompactKey::FAR);
                }
                if time < earliest {
                    prop_assert!(origin.end_key(time) <= first);
                }
            }
        }

        #[test]
        fn early_next_key_keeps_the_order(
            streams in proptest::collection::vec(proptest::collection::vec(span(), 1..30), 0..70),
            start in time(),
            until in proptest::collection::vec(span(), 0..30),
        ) {
            // The times of each stream, and all of them in order.
            let streams: Vec<Vec<Timestamp>> = streams.iter().map(|spans| {
                let mut now = Timestamp::from_monotonic_ns(start);
                let later = |span: &u64| { now = now.plus(Nanos::from_ns(*span)); now };
                spans.iter().map(later).collect()
            }).collect();
            let ranked = streams.iter().enumerate();
            let mut all: Vec<_> = ranked.flat_map(|(rank, times)| times.iter().map(move |time| (*time, rank))).collect();
            all.sort_unstable();
            let first = |(index, times): (u32, &Vec<_>)| MergeKey::new(times[0], StreamId::from_raw(index), index);
            let mut tree = LoserTree::new((0..).zip(&streams).map(first).collect());
            let mut next = std::vec![0; streams.len()];
            let (mut taken, mut limit) = (Vec::new(), Timestamp::from_monotonic_ns(start));
            for span in until.into_iter().chain([u64::MAX]) {
                limit = limit.plus(Nanos::from_ns(span));
                while tree.top().is_some_and(|top| top.time() <= limit) {
                    let origin = tree.origin();
                    let is_open = tree.run_until(limit, |key| {
                        let rank = key.rank();
                        taken.push((origin.time(key), rank));
                        next[rank] += 1;
                        let time = streams[rank].get(next[rank]);
                        Some(time.map_or(CompactKey::UNKNOWN, |time| origin.key(*time, rank)))
                    });
                    let Some(top) = tree.top().filter(|_| is_open) else { continue };
                    match streams[top.index()].get(next[top.index()]) {
                        Some(time) => tree.advance_top(*time),
                        None => tree.remove_top(),
                    }
                }
                // All items up to the limit were taken, and no others.
                prop_assert_eq!(&taken, &all[..all.partition_point(|it| it.0 <= limit)]);
            }
        }
    }
}
