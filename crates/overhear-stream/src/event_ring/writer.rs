// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claim, own, fill, publish: steps 1 to 7 of the protocol in the module's comment.

use overhear_event::Ticks;

use super::geometry::{Head, RingError, RingGeometry, Turn};
use super::geometry::{ADDRESS, DATA, HEAD_WORD, KIND, STAMP, TAIL_WORD, THREAD, TURN, WRITER};
use super::{kind_word, load, EventRecord};
use crate::layout::pair;
use crate::sync::{fence, spin_loop, AtomicU64, Ordering};
use crate::words::{store_bytes, Words};

/// Turns of the first wait after a lost race, and the most of a later one: about a microsecond.
const LEAST_TURNS: u32 = if cfg!(loom) { 1 } else { 8 };
const MOST_TURNS: u32 = if cfg!(loom) { 1 } else { 64 };
/// How often step 5 looks at its slot again. One retry is enough unless the memory is damaged or
/// its changes are seen late.
const OWN_TRIES: u32 = 4;

/// What a write does where the oldest event has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It replaces the oldest event.
    Overwrite,
    /// It is refused.
    Refuse,
}

/// The event was not written and has no position: whoever wrote it counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFull {
    /// The ring is full of unread events ([`WhenFull::Refuse`]).
    #[error("the event ring is full of events that have not been read")]
    Unread,
    /// Every slot was in the hands of a writer that had not finished.
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

/// A position that no other writer has, and the slot for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) position: u64,
    slot: u64,
    /// The slot's turn, as seen before the claim.
    seen: Turn,
    stamp: Ticks,
    when_full: WhenFull,
}

