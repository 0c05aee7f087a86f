// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KernelStream`]: one ring as a stream, with what was refused in its place.

use std::collections::VecDeque;
use std::sync::Arc;

use overhear_event::{GapCause, Inbox, SourceError, StreamDescriptor};
use overhear_stream::sync::Ordering;
use overhear_stream::{LayoutError, ReadItem, Reader, Skips, Words};

use super::layout;
use super::types::ReadProgress;
use crate::mapping::MappedWords;
use crate::monotonic::MonotonicClamp;
use crate::resumptions::Resumptions;
use crate::streams::{Feed, Hook};

/// One ring, and the state of its delivery.
pub(crate) struct KernelStream {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) hook: Hook,
    /// Ring slot. For hooks other than probes it is the hook's number.
    pub(crate) slot: u32,
    pub(crate) reader: Reader<MappedWords>,
    clamp: MonotonicClamp,
    /// Refused elements already reported. They have no position in the ring, but one in the stream,
    /// so sequence = position + refused.
    refused: u64,
    nested_seen: u64,
    inherit_seen: u64,
    /// Events that a budget has kept from being written, as far as they are reported.
    skips: Skips,
    /// Used by streams of switches only.
    pub(crate) resumptions: Resumptions,
    /// Times at which a budget detached the probe, until the gap is delivered. Nobody counts its
    /// events from then on.
    pub(crate) detached: VecDeque<u64>,
    /// Number of committed elements when the poll began.
    pub(crate) limit: u64,
    /// The ring was found damaged; the stream is closed.
    pub(crate) damaged: bool,
}

impl KernelStream {
    /// A stream from which nothing was delivered yet.
    pub(crate) fn new(
        descriptor: Arc<StreamDescriptor>,
        feed: &Feed,
        reader: Reader<MappedWords>,
    ) -> Self {
        Self {
            descriptor,
            hook: feed.hook,
            slot: feed.slot,
            reader,
            clamp: MonotonicClamp::default(),
            refused: 0,
            nested_seen: 0,
            inherit_seen: 0,
            skips: Skips::default(),
            resumptions: Resumptions::default(),
            detached: VecDeque::new(),
            limit: 0,
            damaged: false,
        }
    }

    /// Continues where another process stopped.
    pub(crate) fn resumed(self, progress: &ReadProgress) -> Self {
        Self {
            clamp: MonotonicClamp::after(progress.last_ns),
            refused: progress.refused,
            nested_seen: progress.nested_seen,
            inherit_seen: progress.inherit_seen,
            skips: progress.skips,
            damaged: progress.damaged,
            ..self
        }
    }

    /// The position and the reported losses.
    pub(crate) fn progress(&self) -> ReadProgress {
        ReadProgress {
            position: self.reader.position(),
            refused: self.refused,
            nested_seen: self.nested_seen,
            inherit_seen: self.inherit_seen,
            last_ns: self.clamp.last_ns(),
            skips: self.skips,
            damaged: self.damaged,
        }
    }

    /// A count in the header. It orders no other memory.
    pub(crate) fn header_word(&self, offset: usize) -> u64 {
        let word = self.reader.words().word(offset / 8);
        word.load(Ordering::Relaxed)
    }

    /// Delivers the elements before the position `until` and the counts of refused ones, up to the
    /// limit of the inbox. Returns whether everything was delivered.
    pub(crate) fn poll(&mut self, until: u64, inbox: &mut dyn Inbox) -> Result<bool, SourceError> {
        if self.damaged {
            return Ok(true);
        }
        let id = self.descriptor.id;
        let nested = self.header_word(layout::LOST_NESTED_OFFSET);
        let inherit = self.header_word(layout::LOST_INHERIT_OFFSET);
        let fresh = nested.wrapping_sub(self.nested_seen);
        self.refuse(fresh, GapCause::Nested, inbox);
        self.nested_seen = nested;
        let fresh = inherit.wrapping_sub(self.inherit_seen);
        self.refuse(fresh, GapCause::Kernel, inbox);
        self.inherit_seen = inherit;

        let bound = self.reader.bound_within(until, inbox.room(id));
        let is_all = bound == until;
        // Only a broken kernel leads to an error: the ring is frozen, and its programs only
        // increase the counter.
        let Err(error) = self.deliver_with_skips(bound, inbox) else {
            if !is_all {
                inbox.leave(id);
            } else if self.detached.drain(..).next().is_some() {
                // Nobody counts the events since: see `GapCause::Budget`.
                self.refuse(1, GapCause::Budget, inbox);
            }
            return Ok(is_all);
        };
        self.damaged = true;
        inbox.gap(id, self.next_sequence(), 0, GapCause::Corrupt);
        inbox.close(id);
        let label = self.descriptor.label();
        Err(SourceError(format!("{label}: {error}")))
    }

