// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs `overhear` on a program, and reads what it reports and records.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{Analysis, ElementView, Gap, Origin, StreamDescriptor, Timestamp};
use overhear_trace::TraceReader;
use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub(crate) const OVERHEAR: &str = env!("CARGO_BIN_EXE_overhear");

/// Both backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Bpf,
    Perf,
}

impl Backend {
    const fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::Perf => "perf",
        }
    }

    /// Whether it works here. If not, the test prints the reason and counts as skipped.
    pub(crate) fn works(self) -> bool {
        let work_folder = tempfile::tempdir().unwrap();
        let output = Overhear::new(&work_folder)
            .backend(self)
            .command(["true"])
            .output()
            .unwrap();
        // 5: a permission or a feature of the kernel is missing.
        if output.status.code() == Some(5) {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
            return false;
        }
        true
    }
}

/// One test at a time: each needs the machine's few CPUs for its program and its monitor.
pub(crate) fn cpu_lock() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid only returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Whether a tool is installed; prints "skipped" if not.
pub(crate) fn has_tool(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if !found {
        println!("skipped: {name} is not installed");
    }
    found
}

/// A C program of this folder, compiled at its first use.
fn compiled(cell: &'static OnceLock<PathBuf>, name: &str) -> &'static Path {
    cell.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counts");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("counts-{name}"));
        let status = Command::new("cc")
            .args([
                "-std=gnu11",
                "-O1",
                "-g",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
            ])
            .arg(source.join(format!("{name}.c")))
            .arg("-o")
            .arg(&program)
            .status()
            .expect("the tests need the C compiler cc");
        assert!(status.success(), "cc cannot compile {name}.c");
        program
    })
}

/// A program with different kinds of work; see `workload.c`.
pub(crate) fn workload() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    compiled(&PROGRAM, "workload")
}

/// A program with every event of the built-in metrics; see `eventful.c`.
pub(crate) fn eventful() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    compiled(&PROGRAM, "eventful")
}

/// Runs jobs that end in different ways; see `jobs.c`.
pub(crate) fn jobs() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    compiled(&PROGRAM, "jobs")
}

/// Calls functions that can be probed; see `called.c`.
pub(crate) fn called() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    compiled(&PROGRAM, "called")
}

/// Runs another program and prints its rusage, or forbids it system calls; see `wrapper.c`.
pub(crate) fn wrapper() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    compiled(&PROGRAM, "wrapper")
}

/// A prepared `overhear run`: its report and trace go to a folder of the test.
pub(crate) struct Overhear {
    /// The command, with the program last: a wrapper may come first.
    front: Vec<OsString>,
    backend: Option<Backend>,
    sensors: Option<&'static str>,
    json: PathBuf,
    trace: PathBuf,
}

impl Overhear {
    pub(crate) fn new(work_folder: &TempDir) -> Self {
        Self {
            front: vec![OVERHEAR.into()],
            backend: None,
            sensors: None,
            json: work_folder.path().join("report.json"),
            trace: work_folder.path().join("out"),
        }
    }

    pub(crate) fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// With these kernel sensors in addition to scheduling.
    pub(crate) fn sensors(mut self, sensors: &'static str) -> Self {
        self.sensors = Some(sensors);
        self
    }

    /// Another copy of the program, or one that another program starts.
    pub(crate) fn front(mut self, front: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.front = front.into_iter().map(Into::into).collect();
        self
    }

    /// The command that runs `program` under it.
    pub(crate) fn command(&self, program: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.front[0]);
        command.args(&self.front[1..]).args(["run", "--quiet"]);
        if let Some(backend) = self.backend {
            command.args(["--backend", backend.name()]);
        }
        if let Some(sensors) = self.sensors {
            command.args(["--kernel-sensors", sensors]);
        }
        let mut json = OsString::from("--json=");
        json.push(&self.json);
        command.arg(json).arg("--out").arg(&self.trace);
        command.arg("--").args(program).stdin(Stdio::null());
        command
    }

    /// Runs it to its end and reads its results. It must end well and miss nothing.
    pub(crate) fn run(&self, program: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Found {
        let output = self.command(program).output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        let found = self.found();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{messages}{:#}",
            found.report
        );
        found
    }

    /// The recording of an ended run.
    pub(crate) fn found(&self) -> Found {
        let json = fs::read(&self.json).unwrap();
        let report: Value = serde_json::from_slice(&json).unwrap();
        let mut events = KernelEvents::default();
        let reader = TraceReader::open(&self.trace).unwrap();
        let replayed = reader.replay(&mut [&mut events]);
        assert_eq!(report["trace"]["events"], replayed.events);
        let found = Found { report, events };
        found.assert_nothing_missed();
        found
    }

    pub(crate) fn trace(&self) -> &Path {
        &self.trace
    }
}

/// Results of a run.
pub(crate) struct Found {
    pub(crate) report: Value,
    pub(crate) events: KernelEvents,
}

impl Found {
    fn assert_nothing_missed(&self) {
        let report = &self.report;
        assert_eq!(report["losses"], serde_json::json!([]));
        assert_eq!(report["missed_total"], 0);
        assert_eq!(report["complete"], true, "{}", report["notes"]);
        assert_eq!(self.events.missed, 0);
        // The state of the first thread is unknown when its following begins.
        for thread in self.threads().skip(1) {
            assert_eq!(thread["unknown_ns"], 0, "{thread}");
        }
    }

