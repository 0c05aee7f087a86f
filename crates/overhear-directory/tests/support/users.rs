// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of root, and what ordinary users do with it: tests of the same file that run as somebody
//! else, in processes of their own.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::manager::Manager;

/// Two ordinary users. Neither needs an account.
pub const MALLORY: u32 = 65_534;
pub const ALICE: u32 = 61_234;

/// Names the directory to a process of [`Other`].
const SOCKET: &str = "OVERHEAR_TEST_OF_ANOTHER_USER";

/// Whether this process may become other users; says so if not.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: it takes root to be two users");
    }
    is_root
}

/// `overheard` of root with this configuration, which everybody can reach.
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

/// A test of this file that runs as another user. It ends with this value at the latest.
pub struct Other(Option<Child>);

impl Other {
    #[track_caller]
    pub fn start(uid: u32, test: &str, socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture"])
            .env(SOCKET, socket)
            .env("TMPDIR", "/tmp")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .uid(uid)
            .gid(uid);
        Self(Some(command.spawn().expect("another user runs the tests")))
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
