// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader of an active stream: events in order, and the system events around losses.
//!
//! The ring has user events and the system events of the controller. The reader adds those that are
//! determined at reading only:
//!
//! - Events were overwritten or never finished: `OVERFLOW`, and `RESUME` before the next event.
//! - Events of the kernel, in the order of time ([`MergedEvents`]).
//! - The stream had stopped because it was full: `STOP` (automatic) after its last event. It is
//!   empty then, starts again, and `START` follows.

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
use crate::kernel::{KernelRecorder, MergedEvents, MergedItem};
use crate::{EventId, EventTypeSet, LostEvents, TraceEvent};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An event: [`Reader::current`].
    Event,
    /// Nothing.
    Empty,
    /// An event that its writer has not finished.
    Late,
}

/// Numbers of lost events by cause, counted by the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Replaced by newer events.
    pub(crate) overwritten: u64,
    /// Not finished by their writers.
    pub(crate) late: u64,
    /// Not readable, because the memory was damaged.
    pub(crate) damaged: u64,
    /// Of the kernel.
    pub(crate) kernel: u64,
}

impl Losses {
    pub(crate) const fn total(self) -> u64 {
        self.overwritten + self.late + self.damaged + self.kernel
    }
}

/// A system event that the reader adds.
#[derive(Debug)]
struct Added {
    event: EventId,
    time: Timestamp,
    data: Vec<u8>,
}

