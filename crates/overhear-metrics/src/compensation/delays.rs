// SPDX-License-Identifier: MIT OR Apache-2.0
//! The delay of each element: the time by which it comes later because of the cost of observing.

use std::collections::{BTreeMap, HashMap};

use overhear_event::kernel::{
    Life, SchedStat, Switch, Wake, SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE,
};
use overhear_event::{
    ElementView, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, Value, WRITER_TID,
};

use super::thread::{Point, ThreadDelay};
use crate::overhead::Costs;

/// The place of an element without the cost of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its compensated time, never later than the recorded one.
    pub time: Timestamp,
    /// Of a switch: the earlier time at which the leaving thread leaves; the CPU is idle until
    /// `time`, because the entering thread was not ready before.
    pub rests_from: Option<Timestamp>,
    /// Nanoseconds by which an account of CPU time in the payload is too large; negative if it is
    /// too small.
    pub less_ns: i64,
}

/// The state of one context of execution: the thread on a CPU, or a process on an unknown CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    /// Delay of the work.
    delay: Nanos,
    /// Compensated time of the work at its newest element. It never goes back: if costs are
    /// estimated larger than the time that has passed, the rest of them is dropped.
    progress: Timestamp,
    /// Compensated time of the newest element. It can be later than `progress`, if events of others
    /// had to happen first.
    floor: Timestamp,
}

impl Course {
    /// Places an element of the work itself, not before `behind`.
    fn compensate(&mut self, at: Timestamp, behind: Timestamp) -> Timestamp {
        let progress = at.minus(self.delay).max(self.progress);
        self.delay = at.since(progress);
        self.progress = progress;
        self.floor = progress.max(self.floor).max(behind).min(at);
        self.floor
    }

    fn pay(&mut self, cost: Nanos) {
        self.delay = self.delay.plus(cost);
    }
}

/// A process, for elements whose writer is unknown.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessDelay {
    course: Course,
    /// Its thread that got a CPU last.
    newest: Option<u32>,
}

/// The thread on a CPU, as far as elements show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Occupant {
    /// Unknown: no element has shown it, or a perf record showed a departure only.
    #[default]
    Unknown,
    /// No thread: the CPU is idle.
    Idle,
    /// This thread, tracked or not.
    Thread(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    occupant: Occupant,
    course: Course,
    /// Begin of the idle time, if the CPU is idle and that was seen; the recorded time is after the
    /// cost of the switch.
    free: Option<Point>,
}

impl Cpu {
    /// This thread writes an element. If another thread was on the CPU, the switch was between
    /// threads that are not tracked.
    fn sees(&mut self, tid: u32) {
        match (self.occupant, tid) {
            (Occupant::Thread(known), tid) if known == tid => return,
            (Occupant::Idle, 0) => return,
            // An event woke it that does not depend on tracked threads.
            (Occupant::Idle, _) => {
                self.course.delay = Nanos::ZERO;
                self.course.progress = self.course.floor;
            }
            (_, 0) => self.free = None,
            // It waited for its predecessor.
            _ => {}
        }
        self.occupant = match tid {
            0 => Occupant::Idle,
            tid => Occupant::Thread(tid),
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hook {
    Switch,
    Wake,
    Life,
    Other,
}

/// The delays of all threads and CPUs, and how each element changes them.
///
/// Pass every element to it in the recorded order; it returns the compensated time. See the
/// [module](super) for the rule.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    costs: Costs,
    known: HashMap<StreamId, (Hook, Nanos)>,
    cpus: BTreeMap<u32, Cpu>,
    threads: HashMap<u32, ThreadDelay>,
    processes: HashMap<u32, ProcessDelay>,
    // Compensated times of the newest elements of streams that belong to no CPU.
    streams: HashMap<StreamId, Timestamp>,
    /// Time up to which items were handed on: nothing can be placed before it.
    pub(super) released: Timestamp,
    pub(super) hurried: u64,
    greatest: Nanos,
    last: Nanos,
    rests: u64,
}

impl Delays {
    /// With these costs per element.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            ..Self::default()
        }
    }

    /// The greatest delay so far. No later element is moved by more, unless costs until then add to
    /// it.
    #[must_use]
    pub const fn greatest(&self) -> Nanos {
        self.greatest
    }

    /// Delay of the newest element of a thread: without the cost of observing, the run would have
    /// ended earlier by this time.
    #[must_use]
    pub const fn last(&self) -> Nanos {
        self.last
    }

