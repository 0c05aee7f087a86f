// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of the task set under a sampling policy: the command line, and what its report says.

use std::ffi::OsString;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::prog_times::{ProgTimes, Watch};
use crate::taskset::{Fault, Run, TaskSet};

const OVERHEAR: &str = env!("CARGO_BIN_EXE_overhear");

/// How the task set is observed ([EPOS, section III]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Policy {
    /// Not at all.
    Baseline,
    /// At switches, at most once in 10 ms for each thread.
    Flow,
    /// Every 10 ms.
    Periodic,
    /// Every second, to separate the cost of samples from all else.
    Seldom,
    /// At the end of each job.
    Job,
}

impl Policy {
    pub(crate) const ALL: [Self; 4] = [Self::Baseline, Self::Flow, Self::Periodic, Self::Job];
    pub(crate) const SAMPLING: [Self; 3] = [Self::Flow, Self::Periodic, Self::Job];

    /// The paper's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "Baseline",
            Self::Flow => "Execution-flow-based",
            Self::Periodic => "Periodic",
            Self::Seldom => "Periodic, every second",
            Self::Job => "Job-based",
        }
    }

    /// As few kernel events as the policy permits: a sampler at points of threads is a part of the
    /// kernel monitor.
    const fn kernel_events(self) -> [&'static str; 2] {
        match self {
            Self::Baseline | Self::Periodic | Self::Seldom => ["--kernel", "off"],
            Self::Flow | Self::Job => ["--kernel-sensors", "sched_switch"],
        }
    }

    /// The options of `overhear run`.
    pub(crate) fn options(self, is_deadline: bool) -> &'static [&'static str] {
        match (self, is_deadline) {
            (Self::Baseline, _) => &[],
            (Self::Flow, _) => &["--per", "switch", "--min-interval", "10ms"],
            (Self::Periodic, _) => &["--every", "10ms"],
            (Self::Seldom, _) => &["--every", "1s"],
            (Self::Job, true) => &["--per", "job=yield"],
            (Self::Job, false) => &["--per", "job=sleep"],
        }
    }
}

/// What is sampled, as in [EPOS, section IV-D]: counters of the CPU where there are any, else six
/// accounts of threads. The tasks take two counters themselves. Every sample has the thread's id
/// and the time.
pub(crate) const fn quantities(has_counters: bool) -> &'static str {
    match has_counters {
        true => "cycles,instructions,llc-misses,branch-misses",
        false => {
            "cpu-time,wait-time,voluntary-switches,involuntary-switches,minor-faults,major-faults"
        }
    }
}

/// What a run has left.
pub(crate) struct Observed {
    pub(crate) run: Run,
    /// The report; null for the baseline.
    pub(crate) report: Value,
    /// CPU time of the monitor in seconds; 0 for the baseline.
    pub(crate) monitor_seconds: f64,
    /// Run times of the monitor's BPF programs, if they were watched.
    pub(crate) programs: Option<ProgTimes>,
}

/// Runs the task set under a policy. With `watch`, the kernel measures the run times of BPF
/// programs, which adds to them.
pub(crate) fn observe(
    tasks: &TaskSet,
    policy: Policy,
    milliseconds: u32,
    fault: Option<Fault>,
    watch: bool,
) -> Result<Observed, String> {
    let words = tasks.command(milliseconds, fault);
    if policy == Policy::Baseline {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(tasks.environment());
        let output = command.output().map_err(|error| error.to_string())?;
        return Ok(Observed {
            run: Run::read(&output)?,
            report: Value::Null,
            monitor_seconds: 0.0,
            programs: None,
        });
    }
    let mut command = sampling(policy, tasks.is_deadline(), tasks.has_counters);
    command.args(&words).envs(tasks.environment());
    let before = children_seconds();
    let (output, programs) = finish(&mut command, watch)?;
    let run = Run::read(&output)?;
    let spent = children_seconds() - before;
    let report = report_of(&output)?;
    let of_jobs: f64 = (1..=3).map(|cpu| run.cpu_seconds(cpu)).sum();
    Ok(Observed {
        run,
        report,
        monitor_seconds: (spent - of_jobs).max(0.0),
        programs,
    })
}

/// `overhear run` with a sampler, up to `--`.
fn sampling(policy: Policy, is_deadline: bool, has_counters: bool) -> Command {
    let mut command = Command::new(OVERHEAR);
    command
        .args(["run", "--json"])
        .args(policy.kernel_events())
        .args(["--sample", quantities(has_counters)])
        .args(policy.options(is_deadline))
        .arg("--");
    command
}

fn finish(command: &mut Command, watch: bool) -> Result<(Output, Option<ProgTimes>), String> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let watched = watch.then(|| Watch::start(child.id()));
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    Ok((output, watched.and_then(Watch::finish)))
}

/// The JSON document on standard output; the program's own output is on standard error then.
fn report_of(output: &Output) -> Result<Value, String> {
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("{}: no report: {error}\n{errors}", output.status)
    })
}

/// CPU time of the children that have ended and were waited for, and of their children.
fn children_seconds() -> f64 {
    // SAFETY: zero is a valid value, which the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for the result.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Number of samples of the policy's point in a report, and of missed ones.
pub(crate) fn samples(report: &Value) -> (u64, u64) {
    let samplers = report["samplers"].as_array().cloned().unwrap_or_default();
    let sum = |member: &str| samplers.iter().filter_map(|it| it[member].as_u64()).sum();
    (sum("samples"), sum("missed"))
}

/// The words of a command, for pages.
pub(crate) fn words(policy: Policy, is_deadline: bool, has_counters: bool) -> String {
    let command = sampling(policy, is_deadline, has_counters);
    let all = command.get_args().map(OsString::from);
    let all: Vec<String> = all.map(|it| it.to_string_lossy().into_owned()).collect();
    format!("overhear {} tasks", all.join(" "))
}
