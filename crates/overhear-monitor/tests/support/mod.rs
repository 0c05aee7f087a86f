// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams in the memory of the test, and a source that reads them.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;

use overhear_event::{
    FieldKind, GapCause, Inbox, Origin, Source, SourceError, StreamDescriptor, StreamId, Task,
    Ticks, Timestamp, TypeSchema,
};
use overhear_stream::{Geometry, OwnedWords, ReadItem, Reader, SimpleWriter, Words};

pub(crate) fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

pub(crate) fn schema(id: &str) -> Arc<TypeSchema> {
    let schema = TypeSchema::builder(id).field("value", FieldKind::U64, "");
    Arc::new(schema.build().unwrap())
}

/// A sensor of a program, of the type that has its name.
pub(crate) fn descriptor(id: u32, sensor: &str, capacity: u64) -> Arc<StreamDescriptor> {
    Arc::new(StreamDescriptor {
        capacity,
        ..StreamDescriptor::new(
            StreamId::from_raw(id),
            Origin::Program(Task {
                pid: 4711,
                start: at(1),
                comm: "program".to_string(),
            }),
            sensor,
            schema(sensor),
        )
    })
}

/// Reads a ring whose stamps are nanoseconds.
pub(crate) struct RingSource<W> {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) reader: Reader<W>,
    is_open: bool,
}

impl<W: Words> RingSource<W> {
    pub(crate) fn new(descriptor: Arc<StreamDescriptor>, words: W) -> Self {
        let geometry = geometry(&descriptor);
        Self {
            descriptor,
            reader: Reader::from_start(words, geometry).unwrap(),
            is_open: false,
        }
    }
}

fn geometry(descriptor: &StreamDescriptor) -> Geometry {
    Geometry::new(descriptor.schema.size(), descriptor.capacity).unwrap()
}

/// A stream of this process: its writer and its reader.
pub(crate) fn ring(descriptor: Arc<StreamDescriptor>) -> (Writer, RingSource<OwnedWords>) {
    let geometry = geometry(&descriptor);
    let memory = OwnedWords::zeroed(geometry.words());
    let writer = Writer(SimpleWriter::new(memory.share(), geometry).unwrap());
    (writer, RingSource::new(descriptor, memory))
}

pub(crate) struct Writer(pub(crate) SimpleWriter<OwnedWords>);

impl Writer {
    pub(crate) fn write(&mut self, time: u64, value: u64) {
        self.0.write(&value.to_ne_bytes(), || Ticks::from_raw(time));
    }
}

impl<W: Words> Source for RingSource<W> {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let id = self.descriptor.id;
        if !self.is_open {
            self.is_open = true;
            inbox.open(Arc::clone(&self.descriptor));
        }
        let end = self.reader.published();
        let report = self.reader.poll_until(end, |found| match found {
            ReadItem::Element(element) => {
                let time = at(element.stamp.as_raw());
                inbox.element(id, element.sequence, time, element.payload);
            }
            ReadItem::Missed { first, count } => inbox.gap(id, first, count, GapCause::Overwritten),
        });
        report
            .map(|_| ())
            .map_err(|error| SourceError(error.to_string()))
    }
}
