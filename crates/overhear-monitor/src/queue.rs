// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the merge holds back of one stream: elements in a ring of slots, gaps beside them.
//!
//! A slot is `{u64 time, u64 sequence, payload}`, filled up to whole words, so that an element is
//! copied once, when it comes in, and lent out from where it lies. Gaps are rare; each knows the
//! slot that it stands before.
//!
//! Of a stream that is evaluated in place the slots hold no payloads. What was overwritten before or while it
//! is evaluated becomes a gap when it is released.

use std::collections::VecDeque;
use std::sync::Arc;

use overhear_event::{
    ElementInPlace, ElementKey, ElementView, Gap, GapCause, Item, Places, StreamDescriptor,
    Timestamp, Turn,
};
use zerocopy::IntoBytes as _;

/// Words of a slot before its payload: time and sequence.
const HEAD_WORDS: usize = 2;
/// Slots of a queue that grows, at the beginning.
const FIRST_SLOTS: usize = 64;
/// Gaps for which there is room in a queue with reserved memory. A stream that makes more of them
/// between two releases has the last ones joined.
const RESERVED_GAPS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    // Where the payloads lie, if not in the slots.
    places: Option<Arc<dyn Places>>,
    slots: Vec<u64>,
    stride: usize,
    // Bytes of a payload in its slot.
    payload: usize,
    // How many slots there are, a power of two, less one.
    mask: u64,
    // Positions of the oldest element and of the next one: they ascend and wrap with `mask`.
    head: u64,
    tail: u64,
    gaps: VecDeque<QueuedGap>,
    // How many elements the queue may hold.
    limit: usize,
    is_reserved: bool,
    // Time of the newest element that was queued, and of the newest that was released.
    queued: Timestamp,
    released: Timestamp,
    pub(crate) closed: bool,
}

/// A gap before the element at position `before`.
#[derive(Clone, Copy, Debug)]
struct QueuedGap {
    before: u64,
    to: Timestamp,
    first: u64,
    missed: u64,
    cause: GapCause,
}

impl Queue {
    /// A queue that grows up to so many elements.
    pub(crate) fn growing(
        descriptor: Arc<StreamDescriptor>,
        places: Option<Arc<dyn Places>>,
        limit: usize,
    ) -> Self {
        Self::new(descriptor, places, FIRST_SLOTS, limit, false)
    }

    /// A queue that has room for so many elements and never gets more.
    pub(crate) fn reserved(
        descriptor: Arc<StreamDescriptor>,
        places: Option<Arc<dyn Places>>,
        elements: usize,
    ) -> Self {
        Self::new(descriptor, places, elements, elements, true)
    }

    fn new(
        descriptor: Arc<StreamDescriptor>,
        places: Option<Arc<dyn Places>>,
        slots: usize,
        limit: usize,
        is_reserved: bool,
    ) -> Self {
        let payload = match places {
            Some(_) => 0,
            None => descriptor.schema.size() as usize,
        };
        let stride = HEAD_WORDS + payload.div_ceil(8);
        let count = slots.max(1).next_power_of_two();
        let mut slots = Vec::new();
        if is_reserved {
            // Written, not merely reserved, so that no page of it is missing later.
            slots.resize(count * stride, u64::MAX);
            slots.fill(0);
        } else {
            slots.resize(count * stride, 0);
        }
        let gaps = if is_reserved { RESERVED_GAPS } else { 0 };
        Self {
            descriptor,
            places,
            slots,
            stride,
            payload,
            mask: count as u64 - 1,
            head: 0,
            tail: 0,
            gaps: VecDeque::with_capacity(gaps),
            limit,
            is_reserved,
            queued: Timestamp::ZERO,
            released: Timestamp::ZERO,
            closed: false,
        }
    }

    /// Bytes of the memory that [`Queue::reserved`] takes for so many elements of so many bytes each.
    pub(crate) fn reserved_bytes(payload: u32, elements: usize) -> usize {
        let stride = HEAD_WORDS + payload.div_ceil(8) as usize;
        let slots = elements.max(1).next_power_of_two();
        let words = slots.saturating_mul(stride);
        let gaps = RESERVED_GAPS * size_of::<QueuedGap>();
        words.saturating_mul(size_of::<u64>()).saturating_add(gaps)
    }

