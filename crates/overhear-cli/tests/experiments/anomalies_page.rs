// SPDX-License-Identifier: MIT OR Apache-2.0
//! docs/experiments/anomalies.md: which faults the samples of each policy reveal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use overhear_metrics::FIRST_JUDGED;

use crate::anomalies::{Results, FAULTS, FAULTY_ROUNDS};
use crate::policy::{quantities, words, Policy};

pub(crate) fn render(results: &Results) -> String {
    let mut page = String::from(
        "# Experiment: faults in samples\n\n\
         `make experiment-anomalies RUNS=10 SECONDS=8` measures this page. The task set of the [case study of EPOS](epos.md) runs with jobs that\n\
         are shorter in proportion, and one fault is injected after some seconds. The detector of anomalous [samples](../samples.md) judges every\n\
         policy; it was not told when and what.\n\n",
    );
    let _ = writeln!(
        page,
        "- Runs: {} for each row, in random order; period {} ms; the fault begins after {} s and lasts {FAULTY_ROUNDS} periods. Job {FIRST_JUDGED} of a\n  \
         thread is the first that is judged.\n\
         - Samples: `{}`. {}\n\
         - *found*: runs with an anomaly of the hurt task during the fault; periodic samples are of the whole process. *delay*: median time from the release of the first faulty job to\n  \
         the end of the first anomalous sample. A sample that tells of a job exists only when the job has ended. *by*: the farthest quantity,\n  \
         most frequent first. *false alarms*: anomalies of any task outside the fault, per judged sample; by its construction the detector\n  \
         has up to 2 %.\n\
         - *monitor*: CPU time of the monitor over that of the tasks, with its start and end. What a policy costs the tasks is in the [case study](epos.md#overhead-in-pairs).\n\
         - {}\n",
        results.extent.runs,
        results.period_ms,
        results.extent.seconds,
        quantities(results.has_counters),
        if results.has_counters {
            ""
        } else {
            "This machine has no hardware counters: an emptied cache shows only by its effect on CPU time and waiting."
        },
        results.extent.conditions,
    );
    page.push_str(
        "| fault | what happens |\n|---|---|\n\
         | slow | T3 takes a path with four times the work for every other row: 2.5 times its CPU time |\n\
         | thrash | a neighbour with higher priority on the CPU of T1 writes 2 MiB every ms |\n\
         | starve | a neighbour with higher priority takes half of the CPU of T3 |\n\n\
         | policy | command |\n|---|---|\n",
    );
    for policy in Policy::SAMPLING {
        let words = words(policy, false, results.has_counters);
        let _ = writeln!(page, "| {} | `{words}` |", policy.name());
    }
    page.push_str(
        "\n| fault | policy | found | delay [ms] | by | false alarms | samples per run | monitor |\n\
         |---|---|--:|--:|---|--:|--:|--:|\n",
    );
    for ((fault, policy), findings) in &results.findings {
        let mut delays: Vec<f64> = findings.iter().filter_map(|it| it.delay_ms).collect();
        delays.sort_by(f64::total_cmp);
        let delay = delays.get(delays.len() / 2);
        let sum = |of: fn(&crate::anomalies::Finding) -> u64| findings.iter().map(of).sum::<u64>();
        let (false_alarms, judged) = (sum(|it| it.false_alarms), sum(|it| it.judged));
        let monitor: f64 = findings.iter().map(|it| it.monitor_percent).sum();
        let _ = writeln!(
            page,
            "| {} | {} | {} of {} | {} | {} | {:.2} % | {} | {:.2} % |",
            FAULTS[*fault].0,
            policy.name(),
            delays.len(),
            findings.len(),
            delay.map_or_else(|| "-".to_owned(), |delay| format!("{delay:.1}")),
            by(findings.iter().map(|it| it.quantity.as_str())),
            false_alarms as f64 / judged.max(1) as f64 * 100.0,
            sum(|it| it.samples) / findings.len().max(1) as u64,
            monitor / findings.len() as f64,
        );
    }
    page
}

/// Names in the order of their frequency.
fn by<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for name in names.filter(|name| !name.is_empty()) {
        *counts.entry(name).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let names: Vec<String> = counts.iter().map(|(name, _)| format!("`{name}`")).collect();
    if names.is_empty() {
        return "-".to_owned();
    }
    names.join(", ")
}
