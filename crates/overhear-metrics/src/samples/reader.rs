// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the samples of one sampler, and adds up the jobs of samplers in the kernel.

use std::collections::BTreeMap;

use overhear_event::{
    ElementView, Origin, SampleHeader, SampleLayout, SamplePoint, SampledQuantity, StreamDescriptor,
};

use super::TaskKey;

/// Limit of the threads whose jobs are added up at a time. Of others, a job has only what its last
/// sample has.
const MAX_OPEN_JOBS: usize = 8_192;

/// Reads the elements of one sampler as samples.
///
/// A sampler in a program has two independent series for each thread: the counts of a job end are
/// those since the job's begin. A sampler in the kernel has one: the counts of each sample are
/// those since the last one at any point. So a job is the sum of the samples since the last job end.
#[derive(Clone, Debug)]
pub(crate) struct SampleReader {
    layout: SampleLayout,
    /// Whether the samples of a thread are one series.
    is_chained: bool,
    /// Whether there were samples at other points than job ends.
    has_parts: bool,
    /// The jobs that have not ended, of one series.
    open: BTreeMap<TaskKey, OpenJob>,
    /// Number of gaps so far.
    gaps: u64,
    sample: Sample,
}

/// A job that has not ended.
#[derive(Clone, Debug, Default)]
struct OpenJob {
    counted: Counted,
    /// Number of gaps before its begin.
    gaps: u64,
}

/// What was counted in a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) duration_ns: u64,
    /// One count for each quantity; 0 for a level.
    pub(crate) counts: Vec<u64>,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        self.duration_ns = self.duration_ns.saturating_add(other.duration_ns);
        self.counts.resize(other.counts.len(), 0);
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*count);
        }
    }
}

/// A sample, or a job.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Its header; of a job, the duration is that of the job.
    pub(crate) header: SampleHeader,
    /// What the element itself has counted.
    pub(crate) own: Counted,
    /// The value of each quantity: of a count that of the job, if it is a job.
    pub(crate) values: Vec<Option<f64>>,
    /// The counts of the sample or the job.
    pub(crate) counts: Vec<u64>,
    /// Whether no sample of the job was missed.
    pub(crate) is_whole: bool,
}

impl Sample {
    pub(crate) const fn key(&self) -> TaskKey {
        (self.header.pid, self.header.tid)
    }
}

impl SampleReader {
    /// A reader of a sampler's streams; `None` if their elements are not samples.
    pub(crate) fn of(stream: &StreamDescriptor) -> Option<Self> {
        let header = SampleHeader {
            tid: 0,
            pid: 0,
            point: None,
            cpu: 0,
            duration_ns: 0,
        };
        Some(Self {
            layout: SampleLayout::of(&stream.schema)?,
            is_chained: matches!(stream.origin, Origin::Kernel { .. }),
            has_parts: false,
            open: BTreeMap::new(),
            gaps: 0,
            sample: Sample {
                header,
                own: Counted::default(),
                values: Vec::new(),
                counts: Vec::new(),
                is_whole: true,
            },
        })
    }

    pub(crate) fn quantities(&self) -> &[SampledQuantity] {
        self.layout.quantities()
    }

    /// Whether the samples of a thread are one series.
    pub(crate) const fn is_chained(&self) -> bool {
        self.is_chained
    }

    /// Reads an element; `None` if it is too short.
    pub(crate) fn read(&mut self, element: &ElementView<'_>) -> Option<&Sample> {
        let schema = &element.stream.schema;
        let sample = &mut self.sample;
        sample.header = self.layout.header(schema, element.payload)?;
        sample.own.duration_ns = sample.header.duration_ns;
        sample.own.counts.clear();
        sample.values.clear();
        for quantity in self.layout.quantities() {
            let value = schema.read(quantity.field, element.payload);
            let count = value.and_then(|value| value.as_u64());
            let count = count.filter(|_| quantity.is_count());
            sample.own.counts.push(count.unwrap_or(0));
            sample.values.push(value.and_then(|value| value.as_f64()));
        }
        sample.counts.clone_from(&sample.own.counts);
        sample.is_whole = true;
        if self.is_chained {
            self.add_up();
        }
        Some(&self.sample)
    }

    /// Adds a sample to the open job of its thread; the sample of a job end gets the sums.
    fn add_up(&mut self) {
        let key = self.sample.key();
        let sample = &mut self.sample;
        match sample.header.point {
            Some(SamplePoint::ThreadEnd) => {
                self.open.remove(&key);
            }
            Some(SamplePoint::JobEnd) => {
                let has_room = self.open.len() < MAX_OPEN_JOBS;
                let next = OpenJob {
                    counted: Counted::default(),
                    gaps: self.gaps,
                };
                let known = self.open.contains_key(&key) || has_room;
                let job = known.then(|| self.open.insert(key, next)).flatten();
                let mut job = job.unwrap_or_default();
                // Without other points, each job end has the whole job.
                sample.is_whole = !self.has_parts || job.gaps == self.gaps;
                job.counted.add(&sample.own);
                sample.header.duration_ns = job.counted.duration_ns;
                for (index, quantity) in self.layout.quantities().iter().enumerate() {
                    if quantity.is_count() {
                        sample.values[index] = Some(job.counted.counts[index] as f64);
                    }
                }
                sample.counts = job.counted.counts;
            }
            _ => {
                self.has_parts = true;
                if self.open.len() < MAX_OPEN_JOBS || self.open.contains_key(&key) {
                    self.open.entry(key).or_default().counted.add(&sample.own);
                }
            }
        }
    }

    /// Samples were missed: the open jobs are not whole.
    pub(crate) const fn gap(&mut self) {
        self.gaps += 1;
    }
}
