// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric that makes sense, compiled to tables.

use std::fmt;
use std::str::FromStr;

use overhear_event::kernel::TASK_LIFE;
use overhear_event::{EventName, EventSet};

use super::catalogue::Catalogue;
use super::check::{check, Edge, EdgeLabel};
use super::fault::SpecificationError;
use super::specification::{Specification, StateKind, TaskOf, Whose};

/// Stands in the tables for "stays where it is".
const STAY: u16 = u16::MAX;

/// A metric: an automaton that is known to make sense.
///
/// Holding one proves that its names are declared, that every state can be reached, that a
/// measurement begins before it goes on or ends, that no two labels of a state mean the same
/// input, and that lambda transitions come to rest. It does not prove that the sensors of programs
/// it names exist, or have the fields it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    specification: Specification,
    kinds: Vec<StateKind>,
    // Row per state, two columns per symbol: the input belongs to another task, or to the own one.
    next: Vec<u16>,
    // Of the labels in `next`, with the same rows and columns.
    ranks: Vec<Rank>,
    lambda: Vec<u16>,
    // The distinct sources of the symbols, and the index of each symbol's.
    sources: Vec<EventName>,
    source_of: Vec<usize>,
    // Per source: every label with a symbol of it says `i`, and the task is the writer.
    private: Vec<bool>,
}

/// The priority of a label. An event that is several symbols takes the transition of the greatest rank, and of equal
/// ranks that of the symbol declared first (seed 004, section 3, in the order of its table).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
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
pub(super) struct Column(usize);

impl Column {
    pub(super) const fn new(symbol: usize, own: bool) -> Self {
        Self(2 * symbol + own as usize)
    }

    /// Its place in a row.
    #[inline(always)]
    pub(super) const fn index(self) -> usize {
        self.0
    }
}

impl Metric {
    /// Checks a specification and compiles it.
    ///
    /// # Errors
    /// [`SpecificationError`] at the first thing that makes no sense.
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
                EdgeLabel::Symbol(_, Whose::Own) | EdgeLabel::Lambda => {}
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

    /// Reads and checks a metric over the events of `catalogue`.
    ///
    /// # Errors
    /// [`SpecificationError`] at the first thing that is wrong.
    pub fn parse(text: &str, catalogue: &Catalogue) -> Result<Self, SpecificationError> {
        Self::new(text.parse()?, catalogue)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.specification.name.text
    }

    /// What it measures, for people.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.specification.description
    }

    /// As it was written.
    #[must_use]
    pub const fn specification(&self) -> &Specification {
        &self.specification
    }

    /// The distinct event types of its alphabet: the intermediate events are counted by them.
    #[must_use]
    pub fn sources(&self) -> &[EventName] {
        &self.sources
    }

    /// The events it needs: its alphabet, and the ends of threads where it follows the kernel's.
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

    pub(super) fn kind(&self, state: u16) -> StateKind {
        self.kinds[usize::from(state)]
    }

    /// Where the input leads, `None` if the automaton stays.
    pub(super) fn next(&self, state: u16, column: Column) -> Option<u16> {
        let row = usize::from(state) * self.source_of.len() * 2;
        Some(self.next[row + column.0]).filter(|&to| to != STAY)
    }

    /// The priority of the label that leads there.
    pub(super) fn rank(&self, state: u16, column: Column) -> Rank {
        self.ranks[usize::from(state) * self.source_of.len() * 2 + column.0]
    }

    pub(super) fn lambda(&self, state: u16) -> Option<u16> {
        Some(self.lambda[usize::from(state)]).filter(|&to| to != STAY)
    }

    pub(super) fn source(&self, event: &EventName) -> Option<usize> {
        self.sources.iter().position(|source| source == event)
    }

    /// Whether elements of this source concern no task but their writer.
    pub(super) fn is_private(&self, source: usize) -> bool {
        self.private[source]
    }
}

impl FromStr for Metric {
    type Err = SpecificationError;

    /// Reads and checks a metric over the events of this version.
    fn from_str(text: &str) -> Result<Self, SpecificationError> {
        Self::parse(text, Catalogue::of_linux())
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.specification.fmt(f)
    }
}

/// Fills the table from the weakest label to the strongest. Lambda needs no place here: a state that has one has nothing
/// else.
fn next_table(edges: &[Edge], states: usize, symbols: usize) -> (Vec<u16>, Vec<Rank>) {
    let mut next = vec![STAY; states * symbols * 2];
    let mut ranks = vec![Rank::Unmatched; next.len()];
    for rank in [Rank::Any, Rank::Event, Rank::Other, Rank::Own] {
        for edge in edges {
            let (columns, of_edge) = match edge.label {
                EdgeLabel::Lambda => continue,
                EdgeLabel::Any => (0..symbols * 2, Rank::Any),
                EdgeLabel::Symbol(symbol, Whose::Anyone) => {
                    (2 * symbol..2 * symbol + 2, Rank::Event)
                }
                EdgeLabel::Symbol(symbol, Whose::Other) => {
                    (2 * symbol..2 * symbol + 1, Rank::Other)
                }
                EdgeLabel::Symbol(symbol, Whose::Own) => {
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
                let places = row + columns.start..row + columns.end;
                next[places.clone()].fill(to);
                ranks[places].fill(rank);
            }
        }
    }
    (next, ranks)
}

fn narrow(state: usize) -> u16 {
    u16::try_from(state).expect("the check limits the number of states")
}
