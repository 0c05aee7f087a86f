// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges streams into the total order (time, stream, sequence).
//!
//! Each stream has a queue. A *round* fills the queues (the calls of [`Inbox`]) and then releases
//! what is older than the watermark, smallest first. The watermark is the time at which the round
//! began to read, less the hold-back: every source delivers what was published before it was
//! polled, so an element that shows up later with a time below the watermark had more than the
//! hold-back between its stamp and its publication. Such an element cannot take its place in the
//! order any more: it is missed, with the cause *late*.
//!
//! A gap is released with the next element of its stream. If no element follows, it is released
//! once the watermark passes the round that found it, so that verdicts get it in time.
//!
//! Writers are not trusted: an element whose time lies before its predecessor's, or after the
//! round, is missed with the cause *corrupt*. So is one that finds its queue full: an honest stream
//! holds back no more than a few rounds can read.
//!
//! Streams of context switches can prove that elements are missing that no counter has
//! ([`Continuity`](crate::Continuity)). Such a gap is released before the element that proves it,
//! with the cause *inconsistent*, in the stream that lacks the switch. It takes a position there:
//! positions of later elements move by one.
//!
//! # Memory
//!
//! Queues grow with their contents, up to a limit. With [`QueueMemory::Reserved`] each queue gets
//! all of its memory when its stream is opened, and rounds allocate none.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use overhear_event::{
    GapCause, InPlaceMemory, Inbox, Item, LoserTree, MergeKey, Nanos, Run, SourceError,
    StreamDescriptor, StreamId, Timestamp,
};

use crate::batch::{Batch, Lost, ReleaseLimit, Released, Unlimited, UntilEnough};
use crate::continuity_checks::{ContinuityChecks, Role};
use crate::queue::{Limits, Queue};

/// Limit of the time of an element after the begin of the round: the error of a clock segment, and
/// the time from the reading of the clock to the poll, which is long if the machine does not give
/// the monitor a CPU. Elements written in that time are valid. The limit only rejects nonsense,
/// which until then harms its own stream alone.
const MAX_AHEAD: Nanos = Nanos::from_ms(10_000);

/// Rounds of a whole ring each that a queue can hold. The hold-back needs two or three; more come
/// from stamps in the future.
const QUEUED_ROUNDS: usize = 8;
/// Approximate bytes of queued elements, shared equally by the streams. Rings may have far more;
/// the rest stays in them until the queued elements have been evaluated.
const HELD_BYTES: usize = 16 << 20;
/// Elements that each stream can queue, however many streams there are.
const MIN_ELEMENTS_PER_STREAM: u64 = 256;
/// Least limit of queued elements per round, for streams with a small or unknown capacity.
const MIN_QUEUE_LIMIT: usize = 64 * 1024;
/// Elements that are reserved at most: more than a ring of a directory has. Larger capacities in a
/// descriptor are ignored.
const MAX_RESERVED_ELEMENTS: usize = 1 << 22;

/// The memory of a merge's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueMemory {
    /// Allocated on demand, up to a generous limit. Sources that can leave elements in their rings
    /// do so beyond some 16 MiB.
    #[default]
    Growing,
    /// Twice the capacity of the stream's ring, allocated when the stream is opened: one ring can
    /// be read in a round while another one is held back. Rounds then allocate nothing, and the
    /// memory is known in advance ([`Merge::memory_bytes`]). Elements that do not fit are missed
    /// with the cause *overwritten*: the monitor's buffer was too small. All elements fit if the
    /// ring is large enough for its declared rate ([GRTMon, section 4.2.1], with the hold-back).
    Reserved,
}

/// The merge. See the module's documentation.
#[derive(Debug, Default)]
pub struct Merge {
    queues: Vec<Queue>,
    // Index of each stream's queue.
    queue_of: HashMap<StreamId, u32, BuildHasherDefault<StreamIdHasher>>,
    // Index of the last queue that was looked up: elements of a stream come in runs.
    last: usize,
    tree: LoserTree,
    room: QueueMemory,
    limits: Limits,
    // Whether a source left elements in its ring in this round.
    has_left: bool,
    // Whether a closed queue is not empty yet.
    closing: bool,
    // Elements that the last release took out and did not deliver, because it panicked.
    lost: RefCell<Vec<Lost>>,
    watches: ContinuityChecks,
    opened: Vec<Arc<StreamDescriptor>>,
    // Number of these that were announced.
    announced: usize,
    complaints: Vec<SourceError>,
    dropped_complaints: u64,
}

