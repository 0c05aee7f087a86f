// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: one data model for tables, page and JSON (`docs/report.md` describes the JSON).

use crate::quantities::{
    quantile_message, DeclaredReport, HistogramReport, Quantiles, SourceReport, TraceReport,
};
use crate::recording::Recording;
use overhear_event::{Field, Nanos, Origin};
use overhear_metrics::{
    FieldStatistics, Observer, Scheduling, SensorAccount, SensorStatistics, Thread,
};
use overhear_monitor::Losses;
use serde::{Deserialize, Serialize};

use crate::check::CheckReport;
use crate::compensation::CompensationReport;
use crate::conclusion::{Conclusion, Exit};
use crate::configured_monitor::MonitorReport;
use crate::findings::{self, Finding};
use crate::metrics::MetricsReport;
pub use crate::other_threads::OtherThread;
use crate::overhead::{CalibratedOverhead, OverheadReport};
use crate::reactions::ReactionsReport;
use crate::updates::UpdateReport;

/// What a run found. Serialises to the document that `--json` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of the program that made the report.
    pub overhear_version: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How it ended; absent if the recorder did not see that.
    pub exit: Option<Exit>,
    /// From the release of the program to its end.
    pub duration_ns: u64,
    /// What could be listened to, and why not more.
    pub sources: Vec<SourceReport>,
    /// What was recorded.
    pub trace: TraceReport,
    /// The threads, in the order of appearance.
    pub threads: Vec<ThreadReport>,
    /// The sensors, in the order of registration.
    pub sensors: Vec<SensorReport>,
    /// The kernel's sensors beyond scheduling, and probes.
    #[serde(default)]
    pub kernel_sensors: Vec<KernelSensorReport>,
    /// The updates that were asked for.
    #[serde(default)]
    pub updates: Vec<UpdateReport>,
    /// Threads that were not tracked, but displaced or woke one that was; those whose name is
    /// known.
    #[serde(default)]
    pub other_threads: Vec<OtherThread>,
    /// What was missed.
    pub losses: Vec<LossReport>,
    /// Sum of all elements missed.
    pub missed_total: u64,
    /// Number of sensors that the directory refused or deferred; `notes` has the reasons.
    #[serde(alias = "unheard")]
    pub not_connected: u64,
    /// Whether nothing is known or suspected to be missing.
    pub complete: bool,
    /// `complete`, `violated` or `inconclusive`: the worst of all findings and of what was missed.
    #[serde(default)]
    pub outcome: String,
    /// What constraints, guarantee, metrics, updates and reactions amount to, the worst first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// What else should be known: sensors that were refused, streams that were damaged.
    pub notes: Vec<String>,
    /// The largest relative error of a quantile of threads and sensors.
    #[serde(default)]
    pub quantile_error: f64,
    /// Distributions worth a picture.
    pub histograms: Vec<HistogramReport>,
    /// The verdicts, where the run was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckReport>,
    /// The metrics, where some were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsReport>,
    /// What came of the monitor of `overhear.toml`, where one ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<MonitorReport>,
    /// Monitoring overhead, where the machine is calibrated.
    #[serde(default, alias = "intrusion", skip_serializing_if = "Option::is_none")]
    pub overhead: Option<OverheadReport>,
    /// Whether times are compensated: what observing has cost is subtracted from them.
    #[serde(default)]
    pub compensated: bool,
    /// What the compensation did, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation: Option<CompensationReport>,
    /// What came of reactions, where there were some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactions: Option<ReactionsReport>,
}

/// One thread. What was not observed is null, never zero.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThreadReport {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its newest name.
    pub comm: String,
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU.
    pub runnable_ns: Option<u64>,
    /// Time asleep or waiting for something else.
    pub blocked_ns: Option<u64>,
    /// Time of which elements are missing.
    pub unknown_ns: u64,
    /// Departures from a CPU that the thread asked for.
    pub switches_voluntary: u64,
    /// Departures that it did not ask for.
    pub switches_involuntary: u64,
    /// Runs on another CPU than the last one.
    pub migrations: u64,
    /// From waking to the first run; null where wake-ups cannot be seen or there were none.
    pub wakeup_latency_ns: Option<Quantiles>,
    /// CPU time by the kernel's own account when the thread ended, where that is known.
    pub cpu_at_exit_ns: Option<u64>,
}

