// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text in columns, and numbers short enough for them.

use std::fmt::Write;

use super::width::Width;

/// Between two columns.
const BETWEEN: usize = 2;
/// Minimum width of the pieces into which a text is broken.
const LEAST_ROOM: usize = 16;

/// Columns as wide as their widest cell.
///
/// A table that is wider than the window is shown in parts, one below the other: each begins with
/// the first columns, which identify the row, and goes on with as many of the others as there is
/// room for. No cell is lost or cut; texts that are longer than a line are broken between words.
pub(crate) struct Table {
    layout: Layout,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Each head with whether its column holds numbers, which are aligned on the right.
    pub(crate) fn new(heads: &[(&'static str, bool)]) -> Self {
        Self {
            layout: Layout::new(heads),
            rows: Vec::new(),
        }
    }

    /// Number of first columns that identify a row; 1 by default.
    pub(crate) fn keys(mut self, keys: usize) -> Self {
        self.layout = self.layout.keys(keys);
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.layout.measure(&cells);
        self.rows.push(cells);
    }

    /// Whether the table has no rows. Such a table is not shown.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn render(&self, width: Width) -> String {
        let parts = self.layout.parts(width);
        let parts = parts.iter().map(|part| {
            let rows = self.rows.iter().map(|row| part.row(row));
            std::iter::once(part.head()).chain(rows).collect::<String>()
        });
        parts.collect::<Vec<_>>().join("\n")
    }
}

/// The layout of a table, complete when all rows were measured. A table with more rows than fit
/// into memory is measured first and written afterwards.
pub(crate) struct Layout {
    heads: Vec<(&'static str, bool)>,
    widths: Vec<usize>,
    /// Whether a column has a cell that is not a dash. A column of dashes is not shown.
    has_content: Vec<bool>,
    keys: usize,
}

impl Layout {
    /// As [`Table::new`].
    pub(crate) fn new(heads: &[(&'static str, bool)]) -> Self {
        Self {
            heads: heads.to_vec(),
            widths: heads.iter().map(|(head, _)| head.len()).collect(),
            has_content: vec![false; heads.len()],
            keys: 1,
        }
    }

    /// As [`Table::keys`].
    pub(crate) fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// Aligns a column on the right if it holds numbers.
    pub(crate) fn align(mut self, column: usize, right: bool) -> Self {
        self.heads[column].1 = right;
        self
    }

    /// Makes room for a row.
    pub(crate) fn measure(&mut self, row: &[String]) {
        for (column, cell) in row.iter().enumerate() {
            self.widths[column] = self.widths[column].max(cell.chars().count());
            self.has_content[column] |= cell != "-";
        }
    }

    /// The parts in which the table is shown, one below the other.
    pub(crate) fn parts(&self, width: Width) -> Vec<Part<'_>> {
        let shown: Vec<usize> = (0..self.heads.len())
            .filter(|&column| self.has_content[column])
            .collect();
        let mut widths = self.widths.clone();
        let parts = match width.limit() {
            Some(limit) if span(&shown, &widths) > limit => self.divide(&shown, &mut widths, limit),
            _ => vec![shown],
        };
        let parts = parts.into_iter().map(|columns| Part {
            layout: self,
            columns,
            widths: widths.clone(),
        });
        parts.collect()
    }

    /// Divides the columns into parts that fit a line, and narrows columns that are wider than a
    /// line.
    fn divide(&self, shown: &[usize], widths: &mut [usize], limit: usize) -> Vec<Vec<usize>> {
        let mut keys = self.keys.min(shown.len() - 1);
        // Long names leave room for the other columns.
        while keys > 1 && 2 * span(&shown[..keys], widths) > limit {
            keys -= 1;
        }
        let (keys, others) = shown.split_at(keys);
        let room = limit.saturating_sub(span(keys, widths) + BETWEEN);
        for &column in others.iter().filter(|&&column| !self.heads[column].1) {
            widths[column] = widths[column].min(room.max(LEAST_ROOM));
        }
        let mut parts = Vec::new();
        let mut part = keys.to_vec();
        for &column in others {
            let wider = span(&part, widths) + BETWEEN + widths[column];
            if part.len() > keys.len() && wider > limit {
                parts.push(std::mem::replace(&mut part, keys.to_vec()));
            }
            part.push(column);
        }
        parts.push(part);
        parts
    }
}

/// Columns of a table that share lines.
pub(crate) struct Part<'a> {
    layout: &'a Layout,
    columns: Vec<usize>,
    widths: Vec<usize>,
}

impl Part<'_> {
    /// The heads as lines of text.
    pub(crate) fn head(&self) -> String {
        let heads = self.layout.heads.iter();
        let heads: Vec<String> = heads.map(|(head, _)| (*head).to_string()).collect();
        self.row(&heads)
    }

