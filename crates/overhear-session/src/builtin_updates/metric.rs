// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric as an `[[update]]`: the engine that also measures recordings, with bounded memory.

use std::path::Path;

use overhear_directory::Query;
use overhear_event::{Analysis, ElementView, EventName, Gap, StreamDescriptor, Timestamp};
use overhear_metrics::automaton::{LateGap, Measurement, Metric, Metrics, Sink};
use overhear_metrics::Histogram;

use crate::config::{Config, UpdateConfig};
use crate::error::{ErrorKind, SessionError};
use crate::quantities::{HistogramReport, Quantiles};

/// The lengths of all measurements, in nanoseconds, and the number of incomplete ones.
#[derive(Debug)]
struct Lengths {
    values: Histogram,
    incomplete: u64,
}

impl Lengths {
    fn new() -> Self {
        Self {
            values: Histogram::preallocated(),
            incomplete: 0,
        }
    }
}

impl Sink for Lengths {
    fn counts_intermediate(&self, _: &Metric) -> bool {
        false
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        self.values.record(measurement.length.as_ns());
        self.incomplete += u64::from(!measurement.is_complete());
    }

    fn late_gap(&mut self, gap: &LateGap<'_>) {
        self.incomplete += u64::from(gap.was_complete);
    }
}

/// Limit of the automata of a metric; the sensors of a monitor have few writers.
const MAX_INSTANCES: usize = 256;
/// Upper bound of the memory of one automaton, for metrics of the size of the built-in ones: its
/// gaps, its entries in the tables, and its part of the table of refused threads.
const MAX_INSTANCE_BYTES: usize = 2_048;

/// Measures one metric.
pub(crate) struct MetricUpdate {
    metrics: Metrics<Lengths>,
    /// Number of evaluated elements.
    pub(crate) elements: u64,
}

impl MetricUpdate {
    pub(crate) fn new(metric: Metric) -> Self {
        let mut metrics = Metrics::new(Lengths::new()).with_instances(MAX_INSTANCES);
        metrics.add(metric);
        Self {
            metrics,
            elements: 0,
        }
    }

    /// Number of elements that were refused because all automata were in use.
    fn refused(&self) -> u64 {
        let all = self.metrics.statistics();
        all.map(|(_, each)| each.refused).sum()
    }

    fn lengths(&self) -> &Lengths {
        self.metrics.sink()
    }

    pub(crate) fn values(&self) -> Option<Quantiles> {
        Quantiles::of(&self.lengths().values)
    }

    /// The distribution of the lengths, titled with the name of the update.
    pub(crate) fn histogram(&self, name: &str) -> HistogramReport {
        HistogramReport::new(name, "ns", &self.lengths().values)
    }

    /// Messages about sensors without a field, refused elements and incomplete measurements.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut all = self.metrics.complaints().to_vec();
        let refused = self.refused();
        if refused > 0 {
            all.push(format!("{refused} elements found no room in the metric"));
        }
        match self.lengths().incomplete {
            0 => {}
            1 => all.push("something was missed in 1 measurement".to_owned()),
            more => all.push(format!("something was missed in {more} measurements")),
        }
        all
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.lengths().values.memory_bytes() + MAX_INSTANCES * MAX_INSTANCE_BYTES
    }

    /// Bytes of an update.
    pub(crate) fn bytes() -> u64 {
        let values = Histogram::preallocated();
        (values.memory_bytes() + MAX_INSTANCES * MAX_INSTANCE_BYTES) as u64
    }
}

impl Analysis for MetricUpdate {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.metrics.open(stream);
    }

    fn warm_up(&mut self) {
        self.metrics.reserve();
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.elements += 1;
        self.metrics.element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        self.elements += elements.len() as u64;
        self.metrics.elements(elements);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.metrics.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.metrics.advance(now);
    }
}

/// The metrics that the updates of the file name, so that an unusable one is reported before the
/// program starts.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the update.
pub(crate) fn metrics_of(
    config: &Config,
    path: &Path,
) -> Result<Vec<Option<Metric>>, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let updates = config.updates.iter().map(|update| {
        let Some(name) = &update.metric else {
            return Ok(None);
        };
        let metric = metric_of(name, base, config, update);
        metric.map(Some).map_err(|message| {
            let (file, update) = (path.display(), &update.name);
            SessionError::new(
                ErrorKind::Usage,
                format!("{file}: update `{update}`: {message}"),
            )
        })
    });
    updates.collect()
}

fn metric_of(
    name: &str,
    base: &Path,
    config: &Config,
    update: &UpdateConfig,
) -> Result<Metric, String> {
    let metric = crate::config::metrics::find(name, base)?;
    let taken = config.sensors.iter();
    let taken = taken.filter(|sensor| update.takes(&sensor.id));
    let (kernel, programs): (Vec<_>, Vec<_>) = taken.partition(|it| it.is_of_kernel());
    let queries = programs.iter().filter_map(|it| Query::parse(&it.id).ok());
    let queries: Vec<Query> = queries.collect();
    let is_taken = |event: &str| match event.strip_prefix("user:") {
        Some(sensor) => queries.iter().any(|query| query.may_name(sensor)),
        None => kernel.iter().any(|sensor| sensor.id == event),
    };
    let is_kernel = |event: &str| event.starts_with("kernel:");
    let name = metric.name();
    let absent = metric.sources().iter().map(EventName::as_str);
    let absent: Vec<&str> = absent.filter(|event| !is_taken(event)).collect();
    let (missing, others): (Vec<&str>, Vec<&str>) =
        absent.into_iter().partition(|event| is_kernel(event));
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        return Err(format!(
            "the metric {name} requires {missing}, whose rate is not declared; add a [[sensor]] with this id and its \
             period, distance and jitter for each (`overhear fit-rate` finds them), and name them where the update \
             names its sensors"
        ));
    }
    if let Some(event) = others.first() {
        return Err(match event.starts_with("user:") {
            true => format!(
                "the metric {name} requires {event}, which is none of its sensors; add it to the file"
            ),
            false => format!(
                "the metric {name} requires {event}, which no monitor of a file evaluates; name the metric in \
                 [[metric]], and the run measures it"
            ),
        });
    }
    // The automaton of a thread is removed at the thread's last departure or end. Without a sensor
    // for either, automata of ended threads would stay.
    let end_sensors = ["kernel:sched_switch", "kernel:task_life"];
    let sources = metric.sources().iter().map(EventName::as_str);
    let of_threads = sources.clone().any(is_kernel);
    let has_ends = kernel
        .iter()
        .any(|it| end_sensors.contains(&it.id.as_str()));
    if of_threads && !has_ends {
        return Err(format!(
            "the metric {name} follows threads, and none of its sensors shows when they end; add a [[sensor]] with the id \
             kernel:task_life and its period, distance and jitter"
        ));
    }
    Ok(metric)
}
