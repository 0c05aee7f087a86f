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

use std::collections::VecDeque;

use overhear_event::{Gap, Timestamp};
use rustc_hash::FxHashMap;

pub(super) use super::instance::Moment;
use super::instance::{Finished, Input, Instance};
use super::measurement::{Doubt, Measurement, Sink};
use super::metric::{Column, Metric};

/// How many reported measurements are remembered for gaps that become known later.
const RECENT: usize = 1_024;

/// Places for tasks that are found without asking the index.
const NEAR: usize = 64;

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

/// A measurement that was reported.
#[derive(Clone, Copy, Debug)]
struct Recent {
    number: u64,
    task: u32,
    end: Timestamp,
    key: Option<u64>,
    complete: bool,
}

/// The automata of one metric.
#[derive(Debug)]
pub(super) struct Group {
    metric: Metric,
    index: usize,
    instances: Vec<Option<Instance>>,
    free: Vec<u32>,
    by_task: FxHashMap<u32, u32>,
    /// Tasks that were found lately and their slots, by the low bits of the task. Task 0 is nobody's.
    near: [(u32, u32); NEAR],
    stranger: Instance,
    /// Per state, the instances that are there, if others' elements matter there.
    heeding: Vec<Vec<u32>>,
    /// Per symbol, the states in which it matters although it belongs to others.
    heeded_in: Vec<Vec<u16>>,
    /// Whether there is any such symbol.
    heeds_any: bool,
    seen: Vec<u64>,
    limit: usize,
    /// Refusals after which it is worth looking again for automata that can go.
    patience: usize,
    recent: VecDeque<Recent>,
    /// The latest end that is no longer remembered.
    forgotten: Option<Timestamp>,
    statistics: MetricStatistics,
    scratch: Vec<u32>,
}

impl Group {
    /// For the how many-th metric of its engine.
    pub(super) fn new(metric: Metric, index: usize, limit: usize) -> Self {
        let states = metric.states();
        let symbols = metric.specification().symbols.len();
        let heeded_in: Vec<Vec<u16>> = (0..symbols)
            .map(|symbol| {
                let column = Column::new(symbol, false);
                let states = (0..states).filter_map(|state| u16::try_from(state).ok());
                states
                    .filter(|&state| metric.next(state, column).is_some())
                    .collect()
            })
            .collect();
        let sources = metric.sources().len();
        Self {
            instances: Vec::new(),
            free: Vec::new(),
            by_task: FxHashMap::default(),
            near: [(0, 0); NEAR],
            stranger: Instance::new(sources),
            heeding: vec![Vec::new(); states],
            heeds_any: heeded_in.iter().any(|states| !states.is_empty()),
            heeded_in,
            seen: vec![0; sources],
            limit,
            patience: 0,
            recent: VecDeque::new(),
            forgotten: None,
            statistics: MetricStatistics::default(),
            scratch: Vec::new(),
            metric,
            index,
        }
    }

    pub(super) const fn metric(&self) -> &Metric {
        &self.metric
    }

    pub(super) fn statistics(&self) -> MetricStatistics {
        MetricStatistics {
            instances: self.by_task.len(),
            ..self.statistics
        }
    }

    /// An element of this source is in the alphabet.
    pub(super) fn count(&mut self, source: usize) {
        self.seen[source] += 1;
    }

    /// Hands a symbol to every automaton that heeds it: first to that of its task, then to the
    /// others in the order of their tasks.
    #[inline]
    pub(super) fn input<S: Sink>(
        &mut self,
        symbol: usize,
        task: Option<u32>,
        moment: Moment,
        key: Option<Option<u64>>,
        sink: &mut S,
    ) {
        let own = task.and_then(|task| self.find_or_introduce(task));
        // Most symbols matter to their own task alone.
        if self.heeded_in[symbol].is_empty() {
            if let Some(slot) = own {
                self.step(slot, symbol, true, moment, key, sink);
            }
            return;
        }
        self.input_for_all(symbol, own, moment, key, sink);
    }

