// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements of periodic tasks, by the names of their threads.

use std::collections::{BTreeMap, BTreeSet};

use overhear_event::Nanos;

/// An overhead of the system for a task [POSIX-metrics, section 4].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SystemOverhead {
    /// `JST_i`.
    JobSystemTime,
    /// `SB_i`.
    SystemBlocking,
    /// `DUW_i`.
    DelayUntilWakeup,
}

impl SystemOverhead {
    /// All overheads, in the order of the equations.
    pub const ALL: [Self; 3] = [
        Self::JobSystemTime,
        Self::SystemBlocking,
        Self::DelayUntilWakeup,
    ];

    /// Name of the built-in metric that measures it.
    #[must_use]
    pub const fn metric(self) -> &'static str {
        match self {
            Self::JobSystemTime => "job_system_time",
            Self::SystemBlocking => "system_blocking",
            Self::DelayUntilWakeup => "delay_until_wakeup",
        }
    }
}

/// Number of jobs, and the longest response time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedJobs {
    /// Number of jobs, incomplete ones included.
    pub count: u64,
    /// Longest response time of a complete job; zero without one.
    pub longest: Nanos,
}

/// Measurements of an observation, by the short names of threads. Threads of the same name count as
/// one: the longest measurement of all is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskObservation {
    overheads: BTreeMap<(String, SystemOverhead), Nanos>,
    /// `None` if locks were not recorded.
    lock_blocking: Option<BTreeMap<String, Nanos>>,
    jobs: BTreeMap<String, ObservedJobs>,
    threads: BTreeMap<String, u64>,
    doubtful: BTreeSet<String>,
    may_be_longer: bool,
    is_incomplete: bool,
}

impl TaskObservation {
    /// An observation without measurements. `has_locks` states whether locks were recorded.
    #[must_use]
    pub fn new(has_locks: bool) -> Self {
        Self {
            lock_blocking: has_locks.then(BTreeMap::new),
            ..Self::default()
        }
    }

    /// Adds a thread.
    pub fn add_thread(&mut self, name: &str) {
        *self.threads.entry(name.to_owned()).or_default() += 1;
    }

    /// Adds jobs, and the longest response time among them.
    pub fn add_jobs(&mut self, thread: &str, count: u64, longest: Nanos) {
        let jobs = self.jobs.entry(thread.to_owned()).or_default();
        jobs.count += count;
        jobs.longest = jobs.longest.max(longest);
    }

    /// Adds the longest measurement of an overhead.
    pub fn add_overhead(&mut self, thread: &str, overhead: SystemOverhead, longest: Nanos) {
        let key = (thread.to_owned(), overhead);
        let known = self.overheads.entry(key).or_default();
        *known = longest.max(*known);
    }

    /// Adds the longest critical section by which a thread blocked others, if locks were recorded.
    pub fn add_lock_blocking(&mut self, thread: &str, longest: Nanos) {
        if let Some(sections) = &mut self.lock_blocking {
            let known = sections.entry(thread.to_owned()).or_default();
            *known = longest.max(*known);
        }
    }

    /// The longest job of this thread may be wrong, because elements of it were missed.
    pub fn doubt(&mut self, thread: &str) {
        self.doubtful.insert(thread.to_owned());
    }

    /// The longest job of each thread may be wrong: where a stream breaks off, or cannot be used,
    /// jobs do not end.
    pub fn doubt_all(&mut self) {
        self.doubtful.extend(self.jobs.keys().cloned());
    }

    /// The observation misses something.
    pub const fn set_incomplete(&mut self) {
        self.is_incomplete = true;
    }

    /// An overhead that is not stated may be longer than its longest measurement. Tasks interfere,
    /// so the computed response times of all tasks may be longer then.
    pub const fn set_may_be_longer(&mut self) {
        self.may_be_longer = true;
    }

    /// Longest measurement of an overhead.
    #[must_use]
    pub fn overhead(&self, thread: &str, overhead: SystemOverhead) -> Option<Nanos> {
        let key = (thread.to_owned(), overhead);
        self.overheads.get(&key).copied()
    }

    /// Longest critical section by which a thread blocked others; `None` if locks were not
    /// recorded.
    #[must_use]
    pub fn lock_blocking(&self, thread: &str) -> Option<Nanos> {
        let sections = self.lock_blocking.as_ref()?;
        Some(sections.get(thread).copied().unwrap_or_default())
    }

    /// Jobs of a thread; `None` if it has none.
    #[must_use]
    pub fn jobs(&self, thread: &str) -> Option<ObservedJobs> {
        self.jobs.get(thread).copied()
    }

    /// Number of threads with this name.
    #[must_use]
    pub fn threads(&self, name: &str) -> u64 {
        self.threads.get(name).copied().unwrap_or(0)
    }

    /// Whether the longest job of this thread may be wrong.
    #[must_use]
    pub fn is_doubtful(&self, thread: &str) -> bool {
        self.doubtful.contains(thread)
    }

    /// Whether nothing was missed.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        !self.is_incomplete
    }

    /// Whether an overhead may be longer than its longest measurement.
    #[must_use]
    pub const fn may_be_longer(&self) -> bool {
        self.may_be_longer
    }
}
