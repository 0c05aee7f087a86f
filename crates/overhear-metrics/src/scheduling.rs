// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads through their states.
//!
//! # The automaton
//!
//! ```text
//!               wakeup                     switch in
//!  Blocked ----------------> Runnable ------------------> Running
//!     ^                                     switch in        |  |
//!     |                      Preempted <------------------.  |  |
//!     |                          |      switch out, state 0 `-'  |
//!     |                          `------> Running                |
//!     `------------------- switch out, asleep -------------------'
//! ```
//!
//! A thread is runnable from its enqueue on: from the *wake-up* (`sched_wakeup`), as in the
//! kernel's own account of waiting time (`schedstat`). Its wake-up latency counts from the
//! beginning of the wake-up, the *waking* (`sched_waking`). On another CPU that may be much
//! earlier, because an interrupt transfers the wake-up.
//!
//! Two races of the kernel need care.
//!
//! 1. A waker on another CPU may report the waking of a thread that is about to leave its CPU: the
//!    waking has an earlier time than the departure. It is kept, and the wake-up that follows
//!    decides: if the thread has left by then, the latency counts from the waking.
//! 2. A waking may find the thread still running. It then only cancels the sleep; the wake-up
//!    follows at once and changes nothing.
//!
//! The perf fallback has departures and arrivals only. A thread that left asleep is then blocked
//! until it runs again, and the time that it waited for a CPU comes from samples of `schedstat`.
//! The fallback has no last departure of a thread either: such a thread ends with its exit.

use std::collections::HashMap;

use overhear_event::kernel::{self, Life, SchedStat, Switch, Wake};
use overhear_event::{
    Analysis, ElementView, EventName, EventSet, Gap, Nanos, Origin, StreamDescriptor, Timestamp,
};

use crate::histogram::{Histogram, HistogramMemory};
use crate::thread::{Arrival, StateReason, Thread, ThreadIndex, ThreadState};

/// The kernel's state bits of a thread that will never run again: EXIT_DEAD, EXIT_ZOMBIE and
/// TASK_DEAD.
const DEAD: u16 = 0x10 | 0x20 | 0x80;

/// Gets every interval of every thread as it ends. The thread's [`reason`](Thread::reason) is that
/// of the interval.
pub trait Observer {
    /// `thread` was in `state` from `from` to `to`, on `cpu` if it was running.
    fn interval(
        &mut self,
        index: ThreadIndex,
        thread: &Thread,
        from: Timestamp,
        to: Timestamp,
        state: ThreadState,
        cpu: Option<u32>,
    );
}

/// No observer: accounts only.
impl Observer for () {
    fn interval(
        &mut self,
        _: ThreadIndex,
        _: &Thread,
        _: Timestamp,
        _: Timestamp,
        _: ThreadState,
        _: Option<u32>,
    ) {
    }
}

/// Follows the tracked threads: see the module's text.
#[derive(Debug, Default)]
pub struct Scheduling<O = ()> {
    threads: Vec<Thread>,
    by_tid: HashMap<u32, ThreadIndex>,
    observer: O,
    wakeup_latencies: Histogram,
    runs: Histogram,
    /// Memory of the threads' wake-up latencies.
    memory: HistogramMemory,
    // Time of the newest element.
    now: Timestamp,
    sees_wakeups: bool,
}

impl<O: Observer> Scheduling<O> {
    /// No thread.
    #[must_use]
    pub fn new(observer: O) -> Self {
        Self {
            threads: Vec::new(),
            by_tid: HashMap::new(),
            observer,
            wakeup_latencies: Histogram::new(),
            runs: Histogram::new(),
            memory: HistogramMemory::default(),
            now: Timestamp::ZERO,
            sees_wakeups: false,
        }
    }

    /// Bounds the memory of the threads' wake-up latencies; the default is 24 MiB.
    #[must_use]
    pub fn with_histogram_bytes(mut self, bytes: usize) -> Self {
        self.memory = HistogramMemory::bytes(bytes);
        self
    }

    /// Wake-up latencies of all threads, in nanoseconds.
    #[must_use]
    pub const fn wakeup_latencies(&self) -> &Histogram {
        &self.wakeup_latencies
    }

    /// Lengths of the runs of all threads, in nanoseconds.
    #[must_use]
    pub const fn runs(&self) -> &Histogram {
        &self.runs
    }

    /// Largest relative error of a quantile of a thread's wake-up latencies.
    #[must_use]
    pub fn quantile_error(&self) -> f64 {
        let errors = self.threads.iter().map(|it| it.wakeup_latency.error());
        errors.fold(0.0, f64::max)
    }

