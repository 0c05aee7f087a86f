// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maximum width of lines: that of the window on a terminal, unlimited in files and pipes.

use std::borrow::Cow;
use std::os::fd::AsFd;

/// Minimum number of columns. For a narrower window the text is arranged as for this many columns:
/// with fewer it could not be read either.
const LEAST: usize = 40;
/// Indentation of the later lines of a broken line.
const HANGING: usize = 2;

/// The width of an output.
///
/// Only a terminal has a width. Files and pipes are read by programs, and must not depend on the
/// size of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width(Option<usize>);

impl Width {
    /// Lines are not broken.
    pub(crate) const UNLIMITED: Self = Self(None);

    /// Number of columns.
    #[must_use]
    pub(crate) fn columns(columns: usize) -> Self {
        Self(Some(columns.max(LEAST)))
    }

    /// The width of this output: unlimited unless it is a terminal with a known width.
    #[must_use]
    pub(crate) fn of(output: impl AsFd) -> Self {
        match rustix::termios::tcgetwinsize(output) {
            Ok(size) if size.ws_col > 0 => Self::columns(size.ws_col.into()),
            _ => Self::UNLIMITED,
        }
    }

    pub(crate) const fn limit(self) -> Option<usize> {
        self.0
    }

    /// The text with its longer lines broken between words. The later lines of a broken line are
    /// indented. Lines of a configuration are not broken, because users copy them.
    #[must_use]
    pub(crate) fn wrap(self, text: &str) -> String {
        self.wrap_lines(text.split('\n').map(Cow::Borrowed))
    }

    /// [`Width::wrap`] for single lines, so that a long text is in memory only once.
    pub(crate) fn wrap_lines<'a>(self, lines: impl Iterator<Item = Cow<'a, str>>) -> String {
        let mut text = String::new();
        for (number, line) in lines.enumerate() {
            if number > 0 {
                text.push('\n');
            }
            if is_configuration(&line) || self.0.is_none() {
                text.push_str(&line);
                continue;
            }
            let indent = line.len() - line.trim_start_matches(' ').len();
            text.push_str(&self.wrap_line(&line, indent + HANGING));
        }
        text
    }

    /// A line broken between words; later lines begin after `indent` columns. A word that is longer
    /// than a line is not broken here, but by the terminal.
    pub(crate) fn wrap_line(self, line: &str, indent: usize) -> String {
        let Some(limit) = self.0 else {
            return line.to_string();
        };
        let indent = indent.min(limit / 2);
        let (mut text, mut rest, mut room) = (String::new(), line, limit);
        while rest.chars().count() > room {
            let begin = rest.len() - rest.trim_start_matches(' ').len();
            let spaces = rest.char_indices().enumerate();
            let mut spaces = spaces.filter(|&(_, (at, c))| c == ' ' && at > begin);
            // The last position within the width, else the first one.
            let mut cut = None;
            for (column, (at, _)) in spaces.by_ref() {
                if cut.is_some() && column > room {
                    break;
                }
                cut = Some(at);
            }
            let Some(cut) = cut else { break };
            text.push_str(rest[..cut].trim_end_matches(' '));
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            rest = rest[cut..].trim_start_matches(' ');
            room = limit - indent;
        }
        text + rest
    }
}

/// Whether this is a comment, an assignment or the head of a table, as in `overhear.toml`.
fn is_configuration(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with(['#', '[']) || line.split_whitespace().nth(1) == Some("=")
}

#[cfg(test)]
mod tests {
    use super::Width;

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = "note: the quick brown fox jumps over the lazy dog, twice\n  \
                    - and then one more time, because it can, and may\nshort";
        insta::assert_snapshot!(Width::columns(40).wrap(text), @r"
        note: the quick brown fox jumps over the
          lazy dog, twice
          - and then one more time, because it
            can, and may
        short
        ");
        assert_eq!(Width::UNLIMITED.wrap(text), text);
        let long = format!("at {} end", "x".repeat(50));
        assert_eq!(
            Width::columns(3).wrap(&long),
            format!("at\n  {}\n  end", "x".repeat(50))
        );
        for width in 40..70 {
            let wrapped = Width::columns(width).wrap(text);
            assert!(wrapped.lines().all(|line| line.chars().count() <= width));
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&wrapped), words(text));
        }
    }

    #[test]
    fn lines_to_copy_are_not_broken() {
        let text =
            "  period = \"1000000 ns\"                # T, as it was found in the recording\n\
                    # a comment that is longer than the forty columns of this window\n";
        assert_eq!(Width::columns(40).wrap(text), text);
    }

    #[test]
    fn files_have_no_width() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Width::of(&file), Width::UNLIMITED);
    }
}
