// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of missing context switches.
//!
//! Streams of context switches contradict themselves if the kernel recorded nothing for a switch:
//! its tracepoint did not fire, or another tracer dropped the event without counting it. A reader
//! that trusts the elements then computes runs that never happened. [`Continuity`] follows the
//! switches of all CPUs in total order and names the CPUs on which a switch is missing.
//!
//! # Rules
//!
//! The state has, per CPU, the last thread that entered it; and per thread the CPU that it is on,
//! or that it is off. Tid 0, the idle thread of every CPU, is no thread here.
//!
//! 1. The thread on a CPU is the one that leaves it next. A switch from another thread, or into a
//!    tracked thread without a departing one, proves that the departure of the first one is missing
//!    on that CPU.
//! 2. A thread that leaves a CPU has entered it. If it has left a CPU before and not entered one
//!    since, its arrival is missing on the CPU that it leaves, unless the element has
//!    `prev_run_ns`: the arrival is then known, and nothing is lost.
//! 3. A thread that enters a CPU, or leaves one, is on no other CPU. Else its departure is missing
//!    on the other one.
//!
//! A missing switch breaks several rules at once. Each CPU is named once per element, so the count
//! is a lower bound of the missing elements.
//!
//! # What is no proof
//!
//! Monitors record tracked threads alone ([`Scope::Tracked`]). Between the elements of a CPU any
//! number of other threads may have run, and a thread that became tracked while it ran leaves
//! without an arrival. So nothing is concluded from a thread before its first switch, after TRACKED
//! and UNTRACKED, after a gap in the stream of the CPU in question or in a stream of lives, and
//! after the monitor was resumed ([`Switch::RESUMED`]). A thread that has announced its exit need
//! not leave: perf records no last departure. A thread that executes a program takes over the id of
//! its leader before the EXEC element, and the leader, which has exited, gets the thread's id: its
//! last departure can be recorded under it, while the thread runs on another CPU.
//!
//! A trace of a whole machine ([`Scope::Machine`]) has every switch of its CPUs, so rule 2 holds
//! for threads that were never seen, too, once the CPU is known to be idle. Clocks of its CPUs may
//! disagree, and rule 3 and the thread's part of rule 2 compare times of two CPUs:
//! [`Continuity::unordered`] leaves them out, and finds out whether they may be used
//! ([`Continuity::is_disordered`]).

use std::collections::HashMap;

use overhear_event::kernel::{Life, Switch};

/// The idle thread: no tracked thread is on the CPU.
const IDLE: u32 = 0;
/// The thread on a CPU is not known.
const UNKNOWN: u32 = u32::MAX;
/// The kernel's state bits of a thread that never runs again: EXIT_DEAD, EXIT_ZOMBIE and TASK_DEAD.
const DEAD: u16 = 0x10 | 0x20 | 0x80;
/// The epoch before the first gap.
const FIRST_EPOCH: u32 = 1;
/// Entries of the direct table, indexed by thread id modulo this number.
const DIRECT_ENTRIES: usize = 1024;
/// Further threads in the hash table, of a table of fixed size.
const OVERFLOW_ENTRIES: usize = 4096;

/// The switches that the streams should contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of tracked threads, as elements of our own kernel monitors.
    Tracked,
    /// All switches of the CPUs, as in a trace of the whole machine.
    Machine,
}

/// A CPU of a [`Continuity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuIndex(u32);

impl CpuIndex {
    /// The index as a number: CPUs are counted in the order in which they were added.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// CPUs on which a switch is missing. One element can prove it for at most three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingSwitches {
    cpus: [Option<CpuIndex>; 3],
}

impl MissingSwitches {
    /// Whether no switch is missing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.cpus[0].is_none()
    }

    /// The CPUs, each once.
    pub fn iter(&self) -> impl Iterator<Item = CpuIndex> {
        self.cpus.into_iter().flatten()
    }

    fn add(&mut self, cpu: CpuIndex) {
        let free =
            (self.cpus.iter_mut()).find(|position| position.is_none_or(|known| known == cpu));
        if let Some(position) = free {
            *position = Some(cpu);
        }
    }
}

