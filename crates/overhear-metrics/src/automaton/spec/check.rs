// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of a specification: names, labels, and the paths through the automaton.

use std::collections::BTreeSet;

use overhear_event::{EventName, FieldKind, TypeSchema};
use rustc_hash::FxHashMap;

use super::catalogue::Catalogue;
use super::fault::{Fault, SpecificationError};
use super::specification::{
    Condition, Constant, Label, Ownership, Relation, Specification, StateKind, Symbol, TaskOf,
    TextPosition, Word,
};

/// Largest number of states of a metric.
const STATES: usize = 512;
/// Largest number of symbols of a metric.
pub(crate) const SYMBOLS: usize = 64;
/// Largest number of transitions of a metric.
const TRANSITIONS: usize = 4_096;

/// Words that cannot be names, because they begin something else.
const RESERVED: [&str; 5] = ["lambda", "kernel", "user", "sampler", "clerk"];

/// A transition, with the indices of its states and symbols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) label: EdgeLabel,
    at: TextPosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgeLabel {
    Symbol(usize, Ownership),
    Lambda,
    Any,
}

/// Checks everything and resolves the names of the transitions.
pub(crate) fn check(
    specification: &Specification,
    catalogue: &Catalogue,
) -> Result<Vec<Edge>, SpecificationError> {
    check_names(specification)?;
    // Limits come first: the maps by name are fast only while they are small, and others choose the
    // names.
    limit(
        "events",
        SYMBOLS,
        specification
            .symbols
            .get(SYMBOLS)
            .map(|symbol| symbol.name.at),
    )?;
    limit(
        "states",
        STATES,
        specification.states.get(STATES).map(|state| state.name.at),
    )?;
    let beyond = specification
        .transitions
        .get(TRANSITIONS)
        .map(|transition| transition.from.at);
    limit("transitions", TRANSITIONS, beyond)?;
    let symbols = indices(
        "event",
        specification.symbols.iter().map(|symbol| &symbol.name),
    )?;
    let states = indices(
        "state",
        specification.states.iter().map(|state| &state.name),
    )?;
    for symbol in &specification.symbols {
        check_symbol(symbol, catalogue)?;
    }
    for (index, symbol) in specification.symbols.iter().enumerate() {
        let same = specification.symbols[..index]
            .iter()
            .find(|first| is_same(first, symbol));
        if let Some(first) = same {
            return Err(Fault::SameSymbol {
                first: first.name.text.clone(),
                second: symbol.name.text.clone(),
            }
            .at(symbol.name.at));
        }
    }
    if let Some(key) = &specification.key {
        let symbol = resolve(&symbols, &key.symbol, Fault::UnknownSymbol)?;
        let symbol = &specification.symbols[symbol];
        require_task(symbol, key.symbol.at)?;
        if let Some(schema) = catalogue.schema(&symbol.source) {
            whole_number(schema, symbol, &key.field)?;
        }
    }
    let edges = resolve_edges(specification, &symbols, &states)?;
    check_labels(specification, &edges)?;
    check_kinds(specification)?;
    check_lambda(specification, &edges)?;
    check_ways(specification, &edges)?;
    Ok(edges)
}

/// Checks that names can be written. Parsed texts have no others, but programs can make
/// specifications, too.
fn check_names(specification: &Specification) -> Result<(), SpecificationError> {
    let symbols = specification.symbols.iter().map(|symbol| &symbol.name);
    let states = specification.states.iter().map(|state| &state.name);
    for word in symbols.chain(states).chain([&specification.name]) {
        if !is_writable(&word.text) || RESERVED.contains(&word.text.as_str()) {
            return Err(Fault::WrongName(word.text.clone()).at(word.at));
        }
    }
    Ok(())
}

fn is_writable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn indices<'a>(
    what: &'static str,
    words: impl Iterator<Item = &'a Word> + Clone,
) -> Result<FxHashMap<&'a str, usize>, SpecificationError> {
    let mut found = FxHashMap::default();
    for (index, word) in words.clone().enumerate() {
        if let Some(first) = found.insert(word.text.as_str(), index) {
            let first = words.clone().nth(first).map_or(0, |word| word.at.line);
            return Err(Fault::Twice {
                what,
                name: word.text.clone(),
                first,
            }
            .at(word.at));
        }
    }
    Ok(found)
}

