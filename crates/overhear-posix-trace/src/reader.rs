// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader of an active stream: events in order, and what the standard reports around losses.
//!
//! The ring has user events and the system events of the controller. The reader adds those that are
//! known at reading only:
//!
//! - Events were overwritten or never finished: `OVERFLOW`, and `RESUME` before the next event.
//! - The stream had stopped because it was full: `STOP` (automatic) after its last event. It is empty
//!   then, goes on, and `START` follows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_event::{ClockId, Timestamp};
use overhear_stream::{
    KeptWords, LossCause, Next, RingConsumer, RingError, RingGeometry, WhenFull,
};

use crate::area::{Mapping, Slot};
use crate::clock::{monotonic_now, StampConverter};
use crate::event::FLAG_TRUNCATED;
use crate::{EventId, EventSet, TraceEvent, Truncation};

/// How long a reader waits for a writer that has a position and does not publish its event: it is
/// preempted, stopped or dead.
const LATE: Duration = Duration::from_millis(100);
/// How often conversions of stamps are brought up to date, in events.
const REFRESH: u32 = 256;

/// What a step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An event: [`Reader::current`].
    Event,
    /// Nothing.
    Empty,
    /// An event that its writer has not finished.
    Late,
}

/// Why events of a stream are lost, counted by the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Replaced by newer events.
    pub(crate) overwritten: u64,
    /// Not finished by their writers.
    pub(crate) late: u64,
    /// Not readable, because the memory was damaged.
    pub(crate) damaged: u64,
}

impl Losses {
    pub(crate) const fn total(self) -> u64 {
        self.overwritten + self.late + self.damaged
    }
}

/// An event of which everything but the data is known.
#[derive(Clone, Copy, Debug)]
struct Head {
    time: Timestamp,
    event: EventId,
    pid: u32,
    tid: u32,
    thread: u64,
    address: u64,
    truncation: Truncation,
    size: usize,
}

/// A system event that the reader adds.
#[derive(Debug)]
struct Added {
    event: EventId,
    time: Timestamp,
    data: Vec<u8>,
}

/// The reader.
#[derive(Debug)]
pub(crate) struct Reader {
    consumer: RingConsumer<KeptWords<Arc<Mapping>>>,
    when_full: WhenFull,
    geometry: RingGeometry,
    clock: ClockId,
    converter: StampConverter,
    until_refresh: u32,
    target: u32,
    /// The event types that are not reported.
    filter: EventSet,
    /// The time of the event that was reported last.
    last: Timestamp,
    added: VecDeque<Added>,
    /// The event in the buffer comes after the added ones.
    held: Option<Head>,
    current: Option<Head>,
    buffer: Vec<u8>,
    added_data: Vec<u8>,
    current_is_added: bool,
    in_overflow: bool,
    late_since: Option<(u64, Instant)>,
    losses: Losses,
}

impl Reader {
    /// A reader from the beginning of a ring.
    pub(crate) fn new(
        words: KeptWords<Arc<Mapping>>,
        geometry: RingGeometry,
        when_full: WhenFull,
        clock: ClockId,
        target: u32,
    ) -> Result<Self, RingError> {
        Ok(Self {
            consumer: RingConsumer::new(words, geometry, when_full)?,
            when_full,
            geometry,
            clock,
            converter: StampConverter::default(),
            until_refresh: 0,
            target,
            filter: EventSet::EMPTY,
            last: Timestamp::ZERO,
            added: VecDeque::new(),
            held: None,
            current: None,
            buffer: vec![0; geometry.data_bytes() as usize],
            added_data: Vec::new(),
            current_is_added: false,
            in_overflow: false,
            late_since: None,
            losses: Losses::default(),
        })
    }

    /// Goes to the next event.
    pub(crate) fn step(&mut self, slot: Slot<'_>) -> Step {
        loop {
            if let Some(added) = self.added.pop_front() {
                if self.filter.contains(added.event) {
                    continue;
                }
                self.take_added(added);
                return Step::Event;
            }
            if let Some(head) = self.held.take() {
                return self.take(head);
            }
            match self.read() {
                Found::Event(head) if self.in_overflow => {
                    self.in_overflow = false;
                    self.held = Some(head);
                    self.add(EventId::RESUME, head.time, Vec::new());
                }
                Found::Event(head) => return self.take(head),
                Found::Lost => {
                    if !self.in_overflow {
                        self.in_overflow = true;
                        self.add(EventId::OVERFLOW, self.last, Vec::new());
                    }
                }
                Found::Late => return Step::Late,
                Found::Empty if self.when_full == WhenFull::Refuse && slot.is_stopped() => {
                    self.restart(slot);
                }
                Found::Empty => return Step::Empty,
            }
        }
    }

