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

/// Between two looks at who runs and who reserves.
const LOOKS: Duration = Duration::from_millis(20);
/// The scheduling policy SCHED_DEADLINE.
const DEADLINE: u32 = 6;
/// A machine that is later than this disturbs what is compared to microseconds.
pub(crate) const LATE: Nanos = Nanos::from_ms(1);
/// How often a promise is tried.
const TRIES: usize = 3;

/// Watches until it is stopped.
pub(crate) struct Witness {
    watchdog: Option<LatencyWatchdog>,
    stop: Sender<()>,
    looks: JoinHandle<Looks>,
    moved: u64,
}

/// What was seen at the looks.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    count: u64,
    crowded: u64,
    foreign: usize,
    apart: usize,
}

/// What the machine did.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// `None` without a watchdog: this user may have none, or it was not wished for.
    seen: Option<WatchdogStats>,
    looks: Looks,
    moved: u64,
}

impl Witness {
    /// Begins to watch. This process and its children are no others.
    pub(crate) fn start() -> Self {
        Self {
            // What it is late by is asked afterwards.
            watchdog: LatencyWatchdog::start(Nanos::from_ms(1_000_000)).ok(),
            ..Self::without_watchdog()
        }
    }

    /// One that does not know whether the machine is late: a watchdog would disturb what is
    /// measured to nanoseconds.
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

    /// What was seen since.
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
    /// Whether a thread of the highest priority woke later than this, or the hypervisor took more.
    /// Unknown is yes.
    pub(crate) fn was_late(&self, than: Nanos) -> bool {
        let seen = self.seen.as_ref();
        seen.is_none_or(|seen| seen.worst() > than || seen.stolen() > than)
    }

    /// Whether somebody else had reserved CPU time.
    pub(crate) const fn was_reserved(&self) -> bool {
        self.looks.foreign > 0
    }

    /// Whether somebody else had set CPUs apart.
    pub(crate) const fn was_set_apart(&self) -> bool {
        self.looks.apart > 0
    }

    /// Whether more threads wanted a CPU than there are, at one of ten looks or more.
    pub(crate) const fn was_crowded(&self) -> bool {
        self.looks.crowded * 10 >= self.looks.count
    }

    /// Whether the kernel moved pages: locked ones, too, and whoever touches one meanwhile has a
    /// fault.
    pub(crate) const fn moved_pages(&self) -> bool {
        self.moved > 0
    }
}

/// Why a try is inconclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// The witness saw it.
    Seen,
    /// It can be, and the witness could not see it.
    Unseen,
    /// It cannot be on this machine.
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

/// Tries until the promise is kept, and says skipped if the machine did not allow it.
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

/// Threads that run or want to: the first half of the fourth word of /proc/loadavg.
fn running() -> u64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let halves = text.split(' ').nth(3).and_then(|word| word.split_once('/'));
    halves
        .and_then(|(running, _)| running.parse().ok())
        .unwrap_or(0)
}

/// What the kernel has done to pages that were mapped and locked.
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
        let place = format!("/proc/{pid}");
        let Some((parent, _)) = stat(&format!("{place}/stat")) else {
            continue;
        };
        parents.insert(pid, parent);
        let threads = fs::read_dir(format!("{place}/task")).into_iter().flatten();
        let policies = threads.flatten().filter_map(|thread| {
            let place = thread.path().join("stat");
            Some(stat(place.to_str()?)?.1)
        });
        let count = policies.filter(|policy| *policy == DEADLINE).count();
        reserving.push((pid, count));
    }
    // The kernel's own, which are children of this one, are nobody's reservations.
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
    // Of a process that has ended nobody knows whose it was.
    let apart = partitions().filter(|pid| parents.contains_key(pid) && !is_own(*pid));
    (foreign, apart.count())
}

/// The processes that made the partitions of CPUs that there are.
fn partitions() -> impl Iterator<Item = u32> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let cgroups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let places: Vec<String> = cgroups
        .filter_map(|line| line.split(' ').nth(4).map(str::to_string))
        .collect();
    let entries = places
        .into_iter()
        .flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (pid, _) = name.strip_prefix("overhear-")?.split_once('-')?;
        pid.parse().ok()
    })
}

/// The parent and the scheduling policy that a `stat` of /proc says.
fn stat(place: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string(place).ok()?;
    // Behind the name come the fields from the third one on.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(38)?.parse().ok()?))
}
