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

use overhear_event::{ClockId, GapCause, Timestamp};
use overhear_stream::{
    KeptWords, LossCause, Next, RingConsumer, RingError, RingGeometry, WhenFull,
};

use crate::area::{Mapping, Slot};
use crate::clock::monotonic_now;
use crate::decoder::{Decoder, Head};
use crate::flush::gap_cause;
use crate::{EventId, EventSet, TraceEvent};

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

/// Events that were lost between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) missed: u64,
    pub(crate) cause: GapCause,
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
    decoder: Decoder,
    target: u32,
    /// The event types that are not reported.
    filter: EventSet,
    added: VecDeque<Added>,
    /// The event in the buffer comes after the added ones.
    held: Option<Head>,
    current: Option<Head>,
    buffer: Vec<u8>,
    added_data: Vec<u8>,
    current_is_added: bool,
    /// The loss that the next event will end.
    overflow: Option<Loss>,
    /// The loss that ended last.
    ended_loss: Option<Loss>,
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
            decoder: Decoder::new(clock),
            target,
            filter: EventSet::EMPTY,
            added: VecDeque::new(),
            held: None,
            current: None,
            buffer: vec![0; geometry.data_bytes() as usize],
            added_data: Vec::new(),
            current_is_added: false,
            overflow: None,
            ended_loss: None,
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
                Found::Event(head) => {
                    let Some(loss) = self.overflow.take() else {
                        return self.take(head);
                    };
                    let to = head.time;
                    self.ended_loss = Some(Loss { to, ..loss });
                    self.held = Some(head);
                    self.add(EventId::RESUME, to, Vec::new());
                }
                Found::Lost(missed, cause) => self.lose(missed, cause),
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
        Some(match self.current_is_added {
            true => head.with_data(&self.added_data),
            false => head.with_data(&self.buffer),
        })
    }

    #[inline]
    fn read(&mut self) -> Found {
        match self.consumer.next(&mut self.buffer) {
            Next::Event { record, .. } => match self.decoder.decode(&record) {
                Some(head) => Found::Event(head),
                None => {
                    self.losses.damaged += 1;
                    Found::Lost(1, GapCause::Corrupt)
                }
            },
            Next::Lost { missed, cause, .. } => {
                match cause {
                    LossCause::Overwritten => self.losses.overwritten += missed,
                    LossCause::Damaged => self.losses.damaged += missed.max(1),
                }
                Found::Lost(missed.max(1), gap_cause(cause))
            }
            Next::Pending { position } => self.wait_for(position),
            Next::Empty => {
                self.decoder.is_empty();
                Found::Empty
            }
        }
    }

    /// The event at a position is not finished.
    fn wait_for(&mut self, position: u64) -> Found {
        if !self.decoder.is_too_late(position) || !self.consumer.abandon(position) {
            return Found::Late;
        }
        self.losses.late += 1;
        Found::Lost(1, GapCause::Late)
    }

    fn lose(&mut self, missed: u64, cause: GapCause) {
        let last = self.decoder.last();
        match &mut self.overflow {
            Some(loss) => loss.missed += missed,
            None => {
                self.overflow = Some(Loss {
                    from: last,
                    to: last,
                    missed,
                    cause,
                });
                self.add(EventId::OVERFLOW, last, Vec::new());
            }
        }
    }

    fn take(&mut self, head: Head) -> Step {
        self.current = Some(head);
        self.current_is_added = false;
        Step::Event
    }

    fn take_added(&mut self, added: Added) {
        let time = self.decoder.advance(added.time);
        self.added_data = added.data;
        self.current_is_added = true;
        let size = self.added_data.len();
        self.current = Some(Head::added(added.event, time, self.target, size));
    }

    fn add(&mut self, event: EventId, time: Timestamp, data: Vec<u8>) {
        self.added.push_back(Added { event, time, data });
    }

    /// All events of a stream that stopped because it was full are read: it goes on.
    fn restart(&mut self, slot: Slot<'_>) {
        let stopped = self.decoder.time_of_untrusted(slot.stop_stamp_untrusted());
        self.add(EventId::STOP, stopped, 1_i32.to_ne_bytes().to_vec());
        slot.restart();
        let now = monotonic_now();
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
        self.overflow = None;
        self.ended_loss = None;
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

    /// Whether all events before a position are taken.
    pub(crate) fn is_behind(&self, position: u64) -> bool {
        self.added.is_empty() && self.held.is_none() && self.consumer.position() >= position
    }

    /// The loss before the current event, if that is the `RESUME` after one: once.
    pub(crate) fn take_loss(&mut self) -> Option<Loss> {
        self.ended_loss.take()
    }
}

enum Found {
    Event(Head),
    Lost(u64, GapCause),
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
