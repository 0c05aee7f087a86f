// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric as it is written: symbols, states and transitions, each with its place in the text.

use overhear_event::EventName;

/// A place in the text of a specification.
///
/// All places are equal: two specifications are the same if they say the same, wherever it
/// stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The line, from 1 on.
    pub line: u32,
    /// The column in characters, from 1 on.
    pub column: u32,
}

impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Place {}

/// A word and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Its place.
    pub at: Place,
}

impl Word {
    /// A word that stands in no text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            at: Place::default(),
        }
    }
}

/// A metric as it is written. It may be nonsense: [`Metric::new`](super::Metric::new) decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specification {
    /// Its name.
    pub name: Word,
    /// What it measures, for people.
    pub description: String,
    /// Its alphabet, in the order in which one element is input if it is several symbols.
    pub symbols: Vec<Symbol>,
    /// The field that divides the measurements into kinds.
    pub key: Option<Key>,
    /// Its states; the first one is where every instance starts.
    pub states: Vec<State>,
    /// Its transitions.
    pub transitions: Vec<Transition>,
}

/// What an element must look like to be input under a name: the *event type* of the seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The name that labels use.
    pub name: Word,
    /// Whose elements.
    pub source: EventName,
    /// Where the source is named.
    pub source_at: Place,
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// Which task the element tells of.
    pub task: TaskOf,
    /// The field that says how long before the element the event was, in nanoseconds.
    pub ago: Option<Word>,
}

/// What an element says about one of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The field.
    pub field: Word,
    /// How it is compared.
    pub relation: Relation,
    /// With what.
    pub constant: Constant,
    /// Where the constant stands.
    pub constant_at: Place,
}

/// How a field is compared with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `==`: it is the constant.
    Equal,
    /// `!=`: it is not the constant.
    Unequal,
    /// `has`: all bits of the constant are set.
    Has,
    /// `lacks`: no bit of the constant is set.
    Lacks,
}

impl Relation {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::Unequal => "!=",
            Self::Has => "has",
            Self::Lacks => "lacks",
        }
    }
}

/// What a field is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constant {
    /// A number; compared with signed and unsigned fields.
    Number(u64),
    /// A text; compared with text fields.
    Text(String),
}

/// Which task an element tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOf {
    /// The thread that wrote it where the stream names it, else the process of the stream. A kernel
    /// element has no such task.
    Writer,
    /// The one whose id is in this field; 0 and 4294967295 stand for none.
    Field(Word),
    /// None.
    Nobody,
}

/// The field whose newest value divides the measurements into kinds: a reason, a number, a culprit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The symbol whose elements have it.
    pub symbol: Word,
    /// The field.
    pub field: Word,
}

/// What entering a state does to the measurement: the six types of the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// A measurement begins.
    Begin,
    /// It is completed.
    End,
    /// It is discarded.
    Cancel,
    /// Inside of a segment.
    In,
    /// Outside of segments.
    Out,
    /// Inside if an `in` state follows the chain of `cond` states, else outside.
    Cond,
}

impl StateKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Begin,
        Self::End,
        Self::Cancel,
        Self::In,
        Self::Out,
        Self::Cond,
    ];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End => "end",
            Self::Cancel => "cancel",
            Self::In => "in",
            Self::Out => "out",
            Self::Cond => "cond",
        }
    }
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Its name.
    pub name: Word,
    /// What entering it does.
    pub kind: StateKind,
}

/// A transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// From this state.
    pub from: Word,
    /// To this one.
    pub to: Word,
    /// When it is applied.
    pub label: Label,
    /// Where the label stands.
    pub label_at: Place,
}

/// When a transition is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// The input is this symbol.
    Symbol(Word, Whose),
    /// At once.
    Lambda,
    /// The input matches no other label of the state.
    Any,
}

/// Which task the input must belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// `event`: any, or none.
    Anyone,
    /// `event, i`: the task of the automaton's instance.
    Own,
    /// `event, not i`: any but that one, or none.
    Other,
}
