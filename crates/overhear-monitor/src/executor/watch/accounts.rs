// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of each watched update and of each sensor.

use overhear_admission::ConformanceCheck;
use overhear_event::{Analysis, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp};

use crate::executor::terms::SensorIndex;
use crate::in_place::bit;
use crate::updates::MissedPolicy;

/// An update that is watched.
pub struct Watched<'a> {
    /// The update.
    pub update: &'a mut dyn Analysis,
    /// The sensors whose elements it takes; `None` for all.
    pub sensors: Option<Vec<SensorIndex>>,
    /// The sensors whose large elements it may read in place; `None` for all. Such elements stay in
    /// the sensor's buffer until they have been evaluated, so admission must include them.
    pub in_place: Option<Vec<SensorIndex>>,
}

impl Watched<'_> {
    fn takes(&self, sensor: Option<SensorIndex>) -> bool {
        match (&self.sensors, sensor) {
            (None, _) => true,
            (Some(taken), Some(sensor)) => taken.contains(&sensor),
            (Some(_), None) => false,
        }
    }

    pub(super) fn reads_in_place(
        &self,
        sensor: Option<SensorIndex>,
        stream: &StreamDescriptor,
    ) -> bool {
        let may = match (&self.in_place, sensor) {
            (None, _) => true,
            (Some(all), sensor) => sensor.is_some_and(|sensor| all.contains(&sensor)),
        };
        may && self.update.reads_in_place(stream)
    }
}

/// The largest execution time of an update so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestStep {
    /// Its execution time.
    pub took: Nanos,
    /// Position of the element in its stream.
    pub element: u64,
    /// The sensor of the element.
    pub sensor: Option<SensorIndex>,
    /// Number of elements that it has evaluated.
    pub elements: u64,
}

/// The outcome of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateOutcome {
    /// Number of missed elements of its sensors, until it was stopped.
    pub missed: u64,
    /// Number of elements for which it exceeded its WCET.
    pub overruns: u64,
    /// The gap that stopped it ([`MissedPolicy::Stop`]).
    pub stopped: Option<Gap>,
    /// Whether it has failed ([`Analysis::failure`]), and is not called any more.
    pub failed: bool,
}

/// A watched update.
pub(super) struct Step<'a> {
    pub(super) watched: Watched<'a>,
    pub(super) longest: LongestStep,
    pub(super) policy: MissedPolicy,
    pub(super) fate: UpdateOutcome,
    // Streams that it refuses: a message for each.
    pub(super) complaints: Vec<String>,
}

impl Step<'_> {
    pub(super) fn takes(&self, sensor: Option<SensorIndex>) -> bool {
        self.is_called() && self.watched.takes(sensor)
    }

    pub(super) fn is_called(&self) -> bool {
        self.fate.stopped.is_none() && !self.fate.failed
    }

    /// Calls it, unless it has failed.
    pub(super) fn call(&mut self, call: impl FnOnce(&mut dyn Analysis)) {
        let update = &mut *self.watched.update;
        call(update);
        self.fate.failed = update.failure().is_some();
    }
}

/// The figures of one sensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SensorFigures {
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed, for any cause.
    pub missed: u64,
    /// The largest latency.
    pub latency: Nanos,
    /// Elements that were faster than the sensor's stream.
    pub exceeding: u64,
}

impl SensorFigures {
    /// The sum of two sensors.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            elements: self.elements + other.elements,
            missed: self.missed.saturating_add(other.missed),
            latency: self.latency.max(other.latency),
            exceeding: self.exceeding + other.exceeding,
        }
    }
}

/// The state of one sensor.
#[derive(Debug)]
pub(super) struct Account {
    // Its term, which can have several sensors.
    pub(super) sensor: SensorIndex,
    pub(super) check: ConformanceCheck,
    // The first stream of the sensor that is evaluated here, and what it is called.
    pub(super) stream: Option<StreamId>,
    pub(super) label: String,
    // Whether it is a kernel sensor: its streams, one per CPU, have it together.
    pub(super) of_kernel: bool,
    /// Elements that the sensor's buffer holds; `None` until it appears, and for kernel sensors.
    pub(super) holds: Option<u64>,
    // The time of its last element: up to it the sensor kept its rate.
    pub(super) last: Timestamp,
    // Missed elements since then.
    pub(super) lost: u64,
    pub(super) figures: SensorFigures,
}

impl Account {
    /// Whether a stream of this term belongs to it: the first one that comes, and of a kernel
    /// sensor those of the other CPUs.
    pub(super) fn takes(&self, term: Option<SensorIndex>, stream: &StreamDescriptor) -> bool {
        let is_free = self.stream.is_none();
        Some(self.sensor) == term && (is_free || (self.of_kernel && is_of_kernel(stream)))
    }

    pub(super) fn admit(&mut self, stream: &StreamDescriptor) {
        if self.stream.is_some() {
            return;
        }
        self.stream = Some(stream.first_stream());
        self.of_kernel = is_of_kernel(stream);
        self.label = match self.of_kernel {
            true => format!("kernel/{}", stream.sensor),
            false => stream.sensor_label(),
        };
        // One slot may be in use by the writer. Rings of kernel sensors were made by the monitor
        // itself.
        self.holds = (!self.of_kernel).then(|| stream.capacity.saturating_sub(1));
    }
}

pub(super) const fn is_of_kernel(stream: &StreamDescriptor) -> bool {
    matches!(stream.origin, Origin::Kernel { .. })
}

/// One ring of a kernel sensor. A loss lies between two elements of the same ring, and the number
/// of elements of other rings in between is unknown. So losses are checked per ring: the bound of a
/// sensor holds for each of its rings.
#[derive(Debug)]
pub(super) struct CpuRing {
    pub(super) check: ConformanceCheck,
    pub(super) last: Timestamp,
    pub(super) lost: u64,
}

/// The assignment of a stream: its sensor, and the updates that refuse it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) sensor: Option<SensorIndex>,
    // Index of its account.
    pub(super) account: Option<usize>,
    // Index of its ring, of a kernel sensor.
    pub(super) ring: Option<usize>,
    // Updates that refuse it: a bit each.
    pub(super) refused: u64,
}

impl Known {
    pub(super) fn is_for(&self, index: usize, step: &Step<'_>) -> bool {
        self.refused & bit(index) == 0 && step.takes(self.sensor)
    }
}
