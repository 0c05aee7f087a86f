// SPDX-License-Identifier: MIT OR Apache-2.0
//! The samples of one thread, in two series: jobs, and samples at other points.

use overhear_event::{SampleHeader, SamplePoint, SampledQuantity, Timestamp, Value};

use super::TaskKey;
use crate::distribution::Distribution;
use crate::histogram::{Bounded, Histogram, HistogramMemory};

/// The values of one quantity in a series.
#[derive(Clone, Debug, Default)]
pub struct QuantityStatistics {
    /// The finite values.
    pub values: Distribution,
    /// The exact sum, of a count. A level has 0.
    pub total: u128,
    /// Number of values that are infinite or no number.
    pub not_finite: u64,
}

impl QuantityStatistics {
    fn record(&mut self, value: Value<'_>, is_count: bool, memory: &mut HistogramMemory) {
        if let (Value::Unsigned(count), true) = (value, is_count) {
            self.total = self.total.saturating_add(count.into());
        }
        let recorded = value
            .as_f64()
            .is_some_and(|value| self.values.record_within(value, memory));
        self.not_finite += u64::from(!recorded);
    }
}

/// Samples of one thread at points of one kind.
#[derive(Clone, Debug)]
pub struct SampleSeries {
    /// Number of samples.
    pub count: u64,
    /// Sum of their durations: the time to which their counts belong.
    pub duration_ns: u64,
    /// The durations that are known, in nanoseconds.
    pub durations: Histogram,
    /// Time of the first sample; `None` without samples.
    pub first: Option<Timestamp>,
    /// Time of the last sample.
    pub last: Option<Timestamp>,
    /// One for each quantity of the sampler.
    pub quantities: Vec<QuantityStatistics>,
}

impl SampleSeries {
    fn new(quantities: usize) -> Self {
        Self {
            count: 0,
            duration_ns: 0,
            durations: Histogram::new(),
            first: None,
            last: None,
            quantities: vec![QuantityStatistics::default(); quantities],
        }
    }

    fn record<'a>(
        &mut self,
        duration_ns: u64,
        time: Timestamp,
        values: impl Iterator<Item = (Option<Value<'a>>, bool)>,
        memory: &mut HistogramMemory,
    ) {
        self.count += 1;
        self.first.get_or_insert(time);
        self.last = Some(time);
        self.duration_ns = self.duration_ns.saturating_add(duration_ns);
        if duration_ns > 0 {
            self.durations.record_within(duration_ns, memory);
        }
        for (statistics, (value, is_count)) in self.quantities.iter_mut().zip(values) {
            if let Some(value) = value {
                statistics.record(value, is_count, memory);
            }
        }
    }
}

/// The samples of one thread, or of a process or the system.
#[derive(Clone, Debug)]
pub struct SampledTask {
    /// The process, 0 for samples of the system.
    pub pid: u32,
    /// The thread, 0 for samples of a whole process or of the system.
    pub tid: u32,
    /// The samples at job ends.
    pub jobs: SampleSeries,
    /// The samples at all other points except the end of the thread.
    pub samples: SampleSeries,
    /// What was left at the end of the thread: sum of durations in nanoseconds, and one sum for
    /// each quantity.
    pub remainder: (u64, Vec<u128>),
    /// Whether each quantity is a count.
    counts: Vec<bool>,
}

impl SampledTask {
    pub(super) fn new((pid, tid): TaskKey, quantities: &[SampledQuantity]) -> Self {
        Self {
            pid,
            tid,
            jobs: SampleSeries::new(quantities.len()),
            samples: SampleSeries::new(quantities.len()),
            remainder: (0, vec![0; quantities.len()]),
            counts: quantities.iter().map(SampledQuantity::is_count).collect(),
        }
    }

    pub(super) fn record<'a>(
        &mut self,
        header: &SampleHeader,
        time: Timestamp,
        values: impl Iterator<Item = Option<Value<'a>>>,
        memory: &mut HistogramMemory,
    ) {
        let values = values.zip(self.counts.iter().copied());
        let series = match header.point {
            Some(SamplePoint::ThreadEnd) => {
                self.remainder.0 = self.remainder.0.saturating_add(header.duration_ns);
                for (sum, (value, is_count)) in self.remainder.1.iter_mut().zip(values) {
                    let count = value.and_then(|value| value.as_u64()).filter(|_| is_count);
                    *sum = sum.saturating_add(count.unwrap_or(0).into());
                }
                return;
            }
            Some(SamplePoint::JobEnd) => &mut self.jobs,
            _ => &mut self.samples,
        };
        series.record(header.duration_ns, time, values, memory);
    }

    /// The series that has the thread's totals, together with the remainder: the samples if there
    /// are any, because they also have what lies between jobs; otherwise the jobs.
    fn series_of_totals(&self) -> &SampleSeries {
        if self.samples.count > 0 {
            &self.samples
        } else {
            &self.jobs
        }
    }

    /// The total of a count of this thread; `None` for a level.
    #[must_use]
    pub fn total(&self, quantity: usize) -> Option<u128> {
        let is_count = self.counts.get(quantity).copied().unwrap_or(false);
        let series = self.series_of_totals().quantities.get(quantity)?;
        is_count.then(|| series.total.saturating_add(self.remainder.1[quantity]))
    }

    /// The time to which the totals belong, in nanoseconds.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        let series = self.series_of_totals().duration_ns;
        series.saturating_add(self.remainder.0)
    }

    pub(super) fn distributions(&mut self) -> impl Iterator<Item = &mut dyn Bounded> {
        [&mut self.jobs, &mut self.samples]
            .into_iter()
            .flat_map(|series| {
                let values = series.quantities.iter_mut();
                let values = values.map(|it| &mut it.values as &mut dyn Bounded);
                values.chain([&mut series.durations as &mut dyn Bounded])
            })
    }

    pub(super) fn quantile_error(&self) -> f64 {
        let series = [&self.jobs, &self.samples].into_iter();
        let errors = series.flat_map(|series| {
            let values = series.quantities.iter().map(|it| it.values.error());
            values.chain([series.durations.error()])
        });
        errors.fold(0.0, f64::max)
    }
}
