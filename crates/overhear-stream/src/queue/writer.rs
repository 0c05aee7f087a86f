// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dequeue, fill, enqueue: steps 1 to 9 of the protocol in the module's comment.

use overhear_event::Ticks;

use super::{load, QueueView, State, ELEMENT_VOID, HEAD_WORD, LOST_FULL_WORD, TAIL_WORD};
use crate::layout::{pair, LayoutError};
use crate::shape::QueueGeometry;
use crate::skips::skip_in_queue;
use crate::sync::{fence, spin_loop, Ordering};
use crate::words::{store_bytes, Words};

/// Turns of the first wait after a lost race, and the most of a later one: about a microsecond.
const LEAST_TURNS: u32 = if cfg!(loom) { 1 } else { 8 };
const MOST_TURNS: u32 = if cfg!(loom) { 1 } else { 64 };

/// Every element was in the hands of a thread: the write was refused and counted in `lost_full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no element of the queue was free: more threads write at once than the sensor has spare elements for, or threads died while they wrote; register it with more writers")]
pub struct QueueFull;

/// The right to write a concurrent stream, from any number of threads at once.
///
/// Several of them may write to the same memory, in one process or in several.
#[derive(Debug)]
pub struct QueueWriter<W> {
    words: W,
    queue: QueueGeometry,
}

/// An element in the hands of its writer.
///
/// Holding one proves that no other thread has this element. Dropping it without
/// [`commit`](Self::commit) enqueues it as void; forgetting it takes it out of the queue for good.
#[derive(Debug)]
#[must_use = "an element that is dropped is published as void"]
pub struct Taken<'q, W: Words> {
    writer: &'q QueueWriter<W>,
    pub(super) element: u16,
}

impl<W: Words> QueueWriter<W> {
    /// Takes memory that its creator has laid out ([`Shape::initial`](crate::Shape::initial)).
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn new(words: W, queue: QueueGeometry) -> Result<Self, LayoutError> {
        queue.check_size(&words)?;
        Ok(Self { words, queue })
    }

    /// The memory written to.
    #[must_use]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Where things lie in it.
    #[must_use]
    pub const fn geometry(&self) -> &QueueGeometry {
        &self.queue
    }

    /// Writes that were refused so far, by all threads.
    #[must_use]
    pub fn lost_full(&self) -> u64 {
        // Relaxed: a statistic.
        self.words.word(LOST_FULL_WORD).load(Ordering::Relaxed)
    }

    /// Counts a write that a budget keeps from being made: see [`Skips`](crate::Skips).
    pub fn skip(&self) {
        skip_in_queue(&self.words, self.view().next());
    }

    /// How many elements have been published, by all threads, void ones included, as seen from a
    /// number that is near; 0 at first.
    #[must_use]
    pub fn published(&self, near: u64) -> u64 {
        self.view().published(near)
    }

    /// The stamp of this published element, `None` if it has been taken again meanwhile.
    #[must_use]
    pub fn stamp_of(&self, sequence: u64) -> Option<Ticks> {
        let view = self.view();
        // Relaxed: `published` was acquired, and what is loaded is validated below.
        let stamp = self.words.word(view.element_word(sequence)?);
        let stamp = stamp.load(Ordering::Relaxed);
        // SYNC(overwrite): pairs with the fence behind the CAS of `tail`.
        fence(Ordering::Acquire);
        let gone = view.oldest(sequence).wrapping_sub(sequence).cast_signed() > 0;
        (!gone).then(|| Ticks::from_raw(stamp))
    }

