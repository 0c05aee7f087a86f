// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measurements that a metric has reported: their number, and the newest ones, for gaps that
//! become known later.

use overhear_event::{Gap, Timestamp};

use super::measurement::{LateGap, Measurement, Sink};
use crate::automaton::compile::metric::Metric;

/// Number of measurements per metric that a [`LateGap`] can concern: the newest reported ones.
pub const REPORTED_WINDOW: usize = 1_024;

/// A measurement that was reported.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    end: Timestamp,
    /// 0 without a key.
    key: u64,
    task: u32,
    // Not an `Option`, which is larger: thousands of these lie in the cache.
    has_key: bool,
    is_complete: bool,
}

/// The measurements that one metric has reported.
#[derive(Debug)]
pub(super) struct Reported {
    /// The newest ones, indexed by their number modulo [`REPORTED_WINDOW`].
    recent: Box<[Recent; REPORTED_WINDOW]>,
    /// Latest end of a measurement that is no longer in `recent`; 0 without one.
    forgotten: Timestamp,
    completed: u64,
    incomplete: u64,
}

impl Reported {
    pub(super) fn new() -> Self {
        // A vector first: the array does not fit on every stack.
        let recent: Box<[Recent]> = vec![Recent::default(); REPORTED_WINDOW].into();
        Self {
            recent: recent.try_into().expect("it is as long"),
            forgotten: Timestamp::ZERO,
            completed: 0,
            incomplete: 0,
        }
    }

    /// Number of reported measurements, and so the number of the next one.
    pub(super) const fn completed(&self) -> u64 {
        self.completed
    }

    /// Number of reported measurements during which elements were missed, as far as is known now.
    pub(super) const fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Remembers a measurement that is reported.
    #[inline(always)]
    pub(super) fn remember(&mut self, measurement: &Measurement<'_>) {
        let is_complete = measurement.is_complete();
        let recent = Recent {
            end: measurement.end,
            key: measurement.key.unwrap_or(0),
            task: measurement.task,
            has_key: measurement.key.is_some(),
            is_complete,
        };
        // An unused entry has the end 0, and changes nothing.
        let oldest = &mut self.recent[self.completed as usize % REPORTED_WINDOW];
        self.forgotten = self.forgotten.max(oldest.end);
        *oldest = recent;
        self.completed += 1;
        self.incomplete += u64::from(!is_complete);
    }

    /// Reports a gap to the sink for each measurement that it falls into; for those of one task if
    /// `only` names it. Returns false if the gap may concern older measurements than the newest
    /// ones.
    pub(super) fn late_gap<S: Sink>(
        &mut self,
        (metric, metric_index): (&Metric, usize),
        gap: &Gap,
        only: Option<u32>,
        sink: &mut S,
    ) -> bool {
        // From the oldest to the newest.
        let window = self.completed.min(REPORTED_WINDOW as u64);
        for number in self.completed - window..self.completed {
            let recent = &mut self.recent[number as usize % REPORTED_WINDOW];
            if recent.end <= gap.from || only.is_some_and(|task| task != recent.task) {
                continue;
            }
            sink.late_gap(&LateGap {
                metric,
                metric_index,
                number,
                task: recent.task,
                key: recent.has_key.then_some(recent.key),
                was_complete: recent.is_complete,
                gap,
            });
            self.incomplete += u64::from(recent.is_complete);
            recent.is_complete = false;
        }
        self.forgotten <= gap.from
    }
}
