// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear attach`: prints elements of sensors as they are written.
//!
//! A [`Feed`] is an analysis like any other: it gets elements and gaps in the total order and
//! counts them. Its [`Layout`] makes lines of text, JSON or CSV of them. Each form has the gaps at
//! their positions between the elements.

mod command;
mod csv;
mod feed;
mod json;
mod outlet;
mod text;

pub(crate) use command::{AttachOptions, Attachment, TraceOptions};
pub(crate) use csv::Csv;
#[cfg(test)]
pub(crate) use csv::COLUMNS as CSV_COLUMNS;
pub(crate) use feed::{Feed, Summary};
pub(crate) use json::Json;
pub(crate) use text::Text;

use overhear_event::{ElementView, Field, FieldKind, Gap, StreamDescriptor, Value};
use overhear_session::budget::BudgetOutcome;

/// A form of output. Each call appends lines.
pub(crate) trait Layout {
    /// A sensor is attached.
    fn stream(&mut self, stream: &StreamDescriptor, out: &mut Vec<u8>);
    /// An element.
    fn element(&mut self, element: &ElementView<'_>, out: &mut Vec<u8>);
    /// A gap.
    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap, out: &mut Vec<u8>);
    /// A message.
    fn note(&mut self, message: &str, out: &mut Vec<u8>);
    /// The state of the budget at the end, before the summary.
    fn budget(&mut self, budget: &BudgetOutcome, out: &mut Vec<u8>);
    /// The summary at the end.
    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>);
}

/// A value as text. A narrow float has its own digits, not those of the wide one.
fn value_text(field: &Field, value: Value<'_>) -> String {
    match (field.kind, value) {
        (FieldKind::F32, Value::Float(value)) => (value as f32).to_string(),
        (_, value) => field.shown(value).to_string(),
    }
}
