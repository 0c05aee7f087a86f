// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets on kernel sensors and probes: the target against the CPU time that the program really
//! takes.
//!
//! This program is its own workload. Each workload runs without observation, with a budget, and
//! with everything observed. A pair is two runs at the same time on one CPU, so that what changes
//! the speed of the core changes that of both. The result is the quotient of their CPU times by the
//! kernel's account: the median of the pairs, with its confidence interval of 95 %. A target is met
//! where the interval contains a point within one point of it, and missed where all of it is
//! farther away; an interval wider than two points is inconclusive.
//!
//! `cargo bench -p overhear-cli --bench budget_kernel -- [ROUNDS] [WORKLOAD] [TARGET...]`
#![allow(missing_docs)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::thread::CpuSet;

const OVERHEAR: &str = env!("CARGO_BIN_EXE_overhear");
const ROLE: &str = "OVERHEAR_BENCH_BUDGET_KERNEL";
const TARGETS: [f64; 5] = [2.0, 5.0, 10.0, 20.0, 50.0];
const ROUNDS: usize = 7;
/// Permitted distance to the target, as a part of the program's own time.
const TOLERANCE: f64 = 0.01;

/// A loop, and the options that observe it.
struct Workload {
    name: &'static str,
    options: fn(&Path) -> Vec<String>,
    run: fn(),
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        name: "syscall",
        options: |_| words(&["--kernel-sensors", "syscall"]),
        run: calls,
    },
    Workload {
        name: "probe",
        options: |own| vec!["--probe".to_owned(), place(own, "")],
        run: passes,
    },
    Workload {
        name: "return",
        options: |own| {
            let [entry, exit] = ["", ":return"].map(|suffix| place(own, suffix));
            ["--probe".to_owned(), entry, "--probe".to_owned(), exit].into()
        },
        run: passes,
    },
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn place(own: &Path, suffix: &str) -> String {
    format!("{}:overhear_bench_step{suffix}", own.display())
}

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        let workload = WORKLOADS.iter().find(|workload| workload.name == role);
        run_on_last_cpu();
        (workload.expect("a workload").run)();
        return println!("cpu {}", own_cpu_ns());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = arguments.iter().filter_map(|it| it.parse::<f64>().ok());
    let rounds = numbers.next().map_or(ROUNDS, |rounds| rounds as usize);
    let targets: Vec<f64> = numbers.collect();
    let targets = if targets.is_empty() {
        TARGETS.to_vec()
    } else {
        targets
    };
    let named = |workload: &&Workload| arguments.iter().any(|it| it == workload.name);
    let is_all = !WORKLOADS.iter().any(|workload| named(&workload));
    println!("| sensor | target | over plain, median of {rounds} pairs | its own estimate | all on | result |");
    println!("|---|--:|--:|--:|--:|---|");
    for workload in WORKLOADS.iter().filter(|it| is_all || named(it)) {
        let full = Interval::of(pairs(workload, rounds, None).0);
        for target in &targets {
            let (seen, estimate) = pairs(workload, rounds, Some(*target));
            let seen = Interval::of(seen);
            println!(
                "| {} | {target} % | {seen} | {:.2} % | {full} | {} |",
                workload.name,
                estimate * 100.0,
                seen.judged((target / 100.0).min(full.median)),
            );
        }
    }
}

/// Quotients less one of this number of pairs, and the mean of the estimates in the reports.
fn pairs(workload: &Workload, rounds: usize, target: Option<f64>) -> (Vec<f64>, f64) {
    let (mut seen, mut estimates) = (Vec::new(), 0.0);
    // A probe interrupts all processes of one file.
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("plain");
    std::fs::copy(own(), &copy).expect("a copy of this program");
    for _ in 0..rounds {
        let report = folder.path().join("report.json");
        let mut command = Command::new(OVERHEAR);
        command.args(["run", "--quiet", &format!("--json={}", report.display())]);
        command.args((workload.options)(&own()));
        if let Some(target) = target {
            command.args(["--budget", &format!("{target}%")]);
        }
        command.arg("--").arg(own());
        let [observed, plain] = [&mut command, &mut Command::new(&copy)]
            .map(|command| begin(command, workload))
            .map(cpu_time);
        let text = std::fs::read(report).expect("the report");
        let report: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        estimates += report["budget"]["observed"].as_f64().unwrap_or(0.0) / rounds as f64;
        seen.push(observed / plain - 1.0);
    }
    (seen, estimates)
}

/// Both halves of a pair share this CPU. Without it the figures are noisier, not wrong.
fn run_on_last_cpu() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut last = CpuSet::new();
    last.set(cpus - 1);
    let _ = rustix::thread::sched_setaffinity(None, &last);
}

fn own() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

/// Starts the workload.
fn begin(command: &mut Command, workload: &Workload) -> Child {
    let command = command.env(ROLE, workload.name).stdout(Stdio::piped());
    command.spawn().expect("the workload starts")
}

/// Waits for the end of the workload. Returns the CPU time that it prints.
fn cpu_time(child: Child) -> f64 {
    let output = child.wait_with_output().expect("the workload ends");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    line.and_then(|ns| ns.parse().ok())
        .unwrap_or_else(|| panic!("no CPU time: {text}"))
}

/// The median, and order statistics around it.
struct Interval {
    median: f64,
    low: f64,
    high: f64,
}

impl Interval {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        // Normal approximation of the binomial distribution; the extremes if there are few.
        let reach = (0.98 * (count as f64).sqrt()).ceil() as usize;
        Self {
            median: values[count / 2],
            low: values[(count / 2).saturating_sub(reach)],
            high: values[(count / 2 + reach).min(count - 1)],
        }
    }

    fn judged(&self, target: f64) -> &'static str {
        let is_outside = self.low > target + TOLERANCE || self.high < target - TOLERANCE;
        match (is_outside, self.high - self.low > 2.0 * TOLERANCE) {
            (true, _) => "missed",
            (false, true) => "inconclusive",
            (false, false) => "met",
        }
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, low, high] = [self.median, self.low, self.high].map(|it| it * 100.0);
        write!(f, "{median:+.2} % [{low:+.2}, {high:+.2}]")
    }
}

/// Work that no compiler can leave out or join.
#[inline(always)]
fn compute(mut state: u64, steps: u32) -> u64 {
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005) ^ (state >> 29));
    }
    state
}

/// System calls, a microsecond of work apart.
fn calls() {
    let mut state = 1;
    for _ in 0..8_000_000 {
        state = compute(state, 250);
        black_box(rustix::process::getppid());
    }
    black_box(state);
}

/// Calls of a function with a probe, some 10 us of work apart.
fn passes() {
    let mut state = 1;
    for _ in 0..300_000 {
        state = compute(state, 8_000);
        state = overhear_bench_step(state);
    }
    black_box(state);
}

/// The function that the probes name.
#[no_mangle]
#[inline(never)]
extern "C" fn overhear_bench_step(state: u64) -> u64 {
    black_box(state ^ 1)
}

/// User and system time of this process.
fn own_cpu_ns() -> u128 {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    usage.tv_sec as u128 * 1_000_000_000 + usage.tv_nsec as u128
}
