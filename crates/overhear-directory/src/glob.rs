// SPDX-License-Identifier: MIT OR Apache-2.0
//! Globs over names, with a bound on what a match costs.
//!
//! Patterns and names come from other processes, so the worst case counts and not the average. A
//! match goes through the pattern once, with the set of positions in the name that the pattern can
//! have reached so far, one bit each. So it takes at most (characters of the pattern) x (characters
//! of the name) steps and allocates nothing. A compiled pattern takes some bytes per character.
//!
//! | pattern | matches |
//! |---|---|
//! | `*` | any characters, `/` included |
//! | `?` | one character |
//! | `[abc]`, `[a-c]`, `[!a]`, `[^a]` | one character of the set, or outside of it |
//! | `{this,that}` | one of the alternatives, which are patterns |
//! | `\*` | the character itself |

/// Maximum nesting of alternatives. It bounds the recursion of a match.
const MAX_DEPTH: u32 = 8;
/// Words of the position set for names of sensors, which have at most 128 bytes.
const SHORT_WORDS: usize = 3;
/// The same for any other name; a longer one matches nothing.
const LONG_WORDS: usize = 128;

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    parts: Box<[Part]>,
    // Parts in all alternatives together.
    size: u32,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    AnyChar,
    AnyChars,
    Set {
        negated: bool,
        ranges: Box<[(char, char)]>,
    },
    Alternatives(Box<[Box<[Part]>]>),
}

/// Why a pattern is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GlobError {
    #[error("a `[` has no `]`")]
    OpenSet,
    #[error("a set like `[z-a]` is empty; write the smaller character first")]
    EmptyRange,
    #[error("a `{{` has no `}}`")]
    OpenAlternatives,
    #[error("a `}}` has no `{{`")]
    UnopenedAlternatives,
    #[error("alternatives are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("it ends with a `\\`")]
    DanglingEscape,
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Result<Self, GlobError> {
        let mut parser = Parser {
            rest: pattern.chars(),
            size: 0,
        };
        let (parts, end) = parser.sequence(0)?;
        match end {
            End::Text => Ok(Self {
                parts,
                size: parser.size,
            }),
            End::Comma | End::Brace => Err(GlobError::UnopenedAlternatives),
        }
    }

    /// Upper bound of the heap that it takes, in bytes.
    pub(crate) fn heap_bytes(&self) -> u64 {
        heap_bytes(&self.parts)
    }

    /// Upper bound of the work of a match, in pattern parts.
    pub(crate) const fn cost(&self) -> u32 {
        self.size
    }

    pub(crate) fn is_match(&self, name: &str) -> bool {
        // A character is at least a byte.
        if name.len() < SHORT_WORDS * 64 {
            self.matches_in::<SHORT_WORDS>(name)
        } else if name.len() < LONG_WORDS * 64 {
            self.matches_in::<LONG_WORDS>(name)
        } else {
            false
        }
    }

    fn matches_in<const WORDS: usize>(&self, name: &str) -> bool {
        let mut reached = Positions::<WORDS>([0; WORDS]);
        reached.insert(0);
        let reached = run(&self.parts, reached, name.as_bytes());
        reached.contains(name.len())
    }
}

/// The positions in a name that are reachable after all parts.
fn run<const WORDS: usize>(
    parts: &[Part],
    mut reached: Positions<WORDS>,
    name: &[u8],
) -> Positions<WORDS> {
    for part in parts {
        if reached.is_empty() {
            return reached;
        }
        reached = match part {
            Part::Char(wanted) => reached.step(name, |found| found == *wanted),
            Part::AnyChar => reached.step(name, |_| true),
            Part::AnyChars => reached.onwards(name),
            Part::Set { negated, ranges } => reached.step(name, |found| {
                let within = |&(from, to): &(char, char)| (from..=to).contains(&found);
                ranges.iter().any(within) != *negated
            }),
            Part::Alternatives(all) => {
                let mut united = Positions([0; WORDS]);
                for parts in all {
                    united.unite(&run(parts, reached, name));
                }
                united
            }
        };
    }
    reached
}

/// Positions in a name: offsets of bytes at which a character begins, and the end.
#[derive(Clone, Copy)]
struct Positions<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Positions<WORDS> {
    fn insert(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }

