// SPDX-License-Identifier: MIT OR Apache-2.0
//! Anomalous jobs: robust statistics over the counters of each thread, while the jobs come in.
//!
//! ```text
//! values of a job:  duration, counts, levels with a unit, IPC, misses per thousand instructions
//!        |          of a thread without job ends: counts per second of each sample
//!        v
//! DEVIATION  per value: (value - median) / spread, of the last 256 jobs of this thread
//!        |
//!        v
//! SCORE      the largest deviation of the job
//!        |
//!        v
//! ALARM      if the score is at least 6, and at most 1.5 % of the last scores reach it
//! ```
//!
//! The spread is 1.4826 times the median distance from the median (MAD), which is the standard
//! deviation of normal values. Neither changes much if a few jobs are anomalous.
//!
//! # The rate of false alarms
//!
//! The score of a job is ranked among the last `n` scores of the same thread, which were formed in
//! the same way, each from the jobs before it. If nothing has changed, all orders of these `n + 1`
//! scores are equally likely. So the probability that at most `k` of the others reach the newest is
//! at most `(k + 1) / (n + 1)`, whatever the distribution is, and an alarm needs that this is at
//! most 1.5 %. (This is the p-value of conformal prediction.) A job that directly follows an
//! anomalous one belongs to the same anomaly if its score is at least 6 and at most a quarter of
//! the last scores reach it. Thus at most `1.5 % / (1 - 1/4) = 2 %` of the jobs are anomalous
//! without a change. The price: an anomaly that returns more often than that is soon usual.
//!
//! Judging begins when the rank of a score can be that low: with job [`FIRST_JUDGED`].

mod judge;
mod ring;

use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

use overhear_event::{SamplePoint, SampledQuantity, Timestamp};

use super::derived::Derived;
use super::{Sample, TaskKey};
use judge::{Judge, Judgement};

pub use judge::FIRST_JUDGED;

/// Limit of the anomalies that are kept with their deviations.
pub const KEPT_ANOMALIES: usize = 200;

/// Limit of the threads that are judged: each takes about 32 KiB.
const MAX_TASKS: usize = 512;

/// Limit of the deviations that explain an anomaly, the largest ones.
const MAX_DEVIATIONS: usize = 4;

/// The deviation of one value of an anomalous job.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// The quantity, or `duration`, `ipc`, or the name of misses with `_per_1000_instructions`.
    pub name: String,
    /// Its unit; of rates with `/s`.
    pub unit: String,
    /// The value of this job.
    pub value: f64,
    /// The median of the last jobs.
    pub usual: f64,
    /// The spread of the last jobs, which corresponds to a standard deviation.
    pub spread: f64,
}

impl Deviation {
    /// The distance from the usual value in spreads, negative below it.
    #[must_use]
    pub fn times(&self) -> f64 {
        (self.value - self.usual) / self.spread
    }
}

/// An anomaly: a job, or several consecutive ones of a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct AnomalousJob {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The number of the first anomalous job of the thread, from 1.
    pub job: u64,
    /// Number of consecutive anomalous jobs.
    pub jobs: u64,
    /// The end of the first job.
    pub end: Timestamp,
    /// The duration of the first job, 0 if it is unknown.
    pub duration_ns: u64,
    /// The end of the last job.
    pub last_end: Timestamp,
    /// The values of the first job that were farthest off, the largest deviation first.
    pub deviations: Vec<Deviation>,
}

/// What was judged of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnomalyTask {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Whether jobs are judged; otherwise samples at other points.
    pub is_of_jobs: bool,
    /// Number of jobs or samples.
    pub jobs: u64,
    /// Number of those that were judged: all from [`FIRST_JUDGED`] on that have values.
    pub judged: u64,
    /// Number of judged jobs whose score is 6 or more, anomalous or not.
    pub deviating: u64,
    /// Number of anomalous jobs.
    pub anomalous: u64,
    /// Number of anomalies.
    pub anomalies: u64,
}

