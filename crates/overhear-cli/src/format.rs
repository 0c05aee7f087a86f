// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text for people, JSON and CSV for programs.

use std::io;

use clap::ValueEnum;
use overhear_event::{csv_cell, printable_json};
use serde::Serialize;

/// The form of what a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// JSON; streams of records are one document per line.
    Json,
    /// Comma-separated values with a line of heads.
    Csv,
}

/// Whether colours are wanted: not if `NO_COLOR` is set and not empty.
#[must_use]
pub(crate) fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A document as JSON, whose text does not act on a terminal either.
#[must_use]
pub(crate) fn json_text(document: &impl Serialize) -> String {
    let json = serde_json::to_string_pretty(document).unwrap_or_default() + "\n";
    printable_json(&json).into_owned()
}

/// Writes JSON on, in a form that does not act on a terminal. It gets whole characters, as serde_json writes them.
#[derive(Debug)]
pub(crate) struct PrintableJson<W>(pub W);

impl<W: io::Write> io::Write for PrintableJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.0.write_all(printable_json(text).as_bytes())?,
            Err(_) => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// One line of comma-separated values, made safe ([`csv_cell`]) and quoted where need be.
pub(crate) fn csv_line<I, T>(cells: I) -> Vec<u8>
where
    I: IntoIterator<Item = T>,
    T: AsRef<str>,
{
    let mut writer = csv::WriterBuilder::new()
        .flexible(true)
        .from_writer(Vec::new());
    // Writing to memory does not fail.
    for cell in cells {
        let _ = writer.write_field(csv_cell(cell.as_ref()).as_ref());
    }
    let _ = writer.write_record(None::<&[u8]>);
    writer.into_inner().unwrap_or_default()
}

/// A table as comma-separated values.
pub(crate) fn csv_text<R>(heads: &[&str], rows: impl Iterator<Item = R>) -> String
where
    R: IntoIterator<Item = String>,
{
    let mut bytes = csv_line(heads);
    for row in rows {
        bytes.extend(csv_line(row));
    }
    String::from_utf8(bytes).unwrap_or_default()
}
