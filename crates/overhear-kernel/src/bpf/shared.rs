// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of words that the programs and their owner share (`struct shared` in `monitors.h`).

use overhear_stream::sync::Ordering;
use overhear_stream::Words;

use crate::mapping::MappedWords;

/// Maximum number of monitors of one program set.
pub(crate) const MONITORS: u32 = 64;
/// Maximum number of rings of a monitor on each CPU.
pub(crate) const SLOTS: u32 = 64;
/// Size of the page in bytes.
pub(crate) const SHARED_BYTES: usize = (64 + (MONITORS * SLOTS + SLOTS) as usize) * 8;

/// The members, with their index in words.
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
    CallAttachments = 15,
    Shapes = 64,
    /// The first of a word per slot.
    Off = 64 + (MONITORS * SLOTS) as isize,
}

/// Operation of the program `select` on the tasks that it visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Start tracking them.
    Track = 1,
    /// Stop tracking them, and write that into the monitor's streams.
    Untrack = 2,
    /// Stop tracking them without an element: the monitor has no streams any more.
    Forget = 3,
    /// Track those in the monitor's cgroups, and stop tracking those that have left them.
    Regroup = 4,
}

/// Access to the words. No word orders other memory: where order matters, system calls of this
/// process separate its accesses from those of the programs.
pub(crate) struct SharedPage(pub(crate) MappedWords);

impl SharedPage {
    pub(crate) fn load(&self, member: SharedWord) -> u64 {
        self.0.word(member as usize).load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self, member: SharedWord, value: u64) {
        let word = self.0.word(member as usize);
        word.store(value, Ordering::Relaxed);
    }

    /// Adds a monitor to a set, or removes it. Only the owner of the programs changes sets, one
    /// call at a time.
    pub(crate) fn set(&self, member: SharedWord, monitor: u32, is_in: bool) {
        let bit = 1 << monitor;
        let set = self.load(member);
        self.store(member, if is_in { set | bit } else { set & !bit });
    }

    /// Sets whether a budget has switched off what a monitor writes into the rings of a slot.
    pub(crate) fn set_off(&self, slot: u32, monitor: u32, is_off: bool) {
        let word = SharedWord::Off as usize + slot.min(SLOTS - 1) as usize;
        let word = self.0.word(word);
        let (set, bit) = (word.load(Ordering::Relaxed), 1 << monitor);
        let set = if is_off { set | bit } else { set & !bit };
        word.store(set, Ordering::Relaxed);
    }

    /// Stores the layout of the rings of one hook of a monitor.
    pub(crate) fn shape(&self, index: u32, pages: u32, capacity: u64) {
        let shape = u64::from(pages) << 32 | (capacity - 1);
        let word = self.0.word(SharedWord::Shapes as usize + index as usize);
        word.store(shape, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{SharedWord, MONITORS, SLOTS};

    /// The words of `struct shared` in their order, including reserved ones.
    #[test]
    fn c_struct_has_the_same_words() {
        let header = include_str!("monitors.h");
        assert!(header.contains(&format!("MONITORS = {MONITORS}, SLOTS = {SLOTS},")));
        let (_, body) = header.split_once("struct shared {").unwrap();
        let (body, _) = body.split_once("};").unwrap();
        let mut place = 0_u32;
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
                Some((name, "MONITORS * SLOTS]")) => (name, MONITORS * SLOTS),
                Some((name, "SLOTS]")) => (name, SLOTS),
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
            ("call_attachments", SharedWord::CallAttachments),
            ("off", SharedWord::Off),
            ("held", SharedWord::Held),
            ("shapes", SharedWord::Shapes),
        ] {
            assert_eq!(places.get(name), Some(&(member as u32)), "{name}");
        }
    }
}