/// A value that is judged.
#[derive(Clone, Debug)]
struct Feature {
    name: String,
    unit: String,
    kind: FeatureKind,
    /// The least spread: differences below it are no deviation.
    least_spread: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeatureKind {
    Duration,
    Count(usize),
    Level(usize),
    Ipc,
    Misses(usize),
}

#[derive(Clone, Debug)]
struct JudgedTask {
    account: AnomalyTask,
    judge: Judge,
    /// Index of the anomaly that the last job belongs to; `None` inside if it is not kept.
    current: Option<Option<usize>>,
}

/// Judges the jobs of each thread of one sampler.
///
/// A thread without job ends has its samples judged, as rates.
#[derive(Clone, Debug)]
pub struct AnomalyDetector {
    features: Vec<Feature>,
    derived: Derived,
    tasks: BTreeMap<TaskKey, JudgedTask>,
    anomalies: Vec<AnomalousJob>,
    /// Number of anomalies that are not kept.
    not_kept: u64,
    /// Number of jobs that were not judged, because there were too many threads.
    refused: u64,
    /// Number of judged jobs.
    judged: u64,
    /// The values of the current job.
    values: Vec<f64>,
}

impl AnomalyDetector {
    /// A detector for samples with these quantities.
    pub(crate) fn new(quantities: &[SampledQuantity]) -> Self {
        let derived = Derived::of(quantities);
        let feature = |name: &str, unit: &str, kind, least_spread| Feature {
            name: name.to_string(),
            unit: unit.to_string(),
            kind,
            least_spread,
        };
        let mut features = vec![feature("duration", "ns", FeatureKind::Duration, 1.0)];
        for (index, quantity) in quantities.iter().enumerate() {
            // Levels without a unit are ids and states.
            if quantity.is_count() {
                let kind = FeatureKind::Count(index);
                features.push(feature(&quantity.name, &quantity.unit, kind, 1.0));
            } else if !quantity.unit.is_empty() {
                let kind = FeatureKind::Level(index);
                features.push(feature(&quantity.name, &quantity.unit, kind, 0.0));
            }
        }
        if derived.has_ipc() {
            features.push(feature("ipc", "", FeatureKind::Ipc, 0.01));
        }
        for &index in derived.judged_misses() {
            let name = format!("{}_per_1000_instructions", quantities[index].name);
            features.push(feature(&name, "", FeatureKind::Misses(index), 0.01));
        }
        Self {
            features,
            derived,
            tasks: BTreeMap::new(),
            anomalies: Vec::new(),
            not_kept: 0,
            refused: 0,
            judged: 0,
            values: Vec::new(),
        }
    }

    /// Judges a sample. What is left at the end of a thread is not judged. Returns a new anomaly
    /// that begins with it.
    pub(crate) fn judge(&mut self, sample: &Sample, time: Timestamp) -> Option<AnomalousJob> {
        let header = &sample.header;
        if header.point == Some(SamplePoint::ThreadEnd) {
            return None;
        }
        let key = (header.pid, header.tid);
        let is_job = header.point == Some(SamplePoint::JobEnd);
        let has_room = self.tasks.len() < MAX_TASKS;
        let new = || JudgedTask::new(key, is_job, self.features.len());
        let task = match self.tasks.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) if has_room => vacant.insert(new()),
            Entry::Vacant(_) => {
                self.refused += 1;
                return None;
            }
        };
        match (is_job, task.account.is_of_jobs) {
            // The thread has job ends after all.
            (true, false) => *task = JudgedTask::new(key, true, self.features.len()),
            (false, true) => return None,
            _ => {}
        }
        let duration_ns = header.duration_ns;
        self.values.clear();
        let values = self.features.iter().map(|feature| {
            feature
                .value(&self.derived, &sample.values, duration_ns, is_job)
                .unwrap_or(f64::NAN)
        });
        self.values.extend(values);
        let least_spreads = self.features.iter().map(|feature| feature.least_spread);
        let judgement = task.judge.judge(&self.values, least_spreads);
        task.account.count(judgement);
        self.judged += u64::from(judgement != Judgement::Learned);
        if !matches!(judgement, Judgement::Begins | Judgement::Continues) {
            task.current = None;
            return None;
        }
        if judgement == Judgement::Continues {
            let anomaly = task
                .current
                .flatten()
                .and_then(|it| self.anomalies.get_mut(it));
            if let Some(anomaly) = anomaly {
                anomaly.jobs += 1;
                anomaly.last_end = time;
            }
            return None;
        }
        let anomaly = AnomalousJob {
            pid: header.pid,
            tid: header.tid,
            job: task.account.jobs,
            jobs: 1,
            end: time,
            duration_ns,
            last_end: time,
            deviations: deviations(&self.features, &task.judge, &self.values, is_job),
        };
        task.current = Some(None);
        if self.anomalies.len() < KEPT_ANOMALIES {
            task.current = Some(Some(self.anomalies.len()));
            self.anomalies.push(anomaly.clone());
        } else {
            self.not_kept += 1;
        }
        Some(anomaly)
    }

    /// Ends the current anomalies: samples were missed.
    pub(crate) fn interrupt(&mut self) {
        for task in self.tasks.values_mut() {
            task.current = None;
            task.judge.interrupt();
        }
    }

    /// The accounts of threads, by process and thread.
    pub fn tasks(&self) -> impl Iterator<Item = &AnomalyTask> {
        self.tasks.values().map(|task| &task.account)
    }

    /// The first anomalies in the order of their times, [`KEPT_ANOMALIES`] at most.
    #[must_use]
    pub fn anomalies(&self) -> &[AnomalousJob] {
        &self.anomalies
    }

    /// Number of judged jobs of all threads.
    #[must_use]
    pub const fn judged(&self) -> u64 {
        self.judged
    }

    /// Number of anomalies that are not kept.
    #[must_use]
    pub const fn not_kept(&self) -> u64 {
        self.not_kept
    }

    /// Number of jobs that were not judged, because there were too many threads.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

