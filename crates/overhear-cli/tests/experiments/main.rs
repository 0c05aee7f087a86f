// SPDX-License-Identifier: MIT OR Apache-2.0
//! Experiments with samplers on the task set of [EPOS, table I]: `epos` compares the policies with
//! each other and with the paper, `anomalies` shows which faults the samples reveal.
//!
//! As tests they run for seconds, with everything real. `make experiment-epos` and `make
//! experiment-anomalies` set `OVERHEAR_EXPERIMENT_PAGE`, `_RUNS` and `_SECONDS`, run as long as
//! these say, and write their pages in docs/experiments.

mod anomalies;
mod anomalies_page;
mod epos;
mod epos_page;
mod paper;
mod partition;
mod policy;
mod prog_times;
mod statistics;
mod taskset;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One experiment at a time: each needs four CPUs.
fn cpu_lock() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of machine and build, for pages: a sentence if they disturb the figures.
fn conditions() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    let build = if cfg!(debug_assertions) {
        "an unoptimised build: the monitor takes several times as much CPU time as an optimised one"
    } else {
        "an optimised build"
    };
    format!("Load average {load} at the begin, of other programs; {build}.")
}

/// Extent of an experiment.
#[derive(Clone, Debug)]
struct Extent {
    /// Runs of each configuration.
    runs: u32,
    seconds: u32,
    /// State of machine and build at the begin.
    conditions: String,
    /// The page to write; a test writes none.
    page: Option<PathBuf>,
    /// Whether CPUs are taken away from all other programs.
    is_partitioned: bool,
}

impl Extent {
    /// The extent that the environment says, or the short one of a test.
    fn from_environment() -> Self {
        let text = |name: &str| std::env::var(format!("OVERHEAR_EXPERIMENT_{name}")).ok();
        let number = |name: &str, usual: u32| {
            text(name).map_or(usual, |it| it.parse().expect("a number of the experiment"))
        };
        let page = text("PAGE").map(PathBuf::from);
        let is_long = page.is_some();
        Self {
            runs: number("RUNS", if is_long { 10 } else { 2 }),
            seconds: number("SECONDS", if is_long { 30 } else { 2 }),
            is_partitioned: is_long && text("PARTITION").is_none_or(|it| it != "no"),
            conditions: conditions(),
            page,
        }
    }
}