/// The state of a CPU.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    /// The tracked thread on it, [`IDLE`] or [`UNKNOWN`].
    on: u32,
    /// The process of that thread.
    pid: u32,
    /// The epoch that began with the last gap in its switches.
    gap: u32,
}

/// The last known position of a thread, and the epoch of that observation: a gap of a later epoch
/// can have hidden a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadPosition {
    /// The CPU that it entered last, or one of the constants. It is still there if the CPU's state
    /// agrees.
    cpu: u32,
    epoch: u32,
}

impl ThreadPosition {
    /// It has left a CPU.
    const OFF: u32 = u32::MAX - 2;
    /// It is tracked no more; a switch at the same moment may follow.
    const UNTRACKED: u32 = u32::MAX - 1;
    /// Nothing is concluded from its next switch.
    const UNKNOWN: Self = Self {
        cpu: u32::MAX,
        epoch: 0,
    };

    /// Whether it has been on a CPU, or born, since it became tracked.
    const fn was_seen(self) -> bool {
        self.cpu <= Self::OFF
    }
}

/// The positions of threads by id: a direct table, and a hash table for collisions.
#[derive(Debug, Default)]
struct Threads {
    near: Box<[(u32, ThreadPosition)]>,
    far: HashMap<u32, ThreadPosition>,
    is_fixed: bool,
}

impl Threads {
    fn new(is_fixed: bool) -> Self {
        let far = if is_fixed { OVERFLOW_ENTRIES } else { 0 };
        Self {
            near: vec![(IDLE, ThreadPosition::UNKNOWN); DIRECT_ENTRIES].into(),
            far: HashMap::with_capacity(far),
            is_fixed,
        }
    }

    #[inline]
    fn get(&self, tid: u32) -> ThreadPosition {
        let (near, position) = self.near[tid as usize % DIRECT_ENTRIES];
        if near == tid {
            return position;
        }
        self.far_position(tid)
    }

    #[cold]
    fn far_position(&self, tid: u32) -> ThreadPosition {
        self.far
            .get(&tid)
            .copied()
            .unwrap_or(ThreadPosition::UNKNOWN)
    }

    #[inline]
    fn set(&mut self, tid: u32, position: ThreadPosition) {
        let entry = &mut self.near[tid as usize % DIRECT_ENTRIES];
        if entry.0 != tid {
            let other = std::mem::replace(entry, (tid, position));
            self.displace(tid, other);
        } else {
            entry.1 = position;
        }
    }

    /// Moves the thread of an entry to the hash table. A full table of fixed size forgets a thread:
    /// then fewer missing switches are found.
    #[cold]
    fn displace(&mut self, tid: u32, (other, position): (u32, ThreadPosition)) {
        self.far.remove(&tid);
        let has_room = !self.is_fixed || self.far.len() < OVERFLOW_ENTRIES;
        if position != ThreadPosition::UNKNOWN && has_room {
            self.far.insert(other, position);
        }
    }

    fn clear(&mut self) {
        self.near.fill((IDLE, ThreadPosition::UNKNOWN));
        self.far.clear();
    }
}

/// Follows switches and lives of threads, in total order. See the module's documentation.
#[derive(Debug)]
pub struct Continuity {
    scope: Scope,
    is_ordered: bool,
    is_disordered: bool,
    cpus: Vec<Cpu>,
    threads: Threads,
    /// Counts gaps.
    epoch: u32,
}