    /// Bytes of the memory it has now.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>() + self.gaps.capacity() * size_of::<QueuedGap>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail && self.gaps.is_empty()
    }

    /// Whether the payloads are not in the slots.
    #[inline]
    pub(crate) fn lies_elsewhere(&self) -> bool {
        self.places.is_some()
    }

    /// The time of what is released next.
    #[inline]
    pub(crate) fn head(&self) -> Option<Timestamp> {
        match self.gaps.front() {
            Some(gap) if gap.before == self.head => Some(gap.to),
            _ if self.head == self.tail => None,
            _ => Some(self.time_at(self.head)),
        }
    }

    #[inline(always)]
    fn start(&self, position: u64) -> usize {
        (position & self.mask) as usize * self.stride
    }

    #[inline(always)]
    fn time_at(&self, position: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(self.slots[self.start(position)])
    }

    /// Queues an element. What cannot have its place becomes a gap that ends with the round.
    #[inline]
    pub(crate) fn element(
        &mut self,
        sequence: u64,
        time: Timestamp,
        payload: &[u8],
        limits: &Limits,
    ) {
        let held = (self.tail - self.head) as usize;
        if time < self.queued
            || time < limits.watermark
            || time > limits.latest
            || payload.len() != self.payload
            || held + self.gaps.len() >= self.limit
        {
            return self.refuse(sequence, time, payload, limits);
        }
        if !self.gaps.is_empty() {
            self.pull_gaps_to(time);
        }
        if held as u64 > self.mask {
            self.grow();
        }
        self.queued = time;
        let start = self.start(self.tail);
        let slot = &mut self.slots[start..start + self.stride];
        slot[0] = time.as_monotonic_ns();
        slot[1] = sequence;
        // Most payloads are few words; a call of memcpy would cost more than all the rest.
        let (whole, rest) = payload.as_chunks::<8>();
        for (word, bytes) in slot[HEAD_WORDS..].iter_mut().zip(whole) {
            *word = u64::from_ne_bytes(*bytes);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            slot[self.stride - 1] = u64::from_ne_bytes(last);
        }
        self.tail += 1;
    }

    #[cold]
    fn refuse(&mut self, sequence: u64, time: Timestamp, payload: &[u8], limits: &Limits) {
        let sound = time >= self.queued && time <= limits.latest && payload.len() == self.payload;
        let held = (self.tail - self.head) as usize + self.gaps.len();
        let cause = match (sound, held < self.limit, self.is_reserved) {
            (true, true, _) => GapCause::Late,
            (true, false, true) => GapCause::Overwritten,
            _ => GapCause::Corrupt,
        };
        self.push_gap(limits.round, sequence, 1, cause);
    }

    /// Doubles the number of slots.
    #[cold]
    fn grow(&mut self) {
        let count = (self.mask + 1) as usize;
        let mut slots = Vec::with_capacity(2 * self.slots.len());
        // In the order of positions, the oldest first; positions begin anew.
        let oldest = (self.head & self.mask) as usize * self.stride;
        slots.extend_from_slice(&self.slots[oldest..]);
        slots.extend_from_slice(&self.slots[..oldest]);
        slots.resize(2 * self.slots.len(), 0);
        self.slots = slots;
        for gap in &mut self.gaps {
            gap.before -= self.head;
        }
        self.tail -= self.head;
        self.head = 0;
        self.mask = 2 * count as u64 - 1;
    }

    /// Queues a gap; if no element follows, it ends at `to`.
    pub(crate) fn push_gap(&mut self, to: Timestamp, first: u64, missed: u64, cause: GapCause) {
        let is_full = self.is_reserved && self.gaps.len() == self.gaps.capacity();
        if let Some(last) = self.gaps.back_mut() {
            // Neighbours of one cause are one gap.
            let continues = last.before == self.tail
                && last.cause == cause
                && last.first.wrapping_add(last.missed) == first;
            // Where there is no room for another one the count stays exact; place and cause are
            // those of the last gap for which there was.
            if continues || is_full {
                last.missed = last.missed.saturating_add(missed);
                if last.before == self.tail {
                    last.to = to;
                }
                return;
            }
        }
        self.gaps.push_back(QueuedGap {
            before: self.tail,
            to,
            first,
            missed,
            cause,
        });
    }

    /// Gaps in front of an element end with it, not with the round that found them.
    #[cold]
    fn pull_gaps_to(&mut self, time: Timestamp) {
        for gap in self.gaps.iter_mut().rev() {
            if gap.before != self.tail || gap.to <= time {
                break;
            }
            gap.to = time;
        }
    }

    /// Releases what comes before `until` in the total order, and returns the place of the rest;
    /// `None` if there is none. `turn` is a place of this stream. Before each element it asks whether
    /// there have been enough: then the rest begins before `until`.
    #[inline]
    pub(crate) fn release(
        &mut self,
        turn: Turn,
        until: Turn,
        enough: &mut impl FnMut() -> bool,
        sink: &mut impl FnMut(Item<'_>),
    ) -> Option<Turn> {
        if self.gaps.is_empty() && !self.lies_elsewhere() {
            // Nearly always. Whether there were enough shows in the place of the rest.
            self.release_elements(turn, until, self.tail, enough, sink);
            let is_empty = self.head == self.tail;
            return (!is_empty).then(|| turn.at(self.time_at(self.head)));
        }
        self.release_mixed(turn, until, enough, sink)
    }

    /// [`Queue::release`] where there are gaps, or the payloads lie elsewhere.
    fn release_mixed(
        &mut self,
        turn: Turn,
        until: Turn,
        enough: &mut impl FnMut() -> bool,
        sink: &mut impl FnMut(Item<'_>),
    ) -> Option<Turn> {
        loop {
            let time = self.head()?;
            let next = turn.at(time);
            if next >= until {
                return Some(next);
            }
            match self.gaps.front() {
                Some(gap) if gap.before == self.head => self.release_gap(sink),
                first => {
                    let end = first.map_or(self.tail, |gap| gap.before);
                    let head = self.head;
                    let had_enough = match self.places {
                        None => self.release_elements(turn, until, end, enough, sink),
                        Some(_) => self.release_in_place(turn, until, end, enough, sink),
                    };
                    if had_enough {
                        return self.head().map(|time| turn.at(time));
                    }
                    debug_assert_ne!(self.head, head, "the head comes before the end");
                }
            }
        }
    }

    /// Releases elements before the position `end`, as long as they come before `until`, and says
    /// whether there were enough before that.
    #[inline(always)]
    fn release_elements(
        &mut self,
        turn: Turn,
        until: Turn,
        end: u64,
        enough: &mut impl FnMut() -> bool,
        sink: &mut impl FnMut(Item<'_>),
    ) -> bool {
        while self.head != end {
            let start = self.start(self.head);
            let slot = &self.slots[start..start + self.stride];
            let time = Timestamp::from_monotonic_ns(slot[0]);
            if turn.at(time) >= until {
                return false;
            }
            if enough() {
                return true;
            }
            self.head += 1;
            self.released = time;
            sink(Item::Element(ElementView {
                stream: &self.descriptor,
                sequence: slot[1],
                time,
                payload: &slot[HEAD_WORDS..].as_bytes()[..self.payload],
            }));
        }
        false
    }

    /// As [`Queue::release_elements`], for payloads that lie elsewhere.
    fn release_in_place(
        &mut self,
        turn: Turn,
        until: Turn,
        end: u64,
        enough: &mut impl FnMut() -> bool,
        sink: &mut impl FnMut(Item<'_>),
    ) -> bool {
        while self.head != end {
            let (sequence, time) = self.head_at(self.head);
            if turn.at(time) >= until {
                return false;
            }
            if enough() {
                return true;
            }
            let Some(places) = &self.places else {
                return false;
            };
            let key = ElementKey {
                stream: &self.descriptor,
                sequence,
                time,
            };
            let element = ElementInPlace::new(key, &**places);
            // What is gone already need not be evaluated in vain.
            if element.is_whole() {
                sink(Item::InPlace(&element));
            }
            let whole = element.is_whole();
            self.head += 1;
            if whole {
                self.released = time;
            } else {
                self.release_overwritten((sequence, time), turn, until, end, sink);
            }
        }
        false
    }

    /// Releases the gap of an element that was overwritten, and of those right behind it that were too.
    #[cold]
    fn release_overwritten(
        &mut self,
        (first, mut to): (u64, Timestamp),
        turn: Turn,
        until: Turn,
        end: u64,
        sink: &mut impl FnMut(Item<'_>),
    ) {
        let mut missed = 1;
        while self.head != end {
            let (sequence, time) = self.head_at(self.head);
            let is_gone = |places: &Arc<dyn Places>| !places.is_whole(sequence);
            if turn.at(time) >= until
                || sequence != first.wrapping_add(missed)
                || !self.places.as_ref().is_some_and(is_gone)
            {
                break;
            }
            to = time;
            missed += 1;
            self.head += 1;
        }
        let gap = Gap {
            stream: self.descriptor.id,
            first,
            missed,
            from: self.released,
            to,
            cause: GapCause::Overwritten,
        };
        self.released = to;
        sink(Item::Gap(&self.descriptor, gap));
    }

    /// Sequence and time of the element at this position.
    fn head_at(&self, position: u64) -> (u64, Timestamp) {
        let start = self.start(position);
        let time = Timestamp::from_monotonic_ns(self.slots[start]);
        (self.slots[start + 1], time)
    }

    #[cold]
    fn release_gap(&mut self, sink: &mut impl FnMut(Item<'_>)) {
        let Some(queued) = self.gaps.pop_front() else {
            return;
        };
        let gap = Gap {
            stream: self.descriptor.id,
            first: queued.first,
            missed: queued.missed,
            from: self.released,
            to: queued.to.max(self.released),
            cause: queued.cause,
        };
        self.released = gap.to;
        sink(Item::Gap(&self.descriptor, gap));
    }
}

/// What decides whether an element can have its place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// When the round began to read.
    pub(crate) round: Timestamp,
    /// Later times are nonsense.
    pub(crate) latest: Timestamp,
    /// Everything before it has been released.
    pub(crate) watermark: Timestamp,
}