    /// Events of this stream that a budget has kept from being written.
    pub(crate) fn skipped(&self) -> u64 {
        self.reader.skips().count
    }

    /// Delivers the elements before `bound`, with the skipped events in their places.
    fn deliver_with_skips(&mut self, bound: u64, inbox: &mut dyn Inbox) -> Result<(), LayoutError> {
        // The bound was loaded before: what was skipped before its elements is seen here.
        let skips = self.reader.skips();
        let fresh = skips.since(&self.skips);
        let until = fresh.at.min(bound);
        match fresh.runs {
            1 if self.reader.position() < until => self.deliver(until, inbox)?,
            0 | 1 => {}
            // Runs lie between these elements, in places that are not known.
            _ => self.deliver_apart(until, inbox)?,
        }
        // If there are elements before the last run that are not delivered yet, a later poll
        // reports it.
        if fresh.runs > 0 && fresh.at <= bound {
            self.skips = skips;
            self.refuse(fresh.count, GapCause::Budget, inbox);
        }
        self.deliver(bound, inbox)
    }

    /// Delivers the elements before `end`.
    fn deliver(&mut self, end: u64, inbox: &mut dyn Inbox) -> Result<(), LayoutError> {
        let id = self.descriptor.id;
        let (refused, clamp) = (&mut self.refused, &mut self.clamp);
        let (resumptions, detached) = (&mut self.resumptions, &mut self.detached);
        let result = self.reader.poll_until(end, |found| match found {
            ReadItem::Element(element) => {
                let stamp = element.stamp.as_raw();
                while detached.front().is_some_and(|at| *at <= stamp) {
                    detached.pop_front();
                    inbox.gap(id, element.sequence + *refused, 1, GapCause::Budget);
                    *refused += 1;
                }
                let sequence = element.sequence + *refused;
                match clamp.clamp(stamp) {
                    Some(time) => {
                        let payload = resumptions.mark(stamp, element.payload);
                        inbox.element(id, sequence, time, &payload);
                    }
                    None => inbox.gap(id, sequence, 1, GapCause::Corrupt),
                }
            }
            ReadItem::Missed { first, count } => {
                inbox.gap(id, first + *refused, count, GapCause::Overwritten);
            }
        });
        result.map(drop)
    }

    /// Delivers the elements before `end` with a gap before each. What is overwritten is one gap
    /// anyway, so there are at most as many gaps as elements in the ring.
    fn deliver_apart(&mut self, end: u64, inbox: &mut dyn Inbox) -> Result<(), LayoutError> {
        let capacity = self.reader.capacity();
        let oldest = self.reader.published().saturating_sub(capacity);
        if self.reader.position() < oldest.min(end) {
            self.deliver(oldest.min(end), inbox)?;
        }
        while self.reader.position() < end {
            let position = self.reader.position();
            inbox.gap(
                self.descriptor.id,
                self.next_sequence(),
                0,
                GapCause::Budget,
            );
            self.deliver(position + 1, inbox)?;
            if self.reader.position() == position {
                break;
            }
        }
        Ok(())
    }

    fn next_sequence(&self) -> u64 {
        self.reader.position() + self.refused
    }

