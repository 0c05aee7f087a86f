// SPDX-License-Identifier: MIT OR Apache-2.0
//! Laned sensors (section 5.2): how a thread gets a lane of the pool, and how it writes there.
//!
//! # Protocol of the pool
//!
//! State in memory, per lane: the *owner* word in the lane's header, which threads of the sensor's
//! process change by compare-and-exchange alone; the *reclaimed* word in the control page, which
//! the directory alone writes. State in the process, per lane: the *claimant*, the number of the
//! thread that owns it. Numbers of threads are given once in the life of a process; tids come back.
//!
//! 1. A lane is free if its owner word is 0 or equals its reclaimed word. An owner word names a tid
//!    and counts claims, so a reclaimed word frees one claim and never a later one.
//! 2. A thread that finds its own number among the claimants uses that lane. Nothing is changed.
//! 3. Else a lane whose owner word has the thread's tid was claimed by a thread that has ended, for
//!    two living threads have different tids: the thread claims it. The count of claims goes up, so
//!    that a late message of the directory about the end of the old thread frees nothing.
//! 4. Else the thread claims a free lane.
//! 5. To claim is to replace the owner word that was looked at by (claims + 1, own tid). Who loses
//!    the exchange goes on to the next lane; a thread that lost to itself, to a signal handler that
//!    claimed in between, uses what the handler claimed.
//! 6. Without a lane the write is refused and the pool's `lost_full` incremented.
//!
//! `SYNC(reclaim)`: the directory stores the reclaimed word with release after it has seen the
//! thread end; the thread that claims loads it with acquire, so it finds the lane's counter as the
//! dead thread left it. `SYNC(claim)`: a claim is an acquire-release exchange, so that what a
//! thread finds in a lane that was never reclaimed but adopted by rule 3 is ordered as well.
//!
//! Progress: lock-free; in fact bounded, because a pass looks at each lane once. A pass that meets
//! only lost exchanges refuses, although a lane may have become free behind it: that is a loss that
//! is counted, not a wait.
//!
//! # Protocol of a lane
//!
//! A lane is a simple ring and written by the steps of [`SimpleWriter`](crate::SimpleWriter), by
//! the thread that owns it and by the signal handlers that interrupt this thread. All of these run
//! on one thread, so what they share in the process (`count` and `open`) needs to be ordered for
//! the compiler only.
//!
//! 1. `open` is 0, or the place of the [`Frame`] of a write that has begun and is not committed;
//!    `mark` is 0, or the frame's mark.
//! 2. A write begins by storing its place into `open`, if that is 0, and then its mark; it ends by
//!    storing 0 into `mark`, and then into `open`, after `count`. A handler that comes before the
//!    first store or after the last writes as if it were alone; one that comes between finds `open`
//!    and is *nested*. A mark that is not 0 is always that of the open write.
//! 3. A nested write is refused and counted in the lane's `lost_nested`, unless the open write was
//!    abandoned: jumped over by `longjmp`, or forgotten. The frames decide, see [`Frame`].
//! 4. The slot of a write that was found abandoned is published as a void element, and the new
//!    write takes the next. So a judgement that was wrong tears no element: the open write goes on
//!    filling a slot that nobody reads, and its commit finds that it is not open any more, is
//!    refused and counted. `open` is taken over before the void element is published: a handler in
//!    between is nested in the new write.
//! 5. A write that is given up by its own thread stores 0 into `open`, and its slot is used again.

use alloc::vec::Vec;
use core::num::NonZeroU64;

use overhear_event::Ticks;

use crate::control::ControlLine;
use crate::layout::{counter, pair, Geometry, LayoutError};
use crate::layout::{LOST_FULL_WORD, LOST_NESTED_WORD, OWNER_WORD};
use crate::queue::ELEMENT_VOID;
use crate::shape::LanePool;
use crate::skips::skip_in_ring;
use crate::sync::{signal_fence, AtomicU32, AtomicU64, Ordering};
use crate::words::{store_bytes, Words};
use crate::writer::publish;

/// A thread that wants to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The kernel's number of the thread, in the namespace of its process. Not 0.
    pub tid: u32,
    /// A number that no other thread of the process ever has.
    pub number: NonZeroU64,
}

