// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claim, fill, publish: steps 1 to 7 of the protocol in the module's comment.

use overhear_event::Ticks;

use super::geometry::{ahead, Head, Lap, RingError, RingGeometry, Turn, Voids};
use super::geometry::{ADDRESS, DATA, KIND, STAMP, THREAD, TURN, WRITER};
use super::geometry::{HEAD_WORD, TAIL_WORD, VOIDS_WORD};
use super::{load, EventRecord, Kind, LEAN};
use crate::layout::pair;
use crate::sync::{fence, spin_loop, AtomicU64, Ordering};
use crate::words::{store_bytes, Words};

/// Turns of the first wait after a lost race, and the most of a later one: about a microsecond.
const MIN_SPIN_TURNS: u32 = if cfg!(loom) { 1 } else { 8 };
const MAX_SPIN_TURNS: u32 = if cfg!(loom) { 1 } else { 64 };

/// The action of a write if the oldest event has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It replaces the oldest event.
    Overwrite,
    /// It is refused.
    Refuse,
}

/// The event was not written and has no position: the caller counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFull {
    /// The ring is full of unread events ([`WhenFull::Refuse`]).
    #[error("the event ring is full of events that have not been read")]
    Unread,
    /// Every slot was owned by a writer that had not finished.
    #[error("every slot of the event ring is being written")]
    Held,
}

/// The right to write events into a ring, from any number of threads and signal handlers at once,
/// in any number of processes.
#[derive(Debug)]
pub struct EventRing<W> {
    words: W,
    geometry: RingGeometry,
}

/// A position, and its slot, that no other writer has until it is published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) position: u64,
    lap: Lap,
    /// Void positions of the slot before this one.
    slot_voids: u16,
    /// Void positions of the ring before this one.
    ring_voids: u16,
    stamp: Ticks,
}

