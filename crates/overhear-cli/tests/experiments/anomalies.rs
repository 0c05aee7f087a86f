// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults in the task set, and what the detector of anomalous jobs makes of the samples: under each
//! policy, which faults it finds, when, and by which quantity.

use std::collections::BTreeMap;

use overhear_metrics::FIRST_JUDGED;
use serde_json::Value;

use crate::anomalies_page;
use crate::policy::{observe, samples, Observed, Policy};
use crate::statistics::Random;
use crate::taskset::{Fault, TaskSet};
use crate::{cpu_lock, Extent};

/// The faults, and the task that each hurts.
pub(crate) const FAULTS: [(&str, &str); 3] = [("slow", "T3"), ("thrash", "T1"), ("starve", "T3")];
/// Rounds with a fault.
pub(crate) const FAULTY_ROUNDS: u32 = 4;
/// Rounds after it, in which alarms are false ones.
const ROUNDS_AFTER: u32 = 20;

/// What one run shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Finding {
    /// Time from the release of the first faulty job to the end of the first anomalous sample of
    /// the hurt task; `None` if the fault was not found.
    pub(crate) delay_ms: Option<f64>,
    /// The farthest quantity of that sample.
    pub(crate) quantity: String,
    /// Anomalies of any task outside the fault, and number of judged samples.
    pub(crate) false_alarms: u64,
    pub(crate) judged: u64,
    pub(crate) samples: u64,
    /// CPU time of the monitor over that of the tasks, in per cent.
    pub(crate) monitor_percent: f64,
}

impl Finding {
    fn of(observed: &Observed, hurt: &str, period_ms: u32) -> Self {
        let jobs = &observed.run.jobs[hurt];
        let mut faulty = jobs.iter().filter(|job| job.is_faulty);
        let first = faulty.next().expect("a run has a fault");
        let last = faulty.next_back().unwrap_or(first);
        // A job that was disturbed may end in the next period, and so does the sample of its end.
        let end_ns = last.end_ns + 2 * u64::from(period_ms) * 1_000_000;
        let mut finding = Self {
            samples: samples(&observed.report).0,
            monitor_percent: {
                let tasks: f64 = (1..=3).map(|cpu| observed.run.cpu_seconds(cpu)).sum();
                observed.monitor_seconds / tasks * 100.0
            },
            ..Self::default()
        };
        let samplers = observed.report["samplers"].as_array();
        for sampler in samplers.into_iter().flatten() {
            for task in sampler["tasks"].as_array().into_iter().flatten() {
                finding.judged += task["judged"]["judged"].as_u64().unwrap_or(0);
            }
            for anomaly in sampler["anomalies"].as_array().into_iter().flatten() {
                finding.count(anomaly, hurt, first.release_ns..=end_ns);
            }
        }
        finding
    }

    fn count(&mut self, anomaly: &Value, hurt: &str, fault: std::ops::RangeInclusive<u64>) {
        let number = |member: &str| anomaly[member].as_u64().unwrap_or(0);
        let (first, last) = (number("end_ns"), number("last_end_ns"));
        if last < *fault.start() || first > *fault.end() {
            self.false_alarms += 1;
        } else if anomaly["comm"] == hurt || anomaly["tid"] == 0 {
            // A periodic sample is one of the whole process.
            // The anomaly may have begun before the fault.
            let delay_ms = first.saturating_sub(*fault.start()) as f64 / 1e6;
            if self.delay_ms.is_none_or(|known| delay_ms < known) {
                self.delay_ms = Some(delay_ms);
                let quantity = anomaly["deviations"][0]["name"].as_str();
                quantity.unwrap_or("nothing").clone_into(&mut self.quantity);
            }
        }
    }
}

/// All findings, by fault and policy.
pub(crate) struct Results {
    pub(crate) extent: Extent,
    pub(crate) period_ms: u32,
    pub(crate) has_counters: bool,
    pub(crate) findings: BTreeMap<(usize, Policy), Vec<Finding>>,
}

