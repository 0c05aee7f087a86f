// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements added up, per metric, task and kind.

use std::collections::BTreeMap;

use overhear_event::Nanos;

use super::measurement::{Doubt, Measurement, Sink};
use crate::cost::Costs;
use crate::histogram::Histogram;

/// How many summaries are kept of each metric: a histogram takes up to 300 KiB.
const SUMMARIES: usize = 4_096;

/// The measurements of one task and kind.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Their lengths, in nanoseconds.
    pub lengths: Histogram,
    /// Their sum.
    pub total: Nanos,
    /// How many of them are incomplete.
    pub incomplete: u64,
}

/// A [`Sink`] that adds measurements up.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    metrics: BTreeMap<String, BTreeMap<(u32, Option<u64>), Summary>>,
    refused: u64,
    costs: Costs,
}

impl Summaries {
    /// Subtracts what the observation itself took: its price for each element of the task itself that
    /// lies in a measurement ([`Measurement::adjusted`]). Elements of other tasks may have been written on
    /// other CPUs; elements without a price are taken to cost nothing.
    #[must_use]
    pub fn less(mut self, costs: impl Into<Costs>) -> Self {
        self.costs = costs.into();
        self
    }

    /// The summaries of a metric by task and kind.
    pub fn of(&self, metric: &str) -> impl Iterator<Item = (u32, Option<u64>, &Summary)> {
        let rows = self.metrics.get(metric).into_iter().flatten();
        rows.map(|(&(task, key), summary)| (task, key, summary))
    }

    /// Measurements that found no room, because more tasks and kinds were measured than summaries
    /// are kept.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

impl Sink for Summaries {
    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let name = measurement.metric.name();
        if !self.metrics.contains_key(name) {
            self.metrics.insert(name.to_owned(), BTreeMap::new());
        }
        let Some(rows) = self.metrics.get_mut(name) else {
            return;
        };
        let row = (measurement.task, measurement.key);
        if rows.len() >= SUMMARIES && !rows.contains_key(&row) {
            self.refused += 1;
            return;
        }
        let summary = rows.entry(row).or_default();
        let length = measurement.adjusted(
            |event| self.costs.of_event(event).unwrap_or_default(),
            |count| count.own,
        );
        summary.lengths.record(length.as_ns());
        summary.total = summary.total.plus(length);
        summary.incomplete += u64::from(!measurement.is_complete());
    }

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        let rows = self.metrics.get_mut(doubt.metric.name());
        if let Some(summary) = rows.and_then(|rows| rows.get_mut(&(doubt.task, doubt.key))) {
            summary.incomplete += u64::from(doubt.was_complete);
        }
    }
}
