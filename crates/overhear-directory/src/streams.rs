// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading sensors: the common part of the monitor in the directory's process and those outside.
//!
//! A sensor is one stream, or one for each of its lanes. A lane is opened in the inbox when it is
//! first used; the first one at once, so that a sensor without elements appears as well.

mod conversion;

use std::collections::BTreeMap;
use std::sync::Arc;

use overhear_event::{
    ClockId, GapCause, InPlaceMemory, Inbox, Nanos, SourceError, StreamDescriptor, StreamId,
    IN_PLACE_BYTES,
};
use overhear_stream::{
    ClockMap, Header, HeaderUntrusted, KeptWords, LayoutError, ReadRun, Reader, RingInPlace,
    Segment, Shape, Skips, StreamGeometry, Tally, Words, HEADER_SIZE,
};

use self::conversion::{Conversion, Last};
use crate::clock::page_geometry;
use crate::memory::Mapping;
use crate::registry::ReadableSensor;

/// Age up to which segments are kept for conversion. Streams are read every few milliseconds; an
/// older stamp is of an element that was published very late, and is discarded as late anyway.
const SEGMENT_HISTORY: Nanos = Nanos::from_ms(20_000);
/// Segments for which memory is reserved: more than come within [`SEGMENT_HISTORY`].
const INITIAL_SEGMENTS: usize = 512;

/// An advance of the element counter between two rounds that no writer can reach: an hour of one
/// element per nanosecond.
const MAX_COUNTER_ADVANCE: u64 = 3_600_000_000_000;

type MappedWords = KeptWords<Arc<Mapping>>;

/// The start position in a sensor that existed before its monitor attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// The next element that is written.
    #[default]
    Now,
    /// The oldest element in the buffer. Elements overwritten before the monitor attached do not
    /// count as missed.
    Buffer,
}

/// The clock page, read like any other stream.
#[derive(Debug)]
struct ClockReader {
    reader: Reader<MappedWords>,
    map: ClockMap,
    // Every segment since the start, for the trace; `None` if it is not recorded.
    history: Option<Vec<Segment>>,
}

/// The sensors that a monitor reads.
#[derive(Debug, Default)]
pub(crate) struct StreamSet {
    clock: Option<ClockReader>,
    sensors: BTreeMap<StreamId, Sensor>,
    // The last counts of sensors that were read to their end, from the first call of `writes` on.
    ended: Option<Vec<SensorWrites>>,
}

/// Writes of a sensor since the monitor attached, those of all its lanes together. Elements that
/// were in the buffer then do not count. The numbers come from the sensor's process: an honest one
/// has exact numbers that never fall.
#[derive(Clone, Debug)]
pub struct SensorWrites {
    /// The sensor; of a laned sensor, its first lane.
    pub descriptor: Arc<StreamDescriptor>,
    /// Elements that were written.
    pub written: u64,
    /// Writes that were skipped for a budget.
    pub skipped: u64,
    /// Whether the sensor has ended: these are its last numbers.
    pub has_ended: bool,
}

#[derive(Debug)]
struct Sensor {
    clock: ClockId,
    // The header page of the whole sensor. A simple sensor has that of its ring alone, which checks
    // it.
    head: MappedWords,
    header: HeaderCheck,
    lost_full: u64,
    rings: Vec<Ring>,
    ended: bool,
}

/// One stream.
#[derive(Debug)]
struct Ring {
    descriptor: Arc<StreamDescriptor>,
    reader: Reader<MappedWords>,
    header: HeaderCheck,
    // The reader in place, of a ring with large elements, until the stream is opened.
    payloads: Option<Arc<dyn InPlaceMemory>>,
    // Whether its elements are read in place.
    in_place: bool,
    bound: u64,
    // Whether elements before the bound were left because the inbox was full.
    left: bool,
    announced: bool,
    lost_nested: u64,
    skips: Skips,
    // Elements and skipped writes before the monitor attached.
    written_before: u64,
    skipped_before: u64,
    epoch: u32,
    last: Last,
}

