// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking at a trace area from outside: its streams, and their events without taking them away.
//!
//! An observer maps the area read-only. It changes nothing, so neither the traced processes nor the
//! controllers notice it; and it trusts nothing, so a damaged area costs it what it shows.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use overhear_event::{ClockId, GapCause, Timestamp};
use overhear_stream::{KeptWords, Next, RingGeometry, RingObserver};

use crate::area::{Area, Mapping, SlotConfig, SlotState, SLOTS};
use crate::decoder::{Decoder, Head};
use crate::flush::gap_cause;
use crate::local::geometry;
use crate::{EventId, EventSet, Inheritance, StreamFullPolicy, TraceError, TraceEvent};

/// An area of other processes, mapped read-only.
#[derive(Debug)]
pub struct AreaObserver {
    area: Arc<Area>,
}

/// What an area says about one of its streams. All of it is information: the processes of the area
/// can write anything there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedStream {
    /// Its place in the area.
    pub slot: usize,
    /// A number that differs between the streams of a place.
    pub generation: u32,
    /// The attribute trace-name.
    pub name: Vec<u8>,
    /// The process that it was created for.
    pub target: u32,
    /// The processes that it traces: the target, and children that inherited it.
    pub traced: Vec<u32>,
    /// The process that controls it.
    pub controller: u32,
    /// Events are recorded.
    pub running: bool,
    /// It stopped because it was full.
    pub full: bool,
    /// The attribute stream-full-policy.
    pub policy: StreamFullPolicy,
    /// The attribute inheritance.
    pub inheritance: Inheritance,
    /// Its controller flushes it to a log.
    pub has_log: bool,
    /// The event types that it does not record.
    pub filter: EventSet,
    /// Most bytes of data of a user event.
    pub max_data_size: usize,
    /// Events that it has room for.
    pub capacity: usize,
    /// Events that were recorded.
    pub written: u64,
    /// Events that found no room. Events that were overwritten unread are not among them.
    pub lost_full: u64,
    /// When it was created: nanoseconds of `CLOCK_REALTIME`.
    pub creation_ns: u64,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the creation.
    pub realtime_offset_ns: i64,
    config: u64,
}

impl AreaObserver {
    /// Maps an area.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the file is no area of this version, `ENOMEM`.
    pub fn open(file: OwnedFd) -> Result<Self, TraceError> {
        let area = Arc::new(Area::open(file, false)?);
        Ok(Self { area })
    }

    /// The processes that share the area. Some may have ended.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.area
            .members()
            .filter_map(|member| member.pid())
            .collect()
    }

    /// The active streams.
    #[must_use]
    pub fn streams(&self) -> Vec<ObservedStream> {
        (0..SLOTS).filter_map(|slot| self.stream(slot)).collect()
    }

    fn stream(&self, index: usize) -> Option<ObservedStream> {
        let slot = self.area.slot(index);
        let config = slot.config();
        let policy = config.policy()?;
        let ring = self.ring(index, config).ok()?;
        let owner = slot.owner();
        let members = self.area.members();
        let traced = members.filter(|member| member.traces(index));
        let stream = ObservedStream {
            slot: index,
            generation: config.generation(),
            name: slot.name(),
            target: owner.target,
            traced: traced.filter_map(|member| member.pid()).collect(),
            controller: owner.controller,
            running: slot.state() == SlotState::Running && !slot.is_stopped(),
            full: slot.is_stopped(),
            policy,
            inheritance: match slot.is_inherited() {
                true => Inheritance::Inherited,
                false => Inheritance::CloseForChild,
            },
            has_log: owner.has_log,
            filter: slot.filter(),
            max_data_size: config.max_data_size(),
            capacity: config.capacity(),
            written: RingObserver::from_now(ring.0, ring.1).ok()?.position(),
            lost_full: slot.lost_full(),
            creation_ns: slot.creation_ns(),
            realtime_offset_ns: owner.realtime_offset_ns,
            config: config.as_raw(),
        };
        slot.is_same(config).then_some(stream)
    }

    fn ring(
        &self,
        index: usize,
        config: SlotConfig,
    ) -> Result<(KeptWords<Arc<Mapping>>, RingGeometry), TraceError> {
        let damaged = || TraceError::invalid("the trace area is damaged");
        let shape = geometry(config).ok_or_else(damaged)?;
        let memory = self.area.map_ring(index, shape.words() * 8)?;
        Ok((memory.words(), shape))
    }

    /// The name of an event type.
    #[must_use]
    pub fn event_name(&self, event: EventId) -> Option<Vec<u8>> {
        self.area.event_name(event)
    }

    /// Reads a stream from its oldest event on.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream is not there any more, `ENOMEM`.
    pub fn observe(&self, stream: &ObservedStream) -> Result<StreamObserver, TraceError> {
        let config = SlotConfig::from_raw(stream.config);
        if stream.slot >= SLOTS || !self.area.slot(stream.slot).is_same(config) {
            return Err(TraceError::invalid("the stream was shut down"));
        }
        let (words, shape) = self.ring(stream.slot, config)?;
        let observer = RingObserver::from_oldest(words, shape);
        let damaged = |error| TraceError::new(libc::EINVAL, error);
        Ok(StreamObserver {
            area: Arc::clone(&self.area),
            index: stream.slot,
            config,
            observer: observer.map_err(damaged)?,
            decoder: Decoder::new(self.area.clock().unwrap_or(ClockId::Monotonic)),
            buffer: vec![0; shape.data_bytes() as usize],
            lost: None,
            held: None,
        })
    }
}

