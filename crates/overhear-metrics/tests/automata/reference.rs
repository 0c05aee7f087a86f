// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of the seed as a slow, obvious interpreter: one automaton per task from the beginning,
//! which keeps the whole history of its measurement and works it out at the end.

use std::collections::BTreeSet;

use overhear_metrics::automaton::{Label, Specification, StateKind, Whose};

/// One symbol of one element.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) time: u64,
    /// Which element: the symbols of one element have the same.
    pub(crate) element: usize,
    /// The name of the symbol.
    pub(crate) symbol: String,
    pub(crate) task: Option<u32>,
}

/// What happens to the automata.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Input(Input),
    Gap { missed: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) task: u32,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) length: u64,
    pub(crate) events: usize,
    pub(crate) own: usize,
    pub(crate) missed: u64,
}

/// One entry of a state.
#[derive(Clone, Debug)]
struct Entry {
    kind: StateKind,
    time: u64,
    element: usize,
    own: bool,
    /// The automaton stayed: no transition was applied.
    stays: bool,
}

struct Automaton<'a> {
    specification: &'a Specification,
    task: u32,
    state: String,
    running: bool,
    /// An element has named the task: before that nobody knows that it exists.
    named: bool,
    history: Vec<Entry>,
    missed: u64,
}

/// Every measurement of these tasks, in the order of the engine: by input, and then the task of the
/// input first and the others by number.
pub(crate) fn interpret(
    specification: &Specification,
    steps: &[Step],
    tasks: &[u32],
) -> Vec<Found> {
    let mut automata: Vec<Automaton<'_>> = tasks
        .iter()
        .map(|&task| Automaton {
            specification,
            task,
            state: specification.states[0].name.text.clone(),
            running: false,
            named: false,
            history: Vec::new(),
            missed: 0,
        })
        .collect();
    automata.sort_by_key(|automaton| automaton.task);
    let mut found = Vec::new();
    for step in steps {
        match step {
            Step::Gap { missed } => {
                for automaton in &mut automata {
                    automaton.gap(*missed);
                }
            }
            Step::Input(input) => {
                let mut order: Vec<&mut Automaton<'_>> = automata.iter_mut().collect();
                order.sort_by_key(|automaton| (Some(automaton.task) != input.task, automaton.task));
                for automaton in order {
                    automaton.input(input, &mut found);
                }
            }
        }
    }
    found
}

impl Automaton<'_> {
    fn kind(&self, name: &str) -> StateKind {
        let states = &self.specification.states;
        let state = states.iter().find(|state| state.name.text == name);
        state.expect("declared").kind
    }

    /// The target of the transition from the present state that a label rule chooses.
    fn go(&self, applies: impl Fn(&Label) -> bool) -> Option<String> {
        let from_here = |from: &str| from == self.state;
        let transitions = &self.specification.transitions;
        let found = transitions
            .iter()
            .find(|it| from_here(&it.from.text) && applies(&it.label));
        found.map(|transition| transition.to.text.clone())
    }

    fn input(&mut self, input: &Input, found: &mut Vec<Found>) {
        let own = input.task == Some(self.task);
        self.named |= own;
        let is = |label: &Label, whose| matches!(label, Label::Symbol(word, w) if word.text == input.symbol && *w == whose);
        let next = self
            .go(|label| is(label, if own { Whose::Own } else { Whose::Other }))
            .or_else(|| self.go(|label| is(label, Whose::Anyone)))
            .or_else(|| self.go(|label| *label == Label::Any));
        let stays = next.is_none() || next.as_ref() == Some(&self.state);
        let mut next = Some(next.unwrap_or_else(|| self.state.clone()));
        while let Some(state) = next {
            let kind = self.kind(&state);
            self.state = state;
            if !stays && kind == StateKind::Begin {
                self.running = true;
                self.history.clear();
                self.missed = 0;
            }
            self.history.push(Entry {
                kind,
                time: input.time,
                element: input.element,
                own,
                stays,
            });
            if !stays && kind == StateKind::Cancel {
                self.running = false;
            }
            if !stays && kind == StateKind::End && self.running {
                self.running = false;
                if self.named {
                    found.push(self.work_out(input.time));
                }
            }
            if stays {
                return;
            }
            next = self.go(|label| *label == Label::Lambda);
        }
    }

    fn gap(&mut self, missed: u64) {
        if self.running {
            self.missed += missed;
        } else {
            self.state = self.specification.states[0].name.text.clone();
        }
    }

    /// Cuts the history into segments and adds them up.
    fn work_out(&self, end: u64) -> Found {
        let (mut length, mut events, mut own) = (0, 0, 0);
        let history = &self.history;
        let mut at = 0;
        while at < history.len() {
            // A segment: cond states, then in states.
            let start = at;
            while at < history.len() && history[at].kind == StateKind::Cond {
                at += 1;
            }
            let first_in = at;
            while at < history.len() && history[at].kind == StateKind::In {
                at += 1;
            }
            if first_in == at {
                at = at.max(start + 1);
                continue;
            }
            // An `end` follows at last, so there is always something that leaves the segment.
            let leaves = &history[at];
            length += leaves.time - history[start].time;
            let states = &history[start..at];
            let entered: BTreeSet<usize> = states
                .iter()
                .filter(|entry| !entry.stays)
                .map(|entry| entry.element)
                .collect();
            let counts = |entry: &&Entry| {
                entry.element != history[start].element
                    && (entry.element != leaves.element || entered.contains(&entry.element))
            };
            let inside: BTreeSet<usize> = states
                .iter()
                .filter(counts)
                .map(|entry| entry.element)
                .collect();
            // An element is the task's own if it is so by any of its symbols up to here.
            let own_inside: BTreeSet<usize> = history[..=at]
                .iter()
                .filter(|entry| entry.own && inside.contains(&entry.element))
                .map(|entry| entry.element)
                .collect();
            events += inside.len();
            own += own_inside.len();
        }
        Found {
            task: self.task,
            begin: history[0].time,
            end,
            length,
            events,
            own,
            missed: self.missed,
        }
    }
}