    /// All threads, in the order of appearance.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// The observer.
    #[must_use]
    pub const fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer, to configure it.
    pub const fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// Declares that wake-ups are recorded, even if none comes: otherwise wake-up latencies are
    /// unknown.
    pub fn expect_wakeups(&mut self) {
        self.sees_wakeups = true;
    }

    /// Whether wake-ups are recorded.
    #[must_use]
    pub const fn sees_wakeups(&self) -> bool {
        self.sees_wakeups
    }

    /// The threads that have not ended. A thread whose exit was recorded has ended, even if its
    /// last departure is not recorded.
    pub fn alive(&self) -> impl Iterator<Item = &Thread> {
        self.threads
            .iter()
            .filter(|thread| thread.state != ThreadState::Absent && thread.ended.is_none())
    }

    /// Ends the last interval of every thread at `end`, or at the newest element if that is later.
    /// The last interval of a thread whose exit was recorded ends there, or at its last change
    /// after it.
    pub fn finish(&mut self, end: Timestamp) {
        let end = end.max(self.now);
        for index in 0..self.threads.len() {
            let (state, ended) = (self.threads[index].state, self.threads[index].ended);
            if state == ThreadState::Absent {
                continue;
            }
            self.enter(ThreadIndex(index), ended.unwrap_or(end), state, None);
        }
    }

    fn find(&mut self, tid: u32, pid: u32, now: Timestamp) -> ThreadIndex {
        let threads = &mut self.threads;
        *self.by_tid.entry(tid).or_insert_with(|| {
            threads.push(Thread::new(tid, pid, now, ThreadState::Unknown));
            ThreadIndex(threads.len() - 1)
        })
    }

    /// Ends the current interval at `now` and begins the next. If `now` is before the interval's
    /// begin (race 1), it ends where it began.
    fn enter(&mut self, index: ThreadIndex, now: Timestamp, state: ThreadState, cpu: Option<u32>) {
        let thread = &mut self.threads[index.0];
        let now = now.max(thread.since);
        let span = now.since(thread.since);
        if span > Nanos::ZERO {
            thread.account(span);
            if thread.state == ThreadState::Running {
                self.runs.record(span.as_ns());
            }
            let ran_on = thread.cpu.filter(|_| thread.state == ThreadState::Running);
            let (from, was) = (thread.since, thread.state);
            self.observer
                .interval(index, &self.threads[index.0], from, now, was, ran_on);
        }
        let thread = &mut self.threads[index.0];
        thread.state = state;
        thread.reason = StateReason::Unknown;
        thread.since = now;
        if cpu.is_some() {
            thread.cpu = cpu;
        }
    }

    fn switch(&mut self, switch: &Switch, now: Timestamp, cpu: u32) {
        if switch.flags & Switch::PREV_TRACKED != 0 {
            self.depart(switch, now, cpu);
        }
        if switch.flags & Switch::NEXT_TRACKED != 0 {
            let index = self.find(switch.next_tid, switch.next_pid, now);
            self.arrive(index, now, cpu);
            if switch.next_tid == switch.prev_tid {
                self.threads[index.0].reason = StateReason::Again;
            }
        }
    }

    /// A thread called the scheduler and goes on: two adjacent runs. The kernel counts no switch,
    /// and its account of the run goes on.
    fn flutter(&mut self, element: &ElementView<'_>, cpu: u32) {
        let number = |name| {
            let number = element.field(name)?.as_u64()?;
            u32::try_from(number).ok()
        };
        let (Some(tid), Some(pid)) = (number("tid"), number("pid")) else {
            return;
        };
        let index = self.find(tid, pid, element.time);
        if self.threads[index.0].state != ThreadState::Running {
            self.threads[index.0].arrival = None;
        }
        self.enter(index, element.time, ThreadState::Running, Some(cpu));
        self.threads[index.0].reason = StateReason::Again;
    }

