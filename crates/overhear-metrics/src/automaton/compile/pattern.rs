// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patterns of elements: an event as specifications declare it, outside of a metric.
//!
//! Constraints use patterns. A pattern is written like the right side of a metric's `event` line:
//! `user:request [phase == 1]`, `kernel:sched_switch [flags has 4] task next_tid`.

use std::fmt;

use overhear_event::{ElementView, EventName, FieldKind, Origin, StreamDescriptor, TypeSchema};

use super::fields::{NumberField, Test};
use super::task_source::{writer, TaskSource, THREAD};
use crate::automaton::spec::catalogue::Catalogue;
use crate::automaton::spec::check::{check_fields, check_symbol, field, whole_number};
use crate::automaton::spec::fault::{Fault, SpecificationError};
use crate::automaton::spec::parse::symbol_alone;
use crate::automaton::spec::specification::{Symbol, TaskOf, TextPosition, Word};

/// The elements of a source that meet conditions.
///
/// Holding one proves that its source is in the catalogue and that the fields it names exist there.
/// It does not prove that the sensors of programs have these fields: `Pattern::bind` checks that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Symbol);

impl Pattern {
    /// Parses and checks a pattern over the events of `catalogue`.
    ///
    /// # Errors
    /// [`SpecificationError`] with the line and column within `text`.
    pub fn parse(text: &str, catalogue: &Catalogue) -> Result<Self, SpecificationError> {
        let symbol = symbol_alone(text)?;
        check_symbol(&symbol, catalogue)?;
        Ok(Self(symbol))
    }

    /// Parses and checks an event that a user metric begins or ends with: the id of a program's
    /// sensor, or a pattern. An event of the kernel that names no task belongs to the thread in its
    /// field `tid`.
    ///
    /// # Errors
    /// [`SpecificationError`] with the line and column within `text`.
    pub fn parse_user_event(text: &str, catalogue: &Catalogue) -> Result<Self, SpecificationError> {
        match EventName::of_program(text) {
            Some(event) if !text.contains(['[', '"', ' ']) => Ok(event.into()),
            _ => Ok(Self::parse(text, catalogue)?.of_thread(catalogue)),
        }
    }

    fn of_thread(mut self, catalogue: &Catalogue) -> Self {
        let schema = catalogue.schema(&self.0.source);
        let names_thread = schema.is_some_and(|schema| schema.index_of(THREAD).is_some());
        if self.0.task == TaskOf::Writer && names_thread {
            self.0.task = TaskOf::Field(Word::new(THREAD));
        }
        self
    }

    /// The pattern as a symbol with this name.
    pub(crate) fn to_symbol(&self, name: &str) -> Symbol {
        Symbol {
            name: Word::new(name),
            ..self.0.clone()
        }
    }

    /// The event type of its elements.
    #[must_use]
    pub const fn source(&self) -> &EventName {
        &self.0.source
    }

    /// Checks that the elements have this field and that it is a number, as far as the catalogue
    /// contains them.
    ///
    /// # Errors
    /// [`Fault`] with the reason.
    pub(crate) fn check_number(&self, name: &str, catalogue: &Catalogue) -> Result<(), Fault> {
        match catalogue.schema(&self.0.source) {
            Some(schema) => self.number(name, schema),
            None => Ok(()),
        }
    }

    /// Checks that this field is an unsigned number, as far as the catalogue contains the elements.
    ///
    /// # Errors
    /// [`Fault`] with the reason.
    pub(crate) fn check_unsigned(&self, name: &str, catalogue: &Catalogue) -> Result<(), Fault> {
        match catalogue.schema(&self.0.source) {
            Some(schema) => self.unsigned(name, schema),
            None => Ok(()),
        }
    }

    fn number(&self, name: &str, schema: &TypeSchema) -> Result<(), Fault> {
        let word = Word::new(name);
        let kind = field(schema, &self.0, &word).map_err(|error| error.fault)?;
        match kind {
            FieldKind::Text(_) => Err(Fault::WrongField {
                event: self.0.source.to_string(),
                field: name.to_owned(),
                reason: "is a text; a number is needed",
            }),
            _ => Ok(()),
        }
    }

    fn unsigned(&self, name: &str, schema: &TypeSchema) -> Result<(), Fault> {
        whole_number(schema, &self.0, &Word::new(name)).map_err(|error| error.fault)
    }

    /// Resolves the fields for the elements of a stream; `None` if its elements are of another
    /// source.
    ///
    /// # Errors
    /// A message if they lack a field, `number` is no number, or `key` is no unsigned number.
    pub(crate) fn bind(
        &self,
        stream: &StreamDescriptor,
        number: Option<&str>,
        key: Option<&str>,
    ) -> Result<Option<BoundPattern>, String> {
        if stream.event() != self.0.source {
            return Ok(None);
        }
        let number = number.map_or(Ok(()), |name| self.number(name, &stream.schema));
        let key = key.map_or(Ok(()), |name| self.unsigned(name, &stream.schema));
        number.and(key).map_err(|fault| fault.to_string())?;
        BoundPattern::new(stream, &self.0).map(Some)
    }
}

/// All elements of this source, which must not be a kernel event.
impl From<EventName> for Pattern {
    fn from(source: EventName) -> Self {
        Self(Symbol {
            name: Word::new("event"),
            source,
            source_at: TextPosition::default(),
            conditions: Vec::new(),
            task: TaskOf::Writer,
            ago: None,
        })
    }
}

impl fmt::Display for Pattern {
    /// The pattern as text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_pattern(f)
    }
}

/// A pattern whose fields are resolved for the elements of one stream.
#[derive(Debug)]
pub(crate) struct BoundPattern {
    pub(crate) tests: Vec<Test>,
    pub(crate) task: TaskSource,
    pub(crate) backdate_by: Option<NumberField>,
}

impl BoundPattern {
    pub(crate) fn new(stream: &StreamDescriptor, symbol: &Symbol) -> Result<Self, String> {
        let schema = &stream.schema;
        check_fields(symbol, schema).map_err(|error| error.fault.to_string())?;
        let conditions = symbol.conditions.iter();
        Ok(Self {
            tests: conditions
                .filter_map(|condition| Test::of(schema, condition))
                .collect(),
            task: TaskSource::of(&symbol.task, stream, || writer(stream)),
            backdate_by: symbol
                .ago
                .as_ref()
                .and_then(|field| NumberField::of(schema, &field.text)),
        })
    }

    /// Whether the element matches.
    pub(crate) fn matches(&self, element: &ElementView<'_>) -> bool {
        self.tests.iter().all(|test| test.holds(element))
    }

    /// The task that the element names.
    pub(crate) fn task(&self, element: &ElementView<'_>) -> Option<u32> {
        self.task.named_by(element.payload)
    }

    /// The nanoseconds between the event and its element.
    pub(crate) fn backdate_ns(&self, element: &ElementView<'_>) -> u64 {
        self.backdate_by
            .and_then(|field| field.bits(element.payload))
            .unwrap_or(0)
    }
}

/// The process of a program's stream: the task of its elements unless they name another one.
pub(crate) fn process(stream: &StreamDescriptor) -> Option<(u32, &str)> {
    match &stream.origin {
        Origin::Program(task) => Some((task.pid, task.comm.as_str())),
        _ => None,
    }
}
