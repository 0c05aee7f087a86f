// SPDX-License-Identifier: MIT OR Apache-2.0
//! All automata of a task as one: what an element does to them is looked up at once.
//!
//! The automata of a task go through few combinations of states, however many metrics there are: all of
//! them follow the same thread. A combination is a [`State`], and a *part* of an element is what it says of
//! one task: symbols of several metrics, for the same time. Which automata move by it, and what happens to
//! their measurements, is found out once per state and part ([`Joint::learn`]); from then on it is a
//! [`Move`] in a table.
//!
//! This is a memory and not the truth: that is in the instances. Whoever changes an instance in another way
//! than by a move makes the state of its task unknown ([`Tasks::forget_state`]), and it is found out anew.
//! What is too rare to be remembered (an automaton that is not there yet, effects that come in several
//! turns) is never a move.

use overhear_event::Timestamp;
use rustc_hash::FxHashMap;

use super::group::Group;
use super::measurement::Position;
use super::metric::Column;
use super::program::{Effects, Row};
use super::tasks::Tasks;

/// As many combinations are remembered; then all are forgotten. There are some ten in practice.
const STATES: usize = 4_096;

/// A combination of rows, as the place of its first move. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State(u32);

impl State {
    /// Nobody has found out.
    pub(super) const UNKNOWN: Self = Self(0);
}

/// A part of elements, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part(u32);

/// What an element says to plain metrics of one task, found out and yet to be carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// For when.
    pub(super) time: Timestamp,
    /// By which element.
    pub(super) element: Position,
    /// What names it.
    pub(super) ordinal: u64,
    /// Of whom.
    pub(super) slot: u32,
    pub(super) part: Part,
    /// Which part of a letter it is: there its keys and rules are.
    pub(super) meaning: u32,
    pub(super) has_keys: bool,
}

/// Where a part leads, and whose automata it moves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Move {
    to: State,
    first: u32,
    behind: u32,
}

impl Move {
    #[inline(always)]
    pub(super) const fn to(self) -> State {
        self.to
    }
}

/// One automaton moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stride {
    pub(super) metric: u16,
    pub(super) effects: Effects,
    pub(super) to: Row,
}

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Joint {
    /// By part: the metrics and their symbols.
    parts: Vec<Vec<(u32, u16)>>,
    /// How many moves a state has: as many as there are parts.
    width: usize,
    /// By state and part; nothing leads to where nobody knows.
    moves: Vec<Move>,
    strides: Vec<Stride>,
    /// By the rows of all metrics; those of metrics that are not plain stay absent.
    states: FxHashMap<Box<[Row]>, State>,
}

impl Joint {
    /// The part that is these symbols of these metrics.
    pub(super) fn part(&mut self, symbols: Vec<(u32, u16)>) -> Part {
        let known = self.parts.iter().position(|known| *known == symbols);
        let place = known.unwrap_or_else(|| {
            self.parts.push(symbols);
            self.parts.len() - 1
        });
        Part(u32::try_from(place).expect("there are fewer parts than symbols"))
    }

    /// Forgets all states, and gives those to come room for all parts.
    pub(super) fn forget(&mut self, tasks: &mut Tasks) {
        self.width = self.parts.len();
        self.moves.clear();
        self.strides.clear();
        self.states.clear();
        // Where nobody knows.
        self.moves.resize(self.width, Move::default());
        tasks.forget_states();
    }

    /// Where the part leads; to [`State::UNKNOWN`] where that has to be learned.
    #[inline(always)]
    pub(super) fn get(&self, state: State, part: Part) -> Move {
        self.moves[state.0 as usize + part.0 as usize]
    }

    /// Whose automata it moves.
    #[inline(always)]
    pub(super) fn strides(&self, step: Move) -> &[Stride] {
        &self.strides[step.first as usize..step.behind as usize]
    }

    /// Finds out where a part leads the automata of a slot; `None` if it is too rare.
    #[inline(never)]
    pub(super) fn learn(
        &mut self,
        groups: &[Group],
        tasks: &mut Tasks,
        slot: u32,
        part: Part,
    ) -> Option<Move> {
        if self.states.len() >= STATES {
            self.forget(tasks);
        }
        let mut rows: Box<[Row]> = groups
            .iter()
            .zip(tasks.at(slot).1)
            .map(|(group, it)| {
                if group.is_plain() {
                    it.row
                } else {
                    Row::ABSENT
                }
            })
            .collect();
        let from = self.state(&rows);
        *tasks.state_mut(slot) = from;
        let known = self.get(from, part);
        if known.to != State::UNKNOWN {
            *tasks.state_mut(slot) = known.to;
            return Some(known);
        }
        let mut strides = Vec::new();
        for &(metric, symbol) in &self.parts[part.0 as usize] {
            let row = &mut rows[metric as usize];
            let column = Column::new(usize::from(symbol), true);
            let step = groups[metric as usize].program().step(*row, column);
            if step.effects.has(Effects::RARE) {
                return None;
            }
            if step.effects != Effects::STAY {
                *row = step.to;
                strides.push(Stride {
                    metric: u16::try_from(metric).ok()?,
                    effects: step.effects,
                    to: step.to,
                });
            }
        }
        let to = self.state(&rows);
        let start = self.strides.len();
        self.strides.extend(strides);
        let step = Move {
            to,
            first: u32::try_from(start).ok()?,
            behind: u32::try_from(self.strides.len()).ok()?,
        };
        self.moves[from.0 as usize + part.0 as usize] = step;
        *tasks.state_mut(slot) = to;
        Some(step)
    }

    /// The state that is these rows.
    fn state(&mut self, rows: &[Row]) -> State {
        if let Some(&known) = self.states.get(rows) {
            return known;
        }
        let state = State(u32::try_from(self.moves.len()).expect("states and parts are limited"));
        self.states.insert(rows.into(), state);
        self.moves
            .resize(self.moves.len() + self.width, Move::default());
        state
    }
}
