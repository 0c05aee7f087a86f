// SPDX-License-Identifier: MIT OR Apache-2.0
//! A row of the experiment: one workload at one target.

use serde::{Deserialize, Serialize};

use crate::interval::Interval;
use crate::process::{Observation, Process, Workload};

/// CPU time of one turn of a process.
const TURN_NS: f64 = 100e6;
/// Turns of each process of a group.
const TURNS: usize = 40;
/// The fully observed process has one of this number of turns: its figure is an illustration.
const TURNS_PER_FULL: usize = 4;
const FULL: usize = 2;
/// Steps that calibrate the length of a turn.
const TRIAL: u64 = 20_000;

/// What a row measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    /// In per cent.
    pub(crate) target: f64,
    /// Everything would cost less than the target.
    pub(crate) is_above_full: bool,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    /// In per cent.
    pub(crate) target: f64,
    pub(crate) is_above_full: bool,
    /// CPU time over plain CPU time, less one.
    pub(crate) observed: Interval,
    pub(crate) full: Interval,
    /// Observed overhead by the reports.
    pub(crate) estimated: Interval,
    /// Share of writes that were not skipped.
    pub(crate) share_on: Interval,
    /// Time of a step without sensor in ns.
    pub(crate) step_ns: f64,
    pub(crate) groups: usize,
}

/// Whether the target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    NotMet,
    Inconclusive,
}

impl Row {
    /// Runs groups of three processes: plain, with a budget, and with everything observed. In each
    /// turn all run the same steps at the same time, begun in random order: what changes the speed
    /// of the core for some milliseconds changes that of all.
    pub(crate) fn measure(case: Case, groups: usize) -> Self {
        let (mut observed, mut full) = (Vec::new(), Vec::new());
        let (mut estimated, mut share_on, mut step_ns) = (Vec::new(), Vec::new(), 0.0);
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..groups {
            let mut processes = [
                Observation::Plain,
                Observation::Budget(case.target),
                Observation::Full,
            ]
            .map(|observation| Process::start(case.workload, observation));
            let _ = processes[0].run(TRIAL);
            let steps = (TRIAL as f64 * TURN_NS / processes[0].run(TRIAL)) as u64;
            let mut cpu_ns = [0.0; 3];
            for turn in 0..TURNS {
                let is_in_turn = |at: &usize| *at != FULL || turn % TURNS_PER_FULL == 0;
                let order = order(&mut random).into_iter().filter(is_in_turn);
                order.clone().for_each(|at| processes[at].begin(steps));
                order.for_each(|at| cpu_ns[at] += processes[at].finish());
            }
            let [_, budget, _] = processes.map(Process::end);
            let [plain_ns, budget_ns, full_ns] = cpu_ns;
            observed.push(budget_ns / plain_ns - 1.0);
            full.push(full_ns * TURNS_PER_FULL as f64 / plain_ns - 1.0);
            estimated.push(budget["observed"].as_f64().expect("an estimate"));
            share_on.push(share_of_written(&budget));
            step_ns += plain_ns / (steps as f64 * TURNS as f64) / groups as f64;
        }
        Self {
            workload: case.workload.name.to_string(),
            target: case.target,
            is_above_full: case.is_above_full,
            observed: Interval::of(&observed),
            full: Interval::of(&full),
            estimated: Interval::of(&estimated),
            share_on: Interval::of(&share_on),
            step_ns,
            groups,
        }
    }

    /// Largest permitted distance from the target, as a fraction.
    pub(crate) fn permitted(&self) -> f64 {
        match self.target {
            target if target <= 0.0 => 0.002,
            target if target >= 100.0 => 0.03,
            _ => 0.01,
        }
    }

    /// Where everything costs less than the target, at least this share of writes must have been
    /// made: all but the intervals that are off to learn prices.
    const LEAST_SHARE: f64 = 0.9;

    /// Whether the target is met.
    pub(crate) fn verdict(&self) -> Verdict {
        let target = self.target / 100.0;
        let most = target + self.permitted();
        let least = match self.is_above_full || self.target <= 0.0 {
            true => f64::NEG_INFINITY,
            false => target - self.permitted(),
        };
        let Interval { mean, half } = self.observed;
        if self.is_above_full && self.share_on.mean < Self::LEAST_SHARE
            || mean - half > most
            || mean + half < least
        {
            Verdict::NotMet
        } else if self.observed.low() >= least && self.observed.high() <= most {
            Verdict::Met
        } else {
            Verdict::Inconclusive
        }
    }
}

/// A random order of three [Marsaglia-2003].
fn order(random: &mut u64) -> [usize; 3] {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ][(*random >> 32) as usize % 6]
}

fn share_of_written(budget: &serde_json::Value) -> f64 {
    let sensors = budget["sensors"].as_array().expect("sensors");
    let sum = |key: &str| -> f64 { sensors.iter().filter_map(|it| it[key].as_f64()).sum() };
    let (written, skipped) = (sum("written"), sum("skipped"));
    written / (written + skipped)
}
