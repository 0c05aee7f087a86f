// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dedicated CPU for a monitor: a cpuset partition, made before a guarantee begins and removed
//! after its end. The *exclusive* level is based on it: on a CPU that no other reservation can
//! reach, deadline scheduling is exact.
//!
//! A partition is a control group with one CPU and a root domain of its own. If the cpuset
//! controller is in the hierarchy of version 2 ([`v2`]), the kernel takes the CPU away from all
//! other groups. If it is in version 1 ([`v1`]), threads of normal priority may stay on the CPU; a
//! reservation precedes them. The versions differ here and nowhere else.
//!
//! The group's name has the id and the start time of the process that made it. The partition of a
//! killed process is found by this name and removed when the next partition is made, or by
//! [`Partition::clear_leftovers`]. Makers exclude each other by a lock on the hierarchy's root,
//! which the kernel releases with its holder.

mod names;
mod v1;
mod v2;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::scheduler::deadline_threads;
use names::{GroupName, Hierarchy, Version};

/// Time limit for the lock: making a partition takes milliseconds, so a lock held longer is
/// foreign.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts to take the lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Why a partition cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// No hierarchy with cpusets.
    #[error(
        "no CPU can be set apart: no hierarchy of control groups with the cpuset controller is mounted \
         here; mount one (`mount -t cgroup2 none /sys/fs/cgroup`), or ask for level \"shared\""
    )]
    NoCpusets,
    /// The caller may not make control groups.
    #[error(
        "no CPU can be set apart: this user may not make control groups in {}; run as root, or start the \
         monitor in a partition that is there (docs/executors.md), or ask for level \"shared\"",
        .root.display()
    )]
    NotPermitted {
        /// The root of the hierarchy.
        root: PathBuf,
    },
    /// No CPU would be left for other work.
    #[error("no CPU can be set apart: {free} of the machine's CPUs are free, and one must be left for the others")]
    TooFew {
        /// CPUs that are in no partition.
        free: usize,
    },
    /// The requested CPU does not exist, or is in a partition.
    #[error("CPU {cpu} cannot be set apart: it is not there, or in another partition")]
    NotFree {
        /// The CPU.
        cpu: u32,
    },
    /// A thread has reserved time on it.
    #[error("CPU {cpu} cannot be set apart: thread {tid} has reserved CPU time that may lie there; end it")]
    Reserved {
        /// The CPU.
        cpu: u32,
        /// The thread with the reservation.
        tid: u32,
    },
    /// Another process holds the lock of makers of partitions.
    #[error(
        "no CPU can be set apart: somebody has held a lock on {} for {waited:?}; see who does (`lslocks`)",
        .root.display()
    )]
    Locked {
        /// The root of the hierarchy.
        root: PathBuf,
        /// Time of the wait.
        waited: Duration,
    },
    /// The kernel does not accept the partition.
    #[error("CPU {cpu} cannot be set apart: the kernel's reason is `{reason}`")]
    Invalid {
        /// The CPU.
        cpu: u32,
        /// The kernel's text about the partition.
        reason: String,
    },
    /// A file of the control groups cannot be read or written.
    #[error("no CPU can be set apart: {}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A dedicated CPU. It is released when this is dropped; if the process is killed, when the next
/// partition is made.
#[derive(Debug)]
pub struct Partition {
    hierarchy: Hierarchy,
    name: GroupName,
    group: PathBuf,
    cpu: u32,
    threaded: bool,
}

/// The calling thread is in the partition as long as this lives.
#[derive(Debug)]
pub struct PartitionGuard {
    // The file that takes it back, and what is written there.
    back: PathBuf,
    tid: u32,
    // It is this thread that is inside.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Partition {
    /// Makes a partition of `cpu`, or, if that is `None`, of the last free CPU.
    ///
    /// Leftovers of earlier processes are cleared first.
    ///
    /// # Errors
    /// [`PartitionError`]; then nothing has changed.
    pub fn make(cpu: Option<u32>) -> Result<Self, PartitionError> {
        let hierarchy = Hierarchy::of_this_process().ok_or(PartitionError::NoCpusets)?;
        let _lock = lock(&hierarchy.root)?;
        clear(&hierarchy)?;
        let taken: Vec<u32> = groups(&hierarchy)?
            .iter()
            .flat_map(|(_, group)| names::parse_cpus(&text_of(&group.join("cpuset.cpus"))))
            .collect();
        let mut free = names::parse_cpus(&text_of(&hierarchy.root_cpus()));
        free.retain(|cpu| !taken.contains(cpu));
        let last = *free.last().unwrap_or(&0);
        let cpu = cpu.unwrap_or(last);
        if !free.contains(&cpu) {
            return Err(PartitionError::NotFree { cpu });
        }
        if free.len() < 2 {
            return Err(PartitionError::TooFew { free: free.len() });
        }
        // The partition would split the root domain of the reservation.
        let mut present = deadline_threads().into_iter();
        if let Some(thread) = present.find(|thread| thread.cpus().contains(&cpu)) {
            let tid = thread.tid;
            return Err(PartitionError::Reserved { cpu, tid });
        }
        let name = GroupName::of_this_process(has_to_restore_balance(&hierarchy)?);
        let group = hierarchy.root.join(name.to_string());
        make_group(&hierarchy, &group)?;
        // Threads move alone only within one resource domain, which is the root's here.
        let threaded = hierarchy.version == Version::V1 || hierarchy.own == Path::new("/");
        let made = match hierarchy.version {
            Version::V1 => v1::set_apart(&hierarchy.root, &group, cpu),
            Version::V2 => v2::set_apart(&group, cpu, threaded),
        };
        if let Err(error) = made {
            // What there is of it already.
            let _ = remove(&hierarchy, name, &group);
            return Err(error);
        }
        Ok(Self {
            hierarchy,
            name,
            group,
            cpu,
            threaded,
        })
    }