    fn depart(&mut self, switch: &Switch, now: Timestamp, cpu: u32) {
        let index = self.find(switch.prev_tid, switch.prev_pid, now);
        if self.threads[index.0].state != ThreadState::Running {
            self.reconstruct_arrival(index, switch, now, cpu);
        }
        let thread = &mut self.threads[index.0];
        if switch.is_voluntary() {
            thread.switches_voluntary += 1;
        } else {
            thread.switches_involuntary += 1;
        }
        let state = match switch.prev_state {
            0 => ThreadState::Preempted,
            dead if dead & DEAD != 0 => ThreadState::Absent,
            _ => ThreadState::Blocked,
        };
        if state == ThreadState::Absent {
            self.by_tid.remove(&switch.prev_tid);
        }
        self.enter(index, now, state, Some(cpu));
        let thread = &mut self.threads[index.0];
        thread.reason = match state {
            ThreadState::Blocked => StateReason::Asleep(switch.prev_state),
            ThreadState::Preempted if switch.flags & Switch::PREEMPTED == 0 => {
                StateReason::Yielded(switch.next_tid)
            }
            ThreadState::Preempted => StateReason::Displaced(switch.next_tid),
            _ => StateReason::Unknown,
        };
        if let Some(arrival) = thread.arrival.take() {
            if switch.prev_run_ns != Switch::UNKNOWN {
                let run = Nanos::from_ns(switch.prev_run_ns.into());
                thread.settle(arrival.run.plus(run), arrival.waited_in);
            }
        }
    }

    /// A thread departs whose arrival was not seen: it arrived at the departure less its run time.
    ///
    /// The kernel's tracepoint has no event when certain threads leave a CPU, so that the arrival
    /// of their successor is missing, too. No element is missing then, so there is no gap; the
    /// account in the departure gives the run time.
    fn reconstruct_arrival(
        &mut self,
        index: ThreadIndex,
        switch: &Switch,
        now: Timestamp,
        cpu: u32,
    ) {
        if switch.prev_run_ns != Switch::UNKNOWN {
            let arrived = now.minus(Nanos::from_ns(switch.prev_run_ns.into()));
            let (since, state) = (self.threads[index.0].since, self.threads[index.0].state);
            self.arrive(index, arrived.max(since), cpu);
            // A part of this run may lie before the gap, and is in the account already.
            if arrived < since && state == ThreadState::Unknown {
                self.threads[index.0].arrival = None;
            }
        }
    }

    fn arrive(&mut self, index: ThreadIndex, now: Timestamp, cpu: u32) {
        let thread = &mut self.threads[index.0];
        if thread.cpu.is_some_and(|last| last != cpu) {
            thread.migrations += 1;
        }
        if let Some(waking) = thread.waking.take() {
            let latency = now.since(waking).as_ns();
            self.wakeup_latencies.record(latency);
            let latencies = &mut thread.wakeup_latency;
            latencies.record_within(latency, &mut self.memory);
            if self.memory.is_exceeded() {
                let threads = &mut self.threads;
                self.memory.fit(|bound| {
                    let all = threads.iter_mut();
                    all.for_each(|it| bound(&mut it.wakeup_latency));
                });
            }
        }
        let waited_in = self.threads[index.0].state;
        self.enter(index, now, ThreadState::Running, Some(cpu));
        let thread = &mut self.threads[index.0];
        let run = thread.run;
        thread.arrival = Some(Arrival { run, waited_in });
    }

    fn wake(&mut self, wake: &Wake, now: Timestamp) {
        self.sees_wakeups = true;
        let index = self.find(wake.tid, wake.pid, now);
        let thread = &mut self.threads[index.0];
        let asleep = matches!(
            thread.state,
            ThreadState::Blocked | ThreadState::Absent | ThreadState::Unknown
        );
        match wake.kind {
            Wake::WAKING => {
                // Kept even while the thread runs: the wake-up decides (race 1).
                thread.waking = Some(now);
            }
            _ if asleep => {
                thread.waking.get_or_insert(now);
                self.enter(index, now, ThreadState::Runnable, None);
                self.threads[index.0].reason = StateReason::Woken(wake.waker_tid);
            }
            // Already running or runnable: the waking cancelled a sleep (race 2).
            _ => thread.waking = None,
        }
    }