/// A run with a fault after so many rounds that jobs are judged.
fn faulty_run(
    tasks: &TaskSet,
    policy: Policy,
    (kind, hurt): (&'static str, &str),
    usual_rounds: u32,
) -> Result<Finding, String> {
    let fault = Fault {
        kind,
        round: usual_rounds,
        rounds: FAULTY_ROUNDS,
    };
    let rounds = usual_rounds + FAULTY_ROUNDS + ROUNDS_AFTER;
    let milliseconds = rounds * tasks.period_ms;
    let observed = observe(tasks, policy, milliseconds, Some(fault), false)?;
    Ok(Finding::of(&observed, hurt, tasks.period_ms))
}

impl Results {
    fn measure(extent: Extent, period_ms: u32) -> Result<Self, String> {
        let tasks = TaskSet::prepare(None, period_ms)?;
        let usual_rounds = (extent.seconds * 1000 / period_ms).max(FIRST_JUDGED as u32 + 10);
        let mut random = Random::new();
        let mut findings = BTreeMap::<_, Vec<Finding>>::new();
        for round in 0..extent.runs {
            let faults = 0..FAULTS.len();
            let pairs = faults.flat_map(|fault| Policy::SAMPLING.map(|policy| (fault, policy)));
            let mut order: Vec<_> = pairs.collect();
            random.shuffle(&mut order);
            for (fault, policy) in order {
                let finding = faulty_run(&tasks, policy, FAULTS[fault], usual_rounds)?;
                findings.entry((fault, policy)).or_default().push(finding);
            }
            println!("round {} of {}", round + 1, extent.runs);
        }
        Ok(Self {
            period_ms,
            has_counters: tasks.has_counters,
            extent,
            findings,
        })
    }
}

/// Job-based samples reveal a slow path by CPU time and a starved thread by waiting. With a page in
/// the environment, the whole experiment.
#[test]
fn faults_are_found_in_samples_of_jobs() {
    /// Other programs may disturb the jobs before the fault, so that the fault is usual.
    const TRIES: usize = 3;
    let _cpus = cpu_lock();
    let extent = Extent::from_environment();
    if let Some(page) = &extent.page {
        let results = Results::measure(extent.clone(), 50);
        let results = results.unwrap_or_else(|why| panic!("{why}"));
        std::fs::write(page, anomalies_page::render(&results)).unwrap();
        return;
    }
    let tasks = match TaskSet::prepare(None, 20) {
        Ok(tasks) => tasks,
        Err(why) => return println!("skipped: {why}"),
    };
    for (kind, hurt) in [FAULTS[0], FAULTS[2]] {
        let tries = (0..TRIES).map(|_| {
            let rounds = FIRST_JUDGED as u32 + 20;
            let finding = faulty_run(&tasks, Policy::Job, (kind, hurt), rounds).unwrap();
            println!("{kind}: {finding:?}");
            assert!(finding.judged > 0);
            finding.delay_ms.is_some()
        });
        assert!(tries.into_iter().any(|is_found| is_found), "{kind}");
    }
}

/// The page has a row for each fault and policy, also where nothing was found.
#[test]
fn page_of_faults_shows_each_policy() {
    let mut results = Results {
        extent: Extent {
            runs: 2,
            seconds: 8,
            conditions: String::new(),
            page: None,
            is_partitioned: false,
        },
        period_ms: 50,
        has_counters: false,
        findings: BTreeMap::new(),
    };
    let found = Finding {
        delay_ms: Some(20.5),
        quantity: "cpu_time".to_owned(),
        judged: 1000,
        false_alarms: 3,
        ..Finding::default()
    };
    for fault in 0..FAULTS.len() {
        for policy in Policy::SAMPLING {
            let runs = vec![found.clone(), Finding::default()];
            results.findings.insert((fault, policy), runs);
        }
    }
    let page = anomalies_page::render(&results);
    let row = "| slow | Job-based | 1 of 2 | 20.5 | `cpu_time` | 0.30 % |";
    assert!(page.contains(row), "{page}");
}