    /// As [`Group::input`], of a symbol that matters to others than its own task, too.
    fn input_for_all<S: Sink>(
        &mut self,
        symbol: usize,
        own: Option<u32>,
        moment: Moment,
        key: Option<Option<u64>>,
        sink: &mut S,
    ) {
        self.scratch.clear();
        for &state in &self.heeded_in[symbol] {
            self.scratch.extend(&self.heeding[usize::from(state)]);
        }
        if let Some(slot) = own {
            self.step(slot, symbol, true, moment, key, sink);
        }
        if !self.scratch.is_empty() {
            let mut others = std::mem::take(&mut self.scratch);
            others.retain(|&slot| Some(slot) != own);
            others.sort_unstable_by_key(|&slot| self.task_of(slot));
            for &slot in &others {
                self.step(slot, symbol, false, moment, None, sink);
            }
            self.scratch = others;
        }
        let input = Input {
            moment,
            source: self.metric.source_of(symbol),
            seen: &self.seen,
        };
        // What a stranger's automaton completes belongs to nobody.
        if let Some(next) = self
            .metric
            .next(self.stranger.state, Column::new(symbol, false))
        {
            self.stranger.go(&self.metric, next, &input, &mut |_| {});
        }
    }

    fn task_of(&self, slot: u32) -> Option<u32> {
        self.instances[slot as usize]
            .as_ref()
            .map(|instance| instance.task)
    }

    #[inline]
    fn step<S: Sink>(
        &mut self,
        slot: u32,
        symbol: usize,
        own: bool,
        moment: Moment,
        key: Option<Option<u64>>,
        sink: &mut S,
    ) {
        let Some(instance) = &mut self.instances[slot as usize] else {
            return;
        };
        if own {
            instance.count_own(self.metric.source_of(symbol), moment.ordinal);
        }
        if let Some(key) = key {
            instance.set_key(key, moment.ordinal);
        }
        // Most input leaves the automaton where it is.
        if let Some(next) = self.metric.next(instance.state, Column::new(symbol, own)) {
            self.go(slot, next, symbol, moment, sink);
        }
    }

