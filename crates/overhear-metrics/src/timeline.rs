// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every interval of every thread, packed: fifteen bytes each.

use overhear_event::{Nanos, Timestamp};

use crate::scheduling::Observer;
use crate::thread::{Reason, Thread, ThreadIndex, ThreadState};

/// Stands for "not on a CPU" in [`Row::cpus`].
const NO_CPU: u16 = u16::MAX;

/// The intervals of one thread, one after the other without holes.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Where the first interval begins; `None` as long as there is none.
    pub start: Option<Timestamp>,
    /// Lengths in nanoseconds. A longer interval is split into several of the same state.
    pub lengths: Vec<u32>,
    /// State codes ([`ThreadState::code`]).
    pub states: Vec<u8>,
    /// The CPU of a running thread, 65535 otherwise.
    pub cpus: Vec<u16>,
    /// Why the thread was in the state.
    pub reasons: Vec<Reason>,
    /// By how many nanoseconds each interval is shorter in compensated time; negative if it is longer.
    /// Empty unless the time-line is [compensated](Timeline::settle). Of an interval that is split, the
    /// last part has it all.
    pub shrinks: Vec<i64>,
    /// By how much the first interval begins earlier in compensated time.
    pub first_delay: Nanos,
    end: Timestamp,
    // Where the entries that are settled end, as recorded and compensated.
    settled: (Timestamp, Timestamp),
}

/// A border between intervals whose compensated time is still to be told.
#[derive(Clone, Copy, Debug)]
struct Border {
    row: usize,
    tid: u32,
    at: Timestamp,
    /// Entries of the row that end here.
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

    fn push(&mut self, mut length: u64, state: u8, cpu: u16, reason: Reason) {
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

/// Keeps the intervals of all threads, up to a limit.
#[derive(Clone, Debug)]
pub struct Timeline {
    rows: Vec<Row>,
    kept: u64,
    limit: u64,
    dropped: u64,
    borders: Option<Vec<Border>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::with_limit(20_000_000)
    }
}

impl Timeline {
    /// A time-line that keeps at most this many intervals; the rest is counted.
    #[must_use]
    pub const fn with_limit(limit: u64) -> Self {
        Self {
            rows: Vec::new(),
            kept: 0,
            limit,
            dropped: 0,
            borders: None,
        }
    }

    /// The same, with every interval's length in compensated time as well: [`Timeline::settle`] is
    /// called behind each element.
    #[must_use]
    pub fn compensated(self) -> Self {
        Self {
            borders: Some(Vec::new()),
            ..self
        }
    }

    /// Learns when the intervals of the newest element begin and end in compensated time: of a thread,
    /// the time that a recorded one becomes ([`Delays::moved`](crate::compensation::Delays::moved)).
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

    /// Intervals beyond the limit.
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
        if self.kept >= self.limit {
            self.dropped += 1;
            return;
        }
        self.kept += 1;
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
        // Without holes: what was not said is unknown.
        let hole: Nanos = from.since(row.end);
        if hole > Nanos::ZERO {
            row.push(
                hole.as_ns(),
                ThreadState::Unknown.code(),
                NO_CPU,
                Reason::Untold,
            );
            border(row, from);
        }
        let cpu = cpu
            .and_then(|cpu| u16::try_from(cpu).ok())
            .unwrap_or(NO_CPU);
        row.push(to.since(from).as_ns(), state.code(), cpu, thread.reason());
        border(row, to);
        row.end = to;
    }
}
