// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's cache of its ids and its lanes, so that a write needs no system call and no search.
//!
//! # Protocol
//!
//! A slot belongs to one thread and to the signal handlers that interrupt it; no other thread looks
//! at it. It is zero when the thread begins. Every field is one word and changes by one store, so a
//! handler finds it as it was before or as it is after, and leaves it so.
//!
//! - `tid` and `number` are given once. A handler that comes between reads the tid itself, and
//!   the number is what the first exchange put there.
//! - An entry of `lanes` holds the key of a sensor and, in its lowest 13 bits, the lane that the
//!   thread has there, or [`NO_LANE`]. Keys are never used again, so what is left of a sensor that
//!   is gone is never found. A sensor has one entry that it may use, its key decides which; sensors
//!   that share an entry push each other out, which costs a search and no lane.
//! - Because key and lane are one word, an entry cannot be seen half replaced. With two words a
//!   handler could replace them between the two loads of the write that it interrupts.

use core::num::NonZeroU64;

use crate::lanes::Claimant;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How many sensors a thread remembers. The slot is part of the static thread-local memory, which
/// is small where a library was loaded by `dlopen`.
const THREAD_ENTRIES: usize = 16;
/// The lane of a thread that found none: behind the largest pool.
const NO_LANE: u64 = LANE_MASK;
const LANE_BITS: u32 = 13;
const LANE_MASK: u64 = (1 << LANE_BITS) - 1;

/// Names a registered sensor in the slots of threads. Never given twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct SensorKey(u64);

impl SensorKey {
    /// The next key. They last for 2^51 registrations.
    #[must_use]
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: nothing but the number itself matters.
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << LANE_BITS)
    }

    /// The key with all bits of the lane zero: what C compares with.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// Where the entry of this sensor lies in a slot, in bytes.
    #[must_use]
    pub const fn entry_offset(self) -> usize {
        let index = (self.0 >> LANE_BITS) as usize % THREAD_ENTRIES;
        core::mem::offset_of!(ThreadSlot, lanes) + index * 8
    }
}

/// The cached lane of a thread in a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// This is the lane.
    Lane(u32),
    /// The thread searched, and no lane was free.
    NoLane,
    /// Nothing.
    Nothing,
}

/// A thread's own memory of its lanes: 144 bytes, zero at the thread's beginning.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadSlot {
    // 0: not read yet.
    tid: AtomicU32,
    reserved: AtomicU32,
    // 0: not given yet.
    number: AtomicU64,
    lanes: [AtomicU64; THREAD_ENTRIES],
}

const _: () = assert!(size_of::<ThreadSlot>() == 144 && align_of::<ThreadSlot>() == 8);
const _: () = assert!((crate::shape::MAX_LANES as u64) < NO_LANE);

