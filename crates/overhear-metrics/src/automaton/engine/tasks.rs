// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slots of tasks: the index at which each metric keeps its automaton of a task, so that a task is
//! looked up once per element.

use rustc_hash::FxHashMap;

use super::memory::reserve_and_touch;

/// Tasks that are found without the hash map.
const TASK_CACHE_SLOTS: usize = 64;

/// The slot of no task; each metric keeps its template instance there.
pub(super) const SLOT_NONE: u32 = 0;

/// The slots of tasks.
///
/// A task has a slot as long as an automaton holds it. A slot that loses its last holder stays as
/// it is until the current inputs are applied ([`Tasks::sweep`]), so that slots found before stay
/// valid.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Indexed by the low bits of the task: the task found last, and its slot.
    cache: [(u32, u32); TASK_CACHE_SLOTS],
    /// From task to slot.
    index: FxHashMap<u32, u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that may have no holder; a slot may be listed twice.
    unheld: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// 0 if the slot is free.
    task: u32,
    /// Number of automata that hold the slot.
    holders: u32,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            cache: [(0, SLOT_NONE); TASK_CACHE_SLOTS],
            index: FxHashMap::default(),
            slots: vec![Slot::default()],
            free: Vec::new(),
            unheld: Vec::new(),
        }
    }
}

impl Tasks {
    /// The slot of a task, a new one if it has none. Task 0 is no task.
    #[inline(always)]
    pub(super) fn slot(&mut self, task: u32) -> u32 {
        let (known, slot) = self.cache[task as usize % TASK_CACHE_SLOTS];
        if known == task {
            return slot;
        }
        self.find_or_allocate(task)
    }

    #[inline(never)]
    fn find_or_allocate(&mut self, task: u32) -> u32 {
        if task == 0 {
            return SLOT_NONE;
        }
        let slot = match self.index.get(&task) {
            Some(&slot) => slot,
            None => self.allocate(task),
        };
        self.cache[task as usize % TASK_CACHE_SLOTS] = (task, slot);
        slot
    }

    fn allocate(&mut self, task: u32) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("there are fewer automata than task ids")
        });
        self.slots[slot as usize].task = task;
        self.index.insert(task, slot);
        self.unheld.push(slot);
        slot
    }

    /// Takes the memory for this number of slots.
    pub(super) fn reserve(&mut self, slots: usize) {
        // Twice the size: a map that is at most half full rehashes in place.
        self.index.reserve(2 * slots);
        reserve_and_touch(&mut self.slots, slots);
        reserve_and_touch(&mut self.free, slots);
        // A slot may be listed twice.
        reserve_and_touch(&mut self.unheld, 2 * slots);
    }

    /// The slot of a task, if it has one.
    pub(super) fn find(&self, task: u32) -> Option<u32> {
        self.index.get(&task).copied()
    }

    /// The task of a slot.
    pub(super) fn task_of(&self, slot: u32) -> u32 {
        self.slots[slot as usize].task
    }

    /// The number of slots, free ones included.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// An automaton holds the slot from here on.
    pub(super) fn hold(&mut self, slot: u32) {
        self.slots[slot as usize].holders += 1;
    }

    /// An automaton no longer holds the slot.
    pub(super) fn release(&mut self, slot: u32) {
        let held = &mut self.slots[slot as usize];
        held.holders -= 1;
        if held.holders == 0 {
            self.unheld.push(slot);
        }
    }

    /// Frees the slots without a holder.
    #[inline(always)]
    pub(super) fn sweep(&mut self) {
        if !self.unheld.is_empty() {
            self.free_unheld();
        }
    }

    #[inline(never)]
    fn free_unheld(&mut self) {
        while let Some(slot) = self.unheld.pop() {
            let Slot { task, holders } = self.slots[slot as usize];
            // It may have got a holder since, or be listed twice and free already.
            if holders == 0 && task != 0 {
                self.forget(task);
                self.slots[slot as usize] = Slot::default();
                self.free.push(slot);
            }
        }
    }

    fn forget(&mut self, task: u32) {
        self.index.remove(&task);
        self.cache[task as usize % TASK_CACHE_SLOTS] = (0, SLOT_NONE);
    }

    /// Gives the task of this slot another id, which no task has.
    pub(super) fn rename(&mut self, slot: u32, new: u32) {
        self.forget(self.task_of(slot));
        self.cache[new as usize % TASK_CACHE_SLOTS] = (0, SLOT_NONE);
        self.slots[slot as usize].task = new;
        self.index.insert(new, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::{Tasks, SLOT_NONE};

    #[test]
    fn unheld_slots_are_reused_after_a_sweep() {
        let mut tasks = Tasks::default();
        assert_eq!(tasks.slot(0), SLOT_NONE);
        let first = tasks.slot(7);
        tasks.hold(first);
        tasks.hold(first);
        tasks.sweep();
        // This one has no holder: it stays only until the sweep.
        let second = tasks.slot(7 + 64);
        assert_ne!(first, second);
        assert_eq!(tasks.slot(7 + 64), second);
        tasks.sweep();
        assert_eq!((tasks.find(7), tasks.find(7 + 64)), (Some(first), None));
        assert_eq!(tasks.slot(7 + 128), second);
        tasks.release(first);
        tasks.release(first);
        assert_eq!(tasks.slot(7), first);
        tasks.sweep();
        assert_eq!(tasks.find(7), None);
    }

    #[test]
    fn renamed_task_keeps_its_slot() {
        let mut tasks = Tasks::default();
        let slot = tasks.slot(7);
        tasks.hold(slot);
        tasks.rename(slot, 9);
        assert_eq!((tasks.find(7), tasks.slot(9)), (None, slot));
        tasks.sweep();
        assert_eq!((tasks.task_of(slot), tasks.find(9)), (9, Some(slot)));
    }
}
