// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors that a monitor needs: those that it evaluates, of the ones that it attaches to.
//!
//! A monitor states its needs when it attaches. If a monitor, or the directory's configuration,
//! requests it, the directory switches off all sensors that no monitor needs.

use overhear_event::{EventSet, StreamDescriptor};
use serde::{Deserialize, Serialize};

use crate::query::{Matcher, Query, QueryError};

/// The sensors that a monitor evaluates, of those that it attaches to, and whether all unneeded
/// ones are to be switched off.
///
/// ```
/// use overhear_directory::{Needs, Query};
/// use overhear_event::EventName;
///
/// // The sensors of two analyses. While the monitor is attached, unneeded sensors are off.
/// let events = [EventName::user("request")].into_iter().collect();
/// let needs = Needs::events(events).and(Query::parse("server/*")?).disable_unused();
/// # let _ = needs;
/// # Ok::<(), overhear_directory::QueryError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Whether all sensors are needed. If not, `events` and `sensors` name those that are.
    all: bool,
    #[serde(default, skip_serializing_if = "EventSet::is_empty")]
    events: EventSet,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sensors: Vec<Query>,
    #[serde(default)]
    only: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    yields: bool,
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
            yields: false,
        }
    }

    /// The sensors of these events, as metrics and constraints require them.
    #[must_use]
    pub const fn events(events: EventSet) -> Self {
        Self {
            all: false,
            events,
            sensors: Vec::new(),
            only: false,
            yields: false,
        }
    }

    /// These sensors as well.
    #[must_use]
    pub fn and(mut self, sensors: Query) -> Self {
        self.sensors.push(sensors);
        self
    }

    /// Requests that the directory disables all sensors that no monitor needs, as long as this
    /// monitor is attached. It concerns sensors that this monitor may switch, and that no user has
    /// switched on explicitly. When the monitor detaches, they are switched on again.
    #[must_use]
    pub const fn disable_unused(mut self) -> Self {
        self.only = true;
        self
    }

    /// Lets the budgets of other monitors switch the needed sensors off. Without it this monitor
    /// gets every element of them, whatever another one's budget is. A monitor with a budget of its
    /// own yields, and so does one that only shows what is written.
    #[must_use]
    pub const fn yield_to_budgets(mut self) -> Self {
        self.yields = true;
        self
    }

    /// Characters of all patterns.
    pub(crate) fn pattern_characters(&self) -> u64 {
        self.sensors.iter().map(Query::pattern_characters).sum()
    }

    /// Compiles the patterns. Needs may come from another process, so they are checked here.
    pub(crate) fn compile(&self) -> Result<Needed, QueryError> {
        let sensors = self.sensors.iter().map(Query::compile);
        Ok(Needed {
            all: self.all,
            events: self.events.clone(),
            sensors: sensors.collect::<Result<_, _>>()?,
            only: self.only,
            yields: self.yields,
        })
    }
}

/// Compiled needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needed {
    all: bool,
    events: EventSet,
    sensors: Vec<Matcher>,
    /// Whether unneeded sensors are to be switched off.
    pub(crate) only: bool,
    /// Whether budgets of other monitors may switch the needed sensors off.
    pub(crate) yields: bool,
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
        // A name with its allocation and its entry in a set.
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