    /// Number of items that were handed on early, because too many were held back: their order is
    /// less exact.
    #[must_use]
    pub const fn hurried(&self) -> u64 {
        self.hurried
    }

    /// Number of times that a CPU would have been idle where it was not.
    #[must_use]
    pub const fn rests(&self) -> u64 {
        self.rests
    }

    /// The compensated time of a recorded one of a thread: exact for the times of its newest
    /// elements, in between by the delay of the element before.
    #[must_use]
    pub fn moved(&self, tid: u32, at: Timestamp) -> Timestamp {
        let thread = self.threads.get(&tid);
        thread.map_or(at, |thread| thread.moved(at))
    }

    /// Places an element.
    pub fn element(&mut self, element: &ElementView<'_>) -> Moved {
        let (hook, cost) = self.pricing(element.stream);
        let at = element.time;
        let moved =
            match (&element.stream.origin, hook) {
                (Origin::Kernel { cpu }, Hook::Switch) => Switch::parse(element.payload)
                    .map(|switch| self.switch(*cpu, at, &switch, cost)),
                (Origin::Kernel { cpu }, Hook::Wake) => Wake::parse(element.payload)
                    .map(|wake| Moved::to(self.wake(*cpu, at, &wake, cost))),
                (Origin::Kernel { cpu }, Hook::Life) => {
                    Life::parse(element.payload).map(|life| self.life(*cpu, at, &life, cost))
                }
                (Origin::Kernel { cpu }, Hook::Other) => {
                    Some(Moved::to(self.on_cpu(*cpu, at, Timestamp::ZERO, cost)))
                }
                (Origin::Program(task), _) => {
                    Some(Moved::to(self.program(element, task.pid, at, cost)))
                }
                (Origin::Sampler, _) => None,
            };
        // A sampler samples by its own clock.
        moved.unwrap_or_else(|| {
            let less_ns = match element.stream.sensor.as_str() {
                SCHEDSTAT => SchedStat::parse(element.payload)
                    .and_then(|sample| self.threads.get(&sample.tid))
                    .map_or(0, |thread| thread.shrunk_ns),
                _ => 0,
            };
            Moved {
                less_ns,
                ..Moved::to(at.max(self.released))
            }
        })
    }

