// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event ring: events of any number of threads, signal handlers and processes in one order.
//!
//! One ring in shared memory, bytes as in section 10 of the layout page. Every *writer* claims the
//! next position, fills its slot and publishes it. One *consumer* reads the events in the order of
//! their positions. Any number of *observers* read them too, and change nothing. A writer may stop
//! or die at any instruction: it costs at most its own slot, and no wait for it lasts for ever.
//!
//! # Words
//!
//! The event of position p lies in slot p mod capacity. The *lap* of p is p / capacity. All words
//! are zero at the beginning. The words, their contents, and their writers:
//!
//! - `head`: the next position in the upper 48 bits, the number of void positions before it, cut,
//!   in the lower 16. A writer changes it, by a CAS, to claim the position or to void it.
//! - `turn` of a slot: *free for* a lap, or *busy* with the lap before. It also contains the number
//!   of void positions of the slot before its newest event, cut to 16 bits. The owner of the slot
//!   alone changes it, by plain stores.
//! - Stamp, address, thread, process, type, size and data of a slot: the owner of the slot alone
//!   changes them.
//! - The void word of a slot: the lap after that of its newest void position, and the number of its
//!   void positions, cut. The writer that voided a position changes it, by a CAS.
//! - `tail`: the position that the consumer reads next. The consumer alone changes it, in rings
//!   whose writers refuse to overwrite. Else it is 0.
//! - `voids`: the number of void positions. The writer that voided a position changes it, by an
//!   atomic addition.
//!
//! The *owner* of a slot is the writer that has claimed one of its positions and has not published
//! it. A position is in one of these states:
//!
//! - *unclaimed*: `head` has not passed it;
//! - *claimed*: it has an owner, and is or will be an event;
//! - *published*: the turn is free for the next lap, and its last lap is that of the position;
//! - *overwritten*: a later position of its slot was claimed;
//! - *void*: the slot was not free when `head` came to the position; there is no event.
//!
//! # Rules of writers
//!
//! 1. Load `head`, acquire: `SYNC(position)`. In a ring whose writers refuse: load `tail`, acquire:
//!    `SYNC(free)`. If `capacity` positions from `tail` on have been given away, the ring is full,
//!    provided that `head` still is what it was: the write is refused. Load the turn of the
//!    position's slot, acquire: `SYNC(turn)`.
//! 2. The slot is free if its turn is free for the position's lap, or if all positions of the laps
//!    between are void. Then the difference of the void word (loaded after the turn, acquire:
//!    `SYNC(void)`) and of the turn's count is the number of these laps. If it is not free, void
//!    the position: CAS `head` to the next position and one void position more, release:
//!    `SYNC(position)`; add the lap to the void word, release: `SYNC(void)`; add 1 to `voids`;
//!    begin again. A write that has voided `capacity` positions is refused: every slot has an
//!    owner.
//! 3. Read the clock.
//! 4. CAS `head` to the next position, release: `SYNC(position)`. The loser waits for some turns
//!    and begins again. The winner owns the slot: no other instruction is needed.
//! 5. Store the turn: busy. Fence with release: `SYNC(overwrite)`. It orders this store before the
//!    stores of step 6, which destroy the slot's last event.
//! 6. Fill the slot by relaxed word stores.
//! 7. Store the turn: free for the next lap, release: `SYNC(turn)`.
//!
//! # Rules of readers
//!
//! 8. Load the turn of the next position's slot, acquire: `SYNC(turn)`. Published: go on. Otherwise
//!    go to 11.
//! 9. Copy the slot by relaxed word loads. The size of the data is cut to that of the geometry.
//! 10. Fence with acquire: `SYNC(overwrite)`. Load the turn again. The copy is whole if it has not
//!     changed. The consumer then stores its next position into `tail`, release: `SYNC(free)`.
//! 11. Load `head`, acquire: `SYNC(position)`. If it has not passed the position, nothing is there.
//!     If it is more than `capacity` ahead, go to the oldest position that may be in the ring; the
//!     positions between are a gap.
//! 12. Load the turn again, acquire. Of a later lap: the position is a part of a gap. Busy with its
//!     lap: it is *pending*. Busy with an earlier lap, or its lap is the newest one of the void
//!     word (acquire: `SYNC(void)`): it is void; go to the next. Otherwise it is pending, too: its
//!     owner has not come to step 5. A caller that has waited for a pending position for too long
//!     *abandons* it. The reader goes on, and one event is lost; a later publication has no effect.
//!
//! Every event contains the number of void positions before it, cut to 16 bits, and so does `head`.
//! `voids` gives the other bits. So the end of a gap, an event or the end of the ring, shows how
//! many of its positions were void, and how many events were lost.
//!
//! # Correctness
//!
//! *One owner.* Of all positions of a slot the one that was claimed last is not published, or is
//! void, or has published. A claim of a later position needs step 2 to find the slot free. If the
//! turn is free for the lap, the position of the lap before was published, and its owner had found
//! the slot free, so all laps before it have ended. If the turn is free for an earlier lap t, its
//! count is the number of the slot's void positions in laps before t: exactly, because the owner
//! found the slot free in that way, or copied the count of the lap before. So the difference is the
//! number of void positions in the laps from t on that step 2 sees. It sees none of a lap that is
//! not yet claimed: a writer that sees a count also sees a `head` after its position
//! (`SYNC(void)`), and then step 4 fails. So it equals the number of laps from t on if and only if
//! none of them has an owner, or a writer between the two parts of voiding. A loaded turn or count
//! that is out of date is less, and step 2 finds the slot not free. The counts have 16 bits: the
//! slot would be taken to be free wrongly after 65,536 writers had died between the two parts, in
//! this one slot.
//!
//! *A copy is whole* if the turn has not changed. Had any word been of a later owner, its store of
//! the busy turn would be seen: `SYNC(overwrite)`.
//!
//! *A position that is found void has no event.* Its claimer loaded the turn before it moved
//! `head`, and the reader did after it had seen `head` moved. If the reader finds the turn busy
//! with an earlier lap, the claimer found the same or an earlier turn. Then the earlier lap had an
//! owner, so the slot was not free.
//!
//! *No loss without need.* A ring holds `capacity` events, except for slots whose owners are late
//! by a lap. (Or whose publication is seen late by a lap, which no CPU does. Where writers refuse,
//! `SYNC(free)` makes it visible in any case.) A write is refused only if the `capacity` positions
//! from `tail` on are unread events, events being written, and void positions of such slots. The
//! consumer passes void positions and abandons late ones, so neither keeps writers from going on.
//!
//! *Order.* The writer that claims position p reads the clock after it found `head` at p, so after
//! the claim of p - 1, whose stamp is older: stamps ascend with positions if the clock is read in
//! order with the load ([`read_hardware_ticks_ordered`]). `rdtsc` without a fence may be carried
//! out some tens of cycles early, and costs less. Then stamps of writers that race may be out of
//! order by as much, and readers replace a stamp that goes back by its predecessor.
//!
//! *Nested writes.* A signal handler that interrupts a writer at any step is a writer like others:
//! before step 4 the interrupted one loses the race, after it the handler has other positions.
//!
//! *Progress: lock-free.* A race is lost only to a writer that has moved `head`. A write voids at
//! most `capacity` positions. It does not allocate, does not enter the kernel and takes no lock.
//! Without races and late writers it has one locked instruction. A reader is wait-free: a call
//! looks at `capacity` and a few positions at most.
//!
//! *A writer that stops or dies* before step 4 costs nothing. After it the slot has an owner until
//! the writer continues: the reader waits at this position until it abandons it, and writers void
//! one position in each lap. Between the two parts of voiding, the slot that was not free stays so
//! for ever, and its position is pending: it is abandoned, and counts as lost, as the dead writer's
//! event is.
//!
//! *Damage.* Every process that maps the ring may have written anything into it. Readers take slots
//! from their own positions, sizes from the geometry, and use counts for nothing but counts. A
//! `head` that goes back is reported once, and ends reading until it has caught up.
//!
//! # Alternatives
//!
//! Owning a slot by a second CAS, on its turn, lets positions be dense, so that they need no void
//! ones; but it costs 7 ns of 29 (AMD EPYC, November 2026; a simple sensor costs 10). The
//! [queue](crate::QueueWriter) has three locked instructions, and takes the elements of events that
//! have not been read: it cannot refuse.
//!
//! [`read_hardware_ticks_ordered`]: crate::read_hardware_ticks_ordered

