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

use overhear_event::{ElementView, Gap, Nanos, Timestamp};

pub(super) use super::instance::Moment;
use super::instance::{Instance, Keyed, Tallies};
use super::joint::Stride;
use super::measurement::{Doubt, Measurement, Missed, Position, Sink};
use super::metric::{Column, Metric};
use super::program::{Effects, Program, Row, Step};
use super::tasks::{Tasks, NOBODY};

/// How many reported measurements are remembered for gaps that become known later.
const RECENT: usize = 1_024;

/// Where nothing is missing.
static NOTHING_MISSED: Missed = Missed::NOTHING;

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
    /// Gaps that reach further back than the reported measurements that are remembered: some of
    /// those may be incomplete without being marked.
    pub undoubted: u64,
    /// Elements whose task got no automaton, because as many as permitted exist.
    pub refused: u64,
    /// Automata that exist now.
    pub instances: usize,
}

/// A measurement that was reported. The last ones are kept, each at the place that its number has
/// modulo [`RECENT`].
#[derive(Clone, Copy, Debug)]
struct Recent {
    task: u32,
    complete: bool,
    end: Timestamp,
    key: Option<u64>,
}

/// The automata that heed others, by the rows in which they are.
#[derive(Debug)]
struct Heeding {
    rows: Vec<Vec<u32>>,
    /// By slot, the place in its row.
    places: Vec<u32>,
    scratch: Vec<u32>,
}

/// A symbol that is input: which one, whose, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub(super) symbol: usize,
    pub(super) slot: u32,
    pub(super) moment: Moment,
    /// The key that the element gives, if the symbol gives one.
    pub(super) key: Option<Option<u64>>,
}

/// The automata of one metric.
#[derive(Debug)]
pub(super) struct Group {
    metric: Metric,
    index: usize,
    program: Program,
    /// By slot; the stranger is at that of nobody.
    instances: Vec<Instance>,
    /// By slot, if the metric divides its measurements.
    keys: Option<Vec<Keyed>>,
    /// If the sink asks for intermediate elements.
    tallies: Option<Tallies>,
    /// By slot, as far as something has been missed.
    missed: Vec<Missed>,
    /// If others' elements matter at all.
    heeding: Option<Heeding>,
    /// Whether it hears of the last departures of threads.
    pub(super) hears_departures: bool,
    limit: usize,
    /// Refusals after which it is worth looking again for automata that can go.
    patience: usize,
    recent: Vec<Recent>,
    /// The latest end that is no longer remembered, or the beginning of time.
    forgotten: Timestamp,
    statistics: MetricStatistics,
}

impl Group {
    /// For the how many-th metric of its engine. `tallies`: its intermediate elements are counted.
    pub(super) fn new(metric: Metric, index: usize, limit: usize, tallies: bool) -> Self {
        let program = Program::new(&metric);
        let sources = metric.sources().len();
        let switches = overhear_event::EventName::kernel(overhear_event::kernel::SCHED_SWITCH);
        Self {
            index,
            instances: vec![Instance::at(program.start())],
            keys: metric
                .specification()
                .key
                .as_ref()
                .map(|_| vec![Keyed::default()]),
            tallies: tallies.then(|| Tallies::new(sources)),
            missed: Vec::new(),
            heeding: program.heeds_any().then(|| Heeding {
                rows: vec![Vec::new(); program.rows()],
                places: Vec::new(),
                scratch: Vec::new(),
            }),
            hears_departures: metric.source(&switches).is_some(),
            limit,
            patience: 0,
            recent: Vec::new(),
            forgotten: Timestamp::ZERO,
            statistics: MetricStatistics::default(),
            program,
            metric,
        }
    }

    pub(super) const fn metric(&self) -> &Metric {
        &self.metric
    }

    pub(super) const fn statistics(&self) -> MetricStatistics {
        self.statistics
    }

    /// An element of this source is in the alphabet.
    pub(super) fn see(&mut self, source: usize) {
        if let Some(tallies) = &mut self.tallies {
            tallies.see(source);
        }
    }

    /// Whether all that its elements do is to move the automata of their own tasks, and nothing is
    /// counted: then it takes part in [`Joint`](super::joint::Joint).
    pub(super) const fn is_plain(&self) -> bool {
        self.heeding.is_none() && self.tallies.is_none()
    }

    pub(super) const fn program(&self) -> &Program {
        &self.program
    }

    /// Where the automaton of this slot is, if the metric is plain.
    pub(super) fn joint_row(&self, slot: u32) -> Row {
        let instance = self.instances.get(slot as usize);
        instance
            .filter(|_| self.is_plain())
            .map_or(Row::ABSENT, |it| it.row)
    }

