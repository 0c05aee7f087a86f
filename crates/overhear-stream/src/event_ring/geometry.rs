// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of an event ring (section 10 of the layout page).

use crate::words::Words;

/// The largest capacity of an event ring.
pub const MAX_RING_CAPACITY: u64 = 1 << 20;
/// Maximum bytes of data of one event: the size has 16 bits.
pub const MAX_EVENT_DATA: u32 = 65_535;

/// Words from one control line to the next: two cache lines, because CPUs fetch lines in pairs.
/// Fewer under loom, which tracks every word.
const CONTROL_STRIDE: usize = if cfg!(loom) { 2 } else { 16 };

pub(super) const HEAD_WORD: usize = 0;
/// A word that is never loaded: see `load`.
#[cfg(loom)]
pub(super) const UNUSED_WORD: usize = 1;
pub(super) const TAIL_WORD: usize = CONTROL_STRIDE;
pub(super) const VOIDS_WORD: usize = CONTROL_STRIDE + 1;
pub(super) const SLOTS_WORD: usize = 2 * CONTROL_STRIDE;

/// Words of a slot.
pub(super) const TURN: usize = 0;
pub(super) const STAMP: usize = 1;
pub(super) const ADDRESS: usize = 2;
pub(super) const THREAD: usize = 3;
pub(super) const WRITER: usize = 4;
pub(super) const KIND: usize = 5;
pub(super) const DATA: usize = 6;

/// Bits of a position that the memory holds; the 16 others of a word are a count.
const POSITION_BITS: u32 = 48;
const COUNT_BITS: u32 = 64 - POSITION_BITS;
const POSITION_MASK: u64 = u64::MAX >> COUNT_BITS;

const _: () = {
    assert!(cfg!(loom) || HEAD_WORD * 8 == 0);
    assert!(cfg!(loom) || TAIL_WORD * 8 == 128);
    assert!(cfg!(loom) || VOIDS_WORD * 8 == 136);
    assert!(cfg!(loom) || SLOTS_WORD * 8 == 256);
    assert!(TURN * 8 == 0);
    assert!(STAMP * 8 == 8);
    assert!(ADDRESS * 8 == 16);
    assert!(THREAD * 8 == 24);
    assert!(WRITER * 8 == 32);
    assert!(KIND * 8 == 40);
    assert!(DATA * 8 == 48);
};

/// An event ring of these sizes, or in this memory, is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The capacity is no power of two, or out of range.
    #[error("a capacity of {0} events is not a power of two from 2 to 2^20; round it up to one")]
    BadCapacity(u64),
    /// An event may have too much data.
    #[error("{0} bytes of data of one event exceed {MAX_EVENT_DATA}; write several events")]
    BadData(u32),
    /// The memory is smaller than the geometry requires.
    #[error("the memory has {found} words, but the event ring needs {needed}")]
    TooSmall {
        /// Words of the memory.
        found: usize,
        /// Required words.
        needed: usize,
    },
}

/// The sizes of an event ring. Its creator keeps them; they are never read from the ring.
///
/// Holding one proves that the capacity is a power of two from 2 to 2^20 and that the size fits
/// into an `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingGeometry {
    /// Base-2 logarithm of the capacity, 1 to 20.
    slot_bits: u32,
    /// At most [`MAX_EVENT_DATA`].
    data_bytes: u32,
    stride_words: usize,
}

impl RingGeometry {
    /// A ring of `capacity` events, each of which has up to `data_bytes` bytes of data.
    ///
    /// # Errors
    /// [`RingError::BadCapacity`], [`RingError::BadData`].
    pub const fn new(capacity: u64, data_bytes: u32) -> Result<Self, RingError> {
        if !capacity.is_power_of_two() || capacity < 2 || capacity > MAX_RING_CAPACITY {
            return Err(RingError::BadCapacity(capacity));
        }
        if data_bytes > MAX_EVENT_DATA {
            return Err(RingError::BadData(data_bytes));
        }
        let stride_words = DATA + (data_bytes as usize).div_ceil(8);
        let words = (stride_words + 1).saturating_mul(capacity as usize);
        // On a machine of 32 bits.
        if words > isize::MAX as usize / 8 - SLOTS_WORD {
            return Err(RingError::BadCapacity(capacity));
        }
        Ok(Self {
            slot_bits: capacity.trailing_zeros(),
            data_bytes,
            stride_words,
        })
    }

