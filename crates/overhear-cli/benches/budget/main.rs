// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets on sensors of programs: the target against the CPU time that the program really takes.
//!
//! This program is its own workload. Each row of the table has groups of three processes: without
//! sensors, with a budget, and with everything observed. They run the same steps at the same time,
//! a program with one thread on one CPU, and each reads its own CPU time (user and system). A group
//! gives one quotient of each pair; the interval is that of the mean over groups.
//!
//! `cargo bench -p overhear-cli --bench budget -- [--groups N] [--only WORKLOAD]
//! [--target PERCENT] [--page FILE]`
//!
//! Rows are kept in the target folder, so that several short runs fill one page.
#![allow(missing_docs)]

mod idleness;
mod interval;
mod page;
mod process;
mod results;
mod row;
mod workload;

use process::Workload;
use results::Results;
use row::{Case, Row};

/// Groups of a row without another number.
const GROUPS: usize = 4;
const TARGETS: [f64; 8] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
const WORKLOADS: [&str; 4] = ["steady", "threads", "bursty", "sensors"];
/// The workload that waits for a minute.
const IDLENESS: &str = "idleness";
/// Target of the rows in which everything costs less, and of the burst after idleness.
const MODERATE: f64 = 10.0;

fn main() {
    if let Ok(role) = std::env::var(workload::ROLE) {
        return workload::run(&role);
    }
    let mut options = Options::default();
    let mut arguments = std::env::args().skip(1).filter(|it| it != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| usage());
        match &*argument {
            "--groups" => options.groups = value().parse().unwrap_or_else(|_| usage()),
            "--only" => options.only = Some(value()),
            "--target" => options.target = Some(value().parse().unwrap_or_else(|_| usage())),
            "--page" => options.page = Some(value()),
            _ => usage(),
        }
    }
    if options.groups < 2 {
        usage();
    }
    options.run();
}

fn usage() -> ! {
    eprintln!(
        "options: --groups N (at least 2), --only WORKLOAD, --target PERCENT, --page FILE.md"
    );
    std::process::exit(2)
}

struct Options {
    groups: usize,
    only: Option<String>,
    target: Option<f64>,
    page: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            groups: GROUPS,
            only: None,
            target: None,
            page: None,
        }
    }
}

impl Options {
    fn run(&self) {
        let mut results = Results::load();
        let is_selected = |name: &str| self.only.as_deref().is_none_or(|only| only == name);
        println!("{}", page::HEAD);
        for name in WORKLOADS.into_iter().filter(|name| is_selected(name)) {
            for case in cases(name) {
                if self.target.is_some_and(|target| target != case.target) {
                    continue;
                }
                let row = Row::measure(case, self.groups);
                println!("{}", page::line(&row));
                results.keep(row);
            }
        }
        if is_selected(IDLENESS) {
            let workload = Workload {
                name: "steady",
                rounds: rounds("steady", MODERATE, 2.0),
            };
            let idleness = idleness::Idleness::measure(workload, MODERATE);
            println!("\n{}", page::idleness(&idleness));
            results.idleness = Some(idleness);
        }
        results.save();
        if let Some(path) = &self.page {
            page::write(path.as_ref(), &results);
        }
    }
}

/// The rows of a workload.
fn cases(name: &'static str) -> impl Iterator<Item = Case> {
    let case = move |target, factor, is_above_full| Case {
        workload: Workload {
            name,
            rounds: rounds(name, if target > 0.0 { target } else { MODERATE }, factor),
        },
        target,
        is_above_full,
    };
    let bound = TARGETS
        .into_iter()
        .map(move |target| case(target, 2.0, false));
    bound.chain([case(MODERATE, 0.4, true)])
}

/// Rounds of work between two writes, with which everything costs about `factor` times the target.
/// The element's price in ns and the round's time are rough values of one machine; the table shows
/// the measured cost of everything.
fn rounds(name: &str, target: f64, factor: f64) -> u64 {
    let element_ns = match name {
        "sensors" => 150.0,
        _ => 35.0,
    };
    let round_ns = 2.0;
    (element_ns / (target / 100.0 * factor) / round_ns).ceil() as u64
}
