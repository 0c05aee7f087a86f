// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report on samples: per sampler, thread and series (jobs, or samples at other points), and
//! the anomalous jobs.

use std::collections::BTreeMap;

use overhear_event::Origin;
use overhear_metrics::{
    AnomalousJob, AnomalyTask, Derived, Deviation, SampleSeries, SampleStatistics, SampledTask,
    SamplerAccount, FIRST_JUDGED,
};
use serde::{Deserialize, Serialize};

use crate::format::{counted, number};
use crate::quantities::as_number;

/// One sampler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SamplerReport {
    /// `comm(pid)` of its process; `kernel`; or `overhear`, for a sampler in the monitor.
    pub task: String,
    /// Process id of a sampler in a program.
    pub pid: Option<u32>,
    /// Sensor id.
    pub id: String,
    /// Instance; empty if the task has one sampler of this id.
    pub instance: String,
    /// Number of evaluated samples.
    pub samples: u64,
    /// Number of missed samples.
    pub missed: u64,
    /// Number of missed samples by cause.
    pub missed_by_cause: BTreeMap<String, u64>,
    /// Number of samples in no account, because there were too many threads.
    pub refused: u64,
    /// Whether all samples are in the accounts. Otherwise sums are lower bounds.
    pub complete: bool,
    /// The quantities, in the order in which they are sampled.
    pub quantities: Vec<SampledQuantityReport>,
    /// The threads, by process and thread.
    pub tasks: Vec<SampledTaskReport>,
    /// The number of the first job of a thread that is judged.
    pub judged_from: u64,
    /// Number of jobs that were not judged, because there were too many threads.
    pub not_judged: u64,
    /// The anomalies, the earliest first.
    pub anomalies: Vec<AnomalyReport>,
    /// Number of later anomalies, which are not listed.
    pub anomalies_not_listed: u64,
}

/// A sampled quantity.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampledQuantityReport {
    /// Its name.
    pub name: String,
    /// Its unit; empty for a plain number.
    pub unit: String,
    /// `count` or `level`.
    pub kind: String,
}

/// The samples of one thread; of a whole process if `tid` is 0, and of the system if `pid` is 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampledTaskReport {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its newest name; empty if it is not known.
    pub comm: String,
    /// The time to which the totals belong.
    pub duration_ns: u64,
    /// Instructions per cycle.
    pub ipc: Option<f64>,
    /// The totals of counts, with what was left at the end of the thread.
    pub totals: Vec<SampledTotal>,
    /// The samples at job ends; null without any.
    pub jobs: Option<SeriesReport>,
    /// The samples at other points; null without any.
    pub samples: Option<SeriesReport>,
    /// What was judged; null if nothing was.
    pub judged: Option<JudgedReport>,
}

/// The total of a count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampledTotal {
    /// The quantity.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The sum.
    pub total: u64,
    /// Per second of the duration.
    pub per_second: Option<f64>,
    /// Per thousand instructions, of misses.
    pub per_1000_instructions: Option<f64>,
    /// Share of the duration, of nanoseconds.
    pub share: Option<f64>,
}

/// The samples of a thread at points of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SeriesReport {
    /// Number of samples.
    pub count: u64,
    /// The durations, and each quantity.
    pub values: Vec<SampledValues>,
}

/// The values of a quantity, per sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampledValues {
    /// `duration`, or the quantity.
    pub name: String,
    /// Its unit; empty for a plain number.
    pub unit: String,
    /// Number of values.
    pub count: u64,
    /// The least.
    #[serde(serialize_with = "as_number")]
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    #[serde(serialize_with = "as_number")]
    pub median: f64,
    /// 90 of 100 values do not exceed this.
    #[serde(serialize_with = "as_number")]
    pub p90: f64,
    /// 99 of 100 values do not exceed this.
    #[serde(serialize_with = "as_number")]
    pub p99: f64,
    /// The greatest.
    #[serde(serialize_with = "as_number")]
    pub max: f64,
}

/// What was judged of a thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JudgedReport {
    /// `jobs`; or `samples`, for a thread without job ends.
    pub of: String,
    /// Number of them.
    pub count: u64,
    /// Number of those that were judged.
    pub judged: u64,
    /// Number of judged ones that were far from the usual, anomalous or not.
    pub deviating: u64,
    /// Number of anomalous ones.
    pub anomalous: u64,
    /// Number of anomalies: consecutive anomalous ones are one.
    pub anomalies: u64,
}

