// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of a concurrent sensor: one ring, any number of writing threads, one total order.
//!
//! This is the lock-free queue of [GRTMon, section 4.1.2] (figures 8 and 9), bytes as in section
//! 5.3 of the layout page. Output stream and elements are decoupled: an array of *index words* is
//! the stream, and each names the element that lies at its position. A thread takes the oldest
//! element out of the stream (*dequeue*), fills it for as long as it likes, and puts it back at the
//! stream's end (*enqueue*). In between the element is the thread's alone.
//!
//! # Words
//!
//! `head`, `tail` and every index word are a [`QueuePos`]: a position in the upper 48 bits, an
//! index in the lower 16. Positions tag the words, so that a compare-and-exchange with an outdated
//! word fails although the same element has come round again (the ABA problem). They are compared
//! as differences, so they may wrap around.
//!
//! The words, their contents, and the threads that change them:
//!
//! - `tail`: the position of the oldest element in the queue. A dequeuer changes it, by a CAS from
//!   t to t + 1, if index word t is *filled*.
//! - `head`: the position of the next enqueue. Any thread changes it, by a CAS from h to h + 1,
//!   once index word h is filled.
//! - The index word of slot s: (p, e) with p mod capacity = s: element e lies at position p. An
//!   enqueuer with `head` = h and slot of h = s changes it, by a CAS from (p < h, ·) to (h, its
//!   element).
//! - Element e: stamp, writer, flags, payload. Its owner alone changes it, from the CAS of `tail`
//!   that took it to the CAS of the index word that returns it.
//! - `lost_full`: the number of refused dequeues. A dequeuer changes it, by an atomic addition.
//!
//! The index word of position p, seen by a thread that expects p, is in one of three states, which
//! its own position gives: *open* (its position is less: p has not been enqueued), *filled*
//! (equal), *passed* (greater: the ring has been lapped).
//!
//! # Rules
//!
//! A write is these steps; 1 to 3 dequeue, 4 fills, 5 to 9 enqueue.
//!
//! 1. Load `tail` = t, acquire: `SYNC(take)`. Load index word t, acquire: `SYNC(give)`. Open: at
//!    the moment of this load nothing had been enqueued at t, and `tail` had reached t, so the
//!    queue was empty: add 1 to `lost_full`, the write is refused. Passed: `tail` is outdated,
//!    begin again. The word itself shows whether t was enqueued; `head`, which may lag, is
//!    not read, so a refusal is never spurious, and one cache line less is fought for.
//! 2. CAS `tail` from t to t + 1, release: `SYNC(take)`. The loser begins again. The index word was
//!    read before this step because afterwards an enqueue at t + capacity may replace it.
//! 3. Fence with release: `SYNC(overwrite)`. It orders the CAS of `tail` before the stores of the
//!    fill.
//! 4. Fill the element by relaxed word stores.
//! 5. Load `head` = h, acquire: `SYNC(advance)`. Load index word h, acquire: `SYNC(give)`. Passed:
//!    `head` is outdated, begin again. Filled: another thread has enqueued at h and not yet moved
//!    `head`; help, that is, go to 8.
//! 6. Read the clock, ordered behind step 5, and store the stamp. Whoever is at h reads it after
//!    `head` became h, so after the enqueue at h - 1, whose stamp is older: stamps ascend with the
//!    positions. (With clocks that agree between CPUs; equal stamps are possible.)
//! 7. CAS index word h from what step 5 saw to (h, element), release: `SYNC(give)`. This is the
//!    moment at which the element is published; readers look for it even where `head` lags.
//! 8. CAS `head` from h to h + 1, release: `SYNC(advance)`. If it fails, another thread has done
//!    it.
//! 9. Unless step 7 succeeded, begin again at 5, with a new stamp.
//!
//! Whoever loses a race waits for some turns (`pause`), twice as many each time up to a bound,
//! before it begins again. The words of the queue then stay with the winner's CPU for some writes.
//! (Two threads in full swing, AMD EPYC, November 2026: 52 ns instead of 220 ns for a write, where
//! the floor of a simple sensor is 9.5 ns; alone 25 ns.)
//!
//! An element that is given up (*abandoned*) is enqueued all the same, with bit 0 of its flags set:
//! *void*. Otherwise its place would be lost.
//!
//! # Why it holds
//!
//! *One owner.* Of t + 1 dequeues each moves `tail` once, so each takes another position; a
//! position is filled once, because step 7 fails on any word but the open one. So an element is in
//! the stream at one position, or in the hands of one thread.
//!
//! *The index word read in step 1 is that of t when step 2 succeeds.* To replace it, `head` must
//! reach t + capacity. For that t + 1 elements must have been taken, so `tail` must have left t,
//! and all this happens before the replacement, by `SYNC(take)`, `SYNC(give)` and `SYNC(advance)`.
//! Had step 1 read the replacement, step 2 would not find t.
//!
//! *A reader's copy is whole* if `tail` has not passed its position after the copy, an acquire
//! fence between them: `SYNC(overwrite)`. Had any word been a later owner's, the CAS of `tail` that
//! made it the owner would be seen. The index word need not be read again, because it changes later
//! than `tail`.
//!
//! *Progress: lock-free.* A race is lost only to a thread that went one step ahead: `tail` moved,
//! an index word was filled, or `head` moved, and each write does each of them once. Who stops
//! between any two steps keeps at most one element: between 2 and 7 it is missing from the queue,
//! one of the spare ones that the capacity has for each concurrent invocation; between 7 and 8 the
//! others move `head`. A write does not allocate, does not enter the kernel and takes no lock. It
//! may be nested in another, as by a signal handler: each has its own element.
//!
//! *Damage.* Another part of the process may have written into this memory. Slots are taken from
//! positions and cut to the capacity, so no access is out of bounds; a word that is passed while
//! the one that led to it stands still cannot be, and the write ends there (`lost_full` is
//! incremented).
//!
//! # Why not otherwise
//!
//! Reserving positions by an atomic addition, with a sequence number in each slot, cannot lose
//! races. But then the place in the order is taken before the stamp is read, and a thread that is
//! preempted between the two gets a younger stamp than its successors; and a thread that dies there
//! leaves a hole at which dequeuers and readers cannot tell whether to wait. It is no faster,
//! either: alone 25 ns, since the number of locked instructions is the same; by two threads 110 to
//! 320 ns without waiting turns. Exchanging the oldest index for the thread's own element in one
//! CAS saves the tail, but needs a pool of spare elements, whose claim costs as much (25.5 ns
//! alone, 200 to 410 ns by two threads, without waiting turns).

