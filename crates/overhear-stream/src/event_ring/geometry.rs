// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things lie in an event ring (section 10 of the layout page).

use crate::words::Words;

/// The largest capacity of an event ring: positions keep at least 44 bits of its head.
pub const MAX_RING_CAPACITY: u64 = 1 << 20;
/// Most bytes of data of one event.
pub const MAX_EVENT_DATA: u32 = 1 << 20;

/// Words from one control word to the next: each has two cache lines of its own, because CPUs
/// fetch lines in pairs. One under loom, which tracks every word.
const CONTROL_STRIDE: usize = if cfg!(loom) { 1 } else { 16 };

pub(super) const HEAD_WORD: usize = 0;
pub(super) const TAIL_WORD: usize = CONTROL_STRIDE;
/// A word that nobody loads: see `load`.
#[cfg(loom)]
pub(super) const UNUSED_WORD: usize = 2 * CONTROL_STRIDE;
pub(super) const SLOTS_WORD: usize = if cfg!(loom) { 3 } else { 2 * CONTROL_STRIDE };

/// Words of a slot.
pub(super) const TURN: usize = 0;
pub(super) const STAMP: usize = 1;
pub(super) const ADDRESS: usize = 2;
pub(super) const THREAD: usize = 3;
pub(super) const WRITER: usize = 4;
pub(super) const KIND: usize = 5;
pub(super) const DATA: usize = 6;

const _: () = {
    assert!(cfg!(loom) || HEAD_WORD * 8 == 0);
    assert!(cfg!(loom) || TAIL_WORD * 8 == 128);
    assert!(cfg!(loom) || SLOTS_WORD * 8 == 256);
    assert!(TURN * 8 == 0);
    assert!(STAMP * 8 == 8);
    assert!(ADDRESS * 8 == 16);
    assert!(THREAD * 8 == 24);
    assert!(WRITER * 8 == 32);
    assert!(KIND * 8 == 40);
    assert!(DATA * 8 == 48);
};

/// Why there is no event ring of these numbers, or not in this memory.
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

/// The layout of an event ring. Its creator remembers it; it is never read from shared memory.
///
/// Holding one proves that the capacity is a power of two from 2 to 2^20 and that the size fits
/// into an `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingGeometry {
    /// Base-2 logarithm of the capacity, 1 to 20: the bits of `head` that are the slot.
    slot_bits: u32,
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
        let slot_bits = capacity.trailing_zeros();
        let stride_words = DATA + (data_bytes as usize).div_ceil(8);
        let words = stride_words.saturating_mul(capacity as usize);
        // On a machine of 32 bits.
        if words > isize::MAX as usize / 8 - SLOTS_WORD {
            return Err(RingError::BadCapacity(capacity));
        }
        Ok(Self {
            slot_bits,
            data_bytes,
            stride_words,
        })
    }

    /// Number of events that the ring holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        1 << self.slot_bits
    }

    /// Most bytes of data of one event.
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
        SLOTS_WORD + self.stride_words * self.capacity() as usize
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

    /// The first word of a slot. In bounds for any number.
    #[inline(always)]
    pub(super) const fn slot_word(&self, slot: u64) -> usize {
        SLOTS_WORD + self.wrap(slot) as usize * self.stride_words
    }

    /// The slot of a number that runs on: cut to the capacity.
    #[inline(always)]
    pub(super) const fn wrap(&self, slot: u64) -> u64 {
        slot & (self.capacity() - 1)
    }

    /// The bits of a position that the memory holds.
    #[inline(always)]
    pub(super) const fn cut(&self, position: u64) -> u64 {
        position & (u64::MAX >> self.slot_bits)
    }

    /// How far one position lies before another. Half of the numbers count as ahead, so wrapping
    /// around is no special case.
    #[inline(always)]
    pub(super) const fn ahead(&self, position: u64, from: u64) -> i64 {
        (position.wrapping_sub(from) << self.slot_bits) as i64 >> self.slot_bits
    }

    /// Whether the position is one of the `capacity` positions from `first` on.
    #[inline(always)]
    pub(super) const fn is_within_lap(&self, position: u64, first: u64) -> bool {
        self.cut(position.wrapping_sub(first)) < self.capacity()
    }

    #[inline(always)]
    pub(super) const fn head(&self, word: u64) -> Head {
        Head {
            position: word >> self.slot_bits,
            slot: self.wrap(word),
        }
    }

    #[inline(always)]
    pub(super) const fn head_word(&self, head: Head) -> u64 {
        head.position << self.slot_bits | self.wrap(head.slot)
    }
}

/// The `head` word: the next event's position, and the slot that its writer looks at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Cut as by [`RingGeometry::cut`].
    pub(super) position: u64,
    pub(super) slot: u64,
}

/// A slot's `turn` word: the position of the newest event that has owned the slot, plus 1, times 2;
/// plus 1 while its writer fills the slot. Zero before the first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(pub(super) u64);

impl Turn {
    pub(super) const NEVER: Self = Self(0);

    #[inline(always)]
    pub(super) const fn held(geometry: &RingGeometry, position: u64) -> Self {
        Self(geometry.cut(position).wrapping_add(1) << 1 | 1)
    }

    #[inline(always)]
    pub(super) const fn published(geometry: &RingGeometry, position: u64) -> Self {
        Self(geometry.cut(position).wrapping_add(1) << 1)
    }

    #[inline(always)]
    pub(super) const fn is_held(self) -> bool {
        self.0 & 1 == 1
    }

    /// Cut as by [`RingGeometry::cut`]; for [`Self::NEVER`] the position before 0.
    #[inline(always)]
    pub(super) const fn position(self, geometry: &RingGeometry) -> u64 {
        geometry.cut((self.0 >> 1).wrapping_sub(1))
    }
}
