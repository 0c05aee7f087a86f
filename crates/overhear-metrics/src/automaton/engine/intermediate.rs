// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intermediate events: the elements that were recorded while a measurement was in its segments,
//! and the cost of writing them [POSIX-metrics, sections 2 and 3].
//!
//! Totals only grow: a segment keeps the totals at its first element and subtracts them from those
//! at its last one. There is one total of all elements; one per task, of the elements written in
//! its context ([`WriterContext`](crate::context)); and one per automaton, of the elements that its
//! alphabet assigns to its task although another context wrote them.

use overhear_event::Nanos;
use rustc_hash::FxHashMap;

use super::memory::reserve_and_touch;
use super::tasks::Tasks;

/// A number of elements and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    elements: u64,
    /// Cost in picoseconds: one element costs a few nanoseconds, and not a whole number of them.
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

/// The elements in the segments of a measurement. The element that opens a segment is not counted;
/// the one that leaves it only if it has entered a state of it before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intermediate {
    /// Elements of all streams, of any task: the *Intermediate Events* of [POSIX-metrics, section
    /// 2].
    pub all: u64,
    /// Of these, the elements that were written in the context of the measured task, and those that
    /// the metric assigns to it.
    pub own: u64,
    /// Cost of writing `all`.
    pub all_cost: Nanos,
    /// Cost of writing `own`.
    pub own_cost: Nanos,
}

/// Totals of all elements and of those of one task.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    all: Count,
    own: Count,
}

/// The current element.
#[derive(Clone, Copy, Debug, Default)]
struct Present {
    ordinal: u64,
    count: Count,
    /// Task in whose context it was written; 0 if unknown.
    task: u32,
}

/// Tasks that are found without the hash map.
const TASK_CACHE_SLOTS: usize = 64;

/// The totals of the observation, the current element included.
#[derive(Debug)]
pub(super) struct Totals {
    all: Count,
    counts: Vec<Count>,
    /// From task to index in `counts`.
    index: FxHashMap<u32, u32>,
    free: Vec<u32>,
    /// Indexed by the low bits of the task: the task found last, and its index in `counts`.
    cache: [(u32, u32); TASK_CACHE_SLOTS],
    /// Largest number of tasks.
    limit: usize,
    present: Present,
}

/// Index of tasks without counted elements.
const NOWHERE: u32 = 0;

impl Totals {
    /// For at most this number of tasks, more than there can be automata.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            all: Count::default(),
            counts: vec![Count::default()],
            index: FxHashMap::default(),
            free: Vec::new(),
            cache: [(0, NOWHERE); TASK_CACHE_SLOTS],
            limit,
            present: Present::default(),
        }
    }

    /// Takes the memory for all tasks, of which this number may have a slot: from here on, counting
    /// allocates nothing.
    pub(super) fn reserve(&mut self, slots: usize) {
        let most = self.limit.max(slots) + 1;
        // Twice the size: a map that is at most half full rehashes in place.
        self.index.reserve(2 * most);
        reserve_and_touch(&mut self.counts, most + 1);
        reserve_and_touch(&mut self.free, most + 1);
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
            let (known, mut place) = self.cache[task as usize % TASK_CACHE_SLOTS];
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
        self.cache[task as usize % TASK_CACHE_SLOTS] = (task, place);
        place
    }

    /// Removes the tasks without an automaton: no open segment needs their totals.
    fn forget_others(&mut self, tasks: &Tasks) {
        let free = &mut self.free;
        self.index.retain(|task, place| {
            let is_needed = tasks.find(*task).is_some();
            if !is_needed {
                free.push(*place);
            }
            is_needed
        });
        self.cache.fill((0, NOWHERE));
    }

    /// Removes a task that has ended, or whose id is taken over.
    pub(super) fn forget(&mut self, task: u32) {
        if let Some(place) = self.index.remove(&task) {
            self.free.push(place);
            self.cache[task as usize % TASK_CACHE_SLOTS] = (0, NOWHERE);
        }
    }

    /// Gives a task another id.
    pub(super) fn rename(&mut self, old: u32, new: u32) {
        self.forget(new);
        if let Some(place) = self.index.remove(&old) {
            self.index.insert(new, place);
            self.cache[old as usize % TASK_CACHE_SLOTS] = (0, NOWHERE);
        }
    }

    fn of_task(&self, task: u32) -> Count {
        let (known, place) = self.cache[task as usize % TASK_CACHE_SLOTS];
        let place = match known == task {
            true => place,
            false => self.index.get(&task).copied().unwrap_or(NOWHERE),
        };
        self.counts[place as usize]
    }
}

/// Elements that moved an automaton, by their ordinals; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The last element that the alphabet assigns to its task and that another context wrote.
    assigned: u64,
    /// The element that opened the candidate segment.
    opened: u64,
    /// The element that entered the last state of the candidate segment.
    entered: u64,
    /// The last element that is counted in the segment that it ended.
    counted: u64,
}

/// The counters of one automaton.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    marks: Marks,
    /// All elements that the alphabet assigns to its task and that other contexts wrote.
    assigned: Count,
    /// Totals at the begin of the candidate segment, its first element included.
    opened: Share,
    /// Elements in the segments of the measurement so far.
    segments: Share,
}

/// The intermediate events of all automata of a metric, indexed by slot.
#[derive(Debug, Default)]
pub(super) struct Tallies(Vec<Tally>);

impl Tallies {
    /// Makes room for the automata of this number of slots.
    pub(super) fn grow(&mut self, slots: usize) {
        if self.0.len() < slots {
            self.0.resize(slots, Tally::default());
        }
    }

    /// Copies the counters of `from`, the template instance, to the new automaton `to` of this
    /// task. Of its own elements, those before the current one are unknown.
    pub(super) fn copy(&mut self, from: usize, (to, task): (usize, u32), totals: &Totals) {
        self.grow(to + 1);
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

    /// Counts the current element as assigned by the alphabet to this task, which has the slot.
    #[inline(always)]
    pub(super) fn assign(&mut self, (slot, task): (usize, u32), totals: &Totals) {
        let present = totals.present;
        let tally = &mut self.0[slot];
        if present.task != task && tally.marks.assigned != present.ordinal {
            tally.marks.assigned = present.ordinal;
            tally.assigned = tally.assigned.plus(present.count);
            // If this element is the first that names the task, it may have opened the segment.
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

    /// The current element opens a candidate segment.
    pub(super) fn open(&mut self, (slot, task): (usize, u32), totals: &Totals) {
        let tally = &mut self.0[slot];
        tally.opened = tally.now(task, totals);
        tally.marks.opened = totals.present.ordinal;
    }

    /// The current element enters a state of the candidate segment.
    pub(super) fn enter(&mut self, slot: usize, totals: &Totals) {
        self.0[slot].marks.entered = totals.present.ordinal;
    }

    /// The current element ends a segment. It is counted if it has entered a state of the segment
    /// before.
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
    /// Counts the current element as an own one. An earlier event of it may have ended a segment of
    /// the template, of which this automaton is a copy.
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
