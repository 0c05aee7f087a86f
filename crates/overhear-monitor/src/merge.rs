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
//! # Memory
//!
//! Queues grow with what they hold, up to a limit. With [`Room::Reserved`] each has all of its
//! memory from the moment its stream is opened, and rounds allocate none.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use overhear_event::{
    GapCause, Inbox, Item, Nanos, Places, SourceError, StreamDescriptor, StreamId, Timestamp, Turn,
    Turns,
};

use crate::queue::{Limits, Queue};

/// By how much an element's time may lie after the round's begin: the error of a clock segment, and
/// the time between the reading of the clock and the poll. That is long where the machine does not
/// give the monitor a CPU, and what was written meanwhile is sound. The limit is only there to
/// refuse nonsense, which until then harms nothing but the stream it is in.
const FUTURE: Nanos = Nanos::from_ms(10_000);

/// How many rounds of a whole ring each may lie in a queue. Within the hold-back there are two or
/// three; more come from stamps that lie in the future.
const ROUNDS: usize = 8;
/// Streams whose capacity is small or not known may hold back this much per round all the same.
const LEAST_LIMIT: usize = 64 * 1024;
/// More elements than a ring of a directory ever has; a descriptor that names more is not believed.
const MOST_RESERVED: usize = 1 << 22;

