// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric as the evaluation of an `[[update]]`: the engine that measures recordings, on the terms
//! of a monitor.

use std::path::Path;

use overhear_directory::Query;
use overhear_event::{Analysis, ElementView, EventName, Gap, StreamDescriptor, Timestamp};
use overhear_metrics::automaton::{LateGap, Measurement, Metric, Metrics, Sink};
use overhear_metrics::Histogram;

use crate::config::{Config, UpdateConfig};
use crate::error::{ErrorKind, SessionError};
use crate::quantities::{HistogramReport, Quantiles};

/// The lengths of all measurements, in nanoseconds.
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

    fn late_gap(&mut self, doubt: &LateGap<'_>) {
        self.incomplete += u64::from(doubt.was_complete);
    }
}

/// Automata that the metric may have at once: its sensors have few writers.
const INSTANCES: usize = 256;
/// What one takes at most, in metrics of the size of those that are built in: with its gaps, its
/// places in the tables, and room for threads that are refused.
const INSTANCE_BYTES: usize = 2_048;

/// Measures.
pub(crate) struct Measuring {
    metrics: Metrics<Lengths>,
    /// Elements that were evaluated.
    pub(super) elements: u64,
}

impl Measuring {
    pub(super) fn new(metric: Metric) -> Self {
        let mut metrics = Metrics::new(Lengths::new()).with_instances(INSTANCES);
        metrics.add(metric);
        Self {
            metrics,
            elements: 0,
        }
    }

    /// Elements that found no room until now.
    fn refused(&self) -> u64 {
        let all = self.metrics.statistics();
        all.map(|(_, each)| each.refused).sum()
    }

    fn lengths(&self) -> &Lengths {
        self.metrics.sink()
    }

    pub(super) fn values(&self) -> Option<Quantiles> {
        Quantiles::of(&self.lengths().values)
    }

    /// The lengths, as the update of this name.
    pub(super) fn histogram(&self, name: &str) -> HistogramReport {
        HistogramReport::new(name, "ns", &self.lengths().values)
    }

    /// Messages: sensors without a field, measurements in which something was missed.
    pub(super) fn complaints(&self) -> Vec<String> {
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

    pub(super) fn memory_bytes(&self) -> usize {
        self.lengths().values.memory_bytes() + INSTANCES * INSTANCE_BYTES
    }

    /// What one takes.
    pub(crate) fn bytes() -> u64 {
        let values = Histogram::preallocated();
        (values.memory_bytes() + INSTANCES * INSTANCE_BYTES) as u64
    }
}

impl Analysis for Measuring {
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

/// The metrics that the file names in its updates, so that one that cannot be used is told before
/// anything runs.
pub(crate) fn metrics_of(
    config: &Config,
    path: &Path,
) -> Result<Vec<Option<Metric>>, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let updates = config.updates.iter().map(|update| {
        let Some(name) = &update.metric else {
            return Ok(None);
        };
        let found = metric_of(name, base, config, update);
        let message = |message| {
            let file = path.display();
            format!("{file}: update `{}`: {message}", update.name)
        };
        found
            .map(Some)
            .map_err(|why| SessionError::new(ErrorKind::Usage, message(why)))
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
    let own = config.sensors.iter();
    let own = own.filter(|sensor| update.takes(&sensor.id));
    let (kernel, programs): (Vec<_>, Vec<_>) = own.partition(|it| it.is_of_kernel());
    let queries = programs.iter().filter_map(|it| Query::parse(&it.id).ok());
    let queries: Vec<Query> = queries.collect();
    let is_taken = |event: &str| match event.strip_prefix("user:") {
        Some(sensor) => queries.iter().any(|query| query.may_name(sensor)),
        None => kernel.iter().any(|sensor| sensor.id == event),
    };
    let is_kernel = |event: &str| event.starts_with("kernel:");
    let name = metric.name();
    let strange = metric.sources().iter().map(EventName::as_str);
    let strange: Vec<&str> = strange.filter(|event| !is_taken(event)).collect();
    let (missing, others): (Vec<&str>, Vec<&str>) =
        strange.into_iter().partition(|event| is_kernel(event));
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        return Err(format!(
            "the metric {name} requires {missing}, of which nobody says how fast they come; add a [[sensor]] with \
             this id and its period, distance and jitter for each (`overhear fit-rate` finds them), and name them \
             where the update names its sensors"
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
    // Departures of threads tell of their last one; where nobody hears these, automata of threads
    // that have ended would stay.
    let tells_ends = ["kernel:sched_switch", "kernel:task_life"];
    let sources = metric.sources().iter().map(EventName::as_str);
    let of_threads = sources.clone().any(is_kernel);
    let heard = kernel.iter().any(|it| tells_ends.contains(&it.id.as_str()));
    if of_threads && !heard {
        return Err(format!(
            "the metric {name} follows threads, and nothing tells when they end; add a [[sensor]] with the id \
             kernel:task_life and its period, distance and jitter"
        ));
    }
    Ok(metric)
}
