// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread: its state and its account.

use overhear_event::{Nanos, Timestamp};

use crate::histogram::Histogram;

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// It does not exist yet, or not any more.
    Absent,
    /// On a CPU.
    Running,
    /// Woken, and waiting for a CPU.
    Runnable,
    /// Asleep, or waiting for something other than a CPU.
    Blocked,
    /// Displaced by another thread, and waiting for a CPU.
    Preempted,
    /// Unknown: elements are missing, or the thread was not tracked yet.
    Unknown,
}

impl ThreadState {
    /// Code of the state in a packed time-line.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::Running => 1,
            Self::Runnable => 2,
            Self::Blocked => 3,
            Self::Preempted => 4,
            Self::Unknown => 5,
        }
    }
}

/// Why a thread is in its state, as far as elements show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateReason {
    /// No element shows it.
    #[default]
    Unknown,
    /// Blocked: it left the CPU with these state bits of the kernel (1 interruptible, 2
    /// uninterruptible, ...).
    Asleep(u16),
    /// Preempted by this thread; [`Switch::UNKNOWN`](overhear_event::kernel::Switch) if that is
    /// unknown.
    Displaced(u32),
    /// Preempted voluntarily: it let this thread run first, by `sched_yield` or because a signal
    /// kept it from falling asleep.
    Yielded(u32),
    /// Runnable: woken by this thread, or by what interrupted it; 0 is an idle CPU.
    Woken(u32),
    /// Running: it left its CPU and the scheduler chose it again: a switch to itself.
    Again,
}

/// Index of a thread in [`Scheduling::threads`](crate::Scheduling::threads). Thread ids are reused,
/// indices are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub(crate) usize);

impl ThreadIndex {
    /// The index as a number.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

/// A thread and its account so far.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Newest short name; empty until one is known.
    pub comm: String,
    /// Time on a CPU: by the kernel's own account if departures carry it, else by time stamps. Run,
    /// runnable, blocked and unknown time add up to the thread's life.
    pub run: Nanos,
    /// Time runnable and waiting for a CPU: from the enqueue (`sched_wakeup`) or the preemption on,
    /// as `schedstat` counts it.
    pub runnable: Nanos,
    /// Time asleep or waiting for something other than a CPU.
    pub blocked: Nanos,
    /// Time for which elements are missing.
    pub unknown: Nanos,
    /// Number of voluntary departures.
    pub switches_voluntary: u64,
    /// Number of involuntary departures.
    pub switches_involuntary: u64,
    /// Number of runs that began on another CPU than the one before.
    pub migrations: u64,
    /// Wake-up latencies: from the waking to the first run, in nanoseconds.
    pub wakeup_latency: Histogram,
    /// Newest sample of `schedstat`: run time and wait time.
    pub sampled: Option<(Nanos, Nanos)>,
    /// CPU time by the kernel's own account when the thread ended.
    pub cpu_at_exit: Option<Nanos>,
    // Time of its exit, if recorded.
    pub(crate) ended: Option<Timestamp>,
    pub(crate) state: ThreadState,
    pub(crate) reason: StateReason,
    pub(crate) since: Timestamp,
    pub(crate) cpu: Option<u32>,
    // Time of a waking that has not led to a run yet.
    pub(crate) waking: Option<Timestamp>,
    // The current run, if the account in its departure covers no more than this run.
    pub(crate) arrival: Option<Arrival>,
}

/// State of the account when the current run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Run time before it.
    pub(crate) run: Nanos,
    /// State that ended with the arrival.
    pub(crate) waited_in: ThreadState,
}

impl Thread {
    pub(crate) fn new(tid: u32, pid: u32, since: Timestamp, state: ThreadState) -> Self {
        Self {
            tid,
            pid,
            comm: String::new(),
            run: Nanos::ZERO,
            runnable: Nanos::ZERO,
            blocked: Nanos::ZERO,
            unknown: Nanos::ZERO,
            switches_voluntary: 0,
            switches_involuntary: 0,
            migrations: 0,
            wakeup_latency: Histogram::new(),
            sampled: None,
            cpu_at_exit: None,
            ended: None,
            state,
            reason: StateReason::Unknown,
            since,
            cpu: None,
            waking: None,
            arrival: None,
        }
    }

    /// State of the thread. In [`Observer::interval`](crate::Observer::interval): the state in the
    /// interval that ends.
    #[must_use]
    pub const fn state(&self) -> ThreadState {
        self.state
    }

    /// StateReason of this state.
    #[must_use]
    pub const fn reason(&self) -> StateReason {
        self.reason
    }

    /// Begin of this state.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.since
    }

    /// CPU on which it runs, or ran last.
    #[must_use]
    pub const fn cpu(&self) -> Option<u32> {
        self.cpu
    }

    pub(crate) fn account(&mut self, span: Nanos) {
        match self.state {
            ThreadState::Running => self.run = self.run.plus(span),
            ThreadState::Runnable | ThreadState::Preempted => {
                self.runnable = self.runnable.plus(span);
            }
            ThreadState::Blocked => self.blocked = self.blocked.plus(span),
            ThreadState::Unknown => self.unknown = self.unknown.plus(span),
            ThreadState::Absent => {}
        }
    }

    /// Replaces the run time by time stamps by the kernel's account of it, and adds the difference
    /// to the state `from`, so that the sum of all states stays the length of the thread's life.
    ///
    /// The two clocks differ at each switch. The kernel charges a thread from the reading of its
    /// run queue's clock on, which after a wake-up is that of the wake-up. `sched_switch` is
    /// stamped only once the thread has been picked, up to a few microseconds later. By the
    /// kernel's account the wait was shorter by this time.
    pub(crate) fn settle(&mut self, run: Nanos, from: ThreadState) {
        let by_stamps = std::mem::replace(&mut self.run, run);
        let mut excess = less(run, by_stamps);
        let runnable = &mut self.runnable;
        let accounts = match from {
            ThreadState::Blocked => [&mut self.blocked, runnable, &mut self.unknown],
            ThreadState::Unknown => [&mut self.unknown, runnable, &mut self.blocked],
            _ => [runnable, &mut self.blocked, &mut self.unknown],
        };
        *accounts[0] = accounts[0].plus(less(by_stamps, run));
        // The wait before this run may have been shorter than the difference.
        for account in accounts {
            let taken = excess.min(*account);
            *account = less(*account, taken);
            excess = less(excess, taken);
        }
        // The kernel charges the first run of a new thread from before the time stamp of its first
        // wake-up.
        self.run = less(self.run, excess);
    }
}

/// The difference, or zero.
const fn less(from: Nanos, what: Nanos) -> Nanos {
    Nanos::from_ns(from.as_ns().saturating_sub(what.as_ns()))
}