    /// Places a gap: its begin and its end. Missed elements cost as much as others of their stream.
    pub fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) -> (Timestamp, Timestamp) {
        let (hook, cost) = self.pricing(stream);
        let Origin::Kernel { cpu } = stream.origin else {
            let floor = self.streams.get(&stream.id).copied();
            let delay = match &stream.origin {
                Origin::Program(task) => {
                    let process = self.processes.get(&task.pid);
                    process.map(|process| process.course.delay)
                }
                _ => None,
            };
            let from = floor.unwrap_or(gap.from).min(gap.from);
            let to = gap
                .to
                .minus(delay.unwrap_or_default())
                .max(from)
                .max(self.released);
            self.streams.insert(stream.id, to);
            return (from, to);
        };
        let from = self
            .cpus
            .get(&cpu)
            .map_or(gap.from, |cpu| cpu.course.floor.min(gap.from));
        let to = self.on_cpu(cpu, gap.to, from, Nanos::ZERO);
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.course
            .pay(Nanos::from_ns(cost.as_ns().saturating_mul(gap.missed)));
        if hook == Hook::Switch && gap.missed > 0 {
            cpu.occupant = Occupant::Unknown;
        }
        (from, to)
    }

    fn pricing(&mut self, stream: &StreamDescriptor) -> (Hook, Nanos) {
        let costs = &self.costs;
        *self.known.entry(stream.id).or_insert_with(|| {
            let hook = match stream.sensor.as_str() {
                SCHED_SWITCH => Hook::Switch,
                SCHED_WAKE => Hook::Wake,
                TASK_LIFE => Hook::Life,
                _ => Hook::Other,
            };
            (hook, costs.of_stream(stream).unwrap_or_default())
        })
    }

    /// The greatest delay that later elements may have.
    fn note(&mut self, delay: Nanos) {
        self.greatest = self.greatest.max(delay);
    }

    /// Places an element in the context that its CPU is in.
    fn on_cpu(&mut self, cpu: u32, at: Timestamp, behind: Timestamp, cost: Nanos) -> Timestamp {
        let behind = behind.max(self.released);
        let cpu = self.cpus.entry(cpu).or_default();
        if cpu.occupant == Occupant::Idle {
            // An interrupt of an idle CPU has its own time, and its cost is paid with idle time.
            cpu.course.floor = at.max(cpu.course.floor).max(behind).min(at);
            return cpu.course.floor;
        }
        let moved = cpu.course.compensate(at, behind);
        cpu.course.pay(cost);
        let delay = cpu.course.delay;
        self.last = at.since(moved);
        self.note(delay);
        moved
    }

    fn switch(&mut self, number: u32, at: Timestamp, switch: &Switch, cost: Nanos) -> Moved {
        let (prev, next) = (switch.prev_tid, switch.next_tid);
        let released = self.released;
        let mut cpu = self.cpus.get(&number).copied().unwrap_or_default();
        let comes_from_rest =
            prev == 0 || (prev == Switch::UNKNOWN && cpu.occupant == Occupant::Idle);
        let is_thread = |tid: u32| tid != 0 && tid != Switch::UNKNOWN;
        let mut left = cpu.course.floor;
        if !comes_from_rest {
            let mut behind = released;
            if is_thread(prev) {
                cpu.sees(prev);
                behind = behind.max(self.thread(prev, switch.prev_pid).last());
            }
            left = cpu.course.compensate(at, behind);
            self.last = at.since(left);
        }
        let is_displaced = is_thread(prev) && switch.prev_state == 0;

        let mut entered = left;
        if is_thread(next) {
            let is_followed = switch.flags & Switch::NEXT_TRACKED != 0;
            let free = cpu.free;
            let thread = self.thread(next, switch.next_pid);
            // A thread that is not tracked was woken without an element.
            let ready = thread.ready().filter(|_| is_followed);
            entered = match (comes_from_rest, ready) {
                (true, None) => at,
                (true, Some(ready)) => {
                    let base = free.map_or(ready, |free| free.later(ready));
                    // The time from the wake-up to the run stays the same.
                    base.moved.plus(at.since(base.at))
                }
                (false, None) => left,
                (false, Some(ready)) => left.max(ready.moved),
            };
            let floor = cpu.course.floor.max(thread.last()).max(released);
            entered = entered.max(floor).min(at);
        }
        let mut rests_from = None;
        if is_displaced {
            // The displacing thread comes at its own time; until then the displaced one works, and
            // need not do that work afterwards.
            left = entered;
        } else if is_thread(prev) && entered > left {
            rests_from = Some(left);
            self.rests += 1;
        }
        let mut less_ns = 0;
        if is_thread(prev) {
            let ahead = is_displaced.then(|| left.since(cpu.course.progress));
            let point = Point { at, moved: left };
            less_ns = self.thread(prev, switch.prev_pid).leave(point, ahead);
        }
        let mut latent = Nanos::ZERO;
        if is_thread(next) {
            let point = Point { at, moved: entered };
            latent = self.thread(next, switch.next_pid).enter(point);
            if switch.flags & Switch::NEXT_TRACKED != 0 {
                let process = self.processes.entry(switch.next_pid).or_default();
                process.newest = Some(next);
            }
        }
        match next {
            0 => {
                cpu.occupant = Occupant::Idle;
                let free = Point {
                    at: at.plus(cost),
                    moved: left,
                };
                cpu.free = Some(free);
                cpu.course.floor = left;
                self.note(free.delay());
            }
            next => {
                cpu.occupant = match next {
                    Switch::UNKNOWN => Occupant::Unknown,
                    tid => Occupant::Thread(tid),
                };
                cpu.course = Course {
                    delay: at.since(entered).plus(latent).plus(cost),
                    progress: entered.minus(latent),
                    floor: entered,
                };
                self.note(cpu.course.delay);
            }
        }
        self.cpus.insert(number, cpu);
        Moved {
            time: entered,
            rests_from,
            less_ns,
        }
    }

    fn wake(&mut self, number: u32, at: Timestamp, wake: &Wake, cost: Nanos) -> Timestamp {
        let released = self.released;
        let cpu = self.cpus.entry(number).or_default();
        cpu.sees(wake.waker_tid);
        let rests = cpu.occupant == Occupant::Idle;
        let thread = self.thread(wake.tid, wake.pid);
        let behind = thread.last().max(released);
        let waking = thread.waking();
        let moved = if rests {
            // The second half of a wake-up that another CPU began has the delay of its first half;
            // a wake-up by a timer or a device has its own time.
            let delay = match wake.kind {
                Wake::WAKEUP => waking.map_or(Nanos::ZERO, |waking| waking.delay()),
                _ => Nanos::ZERO,
            };
            let course = &mut self.cpus.entry(number).or_default().course;
            course.floor = at.minus(delay).max(course.floor).max(behind).min(at);
            course.floor
        } else {
            self.on_cpu(number, at, behind, cost)
        };
        let thread = self.thread(wake.tid, wake.pid);
        thread.wake(Point { at, moved }, wake.kind, cost);
        // On an idle CPU the thread waits for the cost of its wake-up.
        let delay = thread.waking().map_or(Nanos::ZERO, Point::delay);
        self.note(delay);
        moved
    }

    fn life(&mut self, number: u32, at: Timestamp, life: &Life, cost: Nanos) -> Moved {
        let cpu = self.cpus.entry(number).or_default();
        match life.kind {
            Life::FORK => {
                cpu.sees(life.parent_tid);
                // A reused id belongs to a new thread.
                self.threads.remove(&life.tid);
            }
            Life::EXEC if life.parent_tid != 0 => {
                cpu.sees(life.parent_tid);
                cpu.occupant = Occupant::Thread(life.tid);
                if let Some(caller) = self.threads.remove(&life.parent_tid) {
                    self.threads.insert(life.tid, caller);
                }
            }
            Life::EXEC | Life::EXIT | Life::NAME => cpu.sees(life.tid),
            _ => {}
        }
        let behind = self.thread(life.tid, life.pid).last();
        let moved = self.on_cpu(number, at, behind, cost);
        let thread = self.thread(life.tid, life.pid);
        thread.note(Point { at, moved });
        Moved {
            less_ns: thread.shrunk_so_far(Point { at, moved }),
            ..Moved::to(moved)
        }
    }

    fn program(
        &mut self,
        element: &ElementView<'_>,
        pid: u32,
        at: Timestamp,
        cost: Nanos,
    ) -> Timestamp {
        let id = element.stream.id;
        let behind = self.streams.get(&id).copied().unwrap_or_default();
        let writer = match element.field(WRITER_TID) {
            Some(Value::Unsigned(tid)) => u32::try_from(tid).ok(),
            _ => None,
        };
        let moved = match self.cpu_of(pid, writer) {
            Some((number, tid)) => {
                let behind = behind.max(self.thread(tid, pid).last());
                let moved = self.on_cpu(number, at, behind, cost);
                self.thread(tid, pid).note(Point { at, moved });
                let course = self.cpus.entry(number).or_default().course;
                self.processes.entry(pid).or_default().course = course;
                moved
            }
            None => {
                // None of its threads is known to run: the clocks of program and kernel may differ
                // slightly, or a switch was not seen.
                let mut process = self.processes.get(&pid).copied().unwrap_or_default();
                let newest = process.newest.and_then(|tid| self.threads.get(&tid));
                let behind = newest.map_or(behind, |newest| behind.max(newest.last()));
                let moved = process.course.compensate(at, behind.max(self.released));
                process.course.pay(cost);
                let delay = process.course.delay;
                self.processes.insert(pid, process);
                if let Some(tid) = process.newest {
                    self.thread(tid, pid).note(Point { at, moved });
                }
                self.last = at.since(moved);
                self.note(delay);
                moved
            }
        };
        self.streams.insert(id, moved);
        moved
    }

    /// The CPU on which a thread of this process runs, and the thread: the writer, if known. Of
    /// several possible writers it is the one with the least delay, so that no more is subtracted
    /// than is certain.
    fn cpu_of(&self, pid: u32, writer: Option<u32>) -> Option<(u32, u32)> {
        let running = self.cpus.iter().filter_map(|(number, cpu)| {
            let Occupant::Thread(tid) = cpu.occupant else {
                return None;
            };
            let is_of = self
                .threads
                .get(&tid)
                .is_some_and(|thread| thread.pid == pid);
            is_of.then_some((*number, tid, cpu.course.delay))
        });
        let mut found: Vec<_> = running.collect();
        if found.iter().any(|(_, tid, _)| Some(*tid) == writer) {
            found.retain(|(_, tid, _)| Some(*tid) == writer);
        }
        let least = found.into_iter().min_by_key(|(_, _, delay)| *delay);
        least.map(|(number, tid, _)| (number, tid))
    }

    fn thread(&mut self, tid: u32, pid: u32) -> &mut ThreadDelay {
        let thread = self.threads.entry(tid).or_default();
        if pid != Switch::UNKNOWN {
            thread.pid = pid;
        }
        thread
    }
}

impl Moved {
    const fn to(time: Timestamp) -> Self {
        Self {
            time,
            rests_from: None,
            less_ns: 0,
        }
    }
}
