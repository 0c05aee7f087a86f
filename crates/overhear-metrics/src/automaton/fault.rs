// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a specification: one sentence and its place.

use super::specification::Place;

/// A specification was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{fault}", shown(*at))]
pub struct SpecificationError {
    /// Where; nowhere (line 0) in a specification that was not read from a text.
    pub at: Place,
    /// What.
    pub fault: Fault,
}

fn shown(at: Place) -> String {
    match at.line {
        0 => String::new(),
        line => format!("line {line}, column {}: ", at.column),
    }
}

/// What is wrong with a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text ends a statement too early or has something else.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// What may stand here.
        expected: String,
        /// What stands here.
        found: String,
    },
    /// There is no `metric NAME`.
    #[error("the specification has no name; begin with `metric NAME`")]
    Nameless,
    /// A name that cannot be written.
    #[error("`{0}` cannot be a name; use letters, digits and `_`, but not lambda, kernel, user or clerk")]
    WrongName(String),
    /// The same name twice.
    #[error("{what} `{name}` is declared a second time; the first is in line {first}")]
    Twice {
        /// What it is.
        what: &'static str,
        /// The name.
        name: String,
        /// The line of the first.
        first: u32,
    },
    /// Two symbols that are the same.
    #[error("event `{second}` is the same as `{first}`; use one name for it")]
    SameSymbol {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// A label or key names an event that is not declared.
    #[error("unknown event `{0}`; declare it by `event {0} = ...`")]
    UnknownSymbol(String),
    /// A transition names a state that is not declared.
    #[error("unknown state `{0}`; declare it by `state {0} KIND`")]
    UnknownState(String),
    /// Nobody produces these events.
    #[error("unknown event `{event}`; known are {known}, and `user:SENSOR` and `clerk:SENSOR`")]
    UnknownEvent {
        /// The event.
        event: String,
        /// Those that exist.
        known: String,
    },
    /// The event's elements have no such field.
    #[error("`{event}` has no field `{field}`; its fields are {known}")]
    UnknownField {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// Those that exist.
        known: String,
    },
    /// A field cannot be used in this way.
    #[error("field `{field}` of `{event}` {reason}")]
    WrongField {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// Why.
        reason: &'static str,
    },
    /// A condition compares a field with something that it cannot hold.
    #[error("field `{field}` of `{event}` cannot hold {misfit}")]
    Beyond {
        /// The event.
        event: String,
        /// The field.
        field: String,
        /// What it is compared with, and what it can hold.
        misfit: String,
    },
    /// A kernel element does not say by itself whose it is.
    #[error(
        "event `{0}` is used with `i` or `not i`, but does not say whose it is; add `task FIELD`"
    )]
    Taskless(String),
    /// There is no state at all.
    #[error("the metric has no state; the first one is where every task starts")]
    Stateless,
    /// The first state is not `out`.
    #[error("the first state, `{0}`, is where every task starts and must be of kind out")]
    WrongStart(String),
    /// No state of this kind.
    #[error("the metric has no state of kind {0}, so it measures nothing")]
    Missing(&'static str),
    /// A state that no input leads to.
    #[error("state `{0}` cannot be reached from the first state")]
    Unreachable(String),
    /// An end that no input leads to.
    #[error("the end `{0}` can never be reached, so no measurement would be completed there")]
    UnreachableEnd(String),
    /// A measurement begins while another one is running.
    #[error(
        "two begins: this leads to `{begin}` while the measurement begun before is still running; \
         lead to an end or a cancel first"
    )]
    TwoBegins {
        /// The begin that comes too early.
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
        /// The line of the first.
        first: u32,
    },
    /// A transition that is never applied.
    #[error(
        "overlapping labels: this transition of state `{state}` is never applied, because {reason}"
    )]
    Hidden {
        /// The state.
        state: String,
        /// Why.
        reason: &'static str,
    },
    /// Too many of something.
    #[error("the metric has more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
}

impl Fault {
    pub(super) const fn at(self, at: Place) -> SpecificationError {
        SpecificationError { at, fault: self }
    }
}
