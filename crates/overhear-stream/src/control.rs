// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control page (section 8): switches and reclaimed lanes, which the directory writes for a
//! task.
//!
//! One writer, the directory; the sensors' process maps the memory read-only. A sensor has a cache
//! line of its own, found by the number that came with its grant; a laned sensor has the following
//! lines, too, for one word per lane.
//!
//! # Protocol
//!
//! - `enabled` is a hint without order: a sensor that is switched off writes nothing from some
//!   moment soon after on. Relaxed on both sides. It is 1 for on and 0 for off; at 2 a sensor is
//!   off for a budget, and counts the writes that it skips ([`Skips`](crate::Skips)).
//! - `reclaimed` of a lane holds the owner word of a thread that has ended. The directory stores it
//!   with release after it has seen the end; a thread that finds it equal to the lane's owner word
//!   loads it with acquire and may claim the lane: `SYNC(reclaim)`. Owner words carry a count of
//!   claims, so an old one never frees a lane that was claimed again.
//! - `deferred` is 1 while there is no memory for the stream. The directory clears it before it
//!   switches the sensor on; it orders nothing. Relaxed on both sides.

use crate::layout::{pair, LayoutError, HEADER_SIZE, VERSION};
use crate::sync::Ordering;
use crate::words::Words;

/// The first eight bytes of a control page: "OVHRCTL1" (section 8).
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"OVHRCTL1");
/// Bytes of a sensor's line.
pub const CONTROL_LINE_BYTES: usize = 64;

const LINE_WORDS: usize = CONTROL_LINE_BYTES / 8;

/// State of a sensor's switch: the word `enabled` (section 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum SwitchState {
    /// Writes nothing and counts nothing: nobody wants the elements.
    Off = 0,
    /// Writes its elements.
    #[default]
    On = 1,
    /// Writes nothing and counts the writes: a budget has switched it off.
    Counted = 2,
}

impl SwitchState {
    /// From the word. Other values than those defined are off. A sensor that nobody wants is found
    /// by the first comparison, which is all that it costs.
    #[inline(always)]
    const fn of(word: u32) -> Self {
        if word == 0 {
            return Self::Off;
        }
        if word == 1 {
            return Self::On;
        }
        Self::of_other(word)
    }

    #[cold]
    #[inline(never)]
    const fn of_other(word: u32) -> Self {
        if word == 2 {
            Self::Counted
        } else {
            Self::Off
        }
    }
}

/// Where things lie in a control page.
///
/// Holding one proves that there is at least one line and that the whole fits into an `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLayout {
    lines: u32,
}

impl ControlLayout {
    /// A control page with this many lines.
    ///
    /// # Errors
    /// [`LayoutError::BadCapacity`] for none, or more than 2^24.
    pub const fn new(lines: u32) -> Result<Self, LayoutError> {
        if lines == 0 || lines > 1 << 24 {
            return Err(LayoutError::BadCapacity(lines as u64));
        }
        Ok(Self { lines })
    }

    /// How many lines a sensor with this many lanes takes: one, and one for every eight lanes.
    #[must_use]
    pub const fn lines_of_sensor(lanes: u32) -> u32 {
        1 + lanes.div_ceil(LINE_WORDS as u32)
    }

    /// How many lines there are.
    #[must_use]
    pub const fn lines(&self) -> u32 {
        self.lines
    }

    /// Bytes of the whole, header included.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        HEADER_SIZE + self.lines as usize * CONTROL_LINE_BYTES
    }

    /// The first three words of the memory; the rest begins as zero: every sensor switched off.
    #[must_use]
    pub const fn header(&self) -> [u64; 3] {
        [
            CONTROL_MAGIC,
            pair(VERSION, HEADER_SIZE as u32),
            pair(self.lines, 0),
        ]
    }
}

/// A sensor's line in a control page, on either side.
#[derive(Debug)]
pub struct ControlLine<W> {
    words: W,
    // The line's first word; in bounds with all `lanes` words behind the line.
    first: usize,
    lanes: u32,
}

impl<W: Words> ControlLine<W> {
    /// The line with this number of a sensor with this many lanes.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory ends before the line and its lanes' words.
    pub fn new(words: W, line: u32, lanes: u32) -> Result<Self, LayoutError> {
        let first = HEADER_SIZE / 8 + line as usize * LINE_WORDS;
        let needed = first + ControlLayout::lines_of_sensor(lanes) as usize * LINE_WORDS;
        if words.len() < needed {
            return Err(LayoutError::TooSmall {
                found: words.len() as u64 * 8,
                needed: needed as u64 * 8,
            });
        }
        Ok(Self {
            words,
            first,
            lanes,
        })
    }

    /// The state of the sensor's switch.
    #[must_use]
    pub fn state(&self) -> SwitchState {
        // Relaxed: a hint. The upper half of the word is reserved and zero.
        let word = self.words.word(self.first).load(Ordering::Relaxed);
        SwitchState::of(crate::layout::unpair(word).0)
    }

    /// Switches the sensor: the directory's part.
    pub fn switch(&self, state: SwitchState) {
        // Relaxed: a hint.
        let word = pair(state as u32, 0);
        self.words.word(self.first).store(word, Ordering::Relaxed);
    }

