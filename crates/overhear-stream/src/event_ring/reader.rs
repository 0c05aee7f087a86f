// SPDX-License-Identifier: MIT OR Apache-2.0
//! The consumer and the observers: steps 8 to 12 of the protocol in the module's comment.

use overhear_event::Ticks;

use super::geometry::{ahead, Head, RingError, RingGeometry, Turn, Voids};
use super::geometry::{ADDRESS, DATA, KIND, STAMP, THREAD, TURN, WRITER};
use super::geometry::{HEAD_WORD, TAIL_WORD, VOIDS_WORD};
use super::writer::WhenFull;
use super::{load, EventRecord, Kind, LEAN};
use crate::layout::unpair;
use crate::sync::{fence, AtomicU64, Ordering};
use crate::words::Words;

/// Maximum number of times that one call reads a position again because a writer changed it.
const MAX_READS_PER_POSITION: u64 = 4;

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// Newer events took their slots before they were read.
    Overwritten,
    /// The memory contradicts itself: another process damaged it. The number of lost events is
    /// unknown, and `missed` is 0.
    Damaged,
}

/// The next thing in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'c> {
    /// An event.
    Event {
        /// Its position. Positions ascend; some are void, so they have holes.
        position: u64,
        /// The event. Its data is in the caller's buffer.
        record: EventRecord<'c>,
        /// Bytes of data that were written; more than `record.data` has if the buffer was too
        /// small.
        recorded: usize,
    },
    /// Events that cannot be read any more.
    Lost {
        /// The position where they begin.
        first: u64,
        /// Number of events: void positions are not among them.
        missed: u64,
        /// The cause of the loss.
        cause: LossCause,
    },
    /// The next event has a position, but is not complete yet. Its writer may be at work,
    /// preempted, stopped or dead: a reader that has waited for too long abandons it.
    Pending {
        /// Its position.
        position: u64,
    },
    /// No event.
    Empty,
}

/// The copy of a slot, except the data.
struct Copied {
    lead: [u64; DATA],
    kind: Kind,
    recorded: usize,
    size: usize,
}

/// The memory, as readers see it.
#[derive(Debug)]
struct View<W> {
    words: W,
    geometry: RingGeometry,
}

impl<W: Words> View<W> {
    fn new(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        geometry.check_size(&words)?;
        Ok(Self { words, geometry })
    }

    #[inline]
    fn head(&self) -> Head {
        // SYNC(position): pairs with the CAS of `head`.
        Head(load(&self.words, HEAD_WORD, Ordering::Acquire))
    }

    #[inline]
    fn turn(&self, position: u64) -> Turn {
        let at = self.geometry.slot_word(position) + TURN;
        // SYNC(turn): pairs with the owner's store.
        Turn(load(&self.words, at, Ordering::Acquire))
    }

    /// Whether the turn is that of the event at this position, published.
    #[inline]
    fn is_done(&self, turn: Turn, position: u64) -> bool {
        let geometry = &self.geometry;
        turn.progress() == geometry.free_for(geometry.lap(position).next())
    }

    /// Steps 9 and 10: `None` if a writer has taken the slot meanwhile.
    #[inline]
    fn copy(&self, position: u64, turn: Turn, to: &mut [u8]) -> Option<Copied> {
        let first = self.geometry.slot_word(position);
        let words = self.words.range(first, self.geometry.stride_words());
        // Relaxed: SYNC(turn) was acquired, and the copy is validated below.
        let lead: [u64; DATA] = core::array::from_fn(|at| match at {
            TURN => 0,
            ADDRESS | THREAD if LEAN => 0,
            _ => words[at].load(Ordering::Relaxed),
        });
        let kind_untrusted = Kind::from_word(lead[KIND]);
        let most = self.geometry.data_bytes() as usize;
        let recorded = usize::from(kind_untrusted.data_bytes).min(most);
        let size = recorded.min(to.len());
        load_bytes(&mut to[..size], &words[DATA..]);
        // SYNC(overwrite): pairs with the writer's fence before it fills the slot again.
        fence(Ordering::Acquire);
        // Relaxed: the fence orders it.
        let now = load(&self.words, first + TURN, Ordering::Relaxed);
        (now == turn.0).then_some(Copied {
            lead,
            kind: kind_untrusted,
            recorded,
            size,
        })
    }

