// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fast path: the inputs of a batch move the automata of one metric.
//!
//! Most elements only move the automata of the tasks that they name. Each metric steps through the
//! [inputs](super::input) of some hundred elements in one loop, with its tables at hand, and waits
//! for nothing that another metric does. An input of several symbols takes one step if at most one
//! of them leads anywhere; otherwise [`Group::step_members`] takes one step per symbol, outside the
//! loop. [`Group::input`] handles everything else: a task without an automaton, missed elements, a
//! step with [spilled](Effects::SPILLED) effects.
//!
//! # No branches
//!
//! What comes next cannot be predicted where threads wake each other: a branch on whether a
//! measurement begins or ends would be mispredicted every few elements, which takes longer than the
//! rest of the step. So the loop has none. Each step writes every field that it could change, and
//! always writes a candidate measurement at the end of the list; only the length of the list is
//! advanced conditionally. The completed measurements are reported after the loop.

use overhear_event::Nanos;

use super::completed::Completed;
use super::flags::{
    canonical, BACKDATED, COMBINATIONS, FILTERED, INTERVAL, KEYED, KEYED_BY_END, POSITIONS, SPILLED,
};
use super::group::{Group, NOTHING_MISSED};
use super::input::InputBatch;
use super::input_map::{FilteredInput, MemberSymbol};
use super::instance::KeyValue;
use super::measurement::{Measurement, Position, Sink};
use crate::automaton::compile::part::PartInfo;
use crate::automaton::compile::program::Effects;
use crate::automaton::compile::route::Route;