    /// Whether the sensor waits for memory.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        // Relaxed: a hint.
        self.words.word(self.first + 2).load(Ordering::Relaxed) != 0
    }

    /// Defers the sensor, or no longer: the directory's part.
    pub fn set_deferred(&self, deferred: bool) {
        // Relaxed: a hint.
        let word = self.words.word(self.first + 2);
        word.store(deferred.into(), Ordering::Relaxed);
    }

    /// How often a lane of this sensor has been reclaimed: a thread that found none tries again
    /// when it has changed.
    #[must_use]
    pub fn reclaims(&self) -> u64 {
        // Relaxed: a hint; what it announces is loaded with acquire.
        self.words.word(self.first + 1).load(Ordering::Relaxed)
    }

    /// The owner word of the last thread whose claim on this lane has ended; 0 if none has.
    ///
    /// # Panics
    /// If there is no such lane.
    #[must_use]
    pub fn reclaimed(&self, lane: u32) -> u64 {
        // SYNC(reclaim): pairs with the directory's store.
        self.lane_word(lane).load(Ordering::Acquire)
    }

    /// Gives a lane back whose owner has ended: the directory's part.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn reclaim(&self, lane: u32, owner: u64) {
        // SYNC(reclaim): pairs with the load of the thread that claims the lane next.
        self.lane_word(lane).store(owner, Ordering::Release);
        // Relaxed, and no addition: the directory is the only writer.
        let reclaims = self.words.word(self.first + 1);
        reclaims.store(self.reclaims().wrapping_add(1), Ordering::Relaxed);
    }

    fn lane_word(&self, lane: u32) -> &crate::sync::AtomicU64 {
        assert!(lane < self.lanes, "lane {lane} of {}", self.lanes);
        self.words.word(self.first + LINE_WORDS + lane as usize)
    }
}

/// Where a writer looks whether its sensor is switched on: a word of a control page, or one that
/// is always on. C has the same pointer in its sensors.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Switch(core::ptr::NonNull<u32>);

// SAFETY: the word is only loaded, atomically, and stays for as long as the value is used (contract
// of `at`).
#[cfg(not(loom))]
unsafe impl Send for Switch {}
// SAFETY: as for Send.
#[cfg(not(loom))]
unsafe impl Sync for Switch {}

#[cfg(not(loom))]
impl Switch {
    /// The switch of a sensor without a control page.
    #[must_use]
    pub const fn always_on() -> Self {
        static ON: crate::sync::AtomicU32 = crate::sync::AtomicU32::new(1);
        // SAFETY: a static has an address.
        Self(unsafe { core::ptr::NonNull::new_unchecked(ON.as_ptr()) })
    }

    /// The switch of the line that begins here.
    ///
    /// # Safety
    /// The line stays mapped for as long as this value or a copy of it is used.
    #[must_use]
    pub const unsafe fn at(line: core::ptr::NonNull<u64>) -> Self {
        // `enabled` is the first half of the word, on either byte order (section 8).
        Self(line.cast())
    }

    /// The state of the switch: one relaxed load.
    #[inline(always)]
    #[must_use]
    pub fn state(self) -> SwitchState {
        // SAFETY: aligned and mapped by the contract of `at`; written by another process, so
        // loaded atomically. Relaxed: a hint.
        let word = unsafe { crate::sync::AtomicU32::from_ptr(self.0.as_ptr()) };
        SwitchState::of(word.load(Ordering::Relaxed))
    }

    /// Where the switch is: what C loads.
    #[must_use]
    pub const fn as_ptr(self) -> *const u32 {
        self.0.as_ptr()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ControlLayout, ControlLine, SwitchState};
    use crate::words::OwnedWords;

    #[test]
    fn lines_of_neighbours_do_not_overlap() {
        assert_eq!(
            [0, 1, 8, 9].map(ControlLayout::lines_of_sensor),
            [1, 2, 2, 3]
        );
        let layout = ControlLayout::new(4).unwrap();
        assert_eq!(layout.bytes(), 4096 + 256);
        let memory = OwnedWords::zeroed(layout.bytes() / 8);
        let laned = ControlLine::new(memory.share(), 0, 9).unwrap();
        let simple = ControlLine::new(memory.share(), 3, 0).unwrap();
        laned.switch(SwitchState::On);
        laned.reclaim(8, 77);
        let states = || (laned.state(), simple.state());
        assert_eq!(states(), (SwitchState::On, SwitchState::Off));
        simple.switch(SwitchState::Counted);
        laned.switch(SwitchState::Off);
        assert_eq!(states(), (SwitchState::Off, SwitchState::Counted));
        assert_eq!((laned.reclaimed(8), laned.reclaimed(7)), (77, 0));
        assert_eq!((laned.reclaims(), simple.reclaims()), (1, 0));
        assert!(ControlLine::new(memory.share(), 4, 0).is_err());
        assert!(ControlLine::new(memory.share(), 3, 1).is_err());
        assert!(ControlLayout::new(0).is_err());
    }
}