/// A slot that no other writer stores into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub(super) position: u64,
    slot: u64,
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

    /// Where things lie in it.
    #[must_use]
    pub const fn geometry(&self) -> &RingGeometry {
        &self.geometry
    }

    /// Number of events that were given a position so far: the position of the next one.
    #[must_use]
    pub fn written(&self) -> u64 {
        // SYNC(claim): pairs with the CAS of `head`.
        let head = load(&self.words, HEAD_WORD, Ordering::Acquire);
        self.geometry.head(head).position
    }

    /// Writes an event, and returns its position. `record.stamp` is not used: `stamp` reads the
    /// clock, again for each race that is lost. Data beyond the geometry's size is cut off.
    ///
    /// An event that others overtake by a whole lap while it is written is lost like one that was
    /// overwritten: it has a position, and readers miss it.
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
        if let Some(owned) = self.own(claimed) {
            self.fill(owned, record);
            self.publish(owned);
        }
        Ok(claimed.position)
    }

    /// Steps 1 to 4.
    #[inline(always)]
    pub(super) fn claim(
        &self,
        when_full: WhenFull,
        mut stamp: impl FnMut() -> Ticks,
    ) -> Result<Claimed, RingFull> {
        let (geometry, mut turns, mut skipped) = (&self.geometry, LEAST_TURNS, 0);
        loop {
            // Step 1. SYNC(claim): pairs with the CAS below.
            let word = load(&self.words, HEAD_WORD, Ordering::Acquire);
            let Head { position, slot } = geometry.head(word);
            let mut oldest = None;
            if when_full == WhenFull::Refuse {
                // SYNC(free): pairs with the consumer's store of `tail`.
                let tail = load(&self.words, TAIL_WORD, Ordering::Acquire);
                oldest = Some(tail);
            }
            // SYNC(publish), SYNC(own): pairs with the changes of the turn below.
            let seen = Turn(load(
                &self.words,
                geometry.slot_word(slot) + TURN,
                Ordering::Acquire,
            ));
            // Step 2.
            if let Some(tail) = oldest {
                let full = !geometry.is_within_lap(position, tail);
                if full || geometry.is_within_lap(seen.position(geometry), tail) {
                    if self.is_head(word) {
                        return Err(RingFull::Unread);
                    }
                    continue;
                }
            }
            if seen.is_held() {
                if !self.skip(word, seen, &mut skipped)? {
                    wait(&mut turns);
                }
                continue;
            }
            // Step 3.
            let stamp = stamp();
            // Step 4. SYNC(claim): pairs with the load above.
            if self.advance(word, position.wrapping_add(1)) {
                return Ok(Claimed {
                    position,
                    slot,
                    seen,
                    stamp,
                    when_full,
                });
            }
            wait(&mut turns);
        }
    }

    /// Step 5. `None` if a writer of another lap has the slot: the event is lost, and its readers
    /// count it.
    #[inline(always)]
    pub(super) fn own(&self, claimed: Claimed) -> Option<Owned> {
        let geometry = &self.geometry;
        let Claimed {
            position,
            slot,
            stamp,
            ..
        } = claimed;
        let held = Turn::held(geometry, position);
        let word = self.word(slot, TURN);
        // SYNC(own): pairs with the loads of the turn. Acquire, for the last owner's stores come
        // before those of this one: SYNC(publish).
        let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
        if let Err(now) = word.compare_exchange(claimed.seen.0, held.0, won, lost) {
            self.own_again(claimed, Turn(now))?;
        }
        // SYNC(overwrite): pairs with the reader's fence before it loads the turn again.
        fence(Ordering::Release);
        Some(Owned {
            position,
            slot,
            stamp,
        })
    }

    /// Step 5 after a failure: the slot may belong to an older event that was published, of which
    /// step 1 knew nothing yet.
    #[cold]
    #[inline(never)]
    fn own_again(&self, claimed: Claimed, mut now: Turn) -> Option<()> {
        let geometry = &self.geometry;
        let held = Turn::held(geometry, claimed.position);
        let word = self.word(claimed.slot, TURN);
        for _ in 0..OWN_TRIES {
            let last = now.position(geometry);
            if now.is_held() || geometry.ahead(claimed.position, last) <= 0 {
                return None;
            }
            if claimed.when_full == WhenFull::Refuse {
                // SYNC(free): as in step 1.
                let tail = load(&self.words, TAIL_WORD, Ordering::Acquire);
                if geometry.is_within_lap(last, tail) {
                    return None;
                }
            }
            // SYNC(own), SYNC(publish): as in `own`.
            let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
            match word.compare_exchange(now.0, held.0, won, lost) {
                Ok(_) => return Some(()),
                Err(newer) => now = Turn(newer),
            }
        }
        None
    }

    /// Step 6.
    #[inline(always)]
    pub(super) fn fill(&self, owned: Owned, record: &EventRecord<'_>) {
        let geometry = &self.geometry;
        let size = record.data.len().min(geometry.data_bytes() as usize);
        let data = &record.data[..size];
        let slot = self.slot(owned.slot);
        // Relaxed: SYNC(publish) makes all of them visible.
        let store = |at: usize, value: u64| slot[at].store(value, Ordering::Relaxed);
        store(WRITER, pair(record.pid, record.tid));
        store(STAMP, owned.stamp.as_raw());
        store(ADDRESS, record.address);
        store(THREAD, record.thread);
        store(KIND, kind_word(record.event, record.flags, size as u32));
        store_bytes(&slot[DATA..], data);
    }

    /// Step 7.
    #[inline(always)]
    pub(super) fn publish(&self, owned: Owned) {
        let turn = Turn::published(&self.geometry, owned.position);
        // SYNC(publish): pairs with the loads of the turn.
        self.word(owned.slot, TURN).store(turn.0, Ordering::Release);
    }

    /// Steps over a slot whose writer is late; `false` if another writer was faster.
    #[cold]
    #[inline(never)]
    fn skip(&self, head: u64, seen: Turn, skipped: &mut u64) -> Result<bool, RingFull> {
        let geometry = &self.geometry;
        let Head { position, slot } = geometry.head(head);
        let word = self.word(slot, TURN);
        // The load may have been of an old value; a read-modify-write is not. Acquire: as the load.
        let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
        if word.compare_exchange(seen.0, seen.0, won, lost).is_err() {
            return Ok(true);
        }
        if *skipped == geometry.capacity() {
            return Err(RingFull::Held);
        }
        let next = Head {
            position,
            slot: slot + 1,
        };
        let next = geometry.head_word(next);
        let (won, lost) = (Ordering::Release, Ordering::Relaxed);
        // SYNC(claim): pairs with the loads of `head`.
        let moved = self.head().compare_exchange(head, next, won, lost).is_ok();
        *skipped += u64::from(moved);
        Ok(moved)
    }

    /// Moves `head` to this position and the next slot.
    #[inline(always)]
    fn advance(&self, head: u64, position: u64) -> bool {
        let geometry = &self.geometry;
        let slot = geometry.head(head).slot + 1;
        let next = geometry.head_word(Head { position, slot });
        let (won, lost) = (Ordering::Release, Ordering::Relaxed);
        // SYNC(claim): pairs with the loads of `head`.
        self.head().compare_exchange(head, next, won, lost).is_ok()
    }

    /// Whether `head` still is this.
    #[cold]
    fn is_head(&self, word: u64) -> bool {
        // SYNC(claim): pairs with the CAS of `head`.
        load(&self.words, HEAD_WORD, Ordering::Acquire) == word
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.words.word(HEAD_WORD)
    }

    #[inline(always)]
    fn word(&self, slot: u64, at: usize) -> &AtomicU64 {
        &self.slot(slot)[at]
    }

    #[inline(always)]
    fn slot(&self, slot: u64) -> &[AtomicU64] {
        let geometry = &self.geometry;
        let (first, count) = (geometry.slot_word(slot), geometry.stride_words());
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
    *turns = (*turns * 2).min(MOST_TURNS);
}