mod writer;

#[cfg(all(test, loom, not(shuttle)))]
mod loom_tests;
#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::layout::COUNTER_OFFSET;
use crate::shape::QueueGeometry;
use crate::sync::Ordering;
use crate::words::Words;

pub use writer::{QueueFull, QueueWriter, Taken};

/// `flags` of an element that was abandoned (section 4).
pub const ELEMENT_VOID: u32 = 1;

const HEAD_WORD: usize = COUNTER_OFFSET / 8;
const TAIL_WORD: usize = 128 / 8;
const LOST_FULL_WORD: usize = 144 / 8;
#[cfg(loom)]
const UNUSED_WORD: usize = 152 / 8;

/// How many bits of a place are its index.
const INDEX_BITS: u32 = 16;

/// A word of the queue: a position and an index. In `head` and `tail` the index is the position's
/// slot, in the index array it is an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueuePos(u64);

/// How the position of an index word relates to the one that is expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Less: the expected position has not been enqueued.
    Open,
    /// Equal: it has been.
    Filled,
    /// Greater: the ring was lapped.
    Passed,
}

impl QueuePos {
    /// An element at this place's position.
    #[inline(always)]
    const fn with_index(self, index: u16) -> Self {
        Self(self.0 >> INDEX_BITS << INDEX_BITS | index as u64)
    }

