// SPDX-License-Identifier: MIT OR Apache-2.0
//! The automaton of one task: its state, and the measurement that is running.

use std::hint::select_unpredictable as select;

use overhear_event::{Nanos, StreamId, Timestamp};

use super::measurement::Position;
use super::program::{Effects, Row};

/// Which element is input, and for when it speaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// The time of the symbol.
    pub(super) time: Timestamp,
    /// Counts all elements of the alphabet: names the present one.
    pub(super) ordinal: u64,
    /// Where the element stands.
    pub(super) element: Position,
}

/// The automaton of one task: a line of the cache. What few metrics or sinks ask for stands elsewhere.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Instance {
    /// Marked while something is missing.
    row: Row,
    pub(super) task: u32,
    /// The time of the last change, so that times that are told late do not go back.
    pub(super) changed: Timestamp,
    /// When the stretch began.
    pub(super) since: Timestamp,
    /// When the measurement began.
    pub(super) begin: Timestamp,
    /// The element that began it.
    pub(super) begin_at: Position,
    /// The sum of its segments so far.
    pub(super) length: Nanos,
}

impl Instance {
    /// At this row, of no task.
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
}

impl Instance {
    /// Where it is.
    #[inline(always)]
    pub(super) const fn row(&self) -> Row {
        self.row.marked(false)
    }

    /// As [`Instance::row`], marked if something was missed while its measurement was running.
    #[inline(always)]
    pub(super) const fn marked_row(&self) -> Row {
        self.row
    }

    /// Whether something was missed while its measurement was running, or the last one if none is.
    pub(super) const fn has_missed(&self) -> bool {
        self.row.is_marked()
    }

    /// Something was missed, or nothing.
    pub(super) fn set_missed(&mut self, has_missed: bool) {
        self.row = self.row.marked(has_missed);
    }

    /// Is at another row.
    pub(super) fn set_row(&mut self, row: Row) {
        self.row = row.marked(self.has_missed());
    }

    /// Goes to another row by what was told for this time.
    #[inline(always)]
    pub(super) fn go(&mut self, to: Row, effects: Effects, told: Timestamp) {
        self.set_row(to);
        self.changed = if effects.has(Effects::TOLD_LATE) {
            told
        } else {
            told.max(self.changed)
        };
    }

    /// What follows on the way there happens when it is told, if these are the effects of that.
    pub(super) fn tell_late(&mut self, effects: Effects, told: Timestamp) {
        if effects.has(Effects::TOLD_LATE) {
            self.changed = told;
        }
    }

    /// Goes to another row, or stays, by what was told for this time: whatever it is, without a branch. Nothing was
    /// missed. What was told is about the time of its element, and so not earlier than anything before, unless
    /// something may be late. Returns when it goes, if it does.
    #[inline(always)]
    pub(super) fn go_anywhere(
        &mut self,
        to: Row,
        effects: Effects,
        told: Timestamp,
        may_be_late: bool,
    ) -> Timestamp {
        self.row = to;
        let moved = effects.has(Effects::MOVED);
        if may_be_late {
            let told = select(moved, told, Timestamp::ZERO);
            let later = told.max(self.changed);
            self.changed = select(effects.has(Effects::TOLD_LATE), told, later);
            self.changed
        } else {
            self.changed = select(moved, told, self.changed);
            // Not the choice: nothing has to wait for that.
            told
        }
    }

    /// Goes where another one went.
    #[inline(always)]
    pub(super) fn go_as(&mut self, other: &Self) {
        (self.row, self.changed, self.begin) = (other.row, other.changed, other.begin);
    }

    /// Ends a segment if one ends.
    #[inline(always)]
    pub(super) fn close_if(&mut self, effects: Effects, now: Timestamp) {
        let segment = now.since(self.since);
        let segment = select(effects.has(Effects::CLOSE), segment, Nanos::ZERO);
        self.length = self.length.plus(segment);
    }

    /// Begins a measurement if one begins.
    #[inline(always)]
    pub(super) fn begin_if(&mut self, effects: Effects, now: Timestamp) {
        self.begin = select(effects.has(Effects::BEGIN), now, self.begin);
    }

    /// Which is by this element.
    #[inline(always)]
    pub(super) fn begin_at_if(&mut self, effects: Effects, element: Position) {
        let begins = effects.has(Effects::BEGIN);
        self.begin_at.stream = select(begins, element.stream, self.begin_at.stream);
        self.begin_at.sequence = select(begins, element.sequence, self.begin_at.sequence);
    }

    /// Begins a stretch if one begins.
    #[inline(always)]
    pub(super) fn open_if(&mut self, effects: Effects, now: Timestamp) {
        self.length = select(effects.has(Effects::BEGIN), Nanos::ZERO, self.length);
        self.since = select(effects.has(Effects::OPEN), now, self.since);
    }

    /// A measurement begins with the last change, which was by this element.
    #[inline(always)]
    pub(super) fn begin_by(&mut self, element: Position) {
        self.begin = self.changed;
        self.begin_at = element;
        self.length = Nanos::ZERO;
    }

    /// A segment ends. That of an interval is all of it.
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

/// The newest value of the key, and the element that gave it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keyed {
    pub(super) key: Option<u64>,
    pub(super) ordinal: u64,
}

impl Keyed {
    /// A measurement begins by this element: a key that was given before is none of its.
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
    fn an_automaton_takes_one_line_of_the_cache() {
        assert_eq!(size_of::<Instance>(), 64);
    }
}
