// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of an element that a trial needs, and the groups that are judged separately.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use overhear_event::{Nanos, Timestamp};

use super::tally::Tally;
use crate::automaton::Position;

/// Largest number of groups of a constraint at a time.
const GROUPS: usize = 16_384;

/// An element of a constraint's events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    /// Time of the event.
    pub(super) time: Timestamp,
    /// Largest error of its time stamp.
    pub(super) error: Nanos,
    /// Largest error of its time stamp against that of any other stream.
    pub(super) margin: Nanos,
    pub(super) position: Position,
    pub(super) task: Option<u32>,
    pub(super) group: u64,
    /// Process or task whose end ends the group.
    pub(super) owner: Option<u32>,
}

impl Hit {
    /// Largest error of the distance between two elements: zero within one stream, which has one
    /// writer and one clock.
    pub(super) fn error_to(&self, other: &Self) -> Nanos {
        match self.position.stream == other.position.stream {
            true => Nanos::ZERO,
            false => self.error.plus(other.error),
        }
    }
}

/// Groups by key, in bounded number, with the time at which each is due.
#[derive(Debug)]
pub(super) struct Groups<G> {
    groups: HashMap<u64, Entry<G>>,
    timers: BinaryHeap<Reverse<(Timestamp, u64)>>,
}

#[derive(Debug)]
struct Entry<G> {
    group: G,
    owner: Option<u32>,
    // Contains the group's own timer.
    armed: bool,
}

impl<G> Default for Groups<G> {
    fn default() -> Self {
        Self {
            groups: HashMap::new(),
            timers: BinaryHeap::new(),
        }
    }
}

impl<G: Default> Groups<G> {
    /// The group of this element; `None` if there are too many.
    pub(super) fn of(&mut self, hit: &Hit, tally: &mut Tally) -> Option<&mut G> {
        if self.groups.len() >= GROUPS && !self.groups.contains_key(&hit.group) {
            tally.refused += 1;
            return None;
        }
        let entry = self.groups.entry(hit.group).or_insert_with(|| Entry {
            group: G::default(),
            owner: hit.owner,
            armed: false,
        });
        Some(&mut entry.group)
    }

    /// Whether this group exists.
    pub(super) fn contains(&self, key: u64) -> bool {
        self.groups.contains_key(&key)
    }

    /// Creates this group if it does not exist and there is room: something is known of it before
    /// its first element. It ends with its owner, even if no element comes.
    pub(super) fn meet(&mut self, key: u64, owner: Option<u32>) {
        if self.groups.len() < GROUPS {
            self.groups.entry(key).or_insert_with(|| Entry {
                group: G::default(),
                owner,
                armed: false,
            });
        }
    }

    /// Makes the group due after this time. A group has one timer: when that expires, the group
    /// sets the next one.
    pub(super) fn arm(&mut self, key: u64, due: Timestamp) {
        if let Some(entry) = self.groups.get_mut(&key) {
            if !entry.armed {
                entry.armed = true;
                self.timers.push(Reverse((due, key)));
            }
        }
    }

    /// Visits every group that is due before `now`. `look` returns the time at which it is due
    /// again.
    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        mut look: impl FnMut(&mut G) -> Option<Timestamp>,
    ) {
        while let Some(&Reverse((due, key))) = self.timers.peek() {
            if due >= now {
                return;
            }
            self.timers.pop();
            let Some(entry) = self.groups.get_mut(&key) else {
                continue;
            };
            entry.armed = false;
            if let Some(next) = look(&mut entry.group) {
                self.arm(key, next);
            }
        }
    }

    /// All groups, or the named one.
    pub(super) fn each(&mut self, only: Option<u64>, mut take: impl FnMut(&mut G)) {
        match only {
            Some(key) => {
                if let Some(entry) = self.groups.get_mut(&key) {
                    take(&mut entry.group);
                }
            }
            None => self
                .groups
                .values_mut()
                .for_each(|entry| take(&mut entry.group)),
        }
    }

    /// The task or process has ended: removes those of its groups that expect nothing any more.
    pub(super) fn end(&mut self, task: u32, is_over: impl Fn(&G) -> bool) {
        self.groups
            .retain(|_, entry| entry.owner != Some(task) || !is_over(&entry.group));
    }
}