impl JudgedTask {
    fn new((pid, tid): TaskKey, is_of_jobs: bool, features: usize) -> Self {
        Self {
            account: AnomalyTask {
                pid,
                tid,
                is_of_jobs,
                jobs: 0,
                judged: 0,
                deviating: 0,
                anomalous: 0,
                anomalies: 0,
            },
            judge: Judge::new(features),
            current: None,
        }
    }
}

impl AnomalyTask {
    fn count(&mut self, judgement: Judgement) {
        self.jobs += 1;
        self.judged += u64::from(judgement != Judgement::Learned);
        let is_anomalous = matches!(judgement, Judgement::Begins | Judgement::Continues);
        self.deviating += u64::from(is_anomalous || judgement == Judgement::Deviates);
        self.anomalous += u64::from(is_anomalous);
        self.anomalies += u64::from(judgement == Judgement::Begins);
    }
}

impl Feature {
    /// The value of this feature; `None` if the sample has none.
    fn value(
        &self,
        derived: &Derived,
        quantities: &[Option<f64>],
        duration_ns: u64,
        is_job: bool,
    ) -> Option<f64> {
        let counts = |quantity: usize| quantities.get(quantity).copied().flatten();
        let seconds = duration_ns as f64 / 1e9;
        match self.kind {
            FeatureKind::Duration => (is_job && duration_ns > 0).then_some(duration_ns as f64),
            FeatureKind::Count(quantity) if is_job => counts(quantity),
            FeatureKind::Count(quantity) if duration_ns > 0 => Some(counts(quantity)? / seconds),
            FeatureKind::Count(_) => None,
            FeatureKind::Level(quantity) => counts(quantity),
            FeatureKind::Ipc => derived.ipc(counts),
            FeatureKind::Misses(quantity) => derived.per_thousand_instructions(quantity, counts),
        }
    }

    /// The unit of its values: counts of samples are rates.
    fn unit(&self, is_job: bool) -> String {
        match self.kind {
            FeatureKind::Count(_) if !is_job => format!("{}/s", self.unit),
            _ => self.unit.clone(),
        }
    }
}

/// The largest deviations of these values.
fn deviations(features: &[Feature], judge: &Judge, values: &[f64], is_job: bool) -> Vec<Deviation> {
    let all = features.iter().enumerate().filter_map(|(index, feature)| {
        let (usual, spread) = judge.usual(index, feature.least_spread)?;
        Some(Deviation {
            name: feature.name.clone(),
            unit: feature.unit(is_job),
            value: values[index],
            usual,
            spread,
        })
    });
    let mut all: Vec<Deviation> = all
        .filter(|deviation| deviation.times().abs() >= judge::LEAST_SCORE)
        .collect();
    all.sort_by(|a, b| b.times().abs().total_cmp(&a.times().abs()));
    all.truncate(MAX_DEVIATIONS);
    all
}

#[cfg(test)]
mod tests;
