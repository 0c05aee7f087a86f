// SPDX-License-Identifier: MIT OR Apache-2.0
//! From text to a specification, one statement per line. The grammar is in `docs/metrics.md`.

use std::borrow::Cow;
use std::str::FromStr;

use overhear_event::EventName;

use super::fault::{Fault, SpecificationError};
use super::specification::{
    Condition, Constant, Key, Label, Ownership, Relation, Specification, State, StateKind, Symbol,
    TaskOf, TextPosition, Transition, Word,
};

impl FromStr for Specification {
    type Err = SpecificationError;

    /// Parses a specification: the words and their order, without checking what they mean.
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
        // Some editors begin a file with a byte-order mark that is not part of the text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut line = Line::default();
        for (index, written) in text.lines().enumerate() {
            line.read(written, u32::try_from(index + 1).unwrap_or(u32::MAX))?;
            if line.is_at_end() {
                continue;
            }
            let first = line.name("`metric`, `event`, `by`, `state` or a state's name")?;
            // A state may have the name of a statement: the arrow decides.
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
            name.ok_or_else(|| Fault::Nameless.at(TextPosition { line: 1, column: 1 }))?;
        Ok(specification)
    }
}

/// Parses the right side of `event NAME =` by itself.
pub(crate) fn symbol_alone(text: &str) -> Result<Symbol, SpecificationError> {
    let mut line = Line::default();
    line.read(text, 1)?;
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
enum Token<'a> {
    Name(&'a str),
    Text(Cow<'a, str>),
    /// `kernel:sched_switch`, `user:"my sensor"`.
    Source(&'a str, Cow<'a, str>),
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

impl Token<'_> {
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

/// One line as tokens with their places, and the number of tokens that were read.
#[derive(Default)]
struct Line<'a> {
    text: &'a str,
    number: u32,
    tokens: Vec<(Token<'a>, TextPosition)>,
    next: usize,
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

const fn is_sensor(c: char) -> bool {
    is_name(c) || matches!(c, '-' | '.' | '/' | ':' | '+')
}

/// Whether a sensor's id can be written without quotes. The parser accepts more, with balanced
/// brackets.
pub(crate) fn is_plain_sensor(sensor: &str) -> bool {
    !sensor.is_empty() && sensor.chars().all(is_sensor)
}

impl<'a> Line<'a> {
    /// Moves to this line.
    fn read(&mut self, text: &'a str, number: u32) -> Result<(), SpecificationError> {
        (self.text, self.number, self.next) = (text, number, 0);
        self.tokens.clear();
        let mut rest = RestingState {
            text,
            at: TextPosition {
                line: number,
                column: 1,
            },
        };
        loop {
            rest.take_while(char::is_whitespace);
            let (start, from) = (rest.at, rest.text);
            let Some(c) = rest.next() else { break };
            let token = match c {
                '#' => break,
                c if is_name(c) => {
                    rest.take_while(is_name);
                    let name = &from[..from.len() - rest.text.len()];
                    let is_kind = matches!(name, "kernel" | "user" | "sampler" | "clerk");
                    if is_kind && rest.take(':') {
                        Token::Source(name, rest.sensor()?)
                    } else if name == "lambda" {
                        Token::Lambda
                    } else {
                        Token::Name(name)
                    }
                }
                '-' if rest.take('>') => Token::Arrow,
                '=' if rest.take('=') => Token::Equal,
                '!' if rest.take('=') => Token::Unequal,
                '=' => Token::Assign,
                ':' => Token::Colon,
                ',' => Token::Comma,
                '.' => Token::Dot,
                '*' => Token::Star,
                'λ' => Token::Lambda,
                '[' => Token::Open,
                ']' => Token::Close,
                '"' => Token::Text(rest.quoted(start)?),
                c => {
                    return Err(Fault::Syntax {
                        expected: "a name, a number or a sign of the grammar".into(),
                        found: format!("`{c}`"),
                    }
                    .at(start))
                }
            };
            self.tokens.push((token, start));
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.next).map(|(token, _)| token)
    }

    fn at(&self) -> TextPosition {
        let end = || TextPosition {
            line: self.number,
            column: u32::try_from(self.text.chars().count() + 1).unwrap_or(u32::MAX),
        };
        self.tokens.get(self.next).map_or_else(end, |(_, at)| *at)
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

    fn take(&mut self, token: &Token<'_>) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(name)) if *name == word);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, token: &Token<'_>, expected: &str) -> Result<(), SpecificationError> {
        if self.take(token) {
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    fn name(&mut self, expected: &str) -> Result<Word, SpecificationError> {
        match self.peek() {
            Some(&Token::Name(name)) => {
                let word = Word {
                    text: name.to_owned(),
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
                let text = text.clone().into_owned();
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

    /// Parses the right side of `event NAME =`.
    fn pattern(&mut self, name: Word) -> Result<Symbol, SpecificationError> {
        let source_at = self.at();
        let source = match self.peek() {
            Some(Token::Source(kind, sensor)) => match *kind {
                "kernel" => EventName::kernel(sensor),
                "user" => EventName::user(sensor),
                _ => EventName::sampler(sensor),
            },
            _ => return Err(self.unexpected("`kernel:HOOK`, `user:SENSOR` or `sampler:SENSOR`")),
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
                word if word.text == "none" => TaskOf::NoTask,
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
            Some(Token::Name("has")) => Relation::Has,
            Some(Token::Name("lacks")) => Relation::Lacks,
            _ => return Err(self.unexpected("`==`, `!=`, `has` or `lacks`")),
        };
        self.next += 1;
        let constant_at = self.at();
        let constant = match self.peek() {
            Some(Token::Text(text)) => Constant::Text(text.clone().into_owned()),
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
            Some(Token::Name(word)) => StateKind::ALL.into_iter().find(|kind| kind.name() == *word),
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
            let ownership = if !self.take(&Token::Comma) {
                Ownership::Anyone
            } else if self.take_word("i") {
                Ownership::Own
            } else if self.take_word("not") && self.take_word("i") {
                Ownership::Other
            } else {
                return Err(self.unexpected("`i` or `not i`"));
            };
            Label::Symbol(symbol, ownership)
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

/// The rest of a line, and the column where it begins.
struct RestingState<'a> {
    text: &'a str,
    at: TextPosition,
}

impl<'a> RestingState<'a> {
    fn next(&mut self) -> Option<char> {
        let mut characters = self.text.chars();
        let next = characters.next()?;
        self.text = characters.as_str();
        self.at.column = self.at.column.saturating_add(1);
        Some(next)
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.text.starts_with(c);
        if found {
            self.next();
        }
        found
    }

    #[inline]
    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let begin = self.text;
        let mut characters = begin.chars();
        let mut columns = 0_u32;
        while characters.next().is_some_and(&belongs) {
            self.text = characters.as_str();
            columns = columns.saturating_add(1);
        }
        self.at.column = self.at.column.saturating_add(columns);
        &begin[..begin.len() - self.text.len()]
    }

    /// Parses a text after its opening quote, which is at `start`; `\"` and `\\` stand for
    /// themselves, `\n` for a new line.
    fn quoted(&mut self, start: TextPosition) -> Result<Cow<'a, str>, SpecificationError> {
        let mut text = Cow::Borrowed("");
        loop {
            let plain = self.take_while(|c| !matches!(c, '"' | '\\'));
            text += plain;
            match (self.next(), self.text.chars().next()) {
                (Some('"'), _) => return Ok(text),
                (Some(_), Some(c)) => {
                    text.to_mut().push(if c == 'n' { '\n' } else { c });
                    self.next();
                }
                _ => {
                    return Err(Fault::Syntax {
                        expected: "`\"` at the end of this text".into(),
                        found: "the end of the line".into(),
                    }
                    .at(start))
                }
            }
        }
    }

    fn sensor(&mut self) -> Result<Cow<'a, str>, SpecificationError> {
        let start = self.at;
        if self.take('"') {
            return self.quoted(start);
        }
        let begin = self.text;
        loop {
            self.take_while(is_sensor);
            match self.text.chars().next() {
                Some(opening @ ('(' | '<' | '{')) => self.bracketed(opening, start)?,
                _ => break,
            }
        }
        match &begin[..begin.len() - self.text.len()] {
            "" => Err(Fault::Syntax {
                expected: "the name of a sensor or hook".into(),
                found: self
                    .next()
                    .map_or_else(|| "the end of the line".into(), |c| format!("`{c}`")),
            }
            .at(start)),
            sensor => Ok(sensor.into()),
        }
    }

    /// Takes a part in brackets, such as the arguments of `probe/price(int, char)`, with the
    /// brackets.
    fn bracketed(&mut self, opening: char, start: TextPosition) -> Result<(), SpecificationError> {
        let closing = match opening {
            '(' => ')',
            '<' => '>',
            _ => '}',
        };
        let mut depth = 0_u32;
        while let Some(c) = self.next() {
            if c == opening {
                depth += 1;
            } else if c == closing {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(Fault::Syntax {
            expected: format!("`{closing}` in the name of a sensor; put other names into quotes"),
            found: "the end of the line".into(),
        }
        .at(start))
    }
}