impl Continuity {
    /// A state without CPUs and threads.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            threads: Threads::new(false),
            ..Self::without_memory()
        }
    }

    /// Limits the memory: with more than some thousand threads at once, some missing switches are
    /// not found.
    #[must_use]
    pub(crate) fn with_fixed_memory(self) -> Self {
        Self {
            threads: Threads::new(true),
            ..self
        }
    }

    /// A state without memory, to which no CPU can be added.
    pub(crate) fn without_memory() -> Self {
        Self {
            scope: Scope::Tracked,
            is_ordered: true,
            is_disordered: false,
            cpus: Vec::new(),
            threads: Threads::default(),
            epoch: FIRST_EPOCH,
        }
    }

    /// Disables the rules that compare times of two CPUs.
    #[must_use]
    pub fn unordered(self) -> Self {
        Self {
            is_ordered: false,
            ..self
        }
    }

    /// Whether an [unordered](Self::unordered) one has seen a thread enter a CPU before it had left
    /// another, and leave that one later: the clocks of the CPUs disagree.
    #[must_use]
    pub const fn is_disordered(&self) -> bool {
        self.is_disordered
    }

    /// Adds a CPU, on which the thread is unknown.
    pub fn add_cpu(&mut self) -> CpuIndex {
        let index = CpuIndex(u32::try_from(self.cpus.len()).unwrap_or(u32::MAX));
        self.cpus.push(Cpu {
            on: UNKNOWN,
            pid: UNKNOWN,
            gap: 0,
        });
        index
    }

    /// Takes the next switch of a CPU, and returns where switches before it are missing.
    pub fn switch(&mut self, cpu: CpuIndex, switch: &Switch) -> MissingSwitches {
        if self.follow(cpu, switch) {
            return MissingSwitches::default();
        }
        let holes = self.holes(cpu, switch);
        holes.iter().for_each(|cpu| self.gap(cpu));
        self.accept(cpu, switch);
        holes
    }

    /// Takes the next switch of a CPU if it proves nothing; else nothing has changed.
    ///
    /// Nearly all are taken here: the thread that is known to be on the CPU leaves, and one that is
    /// on no CPU enters. That the first one has left is known from its CPU, so only the place of
    /// the second one changes. In which epoch it left matters only once there is a second one.
    #[inline(always)]
    pub(crate) fn follow(&mut self, cpu: CpuIndex, switch: &Switch) -> bool {
        let (prev, next) = (leaving(switch), entering(switch));
        let is_rare = (switch.flags & Switch::RESUMED) | (switch.prev_state & DEAD);
        let is_simple = self.epoch == FIRST_EPOCH && self.is_ordered;
        if self.cpus[cpu.get()].on != prev || prev == next || is_rare != 0 || !is_simple {
            return self.follow_rare(cpu, switch);
        }
        if next != IDLE {
            let (tid, position) = &mut self.threads.near[next as usize % DIRECT_ENTRIES];
            let was_on = match self.cpus.get(position.cpu as usize) {
                Some(last) => last.on,
                None if position.cpu == ThreadPosition::OFF => IDLE,
                None => next,
            };
            if *tid != next || was_on == next {
                return self.follow_rare(cpu, switch);
            }
            *position = ThreadPosition {
                cpu: cpu.0,
                epoch: self.epoch,
            };
        }
        let here = &mut self.cpus[cpu.get()];
        (here.on, here.pid) = (next, switch.next_pid);
        true
    }

    #[inline(never)]
    fn follow_rare(&mut self, cpu: CpuIndex, switch: &Switch) -> bool {
        let follows = self.holes(cpu, switch).is_empty();
        if follows {
            self.accept(cpu, switch);
        }
        follows
    }

    /// The CPUs on which switches before this one are missing. Nothing changes.
    pub(crate) fn holes(&self, cpu: CpuIndex, switch: &Switch) -> MissingSwitches {
        let mut holes = MissingSwitches::default();
        if switch.flags & Switch::RESUMED != 0 {
            return holes;
        }
        let (prev, next) = (leaving(switch), entering(switch));
        let on = self.cpus[cpu.get()].on;
        if on != prev && on != UNKNOWN {
            self.holes_of_cpu(cpu, switch, &mut holes);
        } else if on == UNKNOWN && prev != IDLE {
            self.holes_of_thread(cpu, switch, &mut holes);
        }
        if next != IDLE {
            if let Some(other) = self.elsewhere(next, cpu) {
                holes.add(other);
            }
        }
        holes
    }

    /// Rule 1, and rule 2 of a thread that was not on the CPU.
    #[cold]
    fn holes_of_cpu(&self, cpu: CpuIndex, switch: &Switch, holes: &mut MissingSwitches) {
        if self.is_taken_over(cpu, switch) {
            return;
        }
        if self.cpus[cpu.get()].on != IDLE {
            holes.add(cpu);
        }
        if leaving(switch) != IDLE {
            self.holes_of_thread(cpu, switch, holes);
        }
    }

    /// Rules 2 and 3 of the thread that leaves a CPU on which it was not known to be.
    #[cold]
    fn holes_of_thread(&self, cpu: CpuIndex, switch: &Switch, holes: &mut MissingSwitches) {
        let prev = leaving(switch);
        if self.is_replaced_leader(switch) {
            return;
        }
        let Cpu { on, gap, .. } = self.cpus[cpu.get()];
        let is_arrival_known = switch.prev_run_ns != Switch::UNKNOWN;
        let position = self.threads.get(prev);
        let has_come = if position.was_seen() && self.is_ordered {
            // It was not on this CPU at the last element, or when it was last seen; no gap can have
            // hidden it.
            on != UNKNOWN || position.epoch >= gap
        } else {
            self.scope == Scope::Machine && on == IDLE
        };
        if let Some(other) = self.elsewhere(prev, cpu) {
            holes.add(other);
        }
        if has_come && !is_arrival_known {
            holes.add(cpu);
        }
    }

    /// Another CPU that a thread is on.
    #[inline]
    fn elsewhere(&self, tid: u32, cpu: CpuIndex) -> Option<CpuIndex> {
        let other = self.threads.get(tid).cpu;
        let is_there = self
            .cpus
            .get(other as usize)
            .is_some_and(|other| other.on == tid);
        (is_there && other != cpu.0 && self.is_ordered).then_some(CpuIndex(other))
    }

    /// Whether the leaving thread is the one on the CPU, under the id of its leader, which has
    /// exited.
    fn is_taken_over(&self, cpu: CpuIndex, switch: &Switch) -> bool {
        let Cpu { on, pid, .. } = self.cpus[cpu.get()];
        let prev = leaving(switch);
        prev != IDLE
            && on != IDLE
            && prev == switch.prev_pid
            && pid == switch.prev_pid
            && !self.threads.get(prev).was_seen()
    }

    /// Whether a leader that has exited leaves for the last time, under the id of the thread that
    /// took over its own.
    fn is_replaced_leader(&self, switch: &Switch) -> bool {
        let prev = leaving(switch);
        switch.prev_state & DEAD != 0
            && prev != IDLE
            && prev != switch.prev_pid
            && !self.threads.get(switch.prev_pid).was_seen()
    }

    /// Takes the next switch of a CPU. What it proves to be missing was taken as gaps.
    fn accept(&mut self, cpu: CpuIndex, switch: &Switch) {
        if switch.flags & Switch::RESUMED != 0 {
            self.forget();
        }
        let (prev, next) = (leaving(switch), entering(switch));
        let on = self.cpus[cpu.get()].on;
        if on != prev && on != UNKNOWN && self.is_taken_over(cpu, switch) {
            self.threads.set(on, ThreadPosition::UNKNOWN);
        }
        let epoch = self.epoch;
        if prev != IDLE {
            if !self.is_ordered && on == prev && self.threads.get(prev).cpu != cpu.0 {
                self.is_disordered = true;
            }
            if on != prev {
                self.leave_elsewhere(prev, cpu);
            }
            let position = match switch.prev_state & DEAD {
                0 => ThreadPosition {
                    cpu: ThreadPosition::OFF,
                    epoch,
                },
                _ => ThreadPosition::UNKNOWN,
            };
            self.threads.set(prev, position);
        }
        let mut entered = next;
        if next != IDLE {
            if self.threads.get(next).cpu == ThreadPosition::UNTRACKED {
                entered = UNKNOWN;
            } else {
                self.leave_elsewhere(next, cpu);
                self.threads.set(next, ThreadPosition { cpu: cpu.0, epoch });
            }
        }
        let here = &mut self.cpus[cpu.get()];
        (here.on, here.pid) = (entered, switch.next_pid);
    }

    /// A thread is on this CPU, so it is on no other.
    #[inline]
    fn leave_elsewhere(&mut self, tid: u32, cpu: CpuIndex) {
        if let Some(other) = self.elsewhere(tid, cpu) {
            self.cpus[other.get()].on = UNKNOWN;
        }
    }

    /// Takes the next event in the life of a thread.
    pub fn life(&mut self, life: &Life) {
        match life.kind {
            Life::FORK => {
                self.clear(life.tid);
                let born = ThreadPosition {
                    cpu: ThreadPosition::OFF,
                    epoch: self.epoch,
                };
                self.threads.set(life.tid, born);
            }
            Life::EXEC if life.parent_tid != 0 => self.rename(life.parent_tid, life.tid, life.pid),
            // The last departure of the others is recorded, or it is not.
            Life::EXIT if self.scope == Scope::Tracked => self.clear(life.tid),
            Life::TRACKED => self.clear(life.tid),
            Life::UNTRACKED => {
                self.clear(life.tid);
                let gone = ThreadPosition {
                    cpu: ThreadPosition::UNTRACKED,
                    epoch: self.epoch,
                };
                self.threads.set(life.tid, gone);
            }
            _ => {}
        }
    }

    /// Nothing is concluded from the thread's next switch, nor from who leaves its CPU.
    fn clear(&mut self, tid: u32) {
        let last = self.threads.get(tid).cpu;
        if let Some(here) = self.cpus.get_mut(last as usize).filter(|cpu| cpu.on == tid) {
            here.on = UNKNOWN;
        }
        self.threads.set(tid, ThreadPosition::UNKNOWN);
    }

    /// A thread has another id from here on.
    fn rename(&mut self, old: u32, new: u32, pid: u32) {
        let position = self.threads.get(old);
        let last = self.cpus.get_mut(position.cpu as usize);
        if let Some(here) = last.filter(|cpu| cpu.on == old) {
            (here.on, here.pid) = (new, pid);
            self.threads.set(new, position);
        }
        self.threads.set(old, ThreadPosition::UNKNOWN);
    }

    /// Switches of this CPU are missing, and counted: that explains what would contradict the same
    /// elements.
    pub fn gap(&mut self, cpu: CpuIndex) {
        self.epoch += 1;
        let here = &mut self.cpus[cpu.get()];
        (here.on, here.gap) = (UNKNOWN, self.epoch);
    }

    /// Nothing that was known holds any more: lives of threads are missing, or the monitor did not
    /// record for a while.
    pub fn forget(&mut self) {
        self.epoch += 1;
        for cpu in &mut self.cpus {
            (cpu.on, cpu.gap) = (UNKNOWN, self.epoch);
        }
        self.threads.clear();
    }

    /// The CPUs whose last thread was seen elsewhere later and never left: what an
    /// [unordered](Self::unordered) one finds only at the end.
    pub fn unfinished(&self) -> impl Iterator<Item = CpuIndex> + '_ {
        let numbered = (0..).map(CpuIndex).zip(&self.cpus);
        let held = numbered.filter(|(_, cpu)| !matches!(cpu.on, IDLE | UNKNOWN));
        let elsewhere = held.filter(|(index, cpu)| {
            let position = self.threads.get(cpu.on);
            position.was_seen() && position.cpu != index.0
        });
        elsewhere.map(|(index, _)| index)
    }
}

/// The tracked thread that leaves its CPU.
#[inline]
fn leaving(switch: &Switch) -> u32 {
    match switch.flags & Switch::PREV_TRACKED {
        0 => IDLE,
        _ => switch.prev_tid,
    }
}

/// The tracked thread that enters a CPU.
#[inline]
fn entering(switch: &Switch) -> u32 {
    match switch.flags & Switch::NEXT_TRACKED {
        0 => IDLE,
        _ => switch.next_tid,
    }
}

#[cfg(test)]
mod tests;
