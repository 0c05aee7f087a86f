// SPDX-License-Identifier: MIT OR Apache-2.0
//! The case study of [EPOS, section IV] on Linux: every policy and the baseline, in rounds of
//! random order, so that each round is a pair of a policy and a baseline.

use std::collections::BTreeMap;

use crate::epos_page;
use crate::partition::Partitions;
use crate::policy::{observe, samples, Observed, Policy};
use crate::prog_times::ProgTimes;
use crate::statistics::{Mean, Random};
use crate::taskset::{Job, TaskSet, PERIOD_MS, TASKS};
use crate::{cpu_lock, Extent};

/// All runs of an experiment.
pub(crate) struct Results {
    pub(crate) extent: Extent,
    pub(crate) is_deadline: bool,
    pub(crate) has_counters: bool,
    /// Why the tasks are not in partitions of their own.
    pub(crate) not_partitioned: Option<String>,
    /// Of each policy, in the order of the rounds.
    pub(crate) runs: BTreeMap<Policy, Vec<Observed>>,
    /// Run times of the programs that take samples, from runs of their own.
    pub(crate) programs: BTreeMap<Policy, ProgTimes>,
    /// CPU time of the monitor for a periodic sample in us, of each round: the difference to a run
    /// with hardly any samples.
    pub(crate) periodic_us: Vec<f64>,
}

impl Results {
    /// Runs everything; `Err` has the reason why the task set cannot run here.
    pub(crate) fn measure(extent: Extent) -> Result<Self, String> {
        let mut not_partitioned = None;
        let partitions = match extent.is_partitioned.then(Partitions::new) {
            None => {
                not_partitioned = Some("the CPUs were not to be taken from other programs".into());
                None
            }
            Some(Ok(partitions)) => Some(partitions),
            Some(Err(why)) => {
                not_partitioned = Some(why);
                None
            }
        };
        let tasks = TaskSet::prepare(partitions, PERIOD_MS)?;
        let mut random = Random::new();
        let mut runs = BTreeMap::<Policy, Vec<Observed>>::new();
        for round in 0..extent.runs {
            let mut order = Policy::ALL;
            random.shuffle(&mut order);
            for policy in order {
                let observed = observe(&tasks, policy, extent.seconds * 1000, None, false)?;
                runs.entry(policy).or_default().push(observed);
            }
            println!("round {} of {}", round + 1, extent.runs);
        }
        let mut periodic_us = Vec::new();
        for with in &runs[&Policy::Periodic] {
            let seldom = observe(&tasks, Policy::Seldom, extent.seconds * 1000, None, false)?;
            let more = samples(&with.report).0 - samples(&seldom.report).0;
            let seconds = with.monitor_seconds - seldom.monitor_seconds;
            periodic_us.push(seconds * 1e6 / more as f64);
        }
        let mut programs = BTreeMap::new();
        for policy in [Policy::Flow, Policy::Job] {
            let watched = observe(&tasks, policy, extent.seconds * 1000, None, true)?;
            programs.extend(watched.programs.map(|times| (policy, times)));
        }
        Ok(Self {
            is_deadline: tasks.is_deadline(),
            has_counters: tasks.has_counters,
            extent,
            not_partitioned,
            runs,
            programs,
            periodic_us,
        })
    }

    /// A value of each run of a policy.
    pub(crate) fn each(&self, policy: Policy, of: impl Fn(&Observed) -> f64) -> Vec<f64> {
        self.runs[&policy].iter().map(of).collect()
    }

    /// The execution times of all jobs of a task under a policy, in ns.
    pub(crate) fn execution_times(&self, policy: Policy, task: &str) -> Vec<f64> {
        let runs = self.runs[&policy].iter();
        let jobs = runs.flat_map(|observed| observed.run.jobs.get(task).into_iter().flatten());
        jobs.map(|job| job.cpu_ns).collect()
    }

    /// The overhead of a policy on tasks in per cent: in each round the quotient of the means with
    /// and without the policy. `None` without a value.
    pub(crate) fn paired(
        &self,
        policy: Policy,
        tasks: &[&str],
        value: impl Fn(&Job) -> Option<f64>,
    ) -> Option<Mean> {
        let rounds = self.runs[&policy].iter().zip(&self.runs[&Policy::Baseline]);
        let overheads = rounds.map(|(with, without)| {
            let of = |observed: &Observed| -> Option<f64> {
                tasks
                    .iter()
                    .map(|task| observed.run.mean(task, &value))
                    .sum()
            };
            Some((of(with)? / of(without)? - 1.0) * 100.0)
        });
        let overheads: Option<Vec<f64>> = overheads.collect();
        Some(overheads?.into_iter().collect())
    }
}

/// In a few seconds: every policy delivers the samples that it must, and the page has all tables.
/// With a page in the environment, the whole experiment.
#[test]
fn policies_are_compared_on_the_task_set() {
    let _cpus = cpu_lock();
    let extent = Extent::from_environment();
    let results = match Results::measure(extent.clone()) {
        Ok(results) => results,
        Err(why) => return println!("skipped: {why}"),
    };
    let rounds = u64::from(extent.seconds * 1000 / PERIOD_MS);
    for policy in Policy::ALL {
        for observed in &results.runs[&policy] {
            for task in TASKS {
                assert_eq!(observed.run.jobs[task].len() as u64, rounds, "{task}");
            }
        }
    }
    for policy in Policy::SAMPLING {
        for observed in &results.runs[&policy] {
            let (taken, missed) = samples(&observed.report);
            if policy == Policy::Periodic {
                // Beside load the monitor wakes late, and counts the periods that have passed.
                let periods = u64::from(extent.seconds) * 100;
                assert!(taken > 0 && taken + missed >= periods, "{taken}, {missed}");
                continue;
            }
            assert_eq!(missed, 0, "{policy:?}: {}", observed.report["samplers"]);
            // The last job of a task ends with its thread.
            let least = (rounds - 1) * TASKS.len() as u64;
            assert!(taken >= least, "{policy:?}: {taken} of {least}");
        }
    }
    let page = epos_page::render(&results);
    for number in ["II", "III", "IV", "V", "VI", "VII", "VIII"] {
        assert!(page.contains(&format!("## Table {number}:")), "{page}");
    }
    assert!(!page.contains("NaN"), "{page}");
    if let Some(file) = &extent.page {
        std::fs::write(file, page).unwrap();
    }
}
