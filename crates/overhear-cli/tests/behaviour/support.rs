// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of all suites: they run `overhear` as a user does, with a watchdog against hangs.

#![allow(
    dead_code,
    reason = "two test binaries include this file, neither uses all of it"
)]

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than any test needs on a busy machine: a command that takes longer hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(300);

/// The command `overhear` with these arguments.
pub(crate) fn overhear(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overhear"));
    command.args(arguments).stdin(Stdio::null());
    // The sensors of the tests themselves are not connected.
    command.env_remove("OVERHEAR_DIRECTORY");
    // They may run in the background of a script, whose programs ignore interrupts.
    disposition(&mut command, libc::SIGINT, libc::SIG_DFL);
    command
}

/// Exit status and output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts the exit status, that one line of standard error contains these parts, and that the
    /// command did not panic.
    #[track_caller]
    pub(crate) fn has_message(&self, status: i32, parts: &[&str]) {
        assert_eq!(self.status, status, "{self:#?}");
        self.does_not_panic();
        let mut lines = self.stderr.lines();
        let is_there = lines.any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(is_there, "no line with {parts:?} in {self:#?}");
    }

    /// As [`has_message`](Self::has_message); the line is the only one.
    #[track_caller]
    pub(crate) fn has_only_message(&self, status: i32, parts: &[&str]) {
        self.has_message(status, parts);
        assert_eq!(self.stderr.lines().count(), 1, "{self:#?}");
    }

    #[track_caller]
    pub(crate) fn does_not_panic(&self) {
        for word in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
            assert!(!self.stderr.contains(word), "{self:#?}");
        }
    }
}

/// A started command whose output goes to files, so that descendants which outlive it and hold
/// its output open cannot hang the test.
pub(crate) struct Started {
    pub(crate) child: Child,
    stdout: File,
    stderr: File,
}

impl Started {
    #[track_caller]
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let child = command
            .stdout(stdout.try_clone().unwrap())
            .stderr(stderr.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            stdout,
            stderr,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: i32) {
        send(self.pid(), signal);
    }

    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let status = wait(&mut self.child);
        Ended {
            status,
            stdout: text(&mut self.stdout),
            stderr: text(&mut self.stderr),
        }
    }
}

