// SPDX-License-Identifier: MIT OR Apache-2.0
//! The automata of one metric, one per task.
//!
//! In the paper every task has an automaton. Here one is created when an element names its task.
//! Until then the *template instance* stands for it: an automaton of no task, for which every
//! element belongs to another task. A task that is named for the first time gets a copy of the
//! template, and so the state that an automaton of its own would have.
//!
//! An element is input to the automaton of its task, and to those automata of other tasks that are
//! in a state in which it matters; the [index of watchers](super::watchers) lists them by state. So
//! the cost of an element depends on the automata that it moves, and not on how many there are.

use overhear_event::{ElementView, Gap};

use super::completed::Completed;
use super::input_map::InputMap;
use super::instance::{Instance, KeyValue, Moment};
use super::intermediate::{Intermediate, Tallies, Totals};
use super::measurement::{Measurement, Missed, Position, Sink};
use super::past_gaps::PastGaps;
use super::reported::Reported;
use super::tasks::{Tasks, SLOT_NONE};
use super::watchers::WatcherIndex;
use crate::automaton::compile::metric::Metric;
use crate::automaton::compile::program::{Effects, Event, Program, Row, Step};
use crate::automaton::compile::route::Route;
use crate::automaton::compile::rule::EventRead;

/// No missed elements.
pub(super) const NOTHING_MISSED: &Missed = &Missed::NONE;

/// Counters of the automata of one metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricStatistics {
    /// Reported measurements.
    pub completed: u64,
    /// Reported measurements during which elements were missed, as far as is known now.
    pub incomplete: u64,
    /// Measurements that were running when their task or the observation ended.
    pub unfinished: u64,
    /// Gaps in streams of the alphabet. Measurements may be missing because of them.
    pub gaps: u64,
    /// Elements missed in these gaps.
    pub missed: u64,
    /// Those of them that were not observed, or not recorded, to keep a budget.
    pub unobserved: u64,
    /// Gaps that begin before the reported measurements that are remembered, and measurements that
    /// begin before the gaps that are remembered: some measurements may be incomplete without being
    /// marked.
    pub unattributed_gaps: u64,
    /// Elements whose task got no automaton, because the metric has the largest permitted number.
    pub refused: u64,
    /// Automata that exist now.
    pub instances: usize,
}

/// An event that is input.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventInput {
    pub(super) event: Event,
    /// Slot of its task, or [`SLOT_NONE`].
    pub(super) slot: u32,
    pub(super) moment: Moment,
    /// Key that the element gives, if the event gives one; the inner value is `None` if the payload
    /// is too short.
    pub(super) key: Option<Option<u64>>,
}

/// State that the automata of all metrics share while an element is evaluated.
pub(super) struct SharedState<'a> {
    pub(super) tasks: &'a mut Tasks,
    pub(super) totals: &'a Totals,
    pub(super) slots: Slots,
}

impl SharedState<'_> {
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
        let slot = task.map_or(SLOT_NONE, |task| self.tasks.slot(task));
        if let Some(known) = known {
            *known = slot;
        }
        slot
    }
}

/// Slots of the tasks that the current element names, by their index in the task sources of the
/// route; [`NOT_FOUND`] if not looked up yet.
pub(super) type Slots = [u32; 8];

const NOT_FOUND: u32 = u32::MAX;
/// No slot is looked up yet.
pub(super) const NO_SLOTS: Slots = [NOT_FOUND; 8];

/// The automata of one metric.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) metric: Metric,
    /// Index of the metric in the engine.
    pub(super) index: usize,
    pub(super) program: Program,
    /// Indexed by slot; the template instance is at [`SLOT_NONE`].
    pub(super) instances: Vec<Instance>,
    /// Inputs of the [fast path](super::fast_path).
    pub(super) input_map: InputMap,
    /// Completed measurements that are not reported yet, followed by spare entries.
    pub(super) completed: Vec<Completed>,
    /// [Flags](super::flags) of the step loop, as far as they do not depend on the batch.
    pub(super) flags: usize,
    /// Indexed by slot: the newest key. `None` if measurements have no key.
    pub(super) keys: Option<Vec<KeyValue>>,
    /// Whether the event that ends a measurement always gives its key.
    pub(super) is_keyed_by_end: bool,
    /// Whether measurements contain the positions of their first and last element.
    pub(super) has_positions: bool,
    /// Intermediate events. `None` if the sink does not count them.
    tallies: Option<Tallies>,
    /// Indexed by slot, as long as the largest slot with missed elements.
    pub(super) missed: Vec<Missed>,
    /// `None` if no automaton reacts to elements of other tasks.
    watchers: Option<WatcherIndex>,
    /// Whether context switches are in the alphabet.
    pub(super) sees_switches: bool,
    /// Largest number of automata.
    pub(super) limit: usize,
    /// Refusals until the next search for automata that can be removed.
    refusals_until_eviction: usize,
    pub(super) reported: Reported,
    pub(super) past_gaps: PastGaps,
    statistics: MetricStatistics,
}

