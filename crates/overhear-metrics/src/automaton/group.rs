// SPDX-License-Identifier: MIT OR Apache-2.0
//! The group of equivalent automata of one metric, one per task.
//!
//! The seed has an automaton for every task that there is. Here one is made when an element names
//! its task. Until then the *stranger* stands for it: an automaton of no task, for which every element
//! belongs to somebody else. A task that is named for the first time gets a copy of the stranger, and
//! so the state that it would have had by itself.
//!
//! An element is handed to the automaton of its task, and to those others that are in a state in
//! which elements of other tasks matter; these are listed by state. So an element costs as much as
//! the automata that it moves, however many there are or have been.

use overhear_event::{ElementView, Gap};

use super::hearing::Hearing;
pub(super) use super::instance::Moment;
use super::instance::{Instance, Keyed};
use super::intermediate::{Intermediate, Tallies, Totals};
use super::measurement::{Measurement, Missed, Position, Sink};
use super::metric::Metric;
use super::past_gaps::PastGaps;
use super::program::{Effects, Event, Program, Row, Step};
use super::reported::Reported;
use super::route::{EventRead, Route};
use super::tasks::{Tasks, NOBODY};
use super::way::Completed;

/// Where nothing is missing.
pub(super) const NOTHING_MISSED: &Missed = &Missed::NOTHING;

/// What the automata of a metric have done, and what they could not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricStatistics {
    /// Measurements reported.
    pub completed: u64,
    /// Of these, the ones in which something was missed, as far as is known now.
    pub incomplete: u64,
    /// Measurements that were running when their task or the observation ended.
    pub unfinished: u64,
    /// Gaps in streams of the alphabet. Measurements may be missing because of them.
    pub gaps: u64,
    /// Elements that these gaps stand for.
    pub missed: u64,
    /// Gaps that reach further back than the reported measurements that are remembered, and measurements that begin
    /// before the gaps that are: some measurements may be incomplete without being marked.
    pub undoubted: u64,
    /// Elements whose task got no automaton, because as many as permitted exist.
    pub refused: u64,
    /// Automata that exist now.
    pub instances: usize,
}

/// The automata that heed others, by the rows in which they are.
#[derive(Debug)]
struct Heeding {
    rows: Vec<Vec<u32>>,
    /// By slot, the place in its row.
    places: Vec<u32>,
    scratch: Vec<u32>,
}

/// An event that is input: which one, whose, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub(super) event: Event,
    /// Of its task, or that of nobody.
    pub(super) slot: u32,
    pub(super) moment: Moment,
    /// The key that the element gives, if the event gives one.
    pub(super) key: Option<Option<u64>>,
}

/// What the automata of all metrics share while an element is evaluated.
pub(super) struct Shared<'a> {
    pub(super) tasks: &'a mut Tasks,
    pub(super) totals: &'a Totals,
    pub(super) slots: Slots,
}

impl Shared<'_> {
    /// The slot of the task that the event names.
    #[inline(always)]
    pub(super) fn slot(
        &mut self,
        route: &Route,
        event: &EventRead,
        element: &ElementView<'_>,
    ) -> u32 {
        let known = self.slots.get_mut(usize::from(event.task));
        if let Some(slot) = known.as_deref().filter(|slot| **slot != NOT_FOUND) {
            return *slot;
        }
        let task = route.task(event, element);
        let slot = task.map_or(NOBODY, |task| self.tasks.slot(task));
        if let Some(known) = known {
            *known = slot;
        }
        slot
    }
}

/// The slots of the tasks that the present element names, by their places in its route, as far as they were found.
pub(super) type Slots = [u32; 8];

const NOT_FOUND: u32 = u32::MAX;
/// Of an element that nobody has looked at.
pub(super) const NO_SLOTS: Slots = [NOT_FOUND; 8];