impl ThreadSlot {
    /// Nothing remembered.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            tid: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            number: AtomicU64::new(0),
            lanes: [const { AtomicU64::new(0) }; THREAD_ENTRIES],
        }
    }

    /// The calling thread. Its tid is read from the kernel once.
    #[must_use]
    pub fn identify(&self, gettid: impl FnOnce() -> u32) -> Claimant {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed throughout: one thread.
        let mut tid = self.tid.load(Ordering::Relaxed);
        if tid == 0 {
            tid = gettid();
            self.tid.store(tid, Ordering::Relaxed);
        }
        let known = self.number.load(Ordering::Relaxed);
        let number = NonZeroU64::new(known).unwrap_or_else(|| {
            let mine = NEXT.fetch_add(1, Ordering::Relaxed);
            // A handler may have come first.
            let relaxed = Ordering::Relaxed;
            let first = self.number.compare_exchange(0, mine, relaxed, relaxed);
            let number = first.err().unwrap_or(mine);
            NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX)
        });
        Claimant { tid, number }
    }

    /// What is remembered of this sensor.
    #[must_use]
    pub fn recall(&self, key: SensorKey) -> Remembered {
        // Relaxed: one thread.
        match self.entry(key).load(Ordering::Relaxed) ^ key.0 {
            NO_LANE => Remembered::NoLane,
            lane if lane < NO_LANE => Remembered::Lane(lane as u32),
            _ => Remembered::Nothing,
        }
    }

    /// Remembers the lane, or that there was none.
    pub fn remember(&self, key: SensorKey, lane: Option<u32>) {
        let lane = lane.map_or(NO_LANE, u64::from);
        // Relaxed: one thread.
        self.entry(key).store(key.0 | lane, Ordering::Relaxed);
    }

    /// Clears the slot: the child of a fork is another thread than that of its copied slot.
    pub fn forget(&self) {
        // Relaxed: one thread.
        self.lanes
            .iter()
            .chain([&self.number])
            .for_each(|word| word.store(0, Ordering::Relaxed));
        self.tid.store(0, Ordering::Relaxed);
    }

    /// The lane of the sensor with this key according to the entry at this address, or a number
    /// that is not below the largest pool: the whole look-up of a write, for a slot that is found
    /// by its distance from the thread pointer.
    ///
    /// # Safety
    /// The address is that of the key's entry in the slot of the calling thread.
    #[inline(always)]
    #[must_use]
    pub unsafe fn lane_at(entry: *mut u64, key: SensorKey) -> u64 {
        // SAFETY: by contract it is a word of a slot, whose words are accessed atomically only.
        let entry = unsafe { AtomicU64::from_ptr(entry) };
        // Relaxed: one thread.
        entry.load(Ordering::Relaxed) ^ key.0
    }

    fn entry(&self, key: SensorKey) -> &AtomicU64 {
        &self.lanes[(key.0 >> LANE_BITS) as usize % THREAD_ENTRIES]
    }
}

impl Default for ThreadSlot {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{Remembered, SensorKey, ThreadSlot, THREAD_ENTRIES};

    #[test]
    fn sensors_that_share_an_entry_push_each_other_out() {
        let slot = ThreadSlot::new();
        let keys: [SensorKey; 2 * THREAD_ENTRIES] = core::array::from_fn(|_| SensorKey::fresh());
        assert_eq!(slot.recall(keys[0]), Remembered::Nothing);
        keys.iter().zip(0..).for_each(|(key, lane)| {
            slot.remember(*key, Some(lane));
            assert_eq!(slot.recall(*key), Remembered::Lane(lane));
        });
        let lost = keys.map(|key| slot.recall(key) == Remembered::Nothing);
        // Keys of one process; other tests may have taken some in between.
        assert!(lost.iter().filter(|lost| **lost).count() >= THREAD_ENTRIES);
        slot.remember(keys[0], None);
        assert_eq!(slot.recall(keys[0]), Remembered::NoLane);
        slot.remember(keys[0], Some(4095));
        assert_eq!(slot.recall(keys[0]), Remembered::Lane(4095));
    }

    #[test]
    fn thread_is_asked_once_and_a_forked_child_again() {
        let slot = ThreadSlot::new();
        let first = slot.identify(|| 7);
        assert_eq!((first.tid, slot.identify(|| 8)), (7, first));
        let key = SensorKey::fresh();
        slot.remember(key, Some(1));
        slot.forget();
        assert_eq!(slot.recall(key), Remembered::Nothing);
        let second = slot.identify(|| 8);
        assert_eq!(second.tid, 8);
        assert_ne!(first.number, second.number);
    }

    #[test]
    fn entry_lies_where_its_offset_says() {
        let slot = ThreadSlot::new();
        let key = SensorKey::fresh();
        slot.remember(key, Some(3));
        let base = core::ptr::from_ref(&slot).cast_mut().cast::<u8>();
        // SAFETY: the entry is that of the key, in a slot that this thread alone has.
        let lane = unsafe { ThreadSlot::lane_at(base.add(key.entry_offset()).cast(), key) };
        assert_eq!(lane, 3);
    }
}