/// An anomaly: a job, or several consecutive ones of a thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnomalyReport {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name of the thread; empty if it is not known.
    pub comm: String,
    /// The number of the first anomalous job of the thread, from 1.
    pub job: u64,
    /// Number of consecutive anomalous jobs.
    pub jobs: u64,
    /// The end of the first job.
    pub end_ns: u64,
    /// The duration of the first job; 0 if it is not known.
    pub duration_ns: u64,
    /// The end of the last job.
    pub last_end_ns: u64,
    /// What was off in the first job, the farthest first.
    pub deviations: Vec<DeviationReport>,
    /// The same in words.
    pub message: String,
}

/// How far a value of a job is from the usual.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviationReport {
    /// The quantity; `duration`; `ipc`; or misses with `_per_1000_instructions`.
    pub name: String,
    /// The unit; of samples that are no jobs, counts are rates.
    pub unit: String,
    /// The value of the job.
    #[serde(serialize_with = "as_number")]
    pub value: f64,
    /// The median of the jobs before it.
    #[serde(serialize_with = "as_number")]
    pub usual: f64,
    /// Their spread, which corresponds to a standard deviation.
    pub spread: f64,
    /// The distance from the usual in spreads, negative below it.
    pub times: f64,
}

impl SamplerReport {
    /// Its name: id and instance.
    #[must_use]
    pub fn name(&self) -> String {
        match self.instance.as_str() {
            "" => self.id.clone(),
            instance => format!("{}#{instance}", self.id),
        }
    }
}

/// The reports of all samplers. `comms` has the names of threads and processes.
pub fn of(statistics: &SampleStatistics, comms: &BTreeMap<u32, String>) -> Vec<SamplerReport> {
    let samplers = statistics.samplers();
    samplers.map(|account| sampler(account, comms)).collect()
}

fn sampler(account: &SamplerAccount, comms: &BTreeMap<u32, String>) -> SamplerReport {
    let (task, pid) = match &account.stream.origin {
        Origin::Program(task) => (format!("{}({})", task.comm, task.pid), Some(task.pid)),
        Origin::Kernel { .. } => ("kernel".to_string(), None),
        Origin::Sampler => ("overhear".to_string(), None),
    };
    let quantities = account.quantities().iter();
    let anomalies = account.anomalies();
    let judged: BTreeMap<(u32, u32), &AnomalyTask> = anomalies
        .tasks()
        .map(|task| ((task.pid, task.tid), task))
        .collect();
    let missed = account.missed.iter();
    SamplerReport {
        task,
        pid,
        id: account.stream.sensor.clone(),
        instance: account.stream.instance.clone(),
        samples: account.samples,
        missed: account.missed_total(),
        missed_by_cause: missed
            .map(|(cause, missed)| (cause.name().to_string(), *missed))
            .collect(),
        refused: account.refused,
        complete: account.is_complete(),
        quantities: quantities
            .map(|quantity| SampledQuantityReport {
                name: quantity.name.clone(),
                unit: quantity.unit.clone(),
                kind: if quantity.is_count() {
                    "count"
                } else {
                    "level"
                }
                .to_string(),
            })
            .collect(),
        tasks: account
            .tasks()
            .map(|task| {
                let judged = judged.get(&(task.pid, task.tid)).copied();
                sampled_task(account, task, judged, comms)
            })
            .collect(),
        judged_from: FIRST_JUDGED,
        not_judged: anomalies.refused(),
        anomalies: anomalies
            .anomalies()
            .iter()
            .map(|job| AnomalyReport::of(job, is_of_jobs(&judged, job), comms))
            .collect(),
        anomalies_not_listed: anomalies.not_kept(),
    }
}

fn is_of_jobs(judged: &BTreeMap<(u32, u32), &AnomalyTask>, job: &AnomalousJob) -> bool {
    let task = judged.get(&(job.pid, job.tid));
    task.is_some_and(|task| task.is_of_jobs)
}