/// The automata of one metric.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) metric: Metric,
    pub(super) index: usize,
    pub(super) program: Program,
    /// By slot; the stranger is at that of nobody.
    pub(super) instances: Vec<Instance>,
    /// What elements say to it, if it is plain.
    pub(super) hearing: Hearing,
    /// Measurements that are completed and not reported, behind which there are places to spare.
    pub(super) completed: Vec<Completed>,
    /// [The way](super::way) that it goes.
    pub(super) way: usize,
    /// By slot, if the metric divides its measurements.
    pub(super) keys: Option<Vec<Keyed>>,
    /// Whether each measurement is divided by what the element says that ends it.
    pub(super) is_keyed_by_ends: bool,
    /// Whether measurements say by which elements they began and were completed.
    pub(super) has_positions: bool,
    /// If the sink asks for intermediate elements.
    tallies: Option<Tallies>,
    /// By slot, as far as something has been missed.
    pub(super) missed: Vec<Missed>,
    /// If others' elements matter at all.
    heeding: Option<Heeding>,
    /// Whether it hears of the last departures of threads.
    pub(super) hears_departures: bool,
    pub(super) limit: usize,
    /// Refusals after which it is worth looking again for automata that can go.
    patience: usize,
    pub(super) reported: Reported,
    /// For measurements whose begin is told late.
    pub(super) past_gaps: PastGaps,
    statistics: MetricStatistics,
}

impl Group {
    /// For the how many-th metric of its engine, whose results this sink takes.
    pub(super) fn new(metric: Metric, index: usize, limit: usize, sink: &impl Sink) -> Self {
        let tallies = sink.counts_intermediate(&metric);
        let program = Program::new(&metric);
        let switches = overhear_event::EventName::kernel(overhear_event::kernel::SCHED_SWITCH);
        Self {
            index,
            instances: vec![Instance::at(program.start())],
            is_keyed_by_ends: program.is_keyed_by_ends(&metric),
            hearing: Hearing::default(),
            completed: Vec::new(),
            way: 0,
            keys: metric
                .specification()
                .key
                .as_ref()
                .map(|_| vec![Keyed::default()]),
            has_positions: sink.wants_positions(&metric),
            tallies: tallies.then(|| {
                let mut tallies = Tallies::default();
                tallies.reach(1);
                tallies
            }),
            missed: Vec::new(),
            heeding: program.heeds_any().then(|| Heeding {
                rows: vec![Vec::new(); program.rows()],
                places: Vec::new(),
                scratch: Vec::new(),
            }),
            hears_departures: metric.source(&switches).is_some(),
            limit,
            patience: 0,
            reported: Reported::nothing(),
            past_gaps: PastGaps::default(),
            statistics: MetricStatistics::default(),
            program,
            metric,
        }
    }

    pub(super) const fn metric(&self) -> &Metric {
        &self.metric
    }

    pub(super) const fn statistics(&self) -> MetricStatistics {
        MetricStatistics {
            completed: self.reported.completed(),
            incomplete: self.reported.incomplete(),
            ..self.statistics
        }
    }

    /// Whether it counts intermediate events.
    pub(super) const fn counts(&self) -> bool {
        self.tallies.is_some()
    }

    /// Whether elements of other tasks move its automata.
    pub(super) const fn heeds_others(&self) -> bool {
        self.heeding.is_some()
    }

    /// The alphabet assigns the present element to the task of this slot.
    #[inline(always)]
    pub(super) fn assign(&mut self, slot: u32, shared: &Shared<'_>) {
        let instance = self.instances.get(slot as usize);
        if let (Some(instance), Some(tallies)) = (instance, &mut self.tallies) {
            if slot != NOBODY && instance.row() != Row::ABSENT {
                tallies.assign((slot as usize, instance.task), shared.totals);
            }
        }
    }

    /// Whether all that its elements do is to move the automata of their own tasks, and nothing is
    /// counted: then it goes [the short way](super::way).
    pub(super) const fn is_plain(&self) -> bool {
        self.heeding.is_none() && self.tallies.is_none()
    }

    /// Where the automaton of a slot is, absent if there is none.
    fn row(&self, slot: u32) -> Row {
        let instance = self.instances.get(slot as usize);
        instance.map_or(Row::ABSENT, Instance::row)
    }

    /// The slots in which there may be an automaton, without that of nobody.
    fn slots(&self) -> std::ops::Range<u32> {
        NOBODY + 1..self.instances.len() as u32
    }

