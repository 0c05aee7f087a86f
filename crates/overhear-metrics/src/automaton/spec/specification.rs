// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric as text: symbols, states and transitions, each with its place in the text.

use overhear_event::EventName;

/// A place in the text of a specification.
///
/// All places are equal, so that two specifications with the same content are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextPosition {
    /// Line, from 1 on.
    pub line: u32,
    /// Column in characters, from 1 on.
    pub column: u32,
}

impl PartialEq for TextPosition {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TextPosition {}

/// A word with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Its place.
    pub at: TextPosition,
}

impl Word {
    /// A word that is not in a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            at: TextPosition::default(),
        }
    }
}

/// A metric before it is checked: [`Metric::new`](crate::automaton::Metric::new) does that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specification {
    /// Name of the metric.
    pub name: Word,
    /// What it measures, for users.
    pub description: String,
    /// Its alphabet, in the order in which one element of several symbols is input.
    pub symbols: Vec<Symbol>,
    /// The field that divides the measurements into kinds.
    pub key: Option<Key>,
    /// Its states; each automaton starts in the first one.
    pub states: Vec<State>,
    /// Its transitions.
    pub transitions: Vec<Transition>,
}

/// A name for the elements of a source that meet conditions: the *event type* of [POSIX-metrics,
/// section 3].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name used in labels.
    pub name: Word,
    /// Source of the elements.
    pub source: EventName,
    /// Place of the source.
    pub source_at: TextPosition,
    /// Conditions that must all hold.
    pub conditions: Vec<Condition>,
    /// Task that an element names.
    pub task: TaskOf,
    /// Field with the nanoseconds between the event and its element.
    pub ago: Option<Word>,
}

/// A condition on a field of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The field.
    pub field: Word,
    /// The comparison.
    pub relation: Relation,
    /// The constant.
    pub constant: Constant,
    /// Place of the constant.
    pub constant_at: TextPosition,
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
    /// The word in the text.
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

/// The task that an element names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOf {
    /// The thread that wrote it if the stream names it, else the process of the stream. A kernel
    /// element has no such task.
    Writer,
    /// The task whose id is in this field; 0 and 4294967295 are no tasks.
    Field(Word),
    /// No task.
    NoTask,
}

/// The field whose newest value divides the measurements into kinds, for example by a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The symbol whose elements have the field.
    pub symbol: Word,
    /// The field.
    pub field: Word,
}

/// The effect of entering a state on the measurement: the six types of [POSIX-metrics, section 3].
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
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Begin,
        Self::End,
        Self::Cancel,
        Self::In,
        Self::Out,
        Self::Cond,
    ];

    /// The word in the text.
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
    /// Name of the state.
    pub name: Word,
    /// Effect of entering it.
    pub kind: StateKind,
}

/// A transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state that is left.
    pub from: Word,
    /// The state that is entered.
    pub to: Word,
    /// When it is applied.
    pub label: Label,
    /// Place of the label.
    pub label_at: TextPosition,
}

/// When a transition is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// The input is this symbol.
    Symbol(Word, Ownership),
    /// At once, without input.
    Lambda,
    /// The input matches no other label of the state.
    Any,
}

/// The task that the input must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// `event`: any task, or none.
    Anyone,
    /// `event, i`: the task of the automaton.
    Own,
    /// `event, not i`: any other task, or none.
    Other,
}