    /// The element gives the automaton of this slot a key.
    #[inline(always)]
    pub(super) fn set_key(&mut self, slot: u32, key: Option<u64>, ordinal: u64) {
        if let Some(keys) = &mut self.keys {
            keys[slot as usize] = Keyed { key, ordinal };
        }
    }

    /// The automaton of this slot moves. There is one, and the metric is plain.
    #[inline(always)]
    pub(super) fn stride<S: Sink>(
        &mut self,
        stride: Stride,
        slot: u32,
        (time, ordinal): (Timestamp, u64),
        element: &ElementView<'_>,
        sink: &mut S,
    ) {
        let instance = &mut self.instances[slot as usize];
        let now = if stride.effects.has(Effects::TOLD_LATE) {
            time
        } else {
            time.max(instance.changed)
        };
        instance.row = stride.to;
        instance.changed = now;
        if stride.effects.has(Effects::CLOSE) {
            instance.length = instance.length.plus(now.since(instance.since));
        }
        if stride.effects.has(Effects::END) {
            self.report(slot, Position::of(element), sink);
        }
        if stride.effects.has(Effects::BEGIN) {
            self.begin(slot, ordinal, Position::of(element));
        }
        if stride.effects.has(Effects::OPEN) {
            self.instances[slot as usize].since = now;
        }
    }

    /// Hands a symbol to every automaton that heeds it: first to that of its task, then to the
    /// others in the order of their tasks.
    #[inline(never)]
    pub(super) fn input<S: Sink>(&mut self, input: &Input, tasks: &mut Tasks, sink: &mut S) {
        // Most symbols matter to their own task alone.
        if !self.program.heeded_in(input.symbol).is_empty() {
            self.input_for_all(input, tasks, sink);
        } else if input.slot != NOBODY {
            self.input_for_own(input, tasks, sink);
        }
    }

    /// As [`Group::input`], of a symbol that matters to others than its own task, too.
    fn input_for_all<S: Sink>(&mut self, input: &Input, tasks: &mut Tasks, sink: &mut S) {
        let mut others = Vec::new();
        if let Some(heeding) = &mut self.heeding {
            others = std::mem::take(&mut heeding.scratch);
            others.clear();
            for &row in self.program.heeded_in(input.symbol) {
                others.extend(&heeding.rows[self.program.number(row)]);
            }
        }
        if input.slot != NOBODY {
            self.input_for_own(input, tasks, sink);
        }
        others.retain(|&slot| slot != input.slot);
        others.sort_unstable_by_key(|&slot| tasks.of(slot));
        let column = Column::new(input.symbol, false);
        // What a stranger's automaton completes belongs to nobody.
        for &slot in others.iter().chain([&NOBODY]) {
            let step = self.program.step(self.instances[slot as usize].row, column);
            if step.effects != Effects::STAY && !step.effects.has(Effects::ABSENT) {
                self.go(slot, step, input, sink);
            }
        }
        if let Some(heeding) = &mut self.heeding {
            heeding.scratch = others;
        }
    }

    fn input_for_own<S: Sink>(&mut self, input: &Input, tasks: &mut Tasks, sink: &mut S) {
        let slot = input.slot as usize;
        let column = Column::new(input.symbol, true);
        let row = self.instances.get(slot).map_or(Row::ABSENT, |it| it.row);
        let mut step = self.program.step(row, column);
        if step.effects.has(Effects::ABSENT) {
            if !self.introduce(input.slot, tasks) {
                return;
            }
            step = self.program.step(self.instances[slot].row, column);
        }
        if let (Some(key), Some(keys)) = (input.key, &mut self.keys) {
            let ordinal = input.moment.ordinal;
            keys[slot] = Keyed { key, ordinal };
        }
        if let Some(tallies) = &mut self.tallies {
            let source = self.metric.source_of(input.symbol);
            tallies.own(slot, source, input.moment.ordinal);
        }
        // Most input leaves the automaton where it is.
        if step.effects != Effects::STAY {
            self.go(input.slot, step, input, sink);
        }
    }

    /// Lets an automaton take a step.
    fn go<S: Sink>(&mut self, slot: u32, step: Step, input: &Input, sink: &mut S) {
        let instance = &mut self.instances[slot as usize];
        let before = std::mem::replace(&mut instance.row, step.to);
        let told = input.moment.time;
        instance.changed = if step.effects.has(Effects::TOLD_LATE) {
            told
        } else {
            told.max(instance.changed)
        };
        self.take_effect(slot, step.effects, input, sink);
        if step.effects.has(Effects::FURTHER) {
            for at in 0..self.program.further(step).len() {
                let effects = self.program.further(step)[at];
                self.take_effect(slot, effects, input, sink);
            }
        }
        if self.heeding.is_some() && before != step.to {
            self.unlist(slot, before);
            self.list(slot);
        }
    }

