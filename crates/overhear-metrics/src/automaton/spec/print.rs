// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a specification to text: the canonical form, and the picture for Graphviz.

use std::fmt;

use overhear_event::EventName;

use super::parse::is_plain_sensor;
use super::specification::{
    Condition, Constant, Label, Ownership, Specification, StateKind, Symbol, TaskOf,
};

/// A name for Graphviz: in quotes if it would be a keyword, or a number followed by letters.
fn graphviz_id(name: &str) -> String {
    const KEYWORDS: [&str; 6] = ["digraph", "edge", "graph", "node", "strict", "subgraph"];
    let is_keyword = KEYWORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
    match is_keyword || name.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("\"{name}\""),
        false => name.to_owned(),
    }
}

/// A text in quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.replace('\\', "\\\\").replace('"', "\\\"");
        write!(f, "\"{}\"", text.replace('\n', "\\n"))
    }
}

/// An event's name, with its sensor in quotes if it needs them.
struct Source<'a>(&'a EventName);

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_str().split_once(':') {
            Some((kind, sensor)) if !is_plain_sensor(sensor) => {
                write!(f, "{kind}:{}", Quoted(sensor))
            }
            _ => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "{}", Quoted(text)),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (field, relation) = (&self.field.text, self.relation.name());
        write!(f, "{field} {relation} {}", self.constant)
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} = ", self.name.text)?;
        self.fmt_pattern(f)
    }
}

impl Symbol {
    /// Writes the right side of `event NAME =`.
    pub(crate) fn fmt_pattern(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Source(&self.source))?;
        for (index, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if index == 0 { " [" } else { " and " })?;
        }
        if !self.conditions.is_empty() {
            f.write_str("]")?;
        }
        match &self.task {
            TaskOf::Writer => {}
            TaskOf::Field(field) => write!(f, " task {}", field.text)?,
            TaskOf::NoTask => f.write_str(" task none")?,
        }
        match &self.ago {
            Some(field) => write!(f, " ago {}", field.text),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lambda => f.write_str("lambda"),
            Self::Any => f.write_str("*"),
            Self::Symbol(symbol, Ownership::Anyone) => f.write_str(&symbol.text),
            Self::Symbol(symbol, Ownership::Own) => write!(f, "{}, i", symbol.text),
            Self::Symbol(symbol, Ownership::Other) => write!(f, "{}, not i", symbol.text),
        }
    }
}

impl fmt::Display for Specification {
    /// The canonical text: parsing it gives the same specification. Comments are not kept.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metric {}", self.name.text)?;
        if !self.description.is_empty() {
            write!(f, " {}", Quoted(&self.description))?;
        }
        f.write_str("\n\n")?;
        for symbol in &self.symbols {
            writeln!(f, "{symbol}")?;
        }
        if let Some(key) = &self.key {
            writeln!(f, "by {}.{}", key.symbol.text, key.field.text)?;
        }
        f.write_str("\n")?;
        for state in &self.states {
            writeln!(f, "state {} {}", state.name.text, state.kind.name())?;
        }
        f.write_str("\n")?;
        for transition in &self.transitions {
            let (from, to) = (&transition.from.text, &transition.to.text);
            writeln!(f, "{from} -> {to}: {}", transition.label)?;
        }
        Ok(())
    }
}

impl Specification {
    /// The picture of the automaton for Graphviz (`dot -Tsvg`). Each state has its kind; `in`
    /// states are filled, `cond` states are dashed, `out` states are plain.
    #[must_use]
    pub fn to_graphviz(&self) -> String {
        let mut text = format!("digraph {} {{\n", graphviz_id(&self.name.text));
        text.push_str("  rankdir=LR;\n  node [shape=ellipse, style=solid];\n");
        for state in &self.states {
            let look = match state.kind {
                StateKind::In => ", style=filled",
                StateKind::Cond => ", style=dashed",
                StateKind::Begin | StateKind::End => ", shape=doublecircle",
                StateKind::Cancel => ", shape=octagon",
                StateKind::Out => "",
            };
            let (name, kind) = (&state.name.text, state.kind.name());
            text.push_str(&format!(
                "  \"{name}\" [label=\"{name}\\n{kind}\"{look}];\n"
            ));
        }
        for transition in &self.transitions {
            let (from, to) = (&transition.from.text, &transition.to.text);
            let label = match &transition.label {
                Label::Lambda => "λ".to_owned(),
                label => label.to_string(),
            };
            text.push_str(&format!("  \"{from}\" -> \"{to}\" [label=\"{label}\"];\n"));
        }
        text.push_str("}\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::automaton::Specification;

    #[test]
    fn picture_names_are_valid_for_graphviz() {
        for (name, drawn) in [
            ("request", "digraph request {"),
            ("Node", "digraph \"Node\" {"),
            ("graph", "digraph \"graph\" {"),
            ("2nd", "digraph \"2nd\" {"),
        ] {
            let specification: Specification = format!("metric {name}\n").parse().unwrap();
            let picture = specification.to_graphviz();
            assert_eq!(picture.lines().next(), Some(drawn));
        }
    }
}