    /// A row of the table as lines of text.
    pub(crate) fn row(&self, row: &[String]) -> String {
        let cells = self.columns.iter();
        let cells = cells.map(|&column| broken(&row[column], self.widths[column]));
        let cells: Vec<Vec<String>> = cells.collect();
        let lines = cells.iter().map(Vec::len).max().unwrap_or(1);
        let mut text = String::new();
        for number in 0..lines {
            let mut line = String::new();
            for (&column, cell) in self.columns.iter().zip(&cells) {
                let (width, right) = (self.widths[column], self.layout.heads[column].1);
                let piece = cell.get(number).map_or("", String::as_str);
                if right {
                    let _ = write!(line, "{piece:>width$}  ");
                } else {
                    let _ = write!(line, "{piece:<width$}  ");
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Width of a line with these columns.
fn span(columns: &[usize], widths: &[usize]) -> usize {
    let cells: usize = columns.iter().map(|&column| widths[column]).sum();
    cells + BETWEEN * columns.len().saturating_sub(1)
}

/// A cell as lines of this width.
fn broken(cell: &str, width: usize) -> Vec<String> {
    if cell.chars().count() <= width {
        return vec![cell.to_string()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in cell.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use overhear_session::format::{number, printable, rate};

    use super::super::width::Width;
    use super::Table;

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (3.0, "3"),
            (1234.5678, "1235"),
            (0.012_345, "0.01235"),
            (1e12, "1.000e12"),
        ] {
            assert_eq!(number(value), expected);
        }
        assert_eq!(rate([0.0; 0].iter().sum()), "0.00 Hz");
        assert_eq!(rate(999.5), "999.50 Hz");
        assert_eq!(rate(2_500_000.0), "2.50 MHz");
    }

    #[test]
    fn terminals_are_safe_from_names() {
        assert_eq!(printable("a\x1b[2Jb"), "a\\x1b[2Jb");
    }

    fn table() -> Table {
        let mut table = Table::new(&[
            ("sensor", false),
            ("task", false),
            ("nothing", true),
            ("elements", true),
            ("missed", true),
            ("full message", false),
            ("rate", true),
        ])
        .keys(2);
        for (sensor, task, message) in [
            (
                "queue#in",
                "server(4711)",
                "wait u64 ns, load f32 %, label text[12], and_more i64",
            ),
            ("job", "server(4711)", "number i64"),
        ] {
            let cells = [sensor, task, "-", "12345", "0", message, "1.00 kHz"];
            table.row(cells.map(String::from).to_vec());
        }
        table
    }

    #[test]
    fn wide_table_is_shown_in_parts() {
        insta::assert_snapshot!(table().render(Width::UNLIMITED), @r"
        sensor    task          elements  missed  full message                                               rate
        queue#in  server(4711)     12345       0  wait u64 ns, load f32 %, label text[12], and_more i64  1.00 kHz
        job       server(4711)     12345       0  number i64                                             1.00 kHz
        ");
        insta::assert_snapshot!(table().render(Width::columns(80)), @r"
        sensor    task          elements  missed
        queue#in  server(4711)     12345       0
        job       server(4711)     12345       0

        sensor    task          full message
        queue#in  server(4711)  wait u64 ns, load f32 %, label text[12], and_more i64
        job       server(4711)  number i64

        sensor    task              rate
        queue#in  server(4711)  1.00 kHz
        job       server(4711)  1.00 kHz
        ");
        insta::assert_snapshot!(table().render(Width::columns(40)), @r"
        sensor    task          elements  missed
        queue#in  server(4711)     12345       0
        job       server(4711)     12345       0

        sensor    full message
        queue#in  wait u64 ns, load f32 %, label
                  text[12], and_more i64
        job       number i64

        sensor        rate
        queue#in  1.00 kHz
        job       1.00 kHz
        ");
    }

    #[test]
    fn no_word_is_lost_in_any_window() {
        let all = table().render(Width::UNLIMITED);
        assert_eq!(table().render(Width::columns(200)), all);
        for columns in 40..140 {
            let text = table().render(Width::columns(columns));
            for line in text.lines() {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
            for word in all.split_whitespace() {
                assert!(text.contains(word), "{word} at {columns}: {text}");
            }
        }
    }
}