/// The recorded header; `None` after a difference has been reported.
#[derive(Debug)]
struct HeaderCheck(Option<Header>);

impl HeaderCheck {
    fn check(&mut self, words: &impl Words) -> Result<(), LayoutError> {
        let Some(expected) = &self.0 else {
            return Ok(());
        };
        let result = HeaderUntrusted::load(words).and_then(|found| found.check(expected));
        if result.is_err() {
            // Reported once. Reading continues with the recorded geometry.
            self.0 = None;
        }
        result
    }
}

impl StreamSet {
    /// A set without sensors, with the page to convert stamps with.
    pub(crate) fn new(clock_page: Option<Arc<Mapping>>) -> Self {
        let mut set = Self::default();
        set.set_clock(clock_page);
        set
    }

    /// Sets another clock page. The segments of the old one stay in the history.
    pub(crate) fn set_clock(&mut self, clock_page: Option<Arc<Mapping>>) {
        let clock = clock_page.and_then(|mapping| {
            let words = mapping.part(0, mapping.bytes());
            let reader = Reader::from_start(words, page_geometry()).ok()?;
            Some(ClockReader {
                reader,
                map: ClockMap::with_room(INITIAL_SEGMENTS),
                history: Some(Vec::new()),
            })
        });
        let before = std::mem::replace(&mut self.clock, clock);
        if let (Some(before), Some(clock)) = (before, &mut self.clock) {
            clock.history = before.history;
        }
    }

    /// Every clock segment seen so far, oldest first, for the trace.
    pub(crate) fn clock_segments(&self) -> &[Segment] {
        let history = self.clock.as_ref().and_then(|clock| clock.history.as_ref());
        history.map_or(&[], Vec::as_slice)
    }

    /// Drops the history of clock segments: then a round allocates nothing.
    pub(crate) fn forget_history(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.history = None;
        }
    }

    /// The writes of all sensors now, and those of sensors that have ended since the last call.
    pub(crate) fn writes(&mut self) -> Vec<SensorWrites> {
        let mut all = self.ended.replace(Vec::new()).unwrap_or_default();
        all.extend(self.sensors.values().filter_map(|it| it.writes(false)));
        all
    }

    pub(crate) fn contains(&self, stream: StreamId) -> bool {
        self.sensors.contains_key(&stream)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.sensors.keys().copied()
    }

    /// Adds a sensor, read from `begin` on; `None` for its very first element.
    pub(crate) fn admit(
        &mut self,
        registered: ReadableSensor,
        begin: Option<Begin>,
    ) -> Result<(), SourceError> {
        let id = registered.descriptor.id;
        let epoch = self.clock.as_ref().map_or(0, ClockReader::epoch);
        let sensor = Sensor::new(registered, begin, epoch)?;
        self.sensors.insert(id, sensor);
        Ok(())
    }

    /// Marks the end of a sensor: it is closed after the next round.
    pub(crate) fn end(&mut self, stream: StreamId) {
        if let Some(sensor) = self.sensors.get_mut(&stream) {
            sensor.ended = true;
        }
    }

    /// Runs a round. Returns the sensors that were read to their end, and removes them.
    pub(crate) fn poll(&mut self, inbox: &mut dyn Inbox) -> Vec<StreamId> {
        // First the bounds, then the clock: so no stamp before its bound is younger than the newest
        // segment that could cover it.
        for sensor in self.sensors.values_mut() {
            for ring in &mut sensor.rings {
                ring.bound = ring.reader.published();
            }
        }
        if let Some(clock) = &mut self.clock {
            clock.update();
        }
        let clock = self.clock.as_ref();
        let mut finished = Vec::new();
        self.sensors.retain(|&id, sensor| {
            let broken = sensor.poll(clock, inbox);
            if broken || sensor.ended && !sensor.has_left() {
                for ring in sensor.rings.iter().filter(|ring| ring.announced) {
                    inbox.close(ring.descriptor.id);
                }
                finished.push(id);
                if let Some(ended) = &mut self.ended {
                    ended.extend(sensor.writes(true));
                }
                return false;
            }
            true
        });
        finished
    }
}

