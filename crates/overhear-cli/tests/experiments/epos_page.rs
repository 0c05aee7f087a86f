// SPDX-License-Identifier: MIT OR Apache-2.0
//! docs/experiments/epos.md: tables II to VIII of the paper with its figures beside ours, and what
//! the runs show beyond them.

use std::fmt::Write as _;

use overhear_event::SampleSchema;

use crate::epos::Results;
use crate::paper;
use crate::policy::{quantities, samples, words, Policy};
use crate::statistics::{deviation, Mean};
use crate::taskset::{Job, CPU_OF, PERIOD_MS, TASKS};

/// Bytes of an element around its payload: time and sequence.
const FRAME_BYTES: u64 = 16;

pub(crate) fn render(results: &Results) -> String {
    let mut page = introduction(results);
    memory(&mut page, results);
    cpu_time(&mut page, results);
    idle_time(&mut page, results);
    system_overhead(&mut page, results);
    task_overhead(&mut page, results);
    overhead_by_type(&mut page, results);
    latency(&mut page, results);
    paired(&mut page, results);
    page
}

fn introduction(results: &Results) -> String {
    let extent = &results.extent;
    let mut page = String::from(
        "# Experiment: the case study of EPOS\n\n\
         `make experiment-epos RUNS=10 SECONDS=30` measures this page. It repeats [EPOS, sections IV and V] on Linux: the task set\n\
         [tasks.c](../../examples/epos/tasks.c), the three policies of samplers and a baseline without observation. The paper's figures are for\n\
         EPOS on a Cortex-A53 at 600 MHz; ours are for this machine, so compare relations and not times.\n\n",
    );
    let schedule = match &results.not_partitioned {
        None => "each CPU is a partition of its own, and its tasks have EDF (SCHED_DEADLINE)".to_owned(),
        Some(why) => format!(
            "tasks are bound to their CPUs under SCHED_FIFO in the order of their numbers. All deadlines of a round are equal, so this\n  \
             is the order of partitioned EDF. There were no partitions, because {why};\n  other programs ran on the same CPUs"
        ),
    };
    let counters = if results.has_counters {
        "hardware counters"
    } else {
        "accounts of threads, because this machine has no hardware counters"
    };
    let _ = writeln!(
        page,
        "- Runs: {} of {} s for each policy. Each round has one run of every policy, in random order; intervals contain the mean by 95 %\n  \
         (Student's distribution over runs).\n\
         - Tasks: six on CPUs 1 to 3, period {PERIOD_MS} ms. T1 moves memory (100 ms), T2, T3 and T6 compute disparity maps, T4 and T5 Fibonacci\n  \
         numbers (200 ms each); the work is calibrated to 80 % of these times.\n  {}.\n\
         - Samples: {counters}: `{}`, with time and thread.\n\
         - {}\n",
        extent.runs,
        extent.seconds,
        upper(&schedule),
        quantities(results.has_counters),
        extent.conditions,
    );
    page.push_str("| policy | command |\n|---|---|\n");
    for policy in Policy::SAMPLING {
        let words = words(policy, results.is_deadline, results.has_counters);
        let _ = writeln!(page, "| {} | `{words}` |", policy.name());
    }
    page.push('\n');
    page
}

