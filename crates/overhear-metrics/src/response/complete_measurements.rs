// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements of which nothing was missed, and the longest of each thread.

use std::collections::BTreeMap;

use overhear_event::{Nanos, StreamDescriptor};

use crate::automaton::{LateGap, Measurement, Metric, Sink, Summaries};

/// A [`Sink`] that adds up the complete measurements.
///
/// Missed elements can make a measurement longer than the real one, and such a response time must
/// not exceed a computed one. So an incomplete measurement is only counted, and a gap that is found
/// later marks the longest measurement of its thread as doubtful.
#[derive(Debug, Default)]
pub struct CompleteMeasurements {
    summaries: Summaries,
    /// By index of the metric and thread.
    threads: BTreeMap<(usize, u32), ThreadMeasurements>,
}

/// The measurements of one metric and thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadMeasurements {
    /// Length and number of the longest complete measurement.
    longest: Option<(Nanos, u64)>,
    /// Number of incomplete measurements.
    pub incomplete: u64,
    /// Whether a gap was found later that concerns the longest measurement.
    pub is_doubtful: bool,
}

impl CompleteMeasurements {
    /// Adds complete measurements to `summaries`.
    #[must_use]
    pub fn new(summaries: Summaries) -> Self {
        Self {
            summaries,
            threads: BTreeMap::new(),
        }
    }

    /// The complete measurements, added up.
    #[must_use]
    pub const fn summaries(&self) -> &Summaries {
        &self.summaries
    }

    /// The threads with measurements of the metric with this index.
    pub fn threads_of(
        &self,
        metric: usize,
    ) -> impl Iterator<Item = (u32, ThreadMeasurements)> + '_ {
        let of_metric = self.threads.range((metric, 0)..=(metric, u32::MAX));
        of_metric.map(|((_, thread), measurements)| (*thread, *measurements))
    }
}

impl Sink for CompleteMeasurements {
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        self.summaries.counts_intermediate(metric)
    }

    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.summaries.element_cost_ns(stream)
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let key = (measurement.metric_index, measurement.task);
        let thread = self.threads.entry(key).or_default();
        if !measurement.is_complete() {
            thread.incomplete += 1;
            return;
        }
        if thread
            .longest
            .is_none_or(|(longest, _)| measurement.length > longest)
        {
            thread.longest = Some((measurement.length, measurement.number));
            thread.is_doubtful = false;
        }
        self.summaries.measurement(measurement);
    }

    fn late_gap(&mut self, gap: &LateGap<'_>) {
        if let Some(thread) = self.threads.get_mut(&(gap.metric_index, gap.task)) {
            thread.is_doubtful |= thread
                .longest
                .is_some_and(|(_, number)| number == gap.number);
        }
        self.summaries.late_gap(gap);
    }
}
