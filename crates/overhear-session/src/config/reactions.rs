// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[reaction]]`: actions on occurrences.

use std::path::PathBuf;

use overhear_monitor::reaction::Trigger;
use schemars::JsonSchema;
use serde::Deserialize;

/// `[[reaction]]`: its triggers and its actions; see docs/reactions.md.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReactionConfig {
    /// Its name, in reports.
    pub name: String,
    /// Its triggers.
    pub on: Vec<TriggerConfig>,
    /// Restricts it to these updates, sensors and constraints, by name or id.
    #[serde(default)]
    pub of: Option<Vec<String>>,
    /// The count from which it is called for: of missed elements, or of occurrences. 1 by default.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub after: Option<u64>,
    /// Whether it is carried out at most once.
    #[serde(default)]
    pub once: bool,
    /// Appends a line to this file, relative to this file; `-` is standard error.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// Runs a program: its name and its arguments. Its environment describes the occurrence.
    #[serde(default)]
    pub exec: Option<Vec<String>>,
    /// Sends this signal to the observed program: `USR1`, `TERM`.
    #[serde(default)]
    pub signal: Option<String>,
    /// Calls a function of a shared object, `FILE.so:FUNCTION`, relative to this file.
    #[serde(default)]
    pub function: Option<String>,
    /// Writes an element to a sensor of this id, for other monitors.
    #[serde(default)]
    pub sensor: Option<String>,
}

/// A trigger of a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerConfig {
    /// An update took longer for an element than its `wcet`.
    Overrun,
    /// A sensor exceeded its period, distance and jitter.
    Stream,
    /// Elements of a sensor were missed.
    Missed,
    /// A constraint has an offence.
    Violated,
    /// A constraint that is not violated can no longer be found to hold.
    Inconclusive,
    /// An update of a plug-in requests it.
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