/// One sensor of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SensorReport {
    /// `comm(pid)` of its process.
    pub task: String,
    /// Process.
    pub pid: u32,
    /// Sensor id.
    pub id: String,
    /// Instance; empty where there is one.
    pub instance: String,
    /// Type id.
    #[serde(rename = "type")]
    pub type_id: String,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// Elements per second, missed ones included; null for fewer than two.
    pub rate_hz: Option<f64>,
    /// The declared rate.
    pub declared: Option<DeclaredReport>,
    /// Distances of neighbours.
    pub interval_ns: Option<Quantiles>,
    /// Values per numeric field.
    pub fields: Vec<FieldReport>,
}

/// One sensor of the kernel, of all CPUs together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelSensorReport {
    /// Sensor id.
    pub id: String,
    /// The name of its events, by which metrics, constraints and updates take it.
    #[serde(default)]
    pub event: String,
    /// Of probes: the file; else empty.
    pub instance: String,
    /// Type id.
    #[serde(rename = "type")]
    pub type_id: String,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// Elements per second, missed ones included; null for fewer than two.
    pub rate_hz: Option<f64>,
    /// Distances of neighbours.
    pub interval_ns: Option<Quantiles>,
    /// Values per field that is a quantity, and of what probes tell.
    pub fields: Vec<FieldReport>,
}

/// The values of a numeric field.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FieldReport {
    /// Field.
    pub name: String,
    /// Unit; empty for a plain number.
    pub unit: String,
    /// Smallest value.
    pub min: Option<f64>,
    /// Mean.
    pub mean: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Median.
    pub median: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// What one stream missed for one cause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LossReport {
    /// The stream's label.
    pub stream: String,
    /// The cause.
    pub cause: String,
    /// Elements missed.
    pub missed: u64,
    /// In how many gaps.
    pub gaps: u64,
}

/// Rows of metrics that the report of a page has at most: some 200 bytes each.
const PAGE_METRIC_ROWS: usize = 20_000;

impl Report {
    /// Takes the metrics out of a report for a page if they have more rows than the page has room
    /// for. It shows their findings all the same.
    pub fn take_long_metrics(&mut self) -> Option<MetricsReport> {
        let metrics = self.metrics.iter().flat_map(|all| &all.metrics);
        let rows: usize = metrics.map(|metric| metric.tasks.len()).sum();
        self.metrics.take_if(|_| rows > PAGE_METRIC_ROWS)
    }

    /// Adds what updates have found. The report is complete only if they are.
    pub fn add_updates(&mut self, updates: Vec<UpdateReport>) {
        self.complete &= updates.iter().all(UpdateReport::is_complete);
        let told = updates.iter().flat_map(UpdateReport::histograms);
        self.histograms.splice(0..0, told);
        self.updates = updates;
    }

    /// Adds the names of threads that are not tracked.
    pub fn add_other_threads(&mut self, others: Vec<OtherThread>) {
        let payers = self.overhead.iter_mut().flat_map(|it| &mut it.threads);
        for payer in payers.filter(|payer| payer.comm.is_empty()) {
            let other = others.iter().find(|other| other.tid == payer.tid);
            payer.comm = other.map_or(String::new(), |other| other.comm.clone());
        }
        self.other_threads = others;
    }

    /// Sums up what was found, once all parts are there.
    pub fn conclude(&mut self) {
        self.findings = findings::of(self);
        self.outcome = self.conclusion().name().to_string();
    }

    /// What the results amount to, whatever became of the program.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        let check = self.check.as_ref().map(CheckReport::conclusion);
        let guarantee = self.guarantee.as_ref().map(MonitorReport::conclusion);
        let judged = [check, guarantee];
        if judged.contains(&Some(Conclusion::Violated)) {
            return Conclusion::Violated;
        }
        let measured = self.metrics.as_ref();
        let reactions = self.reactions.as_ref();
        let certain = judged
            .iter()
            .all(|one| one.is_none_or(|one| one == Conclusion::Complete))
            && measured.is_none_or(MetricsReport::is_complete)
            && reactions.is_none_or(ReactionsReport::is_complete);
        if self.complete && certain {
            Conclusion::Complete
        } else {
            Conclusion::Inconclusive
        }
    }

    /// Adds what came of a monitor, whose distributions come first.
    pub fn add_guarantee(&mut self, guarantee: Option<MonitorReport>) {
        let histograms = guarantee.iter().flat_map(MonitorReport::histograms);
        self.histograms.splice(0..0, histograms);
        self.guarantee = guarantee;
    }
}

