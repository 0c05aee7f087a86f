// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text for people, JSON and CSV for programs.

use clap::ValueEnum;

/// The form of what a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// JSON; streams of records are one document per line.
    Json,
    /// Comma-separated values with a line of heads.
    Csv,
}

/// Whether colours are wanted: `NO_COLOR` says no, unless it is empty.
#[must_use]
pub fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A number with the noun that it counts.
pub(crate) fn counted(number: u64, one: &str, several: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {several}"),
    }
}

/// One line of comma-separated values, quoted where need be.
pub(crate) fn csv_line<I, T>(cells: I) -> Vec<u8>
where
    I: IntoIterator<Item = T>,
    T: AsRef<[u8]>,
{
    let mut writer = csv::WriterBuilder::new()
        .flexible(true)
        .from_writer(Vec::new());
    // Writing to memory does not fail.
    let _ = writer.write_record(cells);
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