impl Sensor {
    fn new(
        registered: ReadableSensor,
        begin: Option<Begin>,
        epoch: u32,
    ) -> Result<Self, SourceError> {
        let label = registered.descriptor.label();
        let header = registered.header();
        let ReadableSensor {
            descriptor,
            mapping,
            shape,
            clock,
        } = registered;
        let first = descriptor.id.as_raw();
        let head = mapping.part(0, HEADER_SIZE);
        let lost_full = match begin {
            None => 0,
            Some(_) => Tally::of_header(&head, 0).lost_full,
        };
        let (header, rings) = match &shape {
            Shape::Simple(geometry) => {
                let whole = mapping.part(0, geometry.bytes());
                let ring = Ring::new(whole, *geometry, header, descriptor, begin, epoch);
                (None, vec![ring])
            }
            Shape::Laned(pool) => {
                let lanes = (0..pool.lanes()).map(|lane| {
                    let part = mapping.part(pool.lane_offset(lane), pool.lane().bytes());
                    let descriptor = StreamDescriptor {
                        id: StreamId::from_raw(first.wrapping_add(lane)),
                        lane: Some(lane),
                        ..(*descriptor).clone()
                    };
                    let header = Shape::lane_header(pool, lane, clock, first.into());
                    let descriptor = Arc::new(descriptor);
                    Ring::new(part, *pool.lane(), header, descriptor, begin, epoch)
                });
                (Some(header), lanes.collect())
            }
            Shape::Concurrent(queue) => {
                let whole = mapping.part(0, queue.bytes());
                let queue = Ring::new(whole, *queue, header, descriptor, begin, epoch);
                (None, vec![queue])
            }
        };
        let rings: Result<Vec<Ring>, LayoutError> = rings.into_iter().collect();
        let rings = rings.map_err(|error| SourceError(format!("{label}: {error}")))?;
        Ok(Self {
            clock,
            head,
            header: HeaderCheck(header),
            lost_full,
            rings,
            ended: false,
        })
    }

    fn writes(&self, has_ended: bool) -> Option<SensorWrites> {
        let first = self.rings.first()?;
        let sum = |each: fn(&Ring) -> u64| {
            let all = self.rings.iter().map(each);
            all.fold(0, u64::saturating_add)
        };
        // A process can damage its counts: they may be anything.
        let written = |ring: &Ring| ring.reader.published().saturating_sub(ring.written_before);
        let skipped = |ring: &Ring| {
            ring.reader
                .skips()
                .count
                .saturating_sub(ring.skipped_before)
        };
        Some(SensorWrites {
            descriptor: Arc::clone(&first.descriptor),
            written: sum(written),
            skipped: sum(skipped),
            has_ended,
        })
    }

    fn has_left(&self) -> bool {
        self.rings.iter().any(|ring| ring.left)
    }

    /// Delivers all readable elements; true if the sensor cannot be read any further.
    fn poll(&mut self, clock: Option<&ClockReader>, inbox: &mut dyn Inbox) -> bool {
        let epoch = clock.map_or(0, ClockReader::epoch);
        let converts = self.clock != ClockId::Monotonic;
        let clock = clock.filter(|_| converts);
        let mut broken = false;
        for (lane, ring) in self.rings.iter_mut().enumerate() {
            if !ring.announced {
                if lane > 0 && ring.is_unused() {
                    continue;
                }
                ring.announce(inbox);
            }
            let new_epoch = converts && std::mem::replace(&mut ring.epoch, epoch) != epoch;
            if new_epoch {
                let (id, position) = (ring.descriptor.id, ring.reader.position());
                inbox.gap(id, position, 0, GapCause::Epoch);
            }
            match ring.poll(clock, inbox) {
                Ok(None) => {}
                Ok(Some(complaint)) => inbox.complain(complaint),
                Err(error) => {
                    broken = true;
                    inbox.complain(error);
                }
            }
        }
        // Losses of the sensor as a whole are reported with its first lane.
        if let Some(first) = self.rings.first() {
            let (id, position) = (first.descriptor.id, first.reader.position());
            let lost_full = Tally::of_header(&self.head, 0).lost_full;
            let lost = lost_full.wrapping_sub(self.lost_full);
            self.lost_full = lost_full;
            if lost > 0 {
                inbox.gap(id, position, lost, GapCause::Full);
            }
            if let Err(error) = self.header.check(&self.head) {
                inbox.gap(id, position, 0, GapCause::Corrupt);
                inbox.complain(first.message(&error));
            }
        }
        broken
    }
}

