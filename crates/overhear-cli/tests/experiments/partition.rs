// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cpusets that own a CPU each, so that threads in them can have SCHED_DEADLINE and stay on it.
//!
//! In version 2 of cgroups these are partitions (`cpuset.cpus.partition`). In version 1 they are
//! exclusive cpusets, and the root must not balance load between all CPUs; the value that it had is
//! restored. Everything is removed when [`Partitions`] is dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The partitions of CPU 1 to 3.
pub(crate) struct Partitions {
    groups: Vec<PathBuf>,
    /// The file with the ids of a group's threads.
    members: &'static str,
    /// Files to write in the end, with their values.
    restored: Vec<(PathBuf, String)>,
}

/// What stands at the top of a hierarchy with cpusets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Partitions {
    /// Takes CPU 1 to 3 away from all other programs; `Err` has the reason why not.
    pub(crate) fn new() -> Result<Self, String> {
        Self::below(Path::new("/sys/fs/cgroup"))
    }

    fn below(mounts: &Path) -> Result<Self, String> {
        let (root, version) = hierarchy(mounts).ok_or("no hierarchy of cgroups has cpusets")?;
        let mut made = Self {
            groups: Vec::new(),
            members: match version {
                Version::One => "tasks",
                Version::Two => "cgroup.threads",
            },
            restored: Vec::new(),
        };
        let outcome = match version {
            Version::One => made.make_one(&root),
            Version::Two => made.make_two(&root),
        };
        outcome
            .map_err(|error| format!("no CPU can be set apart in {}: {error}", root.display()))?;
        Ok(made)
    }

    fn make_one(&mut self, root: &Path) -> io::Result<()> {
        // The kernel's files have this prefix, except in old mounts.
        let memory = fs::read_to_string(root.join("cpuset.mems"))?;
        let balance = root.join("cpuset.sched_load_balance");
        if root.join("overhear-epos-1").exists() {
            // An experiment was killed: the value that it found is not known any more.
            fs::write(&balance, "1")?;
        }
        for cpu in 1..=3 {
            let group = root.join(format!("overhear-epos-{cpu}"));
            fs::create_dir_all(&group)?;
            self.groups.push(group.clone());
            fs::write(group.join("cpuset.mems"), memory.trim())?;
            fs::write(group.join("cpuset.cpus"), cpu.to_string())?;
            fs::write(group.join("cpuset.cpu_exclusive"), "1")?;
        }
        self.replace(&balance, "0")
    }

    fn make_two(&mut self, root: &Path) -> io::Result<()> {
        let control = root.join("cgroup.subtree_control");
        let is_on = fs::read_to_string(&control)?
            .split_whitespace()
            .any(|it| it == "cpuset");
        if !is_on {
            fs::write(&control, "+cpuset")?;
            self.restored.push((control, "-cpuset".to_owned()));
        }
        for cpu in 1..=3 {
            let group = root.join(format!("overhear-epos-{cpu}"));
            fs::create_dir_all(&group)?;
            self.groups.push(group.clone());
            fs::write(group.join("cgroup.type"), "threaded")?;
            fs::write(group.join("cpuset.cpus"), cpu.to_string())?;
            let partition = group.join("cpuset.cpus.partition");
            fs::write(&partition, "root")?;
            let state = fs::read_to_string(&partition)?;
            if state.contains("invalid") {
                return Err(io::Error::other(state.trim().to_owned()));
            }
        }
        Ok(())
    }

    /// Writes a file, whose value is restored in the end.
    fn replace(&mut self, file: &Path, value: &str) -> io::Result<()> {
        let before = fs::read_to_string(file)?.trim().to_owned();
        fs::write(file, value)?;
        self.restored.push((file.to_path_buf(), before));
        Ok(())
    }

    /// The files to which a thread's id is written, with colons between them.
    pub(crate) fn thread_files(&self) -> String {
        let files = self.groups.iter().map(|group| group.join(self.members));
        let files: Vec<String> = files.map(|file| file.display().to_string()).collect();
        files.join(":")
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        // Threads of a program that ended a moment ago may still be members.
        for group in &self.groups {
            for _ in 0..100 {
                match fs::remove_dir(group) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    _ => break,
                }
            }
        }
        for (file, value) in &self.restored {
            let _ = fs::write(file, value);
        }
    }
}

/// The root of the hierarchy with cpusets.
fn hierarchy(mounts: &Path) -> Option<(PathBuf, Version)> {
    let one = mounts.join("cpuset");
    if one.join("cpuset.sched_load_balance").exists() {
        return Some((one, Version::One));
    }
    let two = [mounts.to_path_buf(), mounts.join("unified")];
    let two = two.into_iter().find(|root| {
        let controllers = fs::read_to_string(root.join("cgroup.controllers"));
        controllers.is_ok_and(|text| text.split_whitespace().any(|it| it == "cpuset"))
    })?;
    Some((two, Version::Two))
}

#[test]
fn files_of_version_one_are_written_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cpuset");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("cpuset.mems"), "0\n").unwrap();
    fs::write(root.join("cpuset.sched_load_balance"), "1\n").unwrap();
    let made = Partitions::below(folder.path()).unwrap();
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    assert_eq!(read("cpuset.sched_load_balance"), "0");
    assert_eq!(read("overhear-epos-2/cpuset.cpus"), "2");
    assert_eq!(read("overhear-epos-3/cpuset.cpu_exclusive"), "1");
    let files = made.thread_files();
    assert!(files.ends_with("overhear-epos-3/tasks") && files.matches(':').count() == 2);
    drop(made);
    assert_eq!(read("cpuset.sched_load_balance"), "1");
}

#[test]
fn files_of_version_two_are_written_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("cgroup.controllers"), "cpuset cpu\n").unwrap();
    fs::write(root.join("cgroup.subtree_control"), "cpu\n").unwrap();
    let made = Partitions::below(root).unwrap();
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    assert_eq!(read("cgroup.subtree_control"), "+cpuset");
    assert_eq!(read("overhear-epos-1/cpuset.cpus.partition"), "root");
    assert_eq!(read("overhear-epos-1/cgroup.type"), "threaded");
    drop(made);
    assert_eq!(read("cgroup.subtree_control"), "-cpuset");
    let none = tempfile::tempdir().unwrap();
    assert!(Partitions::below(none.path()).is_err());
}
