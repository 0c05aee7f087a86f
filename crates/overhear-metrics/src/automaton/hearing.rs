// SPDX-License-Identifier: MIT OR Apache-2.0
//! What elements say to one metric.

use super::metric::Column;
use super::part::Meaning;
use super::program::{Program, Row};
use super::reading::Number;
use super::route::Route;
use super::told::Told;

/// What a part of a letter says to a metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// The column of its symbol.
    pub(super) column: u32,
    /// Which number is the key that it gives.
    key: u32,
}

/// The column of several symbols, which take more than a step: behind all steps.
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
        let own: Vec<_> = rules
            .filter(|rule| rule.metric as usize == metric)
            .collect();
        let mut heard = Heard {
            column: NOTHING,
            key: NONE,
        };
        match own[..] {
            [] => self.is_choosy = true,
            [only] if !only.stands_in => {
                heard.column = Column::new(usize::from(only.symbol), true).index() as u32;
            }
            _ => {
                let symbols: Vec<u16> = own.iter().map(|rule| rule.symbol).collect();
                heard.column = program.column_of(&symbols).unwrap_or(MUCH);
            }
        }
        let mut keys = own.iter().filter_map(|rule| route.key_of(rule));
        if let Some(number) = keys.next() {
            heard.key = self.numbers.len() as u32;
            self.numbers.push(number);
        }
        self.parts.push(heard);
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

    /// Where the key is that this gives, if it gives one.
    #[inline(always)]
    pub(super) fn key(&self, told: &Told) -> Option<&Number> {
        let heard = self.parts[told.meaning as usize];
        (heard.key != NONE).then(|| &self.numbers[heard.key as usize])
    }
}