/// Complaints kept until they are taken; the rest is counted.
const MAX_COMPLAINTS: usize = 100;

/// Hashes stream numbers, which are consecutive, by a multiplication.
#[derive(Debug, Default)]
pub(crate) struct StreamIdHasher(u64);

impl Hasher for StreamIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        // Knuth's multiplicative hash; the table takes the upper bits too.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Merge {
    /// An empty merge.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty merge with this memory.
    #[must_use]
    pub fn with_memory(room: QueueMemory) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Bytes of the memory that the queues have now. With [`QueueMemory::Reserved`] it changes only
    /// when a stream is opened or forgotten.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.queues.iter().map(Queue::memory_bytes).sum()
    }

    /// The bytes of [`Merge::memory_bytes`] with [`QueueMemory::Reserved`] for a stream of this
    /// capacity, with copied payloads of this size. In place it is less.
    #[must_use]
    pub fn bytes_for(payload: u32, capacity: u64) -> usize {
        Queue::reserved_bytes(payload, reserved_elements(capacity))
    }

    /// Sets the number of the source of streams that are opened from now on. Kernel streams of one
    /// source belong to one kernel monitor.
    pub fn begin_source(&mut self, number: u32) {
        self.watches.begin_source(number);
    }

    /// Begins a round: all items from now on were read after `now`.
    pub fn begin_round(&mut self, now: Timestamp) {
        self.limits.round = self.limits.round.max(now);
        self.limits.latest = self.limits.round.plus(MAX_AHEAD);
        if std::mem::take(&mut self.has_left) {
            self.queues.iter_mut().for_each(|queue| queue.left = false);
        }
    }

    /// Whether a source left elements in its ring, because a queue was full, for another round.
    pub(crate) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// The streams that were opened since the last call.
    #[must_use]
    pub fn take_opened(&mut self) -> Vec<Arc<StreamDescriptor>> {
        self.announced = 0;
        std::mem::take(&mut self.opened)
    }

    /// The streams that were opened and not taken yet.
    pub(crate) fn opened(&self) -> &[Arc<StreamDescriptor>] {
        &self.opened
    }

    /// Calls `sink` for each stream that was opened since the last call.
    pub(crate) fn announce(&mut self, mut sink: impl FnMut(&StreamDescriptor)) {
        for stream in &self.opened[self.announced..] {
            sink(stream);
        }
        self.announced = self.opened.len();
    }

    /// Messages about sources since the last call.
    #[must_use]
    pub fn take_complaints(&mut self) -> Vec<SourceError> {
        let mut complaints = std::mem::take(&mut self.complaints);
        match std::mem::take(&mut self.dropped_complaints) {
            0 => {}
            more => complaints.push(SourceError(format!("{more} more complaints were not kept"))),
        }
        complaints
    }

    /// Reports items of a stream that is not open: a bug of the source.
    #[cold]
    fn stray(&mut self, stream: StreamId, elements: u64) {
        let message = format!(
            "{elements} elements of the unknown stream {stream} are not evaluated; this is a bug of \
             the source that delivered them"
        );
        self.complain(SourceError(message));
    }

    /// The queue of a stream, and the limits for its elements.
    #[inline(always)]
    fn queue(&mut self, stream: StreamId) -> Option<(&mut Queue, &Limits)> {
        let is_last = |queue: &Queue| queue.descriptor.id == stream;
        if !self.queues.get(self.last).is_some_and(is_last) {
            self.last = *self.queue_of.get(&stream)? as usize;
        }
        Some((&mut self.queues[self.last], &self.limits))
    }

    /// Releases all items before `until` in total order, then an advance. A panic of `sink` is
    /// passed on; the elements that had left their queues and were not delivered are missed in the
    /// next release, with the cause *late*.
    pub fn release(&mut self, until: Timestamp, mut sink: impl FnMut(Item<'_>)) {
        self.release_batches(until, Unlimited, |released| released.each(&mut sink));
    }

    /// As [`Merge::release`], but ends before an element if `enough` returns true. The rest stays
    /// queued, and the advance goes to the first element of the rest.
    pub fn release_some(
        &mut self,
        until: Timestamp,
        enough: impl FnMut() -> bool,
        mut sink: impl FnMut(Item<'_>),
    ) {
        self.release_batches(until, UntilEnough(enough), |released| {
            released.each(&mut sink)
        });
    }

    /// Releases items before `until` up to the limit, consecutive elements in batches.
    pub(crate) fn release_batches(
        &mut self,
        until: Timestamp,
        limit: impl ReleaseLimit,
        mut sink: impl FnMut(Released<'_>),
    ) {
        // Elements left in a ring are not older than those read from it.
        let left = self.queues.iter().filter(|queue| queue.left);
        let until = left.map(Queue::newest).fold(until, Timestamp::min);
        let until = until.max(self.limits.watermark);
        if !self.lost.get_mut().is_empty() {
            self.miss_lost();
        }
        let keys = (0..).zip(&self.queues).filter_map(|(index, queue)| {
            let time = queue.head().filter(|&time| time < until)?;
            Some(MergeKey::new(time, queue.descriptor.id, index))
        });
        self.tree.refill(keys);
        let rest = self.release_keys(until, limit, &mut sink);
        if self.closing {
            self.forget_closed();
        }
        let until = rest.unwrap_or(until).max(self.limits.watermark);
        self.limits.watermark = until;
        sink(Released::Advance(until));
    }

    /// Reports the elements that a panic left: a gap per stream, before its queued items.
    #[cold]
    fn miss_lost(&mut self) {
        let mut gaps: BTreeMap<StreamId, (Lost, u64, Timestamp)> = BTreeMap::new();
        for lost in std::mem::take(self.lost.get_mut()) {
            let gap = gaps.entry(lost.stream).or_insert((lost, 0, lost.time));
            (gap.1, gap.2) = (gap.1 + 1, lost.time);
        }
        for (stream, (first, missed, to)) in gaps {
            match self.queue(stream) {
                Some((queue, _)) => queue.miss_in_front(first.sequence, missed, first.time, to),
                None => self.stray(stream, missed),
            }
        }
    }

    /// Releases items before `until`. If the limit ends it, returns the time of the first remaining
    /// element.
    fn release_keys(
        &mut self,
        until: Timestamp,
        limit: impl ReleaseLimit,
        sink: impl FnMut(Released<'_>),
    ) -> Option<Timestamp> {
        let first = self.tree.top()?;
        let end = MergeKey::start_of(until);
        let queues = &self.queues;
        let (watches, queue_of) = (&mut self.watches, &self.queue_of);
        let find = |id| Some(&queues[*queue_of.get(&id)? as usize]);
        let mut batch = Batch::new(&queues[first.index()].descriptor, &self.lost, limit, sink);
        let mut left = None;
        while let Some(key) = self.tree.top() {
            let queue = &queues[key.index()];
            // All items of this stream before the head of another one. In place, adjacent
            // overwritten elements become one gap, so the limit is the head of the runner-up.
            let others = match queue.is_in_place() {
                false => self.tree.run_limit().min(end),
                true => self.tree.runner_up().min(end),
            };
            let rest = match queue.role {
                Role::Unwatched => queue.release(key, others, &mut batch),
                _ => queue.release_watched(key, others, &mut batch, watches, find),
            };
            if rest.is_some_and(|rest| rest < others) {
                // This stream was first, so its head is the oldest remaining item.
                left = queue.head();
                break;
            }
            match rest.filter(|&rest| rest < end) {
                Some(rest) => self.tree.replace_top(rest),
                None => self.tree.remove_top(),
            }
        }
        batch.flush();
        left
    }

    /// All older items have been released.
    #[must_use]
    pub const fn watermark(&self) -> Timestamp {
        self.limits.watermark
    }

    /// Makes a queue; with `payloads` its elements are read in place, else they are copied.
    pub(crate) fn open_queue(
        &mut self,
        descriptor: Arc<StreamDescriptor>,
        payloads: Option<Arc<dyn InPlaceMemory>>,
    ) {
        self.opened.push(Arc::clone(&descriptor));
        let id = descriptor.id;
        let mut queue = match self.room {
            QueueMemory::Growing => {
                let capacity = usize::try_from(descriptor.capacity).unwrap_or(usize::MAX);
                let limit = capacity.max(MIN_QUEUE_LIMIT).saturating_mul(QUEUED_ROUNDS);
                Queue::growing(descriptor, payloads, limit)
            }
            QueueMemory::Reserved => reserved_queue(descriptor, payloads),
        };
        queue.role = match queue.is_in_place() {
            true => Role::Unwatched,
            false => self.watches.open(&queue.descriptor, self.room),
        };
        match self.queue_of.get(&id) {
            Some(&index) => self.queues[index as usize] = queue,
            None => {
                self.queue_of.insert(id, self.queues.len() as u32);
                self.queues.push(queue);
                self.tree.reserve(self.queues.len());
            }
        }
    }

    /// Removes closed streams that are empty.
    #[cold]
    fn forget_closed(&mut self) {
        let queues = &mut self.queues;
        queues.retain(|queue| !queue.closed || !queue.is_empty());
        self.queue_of.clear();
        self.queue_of.extend(
            queues
                .iter()
                .zip(0..)
                .map(|(queue, at)| (queue.descriptor.id, at)),
        );
        self.closing = queues.iter().any(|queue| queue.closed);
        self.watches.retain(queues.iter().map(|queue| queue.role));
    }
}

fn reserved_queue(
    descriptor: Arc<StreamDescriptor>,
    payloads: Option<Arc<dyn InPlaceMemory>>,
) -> Queue {
    let elements = reserved_elements(descriptor.capacity);
    Queue::reserved(descriptor, payloads, elements)
}

/// The elements of one round, and the same number held back.
fn reserved_elements(capacity: u64) -> usize {
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    capacity.clamp(1, MAX_RESERVED_ELEMENTS).saturating_mul(2)
}

impl Inbox for Merge {
    fn open(&mut self, descriptor: Arc<StreamDescriptor>) {
        self.open_queue(descriptor, None);
    }

    #[inline]
    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        match self.queue(stream) {
            Some((queue, limits)) => queue.element(sequence, time, payload, limits),
            None => self.stray(stream, 1),
        }
    }

    fn run(&mut self, stream: StreamId, run: &Run<'_>) {
        match self.queue(stream) {
            Some((queue, limits)) => queue.run(*run, limits),
            None => self.stray(stream, run.len() as u64),
        }
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        match self.queue(stream) {
            Some((queue, limits)) => queue.push_gap(limits.round, first, missed, cause),
            None => self.stray(stream, missed),
        }
    }

    fn room(&mut self, stream: StreamId) -> u64 {
        let (streams, is_reserved) = (self.queues.len(), self.room == QueueMemory::Reserved);
        let Some((queue, _)) = self.queue(stream).filter(|_| !is_reserved) else {
            return u64::MAX;
        };
        let share = HELD_BYTES / streams / queue.element_bytes();
        // Elements with the time of the newest one are released only after later ones have come.
        let waits = queue.head() == Some(queue.newest());
        let held = if waits { 0 } else { queue.held() };
        MIN_ELEMENTS_PER_STREAM
            .max(share as u64)
            .saturating_sub(held)
    }

    fn leave(&mut self, stream: StreamId) {
        if let Some((queue, _)) = self.queue(stream) {
            queue.left = true;
            self.has_left = true;
        }
    }

    fn complain(&mut self, complaint: SourceError) {
        if self.complaints.len() < MAX_COMPLAINTS {
            self.complaints.push(complaint);
        } else {
            self.dropped_complaints += 1;
        }
    }

    fn close(&mut self, stream: StreamId) {
        if let Some((queue, _)) = self.queue(stream) {
            queue.closed = true;
            self.closing = true;
        }
    }
}

#[cfg(test)]
mod switch_tests;
#[cfg(test)]
mod tests;