    /// Reports refused elements at the present position.
    pub(crate) fn refuse(&mut self, count: u64, cause: GapCause, inbox: &mut dyn Inbox) {
        if count > 0 && !self.damaged {
            inbox.gap(self.descriptor.id, self.next_sequence(), count, cause);
            self.refused += count;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsFd;

    use overhear_event::{StreamId, Timestamp};
    use overhear_stream::{Geometry, COUNTER_OFFSET, HEADER_SIZE};
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    use super::{layout, KernelStream, MappedWords};
    use super::{Arc, GapCause, Hook, Inbox, Ordering, Reader, StreamDescriptor, Words};
    use crate::mapping::{Access, Mapping};
    use crate::streams::Numbering;

    #[derive(Debug, PartialEq, Eq)]
    pub(crate) enum Delivered {
        Element(u64),
        Gap(u64, u64, GapCause),
        Closed,
    }

    #[derive(Default)]
    pub(crate) struct Log(pub(crate) Vec<Delivered>);

    impl Inbox for Log {
        fn open(&mut self, _: Arc<StreamDescriptor>) {}
        fn element(&mut self, _: StreamId, sequence: u64, _: Timestamp, _: &[u8]) {
            self.0.push(Delivered::Element(sequence));
        }
        fn gap(&mut self, _: StreamId, first: u64, missed: u64, cause: GapCause) {
            self.0.push(Delivered::Gap(first, missed, cause));
        }
        fn close(&mut self, _: StreamId) {
            self.0.push(Delivered::Closed);
        }
    }

    /// A ring of 8 wake-ups, and its memory as its programs see it.
    fn wakes() -> (KernelStream, MappedWords) {
        let geometry = Geometry::with_stride(24, 32, 8).unwrap();
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, geometry.bytes() as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), geometry.bytes(), Access::Write).unwrap();
        let part = || mapping.part(0, geometry.bytes());
        let numbering = Numbering::new(StreamId::from_raw(0), 1, 1);
        let feed = Hook::Wake.feed(8);
        let descriptor = numbering.describe(0, &feed, 0, 8);
        let reader = Reader::from_start(part(), geometry).unwrap();
        (KernelStream::new(descriptor, &feed, reader), part())
    }

    #[test]
    fn refused_elements_take_part_in_the_sequence() {
        let (mut stream, memory) = wakes();
        let store = |offset: usize, value| memory.word(offset / 8).store(value, Ordering::Relaxed);
        let mut log = Log::default();
        store(COUNTER_OFFSET, 2);
        stream.poll(2, &mut log).unwrap();
        store(layout::LOST_NESTED_OFFSET, 3);
        store(layout::LOST_INHERIT_OFFSET, 1);
        // An element with a time far before that of its predecessor is not delivered.
        store(HEADER_SIZE + 3 * 32, 5_000_000_000);
        store(COUNTER_OFFSET, 5);
        stream.poll(5, &mut log).unwrap();
        store(COUNTER_OFFSET, 20);
        stream.poll(14, &mut log).unwrap();
        let expected = [
            Delivered::Element(0),
            Delivered::Element(1),
            Delivered::Gap(2, 3, GapCause::Nested),
            Delivered::Gap(5, 1, GapCause::Kernel),
            Delivered::Element(6),
            Delivered::Element(7),
            Delivered::Gap(8, 1, GapCause::Corrupt),
            Delivered::Gap(9, 8, GapCause::Overwritten),
            Delivered::Gap(17, 1, GapCause::Corrupt),
        ];
        assert_eq!(log.0, expected);
    }

    /// Accepts two elements in each poll.
    #[derive(Default)]
    struct Narrow {
        log: Log,
        left: u32,
    }

    impl Inbox for Narrow {
        fn open(&mut self, _: Arc<StreamDescriptor>) {}
        fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
            self.log.element(stream, sequence, time, payload);
        }
        fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
            self.log.gap(stream, first, missed, cause);
        }
        fn room(&mut self, _: StreamId) -> u64 {
            2
        }
        fn leave(&mut self, _: StreamId) {
            self.left += 1;
        }
        fn close(&mut self, stream: StreamId) {
            self.log.close(stream);
        }
    }

    #[test]
    fn elements_without_room_come_with_next_polls() {
        let (mut stream, memory) = wakes();
        memory.word(COUNTER_OFFSET / 8).store(5, Ordering::Relaxed);
        let mut inbox = Narrow::default();
        assert!(!stream.poll(5, &mut inbox).unwrap());
        assert_eq!((inbox.log.0.len(), inbox.left), (2, 1));
        assert!(!stream.poll(5, &mut inbox).unwrap());
        assert!(stream.poll(5, &mut inbox).unwrap());
        let expected: Vec<_> = (0..5).map(Delivered::Element).collect();
        assert_eq!((inbox.log.0, inbox.left), (expected, 2));
    }

    #[test]
    fn damaged_ring_ends_its_stream_once() {
        let (mut stream, memory) = wakes();
        let counter = memory.word(COUNTER_OFFSET / 8);
        counter.store(2, Ordering::Relaxed);
        let mut log = Log::default();
        stream.poll(2, &mut log).unwrap();
        counter.store(1, Ordering::Relaxed);
        let error = stream.poll(1, &mut log).unwrap_err();
        assert!(error.0.contains("went back"), "{error}");
        stream.poll(1, &mut log).unwrap();
        assert_eq!(
            log.0[2..],
            [Delivered::Gap(2, 0, GapCause::Corrupt), Delivered::Closed]
        );
    }
}