impl Ring {
    fn new(
        part: MappedWords,
        geometry: impl Into<StreamGeometry>,
        header: Header,
        descriptor: Arc<StreamDescriptor>,
        begin: Option<Begin>,
        epoch: u32,
    ) -> Result<Self, LayoutError> {
        let lost_nested = match begin {
            None => 0,
            Some(_) => Tally::of_header(&part, 0).lost_nested,
        };
        let geometry = geometry.into();
        let payloads: Option<Arc<dyn InPlaceMemory>> = match geometry {
            StreamGeometry::Ring(ring) if descriptor.schema.size() > IN_PLACE_BYTES => {
                Some(Arc::new(RingInPlace::new(part.share(), ring)?))
            }
            _ => None,
        };
        let mut reader = match begin {
            None => Reader::from_start(part, geometry)?,
            Some(_) => Reader::from_now(part, geometry)?,
        };
        // A running program writes between two looks at its counter: the start position alone
        // decides which elements were written before. Later ones are read, so they are counted.
        let written_before = reader.position();
        if begin == Some(Begin::Buffer) {
            reader.rewind();
        }
        let skips = match begin {
            None => Skips::default(),
            Some(_) => reader.skips(),
        };
        Ok(Self {
            descriptor,
            reader,
            skips,
            written_before,
            skipped_before: skips.count,
            header: HeaderCheck(Some(header)),
            payloads,
            in_place: false,
            bound: 0,
            left: false,
            announced: false,
            lost_nested,
            epoch,
            last: Last::default(),
        })
    }

    fn announce(&mut self, inbox: &mut dyn Inbox) {
        self.announced = true;
        let descriptor = Arc::clone(&self.descriptor);
        match self.payloads.take() {
            Some(payloads) => {
                self.in_place = inbox.open_in_place(descriptor, payloads);
                if self.in_place {
                    self.reader.heads_only();
                }
            }
            None => inbox.open(descriptor),
        }
    }

    /// Whether nothing was ever written.
    fn is_unused(&self) -> bool {
        let tally = Tally::of_header(self.reader.words(), 0);
        self.bound == self.reader.position()
            && tally.lost_nested == self.lost_nested
            && self.reader.skips() == self.skips
    }

    fn message(&self, error: &dyn std::fmt::Display) -> SourceError {
        SourceError(format!("{}: {error}", self.descriptor.label()))
    }

    /// Delivers all readable elements. An error ends the stream; a complaint does not.
    fn poll(
        &mut self,
        clock: Option<&ClockReader>,
        inbox: &mut dyn Inbox,
    ) -> Result<Option<SourceError>, SourceError> {
        let id = self.descriptor.id;
        let bound = self.reader.bound_within(self.bound, inbox.room(id));
        self.left = bound != self.bound;
        if self.left {
            inbox.leave(id);
        }
        let mut jump = 0;
        // The bound was loaded before: what was skipped before its elements is seen here.
        let skips = self.reader.skips();
        let fresh = skips.since(&self.skips);
        self.skips = skips;
        let until = earlier(fresh.at, bound);
        if fresh.runs > 1 {
            // Runs lie between these elements, and nobody knows where: anywhere.
            self.poll_apart(until, bound, clock, inbox, &mut jump)?;
        } else if fresh.runs == 1 && is_before(self.reader.position(), until) {
            self.poll_to(until, clock, inbox, &mut jump)?;
        }
        if fresh.runs > 0 {
            inbox.gap(id, self.reader.position(), fresh.count, GapCause::Budget);
        }
        self.poll_to(bound, clock, inbox, &mut jump)?;
        let lost_nested = Tally::of_header(self.reader.words(), 0).lost_nested;
        let lost = lost_nested.wrapping_sub(self.lost_nested);
        self.lost_nested = lost_nested;
        if lost > 0 {
            inbox.gap(id, self.reader.position(), lost, GapCause::Nested);
        }
        if jump >= MAX_COUNTER_ADVANCE {
            let label = self.descriptor.label();
            return Ok(Some(SourceError(format!(
                "{label}: the element counter jumped ahead by {jump}, more than anybody can write: \
                 the sensor's process damaged its stream"
            ))));
        }
        if let Err(error) = self.header.check(self.reader.words()) {
            inbox.gap(id, self.reader.position(), 0, GapCause::Corrupt);
            return Ok(Some(self.message(&error)));
        }
        Ok(None)
    }
}

