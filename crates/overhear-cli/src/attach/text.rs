// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements as text: a line each, with times relative to the first element.

use std::fmt::Write;

use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, HEXADECIMAL, WRITER_FLAGS};

use super::{value_text, Layout, Summary};
use overhear_session::budget::BudgetOutcome;
use overhear_session::format::printable;

/// Maximum width of the column of names. A longer name moves its own line only.
const WIDEST_NAME: usize = 48;

/// Lines of text.
#[derive(Debug)]
pub(crate) struct Text {
    coloured: bool,
    first: Option<Timestamp>,
    width: usize,
}

impl Text {
    /// With or without colours for a terminal.
    #[must_use]
    pub(crate) const fn new(coloured: bool) -> Self {
        Self {
            coloured,
            first: None,
            width: 0,
        }
    }

    fn line(&mut self, time: Timestamp, stream: &StreamDescriptor) -> String {
        let name = printable(&stream.sensor_label());
        self.width = self.width.max(name.chars().count().min(WIDEST_NAME));
        let width = self.width;
        format!("{:>14}  {name:<width$}", self.relative(time))
    }

    fn relative(&mut self, time: Timestamp) -> String {
        let first = *self.first.get_or_insert(time);
        // A gap at the very beginning may begin before the first item.
        let (sign, span) = if time < first {
            ('-', first.since(time))
        } else {
            ('+', time.since(first))
        };
        let ns = span.as_ns();
        format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
    }

    fn warn(&self, message: &str) -> String {
        if self.coloured {
            format!("\x1b[1;31m{message}\x1b[0m")
        } else {
            message.to_string()
        }
    }
}

impl Layout for Text {
    fn stream(&mut self, _: &StreamDescriptor, _: &mut Vec<u8>) {}

    fn element(&mut self, element: &ElementView<'_>, out: &mut Vec<u8>) {
        let mut line = self.line(element.time, element.stream);
        for (index, field) in element.stream.schema.fields().iter().enumerate() {
            if field.name == WRITER_FLAGS {
                continue;
            }
            if let Some(value) = element.stream.schema.read(index, element.payload) {
                let value = printable(&value_text(field, value));
                let _ = write!(line, "  {} {value}", printable(&field.name));
                if !["", HEXADECIMAL].contains(&field.unit.as_str()) {
                    let _ = write!(line, " {}", printable(&field.unit));
                }
            }
        }
        out.extend_from_slice(line.trim_end().as_bytes());
        out.push(b'\n');
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap, out: &mut Vec<u8>) {
        let line = self.line(gap.to, stream);
        let what = match gap.missed {
            0 => "-- damaged, an unknown number of elements is missing".to_string(),
            1 => "-- 1 element missed".to_string(),
            more => format!("-- {more} elements missed"),
        };
        let from = self.relative(gap.from.min(gap.to));
        let gap = self.warn(&format!("{what} ({}) since {from}", gap.cause));
        out.extend_from_slice(format!("{line}  {gap}\n").as_bytes());
    }

    /// The command prints notes and the end on standard error.
    fn note(&mut self, _: &str, _: &mut Vec<u8>) {}

    /// The command prints it on standard error.
    fn budget(&mut self, _: &BudgetOutcome, _: &mut Vec<u8>) {}

    fn summary(&mut self, _: &Summary, _: &mut Vec<u8>) {}
}

#[cfg(test)]
mod tests {
    use overhear_event::ElementView;

    use super::{Layout, Text};
    use crate::testing::{at, declared_stream, gap, plain_stream, queue_payload};

    #[test]
    fn lines_show_times_names_fields_with_units_and_gaps() {
        let (queue, job) = (declared_stream(), plain_stream());
        let mut out = Vec::new();
        let mut text = Text::new(false);
        text.gap(&job, &gap(&job, 0, 1, 999_990_000, 1_000_000_000), &mut out);
        text.element(
            &ElementView {
                stream: &queue,
                sequence: 0,
                time: at(1_000_000_100),
                payload: &queue_payload(1200, 0.1, "a\x1b[2Jb"),
            },
            &mut out,
        );
        text.element(
            &ElementView {
                stream: &job,
                sequence: 0,
                time: at(3_500_000_000),
                payload: &(-7_i64).to_ne_bytes(),
            },
            &mut out,
        );
        text.gap(
            &queue,
            &gap(&queue, 1, 12, 1_000_000_100, 4_000_000_000),
            &mut out,
        );
        text.gap(
            &queue,
            &gap(&queue, 13, 0, 4_000_000_000, 4_000_000_000),
            &mut out,
        );
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r#"
        +0.000000000  server(4711)/job  -- 1 element missed (overwritten) since -0.000010000
        +0.000000100  server(4711)/queue#in  wait 1200 ns  load 0.1 %  label a\x1b[2Jb
        +2.500000000  server(4711)/job       number -7
        +3.000000000  server(4711)/queue#in  -- 12 elements missed (overwritten) since +0.000000100
        +3.000000000  server(4711)/queue#in  -- damaged, an unknown number of elements is missing (overwritten) since +3.000000000
        "#);
    }

    #[test]
    fn colours_are_for_gaps_and_only_where_they_are_wanted() {
        let job = plain_stream();
        let mut out = Vec::new();
        Text::new(true).gap(&job, &gap(&job, 0, 2, 0, 1), &mut out);
        assert!(String::from_utf8(out).unwrap().contains("\x1b[1;31m-- 2"));
    }
}