/// How the queues of a merge get their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// As much as is needed, when it is needed, within a generous limit.
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
    // Whether a queue waits to be empty and forgotten.
    closing: bool,
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

    /// Begins a round: everything that comes in from now on was read after `now`.
    pub fn begin_round(&mut self, now: Timestamp) {
        self.limits.round = self.limits.round.max(now);
        self.limits.latest = self.limits.round.plus(FUTURE);
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

    /// Releases everything before `until` in total order, then an advance.
    pub fn release(&mut self, until: Timestamp, sink: impl FnMut(Item<'_>)) {
        self.release_some(until, || false, sink);
    }

    /// Like [`Merge::release`], but asks before each element whether there have been enough. Then the
    /// rest stays, and the advance goes to the first element of the rest.
    pub fn release_some(
        &mut self,
        until: Timestamp,
        mut enough: impl FnMut() -> bool,
        mut sink: impl FnMut(Item<'_>),
    ) {
        let mut until = until.max(self.limits.watermark);
        let turns = (0..).zip(&self.queues).filter_map(|(place, queue)| {
            let time = queue.head().filter(|&time| time < until)?;
            Some(Turn::new(time, queue.descriptor.id, place))
        });
        self.turns.refill(turns);
        let end = Turn::begin_of(until);
        while let Some(turn) = self.turns.top() {
            let queue = &mut self.queues[turn.index()];
            // What comes of this stream before the next head of another one, in one go. Where payloads
            // lie elsewhere neighbours that are gone are to be one gap.
            let others = match queue.lies_elsewhere() {
                false => self.turns.reach().min(end),
                true => self.turns.runner_up().min(end),
            };
            let rest = queue.release(turn, others, &mut enough, &mut sink);
            if rest.is_some_and(|rest| rest < others) {
                // Nothing older than this is left, of any stream: its turn was the first.
                until = queue.head().unwrap_or(until).max(self.limits.watermark);
                break;
            }
            match rest.filter(|&rest| rest < end) {
                Some(rest) => self.turns.replace_top(rest),
                None => self.turns.remove_top(),
            }
        }
        if self.closing {
            self.forget_closed();
        }
        self.limits.watermark = until;
        sink(Item::Advance(until));
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
        let queue = match self.room {
            Room::Growing => {
                let capacity = usize::try_from(descriptor.capacity).unwrap_or(usize::MAX);
                let limit = capacity.max(LEAST_LIMIT).saturating_mul(ROUNDS);
                Queue::growing(descriptor, places, limit)
            }
            Room::Reserved => reserved_queue(descriptor, places),
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

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        match self.queue(stream) {
            Some((queue, limits)) => queue.push_gap(limits.round, first, missed, cause),
            None => self.stray(stream, missed),
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
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        FieldKind, GapCause, Inbox, Item, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };
    use proptest::prelude::{prop, proptest, ProptestConfig};

    use super::{Merge, FUTURE};

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn id(raw: u32) -> StreamId {
        StreamId::from_raw(raw)
    }

    fn merge(streams: u32) -> Merge {
        let schema = TypeSchema::builder("t")
            .field("value", FieldKind::U64, "")
            .build()
            .unwrap();
        let schema = Arc::new(schema);
        let mut merge = Merge::new();
        for raw in 1..=streams {
            merge.open(Arc::new(StreamDescriptor {
                id: id(raw),
                origin: Origin::Kernel { cpu: raw },
                sensor: "t".to_string(),
                instance: String::new(),
                lane: None,
                schema: Arc::clone(&schema),
                rate: None,
                capacity: 8,
            }));
        }
        merge
    }

    fn put(merge: &mut Merge, stream: u32, sequence: u64, time: u64) {
        merge.element(id(stream), sequence, at(time), &(time * 3).to_ne_bytes());
    }

    #[derive(Clone, Debug, PartialEq)]
    enum Seen {
        Element(u64, u32, u64),
        Gap {
            stream: u32,
            first: u64,
            missed: u64,
            from: u64,
            to: u64,
            cause: GapCause,
        },
        Advance(u64),
    }

    fn release(merge: &mut Merge, until: u64) -> Vec<Seen> {
        let mut seen = Vec::new();
        merge.release(at(until), |item| {
            seen.push(match item {
                Item::InPlace(_) => unreachable!("nobody asked for it"),
                Item::Element(e) => {
                    let time = e.time.as_monotonic_ns();
                    assert_eq!(e.payload, (time * 3).to_ne_bytes());
                    Seen::Element(time, e.stream.id.as_raw(), e.sequence)
                }
                Item::Gap(_, gap) => Seen::Gap {
                    stream: gap.stream.as_raw(),
                    first: gap.first,
                    missed: gap.missed,
                    from: gap.from.as_monotonic_ns(),
                    to: gap.to.as_monotonic_ns(),
                    cause: gap.cause,
                },
                Item::Advance(time) => Seen::Advance(time.as_monotonic_ns()),
            });
        });
        seen
    }

    #[test]
    fn equal_times_are_ordered_by_stream_then_sequence() {
        let mut merge = merge(2);
        merge.begin_round(at(100));
        put(&mut merge, 2, 0, 10);
        put(&mut merge, 1, 0, 10);
        put(&mut merge, 1, 1, 10);
        put(&mut merge, 2, 1, 11);
        put(&mut merge, 1, 2, 50);
        let seen = release(&mut merge, 50);
        let element = Seen::Element;
        let expected = [
            element(10, 1, 0),
            element(10, 1, 1),
            element(10, 2, 0),
            element(11, 2, 1),
        ];
        assert_eq!(seen[..4], expected);
        assert_eq!(seen[4..], [Seen::Advance(50)]);
        assert_eq!(release(&mut merge, 51)[0], element(50, 1, 2));
    }

    #[test]
    fn a_gap_ends_with_the_next_element_or_with_its_round() {
        let mut merge = merge(2);
        merge.begin_round(at(100));
        put(&mut merge, 1, 0, 10);
        merge.gap(id(1), 1, 4, GapCause::Overwritten);
        put(&mut merge, 1, 5, 30);
        put(&mut merge, 2, 0, 20);
        merge.gap(id(2), 1, 7, GapCause::Kernel);
        let gap = |stream, first, missed, from, to, cause| Seen::Gap {
            stream,
            first,
            missed,
            from,
            to,
            cause,
        };
        assert_eq!(
            release(&mut merge, 100),
            [
                Seen::Element(10, 1, 0),
                Seen::Element(20, 2, 0),
                gap(1, 1, 4, 10, 30, GapCause::Overwritten),
                Seen::Element(30, 1, 5),
                Seen::Advance(100),
            ]
        );
        // The gap of stream 2 was found at 100; an element that was stamped at 90 but published
        // only now pulls its end forward.
        merge.begin_round(at(120));
        put(&mut merge, 2, 8, 105);
        assert_eq!(
            release(&mut merge, 101),
            [gap(2, 1, 7, 20, 100, GapCause::Kernel), Seen::Advance(101)]
        );
        assert_eq!(release(&mut merge, 110)[0], Seen::Element(105, 2, 8));
    }

    #[test]
    fn late_disordered_and_future_elements_are_missed_with_their_cause() {
        let mut merge = merge(1);
        merge.begin_round(at(100));
        put(&mut merge, 1, 0, 60);
        release(&mut merge, 80);
        merge.begin_round(at(200));
        put(&mut merge, 1, 1, 70);
        put(&mut merge, 1, 2, 75);
        put(&mut merge, 1, 3, 90);
        put(&mut merge, 1, 4, 85);
        put(&mut merge, 1, 5, 200 + FUTURE.as_ns() + 1);
        put(&mut merge, 1, 6, 95);
        let causes: Vec<_> = release(&mut merge, 200)
            .into_iter()
            .filter_map(|seen| match seen {
                Seen::Gap { missed, cause, .. } => Some((cause, missed)),
                _ => None,
            })
            .collect();
        assert_eq!(causes, [(GapCause::Late, 2), (GapCause::Corrupt, 2)]);
    }

    #[test]
    fn stamps_in_the_future_cannot_fill_the_memory() {
        let mut merge = merge(1);
        merge.begin_round(at(100));
        let limit = (super::LEAST_LIMIT * super::ROUNDS) as u64;
        for sequence in 0..limit + 7 {
            put(&mut merge, 1, sequence, 5_000);
        }
        let (mut delivered, mut missed) = (0, 0);
        for seen in release(&mut merge, u64::MAX) {
            match seen {
                Seen::Element(..) => delivered += 1,
                Seen::Gap {
                    missed: count,
                    cause: GapCause::Corrupt,
                    ..
                } => missed += count,
                _ => {}
            }
        }
        assert_eq!((delivered, missed), (limit, 7));
    }

    #[test]
    fn what_is_enough_leaves_the_rest_in_order() {
        let mut merge = merge(2);
        merge.begin_round(at(100));
        for (stream, sequence, time) in [(1, 0, 10), (1, 1, 30), (2, 0, 20), (2, 1, 30), (1, 2, 30)]
        {
            put(&mut merge, stream, sequence, time);
        }
        let mut all = Vec::new();
        let mut advances = Vec::new();
        for _ in 0..4 {
            let asked = std::cell::Cell::new(0);
            let enough = || asked.replace(asked.get() + 1) == 2;
            merge.release_some(at(50), enough, |item| match item {
                Item::InPlace(_) => unreachable!("nobody asked for it"),
                Item::Element(element) => {
                    all.push((element.stream.id.as_raw(), element.sequence));
                }
                Item::Advance(time) => advances.push(time.as_monotonic_ns()),
                Item::Gap(..) => panic!("there is none"),
            });
        }
        assert_eq!(all, [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1)]);
        assert_eq!(advances, [30, 30, 50, 50]);
    }

    #[test]
    fn closed_streams_go_once_they_are_empty() {
        let mut merge = merge(1);
        merge.begin_round(at(100));
        put(&mut merge, 1, 0, 60);
        merge.close(id(1));
        assert_eq!(release(&mut merge, 50).len(), 1);
        assert_eq!(release(&mut merge, 100).len(), 2);
        put(&mut merge, 1, 1, 150);
        assert_eq!(merge.take_complaints().len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever the arrival, the order that comes out is the sorted order of what went in,
        /// and nothing is lost without a gap.
        #[test]
        fn the_order_is_total_whatever_the_arrival(
            arrivals in prop::collection::vec((1_u32..5, 0_u64..40, 0_u64..60), 1..200),
        ) {
            let mut merge = merge(4);
            let mut next = [(0_u64, 0_u64); 5]; // (sequence, time) per stream
            let (mut now, mut seen, mut put_in) = (0, Vec::new(), 0_u64);
            for (stream, step, pause) in arrivals {
                now += pause;
                merge.begin_round(at(now));
                let (sequence, last) = &mut next[stream as usize];
                let time = (*last + step).min(now);
                put(&mut merge, stream, *sequence, time);
                (*sequence, *last) = (*sequence + 1, time.max(*last));
                put_in += 1;
                seen.extend(release(&mut merge, now.saturating_sub(20)));
            }
            seen.extend(release(&mut merge, u64::MAX));
            let mut elements = Vec::new();
            let mut missed = 0;
            for item in seen {
                match item {
                    Seen::Element(time, stream, sequence) => elements.push((time, stream, sequence)),
                    Seen::Gap { missed: count, .. } => missed += count,
                    Seen::Advance(_) => {}
                }
            }
            assert!(elements.is_sorted());
            assert_eq!(elements.len() as u64 + missed, put_in);
        }
    }
}
