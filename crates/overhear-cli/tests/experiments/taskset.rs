// SPDX-License-Identifier: MIT OR Apache-2.0
//! The task set `examples/epos/tasks.c`: compiled, calibrated, run, and its jobs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::partition::Partitions;

/// Names of the tasks.
pub(crate) const TASKS: [&str; 6] = ["T1", "T2", "T3", "T4", "T5", "T6"];
/// CPU of each task, from 1.
pub(crate) const CPU_OF: [usize; 6] = [1, 1, 2, 2, 3, 3];
/// Period of all tasks in the paper.
pub(crate) const PERIOD_MS: u32 = 500;
/// CPUs that the task set needs, with CPU 0 for the rest of the system.
pub(crate) const CPUS: usize = 4;

/// The compiled program, and the work of its jobs.
pub(crate) struct TaskSet {
    program: PathBuf,
    /// Turns of each kind of work, as the program prints and reads them.
    turns: String,
    /// Period of all tasks; jobs are shorter in proportion.
    pub(crate) period_ms: u32,
    partitions: Option<Partitions>,
    /// Whether instructions and cycles of its tasks can be counted.
    pub(crate) has_counters: bool,
}

/// A run: the jobs of each task in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Run {
    pub(crate) jobs: BTreeMap<String, Vec<Job>>,
}

/// A job, measured by its task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Job {
    pub(crate) release_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) cpu_ns: f64,
    /// `None` without hardware counters.
    pub(crate) instructions: Option<f64>,
    pub(crate) cycles: Option<f64>,
    /// Whether a fault was active.
    pub(crate) is_faulty: bool,
}

/// A fault that the task set injects into T3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// `slow`, `thrash` or `starve`.
    pub(crate) kind: &'static str,
    /// Number of the first round, and of rounds.
    pub(crate) round: u32,
    pub(crate) rounds: u32,
}

impl TaskSet {
    /// Compiles and calibrates it; `Err` has the reason why it cannot run on this machine.
    pub(crate) fn prepare(partitions: Option<Partitions>, period_ms: u32) -> Result<Self, String> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus < CPUS {
            return Err(format!(
                "the task set needs {CPUS} CPUs, and here are {cpus}"
            ));
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/epos/tasks.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("epos-tasks");
        let status = Command::new("cc")
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
            .arg(source)
            .arg("-o")
            .arg(&program)
            .status()
            .expect("the experiments need the C compiler cc");
        assert!(status.success());
        let output = Command::new(&program).arg("calibrate").output().unwrap();
        assert!(output.status.success());
        let turns = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let mut tasks = Self {
            program,
            turns,
            period_ms,
            partitions,
            has_counters: false,
        };
        // A first run shows what this machine permits.
        let words = tasks.command(1000, None);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(tasks.environment());
        let first = Run::read(&command.output().unwrap())?;
        let has_counters = |task: &str| first.mean(task, |job| job.instructions).is_some();
        tasks.has_counters = TASKS.into_iter().all(has_counters);
        Ok(tasks)
    }

    /// Whether the tasks run under SCHED_DEADLINE.
    pub(crate) fn is_deadline(&self) -> bool {
        self.partitions.is_some()
    }

    /// Program and arguments of a run of this length.
    pub(crate) fn command(&self, milliseconds: u32, fault: Option<Fault>) -> Vec<OsString> {
        let policy = if self.is_deadline() {
            "deadline"
        } else {
            "fifo"
        };
        let mut words = vec![
            self.program.clone().into_os_string(),
            format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000).into(),
            format!("{policy}:{}", self.period_ms).into(),
            self.turns.clone().into(),
        ];
        words.extend(fault.map(|it| format!("{}@{}+{}", it.kind, it.round, it.rounds).into()));
        words
    }

    /// The environment of its runs.
    pub(crate) fn environment(&self) -> Option<(&'static str, String)> {
        let partitions = self.partitions.as_ref()?;
        Some(("OVERHEAR_EPOS_CPUSETS", partitions.thread_files()))
    }
}

impl Run {
    /// Reads what the program has printed, among other lines; `Err` has the reason for a refused
    /// scheduling policy.
    pub(crate) fn read(output: &Output) -> Result<Self, String> {
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        // Under `overhear run --json` the program's output is on standard error.
        let run = Self::parse(&format!("{text}\n{errors}"));
        if run.jobs.is_empty() {
            let why = errors.lines().find(|line| line.contains(" is refused"));
            let why = why.ok_or_else(|| format!("{}\n{text}{errors}", output.status))?;
            return Err(why.to_owned());
        }
        Ok(run)
    }

    fn parse(text: &str) -> Self {
        let mut run = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(',').collect();
            let [task, _, release, end, cpu, instructions, cycles, faulty] = fields[..] else {
                continue;
            };
            let (true, Ok(cpu_ns)) = (TASKS.contains(&task), cpu.parse()) else {
                continue;
            };
            let count = |text: &str| text.parse().ok().filter(|&it: &f64| it >= 0.0);
            let jobs = run.jobs.entry(task.to_owned()).or_default();
            jobs.push(Job {
                release_ns: release.parse().expect("a release"),
                end_ns: end.parse().expect("an end"),
                cpu_ns,
                instructions: count(instructions),
                cycles: count(cycles),
                is_faulty: faulty == "1",
            });
        }
        run
    }

    /// The mean over the jobs of a task.
    pub(crate) fn mean(&self, task: &str, value: impl Fn(&Job) -> Option<f64>) -> Option<f64> {
        let jobs = self.jobs.get(task)?;
        let values: Option<Vec<f64>> = jobs.iter().map(value).collect();
        let values = values.filter(|values| !values.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// `CPU_time` of a CPU in seconds ([EPOS, equation (3)]).
    pub(crate) fn cpu_seconds(&self, cpu: usize) -> f64 {
        let own = TASKS.iter().zip(CPU_OF).filter(|(_, of)| *of == cpu);
        let jobs = own.flat_map(|(task, _)| self.jobs.get(*task).into_iter().flatten());
        jobs.map(|job| job.cpu_ns).sum::<f64>() / 1e9
    }
}

#[test]
fn jobs_are_read_among_other_lines() {
    let text = "report\nT1,0,10,30,12,-1,-1,0\nT1,1,40,70,14,5,6,1\nT9,1,2\n";
    let run = Run::parse(text);
    let jobs = &run.jobs["T1"];
    assert_eq!(jobs.len(), 2);
    assert_eq!((jobs[0].instructions, jobs[0].is_faulty), (None, false));
    assert_eq!((jobs[1].instructions, jobs[1].is_faulty), (Some(5.0), true));
    assert_eq!(run.mean("T1", |job| Some(job.cpu_ns)), Some(13.0));
    assert_eq!(run.mean("T1", |job| job.cycles), None);
    assert!((run.cpu_seconds(1) - 26e-9).abs() < 1e-15);
}
