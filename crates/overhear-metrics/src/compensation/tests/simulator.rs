// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads on CPUs and the elements that a monitor gets: the slow oracle of the compensation.
//!
//! It contains no delays. A workload runs once with a cost for every element and once without any;
//! the compensated first run is compared with the second one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use overhear_event::kernel::{Switch, Wake};

/// From a wake-up to the run on an idle CPU.
pub(super) const LATENCY: u64 = 2_000;
/// Between the two elements of a wake-up.
const HALVES: u64 = 10;
/// The first thread's id.
pub(super) const FIRST_TID: u32 = 100;
const ASLEEP: u16 = 1;

/// The next action of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Works for this time.
    Work(u64),
    /// Writes an element of its own sensor.
    Mark,
    /// Posts the semaphore of a thread.
    Post(usize),
    /// Waits for its own semaphore.
    Wait,
    /// Sleeps until this time, unless it is over.
    Until(u64),
    /// Yields to the others on its CPU.
    Yield,
}

/// A thread: it stays on its CPU, and displaces less urgent threads there.
#[derive(Clone, Debug)]
pub(super) struct Player {
    pub(super) cpu: usize,
    pub(super) urgency: u32,
    pub(super) steps: Vec<Step>,
}

/// The cost of each element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prices {
    pub(super) switch: u64,
    pub(super) wake: u64,
    pub(super) mark: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Switch(Switch),
    Wake(Wake),
    Mark { thread: usize },
}

/// The elements that the monitor gets, in the order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) at: u64,
    pub(super) cpu: usize,
    pub(super) what: Written,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    /// Time at which the thread on the CPU completes its step, or enters.
    clock: u64,
    current: Option<usize>,
    /// It has been woken, and will enter.
    entering: Option<usize>,
    queue: VecDeque<usize>,
    /// Begin of its idle time, after the cost of the switch.
    free: u64,
}

#[derive(Clone, Debug, Default)]
struct State {
    step: usize,
    /// Remaining work of a displaced thread.
    left: Option<u64>,
    posts: u32,
    waits: bool,
    sleeps: bool,
}

struct World<'a> {
    players: &'a [Player],
    prices: Prices,
    cpus: Vec<Cpu>,
    states: Vec<State>,
    timers: BTreeSet<(u64, usize)>,
    recorded: Vec<Recorded>,
    departures: Vec<(usize, usize)>,
}

pub(super) fn tid(thread: usize) -> u32 {
    FIRST_TID + u32::try_from(thread).unwrap()
}

/// The elements while the workload runs to its end, or until no thread can go on.
pub(super) fn run(players: &[Player], prices: Prices) -> Vec<Recorded> {
    run_with_log(players, prices).0
}

/// The same, and the steps at which each thread left its CPU; no element contains these.
pub(super) fn run_with_log(
    players: &[Player],
    prices: Prices,
) -> (Vec<Recorded>, BTreeMap<usize, Vec<usize>>) {
    let cpus = players.iter().map(|player| player.cpu).max().unwrap_or(0) + 1;
    let mut world = World {
        players,
        prices,
        cpus: vec![Cpu::default(); cpus],
        states: vec![State::default(); players.len()],
        timers: BTreeSet::new(),
        recorded: Vec::new(),
        departures: Vec::new(),
    };
    // A timer wakes the first thread of each CPU. The others wait for it.
    for (thread, player) in players.iter().enumerate() {
        let before = &players[..thread];
        if before.iter().any(|other| other.cpu == player.cpu) {
            world.cpus[player.cpu].queue.push_back(thread);
        } else {
            world.states[thread].sleeps = true;
            let at = 1_000_000 + 7 * thread as u64;
            world.timers.insert((at, thread));
        }
    }
    while world.next() {}
    world.recorded.sort_by_key(|recorded| recorded.at);
    let mut departures: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (thread, step) in world.departures {
        departures.entry(thread).or_default().push(step);
    }
    (world.recorded, departures)
}