    /// Takes the memory that it can ever need for tasks in so many slots.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.reach(slots);
        if let Some(keys) = &mut self.keys {
            keys.resize(slots, Keyed::default());
        }
        if let Some(tallies) = &mut self.tallies {
            tallies.reach(slots);
        }
        self.missed.resize_with(slots, Missed::with_room);
        self.past_gaps.reserve();
        if let Some(heeding) = &mut self.heeding {
            heeding.places.resize(slots, 0);
            let lists = heeding.rows.iter_mut().chain([&mut heeding.scratch]);
            lists.for_each(|list| take_memory(list, self.limit));
        }
    }

    /// Has room for the automata of so many slots.
    #[inline(always)]
    pub(super) fn reach(&mut self, slots: usize) {
        if self.instances.len() < slots {
            self.instances.resize(slots, Instance::at(Row::ABSENT));
        }
    }

    /// The task of this slot goes on under another id.
    pub(super) fn rename(&mut self, slot: u32, new: u32) {
        if let Some(instance) = self.instances.get_mut(slot as usize) {
            instance.task = new;
        }
    }

    /// Hands an event to every automaton that heeds it: first to that of its task, then to the
    /// others in the order of their tasks.
    #[inline(never)]
    pub(super) fn input<S: Sink>(&mut self, input: &Input, shared: &mut Shared<'_>, sink: &mut S) {
        // Most events matter to their own task alone.
        if self.program.is_heeded(input.event) {
            self.input_for_all(input, shared, sink);
        } else if input.slot != NOBODY {
            self.input_for_own(input, shared, sink);
        }
    }

    /// As [`Group::input`], of an event that matters to others than its own task, too.
    fn input_for_all<S: Sink>(&mut self, input: &Input, shared: &mut Shared<'_>, sink: &mut S) {
        let mut others = Vec::new();
        if let Some(heeding) = &mut self.heeding {
            others = std::mem::take(&mut heeding.scratch);
            others.clear();
            for symbol in input.event.symbols.iter() {
                for &row in self.program.heeded_in(usize::from(symbol)) {
                    others.extend(&heeding.rows[self.program.number(row)]);
                }
            }
        }
        if input.slot != NOBODY {
            self.input_for_own(input, shared, sink);
        }
        others.retain(|&slot| slot != input.slot);
        others.sort_unstable_by_key(|&slot| shared.tasks.of(slot));
        // Several of its symbols may matter where an automaton is.
        others.dedup();
        // What a stranger's automaton completes belongs to nobody.
        for &slot in others.iter().chain([&NOBODY]) {
            let step = self.program.step(self.row(slot), input.event, false);
            if let Some(step) = step.filter(|step| step.effects != Effects::STAY) {
                self.go(slot, step, input, shared, sink);
            }
        }
        if let Some(heeding) = &mut self.heeding {
            heeding.scratch = others;
        }
    }

    fn input_for_own<S: Sink>(&mut self, input: &Input, shared: &mut Shared<'_>, sink: &mut S) {
        let slot = input.slot as usize;
        if self.row(input.slot) == Row::ABSENT && !self.introduce(input.slot, shared) {
            return;
        }
        self.assign(input.slot, shared);
        let Some(step) = self.program.step(self.row(input.slot), input.event, true) else {
            return;
        };
        if let (Some(key), Some(keys)) = (input.key, &mut self.keys) {
            let ordinal = input.moment.ordinal;
            keys[slot] = Keyed { key, ordinal };
        }
        // Most input leaves the automaton where it is.
        if step.effects != Effects::STAY {
            self.go(input.slot, step, input, shared, sink);
        }
    }

    /// Lets an automaton take a step.
    fn go<S: Sink>(
        &mut self,
        slot: u32,
        step: Step,
        input: &Input,
        shared: &Shared<'_>,
        sink: &mut S,
    ) {
        let instance = &mut self.instances[slot as usize];
        let before = instance.row();
        instance.go(step.to, step.effects, input.moment.time);
        self.take_effect(slot, step.effects, input, shared, sink);
        if step.effects.has(Effects::FURTHER) {
            for at in 0..self.program.further(step).len() {
                let effects = self.program.further(step)[at];
                self.instances[slot as usize].tell_late(effects, input.moment.time);
                self.take_effect(slot, effects, input, shared, sink);
            }
        }
        if self.heeding.is_some() && before != step.to {
            self.unlist(slot, before);
            self.list(slot, step.to);
        }
    }

    /// What happens to the measurement, in this order.
    fn take_effect<S: Sink>(
        &mut self,
        slot: u32,
        effects: Effects,
        input: &Input,
        shared: &Shared<'_>,
        sink: &mut S,
    ) {
        let (at, totals) = (slot as usize, shared.totals);
        let instance = &mut self.instances[at];
        let place = (at, instance.task);
        if effects.has(Effects::CLOSE) {
            instance.close(self.program.is_interval());
            if let Some(tallies) = &mut self.tallies {
                tallies.close(place, totals);
            }
        }
        if effects.has(Effects::END) && slot != NOBODY {
            let values = Values {
                key: self.keys.as_ref().and_then(|keys| keys[at].key),
                missed: match instance.has_missed() {
                    true => &self.missed[at],
                    false => NOTHING_MISSED,
                },
                intermediate: self.tallies.as_ref().map(|it| it.of(at)),
            };
            let metric = (&self.metric, self.index);
            let positions = match self.has_positions {
                true => (instance.begin_at, input.moment.element),
                false => (Position::NONE, Position::NONE),
            };
            report(
                &mut self.reported,
                metric,
                instance,
                values,
                positions,
                sink,
            );
        }
        if effects.has(Effects::BEGIN) {
            instance.begin_by(input.moment.element);
            if instance.has_missed() {
                instance.set_missed(false);
                self.missed[at].clear();
            }
            if let Some(keys) = &mut self.keys {
                keys[at].renew(input.moment.ordinal);
            }
            if let Some(tallies) = &mut self.tallies {
                tallies.begin(at);
            }
            // What begins before a gap has to look for it.
            if self.instances[at].begin < self.past_gaps.until() {
                self.recall_gaps(place);
            }
        }
        if effects.has(Effects::OPEN) {
            let instance = &mut self.instances[at];
            instance.since = instance.changed;
            if let Some(tallies) = &mut self.tallies {
                tallies.open(place, totals);
            }
        }
        if let Some(tallies) = &mut self.tallies {
            if effects.has(Effects::ENTER) {
                tallies.enter(at, totals);
            }
        }
    }

    /// A measurement that begins before now, since its begin was told late, misses what fell into it.
    #[inline(never)]
    fn recall_gaps(&mut self, (at, task): (usize, u32)) {
        let begin = self.instances[at].begin;
        let is_certain = self.past_gaps.reach(begin);
        for number in 0..self.past_gaps.count() {
            let (gap, only) = self.past_gaps.get(number);
            if gap.to > begin && only.is_none_or(|only| only == task) {
                self.instances[at].set_missed(true);
                self.missed_of(at).add(&gap);
            }
        }
        self.statistics.undoubted += u64::from(!is_certain);
    }

    /// Makes the automaton of a task that has not been named before: what the stranger has become by the
    /// elements that name others. Says whether there is room.
    #[inline(never)]
    fn introduce(&mut self, slot: u32, shared: &mut Shared<'_>) -> bool {
        let tasks = &mut *shared.tasks;
        if self.statistics.instances >= self.limit && !self.make_room(tasks) {
            self.statistics.refused += 1;
            return false;
        }
        let at = slot as usize;
        let mut instance = self.instances[NOBODY as usize];
        instance.task = tasks.of(slot);
        self.reach(at + 1);
        self.instances[at] = instance;
        if instance.has_missed() {
            self.missed_of(at);
            let (nobody, others) = self.missed.split_at_mut(NOBODY as usize + 1);
            others[at - nobody.len()].copy(&nobody[NOBODY as usize]);
        }
        if let Some(keys) = &mut self.keys {
            keys.resize(self.instances.len(), Keyed::default());
            keys[at] = Keyed::default();
        }
        if let Some(tallies) = &mut self.tallies {
            tallies.copy(NOBODY as usize, (at, tasks.of(slot)), shared.totals);
        }
        self.statistics.instances += 1;
        tasks.hold(slot);
        self.list(slot, instance.row());
        true
    }

    fn missed_of(&mut self, at: usize) -> &mut Missed {
        if self.missed.len() <= at {
            self.missed.resize(at + 1, Missed::NOTHING);
        }
        &mut self.missed[at]
    }

    /// Removes the automata that a stranger's could replace unnoticed. They are looked for once in
    /// as many refusals as there may be automata, so that refusing stays cheap.
    fn make_room(&mut self, tasks: &mut Tasks) -> bool {
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        let row = self.row(NOBODY);
        let before = self.statistics.instances;
        if !self.program.measures(row) {
            for slot in self.slots() {
                if self.row(slot) == row {
                    self.remove(slot, tasks);
                }
            }
        }
        let has_room = self.statistics.instances < before;
        if !has_room {
            self.patience = self.limit;
        }
        has_room
    }

    /// The task of this slot has ended. If it is measured and a last departure is still to come, its
    /// automaton waits for that.
    pub(super) fn end(&mut self, slot: u32, departs_later: bool, tasks: &mut Tasks) {
        let row = self.row(slot);
        if !(departs_later && self.program.measures(row)) {
            self.remove(slot, tasks);
        }
    }

    /// Removes the automaton of this slot, if there is one.
    pub(super) fn remove(&mut self, slot: u32, tasks: &mut Tasks) {
        let Some(instance) = self.instances.get_mut(slot as usize) else {
            return;
        };
        let row = instance.row();
        if row == Row::ABSENT {
            return;
        }
        if instance.has_missed() {
            self.missed[slot as usize].clear();
        }
        *instance = Instance::at(Row::ABSENT);
        self.unlist(slot, row);
        self.statistics.unfinished += u64::from(self.program.measures(row));
        self.statistics.instances -= 1;
        tasks.let_go(slot);
    }

    /// Ends the observation: measurements that are running are unfinished.
    pub(super) fn finish(&mut self, tasks: &mut Tasks) {
        for slot in self.slots() {
            self.remove(slot, tasks);
        }
    }

    /// Elements of this source are missing; of one task alone if `only` names it.
    pub(super) fn gap<S: Sink>(
        &mut self,
        gap: &Gap,
        only: Option<u32>,
        tasks: &Tasks,
        sink: &mut S,
    ) {
        self.statistics.gaps += 1;
        self.statistics.missed = self.statistics.missed.saturating_add(gap.missed);
        self.past_gaps.remember(gap, only);
        for slot in self.slots() {
            let is_there = self.row(slot) != Row::ABSENT;
            if is_there && only.is_none_or(|only| only == tasks.of(slot)) {
                self.miss(slot, gap);
            }
        }
        if only.is_none() {
            self.miss(NOBODY, gap);
        }
        let metric = (&self.metric, self.index);
        if !self.reported.doubt(metric, gap, only, sink) {
            self.statistics.undoubted += 1;
        }
    }

    /// Elements that the automaton might have needed are missing: a measurement is incomplete, and
    /// without one it is not known where the task is.
    fn miss(&mut self, slot: u32, gap: &Gap) {
        let instance = &mut self.instances[slot as usize];
        let (row, start) = (instance.row(), self.program.start());
        if self.program.measures(row) {
            instance.set_missed(true);
            self.missed_of(slot as usize).add(gap);
        } else if row != start {
            instance.set_row(start);
            self.unlist(slot, row);
            self.list(slot, start);
        }
    }

    fn list(&mut self, slot: u32, row: Row) {
        let Some(heeding) = self.heeding.as_mut().filter(|_| slot != NOBODY) else {
            return;
        };
        if self.program.heeds_others(row) {
            let members = &mut heeding.rows[self.program.number(row)];
            if heeding.places.len() <= slot as usize {
                heeding.places.resize(slot as usize + 1, 0);
            }
            heeding.places[slot as usize] = members.len() as u32;
            members.push(slot);
        }
    }

    fn unlist(&mut self, slot: u32, row: Row) {
        let Some(heeding) = self.heeding.as_mut().filter(|_| slot != NOBODY) else {
            return;
        };
        if self.program.heeds_others(row) {
            let members = &mut heeding.rows[self.program.number(row)];
            let place = heeding.places[slot as usize];
            members.swap_remove(place as usize);
            if let Some(&moved) = members.get(place as usize) {
                heeding.places[moved as usize] = place;
            }
        }
    }
}

/// Gives a list room for so many more, and writes to all of it.
pub(super) fn take_memory<T: Clone + Default>(list: &mut Vec<T>, more: usize) {
    let length = list.len();
    list.resize(length + more, T::default());
    list.truncate(length);
}

/// What a measurement has besides what its automaton knows.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    pub(super) key: Option<u64>,
    pub(super) missed: &'a Missed,
    pub(super) intermediate: Option<Intermediate>,
}

/// A measurement is completed by this element.
#[inline(always)]
pub(super) fn report<S: Sink>(
    reported: &mut Reported,
    (metric, metric_index): (&Metric, usize),
    instance: &Instance,
    values: Values<'_>,
    (begin_at, end_at): (Position, Position),
    sink: &mut S,
) {
    let measurement = Measurement {
        metric,
        metric_index,
        number: reported.completed(),
        task: instance.task,
        begin: instance.begin,
        end: instance.changed,
        begin_at,
        end_at,
        length: instance.length,
        intermediate: values.intermediate,
        key: values.key,
        missed: values.missed,
    };
    reported.remember(&measurement);
    sink.measurement(&measurement);
}