    fn contains(&self, position: usize) -> bool {
        self.0[position / 64] >> (position % 64) & 1 == 1
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn unite(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// The positions after one accepted character.
    fn step(self, name: &[u8], accepts: impl Fn(char) -> bool) -> Self {
        let mut behind = Self([0; WORDS]);
        for (index, word) in self.0.into_iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let position = index * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if let Some((found, length)) = char_at(name, position) {
                    if accepts(found) {
                        behind.insert(position + length);
                    }
                }
            }
        }
        behind
    }

    /// The first position and all after it.
    fn onwards(self, name: &[u8]) -> Self {
        let mut all = self;
        let words = self.0.iter().enumerate();
        let first = words.filter(|(_, word)| **word != 0).map(|(index, word)| {
            let bit = word.trailing_zeros() as usize;
            index * 64 + bit
        });
        let mut position = first.min().unwrap_or(name.len());
        all.insert(position);
        while let Some((_, length)) = char_at(name, position) {
            position += length;
            all.insert(position);
        }
        all
    }
}

/// The character at a position, and its length in bytes; `None` at the end.
fn char_at(name: &[u8], position: usize) -> Option<(char, usize)> {
    let first = *name.get(position)?;
    if first.is_ascii() {
        return Some((char::from(first), 1));
    }
    let length = match first {
        0xF0.. => 4,
        0xE0.. => 3,
        _ => 2,
    };
    let bytes = name.get(position..position + length)?;
    let text = std::str::from_utf8(bytes).ok()?;
    text.chars().next().map(|found| (found, length))
}

fn heap_bytes(parts: &[Part]) -> u64 {
    // Bytes that an allocator adds to an allocation.
    const ALLOCATION_OVERHEAD_BYTES: u64 = 32;
    let own = ALLOCATION_OVERHEAD_BYTES + size_of_val(parts) as u64;
    let each = parts.iter().map(|part| match part {
        Part::Set { ranges, .. } => ALLOCATION_OVERHEAD_BYTES + size_of_val(&**ranges) as u64,
        Part::Alternatives(all) => {
            let inner: u64 = all.iter().map(|parts| heap_bytes(parts)).sum();
            ALLOCATION_OVERHEAD_BYTES + size_of_val(&**all) as u64 + inner
        }
        _ => 0,
    });
    own + each.sum::<u64>()
}

/// The token that ended a sequence of parts.
enum End {
    Text,
    Comma,
    Brace,
}

struct Parser<'a> {
    rest: std::str::Chars<'a>,
    size: u32,
}

