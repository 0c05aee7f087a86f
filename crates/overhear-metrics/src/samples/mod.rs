// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics of samples per thread and per job, and the anomalous ones among them.
//!
//! The samples of a thread are shown as two series: jobs, and samples at other points. A job has
//! the counts since its begin, another sample those since the last one of this series. The
//! remainder at the end of a thread, at
//! [`SamplePoint::ThreadEnd`](overhear_event::SamplePoint::ThreadEnd), is part of its totals and of
//! no series.

mod anomalies;
mod derived;
mod reader;
mod task;

use std::collections::btree_map::Entry;
use std::collections::BTreeMap;
use std::sync::Arc;

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, SampledQuantity, StreamDescriptor, StreamId, Timestamp,
};

use crate::histogram::HistogramMemory;

pub use anomalies::{
    AnomalousJob, AnomalyDetector, AnomalyTask, Deviation, FIRST_JUDGED, KEPT_ANOMALIES,
};
pub use derived::Derived;
pub(crate) use reader::{Sample, SampleReader};
pub use task::{QuantityStatistics, SampleSeries, SampledTask};

/// Limit of the threads of one sampler that have an account.
const MAX_TASKS: usize = 8_192;

/// The account of a sampler: of one stream, of its lanes, or of the streams of all CPUs.
#[derive(Clone, Debug)]
pub struct SamplerAccount {
    /// The sampler's first stream.
    pub stream: Arc<StreamDescriptor>,
    /// Number of evaluated samples.
    pub samples: u64,
    /// Number of missed samples, by cause. While it is not empty, sums are lower bounds.
    pub missed: BTreeMap<GapCause, u64>,
    /// Number of samples that are in no account, because there were too many threads or because
    /// their header was damaged.
    pub refused: u64,
    reader: SampleReader,
    /// Whether each quantity is a count.
    counts: Vec<bool>,
    tasks: BTreeMap<TaskKey, SampledTask>,
    anomalies: AnomalyDetector,
}

/// Process and thread; both may be 0.
type TaskKey = (u32, u32);

impl SamplerAccount {
    fn new(stream: Arc<StreamDescriptor>, reader: SampleReader) -> Self {
        let anomalies = AnomalyDetector::new(reader.quantities());
        Self {
            stream,
            samples: 0,
            missed: BTreeMap::new(),
            refused: 0,
            counts: reader
                .quantities()
                .iter()
                .map(SampledQuantity::is_count)
                .collect(),
            reader,
            tasks: BTreeMap::new(),
            anomalies,
        }
    }

    /// The quantities, in the order of their fields.
    #[must_use]
    pub fn quantities(&self) -> &[SampledQuantity] {
        self.reader.quantities()
    }

    /// The accounts of threads, by process and thread. Samples of a whole process have thread 0,
    /// those of the system also process 0.
    pub fn tasks(&self) -> impl Iterator<Item = &SampledTask> {
        self.tasks.values()
    }

    /// The judgement of jobs.
    #[must_use]
    pub const fn anomalies(&self) -> &AnomalyDetector {
        &self.anomalies
    }

    /// Number of missed samples of all causes.
    #[must_use]
    pub fn missed_total(&self) -> u64 {
        let all = self.missed.values();
        all.fold(0, |sum, missed| sum.saturating_add(*missed))
    }

    /// Whether all samples are in the accounts: otherwise sums are lower bounds.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missed.is_empty() && self.refused == 0
    }

    fn element(&mut self, element: &ElementView<'_>, memory: &mut HistogramMemory) {
        self.samples += 1;
        let Some(sample) = self.reader.read(element) else {
            self.refused += 1;
            return;
        };
        let has_room = self.tasks.len() < MAX_TASKS;
        let task = match self.tasks.entry(sample.key()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if has_room => {
                let key = *new.key();
                new.insert(SampledTask::new(key, &self.counts))
            }
            Entry::Vacant(_) => {
                self.refused += 1;
                return;
            }
        };
        task.record(sample, element.time, memory);
        let _ = self.anomalies.judge(sample, element.time);
    }

    fn gap(&mut self, gap: &Gap) {
        let missed = self.missed.entry(gap.cause).or_default();
        *missed = missed.saturating_add(gap.missed);
        self.anomalies.interrupt();
    }
}