impl Ring {
    /// Delivers the elements before this position.
    fn poll_to(
        &mut self,
        end: u64,
        clock: Option<&ClockReader>,
        inbox: &mut dyn Inbox,
        jump: &mut u64,
    ) -> Result<(), SourceError> {
        let id = self.descriptor.id;
        let (last, in_place) = (&mut self.last, self.in_place);
        let mut conversion = Conversion::new(clock.map(|clock| &clock.map), last);
        let result = self.reader.poll_runs(end, |found| match found {
            ReadRun::Elements(copied) => {
                let run = copied.timed(|stamp| conversion.time_of(stamp));
                match in_place {
                    false => inbox.run(id, &run),
                    true => {
                        let each = run.sequenced();
                        each.for_each(|(sequence, time, _)| inbox.in_place(id, sequence, time));
                    }
                }
            }
            ReadRun::Missed { first, count } => {
                *jump = count.max(*jump);
                inbox.gap(id, first, count, GapCause::Overwritten);
            }
        });
        result.map(drop).map_err(|error| {
            inbox.gap(id, self.reader.position(), 0, GapCause::Corrupt);
            self.message(&error)
        })
    }

    /// Delivers the elements before `end` with a gap between each two, because several runs of
    /// skipped writes lie between them. `published` is the counter: overwritten elements are one
    /// gap, so there are at most as many gaps as slots, even if the memory is damaged.
    fn poll_apart(
        &mut self,
        end: u64,
        published: u64,
        clock: Option<&ClockReader>,
        inbox: &mut dyn Inbox,
        jump: &mut u64,
    ) -> Result<(), SourceError> {
        let capacity = self.reader.capacity();
        let oldest = published.wrapping_sub(capacity);
        let gone = earlier(end, oldest);
        if is_before(self.reader.position(), gone) {
            self.poll_to(gone, clock, inbox, jump)?;
        }
        for _ in 0..capacity {
            let position = self.reader.position();
            if !is_before(position, end) {
                break;
            }
            inbox.gap(self.descriptor.id, position, 0, GapCause::Budget);
            self.poll_to(position.wrapping_add(1), clock, inbox, jump)?;
            if self.reader.position() == position {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a position lies before another one; positions wrap.
const fn is_before(one: u64, other: u64) -> bool {
    one.wrapping_sub(other).cast_signed() < 0
}

const fn earlier(one: u64, other: u64) -> u64 {
    if is_before(one, other) {
        one
    } else {
        other
    }
}

impl ClockReader {
    fn update(&mut self) {
        let (map, history) = (&mut self.map, &mut self.history);
        // The directory itself writes the page, so an error cannot occur. Segments that were
        // overwritten unread are more than a second old and not needed.
        let _ = self.reader.poll(usize::MAX, |element| {
            if let Some(segment) = Segment::parse(element.stamp, element.payload) {
                map.push(segment);
                if let Some(history) = history {
                    history.push(segment);
                }
            }
        });
        if let Some(newest) = map.last() {
            map.forget_before(newest.time.minus(SEGMENT_HISTORY));
        }
    }

    fn epoch(&self) -> u32 {
        self.map.last().map_or(0, |segment| segment.epoch)
    }
}

#[cfg(test)]
mod tests;