impl World<'_> {
    fn next(&mut self) -> bool {
        let busy = |cpu: &Cpu| cpu.current.is_some() || cpu.entering.is_some();
        let cpus = self.cpus.iter().enumerate();
        let next = cpus
            .filter(|(_, cpu)| busy(cpu))
            .map(|(number, cpu)| (cpu.clock, number))
            .min();
        match (self.timers.first().copied(), next) {
            (Some((at, thread)), next) if next.is_none_or(|(clock, _)| at < clock) => {
                self.timers.pop_first();
                self.expire(at, thread);
            }
            (_, Some((_, number))) => self.proceed(number),
            (_, None) => return false,
        }
        true
    }

    fn write(&mut self, at: u64, cpu: usize, what: Written) {
        self.recorded.push(Recorded { at, cpu, what });
    }

    /// Switches from `prev` to `next` at `at`; the entering thread continues after the cost.
    fn switch(
        &mut self,
        number: usize,
        at: u64,
        prev: Option<usize>,
        next: Option<usize>,
        state: u16,
    ) {
        let id = |thread: Option<usize>| thread.map_or(0, tid);
        let step = |thread: usize| (thread, self.states[thread].step);
        self.departures.extend(prev.map(step));
        let mut flags = 0;
        if prev.is_some() {
            flags |= Switch::PREV_TRACKED;
            flags |= if state == 0 {
                Switch::PREEMPTED
            } else {
                Switch::VOLUNTARY
            };
        }
        if next.is_some() {
            flags |= Switch::NEXT_TRACKED;
        }
        let switch = Switch {
            prev_tid: id(prev),
            next_tid: id(next),
            prev_pid: id(prev),
            next_pid: id(next),
            prev_state: state,
            flags,
            prev_run_ns: Switch::UNKNOWN,
        };
        self.write(at, number, Written::Switch(switch));
        let after = at + self.prices.switch;
        let cpu = &mut self.cpus[number];
        cpu.current = next;
        cpu.clock = after;
        if next.is_none() {
            cpu.free = after;
        }
        if let Some(thread) = next {
            self.begin(number, thread);
        }
    }

    /// Continues the rest of its work, or takes its next step.
    fn begin(&mut self, number: usize, thread: usize) {
        let state = &mut self.states[thread];
        let length = match (
            state.left.take(),
            self.players[thread].steps.get(state.step),
        ) {
            (Some(left), _) => left,
            (None, Some(Step::Work(length))) => *length,
            _ => 0,
        };
        self.cpus[number].clock += length;
    }

    /// Writes both halves of a wake-up on CPU `number`; returns the time after that.
    fn wake(&mut self, number: usize, mut at: u64, waker: Option<usize>, thread: usize) -> u64 {
        for kind in [Wake::WAKING, Wake::WAKEUP] {
            let waker = waker.map_or(0, tid);
            let wake = Wake {
                tid: tid(thread),
                pid: tid(thread),
                waker_tid: waker,
                waker_pid: waker,
                target_cpu: u32::try_from(self.players[thread].cpu).unwrap(),
                kind,
            };
            self.write(at, number, Written::Wake(wake));
            at += self.prices.wake + HALVES;
        }
        at
    }

    /// Queues a woken thread, or lets it enter. Returns whether it displaces the running thread.
    fn line_up(&mut self, thread: usize, at: u64) -> bool {
        let urgency = self.players[thread].urgency;
        let cpu = &mut self.cpus[self.players[thread].cpu];
        if cpu.current.is_none() && cpu.entering.is_none() {
            cpu.entering = Some(thread);
            cpu.clock = at.max(cpu.free) + LATENCY;
            return false;
        }
        if cpu
            .current
            .is_some_and(|current| self.players[current].urgency < urgency)
        {
            cpu.queue.push_front(thread);
            return true;
        }
        cpu.queue.push_back(thread);
        false
    }

    fn displace(&mut self, number: usize, at: u64, left: u64) {
        let cpu = &mut self.cpus[number];
        let (current, next) = (cpu.current.take(), cpu.queue.pop_front());
        if let Some(current) = current {
            self.states[current].left = Some(left);
            self.cpus[number].queue.push_back(current);
        }
        self.switch(number, at, current, next, 0);
    }

    /// A timer interrupts the thread's CPU.
    fn expire(&mut self, at: u64, thread: usize) {
        self.states[thread].sleeps = false;
        let number = self.players[thread].cpu;
        let (current, clock) = (self.cpus[number].current, self.cpus[number].clock);
        let after = self.wake(number, at, current, thread);
        if current.is_some() || self.cpus[number].entering.is_some() {
            self.cpus[number].clock += after - at;
        }
        if self.line_up(thread, after) {
            self.displace(number, after, clock - at);
        }
    }

    /// The thread on this CPU has completed its work, and takes its next step.
    fn proceed(&mut self, number: usize) {
        let at = self.cpus[number].clock;
        if let Some(thread) = self.cpus[number].entering.take() {
            self.switch(number, at, None, Some(thread), 0);
            return;
        }
        let Some(thread) = self.cpus[number].current else {
            return;
        };
        let step = self.players[thread]
            .steps
            .get(self.states[thread].step)
            .copied();
        let asleep = match step {
            None => Some(0x80),
            Some(Step::Wait) if self.states[thread].posts == 0 => {
                self.states[thread].waits = true;
                Some(ASLEEP)
            }
            Some(Step::Wait) => {
                self.states[thread].posts -= 1;
                None
            }
            Some(Step::Until(until)) if until > at => {
                self.states[thread].sleeps = true;
                self.timers.insert((until, thread));
                Some(ASLEEP)
            }
            Some(Step::Yield) if !self.cpus[number].queue.is_empty() => Some(0),
            _ => None,
        };
        self.states[thread].step += 1;
        if let Some(state) = asleep {
            let next = self.cpus[number].queue.pop_front();
            if state == 0 {
                self.states[thread].left = Some(self.next_work(thread));
                self.cpus[number].queue.push_back(thread);
            }
            self.switch(number, at, Some(thread), next, state);
            return;
        }
        let mut now = at;
        match step {
            Some(Step::Mark) => {
                self.write(at, number, Written::Mark { thread });
                now += self.prices.mark;
            }
            Some(Step::Post(other)) => {
                if self.states[other].waits {
                    self.states[other].waits = false;
                    now = self.wake(number, at, Some(thread), other);
                    let target = self.players[other].cpu;
                    if self.line_up(other, now) {
                        if target == number {
                            let left = self.next_work(thread);
                            self.displace(number, now, left);
                            return;
                        }
                        // The other CPU is interrupted in the middle of its work.
                        let left = self.cpus[target].clock.saturating_sub(now);
                        let when = now.max(self.cpus[target].clock.min(now));
                        self.displace(target, when, left);
                    }
                } else {
                    self.states[other].posts += 1;
                }
            }
            _ => {}
        }
        self.cpus[number].clock = now + self.next_work(thread);
    }

    fn next_work(&self, thread: usize) -> u64 {
        match self.players[thread].steps.get(self.states[thread].step) {
            Some(Step::Work(length)) => *length,
            _ => 0,
        }
    }
}