impl<W: Words> EventRing<W> {
    /// A ring in memory that was zero at the beginning.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        geometry.check_size(&words)?;
        Ok(Self { words, geometry })
    }

    /// The memory written to.
    #[must_use]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Its sizes.
    #[must_use]
    pub const fn geometry(&self) -> &RingGeometry {
        &self.geometry
    }

    /// Number of positions that were given away so far, with 48 bits: that of the next event.
    #[must_use]
    pub fn written(&self) -> u64 {
        // SYNC(position): pairs with the CAS of `head`.
        Head(load(&self.words, HEAD_WORD, Ordering::Acquire)).position()
    }

    /// Writes an event, and returns its position, with 48 bits. `record.stamp` is not used: `stamp`
    /// reads the clock, again for each race that is lost. Data beyond the geometry's size is cut
    /// off.
    ///
    /// # Errors
    /// [`RingFull`], and nothing was written.
    #[inline(always)]
    pub fn write(
        &self,
        record: &EventRecord<'_>,
        when_full: WhenFull,
        stamp: impl FnMut() -> Ticks,
    ) -> Result<u64, RingFull> {
        let claimed = self.claim(when_full, stamp)?;
        self.begin(claimed);
        self.fill(claimed, record);
        self.publish(claimed);
        Ok(claimed.position)
    }

    /// Steps 1 to 4.
    #[inline(always)]
    pub(super) fn claim(
        &self,
        when_full: WhenFull,
        mut stamp: impl FnMut() -> Ticks,
    ) -> Result<Claimed, RingFull> {
        let (mut turns, mut voided) = (MIN_SPIN_TURNS, 0);
        loop {
            // Step 1. SYNC(position): pairs with the CAS below.
            let head = Head(load(&self.words, HEAD_WORD, Ordering::Acquire));
            let position = head.position();
            if when_full == WhenFull::Refuse {
                // SYNC(free): pairs with the consumer's store of `tail`.
                let tail = load(&self.words, TAIL_WORD, Ordering::Acquire);
                let unread = ahead(position, tail);
                if !(0..self.geometry.capacity().cast_signed()).contains(&unread) {
                    self.confirm_full(head, voided)?;
                    continue;
                }
            }
            // SYNC(turn): pairs with the last owner's store. What a writer of the next lap
            // stores into the slot comes after the stores of this one.
            let at = self.geometry.slot_word(position) + TURN;
            let turn = Turn(load(&self.words, at, Ordering::Acquire));
            let lap = self.geometry.lap(position);
            // Step 2.
            let mut slot_voids = turn.voids();
            if turn.progress() != self.geometry.free_for(lap) {
                match self.voids_since(turn, position) {
                    Some(voids) => slot_voids = voids,
                    None => {
                        self.void(head, &mut voided)?;
                        continue;
                    }
                }
            }
            // Step 3.
            let stamp = stamp();
            // Step 4. SYNC(position): pairs with the load above.
            let (won, lost) = (Ordering::Release, Ordering::Relaxed);
            let next = head.after_event();
            let word = self.word(HEAD_WORD);
            if word.compare_exchange(head.0, next.0, won, lost).is_ok() {
                return Ok(Claimed {
                    position,
                    lap,
                    slot_voids,
                    ring_voids: head.voids(),
                    stamp,
                });
            }
            wait(&mut turns);
        }
    }

    /// Step 5.
    #[inline(always)]
    pub(super) fn begin(&self, claimed: Claimed) {
        let turn = Turn::busy(&self.geometry, claimed.lap, claimed.slot_voids);
        // Relaxed: the fence orders it before the stores of step 6.
        self.slot(claimed.position)[TURN].store(turn.0, Ordering::Relaxed);
        // SYNC(overwrite): pairs with the reader's fence before it loads the turn again.
        fence(Ordering::Release);
    }

    /// Step 6.
    #[inline(always)]
    pub(super) fn fill(&self, claimed: Claimed, record: &EventRecord<'_>) {
        let size = record.data.len().min(self.geometry.data_bytes() as usize);
        let data = &record.data[..size];
        let slot = self.slot(claimed.position);
        let kind = Kind {
            event: record.event,
            flags: record.flags,
            // At most `MAX_EVENT_DATA`.
            data_bytes: size as u16,
            ring_voids: claimed.ring_voids,
        };
        // Relaxed: SYNC(turn) makes all of them visible.
        let store = |at: usize, value: u64| slot[at].store(value, Ordering::Relaxed);
        store(STAMP, claimed.stamp.as_raw());
        if !LEAN {
            store(ADDRESS, record.address);
            store(THREAD, record.thread);
        }
        store(WRITER, pair(record.pid, record.tid));
        store(KIND, kind.to_word());
        store_bytes(&slot[DATA..], data);
    }

    /// Step 7.
    #[inline(always)]
    pub(super) fn publish(&self, claimed: Claimed) {
        let turn = Turn::done(&self.geometry, claimed.lap, claimed.slot_voids);
        // SYNC(turn): pairs with the loads of the turn.
        self.slot(claimed.position)[TURN].store(turn.0, Ordering::Release);
    }

    /// Step 1, full: an error unless `head` has moved meanwhile.
    #[cold]
    #[inline(never)]
    fn confirm_full(&self, head: Head, voided: u64) -> Result<(), RingFull> {
        // SYNC(position): pairs with the CAS of `head`.
        if load(&self.words, HEAD_WORD, Ordering::Acquire) != head.0 {
            return Ok(());
        }
        Err(if voided == self.geometry.capacity() {
            RingFull::Held
        } else {
            RingFull::Unread
        })
    }

    /// Step 2, slow: the number of the slot's void positions if all of its positions since the
    /// newest event are void, so that only the writer of `position` may store into it.
    #[cold]
    #[inline(never)]
    fn voids_since(&self, turn: Turn, position: u64) -> Option<u16> {
        let geometry = &self.geometry;
        let at = geometry.void_word(position);
        // SYNC(void): pairs with the CAS of this word. It is loaded after the turn: what it counts
        // beyond the turn's count came after the turn's event.
        let voids = Voids(load(&self.words, at, Ordering::Acquire)).count();
        let laps = geometry.laps_ahead(geometry.lap(position), turn.next_lap());
        let since = voids.wrapping_sub(turn.voids());
        let is_free = !turn.is_busy() && laps >= 0 && laps as u16 == since;
        is_free.then_some(voids)
    }

    /// Step 2, void: gives up the position, because its slot is not free.
    #[cold]
    #[inline(never)]
    fn void(&self, head: Head, voided: &mut u64) -> Result<(), RingFull> {
        let (geometry, position) = (&self.geometry, head.position());
        if *voided == geometry.capacity() {
            return Err(RingFull::Held);
        }
        // SYNC(position): pairs with the loads of `head`.
        let (won, lost) = (Ordering::Release, Ordering::Relaxed);
        let next = head.after_void();
        let word = self.word(HEAD_WORD);
        if word.compare_exchange(head.0, next.0, won, lost).is_err() {
            spin_loop();
            return Ok(());
        }
        *voided += 1;
        let (word, lap) = (
            self.word(geometry.void_word(position)),
            geometry.lap(position),
        );
        let mut voids = word.load(Ordering::Relaxed);
        loop {
            let more = Voids(voids).with(geometry, lap).0;
            // SYNC(void): pairs with its loads. A thread that loads it also sees that `head` has
            // passed the position.
            match word.compare_exchange(voids, more, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => voids = now,
            }
        }
        // Relaxed: it only gives the higher bits of a count whose lower bits are in `head`.
        self.word(VOIDS_WORD).fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.words.word(at)
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &[AtomicU64] {
        let (first, count) = (
            self.geometry.slot_word(position),
            self.geometry.stride_words(),
        );
        // SAFETY: `new` has compared the memory with the geometry, and `slot_word` is in bounds of
        // the geometry for any number.
        unsafe { self.words.range_unchecked(first, count) }
    }
}

/// Leaves the words of the ring to the winner of a race for some turns, and for more the next time.
#[cold]
#[inline(never)]
fn wait(turns: &mut u32) {
    for _ in 0..*turns {
        spin_loop();
    }
    *turns = (*turns * 2).min(MAX_SPIN_TURNS);
}
