// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terms of a guarantee: the result of admission.

use overhear_admission::{ArrivalBound, DeadlineReservation, Lateness, Level};
use overhear_event::Nanos;

/// The result of admission, as an executor needs it.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The kernel's reservation.
    pub reservation: DeadlineReservation,
    /// The lateness of the machine that admission assumed.
    pub lateness: Lateness,
    /// l: every element is evaluated within this time after its stamp.
    pub latency: Nanos,
    /// Q, the part of the runtime for evaluations. A period starts no further evaluation once the
    /// WCETs of the started ones add up to Q.
    pub evaluations: Nanos,
    /// The level of the guarantee.
    pub level: Level,
    /// Number of CPUs, for the shared level.
    pub cpus: u32,
    /// The sensors, one term for each.
    pub sensors: Vec<SensorTerms>,
    /// The updates, in the order in which they see an element.
    pub updates: Vec<UpdateTerms>,
}

/// The terms of a sensor.
#[derive(Clone, Debug)]
pub struct SensorTerms {
    /// Name for display.
    pub name: String,
    /// (T, D, tau).
    pub constraint: ArrivalBound,
    /// W, the sum of the WCETs of the updates that take its elements.
    pub wcet: Nanos,
    /// Number of sensors admitted under this term, each with (T, D, tau) and W; more than one if a
    /// pattern names several. With 0 the monitor waits for none, because it does not read them.
    pub count: u32,
    /// B, the least capacity of each sensor's buffer that admission assumed, in elements; 0 for no
    /// assumption.
    pub buffer: u64,
}

/// The terms of an update.
#[derive(Clone, Debug)]
pub struct UpdateTerms {
    /// Name for display.
    pub name: String,
    /// The worst-case execution time for one element.
    pub wcet: Nanos,
}

/// Index in [`Terms::sensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorIndex(pub usize);

/// Index in [`Terms::updates`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpdateIndex(pub usize);

impl Terms {
    /// The name of a sensor for display.
    #[must_use]
    pub fn sensor(&self, index: SensorIndex) -> &str {
        self.sensors
            .get(index.0)
            .map_or("?", |sensor| sensor.name.as_str())
    }

    /// The name of an update for display.
    #[must_use]
    pub fn update(&self, index: UpdateIndex) -> &str {
        self.updates
            .get(index.0)
            .map_or("?", |update| update.name.as_str())
    }
}
