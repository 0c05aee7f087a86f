// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the machine did while something was tested, as seen by threads that are no part of it; and
//! what a test may excuse by it.
//!
//! A promise that rests on the machine is tried three times at most. A try that keeps it ends the
//! test. One that is inconclusive needs an excuse: the witness saw the machine outside what the
//! test assumes ([`Excuse::Seen`]), or there is something that nobody can see from outside
//! ([`Excuse::Unseen`]). A try without excuse fails at once, and so do three tries that nobody saw
//! an excuse for: a fault that breaks an assumption every time is not the machine's.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use overhear_event::Nanos;
use overhear_monitor::{LatencyWatchdog, WatchdogStats};

/// Time between two samples of running and reserving threads.
const LOOKS: Duration = Duration::from_millis(20);
/// The scheduling policy SCHED_DEADLINE.
const DEADLINE: u32 = 6;
/// A machine with a larger lateness disturbs comparisons in microseconds.
pub(crate) const LATE: Nanos = Nanos::from_ms(1);
/// The maximum number of tries.
const TRIES: usize = 3;

/// Samples until it is stopped.
pub(crate) struct Witness {
    watchdog: Option<LatencyWatchdog>,
    stop: Sender<()>,
    looks: JoinHandle<Looks>,
    moved: u64,
}

/// The results of the samples.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    count: u64,
    crowded: u64,
    foreign: usize,
    apart: usize,
}

/// The observations of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// `None` without a watchdog: this user may have none, or it was not requested.
    seen: Option<WatchdogStats>,
    looks: Looks,
    moved: u64,
}

impl Witness {
    /// Begins to watch. This process and its children are no others.
    pub(crate) fn start() -> Self {
        Self {
            // Its lateness is read afterwards.
            watchdog: LatencyWatchdog::start(Nanos::from_ms(1_000_000)).ok(),
            ..Self::without_watchdog()
        }
    }

    /// A witness without a watchdog: a watchdog would disturb measurements in nanoseconds.
    pub(crate) fn without_watchdog() -> Self {
        let (stop, stopped) = channel::<()>();
        let looks = std::thread::spawn(move || {
            let mut looks = Looks::default();
            loop {
                looks.count += 1;
                looks.crowded += u64::from(running() > cpus());
                let (foreign, apart) = others();
                looks.foreign = looks.foreign.max(foreign);
                looks.apart = looks.apart.max(apart);
                if stopped.recv_timeout(LOOKS) != Err(RecvTimeoutError::Timeout) {
                    return looks;
                }
            }
        });
        Self {
            watchdog: None,
            stop,
            looks,
            moved: moved_pages(),
        }
    }

    /// The observations since the start.
    pub(crate) fn stop(self) -> Machine {
        drop(self.stop);
        Machine {
            seen: self.watchdog.map(LatencyWatchdog::stop),
            looks: self.looks.join().unwrap(),
            moved: moved_pages().saturating_sub(self.moved),
        }
    }
}

impl Machine {
    /// Whether a thread of the highest priority woke later than this, or the hypervisor took more
    /// time. If unknown, true.
    pub(crate) fn was_late(&self, than: Nanos) -> bool {
        let seen = self.seen.as_ref();
        seen.is_none_or(|seen| seen.worst() > than || seen.stolen() > than)
    }

    /// Whether another process had reserved CPU time.
    pub(crate) const fn was_reserved(&self) -> bool {
        self.looks.foreign > 0
    }

    /// Whether another process had set CPUs apart.
    pub(crate) const fn was_set_apart(&self) -> bool {
        self.looks.apart > 0
    }

    /// Whether more threads wanted a CPU than there are, in at least one of ten samples.
    pub(crate) const fn was_crowded(&self) -> bool {
        self.looks.crowded * 10 >= self.looks.count
    }

    /// Whether the kernel moved pages. It moves locked ones, too, and an access meanwhile faults.
    pub(crate) const fn moved_pages(&self) -> bool {
        self.moved > 0
    }
}

/// The reason for an inconclusive try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// The witness observed it.
    Seen,
    /// It is possible, and the witness could not observe it.
    Unseen,
    /// It is impossible on this machine.
    None,
}

