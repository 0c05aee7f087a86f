// SPDX-License-Identifier: MIT OR Apache-2.0
//! What monitors need: which of the sensors that they may read they evaluate.
//!
//! Whoever attaches says what it needs. A directory in which somebody wishes that only what is needed is
//! observed switches off what nobody needs, for as long as that holds.

use overhear_event::{EventSet, StreamDescriptor};
use serde::{Deserialize, Serialize};

use crate::query::{Matcher, Query, QueryError};

/// What a monitor evaluates of the sensors that it attaches to, and whether others need be written.
///
/// ```
/// use overhear_directory::{Needs, Query};
/// use overhear_event::EventName;
///
/// // What these two evaluations look at, and nothing else while somebody is attached so.
/// let events = [EventName::user("request")].into_iter().collect();
/// let needs = Needs::events(events).and(Query::parse("server/*")?).only();
/// # let _ = needs;
/// # Ok::<(), overhear_directory::QueryError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// All that it attaches to; else what follows.
    all: bool,
    #[serde(default, skip_serializing_if = "EventSet::is_empty")]
    events: EventSet,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sensors: Vec<Query>,
    #[serde(default)]
    only: bool,
}

impl Default for Needs {
    fn default() -> Self {
        Self::all()
    }
}

impl Needs {
    /// All sensors that it attaches to.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            all: true,
            events: EventSet::new(),
            sensors: Vec::new(),
            only: false,
        }
    }

    /// The sensors of these events: what metrics and constraints require.
    #[must_use]
    pub const fn events(events: EventSet) -> Self {
        Self {
            all: false,
            events,
            sensors: Vec::new(),
            only: false,
        }
    }

    /// These sensors as well.
    #[must_use]
    pub fn and(mut self, sensors: Query) -> Self {
        self.sensors.push(sensors);
        self
    }

    /// Sensors that no monitor needs are switched off as long as this one is attached: those that it may
    /// switch, and that nobody has switched on himself meanwhile. Afterwards they are as they were.
    #[must_use]
    pub const fn only(mut self) -> Self {
        self.only = true;
        self
    }

    /// Characters of all patterns.
    pub(crate) fn pattern_characters(&self) -> u64 {
        self.sensors.iter().map(Query::pattern_characters).sum()
    }

    /// What decides. It may come from another process, so it is checked here.
    pub(crate) fn compile(&self) -> Result<Needed, QueryError> {
        let sensors = self.sensors.iter().map(Query::compile);
        Ok(Needed {
            all: self.all,
            events: self.events.clone(),
            sensors: sensors.collect::<Result<_, _>>()?,
            only: self.only,
        })
    }
}

/// Needs, ready to decide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needed {
    all: bool,
    events: EventSet,
    sensors: Vec<Matcher>,
    /// Whether what nobody needs is to be switched off.
    pub(crate) only: bool,
}

impl Needed {
    pub(crate) fn all() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// Upper bound of the memory that it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // A name with the piece of memory that it lies in, and its place in a set.
        let events = self
            .events
            .iter()
            .map(|event| 160 + 2 * event.to_string().len() as u64);
        let sensors = self.sensors.iter().map(Matcher::memory_bytes);
        events.sum::<u64>() + sensors.sum::<u64>()
    }

    /// Upper bound of the work of one decision, in parts of patterns.
    pub(crate) fn cost(&self) -> u32 {
        // Comparisons of names in a set.
        let events = if self.events.is_empty() { 0 } else { 16 };
        events + self.sensors.iter().map(Matcher::cost).sum::<u32>()
    }

    pub(crate) fn matches(&self, sensor: &StreamDescriptor) -> bool {
        self.all
            || (!self.events.is_empty() && self.events.contains(&sensor.event()))
            || self.sensors.iter().any(|matcher| matcher.matches(sensor))
    }
}