    /// All bits of the number of void positions, of which these are the low ones.
    fn all_voids(&self, low: u16) -> u64 {
        // Relaxed: it lags by a few at most, and only its higher bits are used.
        let near = load(&self.words, VOIDS_WORD, Ordering::Relaxed);
        near.wrapping_add_signed(i64::from(low.wrapping_sub(near as u16).cast_signed()))
    }
}

/// Loads bytes out of words, relaxed.
#[inline]
fn load_bytes(to: &mut [u8], from: &[AtomicU64]) {
    for (to, from) in to.chunks_mut(8).zip(from) {
        let bytes = from.load(Ordering::Relaxed).to_ne_bytes();
        to.copy_from_slice(&bytes[..to.len()]);
    }
}

/// The position of a reader.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Position of the next event, with all its bits.
    position: u64,
    /// Number of void positions before it, or before the gap if there is one.
    voids: u64,
    /// Positions that were passed unread: they are reported when the number of void ones among them
    /// is determined.
    gap: Option<Gap>,
    /// Whether no event was delivered since the reader was lapped.
    lapped: bool,
    /// Whether `head` lay before the position when it was last looked at.
    damaged: bool,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    first: u64,
    /// Positions after the first that were given up since.
    abandoned: u64,
}

/// The content of the cursor's position.
enum Sought {
    Published(Turn),
    Pending,
    Empty(Head),
    Damaged,
}

impl Cursor {
    const fn at(position: u64, voids: u64) -> Self {
        Self {
            position,
            voids,
            gap: None,
            lapped: false,
            damaged: false,
        }
    }

    fn at_head<W: Words>(view: &View<W>) -> Self {
        let head = view.head();
        Self::at(head.position(), view.all_voids(head.voids()))
    }

