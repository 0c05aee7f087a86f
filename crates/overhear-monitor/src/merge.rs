// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one total order: (time, stream, sequence).
//!
//! Each stream has a queue. A *round* fills the queues (the calls of [`Inbox`]) and then releases
//! what is older than the watermark, smallest first. The watermark is the time at which the round
//! began to read, less the hold-back: every source delivers what was published before it was
//! polled, so an element that shows up later with a time below the watermark had more than the
//! hold-back between its stamp and its publication. Such an element cannot take its place in the
//! order any more: it is missed, with the cause *late*.
//!
//! A gap lies before the next element of its stream and is released with it. If no element
//! follows, it is released once the watermark passes the round that found it, so that whoever
//! waits for a verdict hears of it in time.
//!
//! Writers are not trusted: an element whose time lies before its predecessor's, or after the
//! round, is missed with the cause *corrupt*. So is one that finds its queue full: an honest stream
//! holds back no more than a few rounds can read.
//!
//! Streams of context switches can prove by themselves that elements are missing which nobody counted
//! ([`Continuity`](crate::Continuity)). Such a gap is released before the element that proves it, with the cause
//! *inconsistent*, in the stream in which the switch is missing, and takes a position there: positions of later elements
//! move by one.
//!
//! # Memory
//!
//! Queues grow with what they hold, up to a limit. With [`Room::Reserved`] each has all of its
//! memory from the moment its stream is opened, and rounds allocate none.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use overhear_event::{
    GapCause, Inbox, Item, Nanos, Places, Run, SourceError, StreamDescriptor, StreamId, Timestamp,
    Turn, Turns,
};

use crate::batch::{Batch, Everything, Lost, Portion, Released, Until};
use crate::queue::{Limits, Queue};
use crate::watch::{Role, Watches};

/// By how much an element's time may lie after the round's begin: the error of a clock segment, and
/// the time between the reading of the clock and the poll. That is long where the machine does not
/// give the monitor a CPU, and what was written meanwhile is sound. The limit is only there to
/// refuse nonsense, which until then harms nothing but the stream it is in.
const FUTURE: Nanos = Nanos::from_ms(10_000);

/// How many rounds of a whole ring each may lie in a queue. Within the hold-back there are two or
/// three; more come from stamps that lie in the future.
const ROUNDS: usize = 8;
/// Bytes of elements that are held at one time, about: streams have equal shares of them. Rings may have far
/// more; what is left in them is read once what is held is evaluated.
const HELD_BYTES: usize = 16 << 20;
/// Elements of a stream that are held in any case, however many streams there are.
const LEAST_SHARE: u64 = 256;
/// Streams whose capacity is small or not known may hold back this much per round all the same.
const LEAST_LIMIT: usize = 64 * 1024;
/// More elements than a ring of a directory ever has; a descriptor that names more is not believed.
const MOST_RESERVED: usize = 1 << 22;

/// How the queues of a merge get their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// As much as is needed, when it is needed, within a generous limit. Sources that can leave elements where
    /// they are do so beyond some 16 MiB.
    #[default]
    Growing,
    /// Twice the capacity of the stream's ring, all of it when the stream is opened: what one round
    /// can read, and as much again that is held back. Rounds then allocate nothing, and the memory
    /// is known beforehand ([`Merge::memory_bytes`]). What does not fit is missed, with the cause
    /// *overwritten*: the monitor's buffer was too small. Of a ring that is large enough for its
    /// declared rate (seed 000, section 4.2.1, with the hold-back) everything fits.
    Reserved,
}

/// Queues and order. See the module's text.
#[derive(Debug, Default)]
pub struct Merge {
    queues: Vec<Queue>,
    // Where a stream's queue is.
    places: HashMap<StreamId, u32, BuildHasherDefault<Spread>>,
    // The place asked for last: elements of a stream come in runs.
    last: usize,
    turns: Turns,
    room: Room,
    limits: Limits,
    // Whether a source has left elements in this round.
    has_left: bool,
    // Whether a queue waits to be empty and forgotten.
    closing: bool,
    // What the last release has taken out and not delivered, because it ended with a panic.
    lost: RefCell<Vec<Lost>>,
    watches: Watches,
    opened: Vec<Arc<StreamDescriptor>>,
    // How many of them were announced.
    announced: usize,
    complaints: Vec<SourceError>,
    untold: u64,
}

/// How many complaints are kept until somebody takes them; the rest is counted.
const COMPLAINTS: usize = 100;

