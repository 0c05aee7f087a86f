// SPDX-License-Identifier: MIT OR Apache-2.0
//! From text to a specification. The grammar is in `docs/metrics.md`; one statement per line.

use std::str::FromStr;

use overhear_event::EventName;

use super::fault::{Fault, SpecificationError};
use super::specification::{
    Condition, Constant, Key, Label, Place, Relation, Specification, State, StateKind, Symbol,
    TaskOf, Transition, Whose, Word,
};

impl FromStr for Specification {
    type Err = SpecificationError;

    /// Reads a specification: the words and their order, not yet whether they make sense.
    ///
    /// # Errors
    /// [`SpecificationError`] at the first word that does not fit.
    fn from_str(text: &str) -> Result<Self, SpecificationError> {
        let mut name = None;
        let mut specification = Self {
            name: Word::new(""),
            description: String::new(),
            symbols: Vec::new(),
            key: None,
            states: Vec::new(),
            transitions: Vec::new(),
        };
        // Some editors begin a file with a mark that is no part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            let mut line = Line::new(line, number)?;
            if line.is_at_end() {
                continue;
            }
            let first = line.name("`metric`, `event`, `by`, `state` or a state's name")?;
            // A state may bear the name of a statement: the arrow tells.
            if line.take(&Token::Arrow) {
                specification.transitions.push(line.transition(first)?);
            } else {
                match first.text.as_str() {
                    "metric" => {
                        let word = line.name("the metric's name")?;
                        once("metric", name.as_ref(), &word)?;
                        specification.description = line.optional_text();
                        name = Some(word);
                    }
                    "event" => specification.symbols.push(line.symbol()?),
                    "by" => {
                        let symbol = line.name("an event's name")?;
                        once(
                            "by",
                            specification.key.as_ref().map(|key| &key.symbol),
                            &symbol,
                        )?;
                        line.expect(&Token::Dot, "`.` and a field")?;
                        let field = line.name("a field's name")?;
                        specification.key = Some(Key { symbol, field });
                    }
                    "state" => specification.states.push(line.state()?),
                    _ => return Err(line.unexpected("`->` after a state's name")),
                }
            }
            if !line.is_at_end() {
                return Err(line.unexpected("the end of the line"));
            }
        }
        specification.name =
            name.ok_or_else(|| Fault::Nameless.at(Place { line: 1, column: 1 }))?;
        Ok(specification)
    }
}

/// Reads what stands behind `event NAME =` by itself.
pub(super) fn symbol_alone(text: &str) -> Result<Symbol, SpecificationError> {
    let mut line = Line::new(text, 1)?;
    let symbol = line.pattern(Word::new("event"))?;
    match line.is_at_end() {
        true => Ok(symbol),
        false => Err(line.unexpected("the end of the text")),
    }
}