    /// The CPU.
    #[must_use]
    pub const fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Moves the calling thread there until what is returned is dropped. Where the process is not
    /// in the root of a hierarchy of version 2 the kernel moves no single thread: then it is the
    /// whole process.
    ///
    /// # Errors
    /// [`PartitionError::File`] or [`PartitionError::NotPermitted`].
    pub fn enter(&self) -> Result<PartitionGuard, PartitionError> {
        let (file, tid) = match self.threaded {
            true => (self.hierarchy.threads(), rustix::thread::gettid()),
            false => ("cgroup.procs", rustix::process::getpid()),
        };
        let tid = tid.as_raw_nonzero().get().unsigned_abs();
        write(&self.group.join(file), &tid.to_string())?;
        let own = self
            .hierarchy
            .own
            .strip_prefix("/")
            .unwrap_or(Path::new(""));
        Ok(PartitionGuard {
            back: self.hierarchy.root.join(own).join(file),
            tid,
            _thread: std::marker::PhantomData,
        })
    }

    /// What processes left that were killed while they had a partition, or while they took it
    /// apart: names of groups. Their CPUs are set apart still.
    ///
    /// # Errors
    /// [`PartitionError`] if the hierarchy cannot be read.
    pub fn leftovers() -> Result<Vec<String>, PartitionError> {
        let Some(hierarchy) = Hierarchy::of_this_process() else {
            return Ok(Vec::new());
        };
        let all = groups(&hierarchy)?.into_iter();
        let ended = all.filter(|(name, group)| is_abandoned(&hierarchy, *name, group));
        let mut left: Vec<String> = ended.map(|(name, _)| name.to_string()).collect();
        if hierarchy.version == Version::V1 {
            // It comes after the first group, and goes after the last one.
            let rest = v1::rest_alone(&hierarchy.root);
            left.extend(rest.filter(|_| groups(&hierarchy).is_ok_and(|all| all.is_empty())));
        }
        Ok(left)
    }

    /// Clears what processes left that were killed while they had a partition, and returns how many
    /// partitions these were.
    ///
    /// # Errors
    /// [`PartitionError`] if a file cannot be read or written.
    pub fn clear_leftovers() -> Result<usize, PartitionError> {
        let Some(hierarchy) = Hierarchy::of_this_process() else {
            return Ok(0);
        };
        // A process without write permission has left nothing, and must not wait for one with it.
        if Self::leftovers()?.is_empty() {
            return Ok(0);
        }
        let _lock = lock(&hierarchy.root)?;
        clear(&hierarchy)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _lock = lock(&self.hierarchy.root);
        // A failure cannot be handled here; the next maker tries again.
        let _ = remove(&self.hierarchy, self.name, &self.group);
    }
}

impl Drop for PartitionGuard {
    fn drop(&mut self) {
        // Its group may be gone; then the root takes it, when the partition ends.
        let _ = fs::write(&self.back, self.tid.to_string());
    }
}

/// Whether balancing must be restored when the last partition is removed.
fn has_to_restore_balance(hierarchy: &Hierarchy) -> Result<bool, PartitionError> {
    match hierarchy.version {
        Version::V2 => Ok(false),
        Version::V1 => {
            let others = groups(hierarchy)?;
            Ok(v1::is_balanced(&hierarchy.root) || others.iter().any(|(name, _)| name.balanced))
        }
    }
}

