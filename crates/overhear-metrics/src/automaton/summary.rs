// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements added up, per metric, task and kind.

use overhear_event::{Nanos, StreamDescriptor};
use rustc_hash::FxHashMap;

use super::measurement::{Doubt, Measurement, Sink};
use super::metric::Metric;
use crate::cost::Costs;
use crate::histogram::Histogram;

/// How many summaries are kept of each metric: a histogram takes up to 80 KiB.
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
    /// By the index of the metric.
    metrics: Vec<Rows>,
    refused: u64,
    costs: Costs,
}

/// Places for rows that are found without asking the index.
const NEAR: usize = 256;

/// What measurements are told apart by: task and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct RowKey {
    /// And, in the lowest bit, whether it has a kind: two words are compared at once.
    task: u64,
    /// 0 if it has none.
    kind: u64,
}

impl RowKey {
    /// No measurement is of task 0.
    const NOBODY: Self = Self::new(0, None);

    #[inline(always)]
    const fn new(task: u32, kind: Option<u64>) -> Self {
        Self {
            task: (task as u64) << 1 | kind.is_some() as u64,
            kind: match kind {
                Some(kind) => kind,
                None => 0,
            },
        }
    }

    const fn task(self) -> u32 {
        (self.task >> 1) as u32
    }

    fn kind(self) -> Option<u64> {
        (self.task & 1 == 1).then_some(self.kind)
    }

    /// Where its row stands if it was found lately: those of neighbouring tasks and of few kinds stand apart.
    #[inline(always)]
    const fn near(self) -> usize {
        ((self.task >> 1).wrapping_add(self.kind.wrapping_mul(37))) as usize % NEAR
    }
}

/// The summaries of one metric.
#[derive(Clone, Debug)]
struct Rows {
    places: FxHashMap<RowKey, usize>,
    /// The places of rows that were found lately; see [`RowKey::near`].
    near: Box<[u32; NEAR]>,
    /// Those that found no room lately.
    refused: Box<[RowKey; NEAR]>,
    all: Vec<Row>,
}

impl Row {
    #[inline(always)]
    fn count(&mut self, length: Nanos, is_complete: bool) {
        self.lengths.record(length.as_ns());
        self.incomplete += u64::from(!is_complete);
    }
}

/// The summary of one task and kind: a line of the cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Row {
    key: RowKey,
    lengths: Histogram,
    incomplete: u64,
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

    /// The summaries of a metric by task and kind, in their order. The metric is named by its index among the metrics
    /// of its [`Metrics`](super::Metrics).
    pub fn of(&self, metric_index: usize) -> impl Iterator<Item = (u32, Option<u64>, Summary)> {
        let rows = self.metrics.get(metric_index);
        let mut all: Vec<_> = rows.map_or(Vec::new(), |rows| rows.all.clone());
        all.sort_by_key(|row| row.key);
        all.into_iter().map(|row| {
            let total = u64::try_from(row.lengths.sum()).unwrap_or(u64::MAX);
            let summary = Summary {
                lengths: row.lengths,
                total: Nanos::from_ns(total),
                incomplete: row.incomplete,
            };
            (row.key.task(), row.key.kind(), summary)
        })
    }

    /// The summaries of a metric, and how many measurements found no room.
    #[inline(always)]
    fn rows(&mut self, index: usize) -> (&mut Rows, &mut u64) {
        if self.metrics.len() <= index {
            self.metrics.resize_with(index + 1, Rows::default);
        }
        (&mut self.metrics[index], &mut self.refused)
    }

    /// Measurements that found no room, because more tasks and kinds were measured than summaries
    /// are kept.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

impl Default for Rows {
    /// Of a metric that has not measured anything.
    fn default() -> Self {
        Self {
            places: FxHashMap::default(),
            near: Box::new([0; NEAR]),
            refused: Box::new([RowKey::NOBODY; NEAR]),
            all: Vec::new(),
        }
    }
}

impl Rows {
    /// Counts a measurement, or that it was refused.
    #[inline(always)]
    fn count(&mut self, measurement: &Measurement<'_>, refused: &mut u64) {
        let key = RowKey::new(measurement.task, measurement.key);
        let length = measurement.adjusted();
        if let Some(row) = self.found_lately(key) {
            return row.count(length, measurement.is_complete());
        }
        // What is rare must not ask for the whole measurement: then its values stay in registers.
        match self.look_for(key) {
            Some(row) => row.count(length, measurement.is_complete()),
            None => *refused += 1,
        }
    }

    /// The row of a task and kind, `None` if there is no room.
    #[inline(never)]
    fn look_for(&mut self, key: RowKey) -> Option<&mut Row> {
        let place = self.place(key)?;
        Some(&mut self.all[place])
    }

    /// The row of a task and kind, if it was found lately.
    #[inline(always)]
    fn found_lately(&mut self, key: RowKey) -> Option<&mut Row> {
        let place = self.near[key.near()] as usize;
        self.all.get_mut(place).filter(|row| row.key == key)
    }

    /// The place of the row of a task and kind, `None` if there is no room.
    fn place(&mut self, key: RowKey) -> Option<usize> {
        // Who finds no room once never will.
        if self.refused[key.near()] == key {
            return None;
        }
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.all.len() >= SUMMARIES => {
                self.refused[key.near()] = key;
                return None;
            }
            None => {
                self.places.insert(key, self.all.len());
                self.all.push(Row {
                    key,
                    lengths: Histogram::default(),
                    incomplete: 0,
                });
                self.all.len() - 1
            }
        };
        self.near[key.near()] = place as u32;
        Some(place)
    }
}

impl Sink for Summaries {
    /// Only where they cost something.
    fn counts_intermediate(&self, _: &Metric) -> bool {
        !self.costs.are_zero()
    }

    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.costs.of_stream_ns(stream)
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let (rows, refused) = self.rows(measurement.metric_index);
        rows.count(measurement, refused);
    }

    fn measurements<'a>(
        &mut self,
        metric_index: usize,
        measurements: impl Iterator<Item = Measurement<'a>>,
    ) {
        let (rows, refused) = self.rows(metric_index);
        for measurement in measurements {
            rows.count(&measurement, refused);
        }
    }

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        let rows = self.metrics.get_mut(doubt.metric_index);
        if let Some(rows) = rows.filter(|_| doubt.was_complete) {
            if let Some(&place) = rows.places.get(&RowKey::new(doubt.task, doubt.key)) {
                rows.all[place].incomplete += 1;
            }
        }
    }
}
