// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: one data model for tables, page and JSON (`docs/report.md` describes the JSON).

use crate::budget::BudgetOutcome;
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
use crate::metrics::{self, MetricsReport};
pub use crate::other_threads::OtherThread;
use crate::overhead::{CalibratedOverhead, OverheadReport};
use crate::reactions::ReactionsReport;
use crate::samples::{self, SamplerReport};
use crate::updates::UpdateReport;

/// The results of a run. Serialises to the JSON document of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of the program that made the report.
    pub overhear_version: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How it ended; null if the recorder did not observe the end.
    pub exit: Option<Exit>,
    /// Time from the release of the program to its end.
    pub duration_ns: u64,
    /// The sources of elements, with the reason for each backend.
    pub sources: Vec<SourceReport>,
    /// The trace of the recording.
    pub trace: TraceReport,
    /// The threads, in the order of appearance.
    pub threads: Vec<ThreadReport>,
    /// The sensors, in the order of registration.
    pub sensors: Vec<SensorReport>,
    /// The kernel's sensors beyond scheduling, and probes.
    #[serde(default)]
    pub kernel_sensors: Vec<KernelSensorReport>,
    /// The samplers, if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samplers: Vec<SamplerReport>,
    /// The updates of plug-ins.
    #[serde(default)]
    pub updates: Vec<UpdateReport>,
    /// Threads that were not tracked, and displaced or woke a tracked one, if their names are
    /// known.
    #[serde(default)]
    pub other_threads: Vec<OtherThread>,
    /// Missed elements, by stream and cause.
    pub losses: Vec<LossReport>,
    /// Sum of all elements missed.
    pub missed_total: u64,
    /// Number of sensors that the directory refused or deferred; `notes` has the reasons.
    #[serde(alias = "unheard")]
    pub not_connected: u64,
    /// Whether all elements were evaluated and the end of the program was observed.
    pub complete: bool,
    /// `complete`, `violated` or `inconclusive`: the worst of all findings, where missed elements
    /// are inconclusive.
    #[serde(default)]
    pub outcome: String,
    /// The findings on constraints, guarantee, metrics, updates and reactions, the worst first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Messages about refused sensors, damaged streams and other limits of the observation.
    pub notes: Vec<String>,
    /// The largest relative error of a quantile of threads and sensors.
    #[serde(default)]
    pub quantile_error: f64,
    /// Distributions for display.
    pub histograms: Vec<HistogramReport>,
    /// The verdicts, if the run has constraints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckReport>,
    /// The results of metrics, if the run has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsReport>,
    /// The report of the monitors of `overhear.toml`, if the run has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<MonitorReport>,
    /// What the budget allowed and what was spent, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetOutcome>,
    /// Monitoring overhead, if the machine is calibrated.
    #[serde(default, alias = "intrusion", skip_serializing_if = "Option::is_none")]
    pub overhead: Option<OverheadReport>,
    /// Whether times are compensated: the monitoring overhead is subtracted from them.
    #[serde(default)]
    pub compensated: bool,
    /// Figures of the compensation, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation: Option<CompensationReport>,
    /// The report of the reactions, if the run has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactions: Option<ReactionsReport>,
}

/// One thread. What was not observed is null, never zero.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThreadReport {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its newest name.
    pub comm: String,
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU.
    pub runnable_ns: Option<u64>,
    /// Time asleep or waiting for something else.
    pub blocked_ns: Option<u64>,
    /// Time in which elements are missing.
    pub unknown_ns: u64,
    /// Voluntary context switches.
    pub switches_voluntary: u64,
    /// Involuntary context switches.
    pub switches_involuntary: u64,
    /// Runs on another CPU than the last one.
    pub migrations: u64,
    /// Time from the wake-up to the next run; null if wake-ups are not recorded or there were none.
    pub wakeup_latency_ns: Option<Quantiles>,
    /// CPU time by the kernel's own account when the thread ended; null if it is not known.
    pub cpu_at_exit_ns: Option<u64>,
}

/// One sensor of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SensorReport {
    /// `comm(pid)` of its process.
    pub task: String,
    /// Process id.
    pub pid: u32,
    /// Sensor id.
    pub id: String,
    /// Instance; empty if the task has one sensor of this id.
    pub instance: String,
    /// Type id.
    #[serde(rename = "type")]
    pub type_id: String,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// Elements per second, missed ones included; null for fewer than two elements.
    pub rate_hz: Option<f64>,
    /// The declared rate.
    pub declared: Option<DeclaredReport>,
    /// Distances of neighbouring elements.
    pub interval_ns: Option<Quantiles>,
    /// Values per numeric field.
    pub fields: Vec<FieldReport>,
}

