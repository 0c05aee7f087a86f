// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of reactions, also as JSON.

use serde::{Deserialize, Serialize};

/// The report of all reactions of a run (`docs/reactions.md`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReactionsReport {
    /// Number of decisions that were replaced by newer ones because they could not be carried out
    /// fast enough.
    pub lost: u64,
    /// One per entry, in the order of the file.
    pub reactions: Vec<ReactionReport>,
}

/// The report of one reaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReactionReport {
    /// Its name.
    pub name: String,
    /// Its triggers.
    pub on: Vec<String>,
    /// Number of decisions whose actions all succeeded.
    pub carried_out: u64,
    /// Number of decisions with a failed action.
    pub failed: u64,
    /// Time of the first decision by `CLOCK_MONOTONIC`; null without one.
    pub first_ns: Option<u64>,
    /// Time of the last decision.
    pub last_ns: Option<u64>,
    /// Message about the first decision.
    pub first: Option<String>,
    /// The observed value of the first decision: in the unit of its field, in nanoseconds, or a
    /// count; null without one.
    #[serde(default)]
    pub first_observed: Option<f64>,
    /// The bound that it violates, in the same unit; null without one.
    #[serde(default)]
    pub first_bound: Option<f64>,
    /// Message about its first failure.
    pub failure: Option<String>,
}

impl ReactionsReport {
    /// The report if the thread of the reactions has failed.
    pub fn failed() -> Self {
        let failure = "the thread that carries out reactions has failed".to_string();
        let reaction = ReactionReport {
            failed: 1,
            failure: Some(failure),
            ..ReactionReport::default()
        };
        Self {
            lost: 0,
            reactions: vec![reaction],
        }
    }

    /// Whether all decisions were carried out.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.reactions.iter().all(|reaction| reaction.failed == 0)
    }
}
