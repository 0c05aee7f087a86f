// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simple writer; lanes are written by the same steps.
//!
//! # Protocol
//!
//! State in memory: the counter `c`, written by this writer alone, and the slots. The slot at
//! position `c` belongs to the writer at any time; the slots of the positions `c - capacity + 1`
//! to `c - 1` are readable.
//!
//! 1. Fill the slot at `c` with relaxed word stores, payload first, stamp last.
//! 2. Store `c + 1` with release: `SYNC(publish)`. From here readers may take the element.
//! 3. Fence with release: `SYNC(overwrite)`. It orders the store of the counter before the stores
//!    of the next fill, which destroys the element at `c + 1 - capacity`. Without it a reader could
//!    see words of the new element under the old counter and believe its copy.
//!
//! There is no losing path, because there is one writer. Progress: wait-free; a write is a fixed
//! number of stores. It does not allocate, does not enter the kernel and takes no lock, so it may
//! run in real-time threads. A signal handler that writes to the same sensor must not interrupt it;
//! in Rust the borrow checker prevents that.

use overhear_event::Ticks;

use crate::layout::{counter, Geometry, LayoutError, COUNTER_WORD};
use crate::skips::skip_in_ring;
use crate::sync::{fence, AtomicU64, Ordering};
use crate::words::{store_bytes, Words};

/// The writer of a simple stream.
#[derive(Debug)]
pub struct SimpleWriter<W> {
    words: W,
    geometry: Geometry,
    // The number of elements written; the memory's counter is a copy that is never read back,
    // because others in this process could have damaged it.
    count: u64,
}

impl<W: Words> SimpleWriter<W> {
    /// Makes the writer of a stream. It continues after the existing elements.
    ///
    /// There must be one writer at a time. A second one is not unsafe, but readers would reject or
    /// miss elements without counting them.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, geometry: Geometry) -> Result<Self, LayoutError> {
        geometry.check_size(&words)?;
        let count = counter(&words).load(Ordering::Relaxed);
        Ok(Self {
            words,
            geometry,
            count,
        })
    }

    /// Elements written so far.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The memory written to.
    #[must_use]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Counts a write that a budget keeps from being made: see [`Skips`](crate::Skips).
    pub fn skip(&self) {
        skip_in_ring(&self.words, self.count);
    }

    /// Appends an element and publishes it. The stamp is read after the payload is in place, as
    /// GRTMon's `commit` does.
    ///
    /// # Panics
    /// If the payload has another size than that of the geometry.
    #[inline(always)]
    pub fn write(&mut self, payload: &[u8], stamp: impl FnOnce() -> Ticks) {
        assert!(
            payload.len() == self.geometry.payload_bytes(),
            "the payload has the wrong size"
        );
        // SAFETY: the size is right by the lines above.
        unsafe { self.write_sized(payload, stamp) };
    }

    /// As [`Self::write`], without a check of the size: so a thread that has just been woken has
    /// less code to fetch.
    ///
    /// # Safety
    /// The payload has the size of the geometry.
    #[inline(always)]
    pub unsafe fn write_sized(&mut self, payload: &[u8], stamp: impl FnOnce() -> Ticks) {
        debug_assert!(payload.len() == self.geometry.payload_bytes());
        let used = 1 + payload.len().div_ceil(8);
        // SAFETY: `new` has compared the memory with the geometry, so the header lies in it, and so
        // does each slot with the stamp and the payload, whose size is right by contract.
        let (counter, slot) = unsafe {
            // Looked up before the stores: the compiler must assume that the stores could change
            // the writer.
            let counter = &self.words.range_unchecked(COUNTER_WORD, 1)[0];
            let slot = self.geometry.slot(self.count);
            (counter, self.words.range_unchecked(slot, used))
        };
        store_bytes(&slot[1..], payload);
        self.count = publish(counter, &slot[0], self.count, stamp());
    }
}

/// Step 1's last store, and steps 2 and 3; returns the new count.
#[inline(always)]
pub(crate) fn publish(counter: &AtomicU64, slot: &AtomicU64, count: u64, stamp: Ticks) -> u64 {
    // Relaxed: SYNC(publish) makes the stamp visible.
    slot.store(stamp.as_raw(), Ordering::Relaxed);
    let count = count.wrapping_add(1);
    // SYNC(publish): pairs with the reader's first load of the counter.
    counter.store(count, Ordering::Release);
    // SYNC(overwrite): pairs with the reader's fence before its second load of the counter.
    fence(Ordering::Release);
    count
}
