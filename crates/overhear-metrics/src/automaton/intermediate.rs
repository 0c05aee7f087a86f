// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intermediate events: the elements that were recorded while a measurement was in its segments, and what writing them
//! has cost (seed 004, sections 2 and 3).
//!
//! Totals only grow: a segment keeps those of its first element and subtracts them from those of its last one. There is
//! one total of all elements, one per task of those written in its context ([`WriterContext`](crate::context)), and one
//! per automaton of those that its alphabet assigns to its task although another context wrote them.

use overhear_event::Nanos;
use rustc_hash::FxHashMap;

use super::group::take_memory;
use super::tasks::Tasks;

/// Elements and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    elements: u64,
    /// In picoseconds: the cost of one element is a few nanoseconds, and not a whole number of them.
    cost_ps: u64,
}

impl Count {
    const fn one(cost_ps: u64) -> Self {
        Self {
            elements: 1,
            cost_ps,
        }
    }

    const fn only_if(self, is_so: bool) -> Self {
        match is_so {
            true => self,
            false => Self {
                elements: 0,
                cost_ps: 0,
            },
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            elements: self.elements.wrapping_add(other.elements),
            cost_ps: self.cost_ps.wrapping_add(other.cost_ps),
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            elements: self.elements.wrapping_sub(other.elements),
            cost_ps: self.cost_ps.wrapping_sub(other.cost_ps),
        }
    }
}

/// The elements that lie in the segments of a measurement, without the one that opens a segment, and without the one that
/// leaves it unless it has entered a state of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intermediate {
    /// Elements of all streams, whatever their task: the paper's *Intermediate Events*.
    pub all: u64,
    /// Of these, the elements that were written in the context of the measured task, and those that the metric assigns
    /// to it.
    pub own: u64,
    /// What writing `all` has cost.
    pub all_cost: Nanos,
    /// What writing `own` has cost.
    pub own_cost: Nanos,
}

/// Totals of all elements and of those of one task.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    all: Count,
    own: Count,
}

/// The element that is evaluated.
#[derive(Clone, Copy, Debug, Default)]
struct Present {
    ordinal: u64,
    count: Count,
    /// The task in whose context it was written; 0 if that is not known.
    task: u32,
}

/// Places for tasks that are found without asking the index.
const NEAR: usize = 64;

/// The totals of the observation, the present element included.
#[derive(Debug)]
pub(super) struct Totals {
    all: Count,
    counts: Vec<Count>,
    /// The places in `counts`.
    index: FxHashMap<u32, u32>,
    free: Vec<u32>,
    /// Tasks that were found lately and their places, by the low bits of the task.
    near: [(u32, u32); NEAR],
    /// The most tasks.
    limit: usize,
    present: Present,
}

/// The place of tasks of which nothing was counted.
const NOWHERE: u32 = 0;

impl Totals {
    /// For at most so many tasks, more than there can be automata.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            all: Count::default(),
            counts: vec![Count::default()],
            index: FxHashMap::default(),
            free: Vec::new(),
            near: [(0, NOWHERE); NEAR],
            limit,
            present: Present::default(),
        }
    }

    /// Takes the memory for all tasks, of which so many may have a slot: from here on, counting allocates nothing.
    pub(super) fn reserve(&mut self, slots: usize) {
        let most = self.limit.max(slots) + 1;
        // An index that is half empty puts itself in order where it is.
        self.index.reserve(2 * most);
        take_memory(&mut self.counts, most + 1);
        take_memory(&mut self.free, most + 1);
    }

    /// Counts an element that was written in the context of this task, 0 for none.
    pub(super) fn count(&mut self, ordinal: u64, task: u32, cost_ps: u64, tasks: &Tasks) {
        let count = Count::one(cost_ps);
        self.present = Present {
            ordinal,
            count,
            task,
        };
        self.all = self.all.plus(count);
        if task != 0 {
            let (known, mut place) = self.near[task as usize % NEAR];
            if known != task {
                place = self.place(task, tasks);
            }
            let own = &mut self.counts[place as usize];
            *own = own.plus(count);
        }
    }

    #[inline(never)]
    fn place(&mut self, task: u32, tasks: &Tasks) -> u32 {
        let place = match self.index.get(&task) {
            Some(&place) => place,
            None => {
                if self.index.len() >= self.limit {
                    self.forget_others(tasks);
                }
                let place = self.free.pop().unwrap_or_else(|| {
                    self.counts.push(Count::default());
                    u32::try_from(self.counts.len() - 1).expect("tasks have ids of 32 bits")
                });
                self.counts[place as usize] = Count::default();
                self.index.insert(task, place);
                place
            }
        };
        self.near[task as usize % NEAR] = (task, place);
        place
    }

    /// Forgets the tasks that have no automaton: no segment is open that their totals count for.
    fn forget_others(&mut self, tasks: &Tasks) {
        let free = &mut self.free;
        self.index.retain(|task, place| {
            let is_needed = tasks.find(*task).is_some();
            if !is_needed {
                free.push(*place);
            }
            is_needed
        });
        self.near.fill((0, NOWHERE));
    }

    /// The task has ended, or its id is taken over.
    pub(super) fn forget(&mut self, task: u32) {
        if let Some(place) = self.index.remove(&task) {
            self.free.push(place);
            self.near[task as usize % NEAR] = (0, NOWHERE);
        }
    }

    /// The task goes on under another id.
    pub(super) fn rename(&mut self, old: u32, new: u32) {
        self.forget(new);
        if let Some(place) = self.index.remove(&old) {
            self.index.insert(new, place);
            self.near[old as usize % NEAR] = (0, NOWHERE);
        }
    }

    fn of_task(&self, task: u32) -> Count {
        let (known, place) = self.near[task as usize % NEAR];
        let place = match known == task {
            true => place,
            false => self.index.get(&task).copied().unwrap_or(NOWHERE),
        };
        self.counts[place as usize]
    }
}