fn once(what: &'static str, first: Option<&Word>, again: &Word) -> Result<(), SpecificationError> {
    first.map_or(Ok(()), |first| {
        Err(Fault::Twice {
            what,
            name: again.text.clone(),
            first: first.at.line,
        }
        .at(again.at))
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    /// `kernel:sched_switch`, `user:"my sensor"`.
    Source(String, String),
    Arrow,
    Colon,
    Comma,
    Dot,
    Star,
    Lambda,
    Assign,
    Equal,
    Unequal,
    Open,
    Close,
}

impl Token {
    fn describe(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Text(text) => format!("\"{text}\""),
            Self::Source(kind, sensor) => format!("`{kind}:{sensor}`"),
            Self::Arrow => "`->`".into(),
            Self::Colon => "`:`".into(),
            Self::Comma => "`,`".into(),
            Self::Dot => "`.`".into(),
            Self::Star => "`*`".into(),
            Self::Lambda => "`lambda`".into(),
            Self::Assign => "`=`".into(),
            Self::Equal => "`==`".into(),
            Self::Unequal => "`!=`".into(),
            Self::Open => "`[`".into(),
            Self::Close => "`]`".into(),
        }
    }
}

/// One line as tokens with their places, and how far it has been read.
struct Line {
    tokens: Vec<(Token, Place)>,
    next: usize,
    end: Place,
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

const fn is_sensor(c: char) -> bool {
    is_name(c) || matches!(c, '-' | '.' | '/')
}

/// Whether a sensor's id can be written without quotes.
pub(super) fn is_plain_sensor(sensor: &str) -> bool {
    !sensor.is_empty() && sensor.chars().all(is_sensor)
}

impl Line {
    fn new(line: &str, number: u32) -> Result<Self, SpecificationError> {
        let characters: Vec<char> = line.chars().collect();
        let place = |index: usize| Place {
            line: number,
            column: u32::try_from(index + 1).unwrap_or(u32::MAX),
        };
        let (mut tokens, mut at) = (Vec::new(), 0);
        while let Some(&c) = characters.get(at) {
            let (start, next) = (at, characters.get(at + 1).copied());
            at += 1;
            let token = match (c, next) {
                ('#', _) => break,
                (c, _) if c.is_whitespace() => continue,
                ('-', Some('>')) => Token::Arrow,
                ('=', Some('=')) => Token::Equal,
                ('!', Some('=')) => Token::Unequal,
                ('=', _) => Token::Assign,
                (':', _) => Token::Colon,
                (',', _) => Token::Comma,
                ('.', _) => Token::Dot,
                ('*', _) => Token::Star,
                ('λ', _) => Token::Lambda,
                ('[', _) => Token::Open,
                (']', _) => Token::Close,
                ('"', _) => Token::Text(quoted(&characters, &mut at, place(start))?),
                (c, _) if is_name(c) => {
                    while characters.get(at).copied().is_some_and(is_name) {
                        at += 1;
                    }
                    let name: String = characters[start..at].iter().collect();
                    let kind = matches!(name.as_str(), "kernel" | "user" | "clerk");
                    if kind && characters.get(at) == Some(&':') {
                        at += 1;
                        let begin = place(at);
                        Token::Source(name, sensor(&characters, &mut at, begin)?)
                    } else if name == "lambda" {
                        Token::Lambda
                    } else {
                        Token::Name(name)
                    }
                }
                (c, _) => {
                    return Err(Fault::Syntax {
                        expected: "a name, a number or a sign of the grammar".into(),
                        found: format!("`{c}`"),
                    }
                    .at(place(start)))
                }
            };
            if matches!(token, Token::Arrow | Token::Equal | Token::Unequal) {
                at += 1;
            }
            tokens.push((token, place(start)));
        }
        Ok(Self {
            tokens,
            next: 0,
            end: place(characters.len()),
        })
    }

    fn is_at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(token, _)| token)
    }

    fn at(&self) -> Place {
        self.tokens.get(self.next).map_or(self.end, |(_, at)| *at)
    }

    fn unexpected(&self, expected: &str) -> SpecificationError {
        let found = self
            .peek()
            .map_or_else(|| "the end of the line".into(), Token::describe);
        Fault::Syntax {
            expected: expected.into(),
            found,
        }
        .at(self.at())
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(name)) if name == word);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, token: &Token, expected: &str) -> Result<(), SpecificationError> {
        if self.take(token) {
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    fn name(&mut self, expected: &str) -> Result<Word, SpecificationError> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let word = Word {
                    text: name.clone(),
                    at: self.at(),
                };
                self.next += 1;
                Ok(word)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    fn optional_text(&mut self) -> String {
        match self.peek() {
            Some(Token::Text(text)) => {
                let text = text.clone();
                self.next += 1;
                text
            }
            _ => String::new(),
        }
    }

    fn symbol(&mut self) -> Result<Symbol, SpecificationError> {
        let name = self.name("the event's name")?;
        self.expect(&Token::Assign, "`=`")?;
        self.pattern(name)
    }

    /// What stands behind `event NAME =`.
    fn pattern(&mut self, name: Word) -> Result<Symbol, SpecificationError> {
        let source_at = self.at();
        let source = match self.peek() {
            Some(Token::Source(kind, sensor)) => match kind.as_str() {
                "kernel" => EventName::kernel(sensor),
                "user" => EventName::user(sensor),
                _ => EventName::clerk(sensor),
            },
            _ => return Err(self.unexpected("`kernel:HOOK`, `user:SENSOR` or `clerk:SENSOR`")),
        };
        self.next += 1;
        let mut conditions = Vec::new();
        if self.take(&Token::Open) {
            loop {
                conditions.push(self.condition()?);
                if !self.take_word("and") {
                    break;
                }
            }
            self.expect(&Token::Close, "`and` or `]`")?;
        }
        let task = if self.take_word("task") {
            match self.name("a field's name, or `none`")? {
                word if word.text == "none" => TaskOf::Nobody,
                word => TaskOf::Field(word),
            }
        } else {
            TaskOf::Writer
        };
        let ago = if self.take_word("ago") {
            Some(self.name("a field's name")?)
        } else {
            None
        };
        Ok(Symbol {
            name,
            source,
            source_at,
            conditions,
            task,
            ago,
        })
    }

    fn condition(&mut self) -> Result<Condition, SpecificationError> {
        let field = self.name("a field's name")?;
        let relation = match self.peek() {
            Some(Token::Equal) => Relation::Equal,
            Some(Token::Unequal) => Relation::Unequal,
            Some(Token::Name(name)) if name == "has" => Relation::Has,
            Some(Token::Name(name)) if name == "lacks" => Relation::Lacks,
            _ => return Err(self.unexpected("`==`, `!=`, `has` or `lacks`")),
        };
        self.next += 1;
        let constant_at = self.at();
        let constant = match self.peek() {
            Some(Token::Text(text)) => Constant::Text(text.clone()),
            Some(Token::Name(name)) => match number(name) {
                Some(value) => Constant::Number(value),
                None => return Err(self.unexpected("a number or a \"text\"")),
            },
            _ => return Err(self.unexpected("a number or a \"text\"")),
        };
        self.next += 1;
        Ok(Condition {
            field,
            relation,
            constant,
            constant_at,
        })
    }

    fn state(&mut self) -> Result<State, SpecificationError> {
        let name = self.name("the state's name")?;
        let kinds = "`begin`, `end`, `cancel`, `in`, `out` or `cond`";
        let kind = match self.peek() {
            Some(Token::Name(word)) => StateKind::ALL.into_iter().find(|kind| kind.name() == word),
            _ => None,
        };
        let kind = kind.ok_or_else(|| self.unexpected(kinds))?;
        self.next += 1;
        Ok(State { name, kind })
    }

    fn transition(&mut self, from: Word) -> Result<Transition, SpecificationError> {
        let to = self.name("a state's name")?;
        self.expect(&Token::Colon, "`:` and a label")?;
        let label_at = self.at();
        let label = if self.take(&Token::Lambda) {
            Label::Lambda
        } else if self.take(&Token::Star) {
            Label::Any
        } else {
            let symbol = self.name("an event's name, `lambda` or `*`")?;
            let whose = if !self.take(&Token::Comma) {
                Whose::Anyone
            } else if self.take_word("i") {
                Whose::Own
            } else if self.take_word("not") && self.take_word("i") {
                Whose::Other
            } else {
                return Err(self.unexpected("`i` or `not i`"));
            };
            Label::Symbol(symbol, whose)
        };
        Ok(Transition {
            from,
            to,
            label,
            label_at,
        })
    }
}

/// A number in decimal or, after `0x`, in hexadecimal digits.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// The rest of a text behind its opening quote; `\"` and `\\` stand for themselves, `\n` for a new
/// line.
fn quoted(characters: &[char], at: &mut usize, start: Place) -> Result<String, SpecificationError> {
    let mut text = String::new();
    while let Some(&c) = characters.get(*at) {
        *at += 1;
        match c {
            '"' => return Ok(text),
            '\\' => {
                text.extend(
                    characters
                        .get(*at)
                        .map(|&c| if c == 'n' { '\n' } else { c }),
                );
                *at += 1;
            }
            c => text.push(c),
        }
    }
    Err(Fault::Syntax {
        expected: "`\"` at the end of this text".into(),
        found: "the end of the line".into(),
    }
    .at(start))
}

fn sensor(characters: &[char], at: &mut usize, start: Place) -> Result<String, SpecificationError> {
    if characters.get(*at) == Some(&'"') {
        *at += 1;
        return quoted(characters, at, start);
    }
    let begin = *at;
    while characters.get(*at).copied().is_some_and(is_sensor) {
        *at += 1;
    }
    if begin == *at {
        return Err(Fault::Syntax {
            expected: "the name of a sensor or hook".into(),
            found: characters
                .get(*at)
                .map_or_else(|| "the end of the line".into(), |c| format!("`{c}`")),
        }
        .at(start));
    }
    Ok(characters[begin..*at].iter().collect())
}
