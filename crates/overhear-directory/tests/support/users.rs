// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of root, and the actions of ordinary users: tests of the same file that run as
//! another user, in processes of their own.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::manager::Manager;

/// Two ordinary users. Neither needs an account.
pub const MALLORY: u32 = 65_534;
pub const ALICE: u32 = 61_234;

/// The variable with the directory for a process of [`Other`].
const SOCKET: &str = "OVERHEAR_TEST_OF_ANOTHER_USER";

/// Whether this process may become other users; prints a line if not.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: it takes root to be two users");
    }
    is_root
}

/// `overheard` of root with this configuration, which all users can reach.
pub fn directory_of_root(configuration: &str) -> Manager {
    let mut manager = Manager::new(&[]);
    let file = manager.folder.path().join("directory.toml");
    std::fs::write(&file, configuration).unwrap();
    manager.arguments = vec!["--config".to_string(), file.display().to_string()];
    let mode = |path: &Path, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).unwrap();
    };
    mode(manager.folder.path(), 0o755);
    mode(&manager.socket, 0o666);
    manager.start();
    manager
}

/// The socket, in a process that [`Other`] started as another user; none in the tests' own process.
pub fn socket() -> Option<PathBuf> {
    std::env::var_os(SOCKET).map(PathBuf::from)
}

/// The tests' program; a copy in this folder if only its owner can execute it.
fn for_everybody(folder: &Path) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let is_open = |path: &Path| path.metadata().unwrap().permissions().mode() & 1 != 0;
    if own.ancestors().all(is_open) {
        return own;
    }
    let copy = folder.join("tests");
    if !copy.exists() {
        std::fs::copy(own, &copy).unwrap();
    }
    copy
}

/// A test of this file that is about to run as another user.
pub struct Prepared {
    uid: u32,
    command: Command,
    has_own_pids: bool,
}

impl Prepared {
    pub fn env(&mut self, name: &str, value: &str) {
        self.command.env(name, value);
    }

    /// It gets a pid namespace of its own.
    pub fn in_pid_namespace(&mut self) {
        self.has_own_pids = true;
    }

    #[track_caller]
    pub fn start(mut self) -> Other {
        let (uid, has_own_pids) = (self.uid, self.has_own_pids);
        let become_other = move || {
            if has_own_pids {
                // SAFETY: system calls without memory; the child goes on, its parent waits for it.
                unsafe {
                    libc::unshare(libc::CLONE_NEWPID);
                    let child = libc::fork();
                    if child > 0 {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        // A process that spawns another waits until the pipe to this process is
                        // closed.
                        libc::close_range(3, u32::MAX, 0);
                        let mut status = 0;
                        libc::waitpid(child, &raw mut status, 0);
                        libc::_exit(libc::WEXITSTATUS(status));
                    }
                }
            }
            // SAFETY: as above. The groups are set first, then the right to change them is dropped.
            unsafe {
                libc::setgroups(0, std::ptr::null());
                libc::setgid(uid);
                match libc::setuid(uid) {
                    // A change of the user resets it.
                    0 => libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL),
                    _ => return Err(std::io::Error::last_os_error()),
                };
                Ok(())
            }
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { self.command.pre_exec(become_other) };
        loop {
            match self.command.spawn() {
                Ok(child) => return Other(Some(child)),
                // A process that another thread has just forked still has the copy open that it
                // inherited.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {
                    std::thread::yield_now();
                }
                Err(error) => panic!("no other user runs the tests: {error}"),
            }
        }
    }

    /// Starts it and waits until it prints this line.
    #[track_caller]
    pub fn begin(self, line: &str) -> Other {
        let mut other = self.start();
        let child = other.0.as_mut().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // If it printed another line, it would wait for its end after that, and this test with it.
        let announced = lines.find_map(|found| found.ok().filter(|found| found.contains("@ ")));
        let begun = announced
            .as_ref()
            .is_some_and(|found| found.ends_with(line));
        assert!(begun, "{announced:?} instead of {line}");
        other
    }
}

/// A test of this file that runs as another user. It ends with this value at the latest.
pub struct Other(Option<Child>);

impl Other {
    #[track_caller]
    pub fn start(uid: u32, test: &str, socket: &Path) -> Self {
        Self::prepare(uid, test, socket).start()
    }

    pub fn prepare(uid: u32, test: &str, socket: &Path) -> Prepared {
        let mut command = Command::new(for_everybody(socket.parent().unwrap()));
        command
            .args(["--exact", test, "--nocapture"])
            .env(SOCKET, socket)
            .env("TMPDIR", "/tmp")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Prepared {
            uid,
            command,
            has_own_pids: false,
        }
    }

    /// Waits for its end; it must have passed. Returns what it printed.
    #[track_caller]
    pub fn passes(mut self) -> String {
        let child = self.0.take().unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        text
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A line of `/proc/PID/status` in bytes.
#[track_caller]
pub fn memory_of(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let number = |text: &str| text.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>();
    let kib = found.and_then(|text| number(text).ok());
    1024 * kib.unwrap_or_else(|| panic!("no {line} in {status}"))
}
