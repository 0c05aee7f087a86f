// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear attach`: what sensors write, as it comes.
//!
//! A [`Feed`] is an evaluation like any other: it sees elements and gaps in total order, counts
//! them, and has a [`Layout`] put them into text, JSON or CSV. Gaps appear in their place in each
//! of them, so that nobody who reads the output can overlook one.

mod command;
mod csv;
mod feed;
mod json;
mod outlet;
mod text;

pub(crate) use command::{AttachOptions, Attachment};
pub(crate) use csv::Csv;
#[cfg(test)]
pub(crate) use csv::COLUMNS as CSV_COLUMNS;
pub(crate) use feed::{Feed, Summary};
pub(crate) use json::Json;
pub(crate) use text::Text;

use overhear_event::{ElementView, Field, FieldKind, Gap, StreamDescriptor, Value};

/// A form of output: each call appends its lines.
pub(crate) trait Layout {
    /// A sensor is attached.
    fn stream(&mut self, stream: &StreamDescriptor, out: &mut Vec<u8>);
    /// An element.
    fn element(&mut self, element: &ElementView<'_>, out: &mut Vec<u8>);
    /// Elements that were missed.
    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap, out: &mut Vec<u8>);
    /// Something is wrong that does not end the observation.
    fn note(&mut self, message: &str, out: &mut Vec<u8>);
    /// The end.
    fn summary(&mut self, summary: &Summary, out: &mut Vec<u8>);
}

/// A value as text; narrow floats with the digits they have, not with those of a wide one.
fn value_text(field: &Field, value: Value<'_>) -> String {
    match (field.kind, value) {
        (FieldKind::F32, Value::Float(value)) => (value as f32).to_string(),
        (_, value) => field.shown(value).to_string(),
    }
}
