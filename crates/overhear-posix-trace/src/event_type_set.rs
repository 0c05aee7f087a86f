// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of event types.

use crate::EventId;

/// A set of event types: `trace_event_set_t`. Bit n of the words is the event type n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct EventTypeSet {
    bits: [u64; 5],
}

const _: () = assert!(EventId::COUNT == 5 * 64);

impl EventTypeSet {
    /// The set without members.
    pub const EMPTY: Self = Self { bits: [0; 5] };
    /// Every event type.
    pub const ALL: Self = Self {
        bits: [u64::MAX - 1, u64::MAX, u64::MAX, u64::MAX, u64::MAX],
    };
    /// The system event types of the standard and of Linux.
    pub const SYSTEM: Self = Self {
        bits: [u64::MAX - 1, 0, 0, 0, 0],
    };
    /// The event types of Linux: they do not depend on a process.
    pub const KERNEL: Self = Self {
        bits: [u64::MAX << 16, 0, 0, 0, 0],
    };

    /// The set of the given words; bits of no event type are ignored.
    #[must_use]
    pub const fn from_words(words: [u64; 5]) -> Self {
        Self { bits: words }.intersection(Self::ALL)
    }

    /// The words: bit n is the event type n.
    #[must_use]
    pub const fn words(self) -> [u64; 5] {
        self.bits
    }

    /// Adds an event type.
    pub fn insert(&mut self, event: EventId) {
        self.bits[event.index() / 64] |= 1 << (event.index() % 64);
    }

    /// Removes an event type.
    pub fn remove(&mut self, event: EventId) {
        self.bits[event.index() / 64] &= !(1 << (event.index() % 64));
    }

    /// Whether the event type is a member.
    #[must_use]
    pub const fn contains(&self, event: EventId) -> bool {
        self.bits[event.index() / 64] >> (event.index() % 64) & 1 == 1
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The members of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        let (a, b) = (self.bits, other.bits);
        Self {
            bits: [
                a[0] | b[0],
                a[1] | b[1],
                a[2] | b[2],
                a[3] | b[3],
                a[4] | b[4],
            ],
        }
    }

    /// The members of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        let (a, b) = (self.bits, other.bits);
        Self {
            bits: [
                a[0] & b[0],
                a[1] & b[1],
                a[2] & b[2],
                a[3] & b[3],
                a[4] & b[4],
            ],
        }
    }

    /// The members of this set that are not in the other.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        let b = other.bits;
        self.intersection(Self {
            bits: [!b[0], !b[1], !b[2], !b[3], !b[4]],
        })
    }

    /// The members, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = EventId> {
        (1..EventId::COUNT as u32)
            .filter_map(EventId::from_raw)
            .filter(move |event| self.contains(*event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_agree_with_lists_of_members() {
        let mut set = EventTypeSet::EMPTY;
        for event in [
            EventId::START,
            EventId::UNNAMED,
            EventId::user(255).unwrap(),
        ] {
            set.insert(event);
            assert!(set.contains(event));
        }
        assert_eq!(set.iter().count(), 3);
        set.remove(EventId::UNNAMED);
        assert!(!set.contains(EventId::UNNAMED));
        assert_eq!(set.difference(EventTypeSet::SYSTEM).iter().count(), 1);
        assert_eq!(
            EventTypeSet::ALL.difference(EventTypeSet::ALL),
            EventTypeSet::EMPTY
        );
        assert_eq!(EventTypeSet::SYSTEM.union(set).iter().count(), 63 + 1);
        assert!(EventTypeSet::KERNEL.iter().all(EventId::is_kernel));
        assert_eq!(EventTypeSet::KERNEL.iter().count(), 48);
        assert_eq!(EventTypeSet::from_words([u64::MAX; 5]), EventTypeSet::ALL);
    }
}