    pub(crate) fn threads(&self) -> impl Iterator<Item = &Value> {
        self.report["threads"].as_array().unwrap().iter()
    }

    /// The first thread with this id.
    pub(crate) fn thread(&self, tid: u32) -> &Value {
        self.threads().find(|thread| thread["tid"] == tid).unwrap()
    }

    /// `bpf`, `perf` or `none`, and why.
    pub(crate) fn kernel_source(&self) -> (&str, &str) {
        let source = &self.report["sources"][0];
        assert_eq!(source["name"], "kernel");
        let text = |member: &str| source[member].as_str().unwrap();
        (text("active"), text("message"))
    }
}

/// Recorded kernel events, in the order of time.
#[derive(Default)]
pub(crate) struct KernelEvents {
    pub(crate) switches: Vec<(Timestamp, Switch)>,
    /// With the CPU of the waker.
    pub(crate) wakes: Vec<(Timestamp, u32, Wake)>,
    pub(crate) lives: Vec<(Timestamp, Life)>,
    missed: u64,
}

impl KernelEvents {
    /// Voluntary and involuntary departures of a thread in this span, its end included.
    pub(crate) fn departures(&self, tid: u32, after: Timestamp, until: Timestamp) -> (u64, u64) {
        let (mut voluntary, mut involuntary) = (0, 0);
        for (time, switch) in &self.switches {
            let departs = switch.prev_tid == tid && switch.flags & Switch::PREV_TRACKED != 0;
            if departs && *time > after && *time <= until {
                match switch.is_voluntary() {
                    true => voluntary += 1,
                    false => involuntary += 1,
                }
            }
        }
        (voluntary, involuntary)
    }
}

impl Analysis for KernelEvents {
    fn element(&mut self, element: &ElementView<'_>) {
        let (time, payload) = (element.time, element.payload);
        match element.stream.sensor.as_str() {
            SCHED_SWITCH => self.switches.push((time, Switch::parse(payload).unwrap())),
            SCHED_WAKE => {
                let Origin::Kernel { cpu } = element.stream.origin else {
                    panic!("a wake-up from elsewhere");
                };
                self.wakes.push((time, cpu, Wake::parse(payload).unwrap()));
            }
            TASK_LIFE => self.lives.push((time, Life::parse(payload).unwrap())),
            _ => {}
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        self.missed += gap.missed;
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// `workload park` under observation.
pub(crate) struct Parked {
    overhear: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Voluntary and involuntary switches by thread, and the time of the reading.
pub(crate) type Counts = (Timestamp, BTreeMap<u32, (u64, u64)>);

impl Parked {
    pub(crate) fn start(overhear: &Overhear) -> Self {
        let program = [workload().as_os_str(), OsStr::new("park")];
        let mut command = overhear.command(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut overhear = command.spawn().unwrap();
        Self {
            input: overhear.stdin.take(),
            output: BufReader::new(overhear.stdout.take().unwrap()),
            overhear,
        }
    }

    /// Waits for the next rest and reads the kernel's counts of all threads.
    pub(crate) fn counts(&mut self) -> (u32, Counts) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let pid = line.trim().strip_prefix("rests ").unwrap().parse().unwrap();
        (pid, settled_counts(pid))
    }

    /// Ends the first rest.
    pub(crate) fn go_on(&mut self) {
        let input = self.input.as_mut().unwrap();
        input.write_all(&[0]).unwrap();
    }

    /// Ends every rest, and with it the program.
    pub(crate) fn end(mut self) {
        self.input = None;
        let status = self.overhear.wait().unwrap();
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.input = None;
        // After a failed assertion; the program ends with its input.
        let _ = self.overhear.wait();
    }
}

/// The kernel's counts when all threads sleep and the counts are stable, and a time at which they
/// were.
fn settled_counts(pid: u32) -> Counts {
    let mut last = None;
    let mut same = 0;
    loop {
        let counts = counts_now(pid);
        same = if counts.is_some() && counts == last {
            same + 1
        } else {
            0
        };
        // The time lies between two equal readings.
        let now = overhear_directory::monotonic_now();
        if let (Some(settled), 3) = (&counts, same) {
            if counts_now(pid).as_ref() == Some(settled) {
                return (now, settled.clone());
            }
        }
        last = counts;
        thread::sleep(Duration::from_millis(10));
    }
}

/// The kernel's counts; `None` if a thread does not sleep.
fn counts_now(pid: u32) -> Option<BTreeMap<u32, (u64, u64)>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let path = entry.unwrap().path();
        let status = fs::read_to_string(path.join("status")).unwrap();
        let field = |key: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap()
        };
        if !field("State:").trim().starts_with('S') {
            return None;
        }
        let number = |key: &str| field(key).trim().parse().unwrap();
        let counts = (
            number("voluntary_ctxt_switches:"),
            number("nonvoluntary_ctxt_switches:"),
        );
        all.insert(path.file_name()?.to_str()?.parse().ok()?, counts);
    }
    Some(all)
}
