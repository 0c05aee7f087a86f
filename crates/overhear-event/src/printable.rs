// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names from programs, made safe for terminals, tables and spreadsheets.
//!
//! Names of tasks, ids of sensors, units, texts and host names come from observed programs and
//! other tracers. Some characters change how a display works: control characters start escape
//! sequences of terminals, bidirectional overrides reorder a line, zero-width characters make two
//! names look alike. Output for users shows each of these as an escape: `\x1b` for control
//! characters, `\u{202e}` for others. A backslash is not escaped, so the name itself may look like
//! an escape: JSON has the exact characters.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;

/// Whether a character controls a display instead of being shown.
fn acts_on_display(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with an escape for each character that controls a display, including line ends.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, acts_on_display)
}

/// As [`printable`], of a text in lines: line feeds stay.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && acts_on_display(c))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        let code = u32::from(c);
        // Writing to a string does not fail.
        let _ = match is_escaped(c) {
            false => shown.write_char(c),
            true if code < 0x100 => write!(shown, "\\x{code:02x}"),
            true => write!(shown, "\\u{{{code:x}}}"),
        };
    }
    Cow::Owned(shown)
}

/// A JSON text with `\u` escapes for the characters that control a display. Its value is unchanged:
/// outside strings JSON has no such characters but white space.
#[must_use]
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let acts = |c: char| !c.is_ascii_whitespace() && acts_on_display(c);
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// A cell of comma-separated values, before quoting: [`printable`], with an apostrophe in front if
/// a spreadsheet would take it for a formula. Numbers are unchanged.
#[must_use]
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    let shown = printable(text);
    let is_formula = shown.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
        && shown.parse::<f64>().is_err();
    match is_formula {
        true => Cow::Owned(format!("'{shown}")),
        false => shown,
    }
}

/// A line of comma-separated values [RFC-4180], with its line feed: each cell made safe
/// ([`csv_cell`]), and in quotes if it contains a comma or a quote.
///
/// ```
/// use overhear_event::csv_line;
///
/// assert_eq!(csv_line(["queue", "5", "a,\"b", "=1+1"]), "queue,5,\"a,\"\"b\",'=1+1\n");
/// ```
#[must_use]
pub fn csv_line<T: AsRef<str>>(cells: impl IntoIterator<Item = T>) -> String {
    let mut line = String::new();
    for (index, cell) in cells.into_iter().enumerate() {
        if index > 0 {
            line.push(',');
        }
        let cell = csv_cell(cell.as_ref());
        // `csv_cell` has escaped line ends.
        if cell.contains([',', '"']) {
            line.push('"');
            line.push_str(&cell.replace('"', "\"\""));
            line.push('"');
        } else {
            line.push_str(&cell);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::{csv_cell, csv_line, printable, printable_json, printable_lines};

    #[test]
    fn control_characters_are_escaped() {
        for (name, shown) in [
            ("plain name é 漢 \\ 👍", "plain name é 漢 \\ 👍"),
            ("\x1b]0;PWN\x07", "\\x1b]0;PWN\\x07"),
            ("a\tb\r\nc\0", "a\\x09b\\x0d\\x0ac\\x00"),
            ("\x7f\u{80}\u{9b}31m", "\\x7f\\x80\\x9b31m"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            (
                "\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}",
                "\\u{2066}\\u{2069}\\u{200e}\\u{200f}\\u{61c}",
            ),
            (
                "ro\u{200b}ot\u{feff}\u{2028}\u{2029}",
                "ro\\u{200b}ot\\u{feff}\\u{2028}\\u{2029}",
            ),
            ("tag\u{e0041}", "tag\\u{e0041}"),
        ] {
            assert_eq!(printable(name), shown, "{name:?}");
        }
        assert_eq!(printable_lines("a\nb\r\x1b"), "a\nb\\x0d\\x1b");
    }

    #[test]
    fn json_keeps_its_value() {
        let text = "{\n  \"a\": \"\u{9b}\u{202e}\x7f\u{e0041}é\"\n}\n";
        assert_eq!(
            printable_json(text),
            "{\n  \"a\": \"\\u009b\\u202e\\u007f\\udb40\\udc41é\"\n}\n"
        );
    }

    #[test]
    fn cells_are_no_formulas() {
        for (cell, safe) in [
            ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
            ("@SUM(1)", "'@SUM(1)"),
            ("-bash(42)", "'-bash(42)"),
            ("+1+1", "'+1+1"),
            ("＝1", "'＝1"),
            ("-7", "-7"),
            ("-1.5e-9", "-1.5e-9"),
            ("\t=1", "\\x09=1"),
            ("\r=1", "\\x0d=1"),
            ("a=1", "a=1"),
            ("", ""),
        ] {
            assert_eq!(csv_cell(cell), safe, "{cell:?}");
        }
    }

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        for (cells, line) in [
            (&["plain text", "", "7"][..], "plain text,,7\n"),
            (&["a,b \"c\""], "\"a,b \"\"c\"\"\"\n"),
            (&["a\nb"], "a\\x0ab\n"),
            (&["=a,b"], "\"'=a,b\"\n"),
        ] {
            assert_eq!(csv_line(cells), line);
        }
    }
}
