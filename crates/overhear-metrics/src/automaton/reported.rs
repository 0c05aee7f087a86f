// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a metric has reported: how much, and the last of it, for gaps that become known later.

use overhear_event::{Gap, Timestamp};

use super::measurement::{Doubt, Measurement, Sink};
use super::metric::Metric;

/// Measurements of a metric that a [`Doubt`] can concern: the last ones that it has reported.
pub const MAX_DOUBTED_MEASUREMENTS: usize = 1_024;

/// A measurement that was reported.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    end: Timestamp,
    /// 0 if it has none.
    key: u64,
    task: u32,
    // Not an option: thousands of these lie in the cache.
    has_key: bool,
    is_complete: bool,
}

/// The measurements that one metric has reported.
#[derive(Debug)]
pub(super) struct Reported {
    /// The last ones, each at the place that its number has modulo [`MAX_DOUBTED_MEASUREMENTS`].
    recent: Box<[Recent; MAX_DOUBTED_MEASUREMENTS]>,
    /// The latest end that is no longer remembered, or the beginning of time.
    forgotten: Timestamp,
    completed: u64,
    incomplete: u64,
}

impl Reported {
    pub(super) fn nothing() -> Self {
        // Not on the stack first.
        let recent: Box<[Recent]> = vec![Recent::default(); MAX_DOUBTED_MEASUREMENTS].into();
        Self {
            recent: recent.try_into().expect("it is as long"),
            forgotten: Timestamp::ZERO,
            completed: 0,
            incomplete: 0,
        }
    }

    /// Measurements reported, and so the number of the next one.
    pub(super) const fn completed(&self) -> u64 {
        self.completed
    }

    /// Of these, the ones in which something was missed, as far as is known now.
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
        // What was there before there was anything ended before all else.
        let oldest = &mut self.recent[self.completed as usize % MAX_DOUBTED_MEASUREMENTS];
        self.forgotten = self.forgotten.max(oldest.end);
        *oldest = recent;
        self.completed += 1;
        self.incomplete += u64::from(!is_complete);
    }

    /// Tells the sink of the measurements into which a gap falls; those of one task alone if `only` names
    /// it. Says whether the gap reaches no further back than what is remembered.
    pub(super) fn doubt<S: Sink>(
        &mut self,
        (metric, metric_index): (&Metric, usize),
        gap: &Gap,
        only: Option<u32>,
        sink: &mut S,
    ) -> bool {
        // From the oldest to the newest.
        let kept = self.completed.min(MAX_DOUBTED_MEASUREMENTS as u64);
        for number in self.completed - kept..self.completed {
            let recent = &mut self.recent[number as usize % MAX_DOUBTED_MEASUREMENTS];
            if recent.end <= gap.from || only.is_some_and(|task| task != recent.task) {
                continue;
            }
            sink.doubt(&Doubt {
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
