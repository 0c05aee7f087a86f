// SPDX-License-Identifier: MIT OR Apache-2.0
//! The consumer and the observers: steps 8 to 12 of the protocol in the module's comment.

use overhear_event::Ticks;

use super::geometry::{Head, RingError, RingGeometry, Turn};
use super::geometry::{ADDRESS, DATA, HEAD_WORD, KIND, STAMP, TAIL_WORD, THREAD, TURN, WRITER};
use super::writer::WhenFull;
use super::{load, unpack_kind, EventRecord};
use crate::layout::unpair;
use crate::sync::{fence, AtomicU64, Ordering};
use crate::words::Words;

/// Why events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// Newer events took their slots before they were read.
    Overwritten,
    /// They were given a position, but never a slot: writers of other laps had it.
    Overtaken,
    /// The memory contradicts itself: another process damaged it. How many events were lost is
    /// unknown, and `missed` is 0.
    Damaged,
}

/// The next thing in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'c> {
    /// An event.
    Event {
        /// Its position: events are counted from 0 on.
        position: u64,
        /// The event. Its data is in the caller's buffer.
        record: EventRecord<'c>,
        /// Bytes of data that were written; more than `record.data` has if the buffer was too
        /// small.
        recorded: usize,
    },
    /// Events that cannot be read any more.
    Lost {
        /// Position of the first.
        first: u64,
        /// Number of events.
        missed: u64,
        /// Why.
        cause: LossCause,
    },
    /// The next event has a position, but is not complete yet. Its writer may be at work,
    /// preempted, stopped or dead: who waits for too long abandons it.
    Pending {
        /// Its position.
        position: u64,
    },
    /// No event.
    Empty,
}

/// What is copied out of a slot, except the data.
struct Copied {
    lead: [u64; DATA],
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
        // SYNC(claim): pairs with the CAS of `head`.
        let word = load(&self.words, HEAD_WORD, Ordering::Acquire);
        self.geometry.head(word)
    }

    #[inline]
    fn turn(&self, slot: u64) -> Turn {
        let at = self.geometry.slot_word(slot) + TURN;
        // SYNC(publish), SYNC(own): pairs with the changes of the turn by writers.
        Turn(load(&self.words, at, Ordering::Acquire))
    }

    /// Steps 9 and 10: `None` if a writer has taken the slot meanwhile.
    #[inline]
    fn copy(&self, slot: u64, turn: Turn, to: &mut [u8]) -> Option<Copied> {
        let first = self.geometry.slot_word(slot);
        let words = self.words.range(first, self.geometry.stride_words());
        // Relaxed: SYNC(publish) was acquired, and the copy is validated below.
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let lead = core::array::from_fn(word);
        let data_bytes_untrusted = unpack_kind(lead[KIND]).2;
        let recorded = data_bytes_untrusted.min(self.geometry.data_bytes()) as usize;
        let size = recorded.min(to.len());
        load_bytes(&mut to[..size], &words[DATA..]);
        // SYNC(overwrite): pairs with the writer's fence before it fills the slot again.
        fence(Ordering::Acquire);
        // Relaxed: as the fence comes before it.
        let now = load(&self.words, first + TURN, Ordering::Relaxed);
        (now == turn.0).then_some(Copied {
            lead,
            recorded,
            size,
        })
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

/// Where a reader is.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Position of the next event, with all its bits.
    position: u64,
    /// The event is in this slot, or, if writers stepped over slots, in a later one.
    slot: u64,
    /// Whether no event was delivered since the last ones were overwritten.
    lapped: bool,
    /// Whether `head` lay before the position when it was last looked at.
    damaged: bool,
}

/// What the slow path found out about the cursor's event.
enum Sought {
    /// It is published in the cursor's slot.
    Here,
    Lost {
        first: u64,
        missed: u64,
        cause: LossCause,
    },
    Pending,
    Empty,
}

impl Cursor {
    const START: Self = Self {
        position: 0,
        slot: 0,
        lapped: false,
        damaged: false,
    };

