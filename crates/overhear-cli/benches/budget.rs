// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets on sensors of programs: the target against the CPU time that the program really takes.
//!
//! This program is its own workload. Each workload runs without sensors, with a budget, and with
//! everything observed, alternately. The result is the CPU time of the process by the kernel's
//! account: the median of the pairs' quotients, with its confidence interval of 95 %.
//!
//! `cargo bench -p overhear-cli --bench budget -- [ROUNDS]`
#![allow(missing_docs)]

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Duration;

use overhear::{Element, LanedSensor, Sensor};

const OVERHEAR: &str = env!("CARGO_BIN_EXE_overhear");
const ROLE: &str = "OVERHEAR_BENCH_BUDGET";
/// Set for a workload that writes nothing.
const PLAIN: &str = "OVERHEAR_BENCH_PLAIN";
const TARGETS: [f64; 5] = [2.0, 5.0, 10.0, 20.0, 50.0];
const WORKLOADS: [&str; 4] = ["steady", "threads", "sources", "bursty"];
const ROUNDS: usize = 5;

#[derive(Element)]
#[repr(C)]
struct Progress {
    step: u64,
}

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return work(&role);
    }
    let rounds = std::env::args().skip(1).find_map(|it| it.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    println!(
        "| workload | target | over plain, median of {rounds} pairs | its own estimate | all on |"
    );
    println!("|---|--:|--:|--:|--:|");
    for workload in WORKLOADS {
        let full = pairs(workload, rounds, None).0;
        for target in TARGETS {
            let (seen, estimate) = pairs(workload, rounds, Some(target));
            println!(
                "| {workload} | {target} % | {} | {:.2} % | {} |",
                Interval::of(seen),
                estimate * 100.0,
                Interval::of(full.clone()),
            );
        }
    }
}

/// Quotients less one of this number of pairs, and the mean of the estimates in the reports.
fn pairs(workload: &str, rounds: usize, target: Option<f64>) -> (Vec<f64>, f64) {
    let (mut seen, mut estimates) = (Vec::new(), 0.0);
    for round in 0..rounds {
        let plain = || cpu_time(Command::new(own()).env(PLAIN, "1"), workload);
        let mut observe = || {
            let report = tempfile::NamedTempFile::new().expect("a file for the report");
            let mut command = Command::new(OVERHEAR);
            command.args(["run", "--quiet", "--kernel", "off", "--json"]);
            command.arg(report.path());
            if let Some(target) = target {
                command.args(["--budget", &format!("{target}%")]);
            }
            command.arg("--").arg(own());
            let ns = cpu_time(&mut command, workload);
            let text = std::fs::read(report.path()).expect("the report");
            let report: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            estimates += report["budget"]["observed"].as_f64().unwrap_or(0.0) / rounds as f64;
            ns
        };
        // The order alternates: the machine may become slower meanwhile.
        let (plain, observed) = match round % 2 {
            0 => (plain(), observe()),
            _ => {
                let observed = observe();
                (plain(), observed)
            }
        };
        seen.push(observed / plain - 1.0);
    }
    (seen, estimates)
}

fn own() -> std::path::PathBuf {
    std::env::current_exe().expect("this program has a path")
}

/// Runs the workload and returns the CPU time that it prints.
fn cpu_time(command: &mut Command, workload: &str) -> f64 {
    let output = command
        .env(ROLE, workload)
        .stderr(Stdio::inherit())
        .output()
        .expect("the workload runs");
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
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, low, high] = [self.median, self.low, self.high].map(|it| it * 100.0);
        write!(f, "{median:+.2} % [{low:+.2}, {high:+.2}]")
    }
}

/// Some 15 ns of work that no compiler can leave out or join.
#[inline(always)]
fn compute(mut state: u64) -> u64 {
    for _ in 0..8 {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005) ^ (state >> 29));
    }
    state
}

fn work(role: &str) {
    match std::env::var_os(PLAIN) {
        Some(_) => work_with::<false>(role),
        None => work_with::<true>(role),
    }
    println!("cpu {}", own_cpu_ns());
}

fn work_with<const OBSERVED: bool>(role: &str) {
    match role {
        "steady" => steps::<OBSERVED>(600_000_000),
        "bursty" => {
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(1_500));
                steps::<OBSERVED>(120_000_000);
            }
        }
        "threads" => {
            let sensor = LanedSensor::<Progress>::builder("threads")
                .register()
                .expect("a sensor");
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let mut state = 1;
                        for step in 0..150_000_000 {
                            state = compute(state);
                            if OBSERVED {
                                let _ = sensor.write(&Progress { step });
                            }
                        }
                        black_box(state);
                    });
                }
            });
        }
        "sources" => {
            let mut sensors: Vec<_> = (0..400)
                .map(|number: u32| {
                    Sensor::<Progress>::builder("source")
                        .instance(&number.to_string())
                        .register()
                        .expect("a sensor")
                })
                .collect();
            let mut state = 1;
            // Eight sensors have half of the writes, the next eight half of the rest, and so on.
            for step in 1..70_000_000_u64 {
                for place in 0..8 {
                    state = compute(state);
                    if OBSERVED {
                        let number = (step.trailing_zeros() as usize * 8 + place) % 400;
                        sensors[number].write(&Progress { step });
                    }
                }
            }
            black_box(state);
        }
        other => panic!("no workload `{other}`"),
    }
}

fn steps<const OBSERVED: bool>(count: u64) {
    let mut sensor = Sensor::<Progress>::builder("steps")
        .register()
        .expect("a sensor");
    let mut state = 1;
    for step in 0..count {
        state = compute(state);
        if OBSERVED {
            sensor.write(&Progress { step });
        }
    }
    black_box(state);
}

/// User and system time of this process.
fn own_cpu_ns() -> u128 {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    usage.tv_sec as u128 * 1_000_000_000 + usage.tv_nsec as u128
}
