// SPDX-License-Identifier: MIT OR Apache-2.0
//! The automata that react to elements of other tasks, by the row in which they are.

use super::memory::reserve_and_touch;
use super::tasks::SLOT_NONE;
use crate::automaton::compile::program::{Event, Program, Row};

/// Slots of the automata in rows that [watch others](Program::watches_others). The template
/// instance ([`SLOT_NONE`]) is never listed.
#[derive(Debug)]
pub(super) struct WatcherIndex {
    /// Indexed by row number: the slots in that row, in any order.
    rows: Vec<Vec<u32>>,
    /// Indexed by slot: its position in the list of its row.
    positions: Vec<u32>,
    scratch: Vec<u32>,
}

impl WatcherIndex {
    /// For a table of this number of rows.
    pub(super) fn new(rows: usize) -> Self {
        Self {
            rows: vec![Vec::new(); rows],
            positions: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Takes the memory for this number of slots, of which at most `limit` have an automaton.
    pub(super) fn reserve(&mut self, slots: usize, limit: usize) {
        self.positions.resize(slots, 0);
        let lists = self.rows.iter_mut().chain([&mut self.scratch]);
        lists.for_each(|list| reserve_and_touch(list, limit));
    }

    /// The slots that may react to the event. Give the list back with [`WatcherIndex::give_back`].
    pub(super) fn take(&mut self, event: Event, program: &Program) -> Vec<u32> {
        let mut slots = std::mem::take(&mut self.scratch);
        slots.clear();
        for symbol in event.symbols.iter() {
            for &row in program.watching_rows(usize::from(symbol)) {
                slots.extend(&self.rows[program.row_number(row)]);
            }
        }
        slots
    }

    /// Keeps the memory of the list for the next call of [`WatcherIndex::take`].
    pub(super) fn give_back(&mut self, slots: Vec<u32>) {
        self.scratch = slots;
    }

    /// The automaton of this slot enters the row.
    pub(super) fn insert(&mut self, slot: u32, row: Row, program: &Program) {
        if slot == SLOT_NONE || !program.watches_others(row) {
            return;
        }
        let members = &mut self.rows[program.row_number(row)];
        if self.positions.len() <= slot as usize {
            self.positions.resize(slot as usize + 1, 0);
        }
        self.positions[slot as usize] = members.len() as u32;
        members.push(slot);
    }

    /// The automaton of this slot leaves the row.
    pub(super) fn remove(&mut self, slot: u32, row: Row, program: &Program) {
        if slot == SLOT_NONE || !program.watches_others(row) {
            return;
        }
        let members = &mut self.rows[program.row_number(row)];
        let position = self.positions[slot as usize];
        members.swap_remove(position as usize);
        if let Some(&moved) = members.get(position as usize) {
            self.positions[moved as usize] = position;
        }
    }
}
