// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of events, and sets of them: what an evaluation asks the directory for.

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::kernel::is_probe;

/// The name of a kind of event: `kernel:sched_switch` for a kernel hook, `user:SENSOR` for the
/// sensors of that id in any task, `clerk:SENSOR` for sampled values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventName(String);

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

    /// The elements of a sensor of a program that is named by its id, or as this event, or of a probe, named as its
    /// event: both belong to a thread. `None` if it names another event of the kernel or a clerk.
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
            Some(("kernel" | "clerk", _)) => None,
            _ => Some(Self::user(sensor)),
        }
    }

    /// The samples a clerk takes.
    #[must_use]
    pub fn clerk(sensor: &str) -> Self {
        Self(alloc::format!("clerk:{sensor}"))
    }

    /// Whether it is the event of a probe: a place that a user has named ([`is_probe`]).
    #[must_use]
    pub fn is_of_probe(&self) -> bool {
        self.0.strip_prefix("kernel:").is_some_and(is_probe)
    }

    /// The name as it is written in configuration files.
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

/// The events that an evaluation requires.
pub type EventSet = BTreeSet<EventName>;
