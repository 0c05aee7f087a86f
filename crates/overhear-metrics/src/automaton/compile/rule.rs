// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules: when an element of a stream is a symbol of a metric, and the events that matching rules
//! make up.

use super::program::Event;

/// No field.
pub(crate) const NO_FIELD: u16 = u16::MAX;

/// When an element of a stream is a certain symbol of a certain metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Index of the metric.
    pub(crate) metric: u32,
    /// Index of the symbol in the metric.
    pub(crate) symbol: u16,
    /// Index of the symbol's task in the task sources of the route.
    pub(crate) task: u16,
    /// Whether the symbol names a task.
    pub(crate) is_tasked: bool,
    /// Whether the metric is [plain](crate::automaton::engine).
    pub(crate) is_plain: bool,
    /// Whether the symbol is a [fallback](super::program::Program::is_fallback) for another one of
    /// the metric.
    pub(crate) is_fallback: bool,
    /// Index of the number field with the nanoseconds by which the symbol is backdated, or
    /// [`NO_FIELD`].
    pub(crate) backdate_by: u16,
    /// Index of the number field of the key, or [`NO_FIELD`].
    pub(crate) key: u16,
    /// Index among all rules of the route.
    pub(crate) number: u16,
    /// Conditions of the route that the rule tests, a bit each.
    pub(crate) tested_mask: u64,
    /// Of these, the conditions that must hold; the others must not.
    pub(crate) required_mask: u64,
}

impl Rule {
    /// `backdate_by` as far as it separates parts. A fallback shares the part of the element's own
    /// time: nearly always the symbol that it replaces was seen, and it leads nowhere.
    pub(crate) const fn part_backdate(&self) -> u16 {
        if self.is_fallback {
            NO_FIELD
        } else {
            self.backdate_by
        }
    }
}

/// An event that an element is to a metric: see [`Event`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventRead {
    pub(crate) event: Event,
    /// Index of the event's task in the task sources of the route.
    pub(crate) task: u16,
    /// Whether the event names a task.
    pub(crate) is_tasked: bool,
    /// As in [`Rule`].
    pub(crate) backdate_by: u16,
    /// As in [`Rule`].
    pub(crate) key: u16,
}

impl EventRead {
    fn of(rule: &Rule) -> Self {
        Self {
            event: Event::default().with(rule.symbol, rule.is_tasked),
            task: rule.task,
            is_tasked: rule.is_tasked,
            backdate_by: rule.backdate_by,
            key: rule.key,
        }
    }

    /// Whether the rule belongs to this event: it has the same time, and the same task unless one
    /// of them names no task.
    const fn is_same(&self, rule: &Rule) -> bool {
        let same_task = self.task == rule.task || !self.is_tasked || !rule.is_tasked;
        self.backdate_by == rule.backdate_by && same_task
    }

    fn join(&mut self, rule: &Rule) {
        self.event = self.event.with(rule.symbol, rule.is_tasked);
        if rule.is_tasked {
            (self.task, self.is_tasked) = (rule.task, true);
        }
        if rule.key != NO_FIELD {
            self.key = rule.key;
        }
    }
}

/// Appends the events that these rules of one metric make up, in the order of declaration of their
/// first symbols.
pub(crate) fn collect_events<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    events: &mut Vec<EventRead>,
) {
    for rule in rules {
        match events.iter_mut().find(|event| event.is_same(rule)) {
            Some(event) => event.join(rule),
            None => events.push(EventRead::of(rule)),
        }
    }
}

/// The rules that name a task, those of one event next to each other, in the order of the metrics
/// and of their events.
pub(crate) fn by_events(rules: &[Rule]) -> Vec<Rule> {
    let mut ordered = Vec::new();
    for rules in rules.chunk_by(|a, b| a.metric == b.metric) {
        let mut events = Vec::new();
        collect_events(rules.iter(), &mut events);
        for event in events {
            let of_event = rules.iter().filter(|rule| event.is_same(rule));
            ordered.extend(of_event.filter(|rule| rule.is_tasked));
        }
    }
    ordered
}
