// SPDX-License-Identifier: MIT OR Apache-2.0
//! A burst after a minute without load.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::{Observation, Process, Workload};

const IDLE: Duration = Duration::from_secs(60);
/// CPU time of the burst.
const BURST_NS: f64 = 4e9;
/// CPU time before.
const BEFORE_NS: f64 = 3e9;
const TRIAL: u64 = 100_000;

/// What the report contains about the burst.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Idleness {
    /// In per cent.
    pub(crate) target: f64,
    /// Overhead of the first window of the burst.
    pub(crate) first_window: f64,
    /// The largest one of the run.
    pub(crate) worst_window: f64,
}

impl Idleness {
    pub(crate) fn measure(workload: Workload, target: f64) -> Self {
        let mut process = Process::start(workload, Observation::Budget(target));
        let _ = process.run(TRIAL);
        let step_ns = process.run(TRIAL) / TRIAL as f64;
        process.run((BEFORE_NS / step_ns) as u64);
        std::thread::sleep(IDLE);
        process.run((BURST_NS / step_ns) as u64);
        let budget = process.end();
        let course = budget["course"].as_array().expect("a course");
        let number = |point: &serde_json::Value, key: &str| point[key].as_f64().expect("a number");
        // The window that contains the idleness is the longest one. Its CPU time is that of the
        // burst, but for the rest of the window before.
        let length = |at: &usize| number(&course[*at], "to_ns") - number(&course[*at], "from_ns");
        let longest = (0..course.len()).max_by(|one, other| length(one).total_cmp(&length(other)));
        let longest = longest.expect("a window");
        let worst = course.iter().map(|point| number(point, "worst_window"));
        Self {
            target,
            first_window: number(&course[longest], "overhead"),
            worst_window: worst.fold(0.0, f64::max),
        }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.first_window > 0.0 && self.worst_window <= 2.0 * self.target / 100.0
    }
}
