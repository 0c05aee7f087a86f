// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checked metric, compiled to tables of states and symbols.

use std::fmt;
use std::str::FromStr;

use overhear_event::kernel::TASK_LIFE;
use overhear_event::{EventName, EventSet};

use crate::automaton::spec::catalogue::Catalogue;
use crate::automaton::spec::check::{check, Edge, EdgeLabel};
use crate::automaton::spec::fault::SpecificationError;
use crate::automaton::spec::specification::{Ownership, Specification, StateKind, TaskOf};

/// Table entry: the automaton stays in its state.
const STAY: u16 = u16::MAX;

/// A metric: an automaton that was checked.
///
/// Holding one proves that its names are declared, that every state can be reached, that a
/// measurement begins before it goes on or ends, that no two labels of a state mean the same input,
/// and that lambda transitions come to rest. It does not prove that the sensors of programs that it
/// names exist, or have the fields that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    specification: Specification,
    kinds: Vec<StateKind>,
    // Row per state, two columns per symbol: the input belongs to another task, or to the own one.
    next: Vec<u16>,
    // Ranks of the labels in `next`, with the same rows and columns.
    ranks: Vec<Rank>,
    lambda: Vec<u16>,
    // Distinct sources of the symbols, and the index of each symbol's source.
    sources: Vec<EventName>,
    source_of: Vec<usize>,
    // Indexed by source: whether every label with a symbol of it has `i`, and the task is the
    // writer.
    private: Vec<bool>,
}

/// The rank of a label. An event of several symbols takes the transition of the greatest rank, and
/// of equal ranks that of the symbol declared first [POSIX-metrics, section 3, in the order of its
/// table].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// No label of the state matches the symbol.
    Unmatched,
    /// `*`
    Any,
    /// `event`
    Event,
    /// `event, not i`
    Other,
    /// `event, i`
    Own,
}

/// A column of the tables: a symbol, and whether it belongs to the own task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column(usize);

impl Column {
    pub(crate) const fn new(symbol: usize, own: bool) -> Self {
        Self(2 * symbol + own as usize)
    }

    /// The index in a row.
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0
    }
}

impl Metric {
    /// Checks a specification and compiles it.
    ///
    /// # Errors
    /// [`SpecificationError`] at the first fault.
    pub fn new(
        specification: Specification,
        catalogue: &Catalogue,
    ) -> Result<Self, SpecificationError> {
        let edges = check(&specification, catalogue)?;
        let (states, symbols) = (specification.states.len(), specification.symbols.len());
        let mut lambda = vec![STAY; states];
        for edge in edges.iter().filter(|edge| edge.label == EdgeLabel::Lambda) {
            lambda[edge.from] = narrow(edge.to);
        }
        let kinds: Vec<StateKind> = specification
            .states
            .iter()
            .map(|state| state.kind)
            .collect();
        let (next, ranks) = next_table(&edges, states, symbols);
        let mut sources: Vec<EventName> = Vec::new();
        let mut source_of = Vec::new();
        for symbol in &specification.symbols {
            let known = sources.iter().position(|source| *source == symbol.source);
            source_of.push(known.unwrap_or_else(|| {
                sources.push(symbol.source.clone());
                sources.len() - 1
            }));
        }
        let mut private = vec![true; sources.len()];
        for (symbol, &source) in specification.symbols.iter().zip(&source_of) {
            private[source] &= symbol.task == TaskOf::Writer;
        }
        for edge in &edges {
            match edge.label {
                EdgeLabel::Symbol(_, Ownership::Own) | EdgeLabel::Lambda => {}
                EdgeLabel::Symbol(symbol, _) => private[source_of[symbol]] = false,
                EdgeLabel::Any if edge.from == edge.to => {}
                EdgeLabel::Any => private.fill(false),
            }
        }
        Ok(Self {
            specification,
            kinds,
            next,
            ranks,
            lambda,
            sources,
            source_of,
            private,
        })
    }

