// SPDX-License-Identifier: MIT OR Apache-2.0
//! The overhead that a budget permits, against the CPU time that programs really take.
//!
//! A pair is two processes of one program, of which one is observed with a budget. Both run at the
//! same time on one CPU, so that everything that changes the speed of the core changes that of
//! both, and each reads its own CPU time. The result is the median of the quotients of some pairs,
//! less one.
//!
//! A sentinel decides whether a result counts: nobody else waited for a CPU before the pairs, by
//! the kernel's account of CPU pressure, the monitors did not wait for theirs, and the processes
//! without observation took equal times.
//! The observed program alone cannot change these. If the machine was never calm in three tries,
//! the test is skipped. These tests have a binary of their own: others would run beside them.

#[path = "../sensors/program.rs"]
#[allow(dead_code, reason = "another suite runs a program of its own")]
mod program;
#[path = "../behaviour/support.rs"]
mod support;
#[path = "../../../overhear-monitor/tests/support/witness.rs"]
mod witness;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use overhear_monitor::interference::median;
use overhear_monitor::scheduler::{allowed_cpus, run_on};

use program::compiled;
use support::{overhear, path, run_json};
use witness::{keeps, Doubt, Excuse};

/// Pairs of a result.
const PAIRS: usize = 5;
/// CPU time of a process without observation, in ns: prices are learned in the first seconds.
const LENGTH_NS: f64 = 4e9;
/// Permitted distance of the overhead from its target, as a part of the program's own time.
const TOLERANCE: f64 = 0.05;
/// The same above the target for a single-stepped probe, which takes some five points more than its
/// target on two CPUs.
const TOLERANCE_OF_PROBE: f64 = 0.1;
/// Share of time in which others may wait for a CPU.
const PRESSURE: f64 = 0.1;
/// Time for which the pressure is measured.
const LOOK: Duration = Duration::from_millis(500);
/// Difference of the times of equal processes, as a part of them.
const EQUAL: f64 = 0.01;
/// Time for which a monitor may wait for its CPU, as a part of the program's time: a late monitor
/// switches late.
const WAIT: f64 = 0.1;

/// A loop, and how it is observed.
struct Workload {
    /// The argument of the observed process, and of the other one.
    kinds: [&'static str; 2],
    /// Rounds of work in a step.
    rounds: u64,
    /// The options of `overhear run`.
    options: Vec<String>,
    target: f64,
    /// Permitted distance above the target.
    above: f64,
    /// Whether the other half bears nothing of the cost. Programs at events of the kernel cost all
    /// processes a little, so the difference may be below the target by that.
    is_exact: bool,
}

fn pair() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("tests/overhead/pair.c", "pair"))
}

/// A copy of it for the half that is not observed: a probe interrupts all processes of one file.
fn copy_of_pair() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let copy = pair().with_extension("copy");
        fs::copy(pair(), &copy).unwrap();
        copy
    })
}

/// Half of a pair, which waits for its start.
struct Half {
    child: Child,
    start: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Half {
    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut half = Self {
            child,
            start,
            output,
        };
        assert_eq!(half.line(), "ready");
        half
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn start(&mut self) {
        self.start.write_all(b"\n").unwrap();
    }

    /// Its CPU time in ns.
    fn end(self) -> f64 {
        self.end_with_wait().0
    }

    /// Its CPU time, and the time for which the started process waited for a CPU, in ns. The
    /// started process of an observed half is the monitor.
    fn end_with_wait(mut self) -> (f64, f64) {
        let line = self.line();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("took"), "{line}");
        let took = words.next().unwrap().parse().unwrap();
        let waited = waited_ns(self.child.id());
        self.child.wait().unwrap();
        (took, waited)
    }
}

impl Workload {
    fn arguments(&self, half: usize, steps: u64, cpu: u32) -> [String; 4] {
        let numbers = [steps, self.rounds, cpu.into()].map(|it| it.to_string());
        let [steps, rounds, cpu] = numbers;
        [self.kinds[half].to_owned(), steps, rounds, cpu]
    }

    /// Steps of a process of the length.
    fn steps(&self, cpu: u32) -> u64 {
        const TRIAL: u64 = 200_000;
        let mut half =
            Half::spawn(Command::new(copy_of_pair()).args(self.arguments(1, TRIAL, cpu)));
        half.start();
        (LENGTH_NS / half.end() * TRIAL as f64) as u64
    }

