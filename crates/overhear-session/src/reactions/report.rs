// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of reactions, for people and as JSON.

use serde::{Deserialize, Serialize};

/// What came of all reactions of a run (`docs/reactions.md`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReactionsReport {
    /// Decisions that came faster than they could be carried out, and were replaced by newer ones.
    pub lost: u64,
    /// One per entry, in the order of the file.
    pub reactions: Vec<ReactionReport>,
}

/// What came of a reaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReactionReport {
    /// Its name.
    pub name: String,
    /// What calls for it.
    pub on: Vec<String>,
    /// How often it was carried out, with all that it does.
    pub carried_out: u64,
    /// How often something of it failed.
    pub failed: u64,
    /// When it was first called for, on `CLOCK_MONOTONIC`; null if never.
    pub first_ns: Option<u64>,
    /// When it was last called for.
    pub last_ns: Option<u64>,
    /// What happened when it was first called for.
    pub first: Option<String>,
    /// What was observed then: a value in the unit of its field, nanoseconds, or a count; null if
    /// nothing was.
    #[serde(default)]
    pub first_observed: Option<f64>,
    /// The bound that it offends against, in the same unit; null if there is none.
    #[serde(default)]
    pub first_bound: Option<f64>,
    /// Why it failed first.
    pub failure: Option<String>,
}

impl ReactionsReport {
    /// Nobody carried out anything, as far as is known.
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

    /// Whether everything that was decided was carried out.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.reactions.iter().all(|reaction| reaction.failed == 0)
    }
}
