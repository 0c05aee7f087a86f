// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements added up, per metric, task and kind.

use overhear_event::{Nanos, StreamDescriptor};
use rustc_hash::FxHashMap;

use crate::automaton::compile::metric::Metric;
use crate::automaton::engine::{LateGap, Measurement, Sink};
use crate::histogram::{Histogram, HistogramMemory};
use crate::overhead::Costs;

/// Largest number of summaries per metric.
const SUMMARIES_OF_METRIC: usize = 16_384;
/// Largest number of summaries of all metrics: about 40 MB, without the counts of their histograms.
const SUMMARIES: usize = 131_072;

/// The measurements of one task and kind.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Their lengths, in nanoseconds.
    pub lengths: Histogram,
    /// Sum of their lengths.
    pub total: Nanos,
    /// Number of incomplete ones.
    pub incomplete: u64,
}

/// A [`Sink`] that adds measurements up.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    /// Indexed by metric.
    metrics: Vec<Rows>,
    account: Account,
    costs: Costs,
}

/// State that all metrics share.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Number of rows of all metrics.
    rows: usize,
    /// Number of measurements that found no room.
    refused: u64,
    memory: HistogramMemory,
}

/// Rows that are found without the hash map.
const ROW_CACHE_SLOTS: usize = 256;

/// Task and kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct RowKey {
    /// The task, shifted left by one; the lowest bit is set with a kind. So two words are compared
    /// at once.
    task: u64,
    /// 0 without a kind.
    kind: u64,
}

impl RowKey {
    /// No measurement has task 0.
    const NONE: Self = Self::new(0, None);

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

    /// Index of its row in the caches: neighbouring tasks and small kinds get different ones.
    #[inline(always)]
    const fn cache_index(self) -> usize {
        ((self.task >> 1).wrapping_add(self.kind.wrapping_mul(37))) as usize % ROW_CACHE_SLOTS
    }
}

/// The summaries of one metric.
#[derive(Clone, Debug)]
struct Rows {
    indices: FxHashMap<RowKey, usize>,
    /// Indexed by [`RowKey::cache_index`]: the index in `all` of the row found last.
    cache: Box<[u32; ROW_CACHE_SLOTS]>,
    /// Indexed by [`RowKey::cache_index`]: the key that found no room last.
    refused: Box<[RowKey; ROW_CACHE_SLOTS]>,
    all: Vec<Row>,
}

impl Row {
    #[inline(always)]
    fn count(&mut self, length: Nanos, is_complete: bool, memory: &mut HistogramMemory) {
        self.lengths.record_within(length.as_ns(), memory);
        self.incomplete += u64::from(!is_complete);
    }
}

/// The summary of one task and kind, in one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Row {
    key: RowKey,
    lengths: Histogram,
    incomplete: u64,
}

impl Summaries {
    /// Subtracts the cost of observation: the price of each element of the task itself that lies in
    /// a measurement ([`Measurement::adjusted`]). Elements of other tasks may have been written on
    /// other CPUs; elements without a price cost nothing.
    #[must_use]
    pub fn minus_costs(mut self, costs: impl Into<Costs>) -> Self {
        self.costs = costs.into();
        self
    }

    /// Bounds the memory of the histograms of all summaries; the default is 24 MiB.
    #[must_use]
    pub fn with_histogram_bytes(mut self, bytes: usize) -> Self {
        self.account.memory = HistogramMemory::bytes(bytes);
        self
    }

    /// Largest relative error of a quantile.
    #[must_use]
    pub fn quantile_error(&self) -> f64 {
        let rows = self.metrics.iter().flat_map(|rows| &rows.all);
        rows.map(|row| row.lengths.error()).fold(0.0, f64::max)
    }

    /// The summaries of a metric, sorted by task and kind. The index of the metric is that in its
    /// [`Metrics`](crate::automaton::Metrics).
    pub fn of(
        &self,
        metric_index: usize,
    ) -> impl Iterator<Item = (u32, Option<u64>, Summary)> + '_ {
        let rows = self.metrics.get(metric_index).into_iter();
        let mut all: Vec<&Row> = rows.flat_map(|rows| &rows.all).collect();
        all.sort_by_key(|row| row.key);
        all.into_iter().map(|row| {
            let total = u64::try_from(row.lengths.sum()).unwrap_or(u64::MAX);
            let summary = Summary {
                lengths: row.lengths.clone(),
                total: Nanos::from_ns(total),
                incomplete: row.incomplete,
            };
            (row.key.task(), row.key.kind(), summary)
        })
    }

    /// The summaries of a metric, and the shared state.
    #[inline(always)]
    fn rows(&mut self, index: usize) -> (&mut Rows, &mut Account) {
        if self.metrics.len() <= index {
            self.metrics.resize_with(index + 1, Rows::default);
        }
        (&mut self.metrics[index], &mut self.account)
    }

    /// Coarsens the largest histograms until all fit.
    #[cold]
    fn fit(&mut self) {
        let metrics = &mut self.metrics;
        self.account.memory.fit(|bound| {
            let rows = metrics.iter_mut().flat_map(|rows| &mut rows.all);
            rows.for_each(|row| bound(&mut row.lengths));
        });
    }

    /// Number of measurements that found no room, because more tasks and kinds were measured than
    /// summaries are kept.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.account.refused
    }
}

impl Default for Rows {
    /// A metric without measurements.
    fn default() -> Self {
        Self {
            indices: FxHashMap::default(),
            cache: Box::new([0; ROW_CACHE_SLOTS]),
            refused: Box::new([RowKey::NONE; ROW_CACHE_SLOTS]),
            all: Vec::new(),
        }
    }
}

