// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of one stream in a merge: elements in a ring of slots, and a list of gaps.
//!
//! A slot is `{u64 time, u64 sequence, payload}`, filled up to whole words, so that an element is
//! copied once, when it comes in, and lent out from where it lies. Gaps are rare; each knows the
//! slot that it stands before.
//!
//! Of a stream that is evaluated in place the slots hold no payloads. What was overwritten before
//! or while it is evaluated becomes a gap when it is released.

mod release;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use overhear_event::{GapCause, InPlaceMemory, Run, StreamDescriptor, Timestamp};

use crate::continuity_checks::Role;

/// Words of a slot before its payload: time and sequence.
const HEAD_WORDS: usize = 2;
/// Slots of a queue that grows, at the beginning.
const FIRST_SLOTS: usize = 64;
/// Words that are moved to the first slots at once, at most: about a microsecond.
const MAX_MOVED_WORDS: usize = 4096;
/// Gaps for which there is room in a queue with reserved memory. A stream that makes more of them
/// between two releases has the last ones joined.
const RESERVED_GAPS: usize = 1024;

const NOTHING_SEEN: (u64, Timestamp) = (u64::MAX, Timestamp::ZERO);

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    // The memory of the payloads, if they are read in place.
    payloads: Option<Arc<dyn InPlaceMemory>>,
    slots: Vec<u64>,
    stride: usize,
    // Bytes of a payload in its slot.
    payload: usize,
    // Number of slots, a power of two, minus one.
    mask: u64,
    // Positions of the oldest element and of the next one: they ascend and wrap with `mask`. What
    // is released is in cells, because it is lent out while more is released.
    head: Cell<u64>,
    tail: u64,
    gaps: RefCell<VecDeque<QueuedGap>>,
    // Maximum number of queued elements.
    limit: usize,
    is_reserved: bool,
    // Time of the newest element that was queued, and of the newest that was released.
    queued: Timestamp,
    released: Cell<Timestamp>,
    // A position and the time of its element, as a cache; the greatest position for none.
    seen: Cell<(u64, Timestamp)>,
    // What is checked of its elements. Of one that is watched: by how much positions are moved, and
    // the next one.
    pub(crate) role: Role,
    moved: Cell<u64>,
    next: Cell<u64>,
    pub(crate) closed: bool,
    /// Whether the source left elements of this round in its ring, because this queue was full.
    pub(crate) left: bool,
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
    /// A queue that grows up to `limit` elements.
    pub(crate) fn growing(
        descriptor: Arc<StreamDescriptor>,
        payloads: Option<Arc<dyn InPlaceMemory>>,
        limit: usize,
    ) -> Self {
        Self::new(descriptor, payloads, FIRST_SLOTS, limit, false)
    }

    /// A queue with memory for `elements` elements, which never grows.
    pub(crate) fn reserved(
        descriptor: Arc<StreamDescriptor>,
        payloads: Option<Arc<dyn InPlaceMemory>>,
        elements: usize,
    ) -> Self {
        Self::new(descriptor, payloads, elements, elements, true)
    }

    fn new(
        descriptor: Arc<StreamDescriptor>,
        payloads: Option<Arc<dyn InPlaceMemory>>,
        slots: usize,
        limit: usize,
        is_reserved: bool,
    ) -> Self {
        let payload = match payloads {
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
            payloads,
            slots,
            stride,
            payload,
            mask: count as u64 - 1,
            head: Cell::new(0),
            tail: 0,
            gaps: RefCell::new(VecDeque::with_capacity(gaps)),
            limit,
            is_reserved,
            queued: Timestamp::ZERO,
            released: Cell::default(),
            seen: Cell::new(NOTHING_SEEN),
            role: Role::Unwatched,
            moved: Cell::new(0),
            next: Cell::new(0),
            closed: false,
            left: false,
        }
    }

    /// Bytes of the memory that [`Queue::reserved`] takes for so many elements of so many bytes
    /// each.
    pub(crate) fn reserved_bytes(payload: u32, elements: usize) -> usize {
        let stride = HEAD_WORDS + payload.div_ceil(8) as usize;
        let slots = elements.max(1).next_power_of_two();
        let words = slots.saturating_mul(stride);
        let gaps = RESERVED_GAPS * size_of::<QueuedGap>();
        words.saturating_mul(size_of::<u64>()).saturating_add(gaps)
    }

    /// Bytes of the memory it has now.
    pub(crate) fn memory_bytes(&self) -> usize {
        let gaps = self.gaps.borrow().capacity();
        self.slots.capacity() * size_of::<u64>() + gaps * size_of::<QueuedGap>()
    }

    /// Number of queued elements.
    pub(crate) fn held(&self) -> u64 {
        self.tail - self.head.get()
    }

    /// Bytes of a queued element.
    pub(crate) const fn element_bytes(&self) -> usize {
        self.stride * size_of::<u64>()
    }

    /// Time of the newest element that was queued: none that follows is older.
    pub(crate) const fn newest(&self) -> Timestamp {
        self.queued
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.get() == self.tail && self.gaps.borrow().is_empty()
    }

    /// Whether the payloads are read in place.
    #[inline]
    pub(crate) fn is_in_place(&self) -> bool {
        self.payloads.is_some()
    }

    /// The time of the next item.
    #[inline]
    pub(crate) fn head(&self) -> Option<Timestamp> {
        let head = self.head.get();
        match self.gaps.borrow().front() {
            Some(gap) if gap.before == head => Some(gap.to),
            _ if head == self.tail => None,
            _ => Some(self.time_at(head)),
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

    /// Queues an element. One that is out of order becomes a gap that ends with the round.
    #[inline]
    pub(crate) fn element(
        &mut self,
        sequence: u64,
        time: Timestamp,
        payload: &[u8],
        limits: &Limits,
    ) {
        let held = (self.tail - self.head.get()) as usize;
        let gaps = self.gaps.get_mut().len();
        if time < self.queued
            || time < limits.watermark
            || time > limits.latest
            || payload.len() != self.payload
            || held + gaps >= self.limit
        {
            return self.refuse(sequence, time, payload, limits);
        }
        if gaps > 0 {
            self.pull_gaps_to(time);
        }
        if held as u64 > self.mask {
            self.grow();
        }
        self.queued = time;
        let start = self.start(self.tail);
        let slot = &mut self.slots[start..start + self.stride];
        store(slot, sequence, time, payload);
        self.tail += 1;
    }

    /// Queues elements as [`Queue::element`] does, one after the other.
    pub(crate) fn run(&mut self, mut run: Run<'_>, limits: &Limits) {
        self.begin_anew();
        while let Some((time, payload)) = run.iter().next() {
            let mut queued = self.run_into_slots(run, limits);
            if queued == 0 {
                // What has no slot, or is no element to be queued.
                self.element(run.first(), time, payload, limits);
                queued = 1;
            }
            run = run.behind(queued);
        }
    }

    /// Queues elements of the run, from the first on, as long as they are sound and there are slots
    /// up to where these begin anew. Returns how many.
    fn run_into_slots(&mut self, run: Run<'_>, limits: &Limits) -> usize {
        let held = (self.tail - self.head.get()) as usize;
        let gaps = self.gaps.get_mut().len();
        if run.payload_bytes() != self.payload || held + gaps >= self.limit {
            return 0;
        }
        let slots = self.mask as usize + 1;
        let at = (self.tail & self.mask) as usize;
        let room = (self.limit - held - gaps).min(slots - held).min(slots - at);
        let slots = &mut self.slots[at * self.stride..][..room * self.stride];
        let sound = self.queued.max(limits.watermark)..=limits.latest;
        // The commonest element, of one word, has a loop of its own, whose numbers the compiler
        // knows.
        let (queued, last) = match run.iter_words() {
            Some(words) => fill(slots, HEAD_WORDS + 1, run.first(), words, sound),
            None => fill(slots, self.stride, run.first(), run.iter(), sound),
        };
        if queued > 0 {
            if gaps > 0 {
                self.pull_gaps_to(self.time_at(self.tail));
            }
            self.queued = last;
            self.tail += queued as u64;
        }
        queued
    }

    #[cold]
    fn refuse(&mut self, sequence: u64, time: Timestamp, payload: &[u8], limits: &Limits) {
        let sound = time >= self.queued && time <= limits.latest && payload.len() == self.payload;
        let held = (self.tail - self.head.get()) as usize + self.gaps.get_mut().len();
        let cause = match (sound, held < self.limit, self.is_reserved) {
            (true, true, _) => GapCause::Late,
            (true, false, true) => GapCause::Overwritten,
            _ => GapCause::Corrupt,
        };
        self.push_gap(limits.round, sequence, 1, cause);
    }

    /// Moves what is held to the first slots, if it is little and others have gone since the last
    /// time: then a queue with room for many elements that holds few uses few slots, which stay in
    /// a cache.
    fn begin_anew(&mut self) {
        let head = self.head.get();
        let held = self.tail - head;
        let words = held as usize * self.stride;
        // No more is moved than has been released.
        if head < held.max(1) || self.tail > self.mask + 1 || words > MAX_MOVED_WORDS {
            return;
        }
        let begin = self.start(head);
        self.slots.copy_within(begin..begin + words, 0);
        self.count_from(head);
    }

    /// Makes this position the first one.
    fn count_from(&mut self, head: u64) {
        self.head.set(0);
        self.tail -= head;
        self.seen.set(NOTHING_SEEN);
        for gap in self.gaps.get_mut() {
            gap.before -= head;
        }
    }

    /// Doubles the number of slots.
    #[cold]
    fn grow(&mut self) {
        let count = (self.mask + 1) as usize;
        let mut slots = Vec::with_capacity(2 * self.slots.len());
        // In the order of positions, the oldest first; positions begin anew.
        let head = self.head.get();
        let oldest = self.start(head);
        slots.extend_from_slice(&self.slots[oldest..]);
        slots.extend_from_slice(&self.slots[..oldest]);
        slots.resize(2 * self.slots.len(), 0);
        self.slots = slots;
        self.count_from(head);
        self.mask = 2 * count as u64 - 1;
    }

    /// Queues a gap; if no element follows, it ends at `to`.
    pub(crate) fn push_gap(&mut self, to: Timestamp, first: u64, missed: u64, cause: GapCause) {
        let gaps = self.gaps.get_mut();
        let is_full = self.is_reserved && gaps.len() == gaps.capacity();
        if let Some(last) = gaps.back_mut() {
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
        gaps.push_back(QueuedGap {
            before: self.tail,
            to,
            first,
            missed,
            cause,
        });
    }

    /// Queues a gap before all that is held: elements that were released and not delivered.
    #[cold]
    pub(crate) fn miss_in_front(
        &mut self,
        first: u64,
        missed: u64,
        from: Timestamp,
        to: Timestamp,
    ) {
        let first = first - self.moved.get();
        // They are the newest that were released.
        self.released.set(from);
        let before = self.head.get();
        self.gaps.get_mut().push_front(QueuedGap {
            before,
            to,
            first,
            missed,
            cause: GapCause::Late,
        });
    }

    /// Gaps in front of an element end with it, not with the round that found them.
    #[cold]
    fn pull_gaps_to(&mut self, time: Timestamp) {
        for gap in self.gaps.get_mut().iter_mut().rev() {
            if gap.before != self.tail || gap.to <= time {
                break;
            }
            gap.to = time;
        }
    }
}

/// Puts an element into its slot.
#[inline(always)]
fn store(slot: &mut [u64], sequence: u64, time: Timestamp, payload: &[u8]) {
    let (head, words) = slot.split_at_mut(HEAD_WORDS);
    head[0] = time.as_monotonic_ns();
    head[1] = sequence;
    // Most payloads are few words; a call of memcpy would cost more than all the rest.
    let (whole, rest) = payload.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()] = u64::from_ne_bytes(last);
    }
}

/// Puts elements into slots of this stride until there is no slot, or a time is not sound or lies
/// before that of its predecessor. Returns how many there were, and the time of the last one.
#[inline(always)]
fn fill<'a>(
    slots: &mut [u64],
    stride: usize,
    first: u64,
    elements: impl Iterator<Item = (Timestamp, &'a [u8])>,
    sound: RangeInclusive<Timestamp>,
) -> (usize, Timestamp) {
    let mut last = *sound.start();
    let mut count = 0;
    for (slot, (time, payload)) in slots.chunks_exact_mut(stride).zip(elements) {
        if time < last || time > *sound.end() {
            break;
        }
        last = time;
        store(slot, first.wrapping_add(count as u64), time, payload);
        count += 1;
    }
    (count, last)
}

/// What decides whether an element can have its place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// When the round began to read.
    pub(crate) round: Timestamp,
    /// Later times are nonsense.
    pub(crate) latest: Timestamp,
    /// All items before it have been released.
    pub(crate) watermark: Timestamp,
}
