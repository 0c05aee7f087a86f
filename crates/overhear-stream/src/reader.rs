// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader: validated copies and an exact count of what was missed.
//!
//! # Protocol
//!
//! 1. Load the counter with acquire: `SYNC(publish)`. Elements before it have been written.
//! 2. Skip what the writer may already be overwriting: only `capacity - 1` elements are readable.
//! 3. Copy a batch with relaxed word loads.
//! 4. Fence with acquire: `SYNC(overwrite)`. An acquire load would not do: the copies before it
//!    could sink below it.
//! 5. Load the counter again, relaxed, as `now`. The copy of position `p` is whole if and only if
//!    `now - p < capacity`, wrapping. At equality the writer may be in that very slot.
//! 6. Reject the copies that are not whole; they are the oldest ones of the batch. They and the
//!    skipped positions are the missed elements.
//!
//! A bound on the positions only moves the end of a poll: later elements are left for the next
//! poll, and the checks are those above.
//!
//! A queue is read likewise: elements are found through the index words, `head` is the counter, and
//! what is whole follows from `tail` instead of the counter (see [`crate::queue`]). Void elements
//! are skipped.
//!
//! Progress: wait-free. A batch is tried once. A reader that is always lapped counts every element
//! as missed; it never loops.

use alloc::vec::Vec;

use overhear_event::Ticks;

use crate::layout::{counter, Geometry, LayoutError};
use crate::queue::QueueView;
use crate::run::{CopiedRun, Copies};
use crate::shape::{QueueGeometry, StreamGeometry};
use crate::skips::Skips;
use crate::sync::{fence, Ordering};
use crate::words::{load_words, Words};

/// How many elements are validated by one check of the counter. Larger batches cost fewer checks,
/// but a reader close to being lapped loses more of them.
const BATCH: u64 = 256;

/// Padding words between two elements up to which they are loaded too: half a cache line.
const MOST_SPARE_WORDS: usize = 4;

/// A validated copy of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Its position in the stream; in a queue less the number of dummy elements.
    pub sequence: u64,
    /// Its stamp, as its writer read it.
    pub stamp: Ticks,
    /// The bytes after the stamp: in lanes and queues the writer, then the payload.
    pub payload: &'a [u8],
}

/// An item of a reader, in the order of positions. No position is left out, except void elements of
/// lanes and queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadItem<'a> {
    /// An element, copied and whole.
    Element(Copied<'a>),
    /// Elements that were overwritten before they could be copied: all adjacent ones, at least one.
    Missed {
        /// The position of the first.
        first: u64,
        /// Their number.
        count: u64,
    },
}

/// As [`ReadItem`], with consecutive elements in one item.
#[derive(Debug)]
pub enum ReadRun<'a> {
    /// Elements, copied and whole: at least one.
    Elements(CopiedRun<'a>),
    /// As [`ReadItem::Missed`].
    Missed {
        /// The position of the first.
        first: u64,
        /// Their number.
        count: u64,
    },
}

/// An item of [`Reader::pass`].
enum Passed<'a> {
    Copies(Copies<'a>),
    Missed { first: u64, count: u64 },
}

/// The counts of one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "missed elements must be counted"]
pub struct PollReport {
    /// Elements delivered.
    pub delivered: u64,
    /// Elements that were overwritten before they could be copied.
    pub missed: u64,
    /// Void elements that were skipped. Void elements among the missed ones are counted as missed,
    /// because they cannot be distinguished.
    pub void: u64,
}

/// A reader of one stream, a ring or a queue, from a position on.
#[derive(Debug)]
pub struct Reader<W> {
    words: W,
    geometry: Geometry,
    // The layout of a queue; `None` for a ring.
    queue: Option<QueueGeometry>,
    position: u64,
    // Whether only stamps and writers are copied, without payloads.
    heads: bool,
    copy: Vec<u64>,
}

