// SPDX-License-Identifier: MIT OR Apache-2.0
//! One line of babeltrace2's text: time, event, and fields.
//!
//! `[1700000000.000000017] sched_switch: { cpu_id = 1 }, { prev_comm = "sh", prev_tid = 7, ... }`

use overhear_event::Timestamp;

/// A field of an event. Arrays and structures are passed over.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Foreign {
    /// A whole number, an enumeration's value among them.
    Whole(i128),
    /// A fraction.
    Fraction(f64),
    /// A text.
    Text(String),
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) time: Timestamp,
    pub(super) name: String,
    /// What packet, event header and context say: CPU, process, thread.
    pub(super) context: Vec<(String, Foreign)>,
    /// Its own fields.
    pub(super) payload: Vec<(String, Foreign)>,
}

impl Event {
    /// Reads a line; `None` if it is no event.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (time, rest) = line.strip_prefix('[')?.split_once("] ")?;
        let time = seconds(time)?;
        let (name, groups) = rest.split_once(": ")?;
        let mut cursor = Cursor(groups);
        let mut all: Vec<Vec<(String, Foreign)>> = Vec::new();
        loop {
            all.push(cursor.group()?);
            if !cursor.take(", ") {
                break;
            }
        }
        let payload = all.pop()?;
        Some(Self {
            time,
            name: name.to_owned(),
            context: all.concat(),
            payload,
        })
    }

    /// A whole number of this name, in the payload or the context.
    pub(super) fn whole(&self, name: &str) -> Option<i128> {
        match find(&self.payload, name).or_else(|| find(&self.context, name))? {
            Foreign::Whole(value) => Some(*value),
            _ => None,
        }
    }

    /// A text of this name, in the payload or the context.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match find(&self.payload, name).or_else(|| find(&self.context, name))? {
            Foreign::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn find<'a>(fields: &'a [(String, Foreign)], name: &str) -> Option<&'a Foreign> {
    let mut fields = fields.iter();
    fields.find_map(|(known, value)| (known == name).then_some(value))
}

/// Seconds with nine decimals.
pub(super) fn seconds(text: &str) -> Option<Timestamp> {
    let (whole, decimals) = text.split_once('.')?;
    let (whole, nanos): (u64, u64) = (whole.parse().ok()?, decimals.parse().ok()?);
    if decimals.len() != 9 {
        return None;
    }
    let ns = whole.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    Some(Timestamp::from_monotonic_ns(ns))
}

struct Cursor<'a>(&'a str);

impl Cursor<'_> {
    fn take(&mut self, text: &str) -> bool {
        match self.0.strip_prefix(text) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// `{ name = value, ... }`, or `{ }`.
    fn group(&mut self) -> Option<Vec<(String, Foreign)>> {
        let mut fields = Vec::new();
        if !self.take("{ ") {
            return None;
        }
        while !self.take("}") {
            let (name, rest) = self.0.split_once(" = ")?;
            let name = name.to_owned();
            self.0 = rest;
            if let Some(value) = self.value()? {
                fields.push((name, value));
            }
            if !self.take(", ") && !self.take(" ") {
                return None;
            }
        }
        Some(fields)
    }

    /// A value; inside is `None` for what is passed over.
    fn value(&mut self) -> Option<Option<Foreign>> {
        match self.0.chars().next()? {
            '"' => self.quoted().map(|text| Some(Foreign::Text(text))),
            // `( "NAME" : container = 5 )`: the number is what counts.
            '(' => {
                let inside = self.balanced()?;
                let (_, value) = inside.rsplit_once("container = ")?;
                Some(number(value.trim_end_matches([')', ' '])))
            }
            '[' | '{' => self.balanced().map(|_| None),
            _ => {
                let end = self.0.find([',', ' ']).unwrap_or(self.0.len());
                let (word, rest) = self.0.split_at(end);
                self.0 = rest;
                Some(number(word))
            }
        }
    }

    fn quoted(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.0.char_indices().skip(1);
        while let Some((at, c)) = characters.next() {
            match c {
                '"' => {
                    self.0 = &self.0[at + 1..];
                    return Some(text);
                }
                '\\' => text.push(match characters.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    other => other,
                }),
                c => text.push(c),
            }
        }
        None
    }

    /// Everything up to the bracket that closes the first one; brackets in texts do not count.
    fn balanced(&mut self) -> Option<String> {
        let whole = self.0;
        let mut depth = 0_u32;
        while let Some(c) = self.0.chars().next() {
            match c {
                '"' => {
                    self.quoted()?;
                    continue;
                }
                '[' | '{' | '(' => depth += 1,
                ']' | '}' | ')' => depth -= 1,
                _ => {}
            }
            self.0 = &self.0[c.len_utf8()..];
            if depth == 0 {
                return Some(whole[..whole.len() - self.0.len()].to_owned());
            }
        }
        None
    }
}

fn number(word: &str) -> Option<Foreign> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, word),
    };
    let whole = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    };
    match whole {
        Some(whole) => Some(Foreign::Whole(sign * whole)),
        None => word.parse().ok().map(Foreign::Fraction),
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Timestamp;

    use super::{Event, Foreign};

    #[test]
    fn every_kind_of_value_is_read_or_passed_over() {
        let line = r#"[1700000000.000000017] a:b: { cpu_id = 1 }, { vpid = 5 }, { n = -3, x = 0xFF, f = 1.5, t = "a \"b\", } {", e = ( "RUN" : container = 2 ), a = [ [0] = 1, [1] = "]" ], s = { q = 1 }, z = 9 }"#;
        let event = Event::parse(line).unwrap();
        assert_eq!(
            event.time,
            Timestamp::from_monotonic_ns(1_700_000_000_000_000_017)
        );
        assert_eq!(event.name, "a:b");
        assert_eq!(
            (event.whole("cpu_id"), event.whole("vpid")),
            (Some(1), Some(5))
        );
        let names: Vec<&str> = event
            .payload
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["n", "x", "f", "t", "e", "z"]);
        assert_eq!((event.whole("n"), event.whole("x")), (Some(-3), Some(255)));
        assert_eq!((event.whole("e"), event.whole("z")), (Some(2), Some(9)));
        assert_eq!(event.payload[2].1, Foreign::Fraction(1.5));
        assert_eq!(event.text("t"), Some("a \"b\", } {"));
        let empty = Event::parse("[1.000000000] start: { cpu_id = 1 }, { }").unwrap();
        assert!(empty.payload.is_empty());
        for bad in [
            "",
            "x",
            "[1.5] a: { }",
            "[1.000000000] a: { n = ",
            "[1.000000000] a: { t = \"b",
        ] {
            assert_eq!(Event::parse(bad), None, "{bad}");
        }
    }
}
