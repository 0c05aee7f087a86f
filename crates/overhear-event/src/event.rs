// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of events, and sets of them: what an evaluation asks the directory for.

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

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

    /// The elements of a sensor of a program that is named by its id, or as this event; `None` if it names an event of
    /// the kernel or a clerk.
    #[must_use]
    pub fn of_program(sensor: &str) -> Option<Self> {
        match sensor.split_once(':') {
            Some(("user", id)) => Some(Self::user(id)),
            Some(("kernel" | "clerk", _)) => None,
            _ => Some(Self::user(sensor)),
        }
    }

    /// The samples a clerk takes.
    #[must_use]
    pub fn clerk(sensor: &str) -> Self {
        Self(alloc::format!("clerk:{sensor}"))
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