    fn life(&mut self, life: &Life, now: Timestamp) {
        match life.kind {
            Life::FORK => {
                // A reused thread id belongs to a new thread.
                self.by_tid.remove(&life.tid);
                let index = self.find(life.tid, life.pid, now);
                let thread = &mut self.threads[index.0];
                thread.state = ThreadState::Absent;
                thread.comm = life.comm().to_string();
            }
            Life::EXIT => {
                let index = self.find(life.tid, life.pid, now);
                let cpu = (life.cpu_ns > 0).then(|| Nanos::from_ns(life.cpu_ns));
                let thread = &mut self.threads[index.0];
                thread.cpu_at_exit = cpu;
                thread.ended = Some(now);
                if !life.comm().is_empty() {
                    thread.comm = life.comm().to_string();
                }
            }
            Life::TRACKED => {
                let index = self.find(life.tid, life.pid, now);
                self.threads[index.0].comm = life.comm().to_string();
                // A thread that is off its CPU and asleep is known to be blocked; any other may be
                // running or waiting, which its first departure shows.
                if life.parent_tid != 0 && self.threads[index.0].state == ThreadState::Unknown {
                    self.threads[index.0].state = ThreadState::Blocked;
                }
            }
            Life::UNTRACKED => {
                if let Some(index) = self.by_tid.remove(&life.tid) {
                    self.enter(index, now, ThreadState::Absent, None);
                    self.threads[index.0].ended = Some(now);
                }
            }
            _ => {
                if life.kind == Life::EXEC && life.parent_tid != 0 {
                    self.take_over(life, now);
                }
                let index = self.find(life.tid, life.pid, now);
                self.threads[index.0].comm = life.comm().to_string();
            }
        }
    }

    /// A thread executes a program under the id of its leader, which has exited: its own id ends,
    /// and the leader's id continues in its place.
    fn take_over(&mut self, life: &Life, now: Timestamp) {
        let old = self.by_tid.remove(&life.parent_tid).map(|old| {
            let (state, cpu) = (self.threads[old.0].state, self.threads[old.0].cpu);
            self.enter(old, now, ThreadState::Absent, None);
            self.threads[old.0].ended = Some(now);
            (state, cpu)
        });
        let heir = self.find(life.tid, life.pid, now);
        if let Some((ThreadState::Running, cpu)) = old {
            self.enter(heir, now, ThreadState::Running, cpu);
            // The kernel's account of this run begins before the run of the thread that takes the
            // id.
            self.threads[heir.0].arrival = None;
        }
    }
}

impl<O: Observer> Analysis for Scheduling<O> {
    fn requires(&self) -> EventSet {
        [
            EventName::kernel(kernel::SCHED_SWITCH),
            EventName::kernel(kernel::SCHED_WAKE),
            EventName::kernel(kernel::TASK_LIFE),
            EventName::kernel(kernel::events::FLUTTER),
            EventName::sampler(kernel::SCHEDSTAT),
        ]
        .into_iter()
        .collect()
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let (now, stream) = (element.time, element.stream);
        match stream.origin {
            Origin::Kernel { cpu } => {
                self.now = now;
                match stream.sensor.as_str() {
                    kernel::SCHED_SWITCH => {
                        if let Some(switch) = Switch::parse(element.payload) {
                            self.switch(&switch, now, cpu);
                        }
                    }
                    kernel::SCHED_WAKE => {
                        if let Some(wake) = Wake::parse(element.payload) {
                            self.wake(&wake, now);
                        }
                    }
                    kernel::events::FLUTTER => self.flutter(element, cpu),
                    kernel::TASK_LIFE => {
                        if let Some(life) = Life::parse(element.payload) {
                            self.life(&life, now);
                        }
                    }
                    _ => {}
                }
            }
            Origin::Sampler if stream.sensor == kernel::SCHEDSTAT => {
                if let Some(sample) = SchedStat::parse(element.payload) {
                    let index = self.find(sample.tid, sample.pid, now);
                    let sampled = (
                        Nanos::from_ns(sample.run_ns),
                        Nanos::from_ns(sample.wait_ns),
                    );
                    let thread = &mut self.threads[index.0];
                    thread.sampled = Some(sampled);
                    // The stamps of perf records differ from the switch by up to a microsecond,
                    // which adds up over short runs. Off a CPU the sample is the exact account; for
                    // a running thread it is as old as the last tick, so its stamps stay.
                    if thread.state != ThreadState::Running {
                        thread.settle(sampled.0, ThreadState::Blocked);
                    }
                }
            }
            Origin::Sampler | Origin::Program(_) => {}
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let scheduling = [kernel::SCHED_SWITCH, kernel::SCHED_WAKE, kernel::TASK_LIFE];
        let concerns = matches!(stream.origin, Origin::Kernel { .. })
            && scheduling.contains(&stream.sensor.as_str());
        if !concerns || gap.missed == 0 {
            return;
        }
        // Any thread may have changed its state in the gap.
        let (from, to) = (gap.from, gap.to);
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            if thread.state != ThreadState::Absent {
                let index = ThreadIndex(index);
                let from = thread.ended.map_or(from, |ended| ended.min(from));
                self.enter(index, from, ThreadState::Unknown, None);
                self.threads[index.0].waking = None;
                self.threads[index.0].arrival = None;
            }
        }
        self.now = self.now.max(to);
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests;
