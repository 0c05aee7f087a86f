// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements added up, per metric, task and kind.

use overhear_event::Nanos;
use rustc_hash::FxHashMap;

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
    /// By the index of the metric.
    metrics: Vec<Option<Rows>>,
    refused: u64,
    costs: Costs,
}

/// Places for rows that are found without asking the index.
const NEAR: usize = 64;
/// Lengths that are counted at once: a histogram is larger than a cache is, so that single lengths of many
/// rows in turns would fetch it anew each time.
const PENDING: usize = 1_024;

/// What measurements are told apart by: task and kind.
type RowKey = (u32, Option<u64>);

/// The summaries of one metric.
#[derive(Clone, Debug)]
struct Rows {
    metric: String,
    /// What an element of each of its event types costs.
    prices: Vec<Nanos>,
    places: FxHashMap<RowKey, usize>,
    /// Rows that were found lately and their places, by the low bits of the task.
    near: Box<[(RowKey, usize)]>,
    all: Vec<Row>,
}

/// A summary, and what it does not yet hold.
#[derive(Clone, Debug)]
struct Row {
    key: RowKey,
    summary: Summary,
    pending: Vec<u64>,
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
        all.into_iter().map(|mut row| {
            row.count_pending();
            (row.key.0, row.key.1, row.summary)
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
            // No row is beyond all of them.
            near: vec![((0, None), usize::MAX); NEAR].into(),
            all: Vec::new(),
        }
    }

    /// The row of a task and kind, `None` if there is no room.
    fn row(&mut self, task: u32, key: Option<u64>) -> Option<&mut Row> {
        let wanted = (task, key);
        let near = task as usize % NEAR;
        let (known, place) = self.near[near];
        let place = if known == wanted && place < self.all.len() {
            place
        } else {
            let place = self.ask_index(wanted)?;
            self.near[near] = (wanted, place);
            place
        };
        Some(&mut self.all[place])
    }

    fn ask_index(&mut self, key: RowKey) -> Option<usize> {
        if let Some(&place) = self.places.get(&key) {
            return Some(place);
        }
        if self.all.len() >= SUMMARIES {
            return None;
        }
        self.places.insert(key, self.all.len());
        self.all.push(Row {
            key,
            summary: Summary::default(),
            pending: Vec::new(),
        });
        Some(self.all.len() - 1)
    }
}

impl Row {
    fn count(&mut self, length: Nanos) {
        self.pending.push(length.as_ns());
        self.summary.total = self.summary.total.plus(length);
        if self.pending.len() == PENDING {
            self.count_pending();
        }
    }

    fn count_pending(&mut self) {
        for length in self.pending.drain(..) {
            self.summary.lengths.record(length);
        }
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
    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let (costs, index) = (&self.costs, measurement.metric_index);
        let rows = at_index(&mut self.metrics, index, || Rows::new(measurement, costs));
        let length = measurement.less_own(&rows.prices);
        let Some(row) = rows.row(measurement.task, measurement.key) else {
            self.refused += 1;
            return;
        };
        row.count(length);
        row.summary.incomplete += u64::from(!measurement.is_complete());
    }

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        let rows = self.metrics.get_mut(doubt.metric_index);
        let rows = rows.and_then(Option::as_mut);
        if let Some(rows) = rows.filter(|_| doubt.was_complete) {
            if let Some(&place) = rows.places.get(&(doubt.task, doubt.key)) {
                rows.all[place].summary.incomplete += 1;
            }
        }
    }
}