/// The reports of all threads. A thread that was only named, and never seen to run, wait or
/// sleep, is left out.
pub fn threads<O: Observer>(scheduling: &Scheduling<O>) -> Vec<ThreadReport> {
    let wakeups = scheduling.sees_wakeups();
    scheduling
        .threads()
        .iter()
        .filter(|thread| was_seen(thread))
        .map(|thread| self::thread(thread, wakeups))
        .collect()
}

fn was_seen(thread: &Thread) -> bool {
    thread.switches_voluntary + thread.switches_involuntary > 0 || thread.run > Nanos::ZERO
}

fn thread(thread: &Thread, wakeups: bool) -> ThreadReport {
    let (runnable, blocked) = if wakeups {
        (Some(thread.runnable), Some(thread.blocked))
    } else {
        // Without wake-ups the time between a voluntary departure and the next run is waiting for
        // something and waiting for a CPU in one. The kernel's own account divides it: what it
        // counted as waiting for a CPU beyond the time the thread was displaced.
        let off = thread.runnable.plus(thread.blocked).as_ns();
        match thread.sampled {
            Some((_, wait)) => {
                let wait = wait.as_ns().max(thread.runnable.as_ns()).min(off);
                (Some(Nanos::from_ns(wait)), Some(Nanos::from_ns(off - wait)))
            }
            None => (None, None),
        }
    };
    ThreadReport {
        pid: thread.pid,
        tid: thread.tid,
        comm: thread.comm.clone(),
        run_ns: thread.run.as_ns(),
        runnable_ns: runnable.map(Nanos::as_ns),
        blocked_ns: blocked.map(Nanos::as_ns),
        unknown_ns: thread.unknown.as_ns(),
        switches_voluntary: thread.switches_voluntary,
        switches_involuntary: thread.switches_involuntary,
        migrations: thread.migrations,
        wakeup_latency_ns: Quantiles::of(&thread.wakeup_latency).filter(|_| wakeups),
        cpu_at_exit_ns: thread.cpu_at_exit.map(Nanos::as_ns),
    }
}

/// The reports of all sensors.
pub fn sensors(statistics: &SensorStatistics) -> Vec<SensorReport> {
    statistics.accounts().filter_map(sensor).collect()
}

fn sensor(account: &SensorAccount) -> Option<SensorReport> {
    let Origin::Program(task) = &account.stream.origin else {
        return None;
    };
    Some(SensorReport {
        task: format!("{}({})", task.comm, task.pid),
        pid: task.pid,
        id: account.stream.sensor.clone(),
        instance: account.stream.instance.clone(),
        type_id: account.stream.schema.id().to_string(),
        elements: account.elements,
        missed: account.missed,
        rate_hz: account.rate_hz(),
        declared: account.stream.rate.map(|rate| DeclaredReport {
            period_ns: rate.period.as_ns(),
            distance_ns: rate.distance.as_ns(),
            jitter_ns: rate.jitter.as_ns(),
        }),
        interval_ns: Quantiles::of(&account.intervals),
        fields: fields(account),
    })
}

/// The reports of the kernel's sensors.
pub fn kernel_sensors(statistics: &SensorStatistics) -> Vec<KernelSensorReport> {
    let report = |account: &SensorAccount| KernelSensorReport {
        id: account.stream.sensor.clone(),
        event: account.stream.event().to_string(),
        instance: account.stream.instance.clone(),
        type_id: account.stream.schema.id().to_string(),
        elements: account.elements,
        missed: account.missed,
        rate_hz: account.rate_hz(),
        interval_ns: Quantiles::of(&account.intervals),
        fields: fields(account),
    };
    statistics.kernel_accounts().map(report).collect()
}

