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

    /// The time of what comes next.
    #[inline(always)]
    #[must_use]
    pub const fn time(self) -> Timestamp {
        Timestamp::from_monotonic_ns((self.0 >> 64) as u64)
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

/// A turn as a tournament compares it: how far its time lies behind an origin, and below that its stream's *rank*,
/// that is, the how many-th the stream is in the order of their numbers. Words are written with a [`TurnScale`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TurnWord(u64);

impl TurnWord {
    /// Before every turn: nobody has it.
    pub const UNKNOWN: Self = Self(0);
    /// Behind every turn: of a stream that has nothing more.
    const GONE: Self = Self(u64::MAX);
    /// The first one that does not tell its time, because that lies too far behind the origin.
    const FAR: Self = Self(FARTHEST << RANK_BITS);

    /// The rank of the stream whose turn it is.
    #[inline(always)]
    #[must_use]
    pub const fn rank(self) -> usize {
        self.0 as u32 as usize
    }
}

/// As many as a stream's number has, so there are never too many streams.
const RANK_BITS: u32 = 32;
/// The distance, in nanoseconds, that stands for itself and all larger ones: two seconds.
const FARTHEST: u64 = i32::MAX as u64;

/// How words are written: from which origin on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnScale {
    // Right before the earliest time of all, so that no turn's distance is 0. It wraps around, as distances do: that of
    // a time before the origin is too large.
    origin: u64,
}

impl TurnScale {
    const fn new(earliest: Timestamp) -> Self {
        // Behind the last time of all come at once the first ones: they must not be near.
        let latest = u64::MAX - FARTHEST + 2;
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

    /// The turn of a stream with this rank at this time. It is less than every turn there is, if the time lies before
    /// the earliest one or too far ahead.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, time: Timestamp, rank: usize) -> TurnWord {
        let distance = self.distance(time);
        if distance >= FARTHEST {
            return TurnWord::UNKNOWN;
        }
        TurnWord(distance << RANK_BITS | rank as u64)
    }

    /// The same of a time that is not before the earliest one, but may be too far ahead.
    #[inline(always)]
    fn near_or_far(self, time: Timestamp, rank: usize) -> TurnWord {
        // From the time 0 to the last of all the distance is one more than a number can be.
        let beyond_first = self.distance(time).wrapping_sub(1);
        TurnWord((beyond_first.min(FARTHEST - 1) + 1) << RANK_BITS | rank as u64)
    }

    /// Behind the turns of all streams at this time, and before those that are too far ahead.
    #[inline(always)]
    const fn behind(self, time: Timestamp) -> TurnWord {
        let earliest = self.origin.wrapping_add(1);
        let ns = time.as_monotonic_ns();
        if ns < earliest {
            TurnWord::UNKNOWN
        } else if ns - earliest >= FARTHEST - 2 {
            TurnWord::FAR
        } else {
            TurnWord((ns - earliest + 2) << RANK_BITS)
        }
    }

    /// The time of a turn.
    #[inline(always)]
    #[must_use]
    pub const fn time(self, turn: TurnWord) -> Timestamp {
        Timestamp::from_monotonic_ns((turn.0 >> RANK_BITS).wrapping_add(self.origin))
    }
}

/// A tournament of streams, the least turn on top. Each stream has its own index.
///
/// What is compared is one [`TurnWord`] for each. Times that lie too far ahead for that are one, behind all others; once
/// nothing else is left, the tournament is set up again from there.
#[derive(Debug)]
pub struct Turns {
    scale: TurnScale,
    top: TurnWord,
    // Who lost at each node: the root is 1, the children of `at` are `2 * at` and `2 * at + 1`. Behind the nodes lie
    // the leaves, by rank, which are used only while the tournament is set up.
    losers: Vec<TurnWord>,
    // The stream that had the turn last.
    last: Option<usize>,
    // A power of two.
    leaves: usize,
    // By rank. Kept true only for words that are too far ahead to tell their times, and for streams that have nothing
    // more: for near words, which tell their own, the times here are out of date. `earliest_but_top` and `play_all` go
    // by these alone, and are called where no near word is concerned.
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
            scale: TurnScale::new(Timestamp::ZERO),
            top: TurnWord::GONE,
            losers: Vec::new(),
            last: None,
            leaves: 1,
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

    /// Plays all games, from the earliest turn on: at the beginning, or when no word is near any more, since it goes by
    /// the times that were given.
    fn play_all(&mut self) {
        let leaves = self.given.len().next_power_of_two();
        let times = self.given.iter().map(|turn| turn.time());
        let earliest = times.min().unwrap_or(Timestamp::ZERO);
        self.scale = TurnScale::new(earliest);
        self.losers.clear();
        self.losers.resize(2 * leaves, TurnWord::GONE);
        let begun = self.losers[leaves..].iter_mut().zip(&self.given);
        for (rank, (word, turn)) in begun.enumerate().filter(|it| *it.1 .1 != Turn::NEVER) {
            *word = self.scale.near_or_far(turn.time(), rank);
        }
        // First who wins at each node, from the leaves up, then who loses, from the root down.
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
        (self.top != TurnWord::GONE).then(|| self.turn(self.top))
    }