/// One sensor of the kernel, of all CPUs together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelSensorReport {
    /// Sensor id.
    pub id: String,
    /// The name of its events in metrics, constraints and updates.
    #[serde(default)]
    pub event: String,
    /// The file of a probe; else empty.
    pub instance: String,
    /// Type id.
    #[serde(rename = "type")]
    pub type_id: String,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// Elements per second, missed ones included; null for fewer than two elements.
    pub rate_hz: Option<f64>,
    /// Distances of neighbouring elements.
    pub interval_ns: Option<Quantiles>,
    /// Values per field that is a quantity, and per field of a probe.
    pub fields: Vec<FieldReport>,
}

/// The values of a numeric field.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FieldReport {
    /// Name of the field.
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

/// Missed elements of one stream for one cause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LossReport {
    /// The stream's label.
    pub stream: String,
    /// The cause.
    pub cause: String,
    /// Elements missed.
    pub missed: u64,
    /// Number of gaps.
    pub gaps: u64,
}

/// Limit of the rows of metrics in the report of a page, of about 200 bytes each.
const MAX_PAGE_METRIC_ROWS: usize = 20_000;

impl Report {
    /// Removes the metrics from a report for a page if they have too many rows. The page shows
    /// their findings.
    pub fn take_long_metrics(&mut self) -> Option<MetricsReport> {
        let metrics = self.metrics.iter().flat_map(|all| &all.metrics);
        let rows: usize = metrics.map(|metric| metric.tasks.len()).sum();
        self.metrics.take_if(|_| rows > MAX_PAGE_METRIC_ROWS)
    }

    /// Adds the reports of updates. The report is complete only if they are.
    pub fn add_updates(&mut self, updates: Vec<UpdateReport>) {
        self.complete &= updates.iter().all(UpdateReport::is_complete);
        let histograms = updates.iter().flat_map(UpdateReport::histograms);
        self.histograms.splice(0..0, histograms);
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

    /// Computes findings and outcome. Call it after all parts were added.
    pub fn conclude(&mut self) {
        self.findings = findings::of(&findings::Parts {
            check: self.check.as_ref(),
            guarantee: self.guarantee.as_ref(),
            metrics: self.metrics.as_ref(),
            updates: &self.updates,
            reactions: self.reactions.as_ref(),
        });
        self.outcome = self.conclusion().name().to_string();
    }

    /// The conclusion from the results. It does not depend on the exit status of the program.
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

    /// Adds the report of the monitors of `overhear.toml`. Their distributions come first.
    pub fn add_guarantee(&mut self, guarantee: Option<MonitorReport>) {
        let histograms = guarantee.iter().flat_map(MonitorReport::histograms);
        self.histograms.splice(0..0, histograms);
        self.guarantee = guarantee;
    }
}

/// The reports of all threads that were observed to run, wait or sleep.
pub fn threads<O: Observer>(scheduling: &Scheduling<O>) -> Vec<ThreadReport> {
    let wakeups = scheduling.sees_wakeups();
    scheduling
        .threads()
        .iter()
        .filter(|thread| was_observed(thread))
        .map(|thread| self::thread(thread, wakeups))
        .collect()
}

fn was_observed(thread: &Thread) -> bool {
    thread.switches_voluntary + thread.switches_involuntary > 0 || thread.run > Nanos::ZERO
}

fn thread(thread: &Thread, wakeups: bool) -> ThreadReport {
    let (runnable, blocked) = if wakeups {
        (Some(thread.runnable), Some(thread.blocked))
    } else {
        // Without wake-ups, the time from a voluntary departure to the next run is blocked and
        // runnable time together. The kernel's own account of the time that a thread waited for a
        // CPU divides it.
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

/// The reports of kernel sensors.
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

/// The reports of samplers.
pub fn samplers<O: Observer>(
    scheduling: &Scheduling<O>,
    statistics: &SensorStatistics,
) -> Vec<SamplerReport> {
    let programs = statistics.accounts();
    let programs = programs.filter_map(|account| match &account.stream.origin {
        Origin::Program(task) => Some((task.pid, task.comm.clone())),
        _ => None,
    });
    let comms = programs.chain(metrics::names_of(scheduling)).collect();
    samples::of(statistics.samples(), &comms)
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

/// The results from which a report is made, live or of a replay.
pub struct RunFindings<'a, O> {
    pub(crate) scheduling: &'a Scheduling<O>,
    pub(crate) statistics: &'a SensorStatistics,
    pub(crate) losses: &'a Losses,
    /// Monitoring overhead, if the machine is calibrated.
    pub overhead: Option<&'a CalibratedOverhead>,
    /// Figures of the compensation, if times are compensated.
    pub compensation: Option<CompensationReport>,
    pub(crate) trace: TraceReport,
}

/// The report of a run. It is the same live and of a replay.
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
        samplers: samplers(found.scheduling, found.statistics),
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
        budget: None,
        compensated: found.compensation.is_some(),
        compensation: found.compensation,
        overhead: found
            .overhead
            .map(|overhead| overhead.report(found.scheduling)),
    }
}
