// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals of every thread, packed: fifteen bytes each, in a bounded number.
//!
//! A full time-line ends: from that moment on it has no interval of any thread. So it is complete
//! before that moment, and no thread seems to rest because its intervals found no room.

use overhear_event::{Nanos, Timestamp};

use crate::scheduling::Observer;
use crate::thread::{StateReason, Thread, ThreadIndex, ThreadState};

/// Value of [`Row::cpus`] off a CPU.
const NO_CPU: u16 = u16::MAX;

/// The intervals of one thread, one after the other without holes.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Begin of the first interval; `None` without intervals.
    pub start: Option<Timestamp>,
    /// Lengths in nanoseconds. A longer interval is split into several of the same state.
    pub lengths: Vec<u32>,
    /// State codes ([`ThreadState::code`]).
    pub states: Vec<u8>,
    /// CPU of a running thread, 65535 otherwise.
    pub cpus: Vec<u16>,
    /// Reasons of the states.
    pub reasons: Vec<StateReason>,
    /// Nanoseconds by which each interval is shorter in compensated time; negative if it is longer.
    /// Empty unless the time-line is [compensated](Timeline::settle). Of an interval that is split,
    /// the last part has all of them.
    pub shrinks: Vec<i64>,
    /// Nanoseconds by which the first interval begins earlier in compensated time.
    pub first_delay: Nanos,
    /// Whether later intervals of the thread found no room.
    pub is_cut: bool,
    end: Timestamp,
    // End of the settled entries, as recorded and compensated.
    settled: (Timestamp, Timestamp),
}

/// A border between intervals whose compensated time is not known yet.
#[derive(Clone, Copy, Debug)]
struct Border {
    row: usize,
    tid: u32,
    at: Timestamp,
    /// Number of entries of the row that end here.
    entries: usize,
}

/// One interval of a [`Row`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// State code.
    pub state: u8,
    /// Length in nanoseconds.
    pub length: u64,
}

impl Row {
    /// The intervals in order.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> + '_ {
        self.states
            .iter()
            .zip(&self.lengths)
            .map(|(&state, &length)| Interval {
                state,
                length: u64::from(length),
            })
    }

    /// End of the last interval.
    #[must_use]
    pub const fn end(&self) -> Timestamp {
        self.end
    }

    fn push(&mut self, mut length: u64, state: u8, cpu: u16, reason: StateReason) {
        while length > 0 {
            let part = u32::try_from(length).unwrap_or(u32::MAX);
            self.lengths.push(part);
            self.states.push(state);
            self.cpus.push(cpu);
            self.reasons.push(reason);
            length -= u64::from(part);
        }
    }
}

/// Keeps the intervals of all threads in a range of time, up to a limit.
#[derive(Clone, Debug)]
pub struct Timeline {
    rows: Vec<Row>,
    kept: u64,
    limit: u64,
    /// The range. If `is_cut`, it ends where the limit was reached.
    from: Timestamp,
    until: Timestamp,
    is_cut: bool,
    /// Number of intervals of the range that found no room, in whole or in part.
    dropped: u64,
    borders: Option<Vec<Border>>,
}

/// Default number of intervals: 18 MB at most while the rows grow, 28 MB compensated.
const MOST_INTERVALS: u64 = 600_000;

impl Default for Timeline {
    fn default() -> Self {
        Self::with_limit(MOST_INTERVALS)
    }
}

impl Timeline {
    /// A time-line that keeps about this number of intervals and then ends, with one more for each
    /// thread that has not ended. The others are counted.
    #[must_use]
    pub const fn with_limit(limit: u64) -> Self {
        Self {
            rows: Vec::new(),
            kept: 0,
            limit,
            from: Timestamp::ZERO,
            until: if limit == 0 {
                Timestamp::ZERO
            } else {
                Timestamp::MAX
            },
            is_cut: limit == 0,
            dropped: 0,
            borders: None,
        }
    }

    /// Restricts it to this range of time. Intervals that reach beyond it are shortened.
    #[must_use]
    pub fn within(mut self, from: Timestamp, until: Timestamp) -> Self {
        self.from = from;
        self.until = self.until.min(until);
        self
    }

    /// Ends the time-line here, as if it were full.
    pub fn cut(&mut self, at: Timestamp) {
        if at < self.until {
            (self.until, self.is_cut) = (at, true);
        }
    }

    /// Time from which on intervals are left out because there is no room; `None` if all have room.
    #[must_use]
    pub fn cut_at(&self) -> Option<Timestamp> {
        (self.is_cut && self.dropped > 0).then_some(self.until)
    }

    /// Adds the length of every interval in compensated time: [`Timeline::settle`] is called after
    /// each element.
    #[must_use]
    pub fn compensated(self) -> Self {
        Self {
            borders: Some(Vec::new()),
            ..self
        }
    }

    /// Sets the begin and end of the newest element's intervals in compensated time. The argument
    /// maps a thread and a recorded time to the compensated one
    /// ([`Delays::moved`](crate::compensation::Delays::moved)).
    pub fn settle(&mut self, moved: impl Fn(u32, Timestamp) -> Timestamp) {
        for border in self
            .borders
            .iter_mut()
            .flat_map(|borders| borders.drain(..))
        {
            let row = &mut self.rows[border.row];
            let moved = moved(border.tid, border.at).min(border.at);
            if border.entries == 0 {
                row.first_delay = border.at.since(moved);
                row.settled = (border.at, moved);
                continue;
            }
            let (from, moved_from) = row.settled;
            let moved = moved.max(moved_from);
            let span = |to: Timestamp, from: Timestamp| to.since(from).as_ns().cast_signed();
            let shrink = span(border.at, from) - span(moved, moved_from);
            if border.entries > row.shrinks.len() {
                row.shrinks.resize(border.entries - 1, 0);
                row.shrinks.push(shrink);
                row.settled = (border.at, moved);
            }
        }
    }

