// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors in this process: a ring each, a thread that writes as fast as its stream allows, and the
//! source that a monitor reads them with.

use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;

use overhear_admission::{ArrivalBound, Pacer};
use overhear_event::{
    ClockId, GapCause, Inbox, Nanos, Origin, Source, SourceError, StreamDescriptor, StreamId,
    Ticks, Timestamp, TypeSchema, WriterKind,
};
use overhear_monitor::{Clock, SystemClock};
use overhear_stream::{Geometry, Header, OwnedWords, ReadItem, Reader, SimpleWriter};

pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// Whether the other end has been dropped.
pub(crate) fn is_stopped(stop_signal: &Receiver<()>) -> bool {
    stop_signal.try_recv() == Err(TryRecvError::Disconnected)
}

/// The right to write a sensor.
pub(crate) struct Ring {
    writer: SimpleWriter<OwnedWords>,
}

impl Ring {
    pub(crate) fn write(&mut self, value: u64) {
        self.write_at(value, now);
    }

    /// With a synthetic stamp.
    pub(crate) fn write_at(&mut self, value: u64, stamp: impl FnOnce() -> Timestamp) {
        let stamp = || Ticks::from_raw(stamp().as_monotonic_ns());
        self.writer.write(&value.to_ne_bytes(), stamp);
    }
}

/// Reads all rings.
pub(crate) struct Rings {
    readers: Vec<(Arc<StreamDescriptor>, Reader<OwnedWords>, bool)>,
}

/// Rings of these names and capacities, numbered from 1.
pub(crate) fn rings(sensors: &[(&str, u64)]) -> (Vec<Ring>, Rings) {
    let schema = TypeSchema::builder("number")
        .field("number", overhear_event::FieldKind::U64, "")
        .build();
    let schema = Arc::new(schema.unwrap());
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    for (id, &(name, capacity)) in (1..).zip(sensors) {
        let geometry = Geometry::new(8, capacity).unwrap();
        let words = OwnedWords::zeroed(geometry.words());
        Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, id.into()).store(&words);
        let descriptor = Arc::new(StreamDescriptor {
            capacity,
            ..StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::Sampler,
                name,
                Arc::clone(&schema),
            )
        });
        writers.push(Ring {
            writer: SimpleWriter::new(words.share(), geometry).unwrap(),
        });
        let reader = Reader::from_start(words, geometry).unwrap();
        readers.push((descriptor, reader, false));
    }
    (writers, Rings { readers })
}

impl Source for Rings {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        for (descriptor, reader, opened) in &mut self.readers {
            if !std::mem::replace(opened, true) {
                inbox.open(Arc::clone(descriptor));
            }
            let id = descriptor.id;
            let bound = reader.published();
            let result = reader.poll_until(bound, |found| match found {
                ReadItem::Element(element) => {
                    let time = Timestamp::from_monotonic_ns(element.stamp.as_raw());
                    inbox.element(id, element.sequence, time, element.payload);
                }
                ReadItem::Missed { first, count } => {
                    inbox.gap(id, first, count, GapCause::Overwritten);
                }
            });
            let _ = result.map_err(|error| SourceError(error.to_string()))?;
        }
        Ok(())
    }
}

/// A thread that writes until it is stopped, each element as early as its stream allows, with
/// a pause after every `burst` that saves up for the next one.
pub(crate) struct Producer {
    stop: Sender<()>,
    thread: JoinHandle<Produced>,
}

/// The results of a producer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Produced {
    /// Elements written.
    pub(crate) written: u64,
    /// The longest time between a stamp and its publication.
    pub(crate) held_up: Nanos,
}

impl Produced {
    /// The results of several producers.
    pub(crate) fn of_all(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::default(), |sum, one| Self {
            written: sum.written + one.written,
            held_up: sum.held_up.max(one.held_up),
        })
    }
}

impl Producer {
    pub(crate) fn start(mut ring: Ring, stream: ArrivalBound, burst: u64) -> Self {
        let (stop, stop_signal) = channel();
        let thread = std::thread::spawn(move || {
            let mut pacer = Pacer::new(stream, Nanos::ZERO);
            let mut produced = Produced::default();
            while !is_stopped(&stop_signal) {
                if produced.written % burst == 0 {
                    // Waits until no element is early any more.
                    let pause = stream.jitter().as_ns() + stream.period().as_ns();
                    std::thread::sleep(std::time::Duration::from_nanos(pause));
                }
                let earliest = pacer.earliest();
                let wait = earliest.since(now());
                if wait > Nanos::ZERO {
                    std::thread::sleep(std::time::Duration::from_nanos(wait.as_ns()));
                }
                let begun = now();
                ring.write(produced.written);
                // Not before the stamp.
                let ended = now();
                pacer.written(ended);
                produced.written += 1;
                produced.held_up = produced.held_up.max(ended.since(begun));
            }
            produced
        });
        Self { stop, thread }
    }

    /// Ends the thread.
    pub(crate) fn stop(self) -> Produced {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}
