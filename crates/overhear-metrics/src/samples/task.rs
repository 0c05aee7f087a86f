// SPDX-License-Identifier: MIT OR Apache-2.0
//! The samples of one thread, in two series: jobs, and samples at other points.

use overhear_event::{SamplePoint, Timestamp};

use super::{Sample, TaskKey};
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
    fn record(&mut self, value: f64, count: u64, memory: &mut HistogramMemory) {
        self.total = self.total.saturating_add(count.into());
        let is_recorded = self.values.record_within(value, memory);
        self.not_finite += u64::from(!is_recorded);
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

    fn record(&mut self, sample: &Sample, time: Timestamp, memory: &mut HistogramMemory) {
        let duration_ns = sample.header.duration_ns;
        self.count += 1;
        self.first.get_or_insert(time);
        self.last = Some(time);
        self.duration_ns = self.duration_ns.saturating_add(duration_ns);
        if duration_ns > 0 {
            self.durations.record_within(duration_ns, memory);
        }
        let values = sample.values.iter().zip(&sample.counts);
        for (statistics, (value, &count)) in self.quantities.iter_mut().zip(values) {
            if let Some(value) = *value {
                statistics.record(value, count, memory);
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
    pub(super) fn new((pid, tid): TaskKey, counts: &[bool]) -> Self {
        Self {
            pid,
            tid,
            jobs: SampleSeries::new(counts.len()),
            samples: SampleSeries::new(counts.len()),
            remainder: (0, vec![0; counts.len()]),
            counts: counts.to_vec(),
        }
    }

    pub(super) fn record(
        &mut self,
        sample: &Sample,
        time: Timestamp,
        memory: &mut HistogramMemory,
    ) {
        match sample.header.point {
            Some(SamplePoint::ThreadEnd) => self.add_remainder(sample),
            Some(SamplePoint::JobEnd) => self.jobs.record(sample, time, memory),
            _ => self.samples.record(sample, time, memory),
        }
    }

    fn add_remainder(&mut self, sample: &Sample) {
        let (duration_ns, sums) = &mut self.remainder;
        *duration_ns = duration_ns.saturating_add(sample.header.duration_ns);
        for (sum, count) in sums.iter_mut().zip(&sample.counts) {
            *sum = sum.saturating_add((*count).into());
        }
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
        let sum = self.series_of_totals().quantities.get(quantity)?.total;
        is_count.then(|| sum.saturating_add(self.remainder.1[quantity]))
    }

    /// The time to which the totals belong, in nanoseconds.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        let sum = self.series_of_totals().duration_ns;
        sum.saturating_add(self.remainder.0)
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