    /// The CPU times of a pair: observed, and plain; and the wait of the monitor as a part of the
    /// program's time.
    fn run(&self, steps: u64, cpu: u32) -> Pair {
        let budget = format!("--budget={}%", self.target * 100.0);
        let mut observed = overhear(&["run", "--quiet", &budget]);
        observed.args(&self.options).arg("--").arg(pair());
        observed.args(self.arguments(0, steps, cpu));
        let mut plain = Command::new(copy_of_pair());
        plain.args(self.arguments(1, steps, cpu));
        let mut halves = [&mut observed, &mut plain].map(Half::spawn);
        halves.iter_mut().for_each(Half::start);
        let [observed, plain] = halves;
        let (observed, waited) = observed.end_with_wait();
        let plain = plain.end();
        Pair {
            observed,
            plain,
            waited: waited / plain,
        }
    }
}

/// The result of a pair.
#[derive(Clone, Copy)]
struct Pair {
    observed: f64,
    plain: f64,
    waited: f64,
}

/// Time for which the threads of a process waited for a CPU, in ns.
fn waited_ns(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let waited = tasks.flatten().filter_map(|task| -> Option<f64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    });
    waited.sum()
}

/// The share of time in which some thread waited for a CPU; `None` where the kernel has no account.
fn pressure() -> Option<f64> {
    let total_us = || -> Option<f64> {
        let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.split(' ')
            .find_map(|it| it.strip_prefix("total="))?
            .parse()
            .ok()
    };
    let (before, begun) = (total_us()?, Instant::now());
    std::thread::sleep(LOOK);
    Some((total_us()? - before) / begun.elapsed().as_micros() as f64)
}

/// Asserts that the overhead is at the target, on a machine that is calm enough to tell.
fn has_its_target(workload: &Workload) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cpus = allowed_cpus();
    let [other, .., cpu] = cpus[..] else {
        println!("skipped: there is one CPU");
        return;
    };
    // The monitors inherit this CPU, and the programs bind themselves.
    run_on(other).unwrap();
    keeps(|| attempt(workload, cpu));
}

fn attempt(workload: &Workload, cpu: u32) -> Result<(), Doubt> {
    let seen = |reasons: String| {
        Err(Doubt {
            excuse: Excuse::Seen,
            reasons,
        })
    };
    let pressure = pressure();
    if let Some(found) = pressure.filter(|found| *found > PRESSURE) {
        return seen(format!(
            "others wait for a CPU {:.0} % of the time",
            found * 100.0
        ));
    }
    let steps = workload.steps(cpu);
    let pairs: Vec<Pair> = (0..PAIRS).map(|_| workload.run(steps, cpu)).collect();
    let plain = pairs.iter().map(|pair| pair.plain);
    let (least, most) = (
        plain.clone().fold(f64::INFINITY, f64::min),
        plain.fold(0.0, f64::max),
    );
    let waited = pairs.iter().map(|pair| pair.waited).fold(0.0, f64::max);
    let overheads: Vec<f64> = pairs
        .iter()
        .map(|pair| pair.observed / pair.plain - 1.0)
        .collect();
    let found = median(&overheads);
    let reasons = format!(
        "{:.1} % at a target of {:.0} %; pairs {overheads:.3?}; plain times differ by {:.1} %, and \
         the monitor waited for its CPU for up to {:.2} % of the time",
        found * 100.0,
        workload.target * 100.0,
        (most / least - 1.0) * 100.0,
        waited * 100.0
    );
    println!("{reasons}");
    if most > least * (1.0 + EQUAL) || waited > WAIT {
        return seen(reasons);
    }
    assert!(found <= workload.target + workload.above, "{reasons}");
    let is_low = workload.is_exact && found < workload.target - TOLERANCE;
    assert!(!is_low, "{reasons}");
    Ok(())
}

/// Whether the machine permits BPF programs.
fn has_bpf() -> bool {
    let (_, report) = run_json(&[], &["true"]);
    let has_bpf = report["sources"][0]["active"] == "bpf";
    if !has_bpf {
        println!("skipped: the machine does not permit BPF programs");
    }
    has_bpf
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn system_calls_cost_what_their_budget_permits() {
    if has_bpf() {
        has_its_target(&Workload {
            kinds: ["call", "call"],
            rounds: 500,
            options: words(&["--kernel-sensors", "syscall"]),
            target: 0.1,
            above: TOLERANCE,
            is_exact: false,
        });
    }
}

#[test]
fn probe_costs_what_its_budget_permits() {
    if has_bpf() {
        has_its_target(&Workload {
            kinds: ["probe", "probe"],
            rounds: 500,
            options: vec![
                "--probe".to_owned(),
                format!("{}:budget_step", path(pair())),
            ],
            target: 0.2,
            above: TOLERANCE_OF_PROBE,
            is_exact: false,
        });
    }
}

#[test]
fn writes_cost_what_their_budget_permits() {
    has_its_target(&Workload {
        kinds: ["write", "silence"],
        rounds: 60,
        options: words(&["--kernel", "off"]),
        target: 0.1,
        above: TOLERANCE,
        is_exact: true,
    });
}
