// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bound that commands run under, and control groups.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{setrlimit, Resource, Rlimit};

use crate::support::{overhear, Ended};

/// The memory limit of a command.
pub(crate) const BOUND: u64 = 128 << 20;

/// A command with a limit of private memory: beyond it allocations fail, and the command aborts.
/// Mapped files, as those of recordings, do not count.
pub(crate) fn limited(bytes: u64, arguments: &[&str]) -> Command {
    let mut command = overhear(arguments);
    let limit = move || {
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        setrlimit(Resource::Data, limit).map_err(std::io::Error::from)
    };
    // SAFETY: it makes one system call.
    unsafe { command.pre_exec(limit) };
    command
}

/// Runs a command to its end, without a timeout. Its output can be as large as its input, so it
/// goes to files.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Ended {
    let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let status = command
        .stdout(stdout.try_clone().unwrap())
        .stderr(stderr.try_clone().unwrap())
        .status()
        .unwrap();
    ended(status, stdout, stderr)
}

fn ended(status: std::process::ExitStatus, stdout: File, stderr: File) -> Ended {
    use std::os::unix::process::ExitStatusExt;
    let signal = || 128 + status.signal().unwrap_or_default();
    Ended {
        status: status.code().unwrap_or_else(signal),
        stdout: first_of(stdout),
        stderr: first_of(stderr),
    }
}

/// The first lines of a file that was written.
fn first_of(mut file: File) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.take(1 << 16).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// [`run`], within the bound.
#[track_caller]
pub(crate) fn bounded(arguments: &[&str]) -> Ended {
    let ended = run(&mut limited(BOUND, arguments));
    let is_aborted = ended.status == 128 + libc::SIGABRT || ended.stderr.contains("allocation");
    assert!(!is_aborted, "{arguments:?}: {ended:#?}");
    ended
}

/// Finds the maximum memory of a process: private, or shared with others. The kernel keeps no such
/// number, so the memory is sampled repeatedly.
pub(crate) struct Watch {
    end: mpsc::Sender<()>,
    thread: JoinHandle<u64>,
}

impl Watch {
    pub(crate) fn of(pid: u32) -> Self {
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut most = 0;
            while ended.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                most = own_bytes(pid).max(most);
            }
            most
        });
        Self { end, thread }
    }

    pub(crate) fn end(self) -> u64 {
        drop(self.end);
        self.thread.join().unwrap()
    }
}

fn own_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        number.unwrap_or(0)
    };
    (kib("RssAnon:") + kib("RssShmem:")) << 10
}

/// A control group with little memory, removed at the end.
pub(crate) struct Group(PathBuf);

impl Group {
    /// `None` if there are none, or if only root can create them.
    pub(crate) fn with_memory(bytes: u64) -> Option<Self> {
        let name = format!("overhear-test-{}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ] {
            let group = Self(PathBuf::from(root).join(&name));
            if fs::create_dir(&group.0).is_err() {
                continue;
            }
            // A folder of another kind has no such file, and does not permit a new one either.
            if group.0.join(limit).exists()
                && fs::write(group.0.join(limit), bytes.to_string()).is_ok()
            {
                let _ = fs::write(group.0.join("memory.swap.max"), "0");
                return Some(group);
            }
        }
        None
    }

    /// Starts the command in the group.
    pub(crate) fn take(&self, command: &mut Command) {
        let members = File::options()
            .write(true)
            .open(self.0.join("cgroup.procs"))
            .unwrap();
        let enter = move || {
            // Writing 0 adds the writer itself.
            rustix::io::write(&members, b"0").map_err(std::io::Error::from)?;
            Ok(())
        };
        // SAFETY: it makes one system call.
        unsafe { command.pre_exec(enter) };
    }

    /// Number of processes of the group that were killed because of lack of memory.
    pub(crate) fn killed(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"].map(|name| self.0.join(name));
        let texts = files
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok());
        let text = texts.collect::<String>();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A process with its output in files, whose memory is sampled.
pub(crate) struct Watched {
    child: Child,
    stdout: File,
    stderr: File,
    watch: Watch,
}

impl Watched {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().unwrap())
            .stderr(stderr.try_clone().unwrap())
            .spawn()
            .unwrap();
        let watch = Watch::of(child.id());
        Self {
            child,
            stdout,
            stderr,
            watch,
        }
    }

    /// Its status, and its maximum memory.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Ended, u64) {
        let status = self.child.wait().unwrap();
        let most = self.watch.end();
        (ended(status, self.stdout, self.stderr), most)
    }
}
