// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was admitted: the terms on which a monitor guarantees its latency.

use overhear_admission::{Constraint, DeadlineReservation, Lateness, Level};
use overhear_event::Nanos;

/// What admission granted, in the words of the executor that keeps it.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What the kernel reserves.
    pub reservation: DeadlineReservation,
    /// By how much the machine may be later than the model.
    pub lateness: Lateness,
    /// l: every element is evaluated within this length after its stamp.
    pub latency: Nanos,
    /// Q, the part of the runtime that evaluations share. A period begins no evaluation once those
    /// that it began have used it up by their WCETs.
    pub evaluations: Nanos,
    /// How far the guarantee reaches.
    pub level: Level,
    /// CPUs that the shared level counts on.
    pub cpus: u32,
    /// The sensors, one term for each.
    pub sensors: Vec<SensorTerms>,
    /// The updates, in the order in which they see an element.
    pub updates: Vec<UpdateTerms>,
}

/// What a sensor promised.
#[derive(Clone, Debug)]
pub struct SensorTerms {
    /// For people.
    pub name: String,
    /// (T, D, tau).
    pub constraint: Constraint,
    /// W, the sum over the updates that take its elements.
    pub wcet: Nanos,
    /// How many sensors were admitted under this term, each with (T, D, tau) and W: where a pattern names
    /// several. None is waited for where it is 0: the monitor does not read them.
    pub count: u32,
    /// B, the elements that admission assumed the buffer of each of these sensors to hold at least; 0 where it
    /// assumed nothing.
    pub buffer: u64,
}

/// What was said of an update.
#[derive(Clone, Debug)]
pub struct UpdateTerms {
    /// For people.
    pub name: String,
    /// The worst-case execution time for one element.
    pub wcet: Nanos,
}

/// A sensor of [`Terms::sensors`], by its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorIndex(pub usize);

/// An update of [`Terms::updates`], by its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpdateIndex(pub usize);

impl Terms {
    /// The name of a sensor, for people.
    #[must_use]
    pub fn sensor(&self, index: SensorIndex) -> &str {
        self.sensors
            .get(index.0)
            .map_or("?", |sensor| sensor.name.as_str())
    }

    /// The name of an update, for people.
    #[must_use]
    pub fn update(&self, index: UpdateIndex) -> &str {
        self.updates
            .get(index.0)
            .map_or("?", |update| update.name.as_str())
    }
}
