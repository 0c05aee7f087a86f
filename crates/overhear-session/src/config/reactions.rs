// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[reaction]]`: what is done about what a monitor finds.

use std::path::PathBuf;

use overhear_monitor::reaction::Trigger;
use schemars::JsonSchema;
use serde::Deserialize;

/// `[[reaction]]`: what calls for it, and what is done; see docs/reactions.md.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReactionConfig {
    /// Its name, in reports.
    pub name: String,
    /// What calls for it.
    pub on: Vec<TriggerConfig>,
    /// Only where it is about one of these: names of updates, ids of sensors, names of constraints.
    #[serde(default)]
    pub of: Option<Vec<String>>,
    /// Only from this count on: of missed elements, else of occurrences. 1 by default.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub after: Option<u64>,
    /// Only the first time.
    #[serde(default)]
    pub once: bool,
    /// Appends a line to this file, which lies below this one; `-` is standard error.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// Runs a program: its name and its arguments. What happened stands in its environment.
    #[serde(default)]
    pub exec: Option<Vec<String>>,
    /// Sends this signal to the program that is observed: `USR1`, `TERM`.
    #[serde(default)]
    pub signal: Option<String>,
    /// Calls a function of a shared object, `FILE.so:FUNCTION`; the file lies below this one.
    #[serde(default)]
    pub function: Option<String>,
    /// Writes an element to a sensor of this id, for other monitors.
    #[serde(default)]
    pub sensor: Option<String>,
}

/// What calls for a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerConfig {
    /// An update took longer for an element than its `wcet`.
    Overrun,
    /// A sensor was faster than its period, distance and jitter allow.
    Stream,
    /// Elements of a sensor were missed.
    Missed,
    /// An instance offends against a constraint.
    Violated,
    /// A constraint that is not violated cannot be found to hold any more.
    Inconclusive,
    /// An update of a plug-in asks for it.
    Update,
}

impl TriggerConfig {
    pub(crate) const fn trigger(self) -> Trigger {
        match self {
            Self::Overrun => Trigger::Overrun,
            Self::Stream => Trigger::Stream,
            Self::Missed => Trigger::Missed,
            Self::Violated => Trigger::Violated,
            Self::Inconclusive => Trigger::Inconclusive,
            Self::Update => Trigger::Update,
        }
    }
}
