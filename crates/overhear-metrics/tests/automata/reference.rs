// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of [POSIX-metrics, section 3] as a slow, obvious interpreter: one automaton per task
//! from the begin on, which keeps the whole history of its measurement and evaluates it at the end.

use std::collections::BTreeSet;

use overhear_metrics::automaton::{Label, Ownership, Specification, StateKind};

/// An event: the symbols of one element that name the same task and the same time.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) time: u64,
    /// Index of the element: the events of one element have the same.
    pub(crate) element: usize,
    /// The names of the symbols in the order of declaration, and whether each names a task.
    pub(crate) symbols: Vec<(String, bool)>,
    pub(crate) task: Option<u32>,
    /// The tasks that the events of the element name, and the task in whose context it was written.
    pub(crate) owners: Vec<u32>,
}

/// A step of the automata. An element that is no event of the alphabet has no symbol.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Input(Input),
    Gap { missed: u64, until: u64 },
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
    /// True if the automaton stayed: no transition was applied.
    stays: bool,
}

struct Automaton<'a> {
    specification: &'a Specification,
    /// For each transition of the specification, whether it was applied.
    taken: Vec<bool>,
    task: u32,
    state: String,
    running: bool,
    /// True after an element has named the task: before that it is unknown.
    named: bool,
    history: Vec<Entry>,
    missed: u64,
    /// The time of the last transition.
    changed: u64,
    /// All gaps so far: their ends, and the number of missed elements.
    gaps: Vec<(u64, u64)>,
}

/// Every measurement of these tasks, in the order of the engine: by input; within an input the task
/// of the input first, and the others by number.
pub(crate) fn interpret(
    specification: &Specification,
    steps: &[Step],
    tasks: &[u32],
) -> Vec<Found> {
    interpret_all(specification, steps, tasks).0
}

/// As [`interpret`], and the transitions that no automaton has applied.
pub(crate) fn interpret_all(
    specification: &Specification,
    steps: &[Step],
    tasks: &[u32],
) -> (Vec<Found>, Vec<String>) {
    let mut automata: Vec<Automaton<'_>> = tasks
        .iter()
        .map(|&task| Automaton {
            specification,
            taken: vec![false; specification.transitions.len()],
            task,
            state: specification.states[0].name.text.clone(),
            running: false,
            named: false,
            history: Vec::new(),
            missed: 0,
            changed: 0,
            gaps: Vec::new(),
        })
        .collect();
    automata.sort_by_key(|automaton| automaton.task);
    let mut found = Vec::new();
    for step in steps {
        match step {
            Step::Gap { missed, until } => {
                for automaton in &mut automata {
                    automaton.gap(*missed, *until);
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
    let is_taken = |at: usize| automata.iter().any(|automaton| automaton.taken[at]);
    let transitions = specification.transitions.iter().enumerate();
    let left_out = transitions.filter(|(at, _)| !is_taken(*at));
    let left_out =
        left_out.map(|(_, it)| format!("{} -> {}: {}", it.from.text, it.to.text, it.label));
    (found, left_out.collect())
}

impl Automaton<'_> {
    fn kind(&self, name: &str) -> StateKind {
        let states = &self.specification.states;
        let state = states.iter().find(|state| state.name.text == name);
        state.expect("declared").kind
    }

    /// The transition from the current state that a label rule chooses.
    fn go(&self, applies: impl Fn(&Label) -> bool) -> Option<usize> {
        let mut transitions = self.specification.transitions.iter();
        transitions.position(|it| it.from.text == self.state && applies(&it.label))
    }

    /// Applies it. Returns its target.
    fn take(&mut self, transition: usize) -> String {
        self.taken[transition] = true;
        self.specification.transitions[transition].to.text.clone()
    }

    fn input(&mut self, input: &Input, found: &mut Vec<Found>) {
        let own = input.task == Some(self.task);
        self.named |= own;
        // Over the complete event: all symbols by one rule of the table, then all by the next one.
        let by_rule = |whose| {
            let mut symbols = input.symbols.iter();
            symbols.find_map(|(symbol, is_tasked)| {
                let applies = match whose {
                    Ownership::Own => own && *is_tasked,
                    Ownership::Other => !(own && *is_tasked),
                    Ownership::Anyone => true,
                };
                let is = |label: &Label| matches!(label, Label::Symbol(word, w) if word.text == *symbol && *w == whose);
                self.go(|label| applies && is(label))
            })
        };
        let any = || self.go(|label| *label == Label::Any && !input.symbols.is_empty());
        let next = by_rule(Ownership::Own)
            .or_else(|| by_rule(Ownership::Other))
            .or_else(|| by_rule(Ownership::Anyone))
            .or_else(any);
        let next = next.map(|transition| self.take(transition));
        let stays = next.is_none() || next.as_ref() == Some(&self.state);
        let mut next = Some(next.unwrap_or_else(|| self.state.clone()));
        // Within a measurement, time does not go back; a begin keeps its time.
        let mut time = input.time.max(self.changed);
        while let Some(state) = next {
            let kind = self.kind(&state);
            self.state = state;
            if !stays && kind == StateKind::Begin {
                time = input.time;
                self.running = true;
                self.history.clear();
                let gaps = self.gaps.iter().filter(|(until, _)| *until > time);
                self.missed = gaps.map(|(_, missed)| missed).sum();
            }
            self.history.push(Entry {
                kind,
                time,
                element: input.element,
                own: input.owners.contains(&self.task),
                stays,
            });
            if stays {
                return;
            }
            self.changed = time;
            if kind == StateKind::Cancel {
                self.running = false;
            }
            if kind == StateKind::End && self.running {
                self.running = false;
                if self.named {
                    found.push(self.work_out(time));
                }
            }
            let lambda = self.go(|label| *label == Label::Lambda);
            next = lambda.map(|transition| self.take(transition));
        }
    }

    fn gap(&mut self, missed: u64, until: u64) {
        self.gaps.push((until, missed));
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
            // An `end` follows at last, so some entry always leaves the segment.
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
            let own_inside: BTreeSet<usize> = states
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