/// The lanes of a sensor and their owners, in the sensor's process.
#[derive(Debug)]
pub struct LaneClaims<W, C> {
    words: W,
    pool: LanePool,
    control: Option<ControlLine<C>>,
    // 0 or the number of the thread that claimed the lane. Stored by this thread after its claim.
    claimants: Vec<AtomicU64>,
    // One more than `reclaims` before the last search that found nothing; 0: none did.
    exhausted: AtomicU64,
}

impl<W: Words, C: Words> LaneClaims<W, C> {
    /// The pool in these words. Without a control line no lane is ever reclaimed.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the pool.
    pub fn new(
        words: W,
        pool: LanePool,
        control: Option<ControlLine<C>>,
    ) -> Result<Self, LayoutError> {
        if words.len() < pool.bytes() / 8 {
            return Err(LayoutError::TooSmall {
                found: words.len() as u64 * 8,
                needed: pool.bytes() as u64,
            });
        }
        let claimants = (0..pool.lanes()).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            words,
            pool,
            control,
            claimants,
            exhausted: AtomicU64::new(0),
        })
    }

    /// The shape of the pool.
    #[must_use]
    pub const fn pool(&self) -> &LanePool {
        &self.pool
    }

    /// The memory of the pool.
    #[must_use]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Whether no lane has become free since a search found none: a thread that has searched need
    /// not do so again.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        // Relaxed: a hint. If it is outdated, one more write is refused, and counted.
        self.exhausted.load(Ordering::Relaxed) == self.reclaims()
    }

    /// One more than how often the directory has reclaimed a lane.
    fn reclaims(&self) -> u64 {
        self.control
            .as_ref()
            .map_or(0, ControlLine::reclaims)
            .wrapping_add(1)
    }

    /// The lane of this thread, claimed now if it has none; `None` if no lane is free. Nothing is
    /// counted here: see [`Self::refuse`].
    ///
    /// `prepare` is called with the lane between the claim and the moment from which
    /// [`Self::claim`] finds it again. Async-signal safe: a handler that interrupts a claim and
    /// claims itself gets the same lane, or another one, and both are the thread's.
    pub fn claim(&self, thread: Claimant, prepare: impl Fn(u32)) -> Option<u32> {
        // Before the search: what is reclaimed behind it makes another one worth while.
        let reclaims = self.reclaims();
        let lanes = self.pool.lanes();
        // Threads begin at different lanes, so that a pool that is large enough is not searched.
        let first = thread.tid % lanes;
        let order = || (first..lanes).chain(0..first);
        let number = thread.number.get();
        // Relaxed: only this thread stores its number.
        let own = |lane: &u32| self.claimant(*lane).load(Ordering::Relaxed) == number;
        if let Some(lane) = order().find(own) {
            return Some(lane);
        }
        let taken = order()
            .find(|lane| self.adopt(*lane, thread.tid))
            .or_else(|| order().find(|lane| self.take_free(*lane, thread.tid)));
        match taken {
            Some(lane) => {
                prepare(lane);
                // Relaxed: as above.
                self.claimant(lane).store(number, Ordering::Relaxed);
            }
            // Relaxed: a hint.
            None => self.exhausted.store(reclaims, Ordering::Relaxed),
        }
        taken
    }

    /// Counts a write that was refused for want of a lane.
    pub fn refuse(&self) {
        // Relaxed: a statistic.
        let lost_full = self.words.word(LOST_FULL_WORD);
        lost_full.fetch_add(1, Ordering::Relaxed);
    }

    /// Rule 3.
    fn adopt(&self, lane: u32, tid: u32) -> bool {
        // Relaxed: the exchange decides.
        let owner = self.owner(lane).load(Ordering::Relaxed);
        owner as u32 == tid && self.exchange(lane, owner, tid)
    }

    /// Rule 4.
    fn take_free(&self, lane: u32, tid: u32) -> bool {
        let reclaimed = self.control.as_ref().map(|line| line.reclaimed(lane));
        // Relaxed: the exchange decides.
        let owner = self.owner(lane).load(Ordering::Relaxed);
        (owner == 0 || Some(owner) == reclaimed) && self.exchange(lane, owner, tid)
    }

    /// Rule 5.
    fn exchange(&self, lane: u32, owner: u64, tid: u32) -> bool {
        let claims = (owner >> 32).wrapping_add(1);
        let mine = claims << 32 | u64::from(tid);
        // SYNC(claim): pairs with itself in the thread that claims this lane next.
        let won =
            self.owner(lane)
                .compare_exchange(owner, mine, Ordering::AcqRel, Ordering::Relaxed);
        won.map_or_else(|now| now as u32 == tid, |_| true)
    }

    fn claimant(&self, lane: u32) -> &AtomicU64 {
        &self.claimants[lane as usize]
    }

    fn owner(&self, lane: u32) -> &AtomicU64 {
        self.words
            .word(self.pool.lane_offset(lane) / 8 + OWNER_WORD)
    }
}

