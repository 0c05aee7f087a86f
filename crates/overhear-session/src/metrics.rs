// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear metrics`: built-in and user metrics over a recording.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use overhear_event::kernel::{SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{Analysis, EventName, EventSet, Nanos, Origin, Timestamp};
use overhear_metrics::automaton::{
    system_metric, system_metrics, Metric, MetricStatistics, Metrics, Sink, Summaries, Summary,
};
use overhear_metrics::{Costs, Observer, Scheduling};
use overhear_trace::TraceReader;
use serde::{Deserialize, Serialize};

use crate::compensation;
use crate::error::{ErrorKind, SessionError};
use crate::kinds::Kinds;
use crate::measurements::{Measurements, Recorded};
use crate::other_threads;
use crate::recording::{self, Recording};

/// Document of a recording that keeps the metrics of its run.
pub const METRICS: &str = "metrics";

/// What the metrics of a recording are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetricsReport {
    /// In the order in which they were named.
    pub metrics: Vec<MetricReport>,
    /// What else keeps the results from being all there is: unfit streams, a damaged or unfinished
    /// recording.
    pub notes: Vec<String>,
    /// The time from which the text counts those of measurements.
    #[serde(skip)]
    pub start: Timestamp,
    /// The largest relative error of a quantile.
    #[serde(default)]
    pub quantile_error: f64,
}

/// One metric.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetricReport {
    /// Its name.
    pub name: String,
    /// What it measures.
    pub description: String,
    /// Events that it requires and that were not heard: of which there is no stream.
    pub unheard: Vec<String>,
    /// Measurements.
    pub completed: u64,
    /// Of these, those in which something was missed.
    pub incomplete: u64,
    /// Measurements that were running when their task or the recording ended.
    pub unfinished: u64,
    /// Elements of its events that were missed anywhere: measurements may be missing.
    pub missed: u64,
    /// Elements and measurements for which there was no room.
    pub refused: u64,
    /// By task and kind.
    pub tasks: Vec<TaskReport>,
    /// One by one, in the order in which they were completed, where that was asked for. They are
    /// not read from JSON.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub measurements: Option<Measurements>,
}

/// The measurements of one task and kind. Lengths are in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskReport {
    /// The thread, or the process where the sensor does not name threads.
    pub task: u32,
    /// Its short name, empty if it is not known.
    pub comm: String,
    /// The value that the metric divides its measurements by.
    pub key: Option<u64>,
    /// What that value of the kernel's is called, if it has a name.
    #[serde(default)]
    pub key_name: Option<String>,
    /// Measurements.
    pub count: u64,
    /// Of these, those in which something was missed.
    pub incomplete: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The median.
    pub median_ns: u64,
    /// 99 of 100 are at most this long.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl MetricsReport {
    /// Whether the results are all there is: every required event was heard and nothing was missed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.notes.is_empty() && self.metrics.iter().all(MetricReport::is_complete)
    }
}

impl MetricReport {
    pub(crate) fn is_complete(&self) -> bool {
        self.unheard.is_empty() && self.incomplete == 0 && self.missed == 0 && self.refused == 0
    }
}

/// What the observation itself took per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementCost {
    /// Each as much.
    Length(Nanos),
    /// As the calibration says that the recording brings along.
    Calibrated,
}

impl ElementCost {
    pub(crate) fn of(self, reader: &TraceReader) -> Result<Costs, SessionError> {
        if let Self::Length(length) = self {
            return Ok(Costs::from(length));
        }
        match compensation::recorded_costs(reader)? {
            Some(costs) => Ok(costs),
            None => {
                let message = "the recording has no calibration; run `overhear calibrate` before the next one, or give a length";
                Err(SessionError::new(ErrorKind::Usage, message))
            }
        }
    }
}

/// Memory of the histograms, in bytes: nothing else of a run competes with them.
const HISTOGRAM_BYTES: usize = 48 << 20;