    /// One row per thread, in the order of [`Scheduling::threads`](crate::Scheduling::threads).
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Number of intervals of the range that found no room, in whole or in part.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Observer for Timeline {
    fn interval(
        &mut self,
        index: ThreadIndex,
        thread: &Thread,
        from: Timestamp,
        to: Timestamp,
        state: ThreadState,
        cpu: Option<u32>,
    ) {
        let (from, end) = (from.max(self.from), to.min(self.until));
        if to > self.until && self.is_cut {
            self.dropped += 1;
            if let Some(row) = self.rows.get_mut(index.get()) {
                row.is_cut = row.start.is_some();
            }
        }
        if from >= end {
            return;
        }
        let to = end;
        // An interval takes one entry per started 4.29 s.
        let known = self.rows.get(index.get());
        let begin = known.filter(|row| row.start.is_some());
        let begin = begin.map_or(from, |row| row.end.min(from));
        let entries = 1 + to.since(begin).as_ns() / u64::from(u32::MAX);
        // Threads that have not ended when the limit is reached are shown until then.
        let most = self.limit.saturating_mul(1 + u64::from(self.is_cut));
        if self.kept.saturating_add(entries) > most {
            self.dropped += 1;
            self.cut(begin);
            return;
        }
        self.kept += entries;
        if self.rows.len() <= index.get() {
            self.rows.resize_with(index.get() + 1, Row::default);
        }
        let row = &mut self.rows[index.get()];
        let mut border = |row: &Row, at: Timestamp| {
            if let Some(borders) = &mut self.borders {
                borders.push(Border {
                    row: index.get(),
                    tid: thread.tid,
                    at,
                    entries: row.lengths.len(),
                });
            }
        };
        if row.start.is_none() {
            row.start = Some(from);
            row.end = from;
            border(row, from);
        }
        // Without holes: time without an element is unknown.
        let hole: Nanos = from.since(row.end);
        if hole > Nanos::ZERO {
            row.push(
                hole.as_ns(),
                ThreadState::Unknown.code(),
                NO_CPU,
                StateReason::Unknown,
            );
            border(row, from);
        }
        let cpu = cpu
            .and_then(|cpu| u16::try_from(cpu).ok())
            .unwrap_or(NO_CPU);
        row.push(to.since(from).as_ns(), state.code(), cpu, thread.reason());
        border(row, to);
        row.end = to;
        if self.kept >= self.limit {
            self.cut(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Timestamp;

    use super::{Observer, Row, Timeline};
    use crate::thread::{Thread, ThreadIndex, ThreadState};

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    /// Intervals of two threads that end in turns, ten nanoseconds apart.
    fn fill(timeline: &mut Timeline) {
        for end in (10..=100).step_by(10) {
            let (index, tid) = ((end / 10) as usize % 2, 7);
            let thread = Thread::new(tid, tid, at(0), ThreadState::Running);
            let (from, state) = (at(end - end.min(20)), ThreadState::Running);
            timeline.interval(ThreadIndex(index), &thread, from, at(end), state, Some(0));
        }
    }

    fn spans(row: &Row) -> Vec<(u64, u64)> {
        let mut begin = row.start.map_or(0, Timestamp::as_monotonic_ns);
        let span = |interval: super::Interval| {
            begin += interval.length;
            (begin - interval.length, begin)
        };
        row.intervals().map(span).collect()
    }

    #[test]
    fn full_timeline_ends_at_one_moment_for_all_threads() {
        let mut timeline = Timeline::with_limit(4);
        fill(&mut timeline);
        let [even, odd] = timeline.rows() else {
            panic!("{timeline:?}");
        };
        assert_eq!(spans(even), [(0, 20), (20, 40)]);
        // The longer interval of the other thread is shortened.
        assert_eq!(spans(odd), [(0, 10), (10, 30), (30, 40)]);
        assert_eq!((even.end(), odd.end()), (at(40), at(40)));
        assert!(even.is_cut && odd.is_cut);
        assert_eq!(timeline.cut_at(), Some(at(40)));
        assert_eq!(timeline.dropped(), 6);
    }

    #[test]
    fn timeline_of_a_range_has_what_lies_in_it() {
        let mut timeline = Timeline::default().within(at(25), at(45));
        fill(&mut timeline);
        let rows: Vec<_> = timeline.rows().iter().map(spans).collect();
        assert_eq!(rows, [[(25, 40), (40, 45)], [(25, 30), (30, 45)]]);
        assert_eq!((timeline.cut_at(), timeline.dropped()), (None, 0));
        assert!(!timeline.rows()[0].is_cut);
        // It can be full before the range ends.
        let mut timeline = Timeline::with_limit(2).within(at(25), at(45));
        fill(&mut timeline);
        assert_eq!(timeline.cut_at(), Some(at(40)));
        let rows: Vec<_> = timeline.rows().iter().map(spans).collect();
        assert_eq!(rows, [vec![(25, 40)], vec![(25, 30), (30, 40)]]);
    }

    #[test]
    fn timeline_without_room_takes_no_memory() {
        let mut timeline = Timeline::with_limit(0);
        fill(&mut timeline);
        assert_eq!((timeline.rows().len(), timeline.dropped()), (0, 10));
    }
}