impl<W: Words> Reader<W> {
    /// A reader from the first element of the stream on; overwritten elements count as missed.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_start(words: W, geometry: impl Into<StreamGeometry>) -> Result<Self, LayoutError> {
        let (geometry, queue) = match geometry.into() {
            StreamGeometry::Ring(geometry) => {
                geometry.check_size(&words)?;
                (geometry, None)
            }
            StreamGeometry::Queue(queue) => {
                queue.check_size(&words)?;
                (*queue.elements(), Some(queue))
            }
        };
        let batch = BATCH.min(geometry.capacity()) as usize;
        let copy = alloc::vec![0; batch * geometry.stride_words()];
        Ok(Self {
            words,
            geometry,
            queue,
            position: 0,
            heads: false,
            copy,
        })
    }

    /// Delivers the elements of a ring without their payloads, for readers in place
    /// ([`RingInPlace`](crate::RingInPlace)). A queue's elements are always copied.
    pub fn heads_only(&mut self) {
        if self.queue.is_none() {
            self.heads = true;
            self.copy = alloc::vec![0; self.batch() as usize * self.copy_stride()];
        }
    }

    /// Words from one copy to the next.
    #[inline(always)]
    fn copy_stride(&self) -> usize {
        match self.heads {
            true => self.geometry.lead_words(),
            false => self.geometry.stride_words(),
        }
    }

    /// A reader from the next element that is written.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_now(words: W, geometry: impl Into<StreamGeometry>) -> Result<Self, LayoutError> {
        let mut reader = Self::from_start(words, geometry)?;
        // The positions of a queue have 48 bits; seen from their middle none is negative.
        reader.position = 1 << 47;
        reader.position = reader.published();
        Ok(reader)
    }

    /// A reader from the position of another reader ([`Self::position`]). If fewer elements were
    /// published, the first poll fails with [`LayoutError::CounterBackwards`].
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_position(
        words: W,
        geometry: impl Into<StreamGeometry>,
        position: u64,
    ) -> Result<Self, LayoutError> {
        let mut reader = Self::from_start(words, geometry)?;
        reader.position = position;
        Ok(reader)
    }

    /// A reader from the oldest element in the buffer on; overwritten elements do not count as
    /// missed.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if the memory is smaller than the geometry.
    pub fn from_oldest(words: W, geometry: impl Into<StreamGeometry>) -> Result<Self, LayoutError> {
        let mut reader = Self::from_now(words, geometry)?;
        reader.rewind();
        Ok(reader)
    }

    /// Moves back by a buffer, to the oldest element in it. A reader from now with this call is a
    /// reader from the oldest element; its position before the call counts the elements that were
    /// published before.
    pub fn rewind(&mut self) {
        // Without an hour of writing nothing lies before position 0: in a queue, dummy elements.
        let held = self.geometry.capacity().min(self.position);
        self.position -= held;
        self.position = self.position.wrapping_add(self.gone(held));
    }

    /// The position of the next element to read.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Number of elements that fit into the buffer.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.geometry.capacity()
    }

    /// The memory read from.
    #[must_use]
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Number of published elements: the bound for [`Self::poll_until`].
    #[must_use]
    pub fn published(&self) -> u64 {
        match self.queue() {
            // SYNC(publish): pairs with the writer's store of the counter.
            None => counter(&self.words).load(Ordering::Acquire),
            Some(queue) => queue.published(self.position),
        }
    }

    /// The writes that were skipped since the sensor was registered, as far as they are ordered
    /// before the elements that an earlier [`Self::published`] counted; `at` in the numbering of
    /// [`Self::position`].
    #[must_use]
    pub fn skips(&self) -> Skips {
        let found = Skips::of_header(&self.words);
        match self.queue() {
            None => found,
            Some(queue) => Skips {
                at: queue.sequence(found.at, self.position),
                ..found
            },
        }
    }

    /// The bound for a poll that delivers at most `elements` of those before `end`; `end` itself if
    /// there are no more. Overwritten elements are not counted.
    #[must_use]
    pub fn bound_within(&self, end: u64, elements: u64) -> u64 {
        // The poll reports a counter that went back.
        let Ok(ahead) = self.distance(end) else {
            return end;
        };
        let lapped = ahead.saturating_sub(self.geometry.capacity());
        match ahead - lapped > elements {
            true => self.position.wrapping_add(lapped + elements),
            false => end,
        }
    }

    #[inline(always)]
    fn queue(&self) -> Option<QueueView<'_, W>> {
        let queue = self.queue.as_ref()?;
        let words = &self.words;
        Some(QueueView { words, queue })
    }

    /// Number of elements from the position on that may be overwritten, with `ahead` published
    /// ones. At most `capacity` are left, so the work of a poll is bounded, whatever the memory
    /// contains.
    fn gone(&self, ahead: u64) -> u64 {
        let capacity = self.geometry.capacity();
        match self.queue() {
            None => ahead.saturating_sub(capacity - 1),
            Some(queue) => {
                let taken = self.passed_by(queue.oldest(self.position));
                taken.max(ahead.saturating_sub(capacity)).min(ahead)
            }
        }
    }

    /// Number of positions from the current one to `oldest`.
    fn passed_by(&self, oldest: u64) -> u64 {
        self.distance(oldest).unwrap_or(0)
    }

    /// Delivers the elements that were published before the call, at most `limit`, oldest first.
    ///
    /// Elements delivered, missed and void add up to the advance of the position.
    /// [`Self::poll_until`] reports which ones were missed.
    ///
    /// # Errors
    /// [`LayoutError::CounterBackwards`] if the counter is less than the position: the stream is
    /// damaged and cannot be read any further. [`LayoutError::BadIndex`] if a word of a queue's
    /// index array belongs to another position: likewise.
    pub fn poll(
        &mut self,
        limit: usize,
        mut sink: impl FnMut(Copied<'_>),
    ) -> Result<PollReport, LayoutError> {
        let published = self.published();
        self.pass(published, published, limit as u64, |passed| match passed {
            Passed::Copies(copies) => copies.each(&mut sink),
            Passed::Missed { .. } => 0,
        })
    }

    /// Delivers or counts every position before `end`, and none from it on.
    ///
    /// A caller with several streams reads the bounds of all ([`Self::published`]) before it polls
    /// the first: then a fast writer does not keep it from the others, and all delivered elements
    /// were published before one moment. A bound before the position delivers nothing; one after
    /// the counter is cut to it.
    ///
    /// ```
    /// use overhear_stream::{ReadItem, Geometry, OwnedWords, Reader, SimpleWriter};
    /// use overhear_event::Ticks;
    ///
    /// let geometry = Geometry::new(0, 4)?; // room for 3 elements
    /// let memory = OwnedWords::zeroed(geometry.words());
    /// let mut writer = SimpleWriter::new(memory.share(), geometry)?;
    /// let mut reader = Reader::from_start(memory, geometry)?;
    /// let mut write = |times| (0..times).for_each(|_| writer.write(&[], || Ticks::from_raw(0)));
    ///
    /// write(5);
    /// let end = reader.published();
    /// write(1);
    /// let mut seen = Vec::new();
    /// let _ = reader.poll_until(end, |found| seen.push(match found {
    ///     ReadItem::Element(element) => (element.sequence, "whole"),
    ///     ReadItem::Missed { first, count } => (first + count, "missed before"),
    /// }))?;
    /// assert_eq!(seen, [(3, "missed before"), (3, "whole"), (4, "whole")]);
    /// # Ok::<(), overhear_stream::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Self::poll`]; elements missed until then have been reported.
    pub fn poll_until(
        &mut self,
        end: u64,
        mut sink: impl FnMut(ReadItem<'_>),
    ) -> Result<PollReport, LayoutError> {
        let published = self.published();
        self.pass(published, end, u64::MAX, |passed| match passed {
            Passed::Copies(copies) => copies.each(&mut |element| sink(ReadItem::Element(element))),
            Passed::Missed { first, count } => {
                sink(ReadItem::Missed { first, count });
                0
            }
        })
    }

    /// As [`Self::poll_until`], with consecutive elements in one call, which is faster for most
    /// callers.
    ///
    /// # Errors
    /// As for [`Self::poll_until`].
    pub fn poll_runs(
        &mut self,
        end: u64,
        mut sink: impl FnMut(ReadRun<'_>),
    ) -> Result<PollReport, LayoutError> {
        let published = self.published();
        self.pass(published, end, u64::MAX, |passed| match passed {
            Passed::Copies(copies) => copies.runs(&mut |run| sink(ReadRun::Elements(run))),
            Passed::Missed { first, count } => {
                sink(ReadRun::Missed { first, count });
                0
            }
        })
    }

    /// Processes the positions before `end`, until `limit` elements have been delivered.
    /// `published` is a counter that was loaded with acquire. `sink` returns the number of void
    /// ones among the copies.
    fn pass(
        &mut self,
        published: u64,
        end: u64,
        mut limit: u64,
        mut sink: impl FnMut(Passed<'_>) -> u64,
    ) -> Result<PollReport, LayoutError> {
        let ahead = self.distance(published)?;
        let mut pending = self.distance(end).unwrap_or(0).min(ahead);
        if limit == 0 {
            return Ok(PollReport::default());
        }
        let mut report = PollReport::default();
        // Missed elements that are not reported yet: the next one may be missed as well.
        let mut run = 0;
        // After the lap the whole ring is tried, whatever is written meanwhile: an overwritten
        // batch is rejected, so the number of batches is bounded.
        let lapped = self.gone(ahead).min(pending);
        self.miss(lapped, &mut run, &mut report);
        pending -= lapped;
        while pending > 0 && limit > 0 {
            let batch = pending.min(limit).min(self.batch());
            let rejected = match self.copy(batch) {
                Ok(rejected) => rejected,
                Err(error) => {
                    self.flush_copied(run, &mut sink);
                    return Err(error);
                }
            };
            pending -= batch;
            self.miss(rejected, &mut run, &mut report);
            if rejected == batch {
                continue;
            }
            self.flush_copied(core::mem::take(&mut run), &mut sink);
            let void = sink(Passed::Copies(self.copies(rejected, batch)));
            report.void += void;
            report.delivered += batch - rejected - void;
            limit -= batch - rejected - void;
            self.position = self.position.wrapping_add(batch - rejected);
        }
        self.flush_copied(run, &mut sink);
        Ok(report)
    }

    /// Skips overwritten elements.
    fn miss(&mut self, count: u64, run: &mut u64, report: &mut PollReport) {
        self.position = self.position.wrapping_add(count);
        *run += count;
        report.missed += count;
    }

    /// Reports the missed elements right before the position.
    fn flush_copied(&self, count: u64, sink: &mut impl FnMut(Passed<'_>) -> u64) {
        if count > 0 {
            let first = self.position.wrapping_sub(count);
            sink(Passed::Missed { first, count });
        }
    }

    /// Distance from the position to `published`. Half of the counter's range counts as ahead, so
    /// that the wrap-around of 2^64 is no special case.
    fn distance(&self, published: u64) -> Result<u64, LayoutError> {
        let distance = published.wrapping_sub(self.position);
        if distance > u64::MAX / 2 {
            let before = self.position;
            return Err(LayoutError::CounterBackwards {
                before,
                now: published,
            });
        }
        Ok(distance)
    }

    fn batch(&self) -> u64 {
        BATCH.min(self.geometry.capacity())
    }

    /// Copies `batch` elements from the position on and returns the number of rejected ones, which
    /// are the oldest.
    fn copy(&mut self, batch: u64) -> Result<u64, LayoutError> {
        if self.queue.is_some() {
            return self.copy_from_queue(batch);
        }
        self.copy_slots(batch);
        // SYNC(overwrite): pairs with the writer's fence before the next fill.
        fence(Ordering::Acquire);
        let now = counter(&self.words).load(Ordering::Relaxed);
        let ahead = self.distance(now)?;
        if ahead < batch {
            // An honest counter never decreases below a value that it had.
            let before = self.position.wrapping_add(batch);
            return Err(LayoutError::CounterBackwards { before, now });
        }
        Ok((ahead + 1)
            .saturating_sub(self.geometry.capacity())
            .min(batch))
    }

    /// [`Self::copy`], through the index words of a queue.
    fn copy_from_queue(&mut self, batch: u64) -> Result<u64, LayoutError> {
        let Some(queue) = &self.queue else {
            return Ok(0);
        };
        let view = QueueView {
            words: &self.words,
            queue,
        };
        let stride = self.geometry.stride_words();
        let used = 1 + self.geometry.body_bytes().div_ceil(8);
        // End of the elements, from the begin of the batch, whose index word has another position.
        // With honest writers these are lapped.
        let mut strange = 0;
        for index in 0..batch {
            let Some(start) = view.element_word(self.position.wrapping_add(index)) else {
                strange = index + 1;
                continue;
            };
            let copy = &mut self.copy[index as usize * stride..][..used];
            for (word, shared) in copy.iter_mut().zip(self.words.range(start, used)) {
                // Relaxed: validated below.
                *word = shared.load(Ordering::Relaxed);
            }
        }
        // SYNC(overwrite): pairs with the fence of the thread that takes the element.
        fence(Ordering::Acquire);
        let rejected = self.passed_by(view.oldest(self.position)).min(batch);
        if strange > rejected {
            let position = self.position.wrapping_add(strange - 1);
            return Err(LayoutError::BadIndex { position });
        }
        Ok(rejected)
    }

    /// Loads `batch` slots of a ring from the position on into the copy: at most two runs of
    /// consecutive slots, each with one bounds check.
    fn copy_slots(&mut self, batch: u64) {
        let stride = self.geometry.stride_words();
        let (copy_stride, used) = match self.heads {
            true => (self.geometry.lead_words(), self.geometry.lead_words()),
            false => (stride, self.geometry.used_words()),
        };
        let mut copied = 0;
        while copied < batch {
            let position = self.position.wrapping_add(copied);
            let run = self.geometry.until_wrap(position).min(batch - copied);
            let to = &mut self.copy[copied as usize * copy_stride..][..run as usize * copy_stride];
            let start = self.geometry.slot(position);
            // Padding between two elements is loaded too where that costs less than skipping it; it
            // is not used.
            if copy_stride == stride && stride - used <= MOST_SPARE_WORDS {
                load_words(to, self.words.range(start, to.len()));
            } else {
                for (index, to) in to.chunks_exact_mut(copy_stride).enumerate() {
                    let from = self.words.range(start + index * stride, used);
                    load_words(&mut to[..used], from);
                }
            }
            copied += run;
        }
    }

    /// The copies from `first` to `end`. The first one is of the element at the position.
    #[inline(always)]
    fn copies(&mut self, first: u64, end: u64) -> Copies<'_> {
        let stride = self.copy_stride();
        Copies {
            first: self.position,
            words: &mut self.copy[first as usize * stride..end as usize * stride],
            stride,
            body: if self.heads {
                0
            } else {
                self.geometry.body_bytes()
            },
            is_signed: self.geometry.lead_words() == 2,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