/// Where on the stack a write was begun, and perhaps what stood there.
///
/// Stacks grow downwards, and a function ends before those that called it. So if a write is begun
/// in a frame that is *not deeper* than that of the write that is open, on the same stack, the open
/// one's function has ended or has been left by a jump, or it begins anew: it was abandoned. In a
/// deeper frame the place cannot tell. But C gives the place of the function's return address,
/// which stays as it is for as long as the function has not ended: if another value stands there
/// now, the open write was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    // An address in bits 3 to 63; the others are flags.
    address: u64,
    // The lower half of the word at the place; 0 if it is not known.
    mark: u32,
}

/// A destructor guards the write.
const GUARDED: u64 = 1;
/// The place is that of a return address.
const WITNESSED: u64 = 2;

impl Frame {
    /// The frame of the function that this is inlined into.
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        let pointer: u64;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: copies a register.
        unsafe {
            core::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: copies a register.
        unsafe {
            core::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags));
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        {
            let local = 0_u8;
            pointer = (&raw const local).addr() as u64 & !7;
        }
        Self::from_raw(pointer, 0)
    }

    /// A frame from C: its address with flags in the lowest bits, and its mark.
    #[inline(always)]
    #[must_use]
    pub const fn from_raw(address: u64, mark: u32) -> Self {
        Self { address, mark }
    }

    /// The address on the stack.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address & !7
    }

    /// What must stand in the lower half of the word at the address as long as the function that
    /// began the write has not ended; `None` if that is not known.
    #[must_use]
    pub const fn witness(self) -> Option<u32> {
        if self.address & WITNESSED != 0 && self.mark != 0 {
            Some(self.mark)
        } else {
            None
        }
    }

    /// The frame as that of a write which something on the stack guards: it is given up by its own
    /// destructor, so another write in the very same frame is nested and does not begin anew.
    #[inline(always)]
    #[must_use]
    pub const fn guarded(self) -> Self {
        Self {
            address: self.address | GUARDED,
            mark: self.mark,
        }
    }

    /// Whether a write that was begun in `open` has been abandoned when this frame, on the same
    /// stack, begins another.
    #[must_use]
    pub const fn is_not_deeper(self, open: Self) -> bool {
        self.address >= open.address
    }
}

/// A write was refused, because another one of the same thread is open, or a commit, because its
/// write is not open any more. It was counted in `lost_nested`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Nested;

/// Decides whether the open write (first frame) was abandoned, seen from the second frame.
pub type Abandoned = fn(Frame, Frame) -> bool;

/// One lane as its thread writes it. What leads to the shared memory and what belongs to the
/// process lie side by side, in 64 bytes that `include/overhear/laned.h` mirrors. They are aligned
/// to twice as many, because CPUs fetch cache lines in pairs and the neighbour is another thread's.
///
/// Everybody may hold a reference, but only the thread that has claimed the lane may write; another
/// one would do nothing worse than to damage elements.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Lane<W> {
    words: W,
    geometry: Geometry,
    // Elements written; the memory's counter is a copy that is read at a claim alone.
    count: AtomicU64,
    // 0 or the place of the write that is open.
    open: AtomicU64,
    // The thread that owns the lane: the second word of elements, without flags.
    tid: AtomicU32,
    // The mark of the write that is open; 0 if none is, or while it is not known yet.
    mark: AtomicU32,
}

