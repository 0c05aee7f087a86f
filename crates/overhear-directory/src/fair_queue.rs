// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair queue: users are served round robin, however many items each has in the queue. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A queue in which a user's item waits for at most one item of each other user.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    // Users with items in the queue, the next one first.
    turns: VecDeque<u32>,
    waiting: BTreeMap<u32, VecDeque<T>>,
    members: BTreeSet<T>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            turns: VecDeque::new(),
            waiting: BTreeMap::new(),
            members: BTreeSet::new(),
        }
    }
}

impl<T: Copy + Ord> FairQueue<T> {
    /// Appends an item of a user, unless it is in the queue already.
    pub(crate) fn push(&mut self, uid: u32, item: T) {
        if self.members.insert(item) {
            let waiting = self.waiting.entry(uid).or_insert_with(|| {
                self.turns.push_back(uid);
                VecDeque::new()
            });
            waiting.push_back(item);
        }
    }

    /// Takes the oldest item of the next user.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let uid = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&uid)?;
        let item = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&uid);
        } else {
            self.turns.push_back(uid);
        }
        if let Some(item) = &item {
            self.members.remove(item);
        }
        item
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::FairQueue;

    #[test]
    fn users_take_turns() {
        let mut queue = FairQueue::default();
        for item in 0..5 {
            queue.push(1, item);
            queue.push(1, item);
        }
        queue.push(2, 100);
        queue.push(3, 200);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 100, 200, 1, 2, 3, 4]);
        assert!(queue.is_empty());
    }

    proptest! {
        /// Every item comes out once, those of a user in order. Between two items of a user there
        /// is at most one item of each other user.
        #[test]
        fn item_waits_for_at_most_one_of_each_other_user(items in prop::collection::vec((0_u32..5, prop::bool::ANY), 0..100)) {
            let mut queue = FairQueue::default();
            let (mut pushed, mut popped) = (0_u32, Vec::new());
            for (number, (uid, pops)) in (0_u32..).zip(items) {
                queue.push(uid, (uid, number));
                pushed += 1;
                if pops {
                    popped.extend(queue.pop());
                }
            }
            popped.extend(std::iter::from_fn(|| queue.pop()));
            prop_assert_eq!(popped.len() as u32, pushed);
            for uid in 0..5 {
                let own: Vec<u32> = popped.iter().filter(|(of, _)| *of == uid).map(|(_, n)| *n).collect();
                prop_assert!(own.is_sorted());
            }
            prop_assert!(queue.is_empty());
        }
    }
}