    /// The turn of a word of this tournament.
    #[inline(always)]
    fn turn(&self, word: TurnWord) -> Turn {
        let given = self.given[word.rank()];
        if word >= TurnWord::FAR {
            return given;
        }
        given.at(self.scale.time(word))
    }

    /// How words are written, until the tournament is set up again.
    #[inline(always)]
    #[must_use]
    pub const fn scale(&self) -> TurnScale {
        self.scale
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
        if self.top == TurnWord::GONE {
            return Turn::NEVER;
        }
        let mut least = TurnWord::GONE;
        // Whoever comes second has lost against the top.
        let mut at = self.above_top();
        while at > 0 {
            least = least.min(self.losers[at]);
            at /= 2;
        }
        if least == TurnWord::GONE {
            return Turn::NEVER;
        }
        if least >= TurnWord::FAR {
            // Which of those that are too far ahead comes first its word does not say.
            return self.earliest_but_top();
        }
        self.turn(least)
    }

    /// For when the words of all but the top are too far ahead: then the times that were given are true.
    #[cold]
    fn earliest_but_top(&self) -> Turn {
        let top = self.top.rank();
        let others = self.given.iter().enumerate().filter(|it| it.0 != top);
        others.map(|it| *it.1).min().unwrap_or(Turn::NEVER)
    }

    /// The top's stream has something later.
    ///
    /// # Panics
    /// May panic where there is no top.
    #[inline]
    pub fn replace_top(&mut self, turn: Turn) {
        let rank = self.top.rank();
        let word = self.scale.near_or_far(turn.time(), rank);
        if word >= TurnWord::FAR {
            self.given[rank] = turn;
        }
        self.rise(word);
    }

    /// The top's stream has something at this time.
    ///
    /// # Panics
    /// Where there is no top.
    #[inline(always)]
    pub fn go_on_at(&mut self, time: Timestamp) {
        let turn = self.given[self.top.rank()].at(time);
        self.replace_top(turn);
    }

    /// The top's stream has nothing more. Nothing happens where there is no top.
    pub fn remove_top(&mut self) {
        if self.top != TurnWord::GONE {
            let rank = self.top.rank();
            self.given[rank] = Turn::NEVER;
            self.rise(TurnWord::GONE);
        }
    }

    /// The streams take their turns up to this time, one after the other: `turn` is called with the top, and tells the
    /// turn that the same stream has next, by [`Turns::scale`].
    ///
    /// It ends with a stream that takes its turn no more. It also ends with one whose next turn is told to be earlier,
    /// as [`TurnWord::UNKNOWN`] is. Then it returns true: the top has taken its turn, and still has to be replaced or
    /// removed.
    #[inline(always)]
    #[must_use]
    pub fn take(
        &mut self,
        until: Timestamp,
        turn: impl FnMut(TurnWord) -> Option<TurnWord>,
    ) -> bool {
        let end = self.scale.behind(until);
        // At hand, not behind `self`. The games of few streams take as many steps as there are levels, one after the
        // other.
        let (losers, top) = (&mut self.losers[..], &mut self.top);
        match self.leaves {
            2 => take_turns(top, end, turn, |top, next| play_few::<2>(losers, top, next)),
            4 => take_turns(top, end, turn, |top, next| play_few::<4>(losers, top, next)),
            8 => take_turns(top, end, turn, |top, next| play_few::<8>(losers, top, next)),
            leaves => take_turns(top, end, turn, |top, next| play(losers, leaves, top, next)),
        }
    }

    /// Plays the top's games again, with this word.
    #[inline(always)]
    fn rise(&mut self, word: TurnWord) {
        self.top = play(&mut self.losers, self.leaves, self.top, word);
        if self.top >= TurnWord::FAR {
            self.go_on_from_top();
        }
    }

    /// Sets the tournament up again, if all that is left was too far ahead.
    #[cold]
    fn go_on_from_top(&mut self) {
        if self.top == TurnWord::GONE {
            return;
        }
        let last = self.last;
        self.play_all();
        self.last = last;
    }
}

/// As [`Turns::take`], until this word, by who plays the games of the top again.
#[inline(always)]
fn take_turns(
    top: &mut TurnWord,
    end: TurnWord,
    mut turn: impl FnMut(TurnWord) -> Option<TurnWord>,
    mut play: impl FnMut(TurnWord, TurnWord) -> TurnWord,
) -> bool {
    let mut now = *top;
    let mut is_open = false;
    while now < end {
        let Some(next) = turn(now) else { break };
        is_open = next < now;
        if is_open {
            break;
        }
        now = play(now, next);
    }
    // It is not too far ahead, since who took a turn last is not.
    *top = now;
    is_open
}

