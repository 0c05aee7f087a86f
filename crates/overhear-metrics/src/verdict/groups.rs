// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trial sees of an element, and the groups that are judged by themselves.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use overhear_event::{Nanos, Timestamp};

use super::tally::Tally;
use crate::automaton::Position;

/// How many groups a constraint may have at once.
const GROUPS: usize = 16_384;

/// An element that a constraint speaks of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    /// When the event was.
    pub(super) time: Timestamp,
    /// By how much its stamp may be wrong.
    pub(super) error: Nanos,
    /// By how much it may be wrong against that of any other stream.
    pub(super) margin: Nanos,
    pub(super) position: Position,
    pub(super) task: Option<u32>,
    pub(super) group: u64,
    /// The process or task whose end ends the group.
    pub(super) owner: Option<u32>,
}

impl Hit {
    /// By how much the distance of two elements may be wrong: not at all within one stream, which has
    /// one writer and one clock.
    pub(super) fn error_to(&self, other: &Self) -> Nanos {
        match self.position.stream == other.position.stream {
            true => Nanos::ZERO,
            false => self.error.plus(other.error),
        }
    }
}

/// Groups by their key, bounded, and when each of them has to be looked at.
#[derive(Debug)]
pub(super) struct Groups<G> {
    groups: HashMap<u64, Entry<G>>,
    timers: BinaryHeap<Reverse<(Timestamp, u64)>>,
}

#[derive(Debug)]
struct Entry<G> {
    group: G,
    owner: Option<u32>,
    // One of the timers is its own.
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
    /// The group of this element, `None` if there are too many.
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
    pub(super) fn knows(&self, key: u64) -> bool {
        self.groups.contains_key(&key)
    }

    /// Makes this group if it does not exist and there is room: something is known of it before its first
    /// element. It ends with its owner, whether or not one comes.
    pub(super) fn meet(&mut self, key: u64, owner: Option<u32>) {
        if self.groups.len() < GROUPS {
            self.groups.entry(key).or_insert_with(|| Entry {
                group: G::default(),
                owner,
                armed: false,
            });
        }
    }

    /// The group has to be looked at after this time. Only one timer per group is kept: when it
    /// expires, the group says when the next one is due.
    pub(super) fn arm(&mut self, key: u64, due: Timestamp) {
        if let Some(entry) = self.groups.get_mut(&key) {
            if !entry.armed {
                entry.armed = true;
                self.timers.push(Reverse((due, key)));
            }
        }
    }

    /// Looks at every group that is due before `now`. `look` returns when it is due again.
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

    /// All groups, or the one that is named.
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

    /// The task or process has ended: of its groups those go from which nothing is expected any more.
    pub(super) fn end(&mut self, task: u32, is_over: impl Fn(&G) -> bool) {
        self.groups
            .retain(|_, entry| entry.owner != Some(task) || !is_over(&entry.group));
    }
}
