// SPDX-License-Identifier: MIT OR Apache-2.0
//! The automaton of one task: its row in the table of steps, and the measurement that is running.

use std::hint::select_unpredictable as select;

use overhear_event::{Nanos, StreamId, Timestamp};

use super::measurement::Position;
use crate::automaton::compile::program::{Effects, Row};

/// The element of an input, and the time of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Time of the symbol; earlier than that of the element if it is backdated.
    pub(super) time: Timestamp,
    /// Number of the element among all elements so far, from 1 on.
    pub(super) ordinal: u64,
    /// Position of the element.
    pub(super) element: Position,
}

/// The automaton of one task, in one cache line. What only some metrics or sinks need is stored
/// elsewhere.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Instance {
    /// Marked if elements were missed during the measurement.
    row: Row,
    pub(super) task: u32,
    /// Time of the last change; the time of a measurement does not go back before it.
    pub(super) changed: Timestamp,
    /// Begin of the candidate segment.
    pub(super) since: Timestamp,
    /// Begin of the measurement.
    pub(super) begin: Timestamp,
    /// Position of the element that began it.
    pub(super) begin_at: Position,
    /// Sum of its segments so far.
    pub(super) length: Nanos,
}

impl Instance {
    /// An automaton of no task in this row.
    pub(super) const fn at(row: Row) -> Self {
        Self {
            row,
            task: 0,
            changed: Timestamp::ZERO,
            since: Timestamp::ZERO,
            begin: Timestamp::ZERO,
            begin_at: Position {
                stream: StreamId::from_raw(0),
                sequence: 0,
            },
            length: Nanos::ZERO,
        }
    }

    /// The row, without its mark.
    #[inline(always)]
    pub(super) const fn row(&self) -> Row {
        self.row.marked(false)
    }

    /// The row, marked if elements were missed during the measurement: a marked row has no steps.
    #[inline(always)]
    pub(super) const fn row_or_mark(&self) -> Row {
        self.row
    }

    /// Whether elements were missed during the measurement; without one, during the last one.
    pub(super) const fn has_missed(&self) -> bool {
        self.row.is_marked()
    }

    /// Sets or clears the mark.
    pub(super) fn set_missed(&mut self, has_missed: bool) {
        self.row = self.row.marked(has_missed);
    }

    /// Moves to another row and keeps the mark.
    pub(super) fn set_row(&mut self, row: Row) {
        self.row = row.marked(self.has_missed());
    }

    /// Moves to another row at this time.
    #[inline(always)]
    pub(super) fn step(&mut self, to: Row, effects: Effects, time: Timestamp) {
        self.set_row(to);
        self.changed = if effects.has(Effects::BACKDATED) {
            time
        } else {
            time.max(self.changed)
        };
    }

    /// Goes back to this time if the spilled effects are backdated.
    pub(super) fn backdate(&mut self, effects: Effects, time: Timestamp) {
        if effects.has(Effects::BACKDATED) {
            self.changed = time;
        }
    }

    /// Moves to another row, or stays, without a branch. Nothing was missed. Unless
    /// `may_be_backdated`, `time` is that of the element, and so not before the last change.
    /// Returns the time of the move, if it moves.
    #[inline(always)]
    pub(super) fn step_without_branch(
        &mut self,
        to: Row,
        effects: Effects,
        time: Timestamp,
        may_be_backdated: bool,
    ) -> Timestamp {
        self.row = to;
        let moved = effects.has(Effects::MOVED);
        if may_be_backdated {
            let time = select(moved, time, Timestamp::ZERO);
            let later = time.max(self.changed);
            self.changed = select(effects.has(Effects::BACKDATED), time, later);
            self.changed
        } else {
            self.changed = select(moved, time, self.changed);
            // Not `self.changed`: later steps need not wait for the selection.
            time
        }
    }

    /// Takes over row, time and begin from a copy that took the step.
    #[inline(always)]
    pub(super) fn copy_step_of(&mut self, other: &Self) {
        (self.row, self.changed, self.begin) = (other.row, other.changed, other.begin);
    }

    /// Adds the segment that ends now, if one ends.
    #[inline(always)]
    pub(super) fn close_if(&mut self, effects: Effects, now: Timestamp) {
        let segment = now.since(self.since);
        let segment = select(effects.has(Effects::CLOSE), segment, Nanos::ZERO);
        self.length = self.length.plus(segment);
    }

    /// Sets the begin of a measurement, if one begins.
    #[inline(always)]
    pub(super) fn begin_if(&mut self, effects: Effects, now: Timestamp) {
        self.begin = select(effects.has(Effects::BEGIN), now, self.begin);
    }

    /// Sets the element that begins a measurement, if one begins.
    #[inline(always)]
    pub(super) fn begin_at_if(&mut self, effects: Effects, element: Position) {
        let begins = effects.has(Effects::BEGIN);
        self.begin_at.stream = select(begins, element.stream, self.begin_at.stream);
        self.begin_at.sequence = select(begins, element.sequence, self.begin_at.sequence);
    }

    /// Sets the begin of a candidate segment, if one begins.
    #[inline(always)]
    pub(super) fn open_if(&mut self, effects: Effects, now: Timestamp) {
        self.length = select(effects.has(Effects::BEGIN), Nanos::ZERO, self.length);
        self.since = select(effects.has(Effects::OPEN), now, self.since);
    }

    /// Begins a measurement at the time of the last change, by this element.
    #[inline(always)]
    pub(super) fn begin_with(&mut self, element: Position) {
        self.begin = self.changed;
        self.begin_at = element;
        self.length = Nanos::ZERO;
    }

    /// Ends a segment. An interval is one segment.
    #[inline(always)]
    pub(super) fn close(&mut self, is_interval: bool) {
        if is_interval {
            self.length = self.changed.since(self.begin);
        } else {
            let segment = self.changed.since(self.since);
            self.length = self.length.plus(segment);
        }
    }
}

/// The newest key of a task, and the element that gave it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyValue {
    pub(super) key: Option<u64>,
    pub(super) ordinal: u64,
}

impl KeyValue {
    /// A measurement begins by this element: a key of an earlier element does not belong to it.
    #[inline(always)]
    pub(super) fn renew(&mut self, ordinal: u64) {
        if self.ordinal != ordinal {
            self.key = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Instance;

    #[test]
    fn instance_is_one_cache_line() {
        assert_eq!(size_of::<Instance>(), 64);
    }
}