/// The place of an event's data.
#[derive(Clone, Copy, Debug)]
enum Place {
    Ring,
    Added,
    Kernel,
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
    filter: EventTypeSet,
    added: VecDeque<Added>,
    /// The event in the buffer comes after the added ones.
    held: Option<(Head, Place)>,
    current: Option<(Head, Place)>,
    buffer: Vec<u8>,
    added_data: Vec<u8>,
    /// Events of the kernel; `None` until the filter lets one through.
    kernel: Option<KernelRecorder>,
    kernel_data: Vec<u8>,
    /// The event in the buffer comes after the next one of the kernel, or may do so.
    from_ring: Option<Head>,
    /// All events of the kernel up to this time were polled.
    horizon: Timestamp,
    /// Time of the last event that was merged.
    merged: Timestamp,
    /// The loss that the next event will end.
    overflow: Option<LostEvents>,
    /// The loss that ended last.
    ended_loss: Option<LostEvents>,
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
            filter: EventTypeSet::EMPTY,
            added: VecDeque::new(),
            held: None,
            current: None,
            buffer: vec![0; geometry.data_bytes() as usize],
            added_data: Vec::new(),
            kernel: None,
            kernel_data: Vec::new(),
            from_ring: None,
            horizon: Timestamp::ZERO,
            merged: Timestamp::ZERO,
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
            if let Some((head, place)) = self.held.take() {
                return self.take(head, place);
            }
            match self.read_merged() {
                Found::Event(head, place) => {
                    let Some(loss) = self.overflow.take() else {
                        return self.take(head, place);
                    };
                    let to = head.time;
                    self.ended_loss = Some(LostEvents { to, ..loss });
                    self.held = Some((head, place));
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
        let (head, place) = self.current?;
        Some(match place {
            Place::Ring => head.with_data(&self.buffer),
            Place::Added => head.with_data(&self.added_data),
            Place::Kernel => head.with_data(&self.kernel_data),
        })
    }

    /// The next event of the ring and of the kernel, by their times.
    #[inline]
    fn read_merged(&mut self) -> Found {
        match self.kernel {
            None => self.read(),
            Some(_) => self.merge(),
        }
    }

    fn merge(&mut self) -> Found {
        let ring = match self.from_ring.take() {
            Some(head) => Found::Event(head, Place::Ring),
            None => self.read(),
        };
        let until = match &ring {
            Found::Event(head, _) => head.time,
            Found::Empty => Timestamp::MAX,
            Found::Lost(..) | Found::Late => return ring,
        };
        let Some(kernel) = &mut self.kernel else {
            return ring;
        };
        if until > self.horizon {
            self.horizon = kernel.poll(monotonic_now());
        }
        let is_next = kernel.next_time().is_some_and(|time| time <= until);
        match ring {
            Found::Event(head, _) if is_next => self.from_ring = Some(head),
            // An event of the kernel with an earlier time may still come.
            Found::Event(head, _) if until > self.horizon => {
                self.from_ring = Some(head);
                return Found::Late;
            }
            Found::Event(head, place) => {
                self.merged = self.merged.max(head.time);
                let time = self.merged;
                return Found::Event(Head { time, ..head }, place);
            }
            _ if is_next => {}
            nothing => return nothing,
        }
        self.read_kernel()
    }

    /// The next event of the kernel.
    fn read_kernel(&mut self) -> Found {
        match self.kernel.as_mut().and_then(MergedEvents::take) {
            Some(MergedItem::Event(event)) => {
                self.kernel_data.clear();
                self.kernel_data.extend_from_slice(event.data);
                self.merged = self.merged.max(event.time);
                let size = event.data.len();
                let head = Head {
                    tid: event.tid,
                    ..Head::added(event.event, self.merged, event.pid, size)
                };
                Found::Event(head, Place::Kernel)
            }
            Some(MergedItem::Lost(LostEvents { missed, cause, .. })) => {
                self.losses.kernel += missed.max(1);
                Found::Lost(missed.max(1), cause)
            }
            None => Found::Empty,
        }
    }

    #[inline]
    fn read(&mut self) -> Found {
        match self.consumer.next(&mut self.buffer) {
            Next::Event { record, .. } => match self.decoder.decode(&record) {
                Some(head) => Found::Event(head, Place::Ring),
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
        let last = match self.kernel {
            None => self.decoder.last(),
            Some(_) => self.merged,
        };
        match &mut self.overflow {
            Some(loss) => loss.missed += missed,
            None => {
                self.overflow = Some(LostEvents {
                    from: last,
                    to: last,
                    missed,
                    cause,
                });
                self.add(EventId::OVERFLOW, last, Vec::new());
            }
        }
    }

    fn take(&mut self, head: Head, place: Place) -> Step {
        self.current = Some((head, place));
        Step::Event
    }

    fn take_added(&mut self, added: Added) {
        let time = match self.kernel {
            None => self.decoder.advance(added.time),
            Some(_) => self.merged.max(added.time),
        };
        self.merged = time;
        self.added_data = added.data;
        let head = Head::added(added.event, time, self.target, self.added_data.len());
        self.current = Some((head, Place::Added));
    }

    fn add(&mut self, event: EventId, time: Timestamp, data: Vec<u8>) {
        self.added.push_back(Added { event, time, data });
    }

    /// All events of a stream that stopped because it was full are read: it starts again.
    fn restart(&mut self, slot: Slot<'_>) {
        let stopped = self.decoder.time_of_untrusted(slot.stop_stamp_untrusted());
        self.add(EventId::STOP, stopped, 1_i32.to_ne_bytes().to_vec());
        slot.restart();
        let now = monotonic_now();
        self.add(EventId::START, now, filter_bytes(self.filter).to_vec());
    }

    /// Changes the event types that are not reported. Those in the ring are.
    pub(crate) fn set_filter(&mut self, filter: EventTypeSet) {
        self.filter = filter;
    }

    /// The events of the kernel, if the filter has let one through.
    pub(crate) fn kernel(&mut self) -> Option<&mut KernelRecorder> {
        self.kernel.as_mut()
    }

    /// The same; `make` makes a recorder if there is none.
    pub(crate) fn kernel_or(
        &mut self,
        make: impl FnOnce() -> KernelRecorder,
    ) -> &mut KernelRecorder {
        self.kernel.get_or_insert_with(make)
    }

    /// Discards everything.
    pub(crate) fn clear(&mut self, slot: Slot<'_>) {
        self.consumer.clear();
        self.from_ring = None;
        if let Some(kernel) = &mut self.kernel {
            kernel.clear(monotonic_now());
        }
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
        let is_held = self.held.is_some() || self.from_ring.is_some();
        !is_held && self.added.is_empty() && self.consumer.position() >= position
    }

    /// The loss before the current event, if that is the `RESUME` after one: once.
    pub(crate) fn take_loss(&mut self) -> Option<LostEvents> {
        self.ended_loss.take()
    }
}

enum Found {
    Event(Head, Place),
    Lost(u64, GapCause),
    Late,
    Empty,
}

/// A set of event types as data of an event.
pub(crate) fn filter_bytes(set: EventTypeSet) -> [u8; 40] {
    let mut bytes = [0; 40];
    for (part, word) in bytes.chunks_exact_mut(8).zip(set.words()) {
        part.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
