// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements of a ring, read in place: for evaluations without a copy.
//!
//! # Protocol
//!
//! The steps 3 to 5 of the [reader](crate::reader), as separate calls: a [`Reader`](crate::Reader)
//! of [heads](crate::Reader::heads_only) finds a published element (`SYNC(publish)`); its words are
//! loaded, relaxed, at any time; the counter, loaded after an acquire fence, proves whether they
//! belong to the element. The writer's side is the same as for a reader that copies. The loser of
//! the race is the reader of the words: the check fails, and it drops its result.
//!
//! Progress: wait-free.

use core::fmt;

use overhear_event::InPlaceMemory;

use crate::layout::{counter, Geometry, LayoutError};
use crate::sync::{fence, Ordering};
use crate::words::{load_words, Words};

/// The elements of a ring, for reading in place.
#[derive(Debug)]
pub struct RingInPlace<W> {
    words: W,
    geometry: Geometry,
}

impl<W: Words> RingInPlace<W> {
    /// The ring in this memory.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, geometry: Geometry) -> Result<Self, LayoutError> {
        geometry.check_size(&words)?;
        Ok(Self { words, geometry })
    }
}

impl<W: Words + fmt::Debug + Send + Sync> InPlaceMemory for RingInPlace<W> {
    #[inline]
    fn load(&self, sequence: u64, first: usize, to: &mut [u64]) {
        let payload = self.geometry.used_words() - 1;
        let first = first.min(payload);
        let count = to.len().min(payload - first);
        let (loaded, beyond) = to.split_at_mut(count);
        let start = self.geometry.slot(sequence) + 1 + first;
        load_words(loaded, self.words.range(start, count));
        beyond.fill(0);
    }

    #[inline]
    fn is_whole(&self, sequence: u64) -> bool {
        // SYNC(overwrite): pairs with the writer's fence before the next fill.
        fence(Ordering::Acquire);
        let now = counter(&self.words).load(Ordering::Relaxed);
        let ahead = now.wrapping_sub(sequence);
        (1..self.geometry.capacity()).contains(&ahead)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use overhear_event::{InPlaceMemory, Ticks};

    use super::RingInPlace;
    use crate::{Geometry, OwnedWords, ReadItem, Reader, SimpleWriter};

    #[test]
    fn words_belong_to_the_element_until_its_slot_is_reused() {
        let geometry = Geometry::new(20, 4).unwrap();
        let memory = OwnedWords::zeroed(geometry.words());
        let payloads = RingInPlace::new(memory.share(), geometry).unwrap();
        let mut reader = Reader::from_start(memory.share(), geometry).unwrap();
        reader.heads_only();
        let mut writer = SimpleWriter::new(memory, geometry).unwrap();
        let mut write = |value: u8| writer.write(&[value; 20], || Ticks::from_raw(value.into()));
        let load = |sequence, first| {
            let mut words = [7; 4];
            payloads.load(sequence, first, &mut words);
            words
        };
        // Not there yet.
        assert!(!payloads.is_whole(0));
        let [whole, last] = [
            0x0101_0101_0101_0101,
            u64::from_ne_bytes([1, 1, 1, 1, 0, 0, 0, 0]),
        ];
        write(1);
        assert_eq!(load(0, 0), [whole, whole, last, 0]);
        assert_eq!(load(0, 2), [last, 0, 0, 0]);
        assert_eq!(load(0, usize::MAX), [0; 4]);
        assert!(payloads.is_whole(0) && !payloads.is_whole(1));
        (2..=3).for_each(&mut write);
        assert!(payloads.is_whole(0));
        // The reader delivers the elements without payloads.
        let end = reader.published();
        let mut found = Vec::new();
        let _ = reader
            .poll_until(end, |it| {
                found.push(match it {
                    ReadItem::Element(element) => (
                        element.sequence,
                        element.stamp.as_raw(),
                        element.payload.len(),
                    ),
                    ReadItem::Missed { first, count } => (first, count, usize::MAX),
                });
            })
            .unwrap();
        assert_eq!(found, [(0, 1, 0), (1, 2, 0), (2, 3, 0)]);
        // Now its writer may be in the slot of the first.
        write(4);
        assert!(!payloads.is_whole(0) && payloads.is_whole(1));
        write(5);
        assert!(!payloads.is_whole(1) && payloads.is_whole(4));
        assert_eq!(load(4, 0)[0], 0x0505_0505_0505_0505);
        assert!(RingInPlace::new(OwnedWords::zeroed(1), geometry).is_err());
    }

    #[test]
    fn heads_of_lanes_tell_void_elements() {
        use crate::sync::Ordering;
        use crate::words::Words;
        // {stamp, writer, payload}: the flag of a void element stands with the writer.
        let geometry = Geometry::with_writer(300, 4).unwrap();
        let memory = OwnedWords::zeroed(geometry.words());
        let store = |word: usize, value| memory.word(word).store(value, Ordering::Relaxed);
        for (position, void) in [(0, false), (1, true), (2, false)] {
            let slot = geometry.slot(position);
            store(slot, 10 + position);
            let flags = if void { crate::ELEMENT_VOID } else { 0 };
            store(slot + 1, crate::layout::pair(5, flags));
        }
        store(crate::COUNTER_OFFSET / 8, 3);
        let mut reader = Reader::from_start(memory.share(), geometry).unwrap();
        reader.heads_only();
        let mut stamps = Vec::new();
        let report = reader.poll(9, |element| stamps.push(element.stamp.as_raw()));
        assert_eq!((stamps, report.unwrap().void), (alloc::vec![10, 12], 1));
    }
}