impl Excuse {
    pub(crate) const fn seen(is_seen: bool) -> Self {
        match is_seen {
            true => Self::Seen,
            false => Self::None,
        }
    }

    /// The worst of several: each needs one.
    pub(crate) fn of_all(all: impl IntoIterator<Item = Self>) -> Self {
        let rank = |excuse: &Self| *excuse as u8;
        all.into_iter().max_by_key(rank).unwrap_or(Self::None)
    }
}

/// An inconclusive try.
#[derive(Debug)]
pub(crate) struct Doubt {
    pub(crate) excuse: Excuse,
    pub(crate) reasons: String,
}

/// Tries until the guarantee is kept, and prints "skipped" if the machine did not allow it.
pub(crate) fn keeps(mut attempt: impl FnMut() -> Result<(), Doubt>) {
    let mut doubts = Vec::new();
    for _ in 0..TRIES {
        let Err(doubt) = attempt() else { return };
        assert_ne!(doubt.excuse, Excuse::None, "on a calm machine: {doubt:?}");
        doubts.push(doubt);
    }
    let is_seen = doubts.iter().any(|doubt| doubt.excuse == Excuse::Seen);
    assert!(is_seen, "three times, and nobody saw why: {doubts:?}");
    println!("skipped: machine lateness: {doubts:?}");
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// Running or runnable threads: the first half of the fourth word of /proc/loadavg.
fn running() -> u64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let halves = text.split(' ').nth(3).and_then(|word| word.split_once('/'));
    halves
        .and_then(|(running, _)| running.parse().ok())
        .unwrap_or(0)
}

/// The kernel's operations on mapped and locked pages.
fn moved_pages() -> u64 {
    const MOVES: [&str; 4] = [
        "pgmigrate_success",
        "thp_collapse_alloc",
        "thp_split_pmd",
        "numa_hint_faults",
    ];
    let all = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let counts = all.lines().filter_map(|line| line.split_once(' '));
    let moved = counts.filter(|(name, _)| MOVES.contains(name));
    moved
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

/// Threads of other processes that have reserved CPU time, and the partitions of CPUs that other
/// processes made.
fn others() -> (usize, usize) {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut parents = BTreeMap::new();
    let mut reserving = Vec::new();
    for pid in pids {
        let proc_path = format!("/proc/{pid}");
        let Some((parent, _)) = stat(&format!("{proc_path}/stat")) else {
            continue;
        };
        parents.insert(pid, parent);
        let threads = fs::read_dir(format!("{proc_path}/task"))
            .into_iter()
            .flatten();
        let policies = threads.flatten().filter_map(|thread| {
            let proc_path = thread.path().join("stat");
            Some(stat(proc_path.to_str()?)?.1)
        });
        let count = policies.filter(|policy| *policy == DEADLINE).count();
        reserving.push((pid, count));
    }
    // The kernel's threads are children of thread 2; their reservations are not foreign.
    let (own, kernel) = (std::process::id(), 2);
    let is_own = |mut pid: u32| loop {
        match parents.get(&pid) {
            _ if pid == own || pid == kernel => return true,
            Some(parent) => pid = *parent,
            None => return false,
        }
    };
    let foreign = reserving.iter().filter(|(pid, _)| !is_own(*pid));
    let foreign = foreign.map(|(_, count)| count).sum();
    // The owner of an ended process is unknown.
    let apart = partitions().filter(|pid| parents.contains_key(pid) && !is_own(*pid));
    (foreign, apart.count())
}

/// The processes that made the existing partitions of CPUs.
fn partitions() -> impl Iterator<Item = u32> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let cgroups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let places: Vec<String> = cgroups
        .filter_map(|line| line.split(' ').nth(4).map(str::to_string))
        .collect();
    let entries = places
        .into_iter()
        .flat_map(|proc_path| fs::read_dir(proc_path).into_iter().flatten().flatten());
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (pid, _) = name.strip_prefix("overhear-")?.split_once('-')?;
        pid.parse().ok()
    })
}

/// The parent and the scheduling policy in a `stat` of /proc.
fn stat(proc_path: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string(proc_path).ok()?;
    // After the name come the fields from the third one on.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(38)?.parse().ok()?))
}