impl<W: Words> Lane<W> {
    /// The lane in these words, which begin with the lane's header.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, geometry: Geometry) -> Result<Self, LayoutError> {
        geometry.check_size(&words)?;
        Ok(Self {
            words,
            geometry,
            count: AtomicU64::new(0),
            open: AtomicU64::new(0),
            tid: AtomicU32::new(0),
            mark: AtomicU32::new(0),
        })
    }

    /// Makes the lane that of the calling thread, which has just claimed it: it continues behind
    /// the elements that are there, and a write that the last owner left open is forgotten.
    pub fn take(&self, tid: u32) {
        // A handler may interrupt this, take the lane and write. Then `count` has moved, the
        // exchange fails, and what the handler left is right. Relaxed: see the protocol.
        let before = self.count.load(Ordering::Relaxed);
        let now = counter(&self.words).load(Ordering::Relaxed);
        let (relaxed, count) = (Ordering::Relaxed, &self.count);
        let _ = count.compare_exchange(before, now, relaxed, relaxed);
        self.tid.store(tid, Ordering::Relaxed);
        self.mark.store(0, Ordering::Relaxed);
        self.open.store(0, Ordering::Relaxed);
    }

    /// Touches every page, for reading and writing, so that no write of this thread faults.
    pub fn fault_in(&self) {
        for index in (0..self.geometry.words()).step_by(4096 / 8) {
            let word = self.words.word(index);
            // Relaxed: words that this thread alone writes, and the header's first, which nobody
            // does.
            let same = word.load(Ordering::Relaxed);
            // An exchange, because compilers make a mere load of adding nothing, and a page of
            // private memory that was only read has no memory of its own yet. It fails if a handler
            // has just written there.
            let _ = word.compare_exchange(same, same, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Elements written so far, void ones included.
    #[inline(always)]
    #[must_use]
    pub fn count(&self) -> u64 {
        // Relaxed: see the protocol.
        self.count.load(Ordering::Relaxed)
    }

    /// Writes refused because they were nested.
    #[must_use]
    pub fn lost_nested(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(LOST_NESTED_WORD).load(Ordering::Relaxed)
    }

    /// Appends an element and publishes it.
    ///
    /// # Errors
    /// [`Nested`] inside another write of this thread.
    ///
    /// # Panics
    /// If the payload has another size than that of the geometry.
    #[inline(always)]
    pub fn write(
        &self,
        frame: Frame,
        abandoned: Abandoned,
        payload: &[u8],
        stamp: impl Fn() -> Ticks,
    ) -> Result<(), Nested> {
        // Checked before the write is open: a panic behind would leave it so.
        assert!(
            payload.len() == self.geometry.payload_bytes(),
            "the payload has the wrong size"
        );
        let count = self.begin(frame, abandoned, &stamp)?;
        // Looked up before the stores: for the compiler, they could change the lane.
        let counter = counter(&self.words);
        let slot = self.geometry.slot(count);
        let slot = self.words.range(slot, 2 + payload.len().div_ceil(8));
        // Relaxed: SYNC(publish) makes it visible.
        slot[1].store(self.writer(0), Ordering::Relaxed);
        store_bytes(&slot[2..], payload);
        let count = publish(counter, &slot[0], count, stamp());
        self.end(count);
        Ok(())
    }

    /// Opens a write and returns the position of its element.
    ///
    /// # Errors
    /// [`Nested`] inside another write of this thread.
    #[inline(always)]
    pub fn begin(
        &self,
        frame: Frame,
        abandoned: Abandoned,
        stamp: impl Fn() -> Ticks,
    ) -> Result<u64, Nested> {
        // Relaxed: see the protocol.
        let open = self.open.load(Ordering::Relaxed);
        if open != 0 {
            let open = Frame::from_raw(open, self.mark.load(Ordering::Relaxed));
            self.interrupt(open, frame, abandoned, stamp)?;
        } else {
            self.open(frame);
        }
        Ok(self.count())
    }

    /// Rule 2. The mark is 0 before.
    #[inline(always)]
    fn open(&self, frame: Frame) {
        // Relaxed: see the protocol. From here on a handler is nested.
        self.open.store(frame.address, Ordering::Relaxed);
        signal_fence();
        if frame.address & WITNESSED != 0 {
            self.mark.store(frame.mark, Ordering::Relaxed);
            signal_fence();
        }
    }

    /// Rules 3 and 4, rare.
    #[cold]
    #[inline(never)]
    fn interrupt(
        &self,
        open: Frame,
        frame: Frame,
        abandoned: Abandoned,
        stamp: impl Fn() -> Ticks,
    ) -> Result<(), Nested> {
        if !abandoned(open, frame) {
            self.refuse();
            return Err(Nested);
        }
        // Taken over first: a handler that comes now is nested in this write.
        self.mark.store(0, Ordering::Relaxed);
        signal_fence();
        self.open(frame);
        let slot = self.words.range(self.geometry.slot(self.count()), 2);
        // Relaxed: SYNC(publish) makes it visible.
        slot[1].store(self.writer(ELEMENT_VOID), Ordering::Relaxed);
        let count = publish(counter(&self.words), &slot[0], self.count(), stamp());
        self.count.store(count, Ordering::Relaxed);
        signal_fence();
        Ok(())
    }

    /// Counts a write that a budget keeps from being made: see [`Skips`](crate::Skips). One of a
    /// handler that interrupts this may count together with it as one.
    pub fn skip(&self) {
        skip_in_ring(&self.words, self.count());
    }

    /// Counts a refusal.
    #[cold]
    pub fn refuse(&self) {
        // Relaxed: a statistic, but handlers of the same thread count too.
        let lost_nested = self.words.word(LOST_NESTED_WORD);
        lost_nested.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the write that was begun in this frame at this position is still open.
    #[inline(always)]
    #[must_use]
    pub fn is_open(&self, frame: Frame, position: u64) -> bool {
        self.open.load(Ordering::Relaxed) == frame.address && self.count() == position
    }

    /// Fills the element of the open write.
    ///
    /// # Panics
    /// If the payload has another size than that of the geometry.
    #[inline(always)]
    pub fn fill(&self, payload: &[u8]) {
        assert!(
            payload.len() == self.geometry.payload_bytes(),
            "the payload has the wrong size"
        );
        let slot = self.geometry.slot(self.count()) + 2;
        store_bytes(self.words.range(slot, payload.len().div_ceil(8)), payload);
    }

    /// Publishes the element of the open write.
    #[inline(always)]
    pub fn commit(&self, stamp: impl FnOnce() -> Ticks) {
        let slot = self.words.range(self.geometry.slot(self.count()), 2);
        // Relaxed: SYNC(publish) makes it visible.
        slot[1].store(self.writer(0), Ordering::Relaxed);
        let count = publish(counter(&self.words), &slot[0], self.count(), stamp());
        self.end(count);
    }

    /// Gives the slot of the open write back.
    #[inline(always)]
    pub fn abandon(&self) {
        signal_fence();
        // Before `open`: where there is a mark it is that of the open write.
        self.mark.store(0, Ordering::Relaxed);
        signal_fence();
        self.open.store(0, Ordering::Relaxed);
    }

    /// The second word of an element.
    #[inline(always)]
    fn writer(&self, flags: u32) -> u64 {
        pair(self.tid.load(Ordering::Relaxed), flags)
    }

    /// Closes the write that led to this count.
    #[inline(always)]
    fn end(&self, count: u64) {
        self.count.store(count, Ordering::Relaxed);
        self.abandon();
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    type Mapped = Lane<crate::words::SharedWords>;
    // `struct oh_lane_` of include/overhear/laned.h.
    #[cfg(target_pointer_width = "64")]
    {
        assert!(offset_of!(Mapped, words) == 0);
        assert!(offset_of!(Mapped, geometry) == 16);
        assert!(offset_of!(Mapped, count) == 40);
        assert!(offset_of!(Mapped, open) == 48);
        assert!(offset_of!(Mapped, tid) == 56);
        assert!(offset_of!(Mapped, mark) == 60);
        assert!(size_of::<Mapped>() == 128);
    }
};

#[cfg(all(test, not(loom)))]
#[path = "lanes/tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "lanes/loom_tests.rs"]
mod loom_tests;