/// Steps through the inputs of a metric, from the given one on, after this number of completed
/// measurements. Returns the input that takes more than a step, or the end, and the number of
/// completed measurements there.
type StepLoop = fn(&mut Group, InputBatch<'_>, usize, usize) -> (usize, usize);

/// An array over all combinations of flags, from the combinations of the flags before.
macro_rules! step_loops {
    ([$($flags:expr),*]) => {
        [$(Group::run::<{ canonical($flags) }>),*]
    };
    ([$($flags:expr),*] $next:ident $($rest:ident)*) => {
        step_loops!([$($flags,)* $($flags | $next),*] $($rest)*)
    };
}

/// The loops, indexed by their flags: the flags are named from the lowest bit to the highest.
static STEP_LOOPS: [StepLoop; COMBINATIONS] =
    step_loops!([0] KEYED INTERVAL POSITIONS FILTERED BACKDATED KEYED_BY_END SPILLED);

impl Group {
    /// Maps the next part, which belongs to `route`.
    pub(super) fn bind_part(&mut self, part: &PartInfo, route: &Route) {
        self.input_map
            .bind_part(self.index, part, route, &mut self.program);
    }

    /// Makes room for this number of inputs per batch. All parts are mapped.
    pub(super) fn prepare(&mut self, inputs: usize) {
        self.flags = self.static_flags();
        self.input_map.reserve(inputs);
        // One measurement per input, and some inputs of several symbols complete more.
        let completed = inputs + inputs / 2;
        if self.completed.len() < completed {
            self.completed.resize(completed, Completed::default());
        }
    }

    /// Selects the inputs that are symbols of the metric.
    #[inline(never)]
    pub(super) fn filter(&mut self, batch: InputBatch<'_>) {
        self.input_map.filter(batch.inputs);
    }

    /// Moves the automata by the metric's inputs from number `from` on, until an input takes more
    /// than a step. Returns the number of that input and its index in the batch.
    #[inline(never)]
    pub(super) fn step_batch<S: Sink>(
        &mut self,
        batch: InputBatch<'_>,
        from: usize,
        sink: &mut S,
    ) -> Option<(usize, usize)> {
        let given = [
            (BACKDATED, batch.has_backdated),
            (SPILLED, !batch.is_single),
        ];
        let given = given.map(|(bit, is_given)| if is_given { bit } else { 0 });
        let flags = self.flags | given[0] | given[1];
        let (mut next, mut completed) = STEP_LOOPS[flags](self, batch, from, 0);
        while next < self.input_map.count() {
            let Some(more) = self.step_members(batch, next, completed) else {
                break;
            };
            (next, completed) = STEP_LOOPS[flags](self, batch, next + 1, completed + more);
        }
        // Only these flags matter: bits 0, 1, 2 and 5, of which 0 and 5 exclude each other.
        macro_rules! report {
            ($($flags:literal)*) => {
                match flags & (KEYED | INTERVAL | POSITIONS | KEYED_BY_END) {
                    _ if completed == 0 => {}
                    $($flags => self.report_all::<S, $flags>(completed, batch, sink),)*
                    _ => unreachable!("a metric is keyed in one way at most"),
                }
            };
        }
        report!(0 1 2 3 4 5 6 7 32 34 36 38);
        if next == self.input_map.count() {
            return None;
        }
        Some((next, self.input_map.input_at(next)))
    }

    /// Takes one step for each symbol of the metric's input number `index`, if each of them is a
    /// single step. Returns the number of measurements that this completes.
    #[inline(never)]
    fn step_members(
        &mut self,
        batch: InputBatch<'_>,
        index: usize,
        completed: usize,
    ) -> Option<usize> {
        let at = self.input_map.input_at(index);
        let input = &batch.inputs[at];
        let (slot, members) = (input.slot as usize, self.input_map.members(input));
        let (instance, steps) = (&mut self.instances[slot], self.program.steps());
        // Each input after this one completes one measurement at most.
        let needed = completed + members.len() + (self.input_map.count() - index);
        let all = self.completed.get_mut(..needed)?;
        let all = &mut all[completed..];
        let mut keyed = self.keys.as_mut().and_then(|keys| keys.get_mut(slot));
        let (element, mut done) = (batch.element(input), None);
        let time_of = |member: &MemberSymbol| {
            let by = member.backdate_by.and_then(|by| by.bits(element.payload));
            element.time.minus(Nanos::from_ns(by.unwrap_or(0)))
        };
        // A measurement that begins before the end of a gap has to look for that gap.
        let until = self.past_gaps.until();
        if members.iter().any(|member| time_of(member) < until) {
            return None;
        }
        for member in members {
            // `None` already for the first one if elements were missed, or without an automaton.
            let step = steps.get(instance.row_or_mark().offset() + member.column as usize)?;
            let completed = &mut all[done.unwrap_or(0)];
            completed.input = at as u32;
            if let Some(keyed) = keyed.as_deref_mut() {
                let key = member.key.map(|key| key.bits(element.payload));
                completed.take_key(keyed, key, batch.ordinal(input), step.effects);
            }
            let time = time_of(member);
            let position = || Position::of(element);
            if self.program.is_interval() {
                completed.step::<{ POSITIONS | INTERVAL }>(instance, step, (time, true), position);
            } else {
                completed.step::<POSITIONS>(instance, step, (time, true), position);
            }
            done = Some(done.unwrap_or(0) + usize::from(step.effects.has(Effects::END)));
        }
        done
    }

    /// The flags that do not depend on the batch.
    fn static_flags(&self) -> usize {
        let given = [
            (KEYED, self.keys.is_some() && !self.is_keyed_by_end),
            (INTERVAL, self.program.is_interval()),
            (POSITIONS, self.has_positions),
            (FILTERED, self.input_map.filters),
            (KEYED_BY_END, self.is_keyed_by_end),
        ];
        let given = given.iter().filter(|(_, is_given)| *is_given);
        given.map(|(bit, _)| bit).sum()
    }

    /// The step loop: see [`StepLoop`].
    #[inline(never)]
    fn run<const FLAGS: usize>(
        &mut self,
        batch: InputBatch<'_>,
        from: usize,
        mut done: usize,
    ) -> (usize, usize) {
        let (steps, past_gaps) = (self.program.steps(), self.past_gaps.until());
        let (input_map, all) = (&self.input_map, batch.inputs);
        let (parts, completed) = (&input_map.parts[..], &mut self.completed[..]);
        let instances = &mut self.instances[..];
        let keys: &mut [KeyValue] = match &mut self.keys {
            Some(keys) if FLAGS & KEYED != 0 => keys,
            _ => &mut [],
        };
        let (filtered, count) = match FLAGS & FILTERED {
            0 => (&[][..], all.len()),
            _ => (input_map.filtered(), input_map.filtered().len()),
        };
        for index in from..count {
            let (input, at, column) = if FLAGS & FILTERED == 0 {
                let input = &all[index];
                (input, index as u32, parts[input.part as usize].column)
            } else {
                let FilteredInput { input, column } = filtered[index];
                (&all[input as usize], input, column)
            };
            let slot = input.slot as usize;
            let instance = &mut instances[slot];
            // There is no step after missed elements, nor without an automaton.
            let step = steps.get(instance.row_or_mark().offset() + column as usize);
            let Some(step) = step else {
                return (index, done);
            };
            if FLAGS & SPILLED != 0 && step.effects.has(Effects::SPILLED) {
                return (index, done);
            }
            // A measurement that begins before the end of a gap has to look for that gap.
            if FLAGS & BACKDATED != 0 && input.time < past_gaps {
                return (index, done);
            }
            let completed = &mut completed[done];
            done += usize::from(step.effects.has(Effects::END));
            if FLAGS & KEYED != 0 {
                // Symbols with and without a key alternate: this branch can be predicted.
                let key = input_map.key(input);
                let key = key.map(|number| number.bits(batch.element(input).payload));
                completed.take_key(&mut keys[slot], key, batch.ordinal(input), step.effects);
            }
            if FLAGS & (POSITIONS | KEYED_BY_END) != 0 {
                completed.input = at;
            }
            let time = (input.time, FLAGS & BACKDATED != 0);
            completed.step::<FLAGS>(instance, step, time, || Position::of(batch.element(input)));
        }
        (count, done)
    }

    /// Reports the first `count` completed measurements.
    #[inline(never)]
    fn report_all<S: Sink, const FLAGS: usize>(
        &mut self,
        count: usize,
        batch: InputBatch<'_>,
        sink: &mut S,
    ) {
        let completed = self.completed[..count].iter();
        sink.measurements(
            self.index,
            completed.map(|completed| {
                let (begin_at, end_at) = match FLAGS & POSITIONS {
                    0 => (Position::NONE, Position::NONE),
                    _ => {
                        let end = batch.element(&batch.inputs[completed.input as usize]);
                        (completed.begin_at, Position::of(end))
                    }
                };
                let measurement = Measurement {
                    metric: &self.metric,
                    metric_index: self.index,
                    number: self.reported.completed(),
                    task: completed.task,
                    begin: completed.begin,
                    end: completed.end,
                    begin_at,
                    end_at,
                    length: match FLAGS & INTERVAL {
                        0 => completed.length,
                        _ => completed.end.since(completed.begin),
                    },
                    intermediate: None,
                    key: match FLAGS & (KEYED | KEYED_BY_END) {
                        0 => None,
                        KEYED => completed.key,
                        _ => {
                            let input = &batch.inputs[completed.input as usize];
                            let number = self.input_map.key(input);
                            number.and_then(|number| number.bits(batch.element(input).payload))
                        }
                    },
                    missed: NOTHING_MISSED,
                };
                self.reported.remember(&measurement);
                measurement
            }),
        );
    }
}