    #[inline]
    fn next<'c, W: Words>(&mut self, view: &View<W>, copy: &'c mut [u8]) -> Next<'c> {
        let turn = view.turn(self.position);
        if self.gap.is_none() && view.is_done(turn, self.position) {
            if let Some(copied) = view.copy(self.position, turn, copy) {
                return self.deliver(&copied, copy);
            }
        }
        self.next_slowly(view, copy)
    }

    #[cold]
    fn next_slowly<'c, W: Words>(&mut self, view: &View<W>, copy: &'c mut [u8]) -> Next<'c> {
        for _ in 0..MAX_READS_PER_POSITION {
            match self.seek(view) {
                Sought::Published(turn) => {
                    let Some(copied) = view.copy(self.position, turn, copy) else {
                        continue;
                    };
                    if let Some(lost) = self.close_gap(view, copied.kind.ring_voids) {
                        return lost;
                    }
                    return self.deliver(&copied, copy);
                }
                Sought::Pending => break,
                Sought::Empty(head) => {
                    return self.close_gap(view, head.voids()).unwrap_or(Next::Empty);
                }
                Sought::Damaged => {
                    return Next::Lost {
                        first: self.position,
                        missed: 0,
                        cause: LossCause::Damaged,
                    };
                }
            }
        }
        Next::Pending {
            position: self.position,
        }
    }

    #[inline]
    fn deliver<'c>(&mut self, copied: &Copied, copy: &'c [u8]) -> Next<'c> {
        let position = self.position;
        self.position = position.wrapping_add(1);
        self.lapped = false;
        let (lead, kind) = (&copied.lead, copied.kind);
        let (pid, tid) = unpair(lead[WRITER]);
        Next::Event {
            position,
            record: EventRecord {
                stamp: Ticks::from_raw(lead[STAMP]),
                address: lead[ADDRESS],
                thread: lead[THREAD],
                pid,
                tid,
                event: kind.event,
                flags: kind.flags,
                data: &copy[..copied.size],
            },
            recorded: copied.recorded,
        }
    }

    /// Steps 11 and 12: looks for the first position from the cursor on that is not void.
    fn seek<W: Words>(&mut self, view: &View<W>) -> Sought {
        let geometry = &view.geometry;
        for _ in 0..geometry.capacity() + MAX_READS_PER_POSITION {
            let head = view.head();
            let unread = ahead(head.position(), self.position);
            if unread < 0 {
                // Reported once; then nothing can be read until `head` has caught up.
                let before = core::mem::replace(&mut self.damaged, true);
                return if before {
                    Sought::Empty(head)
                } else {
                    Sought::Damaged
                };
            }
            self.damaged = false;
            if unread == 0 {
                return Sought::Empty(head);
            }
            if unread.cast_unsigned() > geometry.capacity() {
                // A reader that has lost the race for the oldest event skips some more of them.
                let leave = if self.lapped {
                    geometry.capacity() / 4
                } else {
                    0
                };
                self.lapped = true;
                self.miss(unread.cast_unsigned() - geometry.capacity() + leave);
                continue;
            }
            // Loaded after `head`, the turn is that of the position's claim or a later one.
            let turn = view.turn(self.position);
            if view.is_done(turn, self.position) {
                return Sought::Published(turn);
            }
            let lap = geometry.lap(self.position);
            let past = geometry.laps_ahead(turn.next_lap(), lap.next());
            if past == 0 {
                return Sought::Pending;
            }
            if past > 0 {
                // Overwritten since `head` was loaded.
                self.miss(1);
                continue;
            }
            // SYNC(void): pairs with the CAS of this word.
            let voids = load(
                &view.words,
                geometry.void_word(self.position),
                Ordering::Acquire,
            );
            // An older writer owned the slot when the position was claimed. So only the writer that
            // claimed the position has become its owner.
            if !turn.is_busy() && !Voids(voids).newest_is(geometry, lap) {
                return Sought::Pending;
            }
            self.position = self.position.wrapping_add(1);
            if self.gap.is_none() {
                self.voids = self.voids.wrapping_add(1);
            }
        }
        Sought::Pending
    }

    /// Passes positions without a look.
    fn miss(&mut self, positions: u64) {
        let first = self.position;
        self.gap.get_or_insert(Gap {
            first,
            abandoned: 0,
        });
        self.position = first.wrapping_add(positions);
    }

    /// Ends the gap at the cursor's position, before which this number of positions is void.
    fn close_gap<W: Words>(&mut self, view: &View<W>, voids: u16) -> Option<Next<'static>> {
        let gap = self.gap.take()?;
        let voids = view.all_voids(voids);
        let positions = self.position.wrapping_sub(gap.first);
        let events = positions
            .saturating_sub(voids.wrapping_sub(self.voids))
            .saturating_sub(gap.abandoned);
        self.voids = voids;
        (events > 0).then_some(Next::Lost {
            first: gap.first,
            missed: events,
            cause: LossCause::Overwritten,
        })
    }

    /// Gives up the event at this position, if it is pending.
    fn abandon<W: Words>(&mut self, view: &View<W>, position: u64) -> bool {
        if position != self.position {
            return false;
        }
        let sought = self.seek(view);
        if matches!(sought, Sought::Damaged) {
            // To be reported by the next call of `next`.
            self.damaged = false;
        }
        if !matches!(sought, Sought::Pending) || position != self.position {
            return false;
        }
        self.position = position.wrapping_add(1);
        if let Some(gap) = &mut self.gap {
            gap.abandoned += 1;
        }
        true
    }

    /// Moves after all claimed positions, and returns their number.
    fn clear<W: Words>(&mut self, view: &View<W>) -> u64 {
        let head = view.head();
        let unread = ahead(head.position(), self.position);
        let position = self.position.wrapping_add_signed(unread);
        *self = Self::at(position, view.all_voids(head.voids()));
        u64::try_from(unread).unwrap_or(0)
    }

    fn unread<W: Words>(&self, view: &View<W>) -> u64 {
        let from = self.gap.map_or(self.position, |gap| gap.first);
        u64::try_from(ahead(view.head().position(), from)).unwrap_or(0)
    }
}

/// The one reader for which the ring keeps events. Where writers refuse to overwrite, it frees the
/// slots.
///
/// Each call has a bounded number of steps, whatever is in the memory. A copy is delivered only if
/// no writer touched its slot meanwhile.
#[derive(Debug)]
pub struct RingConsumer<W> {
    view: View<W>,
    when_full: WhenFull,
    cursor: Cursor,
}