impl Group {
    /// For the metric with this index in the engine.
    pub(super) fn new(metric: Metric, index: usize, limit: usize, sink: &impl Sink) -> Self {
        let tallies = sink.counts_intermediate(&metric);
        let program = Program::new(&metric);
        let switches = overhear_event::EventName::kernel(overhear_event::kernel::SCHED_SWITCH);
        Self {
            index,
            instances: vec![Instance::at(program.start())],
            is_keyed_by_end: program.is_keyed_by_end(&metric),
            input_map: InputMap::default(),
            completed: Vec::new(),
            flags: 0,
            keys: metric
                .specification()
                .key
                .as_ref()
                .map(|_| vec![KeyValue::default()]),
            has_positions: sink.wants_positions(&metric),
            tallies: tallies.then(|| {
                let mut tallies = Tallies::default();
                tallies.grow(1);
                tallies
            }),
            missed: Vec::new(),
            watchers: program
                .any_watches()
                .then(|| WatcherIndex::new(program.rows())),
            sees_switches: metric.source(&switches).is_some(),
            limit,
            refusals_until_eviction: 0,
            reported: Reported::new(),
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

    /// Whether the metric counts intermediate events.
    pub(super) const fn counts(&self) -> bool {
        self.tallies.is_some()
    }

    /// Whether elements of other tasks can move its automata.
    pub(super) const fn watches_others(&self) -> bool {
        self.watchers.is_some()
    }

    /// Whether an element only moves the automata of the tasks that it names, and intermediate
    /// events are not counted: then the metric takes the [fast path](super::fast_path).
    pub(super) const fn is_plain(&self) -> bool {
        self.watchers.is_none() && self.tallies.is_none()
    }

    /// Counts the current element as assigned by the alphabet to the task of this slot.
    #[inline(always)]
    pub(super) fn assign(&mut self, slot: u32, shared: &SharedState<'_>) {
        let instance = self.instances.get(slot as usize);
        if let (Some(instance), Some(tallies)) = (instance, &mut self.tallies) {
            if slot != SLOT_NONE && instance.row() != Row::ABSENT {
                tallies.assign((slot as usize, instance.task), shared.totals);
            }
        }
    }

    /// The row of the automaton of a slot, [`Row::ABSENT`] without one.
    fn row(&self, slot: u32) -> Row {
        let instance = self.instances.get(slot as usize);
        instance.map_or(Row::ABSENT, Instance::row)
    }

    /// The slots that may have an automaton, without the template's.
    fn slots(&self) -> std::ops::Range<u32> {
        SLOT_NONE + 1..self.instances.len() as u32
    }

    /// Takes the memory for this number of slots.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.grow(slots);
        if let Some(keys) = &mut self.keys {
            keys.resize(slots, KeyValue::default());
        }
        if let Some(tallies) = &mut self.tallies {
            tallies.grow(slots);
        }
        self.missed.resize_with(slots, Missed::with_room);
        self.past_gaps.reserve();
        if let Some(watchers) = &mut self.watchers {
            watchers.reserve(slots, self.limit);
        }
    }

    /// Makes room for the automata of this number of slots.
    #[inline(always)]
    pub(super) fn grow(&mut self, slots: usize) {
        if self.instances.len() < slots {
            self.instances.resize(slots, Instance::at(Row::ABSENT));
        }
    }

    /// Gives the task of this slot another id.
    pub(super) fn rename(&mut self, slot: u32, new: u32) {
        if let Some(instance) = self.instances.get_mut(slot as usize) {
            instance.task = new;
        }
    }

    /// Inputs an event to every automaton that reacts to it: first to that of its task, then to the
    /// others in the order of their tasks.
    #[inline(never)]
    pub(super) fn input<S: Sink>(
        &mut self,
        input: &EventInput,
        shared: &mut SharedState<'_>,
        sink: &mut S,
    ) {
        // Most events matter to their own task alone.
        if self.program.is_watched(input.event) {
            self.input_for_all(input, shared, sink);
        } else if input.slot != SLOT_NONE {
            self.input_for_own(input, shared, sink);
        }
    }

    /// As [`Group::input`], of an event that can matter to other tasks, too.
    fn input_for_all<S: Sink>(
        &mut self,
        input: &EventInput,
        shared: &mut SharedState<'_>,
        sink: &mut S,
    ) {
        let watchers = self.watchers.as_mut();
        let mut others = watchers.map_or_else(Vec::new, |it| it.take(input.event, &self.program));
        if input.slot != SLOT_NONE {
            self.input_for_own(input, shared, sink);
        }
        others.retain(|&slot| slot != input.slot);
        others.sort_unstable_by_key(|&slot| shared.tasks.task_of(slot));
        // An automaton is listed once per symbol that matters to it.
        others.dedup();
        // Measurements that the template completes belong to no task.
        for &slot in others.iter().chain([&SLOT_NONE]) {
            let step = self.program.step(self.row(slot), input.event, false);
            if let Some(step) = step.filter(|step| step.effects != Effects::STAY) {
                self.step(slot, step, input, shared, sink);
            }
        }
        if let Some(watchers) = &mut self.watchers {
            watchers.give_back(others);
        }
    }

    fn input_for_own<S: Sink>(
        &mut self,
        input: &EventInput,
        shared: &mut SharedState<'_>,
        sink: &mut S,
    ) {
        let slot = input.slot as usize;
        if self.row(input.slot) == Row::ABSENT && !self.create_instance(input.slot, shared) {
            return;
        }
        self.assign(input.slot, shared);
        let Some(step) = self.program.step(self.row(input.slot), input.event, true) else {
            return;
        };
        if let (Some(key), Some(keys)) = (input.key, &mut self.keys) {
            let ordinal = input.moment.ordinal;
            keys[slot] = KeyValue { key, ordinal };
        }
        // Most input leaves the automaton where it is.
        if step.effects != Effects::STAY {
            self.step(input.slot, step, input, shared, sink);
        }
    }

    /// Lets an automaton take a step.
    fn step<S: Sink>(
        &mut self,
        slot: u32,
        step: Step,
        input: &EventInput,
        shared: &SharedState<'_>,
        sink: &mut S,
    ) {
        let instance = &mut self.instances[slot as usize];
        let before = instance.row();
        instance.step(step.to, step.effects, input.moment.time);
        self.apply_effects(slot, step.effects, input, shared, sink);
        if step.effects.has(Effects::SPILLED) {
            for at in 0..self.program.spilled(step).len() {
                let effects = self.program.spilled(step)[at];
                self.instances[slot as usize].backdate(effects, input.moment.time);
                self.apply_effects(slot, effects, input, shared, sink);
            }
        }
        if before != step.to {
            self.move_watcher(slot, before, step.to);
        }
    }

    /// Applies the effects on the measurement, in this order.
    fn apply_effects<S: Sink>(
        &mut self,
        slot: u32,
        effects: Effects,
        input: &EventInput,
        shared: &SharedState<'_>,
        sink: &mut S,
    ) {
        let (at, totals) = (slot as usize, shared.totals);
        let instance = &mut self.instances[at];
        let key = (at, instance.task);
        if effects.has(Effects::CLOSE) {
            instance.close(self.program.is_interval());
            if let Some(tallies) = &mut self.tallies {
                tallies.close(key, totals);
            }
        }
        if effects.has(Effects::END) && slot != SLOT_NONE {
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
            instance.begin_with(input.moment.element);
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
            // A measurement that begins before the end of a gap has to look for that gap.
            if self.instances[at].begin < self.past_gaps.until() {
                self.add_past_gaps(key);
            }
        }
        if effects.has(Effects::OPEN) {
            let instance = &mut self.instances[at];
            instance.since = instance.changed;
            if let Some(tallies) = &mut self.tallies {
                tallies.open(key, totals);
            }
        }
        if let Some(tallies) = &mut self.tallies {
            if effects.has(Effects::ENTER) {
                tallies.enter(at, totals);
            }
        }
    }

    /// Adds the past gaps that fall into a measurement whose begin is backdated.
    #[inline(never)]
    fn add_past_gaps(&mut self, (at, task): (usize, u32)) {
        let begin = self.instances[at].begin;
        let is_certain = self.past_gaps.reach_back_to(begin);
        for number in 0..self.past_gaps.count() {
            let (gap, only) = self.past_gaps.get(number);
            if gap.to > begin && only.is_none_or(|only| only == task) {
                self.instances[at].set_missed(true);
                self.missed_of(at).add(&gap);
            }
        }
        self.statistics.unattributed_gaps += u64::from(!is_certain);
    }

    /// Creates the automaton of a task that is named for the first time: a copy of the template.
    /// Returns whether there is room.
    #[inline(never)]
    fn create_instance(&mut self, slot: u32, shared: &mut SharedState<'_>) -> bool {
        let tasks = &mut *shared.tasks;
        if self.statistics.instances >= self.limit && !self.evict(tasks) {
            self.statistics.refused += 1;
            return false;
        }
        let at = slot as usize;
        let mut instance = self.instances[SLOT_NONE as usize];
        instance.task = tasks.task_of(slot);
        self.grow(at + 1);
        self.instances[at] = instance;
        if instance.has_missed() {
            self.missed_of(at);
            let (template, others) = self.missed.split_at_mut(SLOT_NONE as usize + 1);
            others[at - template.len()].copy(&template[SLOT_NONE as usize]);
        }
        if let Some(keys) = &mut self.keys {
            keys.resize(self.instances.len(), KeyValue::default());
            keys[at] = KeyValue::default();
        }
        if let Some(tallies) = &mut self.tallies {
            tallies.copy(SLOT_NONE as usize, (at, tasks.task_of(slot)), shared.totals);
        }
        self.statistics.instances += 1;
        tasks.hold(slot);
        if let Some(watchers) = &mut self.watchers {
            watchers.insert(slot, instance.row(), &self.program);
        }
        true
    }

    fn missed_of(&mut self, at: usize) -> &mut Missed {
        if self.missed.len() <= at {
            self.missed.resize(at + 1, Missed::NONE);
        }
        &mut self.missed[at]
    }

    /// Removes the automata that are equal to the template, and returns whether there is room then.
    /// After a search without success, the next one is after as many refusals as there may be
    /// automata, so that refusing stays cheap.
    fn evict(&mut self, tasks: &mut Tasks) -> bool {
        if self.refusals_until_eviction > 0 {
            self.refusals_until_eviction -= 1;
            return false;
        }
        let row = self.row(SLOT_NONE);
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
            self.refusals_until_eviction = self.limit;
        }
        has_room
    }

