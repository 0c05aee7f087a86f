// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor's view of a directory: every stream of every program.

use std::sync::{Arc, Mutex};

use overhear_event::{
    ClockId, GapCause, Inbox, Nanos, Source, SourceError, StreamId, Ticks, Timestamp,
};
use overhear_stream::{ClockMap, Found, HeaderUntrusted, Reader, Segment, SharedWords};

use crate::clock::page_geometry;
use crate::memory::Mapping;
use crate::registry::{lock, Registered, Registry};
use crate::service::Directory;

/// How far back segments are kept to convert with. Streams are read every few milliseconds; only a
/// stamp that its writer left lying about is older, and that one is late whatever it converts to.
const KEPT: Nanos = Nanos::from_ms(20_000);

/// Elements that cannot have been written between two rounds: an hour of one per nanosecond.
const IMPOSSIBLE: u64 = 3_600_000_000_000;

/// Reads the streams of a directory; new ones join at the next poll.
#[derive(Debug)]
pub struct ProgramSource {
    registry: Arc<Mutex<Registry>>,
    clock: Option<ClockReader>,
    streams: Vec<Stream>,
}

/// The clock page, read like any other stream.
#[derive(Debug)]
struct ClockReader {
    reader: Reader<SharedWords>,
    map: ClockMap,
    // Every segment since the start, for the trace.
    history: Vec<Segment>,
    _mapping: Arc<Mapping>,
}

#[derive(Debug)]
struct Stream {
    // Declared before the mapping it points into, so dropped before it.
    reader: Reader<SharedWords>,
    registered: Registered,
    epoch: u32,
    header_is_good: bool,
    // The last element's stamp and time: see `Stream::time`.
    last: (Ticks, Timestamp),
}

impl ProgramSource {
    /// A source for the streams of `directory`. There should be one: each stream is handed out
    /// once.
    #[must_use]
    pub fn new(directory: &Directory) -> Self {
        let clock = directory.clock_map().and_then(|mapping| {
            // SAFETY: the mapping is kept beside the reader.
            let words = unsafe { mapping.words() };
            let reader = Reader::from_start(words, page_geometry()).ok()?;
            Some(ClockReader {
                reader,
                map: ClockMap::new(),
                history: Vec::new(),
                _mapping: mapping,
            })
        });
        Self {
            registry: directory.registry(),
            clock,
            streams: Vec::new(),
        }
    }

    /// Every clock segment seen so far, oldest first, for the trace.
    #[must_use]
    pub fn clock_segments(&self) -> &[Segment] {
        self.clock.as_ref().map_or(&[], |clock| &clock.history)
    }

    fn admit(&mut self, registered: Registered, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let label = registered.descriptor.label();
        // SAFETY: `registered`, and with it the mapping, is kept beside the reader and dropped
        // after it.
        let words = unsafe { registered.mapping.words() };
        let reader = Reader::from_start(words, registered.geometry)
            .map_err(|error| SourceError(format!("{label}: {error}")))?;
        inbox.open(Arc::clone(&registered.descriptor));
        let epoch = self.clock.as_ref().map_or(0, ClockReader::epoch);
        self.streams.push(Stream {
            reader,
            registered,
            epoch,
            header_is_good: true,
            last: (Ticks::from_raw(0), Timestamp::ZERO),
        });
        Ok(())
    }
}

impl Source for ProgramSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        // Whoever has ended by now has published all it will: asked before the last read.
        let (fresh, ended) = {
            let mut registry = lock(&self.registry);
            let fresh = registry.take_fresh();
            let known = self
                .streams
                .iter()
                .map(|stream| stream.registered.descriptor.id);
            let all = known.chain(fresh.iter().map(|stream| stream.descriptor.id));
            let ended: Vec<StreamId> = all.filter(|&id| registry.has_ended(id)).collect();
            (fresh, ended)
        };
        for registered in fresh {
            if let Err(error) = self.admit(registered, inbox) {
                inbox.complain(error);
            }
        }
        // First the bounds, then the clock: no stamp before its bound is then younger than the
        // newest segment that might cover it.
        let bounds: Vec<u64> = self
            .streams
            .iter()
            .map(|stream| stream.reader.published())
            .collect();
        if let Some(clock) = &mut self.clock {
            clock.update();
        }
        let (clock, registry) = (&self.clock, &self.registry);
        let mut bounds = bounds.into_iter();
        self.streams.retain_mut(|stream| {
            let id = stream.registered.descriptor.id;
            let bound = bounds.next().unwrap_or_else(|| stream.reader.published());
            let result = stream.poll(bound, clock.as_ref(), inbox);
            let broken = result.is_err();
            if let Err(error) | Ok(Some(error)) = result {
                inbox.complain(error);
            }
            if broken || ended.contains(&id) {
                inbox.close(id);
                lock(registry).release(id);
                return false;
            }
            true
        });
        Ok(())
    }
}

