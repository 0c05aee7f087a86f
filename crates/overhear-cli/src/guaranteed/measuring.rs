// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric as the evaluation of an `[[update]]`: the engine that measures recordings, on the terms of a
//! monitor.

use std::path::Path;

use overhear_directory::Query;
use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};
use overhear_metrics::automaton::{Doubt, Measurement, Metric, Metrics, Sink};
use overhear_metrics::Histogram;

use crate::config::{Config, UpdateConfig};
use crate::exit::{Failure, USAGE};
use crate::metrics;
use crate::report::{HistogramReport, Quantiles};

/// The lengths of all measurements, in nanoseconds.
#[derive(Debug)]
struct Lengths {
    values: Histogram,
    incomplete: u64,
}

impl Sink for Lengths {
    fn measurement(&mut self, measurement: &Measurement<'_>) {
        self.values.record(measurement.length.as_ns());
        self.incomplete += u64::from(!measurement.is_complete());
    }

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        self.incomplete += u64::from(doubt.was_complete);
    }
}

/// Automata that the metric may have at once: its sensors have few writers.
const INSTANCES: usize = 256;
/// What one takes at most, as metrics of this size do.
const INSTANCE_BYTES: usize = 1_024;

/// Measures.
pub(crate) struct Measuring {
    metrics: Metrics<Lengths>,
    /// Elements that were evaluated.
    pub(super) elements: u64,
}

impl Measuring {
    pub(super) fn new(metric: Metric) -> Self {
        let mut metrics = Metrics::new(Lengths {
            values: Histogram::preallocated(),
            incomplete: 0,
        })
        .with_instances(INSTANCES);
        metrics.add(metric);
        Self {
            metrics,
            elements: 0,
        }
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

    /// Sentences: sensors without a field, measurements in which something was missed.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut all = self.metrics.complaints().to_vec();
        let refused = self.metrics.statistics().map(|(_, each)| each.refused);
        let refused: u64 = refused.sum();
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

impl Update for Measuring {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.metrics.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.elements += 1;
        self.metrics.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.metrics.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.metrics.advance(now);
    }
}

/// The metrics that the file names in its updates, so that one that cannot be used is told before anything
/// runs.
pub(crate) fn metrics_of(config: &Config, path: &Path) -> Result<Vec<Option<Metric>>, Failure> {
    let base = path.parent().unwrap_or(Path::new(""));
    let updates = config.updates.iter().map(|update| {
        let Some(name) = &update.metric else {
            return Ok(None);
        };
        let found = metric_of(name, base, config, update);
        let sentence = |sentence| {
            let file = path.display();
            format!("{file}: update `{}`: {sentence}", update.name)
        };
        found
            .map(Some)
            .map_err(|why| Failure::new(USAGE, sentence(why)))
    });
    updates.collect()
}

fn metric_of(
    name: &str,
    base: &Path,
    config: &Config,
    update: &UpdateConfig,
) -> Result<Metric, String> {
    let metric = metrics::find(name, base)?;
    let taken = config
        .sensors
        .iter()
        .filter(|sensor| update.takes(&sensor.id));
    let taken: Vec<Query> = taken
        .filter_map(|sensor| Query::parse(&sensor.id).ok())
        .collect();
    let strange = metric.sources().iter().find(|event| {
        let sensor = event.as_str().strip_prefix("user:");
        sensor.is_none_or(|sensor| !taken.iter().any(|query| query.may_name(sensor)))
    });
    match strange {
        None => Ok(metric),
        Some(event) if event.as_str().starts_with("user:") => Err(format!(
            "the metric {} requires {event}, which is none of its sensors; add it to the file",
            metric.name()
        )),
        Some(event) => Err(format!(
            "the metric {} requires {event}; a monitor of this file evaluates sensors of programs alone, whose rates \
             are declared: name the metric in [[metric]], and the run measures it",
            metric.name()
        )),
    }
}
