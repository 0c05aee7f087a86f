// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a trace area of other processes: its streams, and their events without consuming them.
//!
//! An observer maps the area read-only. It changes nothing for the traced processes and the
//! controllers. It trusts nothing: a damaged area makes its own output wrong, and has no other
//! effect.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use overhear_event::{ClockId, GapCause};
use overhear_stream::{KeptWords, Next, RingGeometry, RingObserver};

use crate::area::{Area, Mapping, SlotConfig, SlotState, SLOTS};
use crate::decoder::{Decoder, Head};
use crate::flush::gap_cause;
use crate::local::geometry;
use crate::{
    EventId, EventTypeSet, Inheritance, LostEvents, StreamFullPolicy, TraceError, TraceEvent,
};

/// Events of one loss, at most: a greater number comes from a damaged area.
const MAX_MISSED: u64 = 1 << 44;

/// An area of other processes, mapped read-only.
#[derive(Debug)]
pub struct AreaObserver {
    area: Arc<Area>,
}

/// The data of an area about one of its streams. None of it is trusted: the processes of the area
/// can write anything there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedStream {
    /// Index of its slot in the area.
    pub slot: usize,
    /// A number that differs between the streams of a slot.
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
    pub filter: EventTypeSet,
    /// Maximum bytes of data of a user event.
    pub max_data_size: usize,
    /// Maximum number of events in its ring.
    pub capacity: usize,
    /// Number of recorded events.
    pub written: u64,
    /// Number of events that were lost because the stream was full. It does not contain overwritten
    /// events.
    pub lost_full: u64,
    /// When it was created: nanoseconds of `CLOCK_REALTIME`.
    pub creation_ns: u64,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the creation.
    pub realtime_offset_ns: i64,
    /// It was shut down. Its last events can still be read, for a while.
    pub ended: bool,
    config: u64,
}

/// The first event that an observer of a stream reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObserveFrom {
    /// The first one that was recorded: all that are gone are losses.
    Creation,
    /// The oldest one that is there.
    Oldest,
    /// The next one.
    Now,
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

    /// The active streams, and those that have ended a short time ago.
    #[must_use]
    pub fn streams(&self) -> Vec<ObservedStream> {
        self.streams_besides(|_, _| false)
    }

    /// As [`Self::streams`], without those whose slot and generation `is_known`.
    pub fn streams_besides(&self, is_known: impl Fn(usize, u32) -> bool) -> Vec<ObservedStream> {
        let stream = |index: usize| {
            let slot = self.area.slot(index);
            let (config, ended) = match slot.config() {
                active if active.policy().is_some() => (active, None),
                _ => {
                    let (config, written) = slot.ended_untrusted()?;
                    (config, Some(written))
                }
            };
            let is_known = is_known(index, config.generation());
            (!is_known).then(|| self.stream(index, config, ended))?
        };
        (0..SLOTS).filter_map(stream).collect()
    }

    fn stream(
        &self,
        index: usize,
        config: SlotConfig,
        ended: Option<u64>,
    ) -> Option<ObservedStream> {
        let slot = self.area.slot(index);
        let policy = config.policy()?;
        let ring = self.ring(index, config).ok()?;
        let owner = slot.owner();
        let members = self.area.members();
        let traced = members.filter(|member| member.traces(index));
        let is_active = ended.is_none();
        let stream = ObservedStream {
            slot: index,
            generation: config.generation(),
            name: slot.name(),
            target: owner.target,
            traced: traced.filter_map(|member| member.pid()).collect(),
            controller: owner.controller,
            running: is_active && slot.state() == SlotState::Running && !slot.is_stopped(),
            full: is_active && slot.is_stopped(),
            policy,
            inheritance: match slot.is_inherited() {
                true => Inheritance::Inherited,
                false => Inheritance::CloseForChild,
            },
            has_log: owner.has_log,
            filter: slot.filter(),
            max_data_size: config.max_data_size(),
            capacity: config.capacity(),
            written: match ended {
                Some(written) => written,
                None => RingObserver::from_now(ring.0, ring.1).ok()?.position(),
            },
            lost_full: slot.lost_full(),
            creation_ns: slot.creation_ns(),
            realtime_offset_ns: owner.realtime_offset_ns,
            ended: !is_active,
            config: config.as_raw(),
        };
        slot.has_events_of(config).then_some(stream)
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

    /// The processes of the area that are alive.
    #[must_use]
    pub fn living_processes(&self) -> Vec<u32> {
        let alive = self.area.members().filter(|member| member.is_alive());
        alive.filter_map(|member| member.pid()).collect()
    }

    /// Reads a stream.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream and its events are not there any more, `ENOMEM`.
    pub fn observe(
        &self,
        stream: &ObservedStream,
        from: ObserveFrom,
    ) -> Result<StreamObserver, TraceError> {
        let config = SlotConfig::from_raw(stream.config);
        if stream.slot >= SLOTS || !self.area.slot(stream.slot).has_events_of(config) {
            return Err(TraceError::invalid(
                "the stream was shut down, and its events are gone",
            ));
        }
        let (words, shape) = self.ring(stream.slot, config)?;
        let observer = match from {
            ObserveFrom::Creation => RingObserver::from_start(words, shape),
            ObserveFrom::Oldest => RingObserver::from_oldest(words, shape),
            ObserveFrom::Now => RingObserver::from_now(words, shape),
        };
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
            counted_full: match from {
                ObserveFrom::Creation => 0,
                ObserveFrom::Oldest | ObserveFrom::Now => stream.lost_full,
            },
            has_ended: false,
        })
    }
}