/// Waits for the end; a command that hangs is killed and fails the test. The status is the one
/// a shell would show.
#[track_caller]
pub(crate) fn wait(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        }
        if begun.elapsed() > WATCHDOG {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the command did not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Has the command start with this action for SIGHUP: the tests themselves may run under `nohup`.
pub(crate) fn hangups(command: &mut Command, action: libc::sighandler_t) {
    disposition(command, libc::SIGHUP, action);
}

/// Has the command start with this action for a signal.
pub(crate) fn disposition(command: &mut Command, signal: libc::c_int, action: libc::sighandler_t) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec only an async-signal-safe call is made.
    unsafe {
        command.pre_exec(move || {
            libc::signal(signal, action);
            Ok(())
        });
    }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Ended {
    Started::spawn(command).end()
}

/// Sends a signal to a process that a test started.
pub(crate) fn send(pid: i32, signal: i32) {
    // SAFETY: a system call without memory.
    let _ = unsafe { libc::kill(pid, signal) };
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WATCHDOG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The text of a file that a program has written, once it is there and ends with a line feed.
#[track_caller]
pub(crate) fn awaited(file: &Path) -> String {
    let mut text = String::new();
    eventually("the program writes its file", || {
        text = fs::read_to_string(file).unwrap_or_default();
        text.ends_with('\n')
    });
    text
}

/// A fresh folder. All users can enter it, because some tests run the command as another user.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a program under `overhear run --json` and returns the report.
#[track_caller]
pub(crate) fn run_json(options: &[&str], program: &[&str]) -> (Ended, Value) {
    let (ended, report) = run_json_with_panics(options, program);
    ended.does_not_panic();
    (ended, report)
}

/// As [`run_json`], with a plug-in that may panic: Rust itself then prints a message on standard
/// error.
#[track_caller]
pub(crate) fn run_json_with_panics(options: &[&str], program: &[&str]) -> (Ended, Value) {
    let folder = folder();
    let file = folder.path().join("report.json");
    let json = format!("--json={}", file.display());
    let arguments = [&["run", &json], options, &["--"], program].concat();
    let ended = finish(&mut overhear(&arguments));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {ended:#?}"));
    (ended, serde_json::from_str(&text).unwrap())
}

/// The report on a recording, and the output of its command.
#[track_caller]
pub(crate) fn report_json(directory: &Path) -> (Ended, Value) {
    let ended = finish(&mut overhear(&["report", "--json", path(directory)]));
    ended.does_not_panic();
    let report =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:#?}"));
    (ended, report)
}

/// Whether babeltrace2 is installed; prints "skipped" if not.
pub(crate) fn has_babeltrace() -> bool {
    let found = Command::new("babeltrace2")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: babeltrace2 is not installed");
    }
    found
}

/// Whether its library is installed; prints "skipped" if not.
pub(crate) fn has_libbabeltrace() -> bool {
    let found = overhear_trace::ForeignTrace::available();
    if let Err(error) = &found {
        println!("skipped: {error}");
    }
    found.is_ok()
}

/// Events and discarded events of a trace, as babeltrace2 counts them; it must exit with 0.
#[track_caller]
pub(crate) fn babeltrace(directory: &Path) -> (u64, u64) {
    let counter = Command::new("babeltrace2")
        .arg(directory)
        .arg("--component=sink.utils.counter")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&counter.stderr);
    assert!(counter.status.success(), "babeltrace2: {errors}");
    let counter = String::from_utf8_lossy(&counter.stdout).into_owned();
    // It prints its counts repeatedly; the last ones are those of the complete trace.
    let events = counter
        .lines()
        .rev()
        .filter(|line| line.contains("Event message"))
        .find_map(|line| {
            line.split_whitespace()
                .next()?
                .replace(',', "")
                .parse()
                .ok()
        });
    // The text component warns of every loss, with its number. Events themselves are not read.
    let texts = Command::new("babeltrace2")
        .arg(directory)
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let warnings = String::from_utf8_lossy(&texts.stderr);
    let discarded = warnings
        .lines()
        .filter(|line| line.contains("discarded"))
        .filter_map(|line| {
            line.split_whitespace()
                .find_map(|word| word.parse::<u64>().ok())
        })
        .sum();
    (events.unwrap_or(0), discarded)
}

/// Children of a process, from the kernel's list.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    // Children of every thread: a thread of its own forks the program.
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let mut all: Vec<i32> = Vec::new();
    for task in tasks.into_iter().flatten().flatten() {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(
            list.split_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    all
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The command `overhear` as the user nobody, if the tests may become that user and the user may
/// execute the binary. Otherwise it prints "skipped" and returns `None`.
pub(crate) fn as_nobody(arguments: &[&str]) -> Option<Command> {
    use std::os::unix::process::CommandExt;
    let command = |arguments: &[&str]| {
        let mut command = overhear(arguments);
        command.uid(65_534).gid(65_534).current_dir("/");
        command
    };
    let runs = |mut probe: Command| probe.output().is_ok_and(|output| output.status.success());
    if is_root() && runs(command(&["--version"])) {
        return Some(command(arguments));
    }
    println!("skipped: only root can become another user, who must be able to run the binary");
    None
}

/// Compiles a plug-in of this repository; `None` if there is no compiler.
pub(crate) fn plugin(
    compiler: &str,
    standard: &str,
    source: &str,
    place: &Path,
) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"])
        .args(["-shared", "-fPIC", "-I"])
        .arg(root.join("include"))
        .arg(root.join(source))
        .arg("-o")
        .arg(place)
        .output();
    let Ok(output) = output else {
        println!("skipped: the compiler {compiler} is not installed");
        return None;
    };
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    Some(place.to_path_buf())
}
