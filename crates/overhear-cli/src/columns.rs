// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text in columns, and numbers short enough for them.

use std::fmt::Write;

/// At most four significant digits, so that columns stay narrow.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_string();
    }
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return format!("{value:.0}");
    }
    let digits = value.abs().log10().floor();
    if (-3.0..9.0).contains(&digits) {
        let decimals = (3.0 - digits).max(0.0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{value:.3e}")
    }
}

pub(crate) fn rate(hz: f64) -> String {
    match hz {
        hz if hz >= 1e6 => format!("{:.2} MHz", hz / 1e6),
        hz if hz >= 1e3 => format!("{:.2} kHz", hz / 1e3),
        hz => format!("{hz:.2} Hz"),
    }
}

/// Names come from programs: control characters must not reach the terminal.
pub(crate) fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Columns as wide as their widest cell.
pub(crate) struct Table {
    heads: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heads: &[(&'static str, bool)]) -> Self {
        Self {
            heads: heads.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Without rows it is only heads, and not worth showing.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.heads[column].0.len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        // A column that tells nothing takes no room.
        let tells = |column: usize| self.rows.iter().any(|row| row[column] != "-");
        let telling: Vec<bool> = (0..self.heads.len()).map(tells).collect();
        let mut text = String::new();
        let heads = self
            .heads
            .iter()
            .map(|(head, _)| (*head).to_string())
            .collect();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for (column, cell) in row
                .iter()
                .enumerate()
                .filter(|&(column, _)| telling[column])
            {
                let (width, right) = (widths[column], self.heads[column].1);
                if right {
                    let _ = write!(line, "{cell:>width$}  ");
                } else {
                    let _ = write!(line, "{cell:<width$}  ");
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{number, printable, rate};

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
        assert_eq!(rate(999.5), "999.50 Hz");
        assert_eq!(rate(2_500_000.0), "2.50 MHz");
    }

    #[test]
    fn terminals_are_safe_from_names() {
        assert_eq!(printable("a\x1b[2Jb"), "a\u{fffd}[2Jb");
    }
}