/// Evaluates metrics over the recording `dir`; without any, all that are built in and whose kernel
/// sensors were switched on. `cost` is subtracted from the lengths for the task's own elements in
/// them. With `compensate`, what observing has cost is subtracted from all times before. With
/// `measurements`, the report has the measurements one by one besides.
///
/// # Errors
/// [`SessionError`] if there is no such recording.
pub fn metrics(
    dir: &Path,
    mut metrics: Vec<Metric>,
    cost: ElementCost,
    compensate: bool,
    measurements: bool,
) -> Result<MetricsReport, SessionError> {
    let usage = |message: String| SessionError::new(ErrorKind::Usage, message);
    let reader = TraceReader::open(dir).map_err(|error| usage(error.to_string()))?;
    let compensation = compensate.then(|| compensation::costs_of(&reader));
    let compensation = compensation.transpose()?;
    let element_costs = cost.of(&reader)?;
    let summaries = Summaries::default().with_histogram_bytes(HISTOGRAM_BYTES);
    let mut engine = Metrics::new(summaries.minus_costs(element_costs.clone()));
    let heard: EventSet = reader.streams().map(|stream| stream.event()).collect();
    if metrics.is_empty() {
        metrics = usual(&heard);
    }
    for metric in metrics {
        engine.add(metric);
    }
    // Nobody asks for its histograms.
    let mut names_of_threads = Scheduling::new(()).with_histogram_bytes(0);
    let updates: Vec<&mut dyn Analysis> = vec![&mut engine, &mut names_of_threads];
    let replayed = compensation::replay(&reader, compensation.clone(), updates);
    engine.finish();
    let others = other_threads::kept(&reader)?;
    let mut comms: BTreeMap<u32, String> = other_threads::by_tid(&others).collect();
    comms.extend(self::comms(&reader, &names_of_threads));
    let mut report = report_of(&engine, engine.sink(), &comms, &heard);
    let run = Recording::read(&reader).map_err(|error| usage(error.to_string()))?;
    report
        .notes
        .extend(recording::damage(&reader, run.as_ref(), &replayed));
    report.start = recording::start_of(&reader, run.as_ref()).unwrap_or_default();
    if measurements {
        let recorded = Arc::new(Recorded {
            reader,
            compensation,
            element_costs,
            comms,
        });
        for ((metric, _), report) in engine.statistics().zip(&mut report.metrics) {
            report.measurements = Some(Measurements::new(&recorded, metric));
        }
    }
    Ok(report)
}

/// The built-in metrics that a recording with these events can be expected to serve: those that
/// need scheduling alone, which is always heard where anything can be, and those whose further
/// sensors were switched on.
fn usual(heard: &EventSet) -> Vec<Metric> {
    let scheduling = [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE].map(EventName::kernel);
    let metrics = system_metrics().filter_map(|name| system_metric(name).ok());
    metrics
        .filter(|metric| {
            let mut sources = metric.sources().iter();
            sources.all(|event| scheduling.contains(event) || heard.contains(event))
        })
        .collect()
}

/// The metrics of these names, built in or files, and those of the file `config`; no two of one
/// name.
///
/// # Errors
/// [`SessionError`] if there is no such metric or file, or if a file makes no sense.
pub fn selected(names: &[String], config: Option<&Path>) -> Result<Vec<Metric>, SessionError> {
    let usage = |message: String| SessionError::new(ErrorKind::Usage, message);
    let named = names
        .iter()
        .map(|name| crate::config::metrics::find(name, Path::new("")));
    let mut all = named.collect::<Result<Vec<Metric>, _>>().map_err(usage)?;
    if let Some(config) = config {
        all.extend(crate::config::metrics::read_any(config)?);
    }
    let mut known = BTreeSet::new();
    match all.iter().find(|metric| !known.insert(metric.name())) {
        Some(twice) => {
            let name = twice.name();
            Err(usage(format!(
                "two metrics are called {name}; rename one of them"
            )))
        }
        None => Ok(all),
    }
}