impl Parser<'_> {
    fn sequence(&mut self, depth: u32) -> Result<(Box<[Part]>, End), GlobError> {
        let mut parts = Vec::new();
        while let Some(next) = self.rest.next() {
            let part = match next {
                // Several in a row match like one.
                '*' if parts.last() == Some(&Part::AnyChars) => continue,
                '*' => Part::AnyChars,
                '?' => Part::AnyChar,
                '[' => self.set()?,
                '{' => self.alternatives(depth)?,
                '}' => return Ok((parts.into(), End::Brace)),
                ',' if depth > 0 => return Ok((parts.into(), End::Comma)),
                '\\' => Part::Char(self.rest.next().ok_or(GlobError::DanglingEscape)?),
                other => Part::Char(other),
            };
            self.size += 1;
            parts.push(part);
        }
        Ok((parts.into(), End::Text))
    }

    fn alternatives(&mut self, depth: u32) -> Result<Part, GlobError> {
        if depth == MAX_DEPTH {
            return Err(GlobError::TooDeep);
        }
        let mut all = Vec::new();
        loop {
            let (parts, end) = self.sequence(depth + 1)?;
            all.push(parts);
            match end {
                End::Comma => {}
                End::Brace => return Ok(Part::Alternatives(all.into())),
                End::Text => return Err(GlobError::OpenAlternatives),
            }
        }
    }

    /// Parses a set after its `[`. A `]` at the beginning belongs to the set, and so does a `-` at
    /// either end.
    fn set(&mut self) -> Result<Part, GlobError> {
        let mut next = self.rest.next().ok_or(GlobError::OpenSet)?;
        let negated = matches!(next, '!' | '^');
        if negated {
            next = self.rest.next().ok_or(GlobError::OpenSet)?;
        }
        let mut ranges = Vec::new();
        loop {
            let mut ahead = self.rest.clone();
            let to = match (ahead.next(), ahead.next()) {
                (Some('-'), Some(to)) if to != ']' => {
                    self.rest = ahead;
                    to
                }
                _ => next,
            };
            if to < next {
                return Err(GlobError::EmptyRange);
            }
            ranges.push((next, to));
            self.size += 1;
            next = self.rest.next().ok_or(GlobError::OpenSet)?;
            if next == ']' {
                return Ok(Part::Set {
                    negated,
                    ranges: ranges.into(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use globset::GlobBuilder;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest, ProptestConfig};
    use proptest::string::string_regex;

    use super::{Glob, GlobError};

    fn is_match(pattern: &str, name: &str) -> bool {
        Glob::new(pattern).unwrap().is_match(name)
    }

    #[test]
    fn each_part_matches_what_the_table_says() {
        let matching = [
            ("", ""),
            ("*", ""),
            ("*", "net/queue"),
            ("a*c", "ac"),
            ("a**c", "abbc"),
            ("?", "é"),
            ("[à-ÿ]x", "éx"),
            ("[]a]", "]"),
            ("[a-]", "-"),
            ("[!a-c]", "d"),
            ("[^\u{e9}]", "e"),
            ("{a,b*}c", "bbbc"),
            ("{a,{b,c}d}", "cd"),
            ("{,a}b", "b"),
            ("a,b", "a,b"),
            (r"\*\{\\", r"*{\"),
            ("{a,b}{c,d}{e,f}", "bce"),
        ];
        for (pattern, name) in matching {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        let others = [
            ("", "a"),
            ("?", ""),
            ("??", "é"),
            ("[abc]", "d"),
            ("[!a]", "a"),
            ("a*c", "abd"),
            ("{a,b}", "ab"),
            ("queue", "queues"),
        ];
        for (pattern, name) in others {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
        let long = "a".repeat(8_000);
        assert!(is_match("*a", &long) && !is_match("*b", &long));
        assert!(!is_match("*", &"a".repeat(10_000)), "too long for a name");
    }

    #[test]
    fn texts_that_are_no_patterns_are_refused() {
        let nested = "{".repeat(9) + &"}".repeat(9);
        for (pattern, error) in [
            ("[", GlobError::OpenSet),
            ("[!", GlobError::OpenSet),
            ("[]", GlobError::OpenSet),
            ("[z-a]", GlobError::EmptyRange),
            ("{a", GlobError::OpenAlternatives),
            ("{a,{b}", GlobError::OpenAlternatives),
            ("a}", GlobError::UnopenedAlternatives),
            ("a\\", GlobError::DanglingEscape),
            (nested.as_str(), GlobError::TooDeep),
        ] {
            assert_eq!(Glob::new(pattern), Err(error), "{pattern}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The reference is the crate `glob`. It treats `**` between slashes, and characters of
        /// several bytes, in its own way, so neither occurs here.
        #[test]
        fn matches_are_those_of_an_independent_matcher(
            pattern in string_regex(r"([ab/]|\*|\?|\[!?[abc](-c)?\]|\{[ab*]{0,2}(,[?b]{0,2}){0,2}\}|\\\*){0,8}").unwrap(),
            names in proptest::collection::vec(string_regex(r"[abc*/]{0,6}").unwrap(), 1..8),
        ) {
            let mut pattern = pattern;
            while pattern.contains("**") {
                pattern = pattern.replace("**", "*");
            }
            let reference = GlobBuilder::new(&pattern)
                .literal_separator(false)
                .backslash_escape(true)
                .empty_alternates(true)
                .build();
            let own = Glob::new(&pattern);
            prop_assert_eq!(own.is_ok(), reference.is_ok(), "{}", pattern);
            if let (Ok(own), Ok(reference)) = (own, reference) {
                let reference = reference.compile_matcher();
                for name in names {
                    prop_assert_eq!(own.is_match(&name), reference.is_match(&name), "{} {}", pattern, name);
                }
            }
        }

        /// Any pattern ends its match within its cost, and takes no more heap than it states.
        #[test]
        fn any_text_is_bounded(pattern in "\\PC{0,120}", name in "\\PC{0,120}") {
            if let Ok(glob) = Glob::new(&pattern) {
                glob.is_match(&name);
                prop_assert!(u64::from(glob.cost()) <= pattern.len() as u64 + 1);
                prop_assert!(glob.heap_bytes() <= 64 * (pattern.len() as u64 + 2));
            }
        }
    }
}
