// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has which slot: the place where each metric keeps its automaton of a task, so that a task is looked up
//! once per element.

use rustc_hash::FxHashMap;

use super::group::take_memory;

/// Places for tasks that are found without asking the index.
const NEAR: usize = 64;

/// The slot of nobody; the metrics keep their strangers there.
pub(super) const NOBODY: u32 = 0;

/// The slots of tasks.
///
/// A task has a slot as long as an automaton holds it. Who lets go leaves the slot as it is until what elements
/// have told is carried out ([`Tasks::sweep`]): what was looked up before stays true.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Tasks that were found lately and their slots, by the low bits of the task.
    near: [(u32, u32); NEAR],
    index: FxHashMap<u32, u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that nobody may hold.
    idle: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    task: u32,
    /// How many automata hold it.
    holders: u32,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            near: [(0, NOBODY); NEAR],
            index: FxHashMap::default(),
            slots: vec![Slot::default()],
            free: Vec::new(),
            idle: Vec::new(),
        }
    }
}

impl Tasks {
    /// The slot of a task, a new one if it has none. Task 0 is nobody.
    #[inline(always)]
    pub(super) fn slot(&mut self, task: u32) -> u32 {
        let (known, slot) = self.near[task as usize % NEAR];
        if known == task {
            return slot;
        }
        self.ask_index(task)
    }

    #[inline(never)]
    fn ask_index(&mut self, task: u32) -> u32 {
        if task == 0 {
            return NOBODY;
        }
        let slot = match self.index.get(&task) {
            Some(&slot) => slot,
            None => self.give(task),
        };
        self.near[task as usize % NEAR] = (task, slot);
        slot
    }

    fn give(&mut self, task: u32) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("there are fewer automata than task ids")
        });
        self.slots[slot as usize].task = task;
        self.index.insert(task, slot);
        self.idle.push(slot);
        slot
    }

    /// Takes the memory for so many slots at once.
    pub(super) fn reserve(&mut self, slots: usize) {
        // An index that is half empty puts itself in order where it is.
        self.index.reserve(2 * slots);
        take_memory(&mut self.slots, slots);
        take_memory(&mut self.free, slots);
        // A slot may stand here twice.
        take_memory(&mut self.idle, 2 * slots);
    }

    /// The slot that the task has.
    pub(super) fn find(&self, task: u32) -> Option<u32> {
        self.index.get(&task).copied()
    }

    /// The task that has the slot.
    pub(super) fn of(&self, slot: u32) -> u32 {
        self.slots[slot as usize].task
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// An automaton holds the slot.
    pub(super) fn hold(&mut self, slot: u32) {
        self.slots[slot as usize].holders += 1;
    }

    /// An automaton holds it no longer.
    pub(super) fn let_go(&mut self, slot: u32) {
        let held = &mut self.slots[slot as usize];
        held.holders -= 1;
        if held.holders == 0 {
            self.idle.push(slot);
        }
    }

    /// Takes the slots back that nobody holds.
    #[inline(always)]
    pub(super) fn sweep(&mut self) {
        if !self.idle.is_empty() {
            self.take_back();
        }
    }

    #[inline(never)]
    fn take_back(&mut self) {
        while let Some(slot) = self.idle.pop() {
            let Slot { task, holders } = self.slots[slot as usize];
            // It may have found a holder, or stand here twice.
            if holders == 0 && task != 0 {
                self.forget(task);
                self.slots[slot as usize] = Slot::default();
                self.free.push(slot);
            }
        }
    }

    fn forget(&mut self, task: u32) {
        self.index.remove(&task);
        self.near[task as usize % NEAR] = (0, NOBODY);
    }

    /// The task of this slot goes on under another id, which nobody has.
    pub(super) fn rename(&mut self, slot: u32, new: u32) {
        self.forget(self.of(slot));
        self.near[new as usize % NEAR] = (0, NOBODY);
        self.slots[slot as usize].task = new;
        self.index.insert(new, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::{Tasks, NOBODY};

    #[test]
    fn slots_are_given_again_once_nobody_holds_them() {
        let mut tasks = Tasks::default();
        assert_eq!(tasks.slot(0), NOBODY);
        let first = tasks.slot(7);
        tasks.hold(first);
        tasks.hold(first);
        tasks.sweep();
        // Nobody holds this one, and it is kept only as long as the element lasts.
        let second = tasks.slot(7 + 64);
        assert_ne!(first, second);
        assert_eq!(tasks.slot(7 + 64), second);
        tasks.sweep();
        assert_eq!((tasks.find(7), tasks.find(7 + 64)), (Some(first), None));
        assert_eq!(tasks.slot(7 + 128), second);
        tasks.let_go(first);
        tasks.let_go(first);
        assert_eq!(tasks.slot(7), first);
        tasks.sweep();
        assert_eq!(tasks.find(7), None);
    }

    #[test]
    fn a_renamed_task_keeps_its_slot() {
        let mut tasks = Tasks::default();
        let slot = tasks.slot(7);
        tasks.hold(slot);
        tasks.rename(slot, 9);
        assert_eq!((tasks.find(7), tasks.slot(9)), (None, slot));
        tasks.sweep();
        assert_eq!((tasks.of(slot), tasks.find(9)), (9, Some(slot)));
    }
}