fn sampled_task(
    account: &SamplerAccount,
    task: &SampledTask,
    judged: Option<&AnomalyTask>,
    comms: &BTreeMap<u32, String>,
) -> SampledTaskReport {
    let derived = Derived::of(account.quantities());
    let duration_ns = task.duration_ns();
    let counts = |quantity: usize| task.total(quantity).map(|total| total as f64);
    let totals = account.quantities().iter().enumerate();
    let totals = totals.filter_map(|(index, quantity)| {
        let total = task.total(index)?;
        let per_second = total as f64 * 1e9 / duration_ns as f64;
        Some(SampledTotal {
            name: quantity.name.clone(),
            unit: quantity.unit.clone(),
            total: u64::try_from(total).unwrap_or(u64::MAX),
            per_second: (duration_ns > 0).then_some(per_second),
            per_1000_instructions: derived.per_thousand_instructions(index, counts),
            share: derived.share(index, duration_ns, counts),
        })
    });
    SampledTaskReport {
        pid: task.pid,
        tid: task.tid,
        comm: comm_of(comms, task.pid, task.tid),
        duration_ns,
        ipc: derived.ipc(counts),
        totals: totals.collect(),
        jobs: series(account, &task.jobs),
        samples: series(account, &task.samples),
        judged: judged.map(|task| JudgedReport {
            of: if task.is_of_jobs { "jobs" } else { "samples" }.to_string(),
            count: task.jobs,
            judged: task.judged,
            deviating: task.deviating,
            anomalous: task.anomalous,
            anomalies: task.anomalies,
        }),
    }
}

/// The name of a thread, or of the process if the sample is of no single thread.
fn comm_of(comms: &BTreeMap<u32, String>, pid: u32, tid: u32) -> String {
    let name = comms.get(if tid == 0 { &pid } else { &tid });
    name.cloned().unwrap_or_default()
}

fn series(account: &SamplerAccount, series: &SampleSeries) -> Option<SeriesReport> {
    if series.count == 0 {
        return None;
    }
    let durations = &series.durations;
    let duration = |fraction| durations.quantile(fraction).map(|ns| ns as f64);
    let durations = durations.mean().and_then(|mean| {
        Some(SampledValues {
            name: "duration".to_string(),
            unit: "ns".to_string(),
            count: durations.count(),
            min: durations.min()? as f64,
            mean,
            median: duration(0.5)?,
            p90: duration(0.9)?,
            p99: duration(0.99)?,
            max: durations.max()? as f64,
        })
    });
    let quantities = account.quantities().iter().zip(&series.quantities);
    let values = quantities.filter_map(|(quantity, found)| {
        let values = &found.values;
        Some(SampledValues {
            name: quantity.name.clone(),
            unit: quantity.unit.clone(),
            count: values.count(),
            min: values.min()?,
            mean: values.mean()?,
            median: values.quantile(0.5)?,
            p90: values.quantile(0.9)?,
            p99: values.quantile(0.99)?,
            max: values.max()?,
        })
    });
    Some(SeriesReport {
        count: series.count,
        values: durations.into_iter().chain(values).collect(),
    })
}

impl AnomalyReport {
    /// The report on an anomaly of jobs, or of samples at other points.
    pub(crate) fn of(job: &AnomalousJob, is_of_jobs: bool, comms: &BTreeMap<u32, String>) -> Self {
        let comm = comm_of(comms, job.pid, job.tid);
        Self {
            message: message(job, is_of_jobs, &comm),
            pid: job.pid,
            tid: job.tid,
            comm,
            job: job.job,
            jobs: job.jobs,
            end_ns: job.end.as_monotonic_ns(),
            duration_ns: job.duration_ns,
            last_end_ns: job.last_end.as_monotonic_ns(),
            deviations: job.deviations.iter().map(DeviationReport::of).collect(),
        }
    }
}

impl DeviationReport {
    fn of(deviation: &Deviation) -> Self {
        Self {
            name: deviation.name.clone(),
            unit: deviation.unit.clone(),
            value: deviation.value,
            usual: deviation.usual,
            spread: deviation.spread,
            times: deviation.times(),
        }
    }
}