/// What an observer finds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<'a> {
    /// An event.
    Event(TraceEvent<'a>),
    /// Events that are not there any more.
    Lost {
        /// The time of the event before them.
        from: Timestamp,
        /// The time of the event after them.
        to: Timestamp,
        /// Their number.
        missed: u64,
        /// Why.
        cause: GapCause,
    },
    /// Nothing yet.
    Empty,
    /// The stream was shut down.
    Ended,
}

/// Reads one stream and changes nothing.
#[derive(Debug)]
pub struct StreamObserver {
    area: Arc<Area>,
    index: usize,
    config: SlotConfig,
    observer: RingObserver<KeptWords<Arc<Mapping>>>,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// A loss that the next event will end: its beginning, number and cause.
    lost: Option<(Timestamp, u64, GapCause)>,
    /// The event in the buffer comes after a loss.
    held: Option<Head>,
}

impl StreamObserver {
    /// The next event, or what is in its place.
    pub fn next_event(&mut self) -> Observed<'_> {
        if let Some(head) = self.held.take() {
            return Observed::Event(head.with_data(&self.buffer));
        }
        loop {
            let next = self.observer.next(&mut self.buffer);
            let found = match next {
                Next::Event { record, .. } => self.decoder.decode(&record).map(Ok),
                Next::Lost { missed, cause, .. } => Some(Err((missed.max(1), gap_cause(cause)))),
                Next::Pending { position } => {
                    if !self.decoder.is_too_late(position) || !self.observer.abandon(position) {
                        return Observed::Empty;
                    }
                    Some(Err((1, GapCause::Late)))
                }
                Next::Empty => {
                    self.decoder.is_empty();
                    return match self.area.slot(self.index).is_same(self.config) {
                        true => Observed::Empty,
                        false => Observed::Ended,
                    };
                }
            };
            if !self.area.slot(self.index).is_same(self.config) {
                return Observed::Ended;
            }
            match found {
                Some(Ok(head)) => {
                    let Some((from, missed, cause)) = self.lost.take() else {
                        return Observed::Event(head.with_data(&self.buffer));
                    };
                    self.held = Some(head);
                    let to = head.time;
                    return Observed::Lost {
                        from,
                        to,
                        missed,
                        cause,
                    };
                }
                Some(Err((missed, cause))) => self.lose(missed, cause),
                None => self.lose(1, GapCause::Corrupt),
            }
        }
    }

    fn lose(&mut self, missed: u64, cause: GapCause) {
        let (from, before, first) = self.lost.unwrap_or((self.decoder.last(), 0, cause));
        self.lost = Some((from, before + missed, first));
    }

    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the creation of the stream.
    #[must_use]
    pub fn realtime_offset_ns(&self) -> i64 {
        self.area.slot(self.index).owner().realtime_offset_ns
    }

    /// The name of an event type.
    #[must_use]
    pub fn event_name(&self, event: EventId) -> Option<Vec<u8>> {
        self.area.event_name(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{open_event_type, process, record, ActiveStream, Attributes, Wait};

    fn observer() -> AreaObserver {
        let file = process::own()
            .unwrap()
            .area()
            .file()
            .try_clone_to_owned()
            .unwrap();
        AreaObserver::open(file).unwrap()
    }

    #[test]
    fn observer_sees_what_the_reader_still_gets() {
        let event = open_event_type(b"observed").unwrap();
        let attributes = Attributes {
            name: b"watched".to_vec(),
            stream_size: 16 * 128,
            ..Attributes::default()
        };
        let stream = ActiveStream::create(0, &attributes).unwrap();
        stream.start().unwrap();
        for number in 0_u64..40 {
            record(event, &number.to_ne_bytes());
        }
        let observer = observer();
        let streams = observer.streams();
        let seen = streams.iter().find(|seen| seen.name == b"watched").unwrap();
        assert_eq!(
            (seen.target, seen.controller),
            (std::process::id(), std::process::id())
        );
        assert_eq!(seen.traced, [std::process::id()]);
        // Other tests of this process write into this stream, too.
        assert!(seen.running && !seen.full && seen.capacity == 16 && seen.written >= 41);

        let mut reader = observer.observe(seen).unwrap();
        let mut numbers = Vec::new();
        while let Observed::Event(found) = reader.next_event() {
            if found.event == event {
                numbers.push(u64::from_ne_bytes(found.data.try_into().unwrap()));
            }
        }
        assert_eq!(numbers.last(), Some(&39));
        assert_eq!(
            observer.event_name(event).as_deref(),
            Some(&b"observed"[..])
        );
        // The reader still has what the observer saw.
        let mut last = None;
        while let Some(found) = stream
            .next_event(Wait::Try, |next| (next.event, next.data.to_vec()))
            .unwrap()
        {
            if found.0 == event {
                last = Some(found.1);
            }
        }
        assert_eq!(last, Some(39_u64.to_ne_bytes().to_vec()));
        drop(stream);
        assert_eq!(reader.next_event(), Observed::Ended);
        assert!(observer.observe(seen).is_err());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        /// Whatever is in an area, an observer neither panics nor reads for ever.
        #[test]
        fn damaged_areas_are_observed(
            damage in proptest::collection::vec((0_usize..17_000, proptest::prelude::any::<u64>()), 0..600),
            capacity in 0_u64..32,
            policy in 0_u64..8,
            ring in proptest::collection::vec(proptest::prelude::any::<u64>(), 0..512),
        ) {
            use crate::area::tests::{forged, head, SIZE_SEALS};
            use crate::area::FILE_BYTES;
            let mut words = vec![0; 17_000];
            for (at, word) in damage {
                words[at] = word;
            }
            words[..3].copy_from_slice(&head());
            // The first slot is more likely to be a stream than arbitrary words are.
            words[512] = 80 | capacity << 32 | policy << 37;
            let file = forged(&words, FILE_BYTES, SIZE_SEALS);
            let bytes: Vec<u8> = ring.iter().flat_map(|word| word.to_ne_bytes()).collect();
            rustix::io::pwrite(&file, &bytes, 256 << 10).unwrap();
            let observer = AreaObserver::open(file).unwrap();
            for stream in observer.streams() {
                let mut reader = observer.observe(&stream).unwrap();
                for _ in 0..200 {
                    if let Observed::Event(event) = reader.next_event() {
                        assert!(event.data.len() <= stream.max_data_size.max(80));
                        let _ = observer.event_name(event.event);
                    }
                }
            }
            let _ = observer.processes();
        }
    }
}