    /// Lets an automaton enter a state, and those behind it.
    fn go<S: Sink>(&mut self, slot: u32, next: u16, symbol: usize, moment: Moment, sink: &mut S) {
        let Some(instance) = &mut self.instances[slot as usize] else {
            return;
        };
        let (metric, index) = (&self.metric, self.index);
        let (before, task) = (instance.state, instance.task);
        let input = Input {
            moment,
            source: metric.source_of(symbol),
            seen: &self.seen,
        };
        let (statistics, recent, forgotten) =
            (&mut self.statistics, &mut self.recent, &mut self.forgotten);
        let mut report = |finished: &Finished<'_>| {
            let measurement = Measurement {
                metric,
                metric_index: index,
                number: statistics.completed,
                task,
                begin: finished.begin,
                end: finished.end,
                begin_at: finished.begin_at,
                end_at: finished.end_at,
                length: finished.length,
                intermediate: finished.intermediate,
                key: finished.key,
                missed: finished.missed,
            };
            statistics.completed += 1;
            statistics.incomplete += u64::from(!measurement.is_complete());
            if recent.len() == RECENT {
                let oldest = recent.pop_front().map(|oldest| oldest.end);
                *forgotten = oldest.max(*forgotten);
            }
            recent.push_back(Recent {
                number: measurement.number,
                task,
                end: measurement.end,
                key: measurement.key,
                complete: measurement.is_complete(),
            });
            sink.measurement(&measurement);
        };
        instance.go(metric, next, &input, &mut report);
        if instance.state != before {
            self.unlist(slot, before);
            self.list(slot);
        }
    }

    /// The automaton of a task.
    #[inline]
    fn find_or_introduce(&mut self, task: u32) -> Option<u32> {
        let (known, slot) = self.near[task as usize % NEAR];
        if known == task {
            return Some(slot);
        }
        let slot = self.ask_index(task)?;
        self.near[task as usize % NEAR] = (task, slot);
        Some(slot)
    }

    fn ask_index(&mut self, task: u32) -> Option<u32> {
        if let Some(&slot) = self.by_task.get(&task) {
            return Some(slot);
        }
        if self.by_task.len() >= self.limit && !self.make_room() {
            self.statistics.refused += 1;
            return None;
        }
        let instance = self.stranger.introduce(task);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.instances.push(None);
                u32::try_from(self.instances.len() - 1).ok()?
            }
        };
        self.instances[slot as usize] = Some(instance);
        self.by_task.insert(task, slot);
        self.list(slot);
        Some(slot)
    }

    /// Removes the automata that a stranger's could replace unnoticed. They are looked for once in
    /// as many refusals as there may be automata, so that refusing stays cheap.
    fn make_room(&mut self) -> bool {
        if self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        let stranger = &self.stranger;
        let instances = self.instances.iter().flatten();
        let replaceable = instances.filter(|instance| instance.is_like(stranger));
        let tasks: Vec<u32> = replaceable.map(|instance| instance.task).collect();
        for task in &tasks {
            self.remove(*task);
        }
        if tasks.is_empty() {
            self.patience = self.limit;
        }
        !tasks.is_empty()
    }

    /// The task has ended. If it is measured and a last departure is still to come, its automaton
    /// waits for that.
    pub(super) fn end(&mut self, task: u32, departs_later: bool) {
        let slot = self.by_task.get(&task).copied();
        let measures = slot.and_then(|slot| self.instances[slot as usize].as_ref());
        if !(departs_later && measures.is_some_and(Instance::measures)) {
            self.remove(task);
        }
    }

    /// The task goes on under another id.
    pub(super) fn rename(&mut self, old: u32, new: u32) {
        self.remove(new);
        self.near[old as usize % NEAR] = (0, 0);
        if let Some(slot) = self.by_task.remove(&old) {
            if let Some(instance) = &mut self.instances[slot as usize] {
                instance.task = new;
            }
            self.by_task.insert(new, slot);
        }
    }

    fn remove(&mut self, task: u32) {
        let Some(slot) = self.by_task.remove(&task) else {
            return;
        };
        self.near[task as usize % NEAR] = (0, 0);
        if let Some(state) = self.instances[slot as usize]
            .as_ref()
            .map(|instance| instance.state)
        {
            self.unlist(slot, state);
        }
        let instance = self.instances[slot as usize].take();
        let measured = instance.is_some_and(|instance| instance.measures());
        self.statistics.unfinished += u64::from(measured);
        self.free.push(slot);
    }

    /// Ends the observation: measurements that are running are unfinished.
    pub(super) fn finish(&mut self) {
        let tasks: Vec<u32> = self.by_task.keys().copied().collect();
        for task in tasks {
            self.remove(task);
        }
    }

    /// Elements of this source are missing; of one task alone if `only` names it.
    pub(super) fn gap<S: Sink>(&mut self, gap: &Gap, only: Option<u32>, sink: &mut S) {
        self.statistics.gaps += 1;
        self.statistics.missed = self.statistics.missed.saturating_add(gap.missed);
        for slot in 0..self.instances.len() {
            let Some(instance) = &mut self.instances[slot] else {
                continue;
            };
            if only.is_some_and(|task| task != instance.task) {
                continue;
            }
            let before = instance.state;
            instance.miss(gap);
            if instance.state != before {
                let slot = u32::try_from(slot).unwrap_or(u32::MAX);
                self.unlist(slot, before);
                self.list(slot);
            }
        }
        if only.is_none() {
            self.stranger.miss(gap);
        }
        if self.forgotten.is_some_and(|end| end > gap.from) {
            self.statistics.undoubted += 1;
        }
        for recent in &mut self.recent {
            if recent.end <= gap.from || only.is_some_and(|task| task != recent.task) {
                continue;
            }
            sink.doubt(&Doubt {
                metric: &self.metric,
                metric_index: self.index,
                number: recent.number,
                task: recent.task,
                key: recent.key,
                was_complete: recent.complete,
                gap,
            });
            self.statistics.incomplete += u64::from(recent.complete);
            recent.complete = false;
        }
    }

    #[inline]
    fn list(&mut self, slot: u32) {
        if !self.heeds_any {
            return;
        }
        if let Some(instance) = &mut self.instances[slot as usize] {
            if self.metric.heeds_others(instance.state) {
                let members = &mut self.heeding[usize::from(instance.state)];
                instance.member = u32::try_from(members.len()).unwrap_or(u32::MAX);
                members.push(slot);
            }
        }
    }

    #[inline]
    fn unlist(&mut self, slot: u32, state: u16) {
        if !self.heeds_any || !self.metric.heeds_others(state) {
            return;
        }
        let Some(place) = self.instances[slot as usize]
            .as_ref()
            .map(|instance| instance.member)
        else {
            return;
        };
        let members = &mut self.heeding[usize::from(state)];
        members.swap_remove(place as usize);
        if let Some(&moved) = members.get(place as usize) {
            if let Some(instance) = &mut self.instances[moved as usize] {
                instance.member = place;
            }
        }
    }
}
