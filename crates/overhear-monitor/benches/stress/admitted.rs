// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two sensors with bursts, an update with a WCET, and the admission of both: the prerequisites of
//! a guarantee.

use overhear_admission::{
    choose, AdmissionRequest, ArrivalBound, DeadlineReservation, JobEnd, Lateness, Level, Ratio,
    SensorLoad,
};
use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::executor::{
    deadline, DeadlineRefusal, DeadlineRun, Guarantee, SensorFigures, SensorIndex, SensorTerms,
    Terms, UpdateTerms, Watch, Watched,
};
use overhear_monitor::{Monitor, QueueMemory, SystemClock};

use crate::rings::{now, Rings};

pub(crate) const WCET: Nanos = Nanos::from_us(100);

/// (T, D, tau): about a thousand elements per second each, in bursts of 8 and 5.
pub(crate) fn streams() -> [ArrivalBound; 2] {
    let us = Nanos::from_us;
    [
        ArrivalBound::new(us(1_000), us(50), us(7_000), Nanos::ZERO).unwrap(),
        ArrivalBound::new(us(1_500), us(0), us(6_000), Nanos::ZERO).unwrap(),
    ]
}

/// Terms for two sensors, `a` and `b`, and one update, with this latency.
pub(crate) fn terms(latency: Nanos, lateness: Lateness) -> Terms {
    terms_with(WCET, latency, lateness)
}

/// The same with another WCET of the update.
pub(crate) fn terms_with(wcet: Nanos, latency: Nanos, lateness: Lateness) -> Terms {
    let loads = streams().map(|stream| SensorLoad {
        stream,
        wcet,
        copy: Nanos::ZERO,
        buffer: None,
    });
    let request = AdmissionRequest {
        latency: latency.into(),
        least_period: Nanos::from_ms(1),
        largest_period: Nanos::from_ms(20),
        overhead: Nanos::from_ms(1),
        lateness: lateness.total().unwrap(),
        density: Ratio::new(4, 5).unwrap(),
        joint_bound: false,
    };
    let choice = choose(&loads, &request).unwrap();
    let reservation = DeadlineReservation::of_plan(&choice, lateness, JobEnd::Sleep).unwrap();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    Terms {
        reservation,
        lateness,
        latency: Nanos::from_ns(u64::try_from(choice.latency.as_ns()).unwrap()),
        evaluations: Nanos::from_ns(u64::try_from(choice.evaluations.as_ns()).unwrap()),
        level: Level::Shared,
        cpus,
        sensors: ["a", "b"]
            .into_iter()
            .zip(streams())
            .map(|(name, constraint)| SensorTerms {
                name: name.to_string(),
                constraint,
                wcet,
                count: 1,
                buffer: 0,
            })
            .collect(),
        updates: vec![UpdateTerms {
            name: "sum".to_string(),
            wcet,
        }],
    }
}

/// Counts, and calls a function with each element's number.
pub(crate) struct Sum<F>(pub(crate) u64, pub(crate) F);

impl<F: FnMut(u64)> Analysis for Sum<F> {
    fn element(&mut self, element: &ElementView<'_>) {
        self.0 += 1;
        (self.1)(element.sequence);
    }
    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
    fn advance(&mut self, _: Timestamp) {}
}

/// The sensor of the terms that has this stream's name.
pub(crate) fn sensor_of(terms: &Terms, stream: &StreamDescriptor) -> Option<SensorIndex> {
    let mut sensors = terms.sensors.iter();
    let index = sensors.position(|sensor| sensor.name == stream.sensor);
    index.map(SensorIndex)
}

/// The result of a run.
pub(crate) struct Ended {
    pub(crate) run: DeadlineRun,
    pub(crate) guarantee: Guarantee,
    pub(crate) figures: Vec<SensorFigures>,
    pub(crate) messages: Vec<String>,
}

/// Runs `update` on the terms, over the rings `a` and `b`.
pub(crate) fn run(
    terms: &Terms,
    source: Rings,
    update: &mut dyn Analysis,
    go_on: impl FnMut(&mut Monitor, &Guarantee) -> bool,
) -> Result<Ended, DeadlineRefusal> {
    run_from_begin(terms, source, update, || (), go_on)
}

/// The same, and calls `on_begin` when the guarantee begins.
pub(crate) fn run_from_begin(
    terms: &Terms,
    source: Rings,
    update: &mut dyn Analysis,
    on_begin: impl FnOnce(),
    go_on: impl FnMut(&mut Monitor, &Guarantee) -> bool,
) -> Result<Ended, DeadlineRefusal> {
    let mut monitor = Monitor::with_memory(terms.lateness.hold_back, QueueMemory::Reserved);
    monitor.add_source(Box::new(source));
    let watched = Watched {
        update,
        sensors: None,
        in_place: None,
    };
    let sensor_of = |stream: &StreamDescriptor| sensor_of(terms, stream);
    let mut watch = Watch::new(terms, vec![watched], SystemClock, sensor_of);
    let run = deadline(&mut monitor, &mut watch, on_begin, go_on)?;
    Ok(Ended {
        run,
        guarantee: watch.guarantee().clone(),
        figures: watch.figures().collect(),
        messages: watch.guarantee().messages(terms, Timestamp::ZERO),
    })
}

/// Runs for this time after its first call.
pub(crate) fn lasting(length: Nanos) -> impl FnMut(&mut Monitor, &Guarantee) -> bool {
    let mut begun = None;
    move |_, _| {
        let begun = *begun.get_or_insert_with(now);
        now().since(begun) < length
    }
}