fn limit(
    what: &'static str,
    limit: usize,
    beyond: Option<TextPosition>,
) -> Result<(), SpecificationError> {
    beyond.map_or(Ok(()), |at| Err(Fault::TooMany { what, limit }.at(at)))
}

fn resolve(
    names: &FxHashMap<&str, usize>,
    word: &Word,
    fault: fn(String) -> Fault,
) -> Result<usize, SpecificationError> {
    let found = names.get(word.text.as_str()).copied();
    found.ok_or_else(|| fault(word.text.clone()).at(word.at))
}

fn is_same(a: &Symbol, b: &Symbol) -> bool {
    (&a.source, &a.conditions, &a.task, &a.ago) == (&b.source, &b.conditions, &b.task, &b.ago)
}

/// Checks that the event exists and has the named fields.
pub(crate) fn check_symbol(
    symbol: &Symbol,
    catalogue: &Catalogue,
) -> Result<(), SpecificationError> {
    if !catalogue.permits(&symbol.source) {
        return Err(Fault::UnknownEvent {
            event: symbol.source.to_string(),
            known: catalogue.names(),
        }
        .at(symbol.source_at));
    }
    match catalogue.schema(&symbol.source) {
        Some(schema) => check_fields(symbol, schema),
        None => Ok(()),
    }
}

/// Checks that elements of this schema have the fields that the symbol names, of the right kinds.
/// Streams of programs are checked by it when they appear.
pub(crate) fn check_fields(symbol: &Symbol, schema: &TypeSchema) -> Result<(), SpecificationError> {
    for condition in &symbol.conditions {
        let kind = field(schema, symbol, &condition.field)?;
        let wrong = match (&condition.constant, condition.relation, kind) {
            (Constant::Text(_), Relation::Equal | Relation::Unequal, FieldKind::Text(_)) => None,
            (Constant::Text(_), Relation::Has | Relation::Lacks, _) => {
                Some("has no bits; compare texts by == or !=")
            }
            (Constant::Text(_), ..) => Some("is a number; compare it with a number"),
            (Constant::Number(_), _, FieldKind::Text(_)) => {
                Some("is a text; compare it with a text in quotes")
            }
            (Constant::Number(_), _, FieldKind::F32 | FieldKind::F64) => {
                Some("is a fraction; only whole numbers can be compared")
            }
            (Constant::Number(_), ..) => None,
        };
        if let Some(reason) = wrong {
            return Err(wrong_field(symbol, &condition.field, reason));
        }
        if let Some(room) = room(&symbol.source, condition, kind) {
            return Err(Fault::Beyond {
                event: symbol.source.to_string(),
                field: condition.field.text.clone(),
                misfit: format!("{}; it has room for {room}", condition.constant),
            }
            .at(condition.constant_at));
        }
    }
    if let TaskOf::Field(word) = &symbol.task {
        whole_number(schema, symbol, word)?;
    }
    if let Some(word) = &symbol.ago {
        whole_number(schema, symbol, word)?;
    }
    Ok(())
}

/// The kind of a field; an error if there is no such field.
pub(crate) fn field(
    schema: &TypeSchema,
    symbol: &Symbol,
    word: &Word,
) -> Result<FieldKind, SpecificationError> {
    let found = schema
        .index_of(&word.text)
        .map(|index| schema.fields()[index].kind);
    found.ok_or_else(|| {
        let known: Vec<&str> = schema
            .fields()
            .iter()
            .map(|field| field.name.as_str())
            .collect();
        Fault::UnknownField {
            event: symbol.source.to_string(),
            field: word.text.clone(),
            known: known.join(", "),
        }
        .at(word.at)
    })
}

