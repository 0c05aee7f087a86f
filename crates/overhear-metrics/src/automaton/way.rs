// SPDX-License-Identifier: MIT OR Apache-2.0
//! The short way through the automata: what elements have told is carried out metric by metric.
//!
//! Most elements only move the automata of the tasks that they name. Each metric goes through what some hundred
//! elements have [told](super::told): a loop that has the metric's tables at hand, takes a step per thing told, and
//! waits for nothing that another metric does. What is several symbols takes a step if no more than one of them leads
//! anywhere, and else one for each, beside the loop. What takes more than that (an automaton that is not there yet,
//! something that was missed, a step with [further](Effects::FURTHER) effects) is left to [`Group::input`], which knows everything.
//!
//! What comes next cannot be foreseen where threads wake each other: a branch on whether a measurement begins or ends
//! would be mispredicted every few elements, which takes longer than everything else that an element does. So there is
//! none. Whatever a step does, all is written that it may change, and what is completed is written behind the
//! measurements that are, whether it is one or not; only the count depends on that. They are reported afterwards.

use overhear_event::{Nanos, Timestamp};

use super::group::{Group, NOTHING_MISSED};
use super::hearing::{Chosen, Single};
use super::instance::{Instance, Keyed};
use super::measurement::{Measurement, Position, Sink};
use super::part::Meaning;
use super::program::{Effects, Step};
use super::route::Route;
use super::told::Passage;

/// A measurement that is completed and not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completed {
    begin: Timestamp,
    end: Timestamp,
    /// Unless it is an interval.
    length: Nanos,
    /// If keys are kept.
    key: Option<u64>,
    task: u32,
    /// By the how many-th of what was told; if that is looked at.
    told: u32,
    /// If positions are wanted.
    begin_at: Position,
}

impl Completed {
    /// The key is that of the newest symbol that gave one. A measurement that begins forgets one that was given before.
    #[inline(always)]
    fn take_key(
        &mut self,
        keyed: &mut Keyed,
        given: Option<Option<u64>>,
        ordinal: u64,
        effects: Effects,
    ) {
        if let Some(key) = given {
            *keyed = Keyed { key, ordinal };
        }
        self.key = keyed.key;
        if effects.has(Effects::BEGIN) {
            keyed.renew(ordinal);
        }
    }

    /// The automaton takes a step by what was told for this time, which may be an earlier one. If that completes its
    /// measurement, this is what.
    #[inline(always)]
    fn take<const WAY: usize>(
        &mut self,
        instance: &mut Instance,
        step: &Step,
        (time, may_be_late): (Timestamp, bool),
        element: impl Fn() -> Position,
    ) {
        let effects = step.effects;
        let mut moved = *instance;
        let now = moved.go_anywhere(step.to, effects, time, may_be_late);
        self.begin = moved.begin;
        self.end = now;
        self.task = moved.task;
        moved.begin_if(effects, now);
        if WAY & POSITIONS != 0 {
            self.begin_at = moved.begin_at;
            moved.begin_at_if(effects, element());
            instance.begin_at = moved.begin_at;
        }
        if WAY & INTERVAL == 0 {
            moved.close_if(effects, now);
            self.length = moved.length;
            moved.open_if(effects, now);
            (instance.length, instance.since) = (moved.length, moved.since);
        }
        instance.go_as(&moved);
    }
}

/// A way through what was told, from a place on, where so many measurements are completed. Returns the place of what takes
/// more than a step, or behind all, and how many are completed there.
type Way = fn(&mut Group, Passage<'_>, usize, usize) -> (usize, usize);

/// The metric divides its measurements by values that are kept, since it is [not what ends them](Group::is_keyed_by_ends)
/// that gives them.
const KEYED: usize = 1;
/// Its measurements are [intervals](super::program::Program::is_interval).
const INTERVAL: usize = 1 << 1;
/// The sink wants positions.
const POSITIONS: usize = 1 << 2;
/// The metric does not want to know of all that was told.
const CHOOSY: usize = 1 << 3;
/// Something is about an earlier time than that of its element.
const LATE: usize = 1 << 4;
/// The metric divides its measurements by what [ends them](Group::is_keyed_by_ends).
const KEYED_BY_ENDS: usize = 1 << 5;
/// Some of what was told, or some step of the metric, is [more](Effects::FURTHER) than one.
const FURTHER: usize = 1 << 6;

/// The way that stands for this one: of those that do the same there is one.
const fn proper(way: usize) -> usize {
    let keyed = if way & KEYED_BY_ENDS != 0 { KEYED } else { 0 };
    // What is not an interval may have further steps, and what is late is rare.
    let further = match way & (INTERVAL | LATE) {
        INTERVAL => 0,
        _ => FURTHER,
    };
    way & !keyed | further
}

macro_rules! ways {
    ($($way:literal)*) => {
        [$(Group::walk::<{ proper($way) }>),*]
    };
}

/// The ways, each without what it needs not do.
static WAYS: [Way; 128] = ways! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
    96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119
    120 121 122 123 124 125 126 127
};

