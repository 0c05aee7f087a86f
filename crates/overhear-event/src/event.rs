// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of events, and sets of them, as analyses require them.

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::kernel::is_probe;

/// The name of a kind of event: `kernel:sched_switch` for a kernel hook, `user:SENSOR` for the
/// sensors of that id in any task, `sampler:SENSOR` for sampled values. Files of older versions
/// have `clerk:SENSOR`, which is read as `sampler:SENSOR`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct EventName(String);

impl From<String> for EventName {
    fn from(name: String) -> Self {
        match name.strip_prefix("clerk:") {
            Some(sensor) => Self::sampler(sensor),
            None => Self(name),
        }
    }
}

impl From<EventName> for String {
    fn from(name: EventName) -> Self {
        name.0
    }
}

impl EventName {
    /// The event of a kernel hook, named after its tracepoint.
    #[must_use]
    pub fn kernel(hook: &str) -> Self {
        Self(alloc::format!("kernel:{hook}"))
    }

    /// The elements of the sensors with this id.
    #[must_use]
    pub fn user(sensor: &str) -> Self {
        Self(alloc::format!("user:{sensor}"))
    }

    /// The event of a program's sensor or of a probe, from the sensor's id or the event's name.
    /// Both kinds of elements belong to a thread. `None` for other events of the kernel, and for
    /// samplers.
    ///
    /// ```
    /// use overhear_event::EventName;
    ///
    /// assert_eq!(EventName::of_program("queue"), Some(EventName::user("queue")));
    /// let probe = EventName::kernel("probe/handle_request");
    /// assert_eq!(EventName::of_program("kernel:probe/handle_request"), Some(probe));
    /// assert_eq!(EventName::of_program("kernel:irq"), None);
    /// ```
    #[must_use]
    pub fn of_program(sensor: &str) -> Option<Self> {
        match sensor.split_once(':') {
            Some(("user", id)) => Some(Self::user(id)),
            Some(("kernel", probe)) if is_probe(probe) => Some(Self::kernel(probe)),
            Some(("kernel" | "sampler" | "clerk", _)) => None,
            _ => Some(Self::user(sensor)),
        }
    }

    /// The samples of a sampler's sensor.
    #[must_use]
    pub fn sampler(sensor: &str) -> Self {
        Self(alloc::format!("sampler:{sensor}"))
    }

    /// Whether it is the event of a probe, at a function or tracepoint that a user named
    /// ([`is_probe`]).
    #[must_use]
    pub fn is_of_probe(&self) -> bool {
        self.0.strip_prefix("kernel:").is_some_and(is_probe)
    }

    /// The name as in configuration files.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The events that an analysis requires.
pub type EventSet = BTreeSet<EventName>;