    /// The event of the last step, if it found one.
    pub(crate) fn current(&self) -> Option<TraceEvent<'_>> {
        let head = self.current?;
        let data = match self.current_is_added {
            true => &self.added_data,
            false => &self.buffer,
        };
        Some(TraceEvent {
            time: head.time,
            event: head.event,
            pid: head.pid,
            tid: head.tid,
            thread: head.thread,
            address: head.address,
            truncation: head.truncation,
            data: &data[..head.size],
        })
    }

    #[inline]
    fn read(&mut self) -> Found {
        match self.consumer.next(&mut self.buffer) {
            Next::Event { record, .. } => {
                let Some(event) = EventId::from_raw(record.event.into()) else {
                    self.losses.damaged += 1;
                    return Found::Lost;
                };
                if self.until_refresh == 0 {
                    self.until_refresh = REFRESH;
                    self.converter.refresh(self.clock);
                }
                self.until_refresh -= 1;
                self.late_since = None;
                let truncation = match record.flags & FLAG_TRUNCATED {
                    0 => Truncation::None,
                    _ => Truncation::Record,
                };
                let time = self.converter.convert(self.clock, record.stamp.as_raw());
                Found::Event(Head {
                    // Conversions that are refined in between could go back a little.
                    time: time.max(self.last),
                    event,
                    pid: record.pid,
                    tid: record.tid,
                    thread: record.thread,
                    address: record.address,
                    truncation,
                    size: record.data.len(),
                })
            }
            Next::Lost { missed, cause, .. } => {
                match cause {
                    LossCause::Overwritten => self.losses.overwritten += missed,
                    LossCause::Overtaken => self.losses.late += missed,
                    LossCause::Damaged => self.losses.damaged += missed.max(1),
                }
                Found::Lost
            }
            Next::Pending { position } => self.wait_for(position),
            Next::Empty => {
                // What comes next is newer than the conversions.
                self.until_refresh = 0;
                Found::Empty
            }
        }
    }

    /// The event at a position is not finished.
    fn wait_for(&mut self, position: u64) -> Found {
        let since = match self.late_since {
            Some((at, since)) if at == position => since,
            _ => {
                let now = Instant::now();
                self.late_since = Some((position, now));
                now
            }
        };
        if since.elapsed() < LATE || !self.consumer.abandon(position) {
            return Found::Late;
        }
        self.late_since = None;
        self.losses.late += 1;
        Found::Lost
    }

    fn take(&mut self, head: Head) -> Step {
        self.last = self.last.max(head.time);
        self.current = Some(head);
        self.current_is_added = false;
        Step::Event
    }

    fn take_added(&mut self, added: Added) {
        let time = added.time.max(self.last);
        self.last = time;
        self.added_data = added.data;
        self.current_is_added = true;
        self.current = Some(Head {
            time,
            event: added.event,
            pid: self.target,
            tid: 0,
            thread: 0,
            address: 0,
            truncation: Truncation::None,
            size: self.added_data.len(),
        });
    }

    fn add(&mut self, event: EventId, time: Timestamp, data: Vec<u8>) {
        self.added.push_back(Added { event, time, data });
    }

    /// All events of a stream that stopped because it was full are read: it goes on.
    fn restart(&mut self, slot: Slot<'_>) {
        self.converter.refresh(self.clock);
        let now = monotonic_now();
        let stopped_untrusted = self
            .converter
            .convert(self.clock, slot.stop_stamp_untrusted());
        let stopped = stopped_untrusted.clamp(self.last, now.max(self.last));
        self.add(EventId::STOP, stopped, 1_i32.to_ne_bytes().to_vec());
        slot.restart();
        self.add(EventId::START, now, filter_bytes(self.filter).to_vec());
    }

    /// Changes the event types that are not reported. Those in the ring are.
    pub(crate) fn set_filter(&mut self, filter: EventSet) {
        self.filter = filter;
    }

    /// Discards everything.
    pub(crate) fn clear(&mut self, slot: Slot<'_>) {
        self.consumer.clear();
        self.added.clear();
        self.held = None;
        self.current = None;
        self.in_overflow = false;
        self.late_since = None;
        slot.restart();
    }

    /// Events lost so far, those included that a lapped reader will not find.
    pub(crate) fn losses(&self) -> Losses {
        let mut losses = self.losses;
        if self.when_full == WhenFull::Overwrite {
            let unread = self.consumer.unread();
            losses.overwritten += unread.saturating_sub(self.geometry.capacity());
        }
        losses
    }

    /// Whether no slot is free for the next event.
    pub(crate) fn is_full(&self) -> bool {
        self.when_full == WhenFull::Refuse && self.consumer.unread() >= self.geometry.capacity()
    }

    /// Events that are not read.
    pub(crate) fn unread(&self) -> u64 {
        self.consumer.unread()
    }

    /// Position of the next event.
    pub(crate) fn position(&self) -> u64 {
        self.consumer.position()
    }
}

enum Found {
    Event(Head),
    Lost,
    Late,
    Empty,
}

/// A set of event types as data of an event.
pub(crate) fn filter_bytes(set: EventSet) -> [u8; 40] {
    let mut bytes = [0; 40];
    for (part, word) in bytes.chunks_exact_mut(8).zip(set.words()) {
        part.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
