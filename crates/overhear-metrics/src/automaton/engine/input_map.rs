// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each part of an element means to one metric: a column of its table of steps.

use super::input::TaskInput;
use crate::automaton::compile::fields::NumberField;
use crate::automaton::compile::part::PartInfo;
use crate::automaton::compile::program::{Event, Program, Row};
use crate::automaton::compile::route::Route;
use crate::automaton::compile::rule::collect_events;

/// A part as the input of one metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedPart {
    /// Column of its symbol, or of its combination of symbols.
    pub(super) column: u32,
    /// Index in `key_fields`, or [`NO_KEY`].
    key: u32,
}

/// One of several symbols that a part is to a metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberSymbol {
    /// Column of the symbol.
    pub(super) column: u32,
    /// Field with the nanoseconds by which the symbol is backdated, if it is.
    pub(super) backdate_by: Option<NumberField>,
    /// Field of the key that the symbol gives, if it gives one.
    pub(super) key: Option<NumberField>,
}

/// Column of several symbols for which the table has no room: beyond all steps.
const COLUMN_OVERFLOW: u32 = Row::LIMIT;
/// Column of a part that is no symbol of the metric; the largest column.
const NO_COLUMN: u32 = COLUMN_OVERFLOW + 1;
/// No key.
const NO_KEY: u32 = u32::MAX;

/// The inputs of one metric: from part id to column, and the filtered inputs of the current batch.
#[derive(Debug, Default)]
pub(super) struct InputMap {
    /// Indexed by part id.
    pub(super) parts: Vec<MappedPart>,
    /// Indexed by part id: the symbols of a part, in order, if they are several or one is a
    /// fallback, and each takes one step; else empty.
    members: Vec<Box<[MemberSymbol]>>,
    /// Fields of keys.
    key_fields: Vec<NumberField>,
    /// Whether some parts are no symbol of the metric, so that inputs have to be filtered.
    pub(super) filters: bool,
    /// The first `count` entries are valid if `filters`; the rest is spare.
    filtered: Vec<FilteredInput>,
    /// Number of inputs of the metric in the current batch.
    count: usize,
}

/// An input of the batch that is a symbol of the metric.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FilteredInput {
    /// Index of the input in the batch.
    pub(super) input: u32,
    /// Column of its symbol.
    pub(super) column: u32,
}

impl InputMap {
    /// Maps the next part, which belongs to `route`, for the metric with this index.
    pub(super) fn bind_part(
        &mut self,
        metric: usize,
        part: &PartInfo,
        route: &Route,
        program: &mut Program,
    ) {
        let rules = part.rules.iter();
        let rules = rules.filter(|rule| rule.metric as usize == metric);
        let is_fallback = rules.clone().any(|rule| rule.is_fallback);
        let mut events = Vec::new();
        collect_events(rules, &mut events);
        let sequence: Vec<Event> = events.iter().map(|event| event.event).collect();
        let members = events.iter().map(|event| MemberSymbol {
            column: program
                .column_of_event(event.event)
                .unwrap_or(COLUMN_OVERFLOW),
            backdate_by: route.backdate_of(event),
            key: route.key_of(event),
        });
        let mut members: Vec<_> = members.collect();
        let is_several = sequence.len() > 1 || is_fallback;
        self.filters |= sequence.is_empty();
        let column = match members.first() {
            None => NO_COLUMN,
            Some(only) if !is_several => only.column,
            Some(_) => program
                .column_of_sequence(&sequence)
                .unwrap_or(COLUMN_OVERFLOW),
        };
        let mut key = NO_KEY;
        if let Some(field) = members.iter().find_map(|member| member.key) {
            key = self.key_fields.len() as u32;
            self.key_fields.push(field);
        }
        // `Group::step_members` cannot stop halfway: each member needs a column and a single step.
        let has_room = members
            .iter()
            .all(|member| member.column != COLUMN_OVERFLOW);
        if !is_several || !has_room || program.has_spilled() {
            members.clear();
        }
        self.members.push(members.into());
        self.parts.push(MappedPart { column, key });
    }

    /// Makes room to filter this number of inputs.
    pub(super) fn reserve(&mut self, inputs: usize) {
        if self.filtered.len() < inputs {
            self.filtered.resize(inputs, FilteredInput::default());
        }
    }

    /// Selects the inputs that are symbols of the metric.
    pub(super) fn filter(&mut self, inputs: &[TaskInput]) {
        self.count = inputs.len();
        if self.filters {
            let mut count = 0;
            for (at, input) in (0..).zip(inputs) {
                let column = self.parts[input.part as usize].column;
                self.filtered[count] = FilteredInput { input: at, column };
                // `NO_COLUMN` is the largest: `<` is cheaper than `!=`.
                count += usize::from(column < NO_COLUMN);
            }
            self.count = count;
        }
    }

    /// Number of inputs of the metric in the current batch.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The inputs of the metric, if it filters; otherwise these are all inputs of the batch.
    pub(super) fn filtered(&self) -> &[FilteredInput] {
        &self.filtered[..self.count]
    }

    /// Index in the batch of the metric's input number `index`.
    pub(super) fn input_at(&self, index: usize) -> usize {
        match self.filters {
            true => self.filtered()[index].input as usize,
            false => index,
        }
    }

    /// The symbols of an input, if they are several or one is a fallback, and each takes
    /// [one step](Program::has_spilled); else none.
    pub(super) fn members(&self, input: &TaskInput) -> &[MemberSymbol] {
        &self.members[input.part as usize]
    }

    /// The field of the key that an input gives, if it gives one.
    #[inline(always)]
    pub(super) fn key(&self, input: &TaskInput) -> Option<&NumberField> {
        let part = self.parts[input.part as usize];
        (part.key != NO_KEY).then(|| &self.key_fields[part.key as usize])
    }
}
