// SPDX-License-Identifier: MIT OR Apache-2.0
//! The writer of rings whose counter has two words.

use overhear_event::Ticks;

use super::{counter, load};
use crate::layout::{Geometry, LayoutError};
use crate::sync::{fence, Ordering};
use crate::words::{store_bytes, Words};

/// The right to write a ring whose counter has two words; otherwise as
/// [`SimpleWriter`](crate::SimpleWriter).
#[derive(Debug)]
pub struct TwoWordWriter<W> {
    words: W,
    geometry: Geometry,
    count: u64,
}

impl<W: Words> TwoWordWriter<W> {
    /// Takes the writer's right over a ring, continuing behind the elements that are there.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, geometry: Geometry) -> Result<Self, LayoutError> {
        let geometry = geometry.with_two_word_counter();
        geometry.check_size(&words)?;
        // Nobody else writes: the counter rests.
        let count = load(&words).unwrap_or_default();
        Ok(Self {
            words,
            geometry,
            count,
        })
    }

    /// Appends an element and publishes it.
    ///
    /// # Panics
    /// If the payload has another size than the geometry says.
    pub fn write(&mut self, payload: &[u8], stamp: impl FnOnce() -> Ticks) {
        assert!(
            payload.len() == self.geometry.payload_bytes(),
            "the payload has the wrong size"
        );
        let slot = self.geometry.slot(self.count);
        let slot = self.words.range(slot, 1 + payload.len().div_ceil(8));
        store_bytes(&slot[1..], payload);
        // Relaxed: SYNC(low) makes it visible.
        slot[0].store(stamp().as_raw(), Ordering::Relaxed);
        self.count = counter(&self.words).publish(self.count);
        // SYNC(overwrite): pairs with the reader's fence before its second load of the counter.
        fence(Ordering::Release);
    }
}
