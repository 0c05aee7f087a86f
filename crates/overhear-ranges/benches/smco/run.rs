// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of a workload: CPU time and memory by the kernel, ranges from the results files.
//!
//! Both programs of a pair run at the same time on one processor, which they share in slices of
//! milliseconds. So both have the same clock frequency, the same neighbours and the same caches;
//! one after the other they differ by tens of per cent on a machine with other work.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use overhear_ranges::results::Results;
use tempfile::TempDir;

/// Names the processor of all runs; else it is the first one.
const PROCESSOR_VARIABLE: &str = "OVERHEAR_BENCH_PROCESSOR";

/// Length of a bucket in figure 14.
const BUCKET: Duration = Duration::from_millis(400);

/// What a run may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    Off,
    /// In per cent.
    Target(f64),
    Full,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Target(percent) => write!(f, "{percent} %"),
            Self::Full => f.write_str("full"),
        }
    }
}

/// A script with two builds of a program.
pub(crate) struct Workload {
    pub(crate) name: String,
    script: String,
    pub(crate) plain: PathBuf,
    pub(crate) instrumented: PathBuf,
}

/// A run.
pub(crate) struct Outcome {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_kib: f64,
    pub(crate) updates: u64,
    /// Overhead by the estimate of the budget in per cent, if there was one.
    pub(crate) estimate: Option<f64>,
    results: Results,
}

impl Outcome {
    /// For each variable that the reference updates: its updates there, and the part of its range
    /// there that this run has found [SMCO, section 4.3.3].
    pub(crate) fn accuracies(&self, reference: &Self) -> Vec<(u64, f64)> {
        let width = |(low, high): (i128, i128)| (high - low + 1) as f64;
        let mut list = Vec::new();
        for (declaration, full) in &reference.results.variables {
            let Some(range) = full.range else { continue };
            let found = self.results.variables.get(declaration);
            let found = found.and_then(|it| it.range).map_or(0.0, width);
            list.push((full.updates, found / width(range)));
        }
        list
    }
}