    /// At the first event in the ring that is at this position or behind.
    fn find<W: Words>(view: &View<W>, position: u64) -> Self {
        let (geometry, head) = (&view.geometry, view.head());
        let ahead = geometry.ahead(head.position, position);
        let capacity = geometry.capacity();
        let found = (0..capacity).find_map(|step| {
            let slot = geometry.wrap(head.slot + step);
            let turn = view.turn(slot);
            let past = geometry.ahead(turn.position(geometry), position);
            (turn != Turn::NEVER && (0..ahead).contains(&past)).then_some((slot, past))
        });
        let (slot, past) = found.unwrap_or((head.slot, ahead));
        Self {
            position: position.wrapping_add_signed(past),
            slot,
            lapped: false,
            damaged: false,
        }
    }

    #[inline]
    fn next<'c, W: Words>(&mut self, view: &View<W>, copy: &'c mut [u8]) -> Next<'c> {
        // The second round is for an event that the slow path found.
        for _ in 0..2 {
            let turn = Turn::published(&view.geometry, self.position);
            if view.turn(self.slot) == turn {
                if let Some(copied) = view.copy(self.slot, turn, copy) {
                    return self.deliver(view, &copied, copy);
                }
            }
            match self.seek(view) {
                Sought::Here => {}
                Sought::Lost {
                    first,
                    missed,
                    cause,
                } => {
                    return Next::Lost {
                        first,
                        missed,
                        cause,
                    }
                }
                Sought::Pending => break,
                Sought::Empty => return Next::Empty,
            }
        }
        Next::Pending {
            position: self.position,
        }
    }

    #[inline]
    fn deliver<'c, W>(&mut self, view: &View<W>, copied: &Copied, copy: &'c [u8]) -> Next<'c> {
        let position = self.position;
        self.position = position.wrapping_add(1);
        self.slot = view.geometry.wrap(self.slot + 1);
        self.lapped = false;
        let lead = &copied.lead;
        let (pid, tid) = unpair(lead[WRITER]);
        let (event, flags, _) = unpack_kind(lead[KIND]);
        Next::Event {
            position,
            record: EventRecord {
                stamp: Ticks::from_raw(lead[STAMP]),
                address: lead[ADDRESS],
                thread: lead[THREAD],
                pid,
                tid,
                event,
                flags,
                data: &copy[..copied.size],
            },
            recorded: copied.recorded,
        }
    }

    /// Steps 11 and 12: the cursor's event is not published in the cursor's slot.
    #[cold]
    fn seek<W: Words>(&mut self, view: &View<W>) -> Sought {
        let geometry = &view.geometry;
        let head = view.head();
        let ahead = geometry.ahead(head.position, self.position);
        if ahead < 0 {
            return self.report_damage();
        }
        self.damaged = false;
        if ahead == 0 {
            return Sought::Empty;
        }
        if ahead.cast_unsigned() > geometry.capacity() {
            return self.catch_up(view, head, ahead);
        }
        // The turns are loaded after `head`, so each is that of the event's claim or a later one.
        let (mut may_come, mut newer) = (false, false);
        for step in 0..=self.skipped(geometry, head, ahead) {
            let slot = geometry.wrap(self.slot + step);
            let turn = view.turn(slot);
            let past = geometry.ahead(turn.position(geometry), self.position);
            if past == 0 {
                self.slot = slot;
                return if turn.is_held() {
                    Sought::Pending
                } else {
                    Sought::Here
                };
            }
            newer |= past > 0;
            // Of a slot that an older writer holds the event's writer cannot have become the owner.
            may_come |= past < 0 && !turn.is_held();
        }
        if may_come {
            return Sought::Pending;
        }
        if newer {
            return self.catch_up(view, head, ahead);
        }
        let first = self.position;
        self.pass(geometry, head, ahead);
        Sought::Lost {
            first,
            missed: 1,
            cause: LossCause::Overtaken,
        }
    }

    /// How many slots writers stepped over between the cursor and `head`; `ahead` is from 1 to the
    /// capacity.
    fn skipped(&self, geometry: &RingGeometry, head: Head, ahead: i64) -> u64 {
        let slots = head.slot.wrapping_sub(self.slot);
        geometry.wrap(slots.wrapping_sub(ahead.cast_unsigned()))
    }

    /// Goes on without the cursor's event.
    fn pass(&mut self, geometry: &RingGeometry, head: Head, ahead: i64) {
        // With slots that were stepped over, the event's slot is not known; the search for the
        // next event begins at the same one.
        if self.skipped(geometry, head, ahead) == 0 {
            self.slot = geometry.wrap(self.slot + 1);
        }
        self.position = self.position.wrapping_add(1);
    }

    /// Goes on at the oldest event in the ring, after it lost the cursor's.
    fn catch_up<W: Words>(&mut self, view: &View<W>, head: Head, ahead: i64) -> Sought {
        let (geometry, first) = (&view.geometry, self.position);
        let capacity = geometry.capacity();
        // Whoever did not get the oldest event before its writer leaves some more of them.
        let leave = if self.lapped { capacity / 4 } else { 0 };
        let found = (leave..capacity).find_map(|step| {
            let slot = geometry.wrap(head.slot + step);
            let past = geometry.ahead(view.turn(slot).position(geometry), first);
            (1..ahead).contains(&past).then_some((slot, past))
        });
        let (slot, past) = found.unwrap_or((head.slot, ahead));
        *self = Self {
            position: first.wrapping_add_signed(past),
            slot,
            lapped: true,
            damaged: false,
        };
        Sought::Lost {
            first,
            missed: past.cast_unsigned(),
            cause: LossCause::Overwritten,
        }
    }

    /// `head` lies before the cursor: reported once, and then nothing can be read until it has
    /// caught up.
    fn report_damage(&mut self) -> Sought {
        if core::mem::replace(&mut self.damaged, true) {
            return Sought::Empty;
        }
        Sought::Lost {
            first: self.position,
            missed: 0,
            cause: LossCause::Damaged,
        }
    }

    /// Gives up the event at this position.
    fn abandon<W: Words>(&mut self, view: &View<W>, position: u64) -> bool {
        let (geometry, head) = (&view.geometry, view.head());
        let ahead = geometry.ahead(head.position, self.position);
        let in_ring = (1..=geometry.capacity().cast_signed()).contains(&ahead);
        let published = Turn::published(geometry, position);
        if position != self.position || !in_ring || view.turn(self.slot) == published {
            return false;
        }
        self.pass(geometry, head, ahead);
        true
    }

    /// Goes behind all events, and returns how many these are.
    fn clear<W: Words>(&mut self, view: &View<W>) -> u64 {
        let head = view.head();
        let ahead = view.geometry.ahead(head.position, self.position);
        *self = Self {
            position: self.position.wrapping_add_signed(ahead),
            slot: head.slot,
            lapped: false,
            damaged: false,
        };
        u64::try_from(ahead).unwrap_or(0)
    }

    fn unread<W: Words>(&self, view: &View<W>) -> u64 {
        let ahead = view.geometry.ahead(view.head().position, self.position);
        u64::try_from(ahead).unwrap_or(0)
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
        let mut cursor = Cursor::START;
        if when_full == WhenFull::Refuse {
            // Relaxed: nobody else stores it.
            let tail = view.words.word(TAIL_WORD).load(Ordering::Relaxed);
            if tail != 0 {
                cursor = Cursor::find(&view, tail);
            }
        }
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

    /// Gives up the event at this position, whose writer is late or dead: one event is lost.
    /// `false`, and nothing changes, if it is not the next event or has been published meanwhile.
    pub fn abandon(&mut self, position: u64) -> bool {
        let abandoned = self.cursor.abandon(&self.view, position);
        if abandoned {
            self.free();
        }
        abandoned
    }

    /// Discards all events that were given a position, and returns how many these are.
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

    /// Number of events that were given a position and are not read. In a ring whose events are
    /// overwritten it may exceed the capacity.
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
            cursor: Cursor::START,
        })
    }

    /// Begins at the oldest event in the ring.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_oldest(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        let view = View::new(words, geometry)?;
        let oldest = view.head().position.saturating_sub(geometry.capacity());
        let cursor = Cursor::find(&view, oldest);
        Ok(Self { view, cursor })
    }

    /// Begins behind the newest event.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_now(words: W, geometry: RingGeometry) -> Result<Self, RingError> {
        let view = View::new(words, geometry)?;
        let Head { position, slot } = view.head();
        let cursor = Cursor {
            position,
            slot,
            lapped: false,
            damaged: false,
        };
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

    /// Goes behind all events that were given a position, and returns how many these are.
    pub fn clear(&mut self) -> u64 {
        self.cursor.clear(&self.view)
    }

    /// Position of the next event.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.cursor.position
    }

    /// Number of events that were given a position and are not read, as [`RingConsumer::unread`].
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.cursor.unread(&self.view)
    }
}
