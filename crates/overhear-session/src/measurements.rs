// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single measurements of a metric, as in [POSIX-metrics, figure 1].

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use overhear_event::{Analysis, Gap, StreamDescriptor};
use overhear_metrics::automaton::{LateGap, Measurement, Metric, Metrics, Sink, REPORTED_WINDOW};
use overhear_metrics::compensation::Compensation;
use overhear_metrics::Costs;
use overhear_monitor::Fanout;
use overhear_trace::TraceReader;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};

use crate::labels::KeyLabels;

/// One measurement: the five values of the paper, its key, and the gaps in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasurementReport {
    /// The thread; or the process, if the sensor does not name threads.
    pub task: u32,
    /// Its short name, empty if it is not known.
    pub comm: String,
    /// The value that the metric divides its measurements by.
    pub key: Option<u64>,
    /// The name of that value, if it has one.
    pub key_name: Option<String>,
    /// The measured time, less the cost of the task's own elements if one is given.
    pub length_ns: u64,
    /// Its begin by `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Number of elements in its segments.
    pub intermediate_events: u64,
    /// Number of elements of the task itself among them.
    pub own_events: u64,
    /// Number of elements that were missed while it was running.
    pub missed: u64,
    /// The gaps in it, as far as they are listed.
    #[serde(default)]
    pub gaps: Vec<GapReport>,
}

/// A gap in a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GapReport {
    /// The stream's id.
    pub stream: u32,
    /// The position of the first missed element.
    pub first: u64,
    /// Number of missed elements.
    pub missed: u64,
    /// The time of the last element before them, by `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// The time of the first element after them.
    pub to_ns: u64,
    /// The cause.
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
    fn new(
        measurement: &Measurement<'_>,
        labels: &KeyLabels<'_>,
        comms: &BTreeMap<u32, String>,
    ) -> Self {
        let missed = &measurement.missed;
        let counted = measurement.intermediate.unwrap_or_default();
        Self {
            task: measurement.task,
            comm: comms.get(&measurement.task).cloned().unwrap_or_default(),
            key: measurement.key,
            key_name: measurement.key.and_then(|key| labels.name(key)),
            length_ns: measurement.adjusted().as_ns(),
            begin_ns: measurement.begin.as_monotonic_ns(),
            end_ns: measurement.end.as_monotonic_ns(),
            intermediate_events: counted.all,
            own_events: counted.own,
            missed: missed.elements,
            gaps: missed.gaps.iter().map(GapReport::from).collect(),
        }
    }

    fn add_late_gap(&mut self, gap: &Gap) {
        self.missed = self.missed.saturating_add(gap.missed);
        self.gaps.push(gap.into());
    }
}

/// The single measurements of a metric over a recording. They are not kept in memory: each
/// iteration replays the recording.
#[derive(Clone)]
pub struct Measurements {
    recording: Arc<Recorded>,
    metric: Metric,
}

/// The data that all metrics of a recording share.
pub struct Recorded {
    pub(crate) reader: TraceReader,
    /// Costs that are subtracted from all times.
    pub compensation: Option<Costs>,
    /// Costs that are subtracted for the task's own elements.
    pub element_costs: Costs,
    /// Names of threads and processes.
    pub comms: BTreeMap<u32, String>,
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Measurements of {}", self.metric.name())
    }
}

/// Number of elements between two checks whether the iteration goes on.
const STEP_ELEMENTS: u64 = 65_536;

impl Measurements {
    pub(crate) fn new(recording: &Arc<Recorded>, metric: &Metric) -> Self {
        Self {
            recording: Arc::clone(recording),
            metric: metric.clone(),
        }
    }

    /// Calls `take` with each measurement in the order of completion, until it fails.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn try_for_each<E>(
        &self,
        mut take: impl FnMut(&MeasurementReport) -> Result<(), E>,
    ) -> Result<(), E> {
        let recording = &*self.recording;
        let labels = KeyLabels::of(&self.metric, &recording.comms);
        let failed = RefCell::new(Ok(()));
        let mut metrics = Metrics::new(Delayed {
            costs: &recording.element_costs,
            labels: &labels,
            comms: &recording.comms,
            held: VecDeque::new(),
            first: 0,
            take: |measurement: &MeasurementReport| {
                let mut failed = failed.borrow_mut();
                if failed.is_ok() {
                    *failed = take(measurement);
                }
            },
        });
        metrics.add(self.metric.clone());
        let mut replay = recording.reader.begin_replay();
        let mut run = |update: &mut dyn Analysis| {
            while failed.borrow().is_ok() && replay.step(STEP_ELEMENTS, &mut [&mut *update]) {}
        };
        match &recording.compensation {
            None => run(&mut metrics),
            Some(costs) => {
                let metrics = Fanout(vec![&mut metrics]);
                let mut compensation = Compensation::new(costs.clone(), metrics);
                run(&mut compensation);
                compensation.finish();
            }
        }
        metrics.finish();
        metrics.sink_mut().release(0);
        drop(metrics);
        failed.into_inner()
    }
}

/// Passes on measurements when no late gap can concern them any more.
struct Delayed<'a, F> {
    costs: &'a Costs,
    labels: &'a KeyLabels<'a>,
    comms: &'a BTreeMap<u32, String>,
    held: VecDeque<MeasurementReport>,
    /// Number of the first measurement in `held`.
    first: u64,
    take: F,
}

impl<F: FnMut(&MeasurementReport)> Delayed<'_, F> {
    /// Passes on all but the last `keep` measurements.
    fn release(&mut self, keep: usize) {
        while self.held.len() > keep {
            if let Some(measurement) = self.held.pop_front() {
                self.first += 1;
                (self.take)(&measurement);
            }
        }
    }
}

impl<F: FnMut(&MeasurementReport)> Sink for Delayed<'_, F> {
    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.costs.of_stream_ns(stream)
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let report = MeasurementReport::new(measurement, self.labels, self.comms);
        self.held.push_back(report);
        self.release(REPORTED_WINDOW);
    }

    fn late_gap(&mut self, late: &LateGap<'_>) {
        let index = late.number.checked_sub(self.first);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(measurement) = index.and_then(|index| self.held.get_mut(index)) {
            measurement.add_late_gap(late.gap);
        }
    }
}

impl Serialize for Measurements {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = serializer.serialize_seq(None)?;
        self.try_for_each(|measurement| all.serialize_element(measurement))?;
        all.end()
    }
}
