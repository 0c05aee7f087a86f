// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements added up, per metric, task and kind.

use overhear_event::Nanos;
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
    metrics: Vec<Option<Rows>>,
    refused: u64,
    costs: Costs,
}

/// Places for rows that are found without asking the index.
const NEAR: usize = 256;

/// What measurements are told apart by: task and kind.
type RowKey = (u32, Option<u64>);

/// Where a row stands that was found lately: rows of neighbouring tasks and of few kinds stand apart.
#[inline(always)]
const fn near((task, key): RowKey) -> usize {
    let kind = match key {
        Some(key) => key as usize,
        None => 0,
    };
    (task as usize).wrapping_add(kind.wrapping_mul(37)) % NEAR
}

/// The summaries of one metric.
#[derive(Clone, Debug)]
struct Rows {
    metric: String,
    /// What an element of each of its event types costs.
    prices: Vec<Nanos>,
    places: FxHashMap<RowKey, usize>,
    /// The places of rows that were found lately; see [`near`].
    near: Box<[u32; NEAR]>,
    /// Those that found no room lately.
    refused: Box<[RowKey; NEAR]>,
    all: Vec<Row>,
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

    /// The summaries of a metric by task and kind, in their order.
    pub fn of(&self, metric: &str) -> impl Iterator<Item = (u32, Option<u64>, Summary)> {
        let rows = self.metrics.iter().flatten();
        let rows = rows.filter(|rows| rows.metric == metric);
        let mut all: Vec<_> = rows.flat_map(|rows| rows.all.iter().cloned()).collect();
        all.sort_by_key(|row| row.key);
        all.into_iter().map(|row| {
            let (task, key) = row.key;
            let total = u64::try_from(row.lengths.sum()).unwrap_or(u64::MAX);
            let summary = Summary {
                lengths: row.lengths,
                total: Nanos::from_ns(total),
                incomplete: row.incomplete,
            };
            (task, key, summary)
        })
    }

    /// Measurements that found no room, because more tasks and kinds were measured than summaries
    /// are kept.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

impl Rows {
    fn new(measurement: &Measurement<'_>, costs: &Costs) -> Self {
        Self {
            metric: measurement.metric.name().to_owned(),
            prices: costs.of_sources(measurement.metric),
            places: FxHashMap::default(),
            near: Box::new([0; NEAR]),
            // No measurement is of task 0.
            refused: Box::new([(0, None); NEAR]),
            all: Vec::new(),
        }
    }

    /// The row of a task and kind, `None` if there is no room.
    #[inline(always)]
    fn row(&mut self, key: RowKey) -> Option<&mut Row> {
        let place = self.near[near(key)] as usize;
        let place = match self.all.get(place) {
            Some(row) if row.key == key => place,
            _ => self.ask_index(key)?,
        };
        self.all.get_mut(place)
    }

    #[inline(never)]
    fn ask_index(&mut self, key: RowKey) -> Option<usize> {
        // Who finds no room once never will.
        if self.refused[near(key)] == key {
            return None;
        }
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.all.len() >= SUMMARIES => {
                self.refused[near(key)] = key;
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
        self.near[near(key)] = place as u32;
        Some(place)
    }
}

/// The element of this index, made if it is not there yet.
pub(super) fn at_index<T>(
    all: &mut Vec<Option<T>>,
    index: usize,
    make: impl FnOnce() -> T,
) -> &mut T {
    if all.len() <= index {
        all.resize_with(index + 1, || None);
    }
    all[index].get_or_insert_with(make)
}

impl Sink for Summaries {
    /// Only where they cost something.
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        !self.costs.of_sources(metric).is_empty()
    }

    #[inline(always)]
    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let (costs, index) = (&self.costs, measurement.metric_index);
        let rows = at_index(&mut self.metrics, index, || Rows::new(measurement, costs));
        let length = measurement.less_own(&rows.prices);
        let Some(row) = rows.row((measurement.task, measurement.key)) else {
            self.refused += 1;
            return;
        };
        row.lengths.record(length.as_ns());
        row.incomplete += u64::from(!measurement.is_complete());
    }

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        let rows = self.metrics.get_mut(doubt.metric_index);
        let rows = rows.and_then(Option::as_mut);
        if let Some(rows) = rows.filter(|_| doubt.was_complete) {
            if let Some(&place) = rows.places.get(&(doubt.task, doubt.key)) {
                rows.all[place].incomplete += 1;
            }
        }
    }
}
