// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process of a workload, which runs steps on demand.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::workload::{CPU, PLAIN, ROLE, ROUNDS};

const OVERHEAR: &str = env!("CARGO_BIN_EXE_overhear");

/// How a process is observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Observation {
    /// It has no sensor.
    Plain,
    /// With a budget of so many per cent.
    Budget(f64),
    /// Everything, without a budget.
    Full,
}

/// A workload, and the work between two of its writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) rounds: u64,
}

impl Workload {
    fn is_threaded(self) -> bool {
        self.name == "threads"
    }
}

/// A process that waits for demands.
pub(crate) struct Process {
    child: Child,
    demands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    report: Option<NamedTempFile>,
    cpu_ns: f64,
}

impl Process {
    pub(crate) fn start(workload: Workload, observation: Observation) -> Self {
        let own = std::env::current_exe().expect("this program has a path");
        let report = (observation != Observation::Plain)
            .then(|| NamedTempFile::new().expect("a file for the report"));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let is_pinned = cpus > 1 && !workload.is_threaded();
        // The program has the last CPU, and the monitor the others.
        let mut command = match (is_pinned, &report) {
            (true, Some(_)) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &format!("0-{}", cpus - 2), OVERHEAR]);
                command
            }
            (false, Some(_)) => Command::new(OVERHEAR),
            (_, None) => Command::new(&own),
        };
        if let Some(report) = &report {
            command.args(["run", "--quiet", "--kernel", "off"]);
            command.arg(format!("--json={}", report.path().display()));
            if let Observation::Budget(target) = observation {
                command.args(["--budget", &format!("{target}%")]);
            }
            command.arg("--").arg(&own);
        } else {
            command.env(PLAIN, "1");
        }
        if is_pinned {
            command.env(CPU, (cpus - 1).to_string());
        }
        let mut child = command
            .env(ROLE, workload.name)
            .env(ROUNDS, workload.rounds.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the workload starts");
        let demands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut process = Self {
            child,
            demands,
            answers,
            report,
            cpu_ns: 0.0,
        };
        // Registering its sensors and the first pages are behind it.
        process.run(1_000);
        process
    }

    /// Runs so many steps. Returns the CPU time that they took, in ns.
    pub(crate) fn run(&mut self, steps: u64) -> f64 {
        self.begin(steps);
        self.finish()
    }

    /// Begins so many steps.
    pub(crate) fn begin(&mut self, steps: u64) {
        let demands = self.demands.as_mut().expect("it has not ended");
        writeln!(demands, "{steps}").expect("the workload reads");
    }

    /// Waits for the end of the steps. Returns the CPU time that they took, in ns.
    pub(crate) fn finish(&mut self) -> f64 {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the workload answers");
        let cpu_ns = line.trim().parse().expect("its CPU time");
        let spent = cpu_ns - self.cpu_ns;
        self.cpu_ns = cpu_ns;
        spent
    }

    /// Ends it. Returns the report's account of the budget, if it had one.
    pub(crate) fn end(mut self) -> Value {
        self.demands = None;
        // The budget leaves gaps, so a report says 3: incomplete.
        self.child.wait().expect("a child process");
        let Some(report) = &self.report else {
            return Value::Null;
        };
        let text = std::fs::read(report.path()).expect("the report");
        let mut report: Value = serde_json::from_slice(&text).expect("JSON");
        report["budget"].take()
    }
}