    /// Parses and checks a metric over the events of `catalogue`.
    ///
    /// # Errors
    /// [`SpecificationError`] at the first fault.
    pub fn parse(text: &str, catalogue: &Catalogue) -> Result<Self, SpecificationError> {
        Self::new(text.parse()?, catalogue)
    }

    /// Name of the metric.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.specification.name.text
    }

    /// What it measures, for users.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.specification.description
    }

    /// The specification that it was compiled from.
    #[must_use]
    pub const fn specification(&self) -> &Specification {
        &self.specification
    }

    /// The distinct event types of its alphabet.
    #[must_use]
    pub fn sources(&self) -> &[EventName] {
        &self.sources
    }

    /// The events that it requires: its alphabet, and the ends of threads if that has kernel
    /// events.
    #[must_use]
    pub fn requires(&self) -> EventSet {
        let mut events: EventSet = self.sources.iter().cloned().collect();
        if events
            .iter()
            .any(|event| event.as_str().starts_with("kernel:"))
        {
            events.insert(EventName::kernel(TASK_LIFE));
        }
        events
    }

    pub(crate) fn kind(&self, state: u16) -> StateKind {
        self.kinds[usize::from(state)]
    }

    /// The state to which the input leads; `None` if the automaton stays.
    pub(crate) fn next(&self, state: u16, column: Column) -> Option<u16> {
        let row = usize::from(state) * self.source_of.len() * 2;
        Some(self.next[row + column.0]).filter(|&to| to != STAY)
    }

    /// The rank of the label that leads there.
    pub(crate) fn rank(&self, state: u16, column: Column) -> Rank {
        self.ranks[usize::from(state) * self.source_of.len() * 2 + column.0]
    }

    pub(crate) fn lambda(&self, state: u16) -> Option<u16> {
        Some(self.lambda[usize::from(state)]).filter(|&to| to != STAY)
    }

    pub(crate) fn source(&self, event: &EventName) -> Option<usize> {
        self.sources.iter().position(|source| source == event)
    }

    /// Whether elements of this source concern no task but their writer.
    pub(crate) fn is_private(&self, source: usize) -> bool {
        self.private[source]
    }
}

impl FromStr for Metric {
    type Err = SpecificationError;

    /// Parses and checks a metric over the events of this version.
    fn from_str(text: &str) -> Result<Self, SpecificationError> {
        Self::parse(text, Catalogue::of_linux())
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.specification.fmt(f)
    }
}

/// Fills the table from the weakest label to the strongest. A state with a lambda has no other
/// label, and no entries.
fn next_table(edges: &[Edge], states: usize, symbols: usize) -> (Vec<u16>, Vec<Rank>) {
    let mut next = vec![STAY; states * symbols * 2];
    let mut ranks = vec![Rank::Unmatched; next.len()];
    for rank in [Rank::Any, Rank::Event, Rank::Other, Rank::Own] {
        for edge in edges {
            let (columns, of_edge) = match edge.label {
                EdgeLabel::Lambda => continue,
                EdgeLabel::Any => (0..symbols * 2, Rank::Any),
                EdgeLabel::Symbol(symbol, Ownership::Anyone) => {
                    (2 * symbol..2 * symbol + 2, Rank::Event)
                }
                EdgeLabel::Symbol(symbol, Ownership::Other) => {
                    (2 * symbol..2 * symbol + 1, Rank::Other)
                }
                EdgeLabel::Symbol(symbol, Ownership::Own) => {
                    (2 * symbol + 1..2 * symbol + 2, Rank::Own)
                }
            };
            if of_edge == rank {
                // Entering an in, out or cond state from itself changes nothing.
                let to = if edge.to == edge.from {
                    STAY
                } else {
                    narrow(edge.to)
                };
                let row = edge.from * symbols * 2;
                let range = row + columns.start..row + columns.end;
                next[range.clone()].fill(to);
                ranks[range].fill(rank);
            }
        }
    }
    (next, ranks)
}

fn narrow(state: usize) -> u16 {
    u16::try_from(state).expect("the check limits the number of states")
}