    const fn view(&self) -> QueueView<'_, W> {
        QueueView {
            words: &self.words,
            queue: &self.queue,
        }
    }

    /// Appends an element of the thread `tid` and publishes it. `stamp` reads the clock, ordered
    /// behind what was loaded before (see [`read_hardware_ticks_ordered`]); it is called again for
    /// each race that is lost.
    ///
    /// [`read_hardware_ticks_ordered`]: crate::read_hardware_ticks_ordered
    ///
    /// # Errors
    /// [`QueueFull`], and nothing was written.
    ///
    /// # Panics
    /// If the payload has another size than that of the geometry.
    #[inline(always)]
    pub fn write(
        &self,
        tid: u32,
        payload: &[u8],
        stamp: impl FnMut() -> Ticks,
    ) -> Result<(), QueueFull> {
        // Before the element is taken: a panic loses none.
        self.check_payload(payload);
        let taken = self.take()?;
        taken.fill_unchecked(payload);
        taken.commit(tid, stamp);
        Ok(())
    }

    /// Takes the oldest element out of the queue, to be filled and committed.
    ///
    /// # Errors
    /// [`QueueFull`] if there is none.
    #[inline(always)]
    pub fn take(&self) -> Result<Taken<'_, W>, QueueFull> {
        let (word, mut turns) = (self.words.word(TAIL_WORD), LEAST_TURNS);
        loop {
            // Step 1. SYNC(take): pairs with the CAS below.
            let tail = load(&self.words, TAIL_WORD, Ordering::Acquire);
            let index = self.queue.index_word(tail.position());
            // SYNC(give): pairs with the CAS of the index word; the element's last owner has
            // finished with it.
            let index = load(&self.words, index, Ordering::Acquire);
            match tail.state_of(index) {
                State::Filled => {}
                State::Open => return Err(self.refuse()),
                State::Passed if word.load(Ordering::Acquire) == tail.0 => {
                    return Err(self.refuse())
                }
                State::Passed => continue,
            }
            // Step 2. SYNC(take): pairs with the load above.
            let next = tail.next(&self.queue).0;
            let (won, lost) = (Ordering::Release, Ordering::Relaxed);
            if word.compare_exchange(tail.0, next, won, lost).is_ok() {
                // Step 3. SYNC(overwrite): pairs with the reader's fence before its load of `tail`.
                fence(Ordering::Release);
                return Ok(Taken {
                    writer: self,
                    element: index.index(),
                });
            }
            wait(&mut turns);
        }
    }

    /// Steps 5 to 9.
    #[inline(always)]
    fn enqueue(&self, element: u16, mut stamp: impl FnMut() -> Ticks) {
        let (word, mut turns) = (self.words.word(HEAD_WORD), LEAST_TURNS);
        let stamp_word = self.words.word(self.queue.element_word(element));
        loop {
            // Step 5. SYNC(advance): pairs with the CAS of `head` below.
            let head = load(&self.words, HEAD_WORD, Ordering::Acquire);
            let at = self.queue.index_word(head.position());
            let index_word = self.words.word(at);
            // SYNC(give): pairs with the CAS below; who helps to move `head` hands on what the
            // enqueuer published.
            let index = load(&self.words, at, Ordering::Acquire);
            let mut enqueued = false;
            match head.state_of(index) {
                State::Open => {
                    // Step 6. Relaxed: SYNC(give) makes it visible.
                    stamp_word.store(stamp().as_raw(), Ordering::Relaxed);
                    // Step 7. SYNC(give): pairs with the loads of the index word.
                    let filled = head.with_index(element).0;
                    let (won, lost) = (Ordering::Release, Ordering::Acquire);
                    let swap = index_word.compare_exchange(index.0, filled, won, lost);
                    enqueued = swap.is_ok();
                }
                State::Filled => {}
                State::Passed if word.load(Ordering::Acquire) == head.0 => {
                    // Damage: the element cannot be given back.
                    let _: QueueFull = self.refuse();
                    return;
                }
                State::Passed => continue,
            }
            // Step 8. SYNC(advance): pairs with the loads of `head`.
            let next = head.next(&self.queue).0;
            let (won, lost) = (Ordering::Release, Ordering::Relaxed);
            // If it fails, another thread has done it.
            let _ = word.compare_exchange(head.0, next, won, lost);
            if enqueued {
                return;
            }
            wait(&mut turns);
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self) -> QueueFull {
        // Relaxed: a statistic.
        self.words
            .word(LOST_FULL_WORD)
            .fetch_add(1, Ordering::Relaxed);
        QueueFull
    }

    #[inline(always)]
    fn check_payload(&self, payload: &[u8]) {
        assert!(
            payload.len() == self.queue.elements().payload_bytes(),
            "the payload has the wrong size"
        );
    }
}

impl<W: Words> Taken<'_, W> {
    /// Copies the payload into the element. May be called again; the last one counts.
    ///
    /// # Panics
    /// If the payload has another size than that of the geometry.
    #[inline(always)]
    pub fn fill(&mut self, payload: &[u8]) {
        self.writer.check_payload(payload);
        self.fill_unchecked(payload);
    }

    #[inline(always)]
    pub(super) fn fill_unchecked(&self, payload: &[u8]) {
        let queue = &self.writer.queue;
        let first = queue.element_word(self.element) + queue.elements().lead_words();
        let words = self.writer.words.range(first, payload.len().div_ceil(8));
        store_bytes(words, payload);
    }

    /// Stamps the element and publishes it as written by the thread `tid`. For `stamp` see
    /// [`QueueWriter::write`].
    #[inline(always)]
    pub fn commit(self, tid: u32, stamp: impl FnMut() -> Ticks) {
        self.sign(tid, 0);
        let (writer, element) = (self.writer, self.element);
        core::mem::forget(self);
        writer.enqueue(element, stamp);
    }

    /// Its writing thread, and its flags.
    #[inline(always)]
    pub(super) fn sign(&self, tid: u32, flags: u32) {
        let word = self.writer.queue.element_word(self.element) + 1;
        // Relaxed: SYNC(give) makes it visible.
        self.writer
            .words
            .word(word)
            .store(pair(tid, flags), Ordering::Relaxed);
    }
}

impl<W: Words> Drop for Taken<'_, W> {
    /// Abandons the write. Neither stamp nor writer of a void element means anything.
    fn drop(&mut self) {
        self.sign(0, ELEMENT_VOID);
        self.writer.enqueue(self.element, || Ticks::from_raw(0));
    }
}

/// Leaves the queue's words to the winner of a race for some turns, and for more the next time.
#[cold]
#[inline(never)]
fn wait(turns: &mut u32) {
    for _ in 0..*turns {
        spin_loop();
    }
    *turns = (*turns * 2).min(MOST_TURNS);
}
