// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread: its state and its account.

use overhear_event::{Nanos, Timestamp};

use crate::histogram::Histogram;

/// What a thread is doing.
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
    /// Displaced while it could have gone on: waiting for a CPU.
    Preempted,
    /// Elements are missing, or the thread was not followed yet.
    Unknown,
}

impl ThreadState {
    /// The number that stands for the state in a packed time-line.
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

/// Why a thread is in its state, as far as an element has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No element has told.
    #[default]
    Untold,
    /// Blocked: it left the CPU with these state bits of the kernel (1 interruptible, 2
    /// uninterruptible, ...).
    Asleep(u16),
    /// Preempted: this thread was preferred; [`Switch::UNKNOWN`](overhear_event::kernel::Switch)
    /// where it is not told.
    Displaced(u32),
    /// Preempted, although nobody forced it: it let this thread run first, by `sched_yield` or
    /// because a signal kept it from falling asleep.
    Yielded(u32),
    /// Runnable: this thread woke it, or was interrupted by what woke it; 0 is an idle CPU.
    Woken(u32),
    /// Running: it left its CPU and the scheduler chose it again: a switch to itself.
    Again,
}

/// A thread's place in [`Scheduling::threads`](crate::Scheduling::threads). Thread ids are
/// reused, indices are not.
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
    /// Its newest short name; empty until one is known.
    pub comm: String,
    /// Time on a CPU: by the kernel's own account where departures carry it, else by their stamps. Run, runnable,
    /// blocked and unknown time add up to the thread's life.
    pub run: Nanos,
    /// Time runnable but waiting for a CPU: from the enqueue (`sched_wakeup`) or the preemption on, as
    /// `schedstat` counts it.
    pub runnable: Nanos,
    /// Time asleep or waiting for something other than a CPU.
    pub blocked: Nanos,
    /// Time of which elements are missing.
    pub unknown: Nanos,
    /// Departures that the thread asked for.
    pub switches_voluntary: u64,
    /// Departures that it did not ask for.
    pub switches_involuntary: u64,
    /// How often it began to run on another CPU than the one before.
    pub migrations: u64,
    /// From the waking to the first run, in nanoseconds.
    pub wakeup_latency: Histogram,
    /// The newest sample of `schedstat`: run time and wait time.
    pub sampled: Option<(Nanos, Nanos)>,
    /// The thread's CPU time by the kernel's own account when it ended.
    pub cpu_at_exit: Option<Nanos>,
    // When it announced its exit.
    pub(crate) ended: Option<Timestamp>,
    pub(crate) state: ThreadState,
    pub(crate) reason: Reason,
    pub(crate) since: Timestamp,
    pub(crate) cpu: Option<u32>,
    // A waking that has not led to a run yet.
    pub(crate) waking: Option<Timestamp>,
    // The present run, where the account of its departure covers no more than this run.
    pub(crate) arrival: Option<Arrival>,
}

/// What an account was when the present run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Run time up to here.
    pub(crate) run: Nanos,
    /// The state that ended with the arrival.
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
            reason: Reason::Untold,
            since,
            cpu: None,
            waking: None,
            arrival: None,
        }
    }

    /// What it is doing. In [`Observer::interval`](crate::Observer::interval): what it did in the
    /// interval that ends.
    #[must_use]
    pub const fn state(&self) -> ThreadState {
        self.state
    }

    /// Why it is in this state.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Since when it is in this state.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.since
    }

    /// The CPU it runs on, or ran on last.
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

    /// Replaces the run time that the stamps gave by the kernel's account of it, and moves the difference out of
    /// the state `from`, or into it, so that the sum of all states stays the length of the thread's life.
    ///
    /// The two clocks differ at each switch: the kernel charges a thread from the reading of its run queue's clock
    /// on, which after a wake-up is that of the wake-up, and `sched_switch` is stamped only once the thread has
    /// been picked, up to a few microseconds later. By the kernel's account the wait was shorter by as much.
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
        // The kernel charges the first run of a new thread from before its first wake-up was stamped on.
        self.run = less(self.run, excess);
    }
}

/// The difference, or nothing.
const fn less(from: Nanos, what: Nanos) -> Nanos {
    Nanos::from_ns(from.as_ns().saturating_sub(what.as_ns()))
}