/// The elements by which an automaton has gone on, by their ordinals.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The last one that the alphabet assigns to its task and that another context wrote.
    assigned: u64,
    /// By which the stretch began.
    opened: u64,
    /// By which it entered the last state of the stretch.
    entered: u64,
    /// The last one that lies in a segment which it ended.
    counted: u64,
}

/// What one automaton counts.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    marks: Marks,
    /// Elements that the alphabet assigns to its task and that other contexts wrote, ever.
    assigned: Count,
    /// When the stretch began, its first element included.
    opened: Share,
    /// In the segments of the measurement so far.
    segments: Share,
}

/// The intermediate events of all automata of a metric, by slot.
#[derive(Debug, Default)]
pub(super) struct Tallies(Vec<Tally>);

impl Tallies {
    /// Has room for the automata of so many slots.
    pub(super) fn reach(&mut self, slots: usize) {
        if self.0.len() < slots {
            self.0.resize(slots, Tally::default());
        }
    }

    /// The automaton of `to`, which is new and of this task, is a copy of the one of `from`, which has no task. Of its own
    /// elements those before the present one are not known.
    pub(super) fn copy(&mut self, from: usize, (to, task): (usize, u32), totals: &Totals) {
        self.reach(to + 1);
        self.0[to] = self.0[from];
        let present = totals.present;
        let opens = self.0[to].marks.opened == present.ordinal;
        let own = totals.of_task(task);
        let is_written = present.task == task;
        let before = present.count.only_if(!opens && is_written);
        self.0[to].opened.own = own.minus(before);
        if is_written {
            self.0[to].count_again(present);
        }
    }

    /// The alphabet assigns the present element to this task, which has the slot.
    #[inline(always)]
    pub(super) fn assign(&mut self, (slot, task): (usize, u32), totals: &Totals) {
        let present = totals.present;
        let tally = &mut self.0[slot];
        if present.task != task && tally.marks.assigned != present.ordinal {
            tally.marks.assigned = present.ordinal;
            tally.assigned = tally.assigned.plus(present.count);
            // Of a task that this element names first, it may have opened the stretch.
            let opens = tally.marks.opened == present.ordinal;
            tally.opened.own = tally.opened.own.plus(present.count.only_if(opens));
            tally.count_again(present);
        }
    }

    /// A measurement begins.
    pub(super) fn begin(&mut self, slot: usize) {
        let tally = &mut self.0[slot];
        (tally.segments, tally.marks.counted) = (Share::default(), 0);
    }

    /// A stretch begins by the present element.
    pub(super) fn open(&mut self, (slot, task): (usize, u32), totals: &Totals) {
        let tally = &mut self.0[slot];
        tally.opened = tally.now(task, totals);
        tally.marks.opened = totals.present.ordinal;
    }

    /// The present element enters a state of the stretch.
    pub(super) fn enter(&mut self, slot: usize, totals: &Totals) {
        self.0[slot].marks.entered = totals.present.ordinal;
    }

    /// A segment ends by the present element, which lies in it if it has entered a state of it before.
    pub(super) fn close(&mut self, (slot, task): (usize, u32), totals: &Totals) {
        let (tally, present) = (&mut self.0[slot], totals.present);
        let leaves = tally.marks.entered != present.ordinal;
        if !leaves && tally.marks.opened != present.ordinal {
            tally.marks.counted = present.ordinal;
        }
        let is_written = task != 0 && present.task == task;
        let is_own = is_written || tally.marks.assigned == present.ordinal;
        let now = tally.now(task, totals);
        let (opened, segments) = (tally.opened, &mut tally.segments);
        let all = now.all.minus(opened.all);
        let own = now.own.minus(opened.own);
        segments.all = segments.all.plus(all.minus(present.count.only_if(leaves)));
        segments.own = segments
            .own
            .plus(own.minus(present.count.only_if(leaves && is_own)));
    }

    /// The elements in the segments of the measurement.
    pub(super) fn of(&self, slot: usize) -> Intermediate {
        let Share { all, own } = self.0[slot].segments;
        let cost = |count: Count| Nanos::from_ns((count.cost_ps + 500) / 1_000);
        Intermediate {
            all: all.elements,
            own: own.elements,
            all_cost: cost(all),
            own_cost: cost(own),
        }
    }
}

impl Tally {
    /// The present element is an own one. An earlier event of it may have ended a segment of the automaton without a
    /// task, of which this one is a copy.
    fn count_again(&mut self, present: Present) {
        let is_counted = self.marks.counted == present.ordinal;
        self.segments.own = self.segments.own.plus(present.count.only_if(is_counted));
    }

    fn now(&self, task: u32, totals: &Totals) -> Share {
        Share {
            all: totals.all,
            own: totals.of_task(task).plus(self.assigned),
        }
    }
}