    /// What happens to the measurement, in this order.
    fn take_effect<S: Sink>(&mut self, slot: u32, effects: Effects, input: &Input, sink: &mut S) {
        let at = slot as usize;
        let ordinal = input.moment.ordinal;
        let instance = &mut self.instances[at];
        let now = instance.changed;
        if effects.has(Effects::CLOSE) {
            instance.length = instance.length.plus(now.since(instance.since));
            if let Some(tallies) = &mut self.tallies {
                tallies.close(at, self.metric.source_of(input.symbol), ordinal);
            }
        }
        if effects.has(Effects::END) && slot != NOBODY {
            self.report(slot, input.moment.element, sink);
        }
        if effects.has(Effects::BEGIN) {
            self.begin(slot, ordinal, input.moment.element);
            if let Some(tallies) = &mut self.tallies {
                tallies.begin(at);
            }
        }
        if effects.has(Effects::OPEN) {
            self.instances[at].since = now;
            if let Some(tallies) = &mut self.tallies {
                tallies.open(at, ordinal);
            }
        }
        if let Some(tallies) = &mut self.tallies {
            if effects.has(Effects::ENTER) {
                tallies.enter(at, ordinal);
            }
        }
    }

    /// A measurement begins.
    #[inline(always)]
    fn begin(&mut self, slot: u32, ordinal: u64, element: Position) {
        let at = slot as usize;
        let instance = &mut self.instances[at];
        instance.begin = instance.changed;
        instance.begin_at = element;
        instance.length = Nanos::ZERO;
        if std::mem::take(&mut instance.has_missed) {
            self.missed[at] = Missed::default();
        }
        if let Some(keys) = &mut self.keys {
            if keys[at].ordinal != ordinal {
                keys[at].key = None;
            }
        }
    }

    /// A measurement is completed.
    #[inline(always)]
    fn report<S: Sink>(&mut self, slot: u32, element: Position, sink: &mut S) {
        let at = slot as usize;
        let instance = &self.instances[at];
        let measurement = Measurement {
            metric: &self.metric,
            metric_index: self.index,
            number: self.statistics.completed,
            task: instance.task,
            begin: instance.begin,
            end: instance.changed,
            begin_at: instance.begin_at,
            end_at: element,
            length: instance.length,
            intermediate: match &self.tallies {
                Some(tallies) => tallies.totals(at),
                None => &[],
            },
            key: self.keys.as_ref().and_then(|keys| keys[at].key),
            missed: if instance.has_missed {
                &self.missed[at]
            } else {
                &NOTHING_MISSED
            },
        };
        let recent = Recent {
            task: measurement.task,
            complete: measurement.is_complete(),
            end: measurement.end,
            key: measurement.key,
        };
        let place = self.statistics.completed as usize % RECENT;
        match self.recent.get_mut(place) {
            Some(oldest) => {
                let oldest = std::mem::replace(oldest, recent);
                self.forgotten = self.forgotten.max(oldest.end);
            }
            None => self.recent.push(recent),
        }
        self.statistics.completed += 1;
        if !recent.complete {
            self.statistics.incomplete += 1;
        }
        sink.measurement(&measurement);
    }

    /// Makes the automaton of a task that has not been named before: what the stranger has become by the
    /// elements that name others. Says whether there is room.
    #[inline(never)]
    fn introduce(&mut self, slot: u32, tasks: &mut Tasks) -> bool {
        if self.statistics.instances >= self.limit && !self.make_room(tasks) {
            self.statistics.refused += 1;
            return false;
        }
        let at = slot as usize;
        let slots = self.instances.len().max(at + 1);
        self.instances.resize(slots, Instance::at(Row::ABSENT));
        self.instances[at] = self.instances[NOBODY as usize];
        self.instances[at].task = tasks.of(slot);
        if self.instances[at].has_missed {
            let missed = self.missed[NOBODY as usize].clone();
            *self.missed_of(at) = missed;
        }
        if let Some(keys) = &mut self.keys {
            keys.resize(slots, Keyed::default());
            keys[at] = Keyed::default();
        }
        if let Some(tallies) = &mut self.tallies {
            tallies.copy(NOBODY as usize, at);
        }
        self.statistics.instances += 1;
        tasks.hold(slot);
        self.list(slot);
        true
    }