/// Stream numbers are given one after the other; multiplying spreads them well enough.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
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

    /// An empty merge whose queues get their memory like this.
    #[must_use]
    pub fn with_room(room: Room) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Bytes of the memory that the queues have now. With [`Room::Reserved`] it changes only when a
    /// stream is opened or forgotten.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.queues.iter().map(Queue::memory_bytes).sum()
    }

    /// What [`Merge::memory_bytes`] will count with [`Room::Reserved`] for a stream of this capacity whose
    /// elements have so many bytes and are copied. In place it is less.
    #[must_use]
    pub fn bytes_for(payload: u32, capacity: u64) -> usize {
        Queue::reserved_bytes(payload, reserved_elements(capacity))
    }

    /// The streams that are opened from now on come from the source of this number. Kernel streams of one source
    /// are of one kernel monitor.
    pub fn begin_source(&mut self, number: u32) {
        self.watches.begin_source(number);
    }

    /// Begins a round: everything that comes in from now on was read after `now`.
    pub fn begin_round(&mut self, now: Timestamp) {
        self.limits.round = self.limits.round.max(now);
        self.limits.latest = self.limits.round.plus(FUTURE);
        if std::mem::take(&mut self.has_left) {
            self.queues.iter_mut().for_each(|queue| queue.left = false);
        }
    }

    /// Whether a source has left elements for want of room, which another round reads.
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

    /// Tells of the streams that were opened since the last call of this function.
    pub(crate) fn announce(&mut self, mut told: impl FnMut(&StreamDescriptor)) {
        for stream in &self.opened[self.announced..] {
            told(stream);
        }
        self.announced = self.opened.len();
    }

    /// Sentences about sources since the last call.
    #[must_use]
    pub fn take_complaints(&mut self) -> Vec<SourceError> {
        let mut complaints = std::mem::take(&mut self.complaints);
        match std::mem::take(&mut self.untold) {
            0 => {}
            more => complaints.push(SourceError(format!("{more} more complaints were not kept"))),
        }
        complaints
    }

    /// A source speaks of a stream that it did not open, or closed: a bug of the source.
    #[cold]
    fn stray(&mut self, stream: StreamId, elements: u64) {
        let sentence = format!(
            "{elements} elements of the unknown stream {stream} are not evaluated; this is a bug of \
             the source that delivered them"
        );
        self.complain(SourceError(sentence));
    }

    /// The queue of a stream, and what decides about its elements.
    #[inline(always)]
    fn queue(&mut self, stream: StreamId) -> Option<(&mut Queue, &Limits)> {
        let is_last = |queue: &Queue| queue.descriptor.id == stream;
        if !self.queues.get(self.last).is_some_and(is_last) {
            self.last = *self.places.get(&stream)? as usize;
        }
        Some((&mut self.queues[self.last], &self.limits))
    }

    /// Releases everything before `until` in total order, then an advance. A panic of `sink` passes through; the
    /// elements that have left their queues by then and were not delivered are missed in the next release,
    /// with the cause *late*.
    pub fn release(&mut self, until: Timestamp, mut sink: impl FnMut(Item<'_>)) {
        self.release_batches(until, Everything, |released| released.each(&mut sink));
    }

    /// Like [`Merge::release`], but asks before each element whether there have been enough. Then the
    /// rest stays, and the advance goes to the first element of the rest.
    pub fn release_some(
        &mut self,
        until: Timestamp,
        enough: impl FnMut() -> bool,
        mut sink: impl FnMut(Item<'_>),
    ) {
        self.release_batches(until, Until(enough), |released| released.each(&mut sink));
    }

    /// Releases this much of what lies before `until`, elements that follow each other at once.
    pub(crate) fn release_batches(
        &mut self,
        until: Timestamp,
        portion: impl Portion,
        mut sink: impl FnMut(Released<'_>),
    ) {
        // What was left of a stream is not older than what was read of it.
        let left = self.queues.iter().filter(|queue| queue.left);
        let until = left.map(Queue::newest).fold(until, Timestamp::min);
        let until = until.max(self.limits.watermark);
        if !self.lost.get_mut().is_empty() {
            self.miss_lost();
        }
        let turns = (0..).zip(&self.queues).filter_map(|(place, queue)| {
            let time = queue.head().filter(|&time| time < until)?;
            Some(Turn::new(time, queue.descriptor.id, place))
        });
        self.turns.refill(turns);
        let rest = self.take_turns(until, portion, &mut sink);
        if self.closing {
            self.forget_closed();
        }
        let until = rest.unwrap_or(until).max(self.limits.watermark);
        self.limits.watermark = until;
        sink(Released::Advance(until));
    }

    /// What a panic has left of each stream becomes a gap before what is still queued.
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

    /// Releases what comes before `until`. Where there have been enough before that, returns the time of the
    /// first element of the rest.
    fn take_turns(
        &mut self,
        until: Timestamp,
        portion: impl Portion,
        sink: impl FnMut(Released<'_>),
    ) -> Option<Timestamp> {
        let first = self.turns.top()?;
        let end = Turn::begin_of(until);
        let queues = &self.queues;
        let (watches, places) = (&mut self.watches, &self.places);
        let find = |id| Some(&queues[*places.get(&id)? as usize]);
        let mut batch = Batch::new(&queues[first.index()].descriptor, &self.lost, portion, sink);
        let mut left = None;
        while let Some(turn) = self.turns.top() {
            let queue = &queues[turn.index()];
            // What comes of this stream before the next head of another one, in one go. Where payloads
            // lie elsewhere neighbours that are gone are to be one gap.
            let others = match queue.lies_elsewhere() {
                false => self.turns.reach().min(end),
                true => self.turns.runner_up().min(end),
            };
            let rest = match queue.role {
                Role::Unwatched => queue.release(turn, others, &mut batch),
                _ => queue.release_watched(turn, others, &mut batch, watches, find),
            };
            if rest.is_some_and(|rest| rest < others) {
                // Nothing older than this is left, of any stream: its turn was the first.
                left = queue.head();
                break;
            }
            match rest.filter(|&rest| rest < end) {
                Some(rest) => self.turns.replace_top(rest),
                None => self.turns.remove_top(),
            }
        }
        batch.hand_over();
        left
    }

    /// Everything older has been released.
    #[must_use]
    pub const fn watermark(&self) -> Timestamp {
        self.limits.watermark
    }

    /// Makes a queue; its elements lie in `places`, or are copied.
    pub(crate) fn open_queue(
        &mut self,
        descriptor: Arc<StreamDescriptor>,
        places: Option<Arc<dyn Places>>,
    ) {
        self.opened.push(Arc::clone(&descriptor));
        let id = descriptor.id;
        let mut queue = match self.room {
            Room::Growing => {
                let capacity = usize::try_from(descriptor.capacity).unwrap_or(usize::MAX);
                let limit = capacity.max(LEAST_LIMIT).saturating_mul(ROUNDS);
                Queue::growing(descriptor, places, limit)
            }
            Room::Reserved => reserved_queue(descriptor, places),
        };
        queue.role = match queue.lies_elsewhere() {
            true => Role::Unwatched,
            false => self.watches.open(&queue.descriptor, self.room),
        };
        match self.places.get(&id) {
            Some(&place) => self.queues[place as usize] = queue,
            None => {
                self.places.insert(id, self.queues.len() as u32);
                self.queues.push(queue);
                self.turns.reserve(self.queues.len());
            }
        }
    }

    /// Streams that were closed go once they are empty.
    #[cold]
    fn forget_closed(&mut self) {
        let queues = &mut self.queues;
        queues.retain(|queue| !queue.closed || !queue.is_empty());
        self.places.clear();
        self.places.extend(
            queues
                .iter()
                .zip(0..)
                .map(|(queue, at)| (queue.descriptor.id, at)),
        );
        self.closing = queues.iter().any(|queue| queue.closed);
        self.watches.retain(queues.iter().map(|queue| queue.role));
    }
}

fn reserved_queue(descriptor: Arc<StreamDescriptor>, places: Option<Arc<dyn Places>>) -> Queue {
    let elements = reserved_elements(descriptor.capacity);
    Queue::reserved(descriptor, places, elements)
}

/// What one round can read, and as much again that is held back.
fn reserved_elements(capacity: u64) -> usize {
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    capacity.clamp(1, MOST_RESERVED).saturating_mul(2)
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
        let (streams, is_reserved) = (self.queues.len(), self.room == Room::Reserved);
        let Some((queue, _)) = self.queue(stream).filter(|_| !is_reserved) else {
            return u64::MAX;
        };
        let share = HELD_BYTES / streams / queue.element_bytes();
        // What has the time of the newest element is released only with what follows.
        let waits = queue.head() == Some(queue.newest());
        let held = if waits { 0 } else { queue.held() };
        LEAST_SHARE.max(share as u64).saturating_sub(held)
    }

    fn leave(&mut self, stream: StreamId) {
        if let Some((queue, _)) = self.queue(stream) {
            queue.left = true;
            self.has_left = true;
        }
    }

    fn complain(&mut self, complaint: SourceError) {
        if self.complaints.len() < COMPLAINTS {
            self.complaints.push(complaint);
        } else {
            self.untold += 1;
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
