// SPDX-License-Identifier: MIT OR Apache-2.0
//! How wide lines may be: as wide as they are for files and pipes, as the window for people.

use std::borrow::Cow;
use std::os::fd::AsFd;

/// Windows narrower than this are written to as if they had this many columns: what is arranged for
/// less cannot be read either.
const LEAST: usize = 40;
/// How much further in the later lines of a broken one begin.
const HANGING: usize = 2;

/// The width of what text is written to.
///
/// Only a terminal has one. What goes to a file or a pipe is read by programs, and must not depend
/// on the window somebody happens to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width(Option<usize>);

impl Width {
    /// Lines as long as they are.
    pub(crate) const UNLIMITED: Self = Self(None);

    /// So many columns.
    #[must_use]
    pub(crate) fn columns(columns: usize) -> Self {
        Self(Some(columns.max(LEAST)))
    }

    /// The width of this output: unlimited unless it is a terminal that knows its own.
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

    /// The text with its longer lines broken between words. Later lines of a broken one begin a
    /// little further in than it does. Lines of a configuration stay whole, because they are there
    /// to be copied.
    #[must_use]
    pub(crate) fn wrap(self, text: &str) -> String {
        self.wrap_lines(text.split('\n').map(Cow::Borrowed))
    }

    /// [`Width::wrap`] for lines that come one by one: a long text is in memory but once.
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

    /// One line broken between words; later ones begin after `indent` columns. A word that is
    /// longer than a line stays whole, for the terminal to break.
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
            // The last one that leaves a full line, else the first there is.
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
    fn lines_to_copy_stay_whole() {
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