impl Group {
    /// There is a part more, that of a route.
    pub(super) fn learn(&mut self, part: &Meaning, route: &Route) {
        self.hearing
            .learn(self.index, part, route, &mut self.program);
    }

    /// Has learned of all parts; has room for what elements that are looked at together can tell.
    pub(super) fn make_ready(&mut self, told: usize) {
        self.way = self.shortest_way();
        self.hearing.reach(told);
        // One each, and some of them more.
        let completed = told + told / 2;
        if self.completed.len() < completed {
            self.completed.resize(completed, Completed::default());
        }
    }

    /// Chooses what is heard of what was told.
    #[inline(never)]
    pub(super) fn choose(&mut self, passage: Passage<'_>) {
        self.hearing.choose(passage.told);
    }

    /// Moves the automata by what was chosen, from a place on, until something takes more than a step. Returns the
    /// place of that, and which of what was told it is.
    #[inline(never)]
    pub(super) fn hear<S: Sink>(
        &mut self,
        passage: Passage<'_>,
        from: usize,
        sink: &mut S,
    ) -> Option<(usize, usize)> {
        let given = [(LATE, passage.is_late), (FURTHER, !passage.is_single)];
        let given = given.map(|(bit, is_given)| if is_given { bit } else { 0 });
        let way = self.way | given[0] | given[1];
        let (mut heard, mut completed) = WAYS[way](self, passage, from, 0);
        while heard < self.hearing.count() {
            let Some(more) = self.take_several(passage, heard, completed) else {
                break;
            };
            (heard, completed) = WAYS[way](self, passage, heard + 1, completed + more);
        }
        macro_rules! report {
            ($($way:literal)*) => {
                match way & (KEYED | INTERVAL | POSITIONS | KEYED_BY_ENDS) {
                    _ if completed == 0 => {}
                    $($way => self.report_all::<S, $way>(completed, passage, sink),)*
                    _ => unreachable!("keys are kept or not"),
                }
            };
        }
        report!(0 1 2 3 4 5 6 7 32 34 36 38);
        if heard == self.hearing.count() {
            return None;
        }
        Some((heard, self.hearing.heard_at(heard)))
    }

    /// Takes the steps of several symbols that the element at this place is, one after the other, if each is one. Returns
    /// how many measurements that completes.
    #[inline(never)]
    fn take_several(
        &mut self,
        passage: Passage<'_>,
        place: usize,
        completed: usize,
    ) -> Option<usize> {
        let at = self.hearing.heard_at(place);
        let told = &passage.told[at];
        let (slot, singles) = (told.slot as usize, self.hearing.singles(told));
        let (instance, steps) = (&mut self.instances[slot], self.program.steps());
        // What comes behind it completes one each, at most.
        let needed = completed + singles.len() + (self.hearing.count() - place);
        let all = self.completed.get_mut(..needed)?;
        let all = &mut all[completed..];
        let mut keyed = self.keys.as_mut().and_then(|keys| keys.get_mut(slot));
        let (element, mut done) = (passage.element(told), None);
        let time_of = |single: &Single| {
            let ago = single.ago.and_then(|ago| ago.bits(element.payload));
            element.time.minus(Nanos::from_ns(ago.unwrap_or(0)))
        };
        // What begins before a gap has to look for it.
        let until = self.past_gaps.until();
        if singles.iter().any(|single| time_of(single) < until) {
            return None;
        }
        for single in singles {
            // None from the first one on if something was missed, or if there is no automaton.
            let step = steps.get(instance.marked_row().place() + single.column as usize)?;
            let completed = &mut all[done.unwrap_or(0)];
            completed.told = at as u32;
            if let Some(keyed) = keyed.as_deref_mut() {
                let key = single.key.map(|key| key.bits(element.payload));
                completed.take_key(keyed, key, passage.ordinal(told), step.effects);
            }
            let time = time_of(single);
            let position = || Position::of(element);
            if self.program.is_interval() {
                completed.take::<{ POSITIONS | INTERVAL }>(instance, step, (time, true), position);
            } else {
                completed.take::<POSITIONS>(instance, step, (time, true), position);
            }
            done = Some(done.unwrap_or(0) + usize::from(step.effects.has(Effects::END)));
        }
        done
    }

