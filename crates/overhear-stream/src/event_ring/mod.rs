// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event ring: events of any number of threads, signal handlers and processes in one order.

mod geometry;
mod reader;
mod writer;

#[cfg(all(test, not(loom)))]
mod tests;

use overhear_event::Ticks;

use crate::layout::{pair, unpair};
use crate::sync::Ordering;
use crate::words::Words;

pub use geometry::{RingError, RingGeometry, MAX_EVENT_DATA, MAX_RING_CAPACITY};
pub use reader::{LossCause, Next, RingConsumer, RingObserver};
pub use writer::{EventRing, RingFull, WhenFull};

/// An event of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord<'a> {
    /// When it was written. A write does not use it: it reads the clock itself.
    pub stamp: Ticks,
    /// Where the program was.
    pub address: u64,
    /// The thread, as the program knows it.
    pub thread: u64,
    /// The process, as the kernel numbers it.
    pub pid: u32,
    /// The thread, as the kernel numbers it.
    pub tid: u32,
    /// The number of its type.
    pub event: u16,
    /// Bits that mean nothing to the ring.
    pub flags: u16,
    /// Its data.
    pub data: &'a [u8],
}

/// The word of a slot that has type, flags and size of the data.
#[inline(always)]
const fn kind_word(event: u16, flags: u16, data_bytes: u32) -> u64 {
    let (event, flags) = (event as u32, flags as u32);
    let first = if cfg!(target_endian = "little") {
        flags << 16 | event
    } else {
        event << 16 | flags
    };
    pair(first, data_bytes)
}

/// Type, flags and size of the data.
#[inline(always)]
const fn unpack_kind(word: u64) -> (u16, u16, u32) {
    let (first, data_bytes) = unpair(word);
    let (low, high) = (first as u16, (first >> 16) as u16);
    if cfg!(target_endian = "little") {
        (low, high, data_bytes)
    } else {
        (high, low, data_bytes)
    }
}

/// Loads a word of the ring.
#[inline(always)]
fn load(words: &impl Words, at: usize, order: Ordering) -> u64 {
    // As in the queue: loom looks for races with a word's last access alone, so a store into a word
    // that nobody loads makes every load a race of its own.
    #[cfg(loom)]
    words
        .word(geometry::UNUSED_WORD)
        .store(0, Ordering::Relaxed);
    words.word(at).load(order)
}