    /// Number of events that the ring holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        1 << self.slot_bits
    }

    /// Maximum bytes of data of one event.
    #[must_use]
    pub const fn data_bytes(&self) -> u32 {
        self.data_bytes
    }

    /// Bytes from one slot to the next.
    #[must_use]
    pub const fn stride_bytes(&self) -> usize {
        self.stride_words * 8
    }

    /// Size of the ring in words of 8 bytes.
    #[must_use]
    pub const fn words(&self) -> usize {
        SLOTS_WORD + (self.stride_words + 1) * self.capacity() as usize
    }

    pub(super) fn check_size(&self, words: &impl Words) -> Result<(), RingError> {
        let (found, needed) = (words.len(), self.words());
        if found < needed {
            return Err(RingError::TooSmall { found, needed });
        }
        Ok(())
    }

    pub(super) const fn stride_words(&self) -> usize {
        self.stride_words
    }

    /// The first word of a position's slot. In bounds for any number.
    #[inline(always)]
    pub(super) const fn slot_word(&self, position: u64) -> usize {
        SLOTS_WORD + self.slot(position) * self.stride_words
    }

    /// The word that counts the void positions of a position's slot. In bounds for any number.
    #[inline(always)]
    pub(super) const fn void_word(&self, position: u64) -> usize {
        SLOTS_WORD + self.stride_words * self.capacity() as usize + self.slot(position)
    }

    #[inline(always)]
    const fn slot(&self, position: u64) -> usize {
        (position & (self.capacity() - 1)) as usize
    }

    /// The lap of a position, cut to the bits that a turn has.
    #[inline(always)]
    pub(super) const fn lap(&self, position: u64) -> Lap {
        Lap((position & POSITION_MASK) >> self.slot_bits)
    }

    /// Distance from one lap to another, as [`ahead`].
    #[inline(always)]
    pub(super) const fn laps_ahead(&self, lap: Lap, from: Lap) -> i64 {
        ahead(lap.0 << self.slot_bits, from.0 << self.slot_bits) >> self.slot_bits
    }

    /// The turn of a slot whose next lap is this one, without its count.
    #[inline(always)]
    pub(super) const fn free_for(&self, lap: Lap) -> u64 {
        (lap.0 & (POSITION_MASK >> self.slot_bits)) << 1
    }
}

/// Distance from one position to another. Half of the numbers count as ahead, so wrapping around is
/// no special case.
#[inline(always)]
pub(super) const fn ahead(position: u64, from: u64) -> i64 {
    (position.wrapping_sub(from) << COUNT_BITS) as i64 >> COUNT_BITS
}

/// The lap of a position: position / capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lap(u64);

impl Lap {
    #[inline(always)]
    pub(super) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The `head` word: the position of the next event, and the low bits of the number of void
/// positions before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head(pub(super) u64);

impl Head {
    #[inline(always)]
    pub(super) const fn new(position: u64, voids: u16) -> Self {
        Self(position << COUNT_BITS | voids as u64)
    }

    #[inline(always)]
    pub(super) const fn position(self) -> u64 {
        self.0 >> COUNT_BITS
    }

    #[inline(always)]
    pub(super) const fn voids(self) -> u16 {
        self.0 as u16
    }

    /// The head after an event.
    #[inline(always)]
    pub(super) const fn after_event(self) -> Self {
        Self::new(self.position().wrapping_add(1), self.voids())
    }

    /// The head after a void position.
    #[inline(always)]
    pub(super) const fn after_void(self) -> Self {
        Self::new(
            self.position().wrapping_add(1),
            self.voids().wrapping_add(1),
        )
    }
}

/// The `turn` word of a slot. Bit 0: an event is being written into it. Bits 1 to 47: the lap after
/// that of the slot's newest event, 0 at the beginning. Bits 48 to 63: the number of void positions
/// of this slot before that event, cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(pub(super) u64);

impl Turn {
    #[inline(always)]
    pub(super) const fn busy(geometry: &RingGeometry, lap: Lap, voids: u16) -> Self {
        Self(geometry.free_for(lap.next()) | 1 | (voids as u64) << POSITION_BITS)
    }

    #[inline(always)]
    pub(super) const fn done(geometry: &RingGeometry, lap: Lap, voids: u16) -> Self {
        Self(geometry.free_for(lap.next()) | (voids as u64) << POSITION_BITS)
    }

    /// Without the count.
    #[inline(always)]
    pub(super) const fn progress(self) -> u64 {
        self.0 & POSITION_MASK
    }

    #[inline(always)]
    pub(super) const fn is_busy(self) -> bool {
        self.0 & 1 == 1
    }

    /// The lap after that of the newest event.
    #[inline(always)]
    pub(super) const fn next_lap(self) -> Lap {
        Lap(self.progress() >> 1)
    }

    #[inline(always)]
    pub(super) const fn voids(self) -> u16 {
        (self.0 >> POSITION_BITS) as u16
    }
}

/// The void word of a slot: the lap after that of the newest void position, 0 if there is none, and
/// the low bits of the number of void positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Voids(pub(super) u64);

impl Voids {
    #[inline(always)]
    pub(super) const fn count(self) -> u16 {
        self.0 as u16
    }

    /// Whether the newest one is of this lap.
    #[inline(always)]
    pub(super) const fn newest_is(self, geometry: &RingGeometry, lap: Lap) -> bool {
        self.0 >> COUNT_BITS == geometry.free_for(lap.next()) >> 1 && self.0 >> COUNT_BITS != 0
    }

    /// With one of this lap more.
    pub(super) const fn with(self, geometry: &RingGeometry, lap: Lap) -> Self {
        let count = self.count().wrapping_add(1) as u64;
        let newest = Lap(self.0 >> COUNT_BITS);
        let next = Lap(geometry.free_for(lap.next()) >> 1);
        let newest = if geometry.laps_ahead(next, newest) > 0 {
            next
        } else {
            newest
        };
        Self(newest.0 << COUNT_BITS | count)
    }
}
