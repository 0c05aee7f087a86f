// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forms of output: text, JSON and CSV.

use std::io;

use clap::ValueEnum;
use overhear_event::{csv_line, printable_json};
use serde::Serialize;

/// The form of a command's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables and messages.
    #[default]
    Text,
    /// JSON; streams of records are one document per line.
    Json,
    /// Comma-separated values with a line of heads.
    Csv,
}

/// Whether colours are permitted: not if `NO_COLOR` is set and not empty.
#[must_use]
pub(crate) fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A document as JSON, with characters escaped that act on a terminal.
#[must_use]
pub(crate) fn json_text(document: &impl Serialize) -> String {
    let json = serde_json::to_string_pretty(document).unwrap_or_default() + "\n";
    printable_json(&json).into_owned()
}

/// A writer of JSON that escapes characters which act on a terminal. Its input has complete
/// characters, as serde_json writes them.
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

/// A table as comma-separated values.
pub(crate) fn csv_text<R>(heads: &[&str], rows: impl Iterator<Item = R>) -> String
where
    R: IntoIterator<Item = String>,
{
    let mut text = csv_line(heads);
    text.extend(rows.map(csv_line));
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;

    use overhear_trace::CsvExport;

    use crate::{attach, text, top};

    /// `docs/csv.md` has one table of all columns, with the verbs that have them.
    #[test]
    fn columns_of_all_verbs_are_documented_once() {
        let page = include_str!("../../../docs/csv.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<(&str, BTreeSet<&str>)> = rows
            .map(|row| {
                let (column, rest) = row.split_once("` | ").unwrap();
                let (verbs, _) = rest.split_once(" | ").unwrap();
                (column, verbs.split(", ").collect())
            })
            .collect();
        let names: BTreeSet<&str> = documented.iter().map(|(column, _)| *column).collect();
        assert_eq!(names.len(), documented.len(), "a column has two rows");
        let export = CsvExport::<io::Sink>::COLUMNS.into_iter();
        let outputs: [(&str, Vec<&str>); 6] = [
            (
                "export",
                export.chain([CsvExport::<io::Sink>::VALUES]).collect(),
            ),
            ("attach", attach::CSV_COLUMNS.to_vec()),
            ("list", text::listing::CSV_COLUMNS.to_vec()),
            (
                "list --not-connected",
                text::not_connected::CSV_COLUMNS.to_vec(),
            ),
            (
                "list --data-sources",
                text::data_sources::CSV_COLUMNS.to_vec(),
            ),
            ("top", top::CSV_COLUMNS.to_vec()),
        ];
        for (verb, columns) in outputs {
            let of_verb = documented.iter().filter(|(_, verbs)| verbs.contains(verb));
            let of_verb: BTreeSet<&str> = of_verb.map(|(column, _)| *column).collect();
            let columns: BTreeSet<&str> = columns.into_iter().collect();
            assert_eq!(of_verb, columns, "{verb}");
        }
    }
}