    /// The way, as far as it does not depend on what was told.
    fn shortest_way(&self) -> usize {
        let given = [
            (KEYED, self.keys.is_some() && !self.is_keyed_by_ends),
            (INTERVAL, self.program.is_interval()),
            (POSITIONS, self.has_positions),
            (CHOOSY, self.hearing.is_choosy),
            (KEYED_BY_ENDS, self.is_keyed_by_ends),
        ];
        let given = given.iter().filter(|(_, is_given)| *is_given);
        given.map(|(bit, _)| bit).sum()
    }

    #[inline(never)]
    fn walk<const WAY: usize>(
        &mut self,
        passage: Passage<'_>,
        from: usize,
        mut done: usize,
    ) -> (usize, usize) {
        let (steps, past_gaps) = (self.program.steps(), self.past_gaps.until());
        let (hearing, all) = (&self.hearing, passage.told);
        let (parts, completed) = (&hearing.parts[..], &mut self.completed[..]);
        let instances = &mut self.instances[..];
        let keys: &mut [Keyed] = match &mut self.keys {
            Some(keys) if WAY & KEYED != 0 => keys,
            _ => &mut [],
        };
        let (chosen, count) = match WAY & CHOOSY {
            0 => (&[][..], all.len()),
            _ => (hearing.chosen(), hearing.chosen().len()),
        };
        for place in from..count {
            let (told, at, column) = if WAY & CHOOSY == 0 {
                let told = &all[place];
                (told, place as u32, parts[told.meaning as usize].column)
            } else {
                let Chosen { at, column } = chosen[place];
                (&all[at as usize], at, column)
            };
            let slot = told.slot as usize;
            let instance = &mut instances[slot];
            // Where something was missed there is no step, nor where there is no automaton.
            let step = steps.get(instance.marked_row().place() + column as usize);
            let Some(step) = step else {
                return (place, done);
            };
            if WAY & FURTHER != 0 && step.effects.has(Effects::FURTHER) {
                return (place, done);
            }
            // What begins before a gap has to look for it.
            if WAY & LATE != 0 && told.time < past_gaps {
                return (place, done);
            }
            let completed = &mut completed[done];
            done += usize::from(step.effects.has(Effects::END));
            if WAY & KEYED != 0 {
                // These take turns.
                let key = hearing.key(told);
                let key = key.map(|number| number.bits(passage.element(told).payload));
                completed.take_key(&mut keys[slot], key, passage.ordinal(told), step.effects);
            }
            if WAY & (POSITIONS | KEYED_BY_ENDS) != 0 {
                completed.told = at;
            }
            let time = (told.time, WAY & LATE != 0);
            completed.take::<WAY>(instance, step, time, || Position::of(passage.element(told)));
        }
        (count, done)
    }

    /// Reports the measurements that are completed.
    #[inline(never)]
    fn report_all<S: Sink, const WAY: usize>(
        &mut self,
        count: usize,
        passage: Passage<'_>,
        sink: &mut S,
    ) {
        let completed = self.completed[..count].iter();
        sink.measurements(
            self.index,
            completed.map(|completed| {
                let (begin_at, end_at) = match WAY & POSITIONS {
                    0 => (Position::NONE, Position::NONE),
                    _ => {
                        let end = passage.element(&passage.told[completed.told as usize]);
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
                    length: match WAY & INTERVAL {
                        0 => completed.length,
                        _ => completed.end.since(completed.begin),
                    },
                    intermediate: None,
                    key: match WAY & (KEYED | KEYED_BY_ENDS) {
                        0 => None,
                        KEYED => completed.key,
                        _ => {
                            let told = &passage.told[completed.told as usize];
                            let number = self.hearing.key(told);
                            number.and_then(|number| number.bits(passage.element(told).payload))
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