    /// Ends the task of this slot. If a measurement is running and the last context switch is still
    /// to come, its automaton waits for that.
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
        if let Some(watchers) = &mut self.watchers {
            watchers.remove(slot, row, &self.program);
        }
        self.statistics.unfinished += u64::from(self.program.measures(row));
        self.statistics.instances -= 1;
        tasks.release(slot);
    }

    /// Ends the observation: measurements that are running are unfinished.
    pub(super) fn finish(&mut self, tasks: &mut Tasks) {
        for slot in self.slots() {
            self.remove(slot, tasks);
        }
    }

    /// Applies a gap in a stream of the alphabet; it concerns one task alone if `only` names it.
    pub(super) fn gap<S: Sink>(
        &mut self,
        gap: &Gap,
        only: Option<u32>,
        tasks: &Tasks,
        sink: &mut S,
    ) {
        self.statistics.gaps += 1;
        self.statistics.missed = self.statistics.missed.saturating_add(gap.missed);
        if gap.cause.is_deliberate() {
            self.statistics.unobserved = self.statistics.unobserved.saturating_add(gap.missed);
        }
        self.past_gaps.remember(gap, only);
        for slot in self.slots() {
            let exists = self.row(slot) != Row::ABSENT;
            if exists && only.is_none_or(|only| only == tasks.task_of(slot)) {
                self.apply_gap(slot, gap);
            }
        }
        if only.is_none() {
            self.apply_gap(SLOT_NONE, gap);
        }
        let metric = (&self.metric, self.index);
        if !self.reported.late_gap(metric, gap, only, sink) {
            self.statistics.unattributed_gaps += 1;
        }
    }

    /// Applies a gap to one automaton: a running measurement is incomplete; without one the state
    /// of the task is unknown, and the automaton starts anew.
    fn apply_gap(&mut self, slot: u32, gap: &Gap) {
        let instance = &mut self.instances[slot as usize];
        let (row, start) = (instance.row(), self.program.start());
        if self.program.measures(row) {
            instance.set_missed(true);
            self.missed_of(slot as usize).add(gap);
        } else if row != start {
            instance.set_row(start);
            self.move_watcher(slot, row, start);
        }
    }

    fn move_watcher(&mut self, slot: u32, from: Row, to: Row) {
        if let Some(watchers) = &mut self.watchers {
            watchers.remove(slot, from, &self.program);
            watchers.insert(slot, to, &self.program);
        }
    }
}

/// The values of a measurement that are not in its automaton.
#[derive(Clone, Copy)]
struct Values<'a> {
    key: Option<u64>,
    missed: &'a Missed,
    intermediate: Option<Intermediate>,
}

/// Reports a completed measurement.
#[inline(always)]
fn report<S: Sink>(
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