/// The automata of metrics as graphs in the language `dot` of Graphviz, one after the other.
///
/// # Errors
/// [`SessionError`] if there is none.
pub fn to_dot(metrics: &[Metric]) -> Result<String, SessionError> {
    if metrics.is_empty() {
        let message = "--dot draws the metrics that --metric and --config name; name one";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let drawn = metrics.iter();
    Ok(drawn
        .map(|metric| metric.specification().to_graphviz())
        .collect())
}

/// The report on metrics whose observation has ended. `heard` are the events of which there were
/// streams.
pub fn report_of<S: Sink>(
    engine: &Metrics<S>,
    summaries: &Summaries,
    comms: &BTreeMap<u32, String>,
    heard: &EventSet,
) -> MetricsReport {
    let reports = engine.statistics().enumerate();
    let reports = reports.map(|(index, (metric, statistics))| {
        report(index, metric, &statistics, summaries, comms, heard)
    });
    let mut report = MetricsReport {
        metrics: reports.collect(),
        notes: engine.complaints().to_vec(),
        start: Timestamp::ZERO,
        quantile_error: summaries.quantile_error(),
    };
    if summaries.refused() > 0 {
        let refused = summaries.refused();
        report
            .notes
            .push(format!("{refused} measurements found no room in the table"));
    }
    report
}

/// The newest short name of every thread and process.
pub fn comms(reader: &TraceReader, scheduling: &Scheduling) -> BTreeMap<u32, String> {
    let mut comms = BTreeMap::new();
    for stream in reader.streams() {
        if let Origin::Program(task) = &stream.origin {
            comms.insert(task.pid, task.comm.clone());
        }
    }
    comms.extend(names_of(scheduling));
    comms
}

/// The newest short name of every thread that was heard of.
pub fn names_of<O: Observer>(
    scheduling: &Scheduling<O>,
) -> impl Iterator<Item = (u32, String)> + '_ {
    let threads = scheduling.threads().iter();
    threads
        .filter(|thread| !thread.comm.is_empty())
        .map(|thread| (thread.tid, thread.comm.clone()))
}

fn report(
    index: usize,
    metric: &Metric,
    statistics: &MetricStatistics,
    summaries: &Summaries,
    comms: &BTreeMap<u32, String>,
    heard: &EventSet,
) -> MetricReport {
    let required = metric.sources().iter();
    let kinds = Kinds::of(metric, comms);
    let rows = summaries.of(index).map(|(task, key, summary)| {
        let Summary {
            lengths,
            total,
            incomplete,
        } = summary;
        let quantile = |fraction| lengths.quantile(fraction).unwrap_or(0);
        TaskReport {
            task,
            comm: comms.get(&task).cloned().unwrap_or_default(),
            key,
            key_name: key.and_then(|key| kinds.name(key)),
            count: lengths.count(),
            incomplete,
            total_ns: total.as_ns(),
            min_ns: lengths.min().unwrap_or(0),
            median_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns: lengths.max().unwrap_or(0),
        }
    });
    MetricReport {
        name: metric.name().to_owned(),
        description: metric.description().to_owned(),
        unheard: required
            .filter(|event| !heard.contains(event))
            .map(ToString::to_string)
            .collect(),
        completed: statistics.completed,
        incomplete: statistics
            .incomplete
            .saturating_add(statistics.unattributed_gaps),
        unfinished: statistics.unfinished,
        missed: statistics.missed,
        refused: statistics.refused,
        tasks: rows.collect(),
        measurements: None,
    }
}

/// Messages about what keeps a metric's results from being all there is.
pub fn shortcomings(metric: &MetricReport) -> String {
    let mut text = String::new();
    for event in &metric.unheard {
        let _ = writeln!(text, "inconclusive: {event} was not heard");
    }
    if metric.missed > 0 {
        let (missed, incomplete) = (metric.missed, metric.incomplete);
        let _ = writeln!(
            text,
            "inconclusive: {missed} elements were missed; {incomplete} measurements are incomplete, others may be missing"
        );
    }
    if metric.refused > 0 {
        let _ = writeln!(
            text,
            "inconclusive: {} elements found no room",
            metric.refused
        );
    }
    if metric.unfinished > 0 {
        let _ = writeln!(text, "{} unfinished", metric.unfinished);
    }
    text
}