mod geometry;
mod reader;
mod writer;

#[cfg(all(test, loom, not(shuttle)))]
mod loom_tests;
#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
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
    /// An address in the program, for example of the call.
    pub address: u64,
    /// The thread, as the program numbers it.
    pub thread: u64,
    /// The process, as the kernel numbers it.
    pub pid: u32,
    /// The thread, as the kernel numbers it.
    pub tid: u32,
    /// The number of its type.
    pub event: u16,
    /// Bits that the ring copies and does not interpret.
    pub flags: u16,
    /// Its data.
    pub data: &'a [u8],
}

/// The word of a slot with its smallest fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    event: u16,
    flags: u16,
    data_bytes: u16,
    /// The low bits of the number of void positions of the ring before the event.
    ring_voids: u16,
}

impl Kind {
    #[inline(always)]
    const fn to_word(self) -> u64 {
        pair(
            halves(self.event, self.flags),
            halves(self.data_bytes, self.ring_voids),
        )
    }

    #[inline(always)]
    const fn from_word(word: u64) -> Self {
        let (first, second) = unpair(word);
        let (event, flags) = unhalve(first);
        let (data_bytes, ring_voids) = unhalve(second);
        Self {
            event,
            flags,
            data_bytes,
            ring_voids,
        }
    }
}

/// Two 16-bit fields that share 32 bits, the first at the lower address.
const fn halves(first: u16, second: u16) -> u32 {
    if cfg!(target_endian = "little") {
        (second as u32) << 16 | first as u32
    } else {
        (first as u32) << 16 | second as u32
    }
}

const fn unhalve(both: u32) -> (u16, u16) {
    if cfg!(target_endian = "little") {
        (both as u16, (both >> 16) as u16)
    } else {
        ((both >> 16) as u16, both as u16)
    }
}

/// Whether address and thread are neither stored nor loaded: every word of a copy that races with a
/// writer doubles the work of loom, and these are like the others.
const LEAN: bool = cfg!(loom);

/// Loads a word of the ring.
#[inline(always)]
fn load(words: &impl Words, at: usize, order: Ordering) -> u64 {
    // As in the queue: loom looks for races with a word's last access alone, so a store into a word
    // that is never loaded makes every load a race of its own.
    #[cfg(loom)]
    words
        .word(geometry::UNUSED_WORD)
        .store(0, Ordering::Relaxed);
    words.word(at).load(order)
}
