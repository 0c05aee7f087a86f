// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear metrics --each`: measurements one by one, as in figure 1 of seed 004.

use std::collections::BTreeMap;

use overhear_event::{Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_metrics::automaton::{
    Doubt, Measurement, Metric, MetricResult, MetricStatistics, Results, Sink, Summaries,
};
use overhear_metrics::Costs;
use serde::{Deserialize, Serialize};

use crate::columns::{printable, Table};
use crate::kinds::Kinds;
use crate::metrics::{kind, MetricsReport};
use crate::width::Width;

/// One measurement: the five values of the seed, its kind, and what was missed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasurementReport {
    /// The thread, or the process where the sensor does not name threads.
    pub task: u32,
    /// Its short name, empty if it is not known.
    pub comm: String,
    /// The value that the metric divides its measurements by.
    pub key: Option<u64>,
    /// What that value of the kernel's is called, if it has a name.
    pub key_name: Option<String>,
    /// The measured time, less what the observation took if that was asked for.
    pub length_ns: u64,
    /// When it began, `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// When it was completed.
    pub end_ns: u64,
    /// Elements in its segments.
    pub intermediate_events: u64,
    /// Of these, those of the task itself.
    pub own_events: u64,
    /// Elements that were missed while it was running.
    pub missed: u64,
    /// The gaps that they belong to, as far as they are named.
    #[serde(default)]
    pub gaps: Vec<GapReport>,
}

/// A gap that fell into a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GapReport {
    /// The stream's number.
    pub stream: u32,
    /// The position of the first missed element.
    pub first: u64,
    /// How many were missed.
    pub missed: u64,
    /// The time of the last element before them, `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// The time of the first element after them.
    pub to_ns: u64,
    /// Why.
    pub cause: String,
}

impl From<&Gap> for GapReport {
    fn from(gap: &Gap) -> Self {
        Self {
            stream: gap.stream.as_raw(),
            first: gap.first,
            missed: gap.missed,
            from_ns: gap.from.as_monotonic_ns(),
            to_ns: gap.to.as_monotonic_ns(),
            cause: gap.cause.to_string(),
        }
    }
}

impl MeasurementReport {
    fn new(result: &MetricResult, kinds: &Kinds<'_>, comms: &BTreeMap<u32, String>) -> Self {
        Self {
            task: result.task,
            comm: comms.get(&result.task).cloned().unwrap_or_default(),
            key: result.key,
            key_name: result.key.and_then(|key| kinds.name(key)),
            length_ns: result.length.as_ns(),
            begin_ns: result.begin.as_monotonic_ns(),
            end_ns: result.end.as_monotonic_ns(),
            intermediate_events: result.intermediate_events,
            own_events: result.own_events,
            missed: result.missed,
            gaps: Vec::new(),
        }
    }
}

/// Adds measurements up, and keeps them one by one if that is asked for.
#[derive(Debug)]
pub(crate) struct Each {
    pub(crate) summaries: Summaries,
    results: Option<Results>,
}

/// Memory of the histograms, in bytes: nothing else of a run competes with them.
const HISTOGRAM_BYTES: usize = 48 << 20;

impl Each {
    pub(crate) fn new(costs: Costs, each: bool) -> Self {
        let summaries = Summaries::default().with_histogram_bytes(HISTOGRAM_BYTES);
        Self {
            results: each.then(|| Results::default().less(costs.clone())),
            summaries: summaries.less(costs),
        }
    }

    /// Adds the measurements to the report, whose metrics are these.
    pub(crate) fn tell<'a>(
        &self,
        metrics: impl Iterator<Item = (&'a Metric, MetricStatistics)>,
        comms: &BTreeMap<u32, String>,
        report: &mut MetricsReport,
    ) {
        let Some(results) = &self.results else {
            return;
        };
        for (index, ((metric, _), told)) in metrics.zip(&mut report.metrics).enumerate() {
            let kinds = Kinds::of(metric, comms);
            let each = results.of(index).iter();
            let each = each.map(|result| MeasurementReport::new(result, &kinds, comms));
            let mut each: Vec<_> = each.collect();
            for named in results.gaps_of(index) {
                each[named.measurement].gaps.push((&named.gap).into());
            }
            told.measurements = Some(each);
        }
        if results.refused() > 0 {
            let sentence = format!(
                "{} measurements found no room in the list; name fewer metrics, or take the sums",
                results.refused()
            );
            report.notes.push(sentence);
        }
    }
}

impl Sink for Each {
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        self.results.is_some() || self.summaries.counts_intermediate(metric)
    }

    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.summaries.element_cost_ns(stream)
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        self.summaries.measurement(measurement);
        if let Some(results) = &mut self.results {
            results.measurement(measurement);
        }
    }

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        self.summaries.doubt(doubt);
        if let Some(results) = &mut self.results {
            results.doubt(doubt);
        }
    }
}

/// The measurements of a metric as a table, with times counted from `start`.
pub(crate) fn render(measurements: &[MeasurementReport], start: Timestamp, width: Width) -> String {
    if measurements.is_empty() {
        return "no measurement\n".to_owned();
    }
    let named = measurements.iter().any(|one| one.key_name.is_some());
    let heads = [
        ("task", true),
        ("name", false),
        ("by", !named),
        ("length", true),
        ("begin", true),
        ("end", true),
        ("events", true),
        ("own", true),
        ("missed", true),
    ];
    let mut table = Table::new(&heads).keys(2);
    let at = |ns| {
        let time = Timestamp::from_monotonic_ns(ns);
        time.relative_to(start).to_string()
    };
    for one in measurements {
        table.row(vec![
            one.task.to_string(),
            printable(&one.comm),
            kind(one.key, one.key_name.as_deref()),
            Nanos::from_ns(one.length_ns).to_string(),
            at(one.begin_ns),
            at(one.end_ns),
            one.intermediate_events.to_string(),
            one.own_events.to_string(),
            one.missed.to_string(),
        ]);
    }
    table.render(width)
}