/// Keeps an account of every sampler: of programs, of the kernel and of the monitor. The lanes of a
/// sampler share an account, and so do the CPUs of one in the kernel.
///
/// ```
/// use overhear_event::{Analysis, ElementView, Origin, SamplePoint, SampleSchema};
/// use overhear_event::{StreamDescriptor, StreamId, Timestamp};
/// use overhear_metrics::SampleStatistics;
///
/// let schema = SampleSchema::new().count("instructions", "").build()?;
/// let (id, origin) = (StreamId::from_raw(1), Origin::program(7, "p"));
/// let stream = StreamDescriptor::new(id, origin, "jobs", schema);
/// let mut statistics = SampleStatistics::default();
/// for (sequence, instructions) in [(0, 900_u64), (1, 1_100)] {
///     // The thread, its process, the occurrence, the CPU; the duration; the quantity.
///     let header = [7, 7, SamplePoint::JobEnd.as_raw(), 0];
///     let mut payload: Vec<u8> = header.iter().flat_map(|it| it.to_ne_bytes()).collect();
///     payload.extend(1_000_000_u64.to_ne_bytes());
///     payload.extend(instructions.to_ne_bytes());
///     let time = Timestamp::from_monotonic_ns(1_000_000 * (sequence + 1));
///     let payload = &payload;
///     statistics.element(&ElementView { stream: &stream, sequence, time, payload });
/// }
/// let sampler = statistics.samplers().next().expect("one sampler");
/// let task = sampler.tasks().next().expect("one thread");
/// assert_eq!(task.jobs.count, 2);
/// assert_eq!(task.jobs.quantities[0].total, 2_000);
/// assert_eq!(task.jobs.quantities[0].values.mean(), Some(1_000.0));
/// # Ok::<(), overhear_event::SchemaError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SampleStatistics {
    accounts: Vec<SamplerAccount>,
    /// Index of the account by stream; `None` if its elements are not samples.
    of_stream: BTreeMap<StreamId, Option<usize>>,
    memory: HistogramMemory,
}

impl SampleStatistics {
    /// Bounds the memory of the distributions of all samplers; the default is 24 MiB.
    #[must_use]
    pub fn with_histogram_bytes(mut self, bytes: usize) -> Self {
        self.memory = HistogramMemory::bytes(bytes);
        self
    }

    /// The accounts of samplers in the order of their first streams, which does not depend on the
    /// first writer.
    pub fn samplers(&self) -> impl Iterator<Item = &SamplerAccount> {
        let mut seen = vec![false; self.accounts.len()];
        let indices = self.of_stream.values().copied().flatten();
        let indices = indices.filter(move |&index| !std::mem::replace(&mut seen[index], true));
        indices.map(|index| &self.accounts[index])
    }

    /// Largest relative error of a quantile.
    #[must_use]
    pub fn quantile_error(&self) -> f64 {
        let tasks = self.accounts.iter().flat_map(SamplerAccount::tasks);
        tasks.map(SampledTask::quantile_error).fold(0.0, f64::max)
    }

    /// Announces a stream, so that a sampler is listed even if it never writes.
    pub fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        self.index_of(stream, || Arc::clone(stream));
    }

    /// Index of the account of a stream; `None` if its elements are not samples.
    fn index_of(
        &mut self,
        stream: &StreamDescriptor,
        shared: impl FnOnce() -> Arc<StreamDescriptor>,
    ) -> Option<usize> {
        if let Some(&known) = self.of_stream.get(&stream.id) {
            return known;
        }
        let found = SampleReader::of(stream).map(|reader| {
            let mut known = self.accounts.iter();
            // Streams of one sampler have one schema: otherwise its fields would have two meanings.
            let same = known.position(|known| {
                known.stream.is_same_sensor(stream) && known.stream.schema == stream.schema
            });
            same.unwrap_or_else(|| {
                self.accounts.push(SamplerAccount::new(shared(), reader));
                self.accounts.len() - 1
            })
        });
        self.of_stream.insert(stream.id, found);
        found
    }

    fn account(&mut self, stream: &StreamDescriptor) -> Option<&mut SamplerAccount> {
        let index = self.index_of(stream, || Arc::new(stream.clone()))?;
        self.accounts.get_mut(index)
    }

    /// Coarsens the largest distributions until all fit.
    #[cold]
    fn fit(&mut self) {
        let accounts = &mut self.accounts;
        self.memory.fit(|bound| {
            let tasks = accounts.iter_mut().flat_map(|it| it.tasks.values_mut());
            tasks
                .flat_map(SampledTask::distributions)
                .for_each(&mut *bound);
        });
    }
}

impl Analysis for SampleStatistics {
    fn element(&mut self, element: &ElementView<'_>) {
        let index = self.index_of(element.stream, || Arc::new(element.stream.clone()));
        if let Some(account) = index.and_then(|index| self.accounts.get_mut(index)) {
            account.element(element, &mut self.memory);
            if self.memory.is_exceeded() {
                self.fit();
            }
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if let Some(account) = self.account(stream) {
            account.gap(gap);
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests;
