// SPDX-License-Identifier: MIT OR Apache-2.0
//! The short way through the automata: what elements have told is carried out metric by metric.
//!
//! Most elements only move the automata of the tasks that they name. What they say is found out once for all
//! metrics ([`Told`]); then each metric goes through what some hundred elements have told: a loop that has the
//! metric's tables at hand, takes a step per thing told, and waits for nothing that another metric does. What
//! takes more than a step (an automaton that is not there yet, several symbols at once) is left to
//! [`Group::input`], which knows everything.

use overhear_event::{ElementView, StreamId, Timestamp};

use super::group::{report, report_missing, Group, Values};
use super::instance::Keyed;
use super::measurement::{Position, Sink};
use super::metric::Column;
use super::program::{Effects, Program};
use super::reading::Number;
use super::route::{Meaning, Route};

/// What an element says to plain metrics of one task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// For when.
    pub(super) time: Timestamp,
    sequence: u64,
    stream: StreamId,
    /// Of whom.
    pub(super) slot: u32,
    /// Which part of a letter it is: there its rules are.
    pub(super) meaning: u32,
    /// The how many-th element it is of those that are looked at together.
    pub(super) at: u32,
}

impl Told {
    #[inline(always)]
    pub(super) const fn new(
        (element, at): (&ElementView<'_>, u32),
        time: Timestamp,
        slot: u32,
        meaning: u32,
    ) -> Self {
        Self {
            time,
            sequence: element.sequence,
            stream: element.stream.id,
            slot,
            meaning,
            at,
        }
    }

    /// Where the element stands.
    #[inline(always)]
    const fn element(&self) -> Position {
        Position {
            stream: self.stream,
            sequence: self.sequence,
        }
    }
}

/// What a part says to a metric.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The column of its symbol.
    column: u32,
    /// Which number is the key that it gives.
    key: u32,
}

/// No key.
const NONE: u32 = u32::MAX;

/// What the parts of all routes say to a metric, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    parts: Vec<Heard>,
    /// Where keys are.
    numbers: Vec<Number>,
}

impl Hearing {
    /// There is a part more, that of a route.
    fn learn(&mut self, metric: usize, program: &Program, part: &Meaning, route: &Route) {
        let rules = part.rules.iter();
        let mut own = rules.filter(|rule| rule.metric as usize == metric);
        let mut heard = Heard {
            column: program.nothing(),
            key: NONE,
        };
        match (own.next(), own.next()) {
            (None, _) => {}
            (Some(only), None) => {
                heard.column = Column::new(usize::from(only.symbol), true).index() as u32;
                if let Some(number) = route.key_of(only) {
                    heard.key = self.numbers.len() as u32;
                    self.numbers.push(number);
                }
            }
            _ => heard.column = program.much(),
        }
        self.parts.push(heard);
    }
}

impl Group {
    /// There is a part more, that of a route.
    pub(super) fn learn(&mut self, part: &Meaning, route: &Route) {
        self.hearing.learn(self.index, &self.program, part, route);
    }

    /// Moves the automata by what these elements have told from a place on, until something takes more than a
    /// step. Returns the place of that. `first` is what names the first of the elements.
    #[inline(never)]
    pub(super) fn hear<S: Sink>(
        &mut self,
        told: &[Told],
        from: usize,
        (elements, first): (&[ElementView<'_>], u64),
        sink: &mut S,
    ) -> Option<usize> {
        match self.keys.is_some() {
            true => self.go_on::<S, true>(told, from, (elements, first), sink),
            false => self.go_on::<S, false>(told, from, (elements, first), sink),
        }
    }

    #[inline(always)]
    fn go_on<S: Sink, const KEYED: bool>(
        &mut self,
        all: &[Told],
        from: usize,
        (elements, first): (&[ElementView<'_>], u64),
        sink: &mut S,
    ) -> Option<usize> {
        let (steps, parts) = (self.program.steps(), &self.hearing.parts[..]);
        let instances = &mut self.instances[..];
        let keys: &mut [Keyed] = match &mut self.keys {
            Some(keys) if KEYED => keys,
            _ => &mut [],
        };
        let mut rest = all[from..].iter();
        while let Some(told) = rest.next() {
            let slot = told.slot as usize;
            let heard = parts[told.meaning as usize];
            let instance = &mut instances[slot];
            let step = steps[instance.row.place() + heard.column as usize];
            let effects = step.effects;
            if effects.has(Effects::RARE) {
                return Some(all.len() - rest.len() - 1);
            }
            if KEYED && heard.key != NONE {
                let number = self.hearing.numbers[heard.key as usize];
                keys[slot] = Keyed {
                    key: number.bits(elements[told.at as usize].payload),
                    ordinal: first + u64::from(told.at),
                };
            }
            if effects == Effects::STAY {
                continue;
            }
            instance.go(step.to, effects, told.time);
            // Most only go on.
            if !effects.has(Effects::MEASURING) {
                continue;
            }
            if effects.has(Effects::CLOSE) {
                instance.close();
            }
            if effects.has(Effects::END) {
                let metric = (&self.metric, self.index);
                let key = match KEYED {
                    true => keys[slot].key,
                    false => None,
                };
                let end = told.element();
                if instance.has_missed {
                    let values = (key, &self.missed[slot]);
                    report_missing(&mut self.reported, metric, instance, values, end, sink);
                } else {
                    // Nothing is missing, which is known here: the sink need not look.
                    let values = Values::only(key);
                    report(&mut self.reported, metric, instance, values, end, sink);
                }
            }
            if effects.has(Effects::BEGIN) {
                instance.begin_by(told.element());
                if instance.has_missed {
                    instance.has_missed = false;
                    self.missed[slot].clear();
                }
                if KEYED {
                    keys[slot].renew(first + u64::from(told.at));
                }
            }
            if effects.has(Effects::OPEN) {
                instance.since = instance.changed;
            }
        }
        None
    }
}
