// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows that were measured so far.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::idleness::Idleness;
use crate::row::Row;

/// Results of one or more runs; the newest of each row.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
    pub(crate) idleness: Option<Idleness>,
}

impl Results {
    /// Those that are kept; none if there are none, or of another version of this program.
    pub(crate) fn load() -> Self {
        let text = std::fs::read(path()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub(crate) fn keep(&mut self, row: Row) {
        let is_other = |it: &Row| {
            it.workload != row.workload
                || it.target != row.target
                || it.is_above_full != row.is_above_full
        };
        self.rows.retain(is_other);
        self.rows.push(row);
        self.save();
    }

    pub(crate) fn save(&self) {
        let text = serde_json::to_vec_pretty(self).expect("results are JSON");
        std::fs::write(path(), text).expect("the target folder can be written");
    }
}

/// In the target folder: `target/PROFILE/deps/THIS` is three folders below.
fn path() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(3).expect("cargo's folders");
    target.join("budget-experiment.json")
}
