// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear metrics --measurements`: measurements one by one, as in [POSIX-metrics, figure 1].

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

use crate::kinds::Kinds;

/// One measurement: the five values of the paper, its kind, and what was missed.
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
    fn new(
        measurement: &Measurement<'_>,
        kinds: &Kinds<'_>,
        comms: &BTreeMap<u32, String>,
    ) -> Self {
        let missed = &measurement.missed;
        let counted = measurement.intermediate.unwrap_or_default();
        Self {
            task: measurement.task,
            comm: comms.get(&measurement.task).cloned().unwrap_or_default(),
            key: measurement.key,
            key_name: measurement.key.and_then(|key| kinds.name(key)),
            length_ns: measurement.adjusted().as_ns(),
            begin_ns: measurement.begin.as_monotonic_ns(),
            end_ns: measurement.end.as_monotonic_ns(),
            intermediate_events: counted.all,
            own_events: counted.own,
            missed: missed.elements,
            gaps: missed.gaps.iter().map(GapReport::from).collect(),
        }
    }

    fn doubt(&mut self, gap: &Gap) {
        self.missed = self.missed.saturating_add(gap.missed);
        self.gaps.push(gap.into());
    }
}

/// The measurements of a metric over a recording, one by one, however many there are: they are not
/// in memory, but evaluated anew whenever somebody asks for them.
#[derive(Clone)]
pub struct Measurements {
    recording: Arc<Recorded>,
    metric: Metric,
}

/// What the metrics of a recording have in common.
pub struct Recorded {
    pub(crate) reader: TraceReader,
    /// Subtracted from all times.
    pub compensation: Option<Costs>,
    /// Subtracted for the elements of the task itself.
    pub element_costs: Costs,
    /// What threads and processes are called.
    pub comms: BTreeMap<u32, String>,
}

impl fmt::Debug for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Measurements of {}", self.metric.name())
    }
}

/// Elements that are replayed before it is asked whether that is enough.
const REPLAY_STEP: u64 = 65_536;

impl Measurements {
    pub(crate) fn new(recording: &Arc<Recorded>, metric: &Metric) -> Self {
        Self {
            recording: Arc::clone(recording),
            metric: metric.clone(),
        }
    }

    /// Calls `take` with each measurement in the order of their completion, until it fails.
    ///
    /// # Errors
    /// The first of `take`.
    pub fn try_for_each<E>(
        &self,
        mut take: impl FnMut(&MeasurementReport) -> Result<(), E>,
    ) -> Result<(), E> {
        let recording = &*self.recording;
        let kinds = Kinds::of(&self.metric, &recording.comms);
        let failed = RefCell::new(Ok(()));
        let mut metrics = Metrics::new(Delayed {
            costs: &recording.element_costs,
            kinds: &kinds,
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
            while failed.borrow().is_ok() && replay.step(REPLAY_STEP, &mut [&mut *update]) {}
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

/// Hands on measurements once no gap can concern them any more.
struct Delayed<'a, F> {
    costs: &'a Costs,
    kinds: &'a Kinds<'a>,
    comms: &'a BTreeMap<u32, String>,
    held: VecDeque<MeasurementReport>,
    /// The number of the first one that is held.
    first: u64,
    take: F,
}

impl<F: FnMut(&MeasurementReport)> Delayed<'_, F> {
    /// Hands on all but the last ones.
    fn release(&mut self, but: usize) {
        while self.held.len() > but {
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
        let report = MeasurementReport::new(measurement, self.kinds, self.comms);
        self.held.push_back(report);
        self.release(REPORTED_WINDOW);
    }

    fn late_gap(&mut self, doubt: &LateGap<'_>) {
        let place = doubt.number.checked_sub(self.first);
        let place = place.and_then(|place| usize::try_from(place).ok());
        if let Some(measurement) = place.and_then(|place| self.held.get_mut(place)) {
            measurement.doubt(doubt.gap);
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
