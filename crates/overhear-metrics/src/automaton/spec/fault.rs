// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of a specification: a message and its place in the text.

use super::specification::TextPosition;

/// A specification was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{fault}", shown(*at))]
pub struct SpecificationError {
    /// Place in the text; line 0 if the specification was not parsed from a text.
    pub at: TextPosition,
    /// The fault.
    pub fault: Fault,
}

fn shown(at: TextPosition) -> String {
    match at.line {
        0 => String::new(),
        line => format!("line {line}, column {}: ", at.column),
    }
}

/// A fault of a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text ends a statement too early or has something else.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// What may follow.
        expected: String,
        /// What follows instead.
        found: String,
    },
    /// There is no `metric NAME`.
    #[error("the specification has no name; begin with `metric NAME`")]
    Nameless,
    /// A name that cannot be written.
    #[error("`{0}` cannot be a name; use letters, digits and `_`, but not lambda, kernel, user, sampler or clerk")]
    WrongName(String),
    /// The same name twice.
    #[error("{what} `{name}` is declared a second time; the first is in line {first}")]
    Twice {
        /// Kind of the name.
        what: &'static str,
        /// The name.
        name: String,
        /// Line of the first one.
        first: u32,
    },
    /// Two symbols that are the same.
    #[error("event `{second}` is the same as `{first}`; use one name for it")]
    SameSymbol {
        /// The first symbol.
        first: String,
        /// The second symbol.
        second: String,
    },
    /// A label or key names an event that is not declared.
    #[error("unknown event `{0}`; declare it by `event {0} = ...`")]
    UnknownSymbol(String),
    /// A transition names a state that is not declared.
    #[error("unknown state `{0}`; declare it by `state {0} KIND`")]
    UnknownState(String),
    /// No sensor produces these events.
    #[error("unknown event `{event}`; known are {known}, and `user:SENSOR` and `sampler:SENSOR`")]
    UnknownEvent {
        /// The event.
        event: String,
        /// The events that exist.
        known: String,
    },
    /// The event's elements have no such field.
    #[error("`{event}` has no field `{field}`; its fields are {known}")]
    UnknownField {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// The fields that exist.
        known: String,
    },
    /// A field cannot be used in this way.
    #[error("field `{field}` of `{event}` {reason}")]
    WrongField {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// The reason.
        reason: &'static str,
    },
    /// A condition compares a field with something that it cannot hold.
    #[error("field `{field}` of `{event}` cannot hold {misfit}")]
    Beyond {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// The constant, and the values that the field can hold.
        misfit: String,
    },
    /// A label has `i`, but the kernel element names no task.
    #[error("event `{0}` is used with `i` or `not i`, but names no task; add `task FIELD`")]
    Taskless(String),
    /// There is no state at all.
    #[error("the metric has no state; the first one is where every task starts")]
    Stateless,
    /// The first state is not `out`.
    #[error("the first state, `{0}`, is where every task starts and must be of kind out")]
    WrongStart(String),
    /// There is no state of this kind.
    #[error("the metric has no state of kind {0}, so it measures nothing")]
    Missing(&'static str),
    /// No input leads to this state.
    #[error("state `{0}` cannot be reached from the first state")]
    Unreachable(String),
    /// No input leads to this end.
    #[error("the end `{0}` can never be reached, so no measurement would be completed there")]
    UnreachableEnd(String),
    /// A measurement begins while another one is running.
    #[error(
        "two begins: this leads to `{begin}` while the measurement begun before is still running; \
         lead to an end or a cancel first"
    )]
    TwoBegins {
        /// The second begin.
        begin: String,
    },
    /// A state that belongs to a measurement is entered without one.
    #[error("this leads to `{state}` of kind {kind}, and no measurement has begun; lead to a begin first")]
    NotBegun {
        /// The state.
        state: String,
        /// Its kind.
        kind: &'static str,
    },
    /// Lambda transitions that never stop.
    #[error("lambda cycle: {0}; an instance would never come to rest")]
    LambdaCycle(String),
    /// Two transitions for the same input.
    #[error("overlapping labels: state `{state}` has `{label}` already, in line {first}")]
    Overlap {
        /// The state.
        state: String,
        /// The label.
        label: String,
        /// Line of the first one.
        first: u32,
    },
    /// A transition that is never applied.
    #[error(
        "overlapping labels: this transition of state `{state}` is never applied, because {reason}"
    )]
    Hidden {
        /// The state.
        state: String,
        /// The reason.
        reason: &'static str,
    },
    /// Too many of something.
    #[error("the metric has more than {limit} {what}")]
    TooMany {
        /// The items that are too many.
        what: &'static str,
        /// Their largest number.
        limit: usize,
    },
}

impl Fault {
    pub(crate) const fn at(self, at: TextPosition) -> SpecificationError {
        SpecificationError { at, fault: self }
    }
}
