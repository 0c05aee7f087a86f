// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments of SMCO with the range analysis: overhead against target, accuracy by number of
//! updates, updates over time, memory.
//!
//! `cargo bench -p overhear-ranges --bench smco -- REPETITIONS PAGE WORKLOAD...`, where a workload
//! is `NAME=SCRIPT=PLAIN=INSTRUMENTED`: a script of the shell that uses `$PROGRAM` and the folder
//! `$SCRATCH`, and the two builds of that program. `make experiment-smco` builds the workloads and
//! writes docs/experiments/smco.md.
//!
//! Each repetition runs every configuration once, in random order, at the same time as the plain
//! program on the same processor; the overhead is a quotient of user and system time of the two.
//! Means have intervals of 95 % by Student's t-distribution, as in the paper.

mod page;
mod plot;
mod run;
mod statistics;

use std::path::PathBuf;
use std::process::ExitCode;

use run::{Budget, Outcome, Workload};
use statistics::Mean;

/// Target overheads in per cent.
const TARGETS: [f64; 5] = [2.0, 5.0, 10.0, 20.0, 50.0];

/// Means of one configuration of a workload.
struct Point {
    budget: Budget,
    /// Observed overhead in per cent.
    overhead: Mean,
    /// Overhead by the estimate of the budget, in per cent; without the base.
    estimate: Option<Mean>,
    /// Updates recorded.
    updates: Mean,
    /// Mean accuracy over all variables that the full run updates.
    accuracy: Mean,
    /// Accuracy by power of ten of the number of updates.
    by_updates: Vec<(u32, Mean, usize)>,
    /// Largest resident memory in KiB.
    resident_kib: Mean,
}

/// All of one workload.
struct Results {
    workload: Workload,
    points: Vec<Point>,
    plain_seconds: Mean,
    plain_resident_kib: Mean,
    /// Name, updates in each 0.4 s of the most and of the 99th most updated variable.
    histograms: Vec<(String, Vec<f64>)>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let [repetitions, page, workloads @ ..] = &arguments[..] else {
        println!("nothing measured: `make experiment-smco` names the workloads");
        return ExitCode::SUCCESS;
    };
    let Some(repetitions) = repetitions.parse().ok().filter(|count| *count >= 2) else {
        eprintln!("smco: {repetitions:?} is no number of repetitions; give 2 or more");
        return ExitCode::from(2);
    };
    let mut all = Vec::new();
    for text in workloads {
        let Some(workload) = Workload::parse(text) else {
            eprintln!("smco: {text:?} is no workload; write NAME=SCRIPT=PLAIN=INSTRUMENTED");
            return ExitCode::from(2);
        };
        match measure(workload, repetitions) {
            Ok(results) => all.push(results),
            Err(error) => {
                eprintln!("smco: {text}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if let Err(error) = page::write(&PathBuf::from(page), repetitions, &all) {
        eprintln!("smco: {page} was not written: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn measure(workload: Workload, repetitions: usize) -> Result<Results, String> {
    let mut budgets = vec![Budget::Off];
    budgets.extend(TARGETS.map(Budget::Target));
    budgets.push(Budget::Full);
    println!("{}: the full run, and updates over time", workload.name);
    let (reference, histograms) = workload.full_run()?;
    let mut outcomes: Vec<Vec<(Outcome, f64)>> = budgets.iter().map(|_| Vec::new()).collect();
    let mut plain = Vec::new();
    let mut random = statistics::Random::new();
    for repetition in 0..repetitions {
        let mut order: Vec<usize> = (0..budgets.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let [observed, beside] = workload.pair(budgets[index], random.coin())?;
            let overhead = 100.0 * (observed.cpu_seconds / beside.cpu_seconds - 1.0);
            println!(
                "{}: repetition {}, {}: {overhead:.2} %",
                workload.name,
                repetition + 1,
                budgets[index]
            );
            outcomes[index].push((observed, overhead));
            plain.push(beside);
        }
    }
    let points = budgets
        .iter()
        .zip(&outcomes)
        .map(|(budget, outcomes)| point(*budget, outcomes, &reference))
        .collect();
    Ok(Results {
        workload,
        points,
        plain_seconds: plain.iter().map(|it| it.cpu_seconds).collect(),
        plain_resident_kib: plain.iter().map(|it| it.resident_kib).collect(),
        histograms,
    })
}

fn point(budget: Budget, outcomes: &[(Outcome, f64)], reference: &Outcome) -> Point {
    let accuracies: Vec<_> = outcomes
        .iter()
        .map(|(outcome, _)| outcome.accuracies(reference))
        .collect();
    let mean_of = |list: &[(u64, f64)]| {
        list.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / list.len().max(1) as f64
    };
    let decade = |updates: u64| updates.max(1).ilog10();
    let mut by_updates = Vec::new();
    for power in 0..=12 {
        let group = |list: &[(u64, f64)]| -> Vec<(u64, f64)> {
            let in_group = |it: &&(u64, f64)| decade(it.0) == power;
            list.iter().filter(in_group).copied().collect()
        };
        let count = accuracies.first().map_or(0, |list| group(list).len());
        if count > 0 {
            let mean = accuracies
                .iter()
                .map(|list| mean_of(&group(list)))
                .collect();
            by_updates.push((power, mean, count));
        }
    }
    let estimates: Option<Vec<f64>> = outcomes.iter().map(|(it, _)| it.estimate).collect();
    Point {
        budget,
        overhead: outcomes.iter().map(|(_, overhead)| *overhead).collect(),
        estimate: estimates.map(|list| list.into_iter().collect()),
        updates: outcomes.iter().map(|(it, _)| it.updates as f64).collect(),
        accuracy: accuracies.iter().map(|list| mean_of(list)).collect(),
        by_updates,
        resident_kib: outcomes.iter().map(|(it, _)| it.resident_kib).collect(),
    }
}