/// The values that a field can hold, if the constant is not among them: such a condition decides
/// nothing.
fn room(source: &EventName, condition: &Condition, kind: FieldKind) -> Option<String> {
    let bits = 8 * kind.size();
    let is_signed = matches!(
        kind,
        FieldKind::I8 | FieldKind::I16 | FieldKind::I32 | FieldKind::I64
    );
    match &condition.constant {
        Constant::Text(text) => {
            // Texts of the kernel end with a zero; those of programs may fill their fields.
            let is_ended = source.as_str().starts_with("kernel:");
            let bytes = kind.size() as usize - usize::from(is_ended);
            (text.len() > bytes).then(|| format!("{bytes} bytes"))
        }
        Constant::Number(number) => {
            // Bits are those of the two's complement.
            let is_value = matches!(condition.relation, Relation::Equal | Relation::Unequal);
            let bits = bits - u32::from(is_signed && is_value);
            let greatest = u64::MAX >> (64 - bits);
            (*number > greatest).then(|| format!("{greatest} at most"))
        }
    }
}

/// Requires a field that holds an unsigned whole number.
pub(crate) fn whole_number(
    schema: &TypeSchema,
    symbol: &Symbol,
    word: &Word,
) -> Result<(), SpecificationError> {
    match field(schema, symbol, word)? {
        FieldKind::U8 | FieldKind::U16 | FieldKind::U32 | FieldKind::U64 => Ok(()),
        _ => Err(wrong_field(symbol, word, "is not an unsigned number")),
    }
}

fn wrong_field(symbol: &Symbol, word: &Word, reason: &'static str) -> SpecificationError {
    Fault::WrongField {
        event: symbol.source.to_string(),
        field: word.text.clone(),
        reason,
    }
    .at(word.at)
}

/// Labels with `i` need elements that name a task. Kernel elements name one by a field only, except
/// those of probes, which belong to the thread that passed them.
fn require_task(symbol: &Symbol, at: TextPosition) -> Result<(), SpecificationError> {
    let of_program = symbol.source.as_str().starts_with("user:") || symbol.source.is_of_probe();
    match &symbol.task {
        TaskOf::Field(_) => Ok(()),
        TaskOf::Writer if of_program => Ok(()),
        _ => Err(Fault::Taskless(symbol.name.text.clone()).at(at)),
    }
}

fn resolve_edges(
    specification: &Specification,
    symbols: &FxHashMap<&str, usize>,
    states: &FxHashMap<&str, usize>,
) -> Result<Vec<Edge>, SpecificationError> {
    let mut edges = Vec::new();
    for transition in &specification.transitions {
        let label = match &transition.label {
            Label::Lambda => EdgeLabel::Lambda,
            Label::Any => EdgeLabel::Any,
            Label::Symbol(word, ownership) => {
                let symbol = resolve(symbols, word, Fault::UnknownSymbol)?;
                if *ownership != Ownership::Anyone {
                    require_task(&specification.symbols[symbol], word.at)?;
                }
                EdgeLabel::Symbol(symbol, *ownership)
            }
        };
        edges.push(Edge {
            from: resolve(states, &transition.from, Fault::UnknownState)?,
            to: resolve(states, &transition.to, Fault::UnknownState)?,
            label,
            at: transition.label_at,
        });
    }
    Ok(edges)
}

/// No label occurs twice at a state, and none is hidden by another one.
fn check_labels(specification: &Specification, edges: &[Edge]) -> Result<(), SpecificationError> {
    for (index, edge) in edges.iter().enumerate() {
        let state = || specification.states[edge.from].name.text.clone();
        let siblings = || edges.iter().filter(|other| other.from == edge.from);
        let first = edges[..index]
            .iter()
            .find(|other| other.from == edge.from && other.label == edge.label);
        if let Some(first) = first {
            return Err(Fault::Overlap {
                state: state(),
                label: specification.transitions[index].label.to_string(),
                first: first.at.line,
            }
            .at(edge.at));
        }
        let has = |label| siblings().any(|other| other.label == label);
        let reason = match edge.label {
            EdgeLabel::Lambda => None,
            _ if has(EdgeLabel::Lambda) => Some("the state is left by lambda at once"),
            EdgeLabel::Symbol(symbol, Ownership::Anyone)
                if has(EdgeLabel::Symbol(symbol, Ownership::Own))
                    && has(EdgeLabel::Symbol(symbol, Ownership::Other)) =>
            {
                Some("`i` and `not i` of the same event go before it")
            }
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(Fault::Hidden {
                state: state(),
                reason,
            }
            .at(edge.at));
        }
    }
    Ok(())
}