/// The next item of an observed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedItem<'a> {
    /// An event.
    Event(TraceEvent<'a>),
    /// Events that were lost.
    Lost(LostEvents),
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
    lost: Option<LostEvents>,
    /// The event in the buffer comes after a loss.
    held: Option<Head>,
    /// Events that found no room, as far as they were reported.
    counted_full: u64,
    has_ended: bool,
}

impl StreamObserver {
    /// The next event, or what is in its place.
    pub fn next_event(&mut self) -> ObservedItem<'_> {
        if let Some(head) = self.held.take() {
            return ObservedItem::Event(head.with_data(&self.buffer));
        }
        loop {
            if self.has_ended {
                return self
                    .take_loss()
                    .map_or(ObservedItem::Ended, ObservedItem::Lost);
            }
            // Before the ring is read: nothing is recorded after the end.
            let is_active = self.area.slot(self.index).is_same(self.config);
            let next = self.observer.next(&mut self.buffer);
            let found = match next {
                Next::Event { record, .. } => self.decoder.decode(&record).map(Ok),
                Next::Lost { missed, cause, .. } => Some(Err((missed.max(1), gap_cause(cause)))),
                Next::Pending { position } => {
                    if !self.decoder.is_too_late(position) || !self.observer.abandon(position) {
                        return self
                            .take_full()
                            .map_or(ObservedItem::Empty, ObservedItem::Lost);
                    }
                    Some(Err((1, GapCause::Late)))
                }
                Next::Empty if is_active => {
                    self.decoder.is_empty();
                    return self
                        .take_full()
                        .map_or(ObservedItem::Empty, ObservedItem::Lost);
                }
                Next::Empty => {
                    self.end();
                    continue;
                }
            };
            if !self.area.slot(self.index).has_events_of(self.config) {
                self.end();
                continue;
            }
            match found {
                Some(Ok(head)) => {
                    let Some(loss) = self.lost.take() else {
                        return ObservedItem::Event(head.with_data(&self.buffer));
                    };
                    self.held = Some(head);
                    let to = head.time;
                    return ObservedItem::Lost(LostEvents { to, ..loss });
                }
                Some(Err((missed, cause))) => self.lose(missed, cause),
                None => self.lose(1, GapCause::Corrupt),
            }
        }
    }

    /// The stream has ended: the events that were not read are lost.
    fn end(&mut self) {
        self.has_ended = true;
        let ended = self.area.slot(self.index).ended_untrusted();
        let missed = match ended {
            Some((config, written_untrusted)) if config == self.config => {
                let unread = written_untrusted.saturating_sub(self.observer.position());
                // A number beyond the limit is damage of unknown extent.
                unread.min(MAX_MISSED)
            }
            // Its ring was freed before it was read to its end.
            _ => 1,
        };
        if missed > 0 {
            self.lose(missed, GapCause::Overwritten);
        }
    }

    /// A loss that no event has ended. Where the processes have ended, none will.
    pub fn take_loss(&mut self) -> Option<LostEvents> {
        self.lost.take().or_else(|| self.take_full())
    }

    /// Events that found no room since the last call.
    fn take_full(&mut self) -> Option<LostEvents> {
        let lost_untrusted = self.area.slot(self.index).lost_full();
        let missed = lost_untrusted.saturating_sub(self.counted_full);
        if missed == 0 || !self.area.slot(self.index).has_events_of(self.config) {
            return None;
        }
        self.counted_full = lost_untrusted;
        let from = self.decoder.last();
        Some(LostEvents {
            from,
            to: from,
            missed,
            cause: GapCause::Full,
        })
    }

    fn lose(&mut self, missed: u64, cause: GapCause) {
        let last = self.decoder.last();
        let loss = self.lost.get_or_insert(LostEvents {
            from: last,
            to: last,
            missed: 0,
            cause,
        });
        loss.missed += missed;
    }

    /// Whether the next event has a position, but is not complete: its writer is at work, or dead.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.observer.unread() > 0
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

        let mut reader = observer.observe(seen, ObserveFrom::Oldest).unwrap();
        let mut numbers = Vec::new();
        while let ObservedItem::Event(found) = reader.next_event() {
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
        record(event, b"the last one");
        drop(stream);
        // Events before the end are read after it, also by an observer that begins after the end.
        let mut late = observer.observe(seen, ObserveFrom::Creation).unwrap();
        for reader in [&mut reader, &mut late] {
            let mut last = Vec::new();
            loop {
                match reader.next_event() {
                    ObservedItem::Event(found) if found.event == event => {
                        last = found.data.to_vec()
                    }
                    ObservedItem::Event(_) | ObservedItem::Lost(_) => {}
                    ObservedItem::Empty => panic!("the stream has ended"),
                    ObservedItem::Ended => break,
                }
            }
            assert_eq!(last, b"the last one");
            assert_eq!(reader.next_event(), ObservedItem::Ended);
        }
        let ended = observer.streams();
        let ended = ended
            .iter()
            .find(|stream| stream.name == b"watched")
            .unwrap();
        assert!(ended.ended && !ended.running && ended.written > seen.written);
    }

    /// Events recorded, and what an observer gets of them.
    #[test]
    fn observer_accounts_for_every_event() {
        let event = open_event_type(b"accounted").unwrap();
        for (policy, cause) in [
            (StreamFullPolicy::Loop, GapCause::Overwritten),
            (StreamFullPolicy::UntilFull, GapCause::Full),
        ] {
            let attributes = Attributes {
                name: b"accounts".to_vec(),
                stream_size: 16 * 128,
                stream_full: Some(policy),
                ..Attributes::default()
            };
            let stream = ActiveStream::create(0, &attributes).unwrap();
            // Other tests of this process record their types.
            let mut others = EventTypeSet::ALL;
            others.remove(event);
            stream.set_filter(others, crate::FilterChange::Set).unwrap();
            stream.start().unwrap();
            let observer = observer();
            let mut seen = observer.streams();
            seen.retain(|it| it.name == b"accounts" && !it.ended);
            let mut reader = observer.observe(&seen[0], ObserveFrom::Creation).unwrap();
            for number in 0_u64..1000 {
                record(event, &number.to_ne_bytes());
            }
            drop(stream);
            let (mut events, mut lost) = (0, 0);
            loop {
                match reader.next_event() {
                    ObservedItem::Event(found) if found.event == event => events += 1,
                    ObservedItem::Event(_) => {}
                    ObservedItem::Lost(LostEvents {
                        missed,
                        cause: found,
                        ..
                    }) => {
                        assert_eq!(found, cause);
                        lost += missed;
                    }
                    ObservedItem::Empty => panic!("the stream has ended"),
                    ObservedItem::Ended => break,
                }
            }
            // System events are filtered out.
            assert_eq!(events + lost, 1000, "{policy:?}: {events}");
            assert!((1..=16).contains(&events));
        }
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
                let mut reader = observer.observe(&stream, ObserveFrom::Oldest).unwrap();
                for _ in 0..200 {
                    if let ObservedItem::Event(event) = reader.next_event() {
                        assert!(event.data.len() <= stream.max_data_size.max(80));
                        let _ = observer.event_name(event.event);
                    }
                }
            }
            let _ = observer.processes();
        }
    }

    /// An observer ends safely, whatever the processes of an area write into it.
    #[test]
    fn damaged_areas_do_no_harm() {
        let area = Area::create(ClockId::Monotonic).unwrap();
        let observer = AreaObserver::open(area.file().try_clone_to_owned().unwrap()).unwrap();
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let (mut streams, mut items) = (0, 0);
        for round in 0..40 {
            // After magic, version and clock: the slots, names and members.
            let words: Vec<u8> = (0..30 << 10)
                .flat_map(|_| {
                    match random() % 4 {
                        0 => random(),
                        1 => random() % 64,
                        // Plausible configurations: small rings of each policy.
                        2 => {
                            let (data, log2) = (random() % 100, 1 + random() % 10);
                            let policy = 1 + random() % 3;
                            data + (log2 << 32) + (policy << 37) + (1 << 40)
                        }
                        _ => 0,
                    }
                    .to_ne_bytes()
                })
                .collect();
            rustix::io::pwrite(area.file(), &words, 64 * 8).unwrap();
            for slot in 0..SLOTS {
                let ring: Vec<u8> = (0..512)
                    .flat_map(|_| (random() % 2048).to_ne_bytes())
                    .collect();
                let offset = crate::area::region_offset(slot) as u64;
                rustix::io::pwrite(area.file(), &ring, offset).unwrap();
            }
            for stream in observer.streams() {
                streams += 1;
                let from = [ObserveFrom::Creation, ObserveFrom::Oldest, ObserveFrom::Now];
                let Ok(mut reader) = observer.observe(&stream, from[round % 3]) else {
                    continue;
                };
                for _ in 0..200 {
                    match reader.next_event() {
                        ObservedItem::Event(event) => {
                            assert!(event.data.len() <= stream.max_data_size.max(80))
                        }
                        ObservedItem::Lost(LostEvents { missed, .. }) => assert!(missed > 0),
                        ObservedItem::Empty | ObservedItem::Ended => break,
                    }
                    items += 1;
                }
                let _ = (reader.take_loss(), reader.is_pending());
            }
            let _ = (observer.living_processes(), observer.processes());
        }
        assert!(streams > 100 && items > 100, "{streams} {items}");
    }
}