impl Rows {
    /// Counts a measurement, or that it was refused.
    #[inline(always)]
    fn count(&mut self, measurement: &Measurement<'_>, account: &mut Account) {
        let key = RowKey::new(measurement.task, measurement.key);
        let length = measurement.adjusted();
        if let Some(row) = self.cached_row(key) {
            return row.count(length, measurement.is_complete(), &mut account.memory);
        }
        // The rare case gets the key only: so the values of the measurement stay in registers.
        match self.find_or_insert(key, account) {
            Some(row) => row.count(length, measurement.is_complete(), &mut account.memory),
            None => account.refused += 1,
        }
    }

    /// The row of a task and kind; `None` if there is no room.
    #[inline(never)]
    fn find_or_insert(&mut self, key: RowKey, account: &mut Account) -> Option<&mut Row> {
        let index = self.index(key, account)?;
        Some(&mut self.all[index])
    }

    /// The row of a task and kind, if it is cached.
    #[inline(always)]
    fn cached_row(&mut self, key: RowKey) -> Option<&mut Row> {
        let index = self.cache[key.cache_index()] as usize;
        self.all.get_mut(index).filter(|row| row.key == key)
    }

    /// The index of the row of a task and kind; `None` if there is no room.
    fn index(&mut self, key: RowKey, account: &mut Account) -> Option<usize> {
        // A key that found no room once never finds any.
        if self.refused[key.cache_index()] == key {
            return None;
        }
        let index = match self.indices.get(&key) {
            Some(&index) => index,
            None if self.all.len() >= SUMMARIES_OF_METRIC || account.rows >= SUMMARIES => {
                self.refused[key.cache_index()] = key;
                return None;
            }
            None => {
                account.rows += 1;
                self.indices.insert(key, self.all.len());
                self.all.push(Row {
                    key,
                    lengths: Histogram::default(),
                    incomplete: 0,
                });
                self.all.len() - 1
            }
        };
        self.cache[key.cache_index()] = index as u32;
        Some(index)
    }
}

impl Sink for Summaries {
    /// Only if elements have a cost.
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
        let (rows, account) = self.rows(measurement.metric_index);
        rows.count(measurement, account);
        if self.account.memory.is_exceeded() {
            self.fit();
        }
    }

    fn measurements<'a>(
        &mut self,
        metric_index: usize,
        measurements: impl Iterator<Item = Measurement<'a>>,
    ) {
        let (rows, account) = self.rows(metric_index);
        for measurement in measurements {
            rows.count(&measurement, account);
        }
        if self.account.memory.is_exceeded() {
            self.fit();
        }
    }

    fn late_gap(&mut self, late: &LateGap<'_>) {
        let rows = self.metrics.get_mut(late.metric_index);
        if let Some(rows) = rows.filter(|_| late.was_complete) {
            if let Some(&index) = rows.indices.get(&RowKey::new(late.task, late.key)) {
                rows.all[index].incomplete += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        Analysis, ElementView, EventName, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::Summaries;
    use crate::automaton::{new_user_metric, Catalogue, Metrics};

    #[test]
    fn summaries_stay_within_their_memory() {
        const BYTES: usize = 256 << 10;
        const TASKS: u32 = 100;
        let (initial, r#final) = (EventName::user("begins"), EventName::user("ends"));
        let metric = new_user_metric(
            "mine",
            &initial.into(),
            &r#final.into(),
            true,
            &Catalogue::linux(),
        )
        .unwrap();
        let schema = Arc::new(TypeSchema::builder("t").build().unwrap());
        let stream = |pid, sensor: &str, id| {
            StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::program(pid, "p"),
                sensor,
                Arc::clone(&schema),
            )
        };
        let streams: Vec<_> = (1..=TASKS)
            .map(|pid| {
                [
                    stream(pid, "begins", 2 * pid),
                    stream(pid, "ends", 2 * pid + 1),
                ]
            })
            .collect();
        let mut metrics = Metrics::new(Summaries::default().with_histogram_bytes(BYTES));
        metrics.add(metric);
        let mut now_ns = 1;
        for round in 0..2_000 {
            let length_ns = (1 + round * 48_271 % 65_537) << (round % 9);
            for ends in [0, 1] {
                for pair in &streams {
                    metrics.element(&ElementView {
                        stream: &pair[ends],
                        sequence: round,
                        time: Timestamp::from_monotonic_ns(now_ns),
                        payload: &[],
                    });
                }
                now_ns += length_ns;
            }
        }
        let summaries = metrics.sink();
        let rows = summaries.metrics.iter().flat_map(|rows| &rows.all);
        let bytes: usize = rows.map(|row| row.lengths.heap_bytes()).sum();
        assert!(bytes <= BYTES, "{bytes}");
        let error = summaries.quantile_error();
        assert!((0.001..0.2).contains(&error), "{error}");
        let mut exact: Vec<u64> = (0..2_000)
            .map(|round| (1 + round * 48_271 % 65_537) << (round % 9))
            .collect();
        exact.sort_unstable();
        assert_eq!(summaries.of(0).count(), TASKS as usize);
        for (_, _, summary) in summaries.of(0) {
            let lengths = &summary.lengths;
            assert_eq!(lengths.count(), 2_000);
            assert_eq!(summary.total.as_ns(), exact.iter().sum::<u64>());
            assert_eq!(lengths.max(), exact.last().copied());
            let (found, exact) = (lengths.quantile(0.5).unwrap() as f64, exact[999] as f64);
            assert!((found - exact).abs() <= exact * error, "{found}: {exact}");
        }
    }
}