    /// The 48 bits of the position.
    #[inline(always)]
    const fn position(self) -> u64 {
        self.0 >> INDEX_BITS
    }

    #[inline(always)]
    const fn index(self) -> u16 {
        self.0 as u16
    }

    /// The successor of a `head` or `tail`.
    #[inline(always)]
    const fn next(self, queue: &QueueGeometry) -> Self {
        let position = self.position().wrapping_add(1);
        Self(position << INDEX_BITS | position & (queue.capacity() - 1))
    }

    /// What an index word is for a thread that expects this position.
    #[inline(always)]
    const fn state_of(self, index: Self) -> State {
        let ahead = difference(index.position(), self.position());
        if ahead < 0 {
            State::Open
        } else if ahead == 0 {
            State::Filled
        } else {
            State::Passed
        }
    }
}

/// Loads a word of the queue.
#[inline(always)]
fn load(words: &impl Words, at: usize, order: Ordering) -> QueuePos {
    // Loom looks for races with a word's last access alone. So a compare-and-exchange after a load
    // by the same thread hides the loads of others, and orders would go unexplored. A store into a
    // word that nobody loads makes every load a race of its own.
    #[cfg(loom)]
    words.word(UNUSED_WORD).store(0, Ordering::Relaxed);
    QueuePos(words.word(at).load(order))
}

/// How far one position lies before another. Half of the 48 bits count as ahead, so wrapping around
/// is no special case.
#[inline(always)]
const fn difference(position: u64, from: u64) -> i64 {
    (position.wrapping_sub(from) << INDEX_BITS) as i64 >> INDEX_BITS
}

/// What readers need of the memory. Sequences begin at 0 behind the dummy elements, so a sequence
/// is a position less the capacity; they have 64 bits and are found from one that is near.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueView<'a, W> {
    pub(crate) words: &'a W,
    pub(crate) queue: &'a QueueGeometry,
}

impl<W: Words> QueueView<'_, W> {
    /// How many elements have been enqueued, as seen from a sequence that is near.
    pub(crate) fn published(&self, near: u64) -> u64 {
        self.sequence(self.next(), near)
    }

    /// The position of the next element to be enqueued.
    pub(crate) fn next(&self) -> u64 {
        // SYNC(advance): pairs with the CAS of `head`.
        let head = load(self.words, HEAD_WORD, Ordering::Acquire);
        // An element is published by its index word; its thread may have died before it, or
        // another, moved `head`. There is at most one such element. A word that has been passed
        // states this for its position: were it ignored, the number could go back.
        let index = self.queue.index_word(head.position());
        // SYNC(give): pairs with the CAS of the index word.
        let index = load(self.words, index, Ordering::Acquire);
        let filled = u64::from(!matches!(head.state_of(index), State::Open));
        head.position().wrapping_add(filled)
    }

    /// The oldest sequence that may not have been taken yet.
    pub(crate) fn oldest(&self, near: u64) -> u64 {
        // Relaxed: what is copied is checked against a later value.
        let tail = load(self.words, TAIL_WORD, Ordering::Relaxed);
        self.sequence(tail.position(), near)
    }

    /// The index word of a sequence: the word where its element begins, `None` if another position
    /// is there.
    #[inline(always)]
    pub(crate) fn element_word(&self, sequence: u64) -> Option<usize> {
        let position = self.position(sequence);
        // Relaxed: `published` was acquired, and the copy is validated afterwards.
        let index = self.queue.index_word(position);
        let index = load(self.words, index, Ordering::Relaxed);
        (difference(index.position(), position) == 0)
            .then(|| self.queue.element_word(index.index()))
    }

    fn position(&self, sequence: u64) -> u64 {
        sequence.wrapping_add(self.queue.capacity())
    }

    pub(crate) fn sequence(&self, position: u64, near: u64) -> u64 {
        let ahead = difference(position, self.position(near));
        near.wrapping_add_signed(ahead)
    }
}
