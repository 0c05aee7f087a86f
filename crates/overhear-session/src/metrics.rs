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
use crate::error::{ErrorKind, SessionError, Setting};
use crate::labels::KeyLabels;
use crate::measurements::{Measurements, Recorded};
use crate::other_threads;
use crate::recording::{self, Recording};

/// The results of metrics over a run or a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetricsReport {
    /// In the order in which they were named.
    pub metrics: Vec<MetricReport>,
    /// Messages about other limits of the results: unsuitable streams, a damaged or unfinished
    /// recording.
    pub notes: Vec<String>,
    /// The origin of the times of measurements in text.
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
    /// Required events without a stream.
    #[serde(alias = "unheard")]
    pub absent_events: Vec<String>,
    /// Number of completed measurements.
    pub completed: u64,
    /// Number of measurements with missed elements.
    pub incomplete: u64,
    /// Number of measurements that were running when their task or the recording ended.
    pub unfinished: u64,
    /// Number of missed elements of its events, also outside of measurements.
    pub missed: u64,
    /// Number of those of them that were not observed to keep a budget.
    #[serde(default)]
    pub unobserved: u64,
    /// Number of elements and measurements that were refused because a table was full.
    pub refused: u64,
    /// By task and kind.
    pub tasks: Vec<TaskReport>,
    /// The single measurements in the order of their completion, if they were requested. They are
    /// not read from JSON.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub measurements: Option<Measurements>,
}

/// The measurements of one task and kind. Lengths are in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskReport {
    /// The thread; or the process, if the sensor does not name threads.
    pub task: u32,
    /// Its short name, empty if it is not known.
    pub comm: String,
    /// The value that the metric divides its measurements by.
    pub key: Option<u64>,
    /// The name of that value, if it has one.
    #[serde(default)]
    pub key_name: Option<String>,
    /// Number of measurements.
    pub count: u64,
    /// Number of measurements with missed elements.
    pub incomplete: u64,
    /// The sum of their lengths.
    pub total_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The median.
    pub median_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl MetricsReport {
    /// Whether the results are complete: all required events have streams, and nothing was missed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.notes.is_empty() && self.metrics.iter().all(MetricReport::is_complete)
    }
}

impl MetricReport {
    pub(crate) fn is_complete(&self) -> bool {
        self.absent_events.is_empty()
            && self.incomplete == 0
            && self.missed == 0
            && self.refused == 0
    }
}

/// The monitoring overhead per element of the task itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementCost {
    /// The same for each element.
    Length(Nanos),
    /// The costs of the recording's calibration.
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

/// Memory of the histograms, in bytes.
const HISTOGRAM_BYTES: usize = 48 << 20;

/// Evaluates metrics over the recording `dir`; without any, all built-in ones whose kernel sensors
/// were recorded. `cost` is subtracted from the lengths for each of the task's own elements in
/// them. With `compensate`, the monitoring overhead is first subtracted from all times. With
/// `measurements`, the report has the single measurements as well.
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
    let events: EventSet = reader.streams().map(|stream| stream.event()).collect();
    if metrics.is_empty() {
        metrics = default_metrics(&events);
    }
    for metric in metrics {
        engine.add(metric);
    }
    // Its histograms are not used.
    let mut names_of_threads = Scheduling::new(()).with_histogram_bytes(0);
    let updates: Vec<&mut dyn Analysis> = vec![&mut engine, &mut names_of_threads];
    let replayed = compensation::replay(&reader, compensation.clone(), updates);
    engine.finish();
    let others = other_threads::read(&reader)?;
    let mut comms: BTreeMap<u32, String> = other_threads::by_tid(&others).collect();
    comms.extend(self::comms(&reader, &names_of_threads));
    let mut report = report_of(&engine, engine.sink(), &comms, &events);
    let run = Recording::read(&reader).map_err(|error| usage(error.to_string()))?;
    report
        .notes
        .extend(recording::damage(&reader, run.as_ref(), &replayed));
    report.start = recording::origin_of(&reader, run.as_ref()).unwrap_or_default();
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

/// The built-in metrics for a recording with these events: those that require scheduling alone, and
/// those whose other events were recorded.
fn default_metrics(events: &EventSet) -> Vec<Metric> {
    let scheduling = [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE].map(EventName::kernel);
    let metrics = system_metrics().filter_map(|name| system_metric(name).ok());
    metrics
        .filter(|metric| {
            let mut sources = metric.sources().iter();
            sources.all(|event| scheduling.contains(event) || events.contains(event))
        })
        .collect()
}

/// The metrics of these names, built in or files, and those of the file `config`; no two of one
/// name.
///
/// # Errors
/// [`SessionError`] if there is no such metric or file, or if a file is invalid.
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
/// [`SessionError`] without a metric.
pub fn to_dot(metrics: &[Metric]) -> Result<String, SessionError> {
    if metrics.is_empty() {
        let message = "there is no metric to draw; name one";
        return Err(SessionError::new(ErrorKind::Usage, message).about(Setting::Metrics));
    }
    let graphs = metrics
        .iter()
        .map(|metric| metric.specification().to_graphviz());
    Ok(graphs.collect())
}

/// The report on metrics after the end of the observation. `events` are those that had streams.
pub fn report_of<S: Sink>(
    engine: &Metrics<S>,
    summaries: &Summaries,
    comms: &BTreeMap<u32, String>,
    events: &EventSet,
) -> MetricsReport {
    let reports = engine.statistics().enumerate();
    let reports = reports.map(|(index, (metric, statistics))| {
        report(index, metric, &statistics, summaries, comms, events)
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

/// The newest short name of each known thread.
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
    events: &EventSet,
) -> MetricReport {
    let required = metric.sources().iter();
    let labels = KeyLabels::of(metric, comms);
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
            key_name: key.and_then(|key| labels.name(key)),
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
        absent_events: required
            .filter(|event| !events.contains(event))
            .map(ToString::to_string)
            .collect(),
        completed: statistics.completed,
        incomplete: statistics
            .incomplete
            .saturating_add(statistics.unattributed_gaps),
        unfinished: statistics.unfinished,
        missed: statistics.missed,
        unobserved: statistics.unobserved,
        refused: statistics.refused,
        tasks: rows.collect(),
        measurements: None,
    }
}

/// Words about missed elements that were not observed to keep a budget.
#[must_use]
pub fn of_budget(unobserved: u64) -> String {
    match unobserved {
        0 => String::new(),
        some => format!(", {some} of them to keep a budget"),
    }
}

/// Messages about the missing parts of a metric's results.
pub fn shortcomings(metric: &MetricReport) -> String {
    let mut text = String::new();
    for event in &metric.absent_events {
        let _ = writeln!(text, "inconclusive: no stream of {event}");
    }
    if metric.missed > 0 {
        let (missed, incomplete) = (metric.missed, metric.incomplete);
        let unobserved = of_budget(metric.unobserved);
        let _ = writeln!(
            text,
            "inconclusive: {missed} elements were missed{unobserved}; {incomplete} measurements are incomplete, others may be missing"
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