fn fields(account: &SensorAccount) -> Vec<FieldReport> {
    let report = |(field, values): (&Field, &FieldStatistics)| {
        let quantile = |fraction| values.values.quantile(fraction);
        FieldReport {
            name: field.name.clone(),
            unit: field.unit.clone(),
            min: values.min(),
            mean: values.mean(),
            max: values.max(),
            median: quantile(0.5),
            p99: quantile(0.99),
        }
    };
    account.counted().map(report).collect()
}

/// The losses by stream and cause.
pub fn losses(losses: &Losses) -> Vec<LossReport> {
    losses
        .iter()
        .map(|(_, label, cause, loss)| LossReport {
            stream: label.to_string(),
            cause: cause.name().to_string(),
            missed: loss.missed,
            gaps: loss.gaps,
        })
        .collect()
}

/// The histograms of every run: wake-up latencies, run lengths, and intervals per sensor.
pub fn histograms<O: Observer>(
    scheduling: &Scheduling<O>,
    statistics: &SensorStatistics,
) -> Vec<HistogramReport> {
    let (latencies, runs) = (scheduling.wakeup_latencies(), scheduling.runs());
    let mut histograms = Vec::new();
    if scheduling.sees_wakeups() && latencies.count() > 0 {
        histograms.push(HistogramReport::new(
            "Wake-up latency, all threads",
            "ns",
            latencies,
        ));
    }
    if runs.count() > 0 {
        histograms.push(HistogramReport::new("Time on a CPU per run", "ns", runs));
    }
    for account in statistics
        .accounts()
        .filter(|account| account.intervals.count() > 0)
    {
        let title = format!("Interval of {}", account.stream.label());
        histograms.push(HistogramReport::new(&title, "ns", &account.intervals));
    }
    histograms
}

/// Results of the evaluations, live or of a replay.
pub struct RunFindings<'a, O> {
    pub(crate) scheduling: &'a Scheduling<O>,
    pub(crate) statistics: &'a SensorStatistics,
    pub(crate) losses: &'a Losses,
    /// Where the machine is calibrated.
    pub overhead: Option<&'a CalibratedOverhead>,
    /// Where the others see compensated times.
    pub compensation: Option<CompensationReport>,
    pub(crate) trace: TraceReport,
}

/// The report of a run. The same whether it was observed live or is replayed.
pub fn of<O: Observer>(recording: &Recording, found: &RunFindings<'_, O>) -> Report {
    let missed = found.losses.missed().saturating_add(found.trace.unrecorded);
    let mut lost = losses(found.losses);
    if found.trace.unrecorded > 0 {
        lost.push(LossReport {
            stream: "trace".to_string(),
            cause: "unrecorded".to_string(),
            missed: found.trace.unrecorded,
            gaps: 1,
        });
    }
    let shown: Vec<HistogramReport> = histograms(found.scheduling, found.statistics);
    let quantile_error = found.statistics.quantile_error();
    let quantile_error = quantile_error.max(found.scheduling.quantile_error());
    let inexact = quantile_message("threads and sensors", quantile_error);
    Report {
        overhear_version: recording.overhear_version.clone(),
        command: recording.command.clone(),
        exit: recording.end.map(|end| end.exit),
        duration_ns: recording
            .end
            .map_or(0, |end| end.end_ns.saturating_sub(recording.start_ns))
            .saturating_sub(found.compensation.map_or(0, |found| found.removed_ns)),
        sources: recording.sources.clone(),
        trace: found.trace.clone(),
        threads: threads(found.scheduling),
        sensors: sensors(found.statistics),
        kernel_sensors: kernel_sensors(found.statistics),
        not_connected: recording.not_connected,
        complete: lost.is_empty() && recording.not_connected == 0 && recording.end.is_some(),
        other_threads: Vec::new(),
        outcome: String::new(),
        findings: Vec::new(),
        updates: Vec::new(),
        losses: lost,
        missed_total: missed,
        notes: recording.notes.iter().cloned().chain(inexact).collect(),
        quantile_error,
        histograms: shown,
        check: None,
        metrics: None,
        guarantee: None,
        reactions: None,
        compensated: found.compensation.is_some(),
        compensation: found.compensation,
        overhead: found
            .overhead
            .map(|overhead| overhead.report(found.scheduling)),
    }
}