/// As [`play`], where there are so many leaves.
#[inline(always)]
fn play_few<const LEAVES: usize>(
    losers: &mut [TurnWord],
    top: TurnWord,
    mut rising: TurnWord,
) -> TurnWord {
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

/// Plays the games of the top's stream again, with another word; returns the new top.
#[inline(always)]
fn play(losers: &mut [TurnWord], leaves: usize, top: TurnWord, mut rising: TurnWord) -> TurnWord {
    // Who wins cannot be foreseen where streams alternate, and a branch would cost more than all else here: the least
    // and the greatest of two words need none.
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

    use super::{Turn, TurnScale, TurnWord, Turns, FARTHEST};
    use crate::{Nanos, StreamId, Timestamp};

    fn time() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..9, (u64::MAX - 99)..=u64::MAX, any::<u64>()]
    }

    /// Often nothing, rarely more than a word has room for.
    fn span() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0_u64..4, 2 => 0_u64..1 << 20, 1 => (1_u64 << 31) - 4..(1 << 31) + 2, 1 => any::<u64>()]
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
            prop_assert!(!set.is_empty() || turns.runner_up() == Turn::NEVER);
            for step in steps {
                prop_assert_eq!(turns.top(), set.first().copied());
                let Some(top) = set.pop_first() else { break };
                let next = set.first().copied().unwrap_or(Turn::NEVER);
                let own = before.replace(top.index()) == Some(top.index());
                prop_assert_eq!(turns.runner_up(), next);
                prop_assert_eq!(turns.reach(), if own { next } else { top.after() });
                match step {
                    Some(later) => {
                        // Sometimes more than a word has room for.
                        let later = match later {
                            251.. => u64::MAX - 99,
                            240.. => u64::from(later - 239) << 28,
                            _ => u64::from(later % 5),
                        };
                        let next = top.at(top.time().plus(Nanos::from_ns(later)));
                        prop_assert_eq!(next.index(), top.index());
                        set.insert(next);
                        turns.replace_top(next);
                    }
                    None => turns.remove_top(),
                }
                prop_assert!(!set.is_empty() || turns.runner_up() == Turn::NEVER);
            }
        }

        #[test]
        fn words_tell_times_that_are_near_and_no_others(earliest in time(), other in time(), span in span(), rank in 0_usize..9) {
            let earliest = Timestamp::from_monotonic_ns(earliest);
            let scale = TurnScale::new(earliest);
            let first = scale.word(earliest, 0);
            prop_assert_eq!(scale.time(first), earliest);
            for time in [earliest.plus(Nanos::from_ns(span)), earliest.minus(Nanos::from_ns(span)), Timestamp::from_monotonic_ns(other)] {
                let word = scale.word(time, rank);
                let is_near = time >= earliest && time.since(earliest) < Nanos::from_ns(FARTHEST - 1);
                prop_assert_eq!(word >= first, is_near, "{} {}", earliest, time);
                let either = scale.near_or_far(time.max(earliest), rank);
                prop_assert_eq!(either < TurnWord::FAR, is_near || time < earliest);
                if is_near {
                    prop_assert_eq!((scale.time(word), word.rank(), either), (time, rank, word));
                    prop_assert!(word < scale.behind(time) && scale.behind(time) <= TurnWord::FAR);
                }
                if time < earliest {
                    prop_assert!(scale.behind(time) <= first);
                }
            }
        }

        #[test]
        fn who_tells_the_next_turn_early_gets_it_at_its_place(
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
            let first = |(index, times): (u32, &Vec<_>)| Turn::new(times[0], StreamId::from_raw(index), index);
            let mut turns = Turns::new((0..).zip(&streams).map(first).collect());
            let mut next = std::vec![0; streams.len()];
            let (mut taken, mut limit) = (Vec::new(), Timestamp::from_monotonic_ns(start));
            for span in until.into_iter().chain([u64::MAX]) {
                limit = limit.plus(Nanos::from_ns(span));
                while turns.top().is_some_and(|top| top.time() <= limit) {
                    let scale = turns.scale();
                    let is_open = turns.take(limit, |turn| {
                        let rank = turn.rank();
                        taken.push((scale.time(turn), rank));
                        next[rank] += 1;
                        let time = streams[rank].get(next[rank]);
                        Some(time.map_or(TurnWord::UNKNOWN, |time| scale.word(*time, rank)))
                    });
                    let Some(top) = turns.top().filter(|_| is_open) else { continue };
                    match streams[top.index()].get(next[top.index()]) {
                        Some(time) => turns.go_on_at(*time),
                        None => turns.remove_top(),
                    }
                }
                // Nobody has gone further than the limit, and everybody that far.
                prop_assert_eq!(&taken, &all[..all.partition_point(|it| it.0 <= limit)]);
            }
        }
    }
}
