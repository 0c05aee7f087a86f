// SPDX-License-Identifier: MIT OR Apache-2.0
//! The activation times of a periodic executor. Pure.

use overhear_event::{Nanos, Timestamp};

/// The activations of a periodic thread: begin + k * T_M.
///
/// They are absolute, so a late one does not delay the following ones. If one is so late that the
/// next are due already, these are left out: the current round reads their elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periods {
    period: Nanos,
    due: Timestamp,
    left_out: u64,
}

impl Periods {
    /// The first activation is at `begin`.
    pub(crate) const fn new(begin: Timestamp, period: Nanos) -> Self {
        Self {
            period,
            due: begin,
            left_out: 0,
        }
    }

    /// When the current activation is due.
    pub(crate) const fn due(&self) -> Timestamp {
        self.due
    }

    /// Advances to the next activation: the following one or, if `now` is later, the last one that
    /// is due.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        let period = self.period.as_ns().max(1);
        let behind = now.since(self.due).as_ns() / period;
        let steps = behind.max(1);
        self.left_out += steps - 1;
        self.due = self.due.plus(Nanos::from_ns(steps.saturating_mul(period)));
    }

    /// Number of activations that were left out.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::Periods;

    #[test]
    fn activations_stay_on_the_grid_and_late_ones_are_left_out() {
        let at = Timestamp::from_monotonic_ns;
        let mut periods = Periods::new(at(100), Nanos::from_ns(10));
        for (now, due, left_out) in [
            (100, 110, 0),
            (119, 120, 0),
            (130, 130, 0),
            (171, 170, 3),
            (171, 180, 3),
            (0, 190, 3),
        ] {
            periods.advance(at(now));
            assert_eq!((periods.due(), periods.left_out()), (at(due), left_out));
        }
    }
}