/// The groups of all processes' partitions.
fn groups(hierarchy: &Hierarchy) -> Result<Vec<(GroupName, PathBuf)>, PartitionError> {
    let root = &hierarchy.root;
    let entries = fs::read_dir(root).map_err(|error| failure(root, error))?;
    let groups = entries.flatten().filter_map(|entry| {
        let name = GroupName::parse(&entry.file_name().to_string_lossy())?;
        Some((name, entry.path()))
    });
    Ok(groups.collect())
}

/// Removes the partitions of processes that have ended, and returns how many there were.
fn clear(hierarchy: &Hierarchy) -> Result<usize, PartitionError> {
    let mut cleared = 0;
    for (name, group) in groups(hierarchy)? {
        if is_abandoned(hierarchy, name, &group) {
            remove(hierarchy, name, &group)?;
            cleared += 1;
        }
    }
    // Whoever was killed between the last partition and its traces.
    let is_alone = hierarchy.version == Version::V1 && groups(hierarchy)?.is_empty();
    if is_alone && v1::rest_alone(&hierarchy.root).is_some() {
        v1::settle(&hierarchy.root, &[], Some(true))?;
        cleared += 1;
    }
    Ok(cleared)
}

/// Whether the maker of a partition has ended. A process of another PID namespace looks dead from
/// here; a thread of it inside does not.
fn is_abandoned(hierarchy: &Hierarchy, name: GroupName, group: &Path) -> bool {
    let threads = text_of(&group.join(hierarchy.threads()));
    !name.is_alive() && threads.trim().is_empty()
}

/// Removes one partition. The caller holds the lock.
fn remove(hierarchy: &Hierarchy, name: GroupName, group: &Path) -> Result<(), PartitionError> {
    // Threads that are still inside go to the root.
    let threads = hierarchy.threads();
    for thread in text_of(&group.join(threads)).split_whitespace() {
        let _ = fs::write(hierarchy.root.join(threads), thread);
    }
    fs::remove_dir(group).map_err(|error| failure(group, error))?;
    if hierarchy.version == Version::V1 {
        let others = groups(hierarchy)?;
        let cpus: Vec<u32> = others
            .iter()
            .flat_map(|(_, group)| names::parse_cpus(&text_of(&group.join("cpuset.cpus"))))
            .collect();
        v1::settle(
            &hierarchy.root,
            &cpus,
            others.is_empty().then_some(name.balanced),
        )?;
    }
    Ok(())
}

fn make_group(hierarchy: &Hierarchy, group: &Path) -> Result<(), PartitionError> {
    if hierarchy.version == Version::V2 {
        write(&hierarchy.root.join("cgroup.subtree_control"), "+cpuset")?;
    }
    match fs::create_dir(group) {
        Ok(()) => Ok(()),
        Err(error) => Err(failure(group, error)),
    }
}

/// Excludes other makers for as long as it is held. Anybody who may read the root can hold such a
/// lock, so the wait has a time limit.
fn lock(root: &Path) -> Result<OwnedFd, PartitionError> {
    lock_within(root, LOCK_TIMEOUT)
}

fn lock_within(root: &Path, timeout: Duration) -> Result<OwnedFd, PartitionError> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(root, directory, Mode::empty());
    let file = opened.map_err(|error| failure(root, error.into()))?;
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < timeout => {
                std::thread::sleep(LOCK_RETRY_DELAY)
            }
            Err(Errno::WOULDBLOCK) => {
                let root = root.to_path_buf();
                return Err(PartitionError::Locked {
                    root,
                    waited: timeout,
                });
            }
            Err(error) => return Err(failure(root, error.into())),
        }
    }
}

/// The contents of a file; empty if it cannot be read.
fn text_of(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn write(file: &Path, text: &str) -> Result<(), PartitionError> {
    fs::write(file, text).map_err(|error| failure(file, error))
}

fn failure(file: &Path, error: io::Error) -> PartitionError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            let root = file.parent().unwrap_or(file).to_path_buf();
            PartitionError::NotPermitted { root }
        }
        _ => PartitionError::File {
            file: file.to_path_buf(),
            error,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{lock_within, PartitionError};

    #[test]
    fn lock_held_too_long_is_an_error() {
        let root = std::env::temp_dir().join(format!("overhear-lock-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let held = lock_within(&root, Duration::ZERO).unwrap();
        let refused = lock_within(&root, Duration::from_millis(20)).unwrap_err();
        assert!(
            matches!(refused, PartitionError::Locked { .. }),
            "{refused}"
        );
        let message = refused.to_string();
        assert!(
            message.contains("a lock on") && message.contains("lslocks"),
            "{message}"
        );
        drop(held);
        assert!(lock_within(&root, Duration::ZERO).is_ok());
        std::fs::remove_dir(&root).unwrap();
    }
}