    fn missed_of(&mut self, at: usize) -> &mut Missed {
        if self.missed.len() <= at {
            self.missed.resize(at + 1, Missed::NOTHING);
        }
        &mut self.missed[at]
    }

    /// The slots of the automata that there are.
    fn present(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = (0..).zip(&self.instances).skip(1);
        slots
            .filter(|(_, instance)| instance.row != Row::ABSENT)
            .map(|(slot, _)| slot)
    }

    /// Removes the automata that a stranger's could replace unnoticed. They are looked for once in
    /// as many refusals as there may be automata, so that refusing stays cheap.
    fn make_room(&mut self, tasks: &mut Tasks) -> bool {
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        let row = self.instances[NOBODY as usize].row;
        let mut replaceable = Vec::new();
        if !self.program.measures(row) {
            let like = |slot: &u32| self.instances[*slot as usize].row == row;
            replaceable.extend(self.present().filter(like));
        }
        for &slot in &replaceable {
            self.remove(slot, tasks);
        }
        if replaceable.is_empty() {
            self.patience = self.limit;
        }
        !replaceable.is_empty()
    }

    /// The task of this slot has ended. If it is measured and a last departure is still to come, its
    /// automaton waits for that.
    pub(super) fn end(&mut self, slot: u32, departs_later: bool, tasks: &mut Tasks) {
        let row = self.instances.get(slot as usize).map(|it| it.row);
        let measures = row.is_some_and(|row| self.program.measures(row));
        if !(departs_later && measures) {
            self.remove(slot, tasks);
        }
    }

    /// The task of this slot goes on under another id.
    pub(super) fn rename(&mut self, slot: u32, task: u32) {
        if let Some(instance) = self.instances.get_mut(slot as usize) {
            instance.task = task;
        }
    }

    /// Removes the automaton of this slot, if there is one.
    pub(super) fn remove(&mut self, slot: u32, tasks: &mut Tasks) {
        let Some(instance) = self.instances.get_mut(slot as usize) else {
            return;
        };
        let row = std::mem::replace(&mut instance.row, Row::ABSENT);
        if row == Row::ABSENT {
            return;
        }
        if std::mem::take(&mut instance.has_missed) {
            self.missed[slot as usize] = Missed::default();
        }
        self.unlist(slot, row);
        self.statistics.unfinished += u64::from(self.program.measures(row));
        self.statistics.instances -= 1;
        tasks.let_go(slot);
    }

    /// Ends the observation: measurements that are running are unfinished.
    pub(super) fn finish(&mut self, tasks: &mut Tasks) {
        let slots: Vec<u32> = self.present().collect();
        for slot in slots {
            self.remove(slot, tasks);
        }
    }

    /// Elements of this source are missing; of one task alone if `only` names it.
    pub(super) fn gap<S: Sink>(&mut self, gap: &Gap, only: Option<u32>, sink: &mut S) {
        self.statistics.gaps += 1;
        self.statistics.missed = self.statistics.missed.saturating_add(gap.missed);
        let slots: Vec<u32> = self.present().collect();
        for slot in slots {
            let task = self.instances[slot as usize].task;
            if only.is_none_or(|only| only == task) {
                self.miss(slot, gap);
            }
        }
        if only.is_none() {
            self.miss(NOBODY, gap);
        }
        if self.forgotten > gap.from {
            self.statistics.undoubted += 1;
        }
        // From the oldest to the newest.
        let kept = self.recent.len() as u64;
        for number in self.statistics.completed - kept..self.statistics.completed {
            let recent = &mut self.recent[number as usize % RECENT];
            if recent.end <= gap.from || only.is_some_and(|task| task != recent.task) {
                continue;
            }
            sink.doubt(&Doubt {
                metric: &self.metric,
                metric_index: self.index,
                number,
                task: recent.task,
                key: recent.key,
                was_complete: recent.complete,
                gap,
            });
            self.statistics.incomplete += u64::from(recent.complete);
            recent.complete = false;
        }
    }

    /// Elements that the automaton might have needed are missing: a measurement is incomplete, and
    /// without one it is not known where the task is.
    fn miss(&mut self, slot: u32, gap: &Gap) {
        let (at, start) = (slot as usize, self.program.start());
        let row = self.instances[at].row;
        if self.program.measures(row) {
            self.instances[at].has_missed = true;
            self.missed_of(at).add(gap);
        } else if row != start {
            self.instances[at].row = start;
            self.unlist(slot, row);
            self.list(slot);
        }
    }

    fn list(&mut self, slot: u32) {
        let Some(heeding) = self.heeding.as_mut().filter(|_| slot != NOBODY) else {
            return;
        };
        let row = self.instances[slot as usize].row;
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