impl Workload {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let [name, script, plain, instrumented] = text.split('=').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Self {
            name: name.to_owned(),
            script: script.to_owned(),
            plain: plain.into(),
            instrumented: instrumented.into(),
        })
    }

    fn command(&self, program: &Path, scratch: &Path) -> Command {
        let processor = std::env::var(PROCESSOR_VARIABLE).unwrap_or_else(|_| "0".to_owned());
        let mut command = Command::new("taskset");
        command
            .args(["-c", &processor, "sh", "-c", &self.script])
            .env("PROGRAM", program)
            .env("SCRATCH", scratch)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_remove("OVERHEAR_RANGES")
            .env_remove("OVERHEAR_RANGES_BUDGET");
        command
    }

    fn observing(&self, folder: &Path, budget: Budget) -> Command {
        let mut command = self.command(&self.instrumented, folder);
        let text = match budget {
            Budget::Off => "off".to_owned(),
            Budget::Full => "full".to_owned(),
            Budget::Target(percent) => format!("{}", percent / 100.0),
        };
        command
            .env("OVERHEAR_RANGES", folder)
            .env("OVERHEAR_RANGES_BUDGET", text);
        command
    }

    /// A run of the instrumented program beside one of the plain program.
    pub(crate) fn pair(&self, budget: Budget, is_first: bool) -> Result<[Outcome; 2], String> {
        let (folder, scratch) = (scratch_folder()?, scratch_folder()?);
        let mut observing = self.observing(folder.path(), budget);
        let mut plain = self.command(&self.plain, scratch.path());
        let (observing, plain) = if is_first {
            let first = Running::start(&mut observing)?;
            (first, Running::start(&mut plain)?)
        } else {
            let first = Running::start(&mut plain)?;
            (Running::start(&mut observing)?, first)
        };
        let (cpu_seconds, resident_kib) = observing.finish()?;
        let observed = self.outcome(folder.path(), cpu_seconds, resident_kib)?;
        let (cpu_seconds, resident_kib) = plain.finish()?;
        let plain = Outcome {
            cpu_seconds,
            resident_kib,
            updates: 0,
            estimate: None,
            results: Results::default(),
        };
        Ok([observed, plain])
    }

    fn outcome(
        &self,
        folder: &Path,
        cpu_seconds: f64,
        resident_kib: f64,
    ) -> Result<Outcome, String> {
        let results = Results::read_folder(folder).map_err(|error| error.to_string())?;
        if let Some(fault) = results.faults.first() {
            return Err(fault.clone());
        }
        if results.processes == 0 {
            let program = self.instrumented.display();
            return Err(format!("{program} has no instrumented functions"));
        }
        let usage = results.cost;
        let own = usage.cpu_ns - usage.updates_ns - usage.machinery_ns;
        Ok(Outcome {
            cpu_seconds,
            resident_kib,
            updates: results.functions.values().map(|it| it.updates).sum(),
            estimate: (own > 0.0).then(|| 100.0 * (usage.updates_ns + usage.machinery_ns) / own),
            results,
        })
    }

    /// A run with every update recorded, during which the counts are read every 0.4 s.
    #[expect(clippy::type_complexity, reason = "names and columns of one figure")]
    pub(crate) fn full_run(&self) -> Result<(Outcome, Vec<(String, Vec<f64>)>), String> {
        let folder = scratch_folder()?;
        let running = Running::start(&mut self.observing(folder.path(), Budget::Full))?;
        let child = thread::spawn(move || running.finish());
        let mut samples = Vec::new();
        while !child.is_finished() {
            thread::sleep(BUCKET);
            samples.extend(Results::read_folder(folder.path()));
        }
        let (cpu_seconds, resident_kib) =
            child.join().map_err(|_| "the run failed".to_owned())??;
        let outcome = self.outcome(folder.path(), cpu_seconds, resident_kib)?;
        let mut order: Vec<_> = outcome.results.variables.iter().collect();
        order.sort_by_key(|(_, observed)| std::cmp::Reverse(observed.updates));
        let mut histograms = Vec::new();
        for place in [0, 98] {
            let Some((declaration, _)) = order.get(place) else {
                continue;
            };
            let mut before = 0;
            let mut buckets = Vec::new();
            for sample in &samples {
                let now = sample
                    .variables
                    .get(*declaration)
                    .map_or(0, |it| it.updates);
                buckets.push(now.saturating_sub(before) as f64);
                before = now.max(before);
            }
            let name = match declaration.function.as_str() {
                "" => declaration.name.clone(),
                function => format!("{} of {function}", declaration.name),
            };
            histograms.push((name, buckets));
        }
        Ok((outcome, histograms))
    }

    /// Bytes of a program without its debug information.
    pub(crate) fn stripped_bytes(program: &Path) -> Option<u64> {
        let folder = TempDir::new().ok()?;
        let copy = folder.path().join("copy");
        let mut strip = Command::new("strip");
        let status = strip.arg("-o").arg(&copy).arg(program).status().ok()?;
        status
            .success()
            .then(|| fs::metadata(&copy).ok())?
            .map(|it| it.len())
    }
}

fn scratch_folder() -> Result<TempDir, String> {
    TempDir::new_in("/dev/shm").map_err(|error| format!("/dev/shm: {error}"))
}

/// A command that runs.
struct Running {
    pid: libc::pid_t,
    command: String,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self, String> {
        let child = command.spawn().map_err(|error| error.to_string())?;
        Ok(Self {
            pid: libc::pid_t::try_from(child.id()).map_err(|error| error.to_string())?,
            command: format!("{command:?}"),
        })
    }

    /// Waits for the end; returns user and system time of all of its processes in seconds, and
    /// their largest resident memory in KiB.
    fn finish(self) -> Result<(f64, f64), String> {
        let mut status = 0;
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both places are valid; the child is ours, and nobody else waits for it.
        let waited = unsafe { libc::wait4(self.pid, &mut status, 0, usage.as_mut_ptr()) };
        // SAFETY: zeros are a value of `rusage`.
        let usage = unsafe { usage.assume_init() };
        if waited != self.pid || status != 0 {
            let command = self.command;
            return Err(format!("{command} failed with the wait status {status}"));
        }
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        Ok((cpu, usage.ru_maxrss as f64))
    }
}