impl Stream {
    /// Delivers what can be read. An error ends the stream; a complaint does not.
    fn poll(
        &mut self,
        end: u64,
        clock: Option<&ClockReader>,
        inbox: &mut dyn Inbox,
    ) -> Result<Option<SourceError>, SourceError> {
        let id = self.registered.descriptor.id;
        let epoch = clock.map_or(0, ClockReader::epoch);
        if epoch != self.epoch && self.registered.clock != ClockId::Monotonic {
            self.epoch = epoch;
            inbox.gap(id, self.reader.position(), 0, GapCause::Epoch);
        }
        let clock = clock.filter(|_| self.registered.clock != ClockId::Monotonic);
        let last = &mut self.last;
        let mut jump = 0;
        let result = self.reader.poll_until(end, |found| match found {
            Found::Element(element) => {
                let time = time_of(element.stamp, clock, last);
                inbox.element(id, element.sequence, time, element.payload);
            }
            Found::Missed { first, count } => {
                jump = jump.max(count);
                inbox.gap(id, first, count, GapCause::Overwritten);
            }
        });
        let sentence = |error: &dyn std::fmt::Display| {
            SourceError(format!("{}: {error}", self.registered.descriptor.label()))
        };
        if let Err(error) = result {
            inbox.gap(id, self.reader.position(), 0, GapCause::Corrupt);
            return Err(sentence(&error));
        }
        if jump >= IMPOSSIBLE {
            let label = self.registered.descriptor.label();
            return Ok(Some(SourceError(format!(
                "{label}: the element counter jumped ahead by {jump}, more than anybody can write: \
                 the sensor's process damaged its stream"
            ))));
        }
        if self.header_is_good {
            let header = HeaderUntrusted::load(self.reader.words());
            if let Err(error) = header.and_then(|header| header.check(&self.registered.header)) {
                // Said once; the numbers in use are the directory's, so reading goes on.
                self.header_is_good = false;
                inbox.gap(id, self.reader.position(), 0, GapCause::Corrupt);
                return Ok(Some(sentence(&error)));
            }
        }
        Ok(None)
    }
}

/// The time of a stamp. Stamps that ascend become times that do not descend: where two segments
/// meet, or a stamp was converted before the segment that covers it was published, rounding could
/// otherwise turn the order of two neighbours by a nanosecond.
fn time_of(stamp: Ticks, clock: Option<&ClockReader>, last: &mut (Ticks, Timestamp)) -> Timestamp {
    let time = match clock {
        None => Timestamp::from_monotonic_ns(stamp.as_raw()),
        Some(clock) => {
            let time = clock.convert(stamp);
            let rounded = stamp >= last.0 && last.1.since(time) <= clock.error();
            if rounded {
                time.max(last.1)
            } else {
                time
            }
        }
    };
    *last = (stamp, time);
    time
}

impl ClockReader {
    fn update(&mut self) {
        let (map, history) = (&mut self.map, &mut self.history);
        // The page is written by the directory itself, so an error cannot occur; segments that
        // were overwritten unread are a second old and not needed.
        let _ = self.reader.poll(usize::MAX, |element| {
            if let Some(segment) = Segment::parse(element.stamp, element.payload) {
                map.push(segment);
                history.push(segment);
            }
        });
        if let Some(newest) = map.last() {
            map.forget_before(newest.time.minus(KEPT));
        }
    }

    /// By how much a converted time can be wrong.
    fn error(&self) -> Nanos {
        Nanos::from_ns(self.map.last().map_or(0, |segment| segment.error_ns.into()))
    }

    fn epoch(&self) -> u32 {
        self.map.last().map_or(0, |segment| segment.epoch)
    }

    fn convert(&self, stamp: Ticks) -> Timestamp {
        self.map.convert(stamp).unwrap_or(Timestamp::ZERO)
    }
}
