// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes events of a ring into events with a time.

use std::time::{Duration, Instant};

use overhear_event::{ClockId, Timestamp};
use overhear_stream::EventRecord;

use crate::clock::{monotonic_now, StampConverter};
use crate::event::FLAG_TRUNCATED;
use crate::{EventId, TraceEvent, Truncation};

/// Number of events after which the conversion of stamps is refreshed.
const REFRESH_EVENTS: u32 = 256;
/// Longest wait of a reader for a writer that has a position and does not publish its event: the
/// writer is preempted, stopped or dead.
const MAX_WRITER_WAIT: Duration = Duration::from_millis(100);

/// An event without its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) time: Timestamp,
    pub(crate) event: EventId,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) thread: u64,
    pub(crate) address: u64,
    pub(crate) truncation: Truncation,
    pub(crate) size: usize,
}

impl Head {
    /// A system event that the reader of a stream adds.
    pub(crate) const fn added(event: EventId, time: Timestamp, pid: u32, size: usize) -> Self {
        Self {
            time,
            event,
            pid,
            tid: 0,
            thread: 0,
            address: 0,
            truncation: Truncation::None,
            size,
        }
    }

    /// The event with its data, which is at the beginning of `buffer`.
    pub(crate) fn with_data(self, buffer: &[u8]) -> TraceEvent<'_> {
        TraceEvent {
            time: self.time,
            event: self.event,
            pid: self.pid,
            tid: self.tid,
            thread: self.thread,
            address: self.address,
            truncation: self.truncation,
            data: &buffer[..self.size],
        }
    }
}

/// Decodes the events of one ring, in their order.
#[derive(Debug)]
pub(crate) struct Decoder {
    clock: ClockId,
    converter: StampConverter,
    until_refresh: u32,
    last: Timestamp,
    late_since: Option<(u64, Instant)>,
}

impl Decoder {
    /// For stamps of a clock.
    pub(crate) fn new(clock: ClockId) -> Self {
        Self {
            clock,
            converter: StampConverter::default(),
            until_refresh: 0,
            last: Timestamp::ZERO,
            late_since: None,
        }
    }

    /// The next event; `None` if its type is out of range.
    #[inline]
    pub(crate) fn decode(&mut self, record: &EventRecord<'_>) -> Option<Head> {
        self.late_since = None;
        let event = EventId::from_raw(record.event.into())?;
        if self.until_refresh == 0 {
            self.until_refresh = REFRESH_EVENTS;
            self.converter.refresh(self.clock);
        }
        self.until_refresh -= 1;
        let time = self.converter.convert(self.clock, record.stamp.as_raw());
        Some(Head {
            time: self.advance(time),
            event,
            pid: record.pid,
            tid: record.tid,
            thread: record.thread,
            address: record.address,
            truncation: match record.flags & FLAG_TRUNCATED {
                0 => Truncation::None,
                _ => Truncation::Record,
            },
            size: record.data.len(),
        })
    }

    /// A time that is not earlier than those of previous events: a refined conversion could go back
    /// a little, and damaged stamps have any value.
    #[inline]
    pub(crate) fn advance(&mut self, time: Timestamp) -> Timestamp {
        self.last = self.last.max(time);
        self.last
    }

    /// The time of the event that was decoded last.
    pub(crate) const fn last(&self) -> Timestamp {
        self.last
    }

    /// The time of a stamp that comes from shared memory: between the last event and now.
    pub(crate) fn time_of_untrusted(&mut self, stamp: u64) -> Timestamp {
        self.converter.refresh(self.clock);
        let latest = monotonic_now().max(self.last);
        self.converter
            .convert(self.clock, stamp)
            .clamp(self.last, latest)
    }

    /// The ring is empty: the next event is newer than the conversions.
    pub(crate) fn is_empty(&mut self) {
        self.until_refresh = 0;
    }

    /// The event at a position is not finished; whether its writer is to be given up.
    pub(crate) fn is_too_late(&mut self, position: u64) -> bool {
        match self.late_since {
            Some((at, since)) if at == position => since.elapsed() >= MAX_WRITER_WAIT,
            _ => {
                self.late_since = Some((position, Instant::now()));
                false
            }
        }
    }
}