fn check_kinds(specification: &Specification) -> Result<(), SpecificationError> {
    let Some(start) = specification.states.first() else {
        return Err(Fault::Stateless.at(specification.name.at));
    };
    if start.kind != StateKind::Out {
        return Err(Fault::WrongStart(start.name.text.clone()).at(start.name.at));
    }
    for kind in [StateKind::Begin, StateKind::End] {
        if !specification.states.iter().any(|state| state.kind == kind) {
            return Err(Fault::Missing(kind.name()).at(specification.name.at));
        }
    }
    Ok(())
}

fn check_lambda(specification: &Specification, edges: &[Edge]) -> Result<(), SpecificationError> {
    // At most one lambda leaves a state: a path longer than the number of states is a cycle.
    let lambdas = edges.iter().filter(|edge| edge.label == EdgeLabel::Lambda);
    let next: FxHashMap<usize, usize> = lambdas.map(|edge| (edge.from, edge.to)).collect();
    for edge in edges.iter().filter(|edge| edge.label == EdgeLabel::Lambda) {
        let mut names = vec![specification.states[edge.from].name.text.as_str()];
        let mut state = edge.to;
        while names.len() <= specification.states.len() {
            names.push(&specification.states[state].name.text);
            if state == edge.from {
                return Err(Fault::LambdaCycle(names.join(" -> ")).at(edge.at));
            }
            match next.get(&state) {
                Some(&spilled) => state = spilled,
                None => break,
            }
        }
    }
    Ok(())
}

/// Follows every path through the automaton, with and without a measurement.
fn check_ways(specification: &Specification, edges: &[Edge]) -> Result<(), SpecificationError> {
    let mut seen = BTreeSet::from([(0, false)]);
    let mut open = vec![(0, false)];
    while let Some((state, measures)) = open.pop() {
        for edge in edges.iter().filter(|edge| edge.from == state) {
            let target = &specification.states[edge.to];
            let name = || target.name.text.clone();
            let after = match (target.kind, measures) {
                (StateKind::Begin, true) => {
                    return Err(Fault::TwoBegins { begin: name() }.at(edge.at))
                }
                (kind @ (StateKind::In | StateKind::Cond | StateKind::End), false) => {
                    return Err(Fault::NotBegun {
                        state: name(),
                        kind: kind.name(),
                    }
                    .at(edge.at))
                }
                (StateKind::Begin, false) => true,
                (StateKind::End | StateKind::Cancel, _) => false,
                (_, measures) => measures,
            };
            if seen.insert((edge.to, after)) {
                open.push((edge.to, after));
            }
        }
    }
    let is_reached = |state: usize| seen.contains(&(state, false)) || seen.contains(&(state, true));
    let lost = |end: bool| {
        let mut states = specification.states.iter().enumerate();
        states.find(|(index, state)| (state.kind == StateKind::End) == end && !is_reached(*index))
    };
    if let Some((_, state)) = lost(true) {
        return Err(Fault::UnreachableEnd(state.name.text.clone()).at(state.name.at));
    }
    if let Some((_, state)) = lost(false) {
        return Err(Fault::Unreachable(state.name.text.clone()).at(state.name.at));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Catalogue, STATES, SYMBOLS};
    use crate::automaton::Metric;

    #[test]
    fn limits_are_checked_before_names() {
        let refused = |text: String| {
            let refused = Metric::parse(&text, Catalogue::of_linux());
            refused.unwrap_err().to_string()
        };
        // A lookup would find the first names twice, which is another error.
        let events = (0..=SYMBOLS).map(|at| format!("event e{} = user:s{at}\n", at % 9));
        let refused_events = refused(format!("metric m\n{}", events.collect::<String>()));
        assert!(
            refused_events.ends_with("more than 64 events"),
            "{refused_events}"
        );
        let states = (0..=STATES).map(|at| format!("state s{} out\n", at % 9));
        let refused_states = refused(format!("metric m\n{}", states.collect::<String>()));
        assert!(
            refused_states.ends_with("more than 512 states"),
            "{refused_states}"
        );
    }
}