impl<W: Words> RingConsumer<W> {
    /// The consumer of a ring. There must be one at a time. Where writers refuse to overwrite, it
    /// goes on where the last one ended; else it begins at position 0.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, geometry: RingGeometry, when_full: WhenFull) -> Result<Self, RingError> {
        let view = View::new(words, geometry)?;
        let cursor = match when_full {
            WhenFull::Overwrite => Cursor::at(0, 0),
            WhenFull::Refuse => {
                // Relaxed: only the consumer stores it.
                let tail = view.words.word(TAIL_WORD).load(Ordering::Relaxed);
                let head = view.head();
                Cursor::at(tail, view.all_voids(head.voids()))
            }
        };
        let consumer = Self {
            view,
            when_full,
            cursor,
        };
        Ok(consumer)
    }

    /// The next event, or what is in its place. At most `copy.len()` bytes of its data are copied;
    /// the event is consumed even if it has more.
    #[inline]
    pub fn next<'c>(&mut self, copy: &'c mut [u8]) -> Next<'c> {
        let before = self.cursor.position;
        let next = self.cursor.next(&self.view, copy);
        if self.cursor.position != before {
            self.free();
        }
        next
    }

    /// Gives up the event at this position, whose writer is late or dead: one event is lost. (Or
    /// none, if its writer was stopped just then between the two parts of voiding the position.)
    /// `false` if it is not the next event, or not pending any more: see [`Self::next`].
    pub fn abandon(&mut self, position: u64) -> bool {
        let before = self.cursor.position;
        let abandoned = self.cursor.abandon(&self.view, position);
        if self.cursor.position != before {
            self.free();
        }
        abandoned
    }

    /// Discards all events that have a position, and returns the number of the positions.
    pub fn clear(&mut self) -> u64 {
        let discarded = self.cursor.clear(&self.view);
        self.free();
        discarded
    }

    /// Position of the next event.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.cursor.position
    }

    /// Number of positions of events that were not read yet. In a ring whose events are overwritten
    /// it may exceed the capacity.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.cursor.unread(&self.view)
    }

    #[inline]
    fn free(&self) {
        if self.when_full == WhenFull::Refuse {
            let tail = self.view.words.word(TAIL_WORD);
            // SYNC(free): pairs with the load of `tail` by writers.
            tail.store(self.cursor.position, Ordering::Release);
        }
    }
}

/// A reader that changes nothing: its map may be read-only, and there may be any number of them.
///
/// For bounds and validation, see [`RingConsumer`].
#[derive(Debug)]
pub struct RingObserver<W> {
    view: View<W>,
    cursor: Cursor,
}

impl<W: Words> RingObserver<W> {
    /// Begins at position 0, and so counts all events that are not in the ring any more as lost.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_start(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        let view = View::new(words, geometry)?;
        Ok(Self {
            view,
            cursor: Cursor::at(0, 0),
        })
    }

    /// Begins at the oldest event in the ring.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_oldest(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        let view = View::new(words, geometry)?;
        let mut cursor = Cursor::at_head(&view);
        cursor.position = cursor.position.saturating_sub(geometry.capacity());
        Ok(Self { view, cursor })
    }

    /// Begins after the newest event.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_now(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        let view = View::new(words, geometry)?;
        let cursor = Cursor::at_head(&view);
        Ok(Self { view, cursor })
    }

    /// The next event, or what is in its place, as [`RingConsumer::next`].
    #[inline]
    pub fn next<'c>(&mut self, copy: &'c mut [u8]) -> Next<'c> {
        self.cursor.next(&self.view, copy)
    }

    /// Gives up the event at this position, as [`RingConsumer::abandon`], for this observer alone.
    pub fn abandon(&mut self, position: u64) -> bool {
        self.cursor.abandon(&self.view, position)
    }

    /// Moves after all events that have a position, and returns the number of the positions.
    pub fn clear(&mut self) -> u64 {
        self.cursor.clear(&self.view)
    }

    /// Position of the next event.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.cursor.position
    }

    /// Number of positions of events that were not read yet, as [`RingConsumer::unread`].
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.cursor.unread(&self.view)
    }
}
