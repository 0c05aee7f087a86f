// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of words that the programs and their owner share (`struct shared` in `monitors.h`).

use overhear_stream::sync::Ordering;
use overhear_stream::Words;

use crate::mapping::MappedWords;

/// How many monitors one set of programs serves.
pub(crate) const MONITORS: u32 = 64;
/// How many rings a monitor can have on each CPU.
pub(crate) const SLOTS: u32 = 64;
/// Bytes of the whole.
pub(crate) const SHARED_BYTES: usize = (64 + (MONITORS * SLOTS) as usize) * 8;

/// The members by their place, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedWord {
    Active = 0,
    Live = 1,
    Everything = 2,
    ByCgroup = 3,
    CgroupMoves = 4,
    Operation = 5,
    Monitor = 6,
    Inherit = 7,
    UniqueId = 8,
    Announce = 9,
    Seen = 10,
    Changed = 11,
    Failed = 12,
    Held = 14,
    Shapes = 64,
}

/// What the program `select` does with the tasks that it is run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Tracks them.
    Track = 1,
    /// Tracks them no more, and says so in the monitor's streams.
    Untrack = 2,
    /// Tracks them no more, in silence: the monitor has no streams any longer.
    Forget = 3,
    /// Tracks those in the monitor's cgroups, and no more those that have left them.
    Regroup = 4,
}

/// Access to the words. None of them orders anything else: the programs and this process take
/// turns through system calls wherever order matters.
pub(crate) struct SharedPage(pub(crate) MappedWords);

impl SharedPage {
    pub(crate) fn load(&self, member: SharedWord) -> u64 {
        self.0.word(member as usize).load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self, member: SharedWord, value: u64) {
        let word = self.0.word(member as usize);
        word.store(value, Ordering::Relaxed);
    }

    /// Puts a monitor into a set, or takes it out. Only the owner of the programs changes sets,
    /// and its calls take turns.
    pub(crate) fn set(&self, member: SharedWord, monitor: u32, is_in: bool) {
        let bit = 1 << monitor;
        let set = self.load(member);
        self.store(member, if is_in { set | bit } else { set & !bit });
    }

    /// Says how the rings of one hook of a monitor are laid out.
    pub(crate) fn shape(&self, index: u32, pages: u32, capacity: u64) {
        let shape = u64::from(pages) << 32 | (capacity - 1);
        let word = self.0.word(SharedWord::Shapes as usize + index as usize);
        word.store(shape, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{SharedWord, MONITORS, SLOTS};

    /// The words of `struct shared` in their order, reserved ones counted.
    #[test]
    fn c_struct_has_the_same_words() {
        let header = include_str!("monitors.h");
        assert!(header.contains(&format!("MONITORS = {MONITORS}, SLOTS = {SLOTS},")));
        let (_, body) = header.split_once("struct shared {").unwrap();
        let (body, _) = body.split_once("};").unwrap();
        let mut place = 0;
        let mut places = std::collections::BTreeMap::new();
        for line in body
            .lines()
            .filter_map(|line| line.trim().strip_prefix("u64 "))
        {
            let (name, _) = line.split_once(';').unwrap();
            let (name, count) = match name.split_once('[') {
                Some(("reserved", count)) => {
                    ("reserved", count.trim_end_matches(']').parse().unwrap())
                }
                Some((name, _)) => (name, 1),
                None => (name, 1),
            };
            places.insert(name.to_owned(), place);
            place += count;
        }
        for (name, member) in [
            ("active", SharedWord::Active),
            ("live", SharedWord::Live),
            ("everything", SharedWord::Everything),
            ("by_cgroup", SharedWord::ByCgroup),
            ("cgroup_moves", SharedWord::CgroupMoves),
            ("operation", SharedWord::Operation),
            ("monitor", SharedWord::Monitor),
            ("inherit", SharedWord::Inherit),
            ("unique_id", SharedWord::UniqueId),
            ("announce", SharedWord::Announce),
            ("seen", SharedWord::Seen),
            ("changed", SharedWord::Changed),
            ("failed", SharedWord::Failed),
            ("held", SharedWord::Held),
            ("shapes", SharedWord::Shapes),
        ] {
            assert_eq!(places.get(name), Some(&(member as usize)), "{name}");
        }
    }
}
