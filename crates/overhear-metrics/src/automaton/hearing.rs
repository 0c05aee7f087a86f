// SPDX-License-Identifier: MIT OR Apache-2.0
//! What elements say to one metric.

use super::part::Meaning;
use super::program::{Event, Program, Row};
use super::reading::Number;
use super::route::{gather, Route};
use super::told::Told;

/// What a part of a letter says to a metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// The column of its symbol.
    pub(super) column: u32,
    /// Which number is the key that it gives.
    key: u32,
}

/// One of several events that a part is to a metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single {
    /// Its column.
    pub(super) column: u32,
    /// The number that says how long ago it was, if one does.
    pub(super) ago: Option<Number>,
    /// Where the key is that it gives, if it gives one.
    pub(super) key: Option<Number>,
}

/// The column of several symbols for which the table has no room: behind all steps.
const MUCH: u32 = Row::BEHIND;
/// That of no symbol.
const NOTHING: u32 = MUCH + 1;
/// No key.
const NONE: u32 = u32::MAX;

/// What the parts of all routes say to a metric.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// By their numbers.
    pub(super) parts: Vec<Heard>,
    /// As the parts, of those that are several events, or one that stands in for others: one after the other.
    singles: Vec<Box<[Single]>>,
    /// Where keys are.
    numbers: Vec<Number>,
    /// Whether some parts say nothing to the metric.
    pub(super) is_choosy: bool,
    /// What says something to the metric, of all that was told; behind it there are places to spare.
    chosen: Vec<Chosen>,
    count: usize,
}

/// Something that was told and says something to the metric.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chosen {
    /// The how many-th of what was told.
    pub(super) at: u32,
    /// The column of its symbol.
    pub(super) column: u32,
}

impl Hearing {
    /// There is a part more, that of a route. It is the how many-th metric of its engine.
    pub(super) fn learn(
        &mut self,
        metric: usize,
        part: &Meaning,
        route: &Route,
        program: &mut Program,
    ) {
        let rules = part.rules.iter();
        let rules = rules.filter(|rule| rule.metric as usize == metric);
        let stands_in = rules.clone().any(|rule| rule.stands_in);
        let mut read = Vec::new();
        gather(rules, &mut read);
        let events: Vec<Event> = read.iter().map(|event| event.event).collect();
        let singles = read.iter().map(|event| Single {
            column: program.column_of(event.event).unwrap_or(MUCH),
            ago: route.ago_of(event),
            key: route.key_of(event),
        });
        let mut singles: Vec<_> = singles.collect();
        let is_several = events.len() > 1 || stands_in;
        self.is_choosy |= events.is_empty();
        let column = match singles.first() {
            None => NOTHING,
            Some(only) if !is_several => only.column,
            Some(_) => program.column_of_all(&events).unwrap_or(MUCH),
        };
        let mut key = NONE;
        if let Some(number) = singles.iter().find_map(|single| single.key) {
            key = self.numbers.len() as u32;
            self.numbers.push(number);
        }
        // Who goes through them does not stop in between.
        let has_room = singles.iter().all(|single| single.column != MUCH);
        if !is_several || !has_room || program.has_further() {
            singles.clear();
        }
        self.singles.push(singles.into());
        self.parts.push(Heard { column, key });
    }

    /// Has room to choose from so much.
    pub(super) fn reach(&mut self, told: usize) {
        if self.chosen.len() < told {
            self.chosen.resize(told, Chosen::default());
        }
    }

    /// Chooses from what was told what says something to the metric.
    pub(super) fn choose(&mut self, told: &[Told]) {
        self.count = told.len();
        if self.is_choosy {
            let mut count = 0;
            for (at, told) in (0..).zip(told) {
                let column = self.parts[told.meaning as usize].column;
                self.chosen[count] = Chosen { at, column };
                // The largest one: cheaper than to ask whether they are the same.
                count += usize::from(column < NOTHING);
            }
            self.count = count;
        }
    }

    /// How much says something to the metric.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// What says something to the metric, if it is choosy: else that is all that was told.
    pub(super) fn chosen(&self) -> &[Chosen] {
        &self.chosen[..self.count]
    }

    /// Which of what was told is heard at this place.
    pub(super) fn heard_at(&self, place: usize) -> usize {
        match self.is_choosy {
            true => self.chosen()[place].at as usize,
            false => place,
        }
    }

    /// The events that this is, if it is several, or one that stands in for others; none where their steps are more than
    /// [one](super::program::Program::has_further).
    pub(super) fn singles(&self, told: &Told) -> &[Single] {
        &self.singles[told.meaning as usize]
    }

    /// Where the key is that this gives, if it gives one.
    #[inline(always)]
    pub(super) fn key(&self, told: &Told) -> Option<&Number> {
        let heard = self.parts[told.meaning as usize];
        (heard.key != NONE).then(|| &self.numbers[heard.key as usize])
    }
}