fn upper(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Table II with equations (1) and (2) for our samples.
fn memory(page: &mut String, results: &Results) {
    let names: Vec<&str> = quantities(results.has_counters).split(',').collect();
    let mut schema = SampleSchema::new();
    for name in &names {
        schema = schema.count(&name.replace('-', "_"), "");
    }
    let payload = schema.build().expect("a schema of samples").size() as u64;
    let sample_bytes = payload + FRAME_BYTES;
    let account_bytes = 8 * names.len() as u64;
    let seconds = u64::from(results.extent.seconds);
    let per_job = seconds * 1000 / u64::from(PERIOD_MS) * TASKS.len() as u64;
    let _ = writeln!(
        page,
        "## Table II: memory consumption\n\n\
         Expected samples by [EPOS, section IV-D]: 100 Hz on three CPUs, or one for each job. Memory by equation (1) for our samples of\n\
         {sample_bytes} bytes (time, thread, point, CPU, duration and all quantities together, where the paper stores a time with each\n\
         quantity); by equation (2) the job-based policy adds accounts of {account_bytes} bytes for each task.\n\n\
         | method | paper | expected samples | memory | samples taken | missed |\n|---|--:|--:|--:|--:|--:|"
    );
    for (policy, paper_kb) in Policy::SAMPLING.into_iter().zip(paper::MEMORY_KB) {
        let (expected, accounts) = match policy {
            Policy::Job => (per_job, account_bytes * TASKS.len() as u64),
            _ => (seconds * 100 * 3, 0),
        };
        let bytes = expected * sample_bytes + accounts;
        let taken: Mean = results
            .each(policy, |it| samples(&it.report).0 as f64)
            .into_iter()
            .collect();
        let missed: f64 = results
            .each(policy, |it| samples(&it.report).1 as f64)
            .iter()
            .sum();
        let _ = writeln!(
            page,
            "| {} | {paper_kb} KB | {expected} | {:.1} KB | {:.0} | {missed:.0} |",
            policy.name(),
            bytes as f64 / 1024.0,
            taken.value,
        );
    }
    page.push_str(
        "\nOn Linux a point of the execution flow belongs to a thread: the interval of 10 ms is kept for each thread, and only where it leaves\n\
         the CPU. A periodic sampler takes one sample of the whole process; periods that passed while its thread waited for a CPU are missed.\n\n",
    );
}

fn ours(mean: Mean, values: &[f64]) -> (String, String) {
    let relative = deviation(values) / mean.value * 100.0;
    (format!("{mean:.3}"), format!("{relative:.3} %"))
}

/// Table III.
fn cpu_time(page: &mut String, results: &Results) {
    page.push_str(
        "## Table III: CPU time\n\nSum of the execution times of all jobs on a CPU in a run (equation (3)), in seconds.\n\n\
         | CPU | method | paper | deviation | ours | deviation |\n|--:|---|--:|--:|--:|--:|\n",
    );
    for (cpu, row) in (1..).zip(paper::CPU_TIME) {
        for (policy, (time, spread)) in Policy::ALL.into_iter().zip(row) {
            let values = results.each(policy, |it| it.run.cpu_seconds(cpu));
            let mean: Mean = values.iter().copied().collect();
            let (mean, relative) = ours(mean, &values);
            let _ = writeln!(
                page,
                "| {cpu} | {} | {:.3} | {spread:.4} % | {mean} | {relative} |",
                policy.name(),
                time / 1e6
            );
        }
    }
    page.push('\n');
}

/// Idle seconds of a CPU in each run of a policy (equation (4)).
fn idle(results: &Results, policy: Policy, cpu: usize) -> Vec<f64> {
    let seconds = f64::from(results.extent.seconds);
    results.each(policy, |it| seconds - it.run.cpu_seconds(cpu))
}

/// Table IV.
fn idle_time(page: &mut String, results: &Results) {
    page.push_str(
        "## Table IV: idle time\n\nLength of a run less the CPU time (equation (4)), in seconds.\n\n\
         | CPU | method | paper | ours |\n|--:|---|--:|--:|\n",
    );
    for (cpu, row) in (1..).zip(paper::CPU_TIME) {
        for (policy, (time, _)) in Policy::ALL.into_iter().zip(row) {
            let mean: Mean = idle(results, policy, cpu).into_iter().collect();
            let _ = writeln!(
                page,
                "| {cpu} | {} | {:.3} | {mean:.3} |",
                policy.name(),
                paper::SECONDS - time / 1e6
            );
        }
    }
    page.push('\n');
}

/// Table V: the differences, and their mean relative to the idle time.
fn system_overhead(page: &mut String, results: &Results) {
    page.push_str(
        "## Table V: system overhead\n\nIdle time without the policy less idle time with it, in ms, and the mean over the CPUs relative to the idle time of the baseline.\n\
         Our differences are pairs of one round.\n\n\
         | method | CPU | paper | paper's impact | ours | our impact |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let mut negative = 0;
    for (number, policy) in (1..).zip(Policy::SAMPLING) {
        let mut impacts = vec![0.0; results.runs[&policy].len()];
        let mut rows = Vec::new();
        for cpu in 1..=3 {
            let without = idle(results, Policy::Baseline, cpu);
            let with = idle(results, policy, cpu);
            let pairs = without.iter().zip(&with);
            for (impact, (without, with)) in impacts.iter_mut().zip(pairs.clone()) {
                *impact += (without - with) / without * 100.0 / 3.0;
            }
            let lost: Mean = pairs
                .map(|(without, with)| (without - with) * 1e3)
                .collect();
            negative += usize::from(lost.value < 0.0);
            let paper_lost = paper::CPU_TIME[cpu - 1][number].0 - paper::CPU_TIME[cpu - 1][0].0;
            rows.push((cpu, paper_lost / 1e3, lost));
        }
        let impact: Mean = impacts.into_iter().collect();
        for (cpu, paper_lost, lost) in rows {
            let (paper_impact, impact) = match cpu {
                1 => (
                    format!("{:+.4} %", paper::IMPACT[number - 1]),
                    format!("{impact:+.3} %"),
                ),
                _ => (String::new(), String::new()),
            };
            let _ = writeln!(
                page,
                "| {} | {cpu} | {paper_lost:+.1} | {paper_impact} | {lost:+.1} | {impact} |",
                policy.name()
            );
        }
    }
    let of_paper = (1..4).flat_map(|number| {
        paper::CPU_TIME
            .iter()
            .map(move |cpu| cpu[number].0 - cpu[0].0)
    });
    let of_paper = of_paper.filter(|lost| *lost < 0.0).count();
    let _ = writeln!(
        page,
        "\nThe paper's impact follows from its table III for the first method; for the others we compute {:+.4} % and {:+.4} % from it.\n\n\
         Of nine overheads {of_paper} are negative in the paper, and {negative} here: a policy would give time back. The idle time is the small difference of\n\
         two large values that vary with the caches and the clock of the CPU more than with a policy. So it does not resolve an overhead of a\n\
         tenth of a per cent. The [last section](#overhead-in-pairs) uses pairs of runs and the interval of each value.\n",
        paper::computed_impact(2),
        paper::computed_impact(3),
    );
}

/// Table VI.
fn task_overhead(page: &mut String, results: &Results) {
    page.push_str(
        "## Table VI: task overhead\n\nAverage execution time (AET) of the jobs, in ms of CPU time; its standard deviation over all jobs; difference from the baseline.\n\n\
         | task | method | paper's AET | deviation | overhead | our AET | deviation | overhead |\n|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (task, row) in TASKS.into_iter().zip(paper::EXECUTION_TIME) {
        for (policy, (time, spread)) in Policy::ALL.into_iter().zip(row) {
            let jobs = results.execution_times(policy, task);
            let mean = jobs.iter().sum::<f64>() / jobs.len() as f64;
            let (paper_overhead, overhead) = match policy {
                Policy::Baseline => ("".to_owned(), "".to_owned()),
                _ => (
                    format!("{:+.3} %", (time / row[0].0 - 1.0) * 100.0),
                    percent(results.paired(policy, &[task], |job| Some(job.cpu_ns))),
                ),
            };
            let _ = writeln!(
                page,
                "| {task} | {} | {:.3} | {spread:.4} % | {paper_overhead} | {:.3} | {:.3} % | {overhead} |",
                policy.name(),
                time / 1e3,
                mean / 1e6,
                deviation(&jobs) / mean * 100.0
            );
        }
    }
    page.push('\n');
}

fn percent(mean: Option<Mean>) -> String {
    mean.map_or_else(|| "not measured".to_owned(), |mean| format!("{mean:+.3} %"))
}

/// Types of tasks, in the order of table VII.
const TYPES: [(&str, &[&str]); 3] = [
    ("CPU-bound (T4, T5)", &["T4", "T5"]),
    ("Memory-bound (T1)", &["T1"]),
    ("Mid-term (T2, T3, T6)", &["T2", "T3", "T6"]),
];

/// Table VII.
fn overhead_by_type(page: &mut String, results: &Results) {
    page.push_str(
        "## Table VII: overhead by type of task\n\nPer cent of the execution time: paper / ours.\n\n\
         | type | Execution-flow-based | Periodic | Job-based |\n|---|--:|--:|--:|\n",
    );
    for ((name, tasks), row) in TYPES.into_iter().zip(paper::OVERHEAD_BY_TYPE) {
        let _ = write!(page, "| {name} |");
        for (policy, of_paper) in Policy::SAMPLING.into_iter().zip(row) {
            let ours = results.paired(policy, tasks, |job| Some(job.cpu_ns));
            let _ = write!(page, " {of_paper:+.3} / {} |", percent(ours));
        }
        page.push('\n');
    }
    page.push('\n');
}

/// Table VIII.
fn latency(page: &mut String, results: &Results) {
    page.push_str(
        "## Table VIII: latency and jitter\n\nMean time of an acquisition and its standard deviation, in us. At context switches it is the run time of all programs of the\n\
         monitor there, the account of the thread and the recorded switch, which the kernel measures in runs of their own (this adds some\n\
         30 ns to each); the deviation of single runs is estimated from means of windows of 100 ms. For periodic samples it is the monitor's CPU\n\
         time, less that of a run with one sample per second, and the deviation is that of runs.\n\n\
         | method | paper's latency | jitter | our latency | jitter | measured |\n|---|--:|--:|--:|--:|---|\n",
    );
    for (policy, (time, jitter)) in Policy::SAMPLING.into_iter().zip(paper::LATENCY) {
        let (ours, our_jitter, how) = match results.programs.get(&policy) {
            Some(times) => (
                format!("{:.3}", times.mean_ns / 1e3),
                format!("{:.3}", times.deviation_ns / 1e3),
                format!("{} switches", times.runs),
            ),
            None => {
                let mean: Mean = results.periodic_us.iter().copied().collect();
                let spread = format!("{:.3}", deviation(&results.periodic_us));
                (
                    format!("{:.3}", mean.value),
                    spread,
                    "difference of runs".to_owned(),
                )
            }
        };
        let _ = writeln!(
            page,
            "| {} | {time} | {jitter} | {ours} | {our_jitter} | {how} |",
            policy.name()
        );
    }
    page.push('\n');
}

/// The overhead by all measures that this machine has.
fn paired(page: &mut String, results: &Results) {
    page.push_str(
        "## Overhead in pairs\n\nEach round has a run with and a run without the policy. The overhead is the quotient of the sums over all tasks less one, in per cent;\n\
         the interval is that of the mean over rounds. An interval that contains zero shows no overhead, and bounds it.\n\n\
         | method | CPU time | instructions | cycles | monitor's CPU time |\n|---|--:|--:|--:|--:|\n",
    );
    let measures: [fn(&Job) -> Option<f64>; 3] = [
        |job| Some(job.cpu_ns),
        |job| job.instructions,
        |job| job.cycles,
    ];
    let cpus = CPU_OF.iter().max().copied().unwrap_or(1);
    for policy in Policy::SAMPLING {
        let _ = write!(page, "| {} |", policy.name());
        for measure in measures {
            let _ = write!(
                page,
                " {} |",
                percent(results.paired(policy, &TASKS, measure))
            );
        }
        let own = results.each(policy, |it| {
            let tasks: f64 = (1..=cpus).map(|cpu| it.run.cpu_seconds(cpu)).sum();
            it.monitor_seconds / tasks * 100.0
        });
        let own: Mean = own.into_iter().collect();
        let _ = writeln!(page, " {own:.3} % of the tasks' |");
    }
    if !results.has_counters {
        page.push_str(
            "\nInstructions and cycles are not measured, because this machine has no hardware counters.\n",
        );
    }
    let resolved = Policy::SAMPLING.into_iter().filter(|&policy| {
        let mean = results.paired(policy, &TASKS, |job| Some(job.cpu_ns));
        mean.is_some_and(|mean| mean.is_resolved())
    });
    let resolved: Vec<&str> = resolved.map(Policy::name).collect();
    let _ = writeln!(
        page,
        "\nOverheads that differ from zero by CPU time: {}.",
        if resolved.is_empty() {
            "none".to_owned()
        } else {
            resolved.join(", ")
        }
    );
}