/// An anomaly in words.
fn message(job: &AnomalousJob, is_of_jobs: bool, comm: &str) -> String {
    let (one, several) = match is_of_jobs {
        true => ("job", "jobs"),
        false => ("sample", "samples"),
    };
    let which = match job.jobs {
        1 => format!("{one} {}", job.job),
        jobs => format!(
            "{several} {} to {} ({})",
            job.job,
            job.job + jobs - 1,
            counted(jobs, one, several)
        ),
    };
    let of = match (job.pid, job.tid) {
        (0, 0) => "the system".to_string(),
        (pid, 0) => format!("process {comm}({pid})"),
        (_, tid) => format!("thread {comm}({tid})"),
    };
    let deviations = job.deviations.iter().map(|deviation| {
        let unit = match deviation.unit.as_str() {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        format!(
            "{} {}{unit} instead of {}{unit} ({:+.0} spreads)",
            deviation.name,
            number(deviation.value),
            number(deviation.usual),
            deviation.times()
        )
    });
    let deviations: Vec<String> = deviations.collect();
    format!("{which} of {of}: {}", deviations.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use overhear_event::{
        Analysis, ElementView, Origin, SamplePoint, SampleSchema, StreamDescriptor, StreamId,
        Timestamp,
    };
    use overhear_metrics::SampleStatistics;

    use super::of;

    fn statistics() -> SampleStatistics {
        let schema = SampleSchema::new()
            .count("cycles", "")
            .count("instructions", "")
            .count("cpu_time", "ns")
            .level("resident", "B")
            .build()
            .unwrap();
        let (id, origin) = (StreamId::from_raw(1), Origin::program(7, "p"));
        let stream = StreamDescriptor::new(id, origin, "jobs", schema);
        let mut statistics = SampleStatistics::default();
        for job in 0..300_u64 {
            let point = if job == 299 {
                SamplePoint::ThreadEnd
            } else {
                SamplePoint::JobEnd
            };
            let words = [9_u32, 7, point.as_raw(), 0];
            let mut payload: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
            let scale = if job == 200 { 5 } else { 1 };
            let counts = [1_000 * scale, 2_000 + job % 3, 400];
            for word in [500].iter().chain(&counts) {
                payload.extend(word.to_ne_bytes());
            }
            payload.extend(4096_i64.to_ne_bytes());
            statistics.element(&ElementView {
                stream: &stream,
                sequence: job,
                time: Timestamp::from_monotonic_ns(1_000 * job),
                payload: &payload,
            });
        }
        statistics
    }

    #[test]
    fn report_has_totals_ratios_and_anomalies() {
        let comms = BTreeMap::from([(9, "worker".to_string())]);
        let reports = of(&statistics(), &comms);
        let [report] = reports.as_slice() else {
            panic!("{reports:?}");
        };
        assert_eq!((report.task.as_str(), report.samples), ("p(7)", 300));
        assert!(report.complete && report.missed_by_cause.is_empty());
        let task = &report.tasks[0];
        assert_eq!((task.tid, task.comm.as_str()), (9, "worker"));
        // 299 jobs and the remainder at the end of the thread; one job had five times the cycles.
        assert_eq!(task.duration_ns, 150_000);
        let cycles = &task.totals[0];
        assert_eq!((cycles.total, cycles.name.as_str()), (304_000, "cycles"));
        assert_eq!(task.totals[2].share, Some(0.8));
        assert_eq!(task.totals.len(), 3);
        let ipc = task.totals[1].total as f64 / 304_000.0;
        assert_eq!(task.ipc, Some(ipc));
        let jobs = task.jobs.as_ref().unwrap();
        let names: Vec<&str> = jobs.values.iter().map(|it| &*it.name).collect();
        let expected = ["duration", "cycles", "instructions", "cpu_time", "resident"];
        assert_eq!((jobs.count, names), (299, expected.to_vec()));
        assert_eq!((jobs.values[1].median, jobs.values[1].max), (1e3, 5e3));
        assert!(task.samples.is_none());
        let judged = task.judged.as_ref().unwrap();
        assert_eq!((judged.of.as_str(), judged.anomalous), ("jobs", 1));
        let [anomaly] = report.anomalies.as_slice() else {
            panic!("{:?}", report.anomalies);
        };
        assert_eq!((anomaly.job, anomaly.end_ns), (201, 200_000));
        let message = &anomaly.message;
        assert!(
            message.starts_with("job 201 of thread worker(9): cycles 5000 instead of 1000 (+400 "),
            "{message}"
        );
        assert!(message.contains("ipc 0.4"), "{message}");
    }
}
