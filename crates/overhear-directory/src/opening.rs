// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors between their grant and the moment when monitors can read them.

use std::sync::Arc;

use overhear_event::{ClockId, StreamDescriptor, StreamId};
use overhear_stream::Shape;

use crate::control::Place;
use crate::description::record_bytes;
use crate::journal::KeptSensor;
use crate::memory::{Mapping, MemoryFile};
use crate::quota::{Amounts, Resource};
use crate::record::{shape_of, SensorState};
use crate::registry::{FileCharge, Refusal, Registered, Registry, Sensor, TOUCHED_BYTES};

const PAGE: u64 = 4096;

/// A sensor that is not open for monitors yet, without its memory.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The connection that waits for it; none of a deferred sensor.
    pub(crate) connection: Option<u32>,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) file_charge: FileCharge,
    pub(crate) charged: Charged,
    pub(crate) token: u64,
    pub(crate) descriptor: StreamDescriptor,
    pub(crate) shape: Shape,
    pub(crate) clock: ClockId,
    pub(crate) place: Place,
    /// Why it has to wait for memory, if it has.
    pub(crate) deferred: Option<String>,
}

/// What a sensor is charged before it exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    /// Until its file is freed.
    pub(crate) file: Amounts,
    /// Until the directory forgets it.
    record: Amounts,
    /// As long as the directory keeps the file open.
    descriptor: Amounts,
}

impl Charged {
    pub(crate) fn of(descriptor: &StreamDescriptor, shape: &Shape) -> Self {
        let bytes = shape.bytes() as u64;
        let record = Amounts::of(Resource::RecordBytes, record_bytes(descriptor, bytes));
        Self {
            file: Amounts::of(Resource::BufferBytes, bytes).and(Resource::Sensors, 1),
            record,
            descriptor: Amounts::of(Resource::Descriptors, 1),
        }
    }

    /// The same for a sensor that waits for memory: its headers, and what its program may touch.
    pub(crate) fn deferred(self, shape: &Shape) -> Self {
        // Each piece begins somewhere in a page and ends in another.
        let pieces = shape.initial(ClockId::Monotonic, 0).into_iter();
        let headers = pieces.map(|(_, words)| (8 * words.len() as u64).next_multiple_of(PAGE));
        let bytes = headers.sum::<u64>() + TOUCHED_BYTES;
        Self {
            file: Amounts::of(Resource::RecordBytes, bytes).and(Resource::Deferred, 1),
            ..self
        }
    }

    /// Charges a user: all of it or, after an error, nothing.
    pub(crate) fn charge(mut self, uid: u32, registry: &mut Registry) -> Result<Self, Refusal> {
        match registry.charge(uid, self.descriptor) {
            Ok(()) => {}
            // The monitor in this process needs no descriptor; others cannot have this sensor.
            Err(_) if registry.has_embedded_monitor() => self.descriptor = Amounts::NONE,
            Err(shortage) => return Err(shortage.into()),
        }
        if let Err(shortage) = registry.charge(uid, self.record) {
            registry.release(uid, self.descriptor);
            return Err(shortage.into());
        }
        if let Err(shortage) = registry.charge(uid, self.file) {
            registry.release(uid, self.record);
            registry.release(uid, self.descriptor);
            return Err(shortage.into());
        }
        Ok(self)
    }

    pub(crate) fn release(self, uid: u32, registry: &mut Registry) {
        registry.release(uid, self.record);
        registry.release(uid, self.descriptor);
        registry.release(uid, self.file);
    }

    /// Counts what a deferred sensor of an earlier life has besides its file, which its watch knows of.
    fn count(self, uid: u32, registry: &mut Registry) -> Self {
        registry.quotas.count(uid, self.record);
        registry.quotas.count(uid, self.descriptor);
        self
    }
}

impl Opening {
    pub(crate) const fn stream(&self) -> StreamId {
        self.descriptor.id
    }

    pub(crate) fn names(&self) -> (&str, &str) {
        (&self.descriptor.sensor, &self.descriptor.instance)
    }

    /// It does not come to exist: what it was given is taken back. Its memory has been closed; it counts
    /// until nobody else has it.
    pub(crate) fn give_back(self, registry: &mut Registry) {
        registry.give_back(self.pid, self.place, self.shape.lanes());
        registry.give_back_streams(self.descriptor.id);
        registry.release(self.uid, self.charged.record);
        registry.release(self.uid, self.charged.descriptor);
        registry.file_closed(Some(self.file_charge));
    }

    /// The same, and remembers why.
    pub(crate) fn refuse(self, registry: &mut Registry, sentence: &str) {
        registry.unheard((self.pid, self.uid), &self.descriptor.sensor, sentence);
        self.give_back(registry);
    }

    /// What is charged for its file once there is memory for it.
    pub(crate) fn file_amounts(&self) -> Amounts {
        Charged::of(&self.descriptor, &self.shape).file
    }

    /// There is memory for a deferred sensor, which has been charged: it takes the place of what was charged
    /// for a sensor that waits.
    pub(crate) fn admitted(mut self, registry: &mut Registry) -> Self {
        let charged = self.file_amounts();
        registry.recharge_file(&mut self.file_charge, self.uid, self.charged.file, charged);
        self.charged.file = charged;
        self.connection = None;
        self.deferred = None;
        self
    }

    /// Opens the sensor for monitors; returns its number.
    pub(crate) fn open(
        self,
        file: MemoryFile,
        mapping: Mapping,
        locked: std::io::Result<()>,
        registry: &mut Registry,
    ) -> StreamId {
        let stream = self.descriptor.id;
        let registered = Registered {
            descriptor: Arc::new(self.descriptor),
            mapping: Arc::new(mapping),
            shape: self.shape,
            clock: self.clock,
        };
        registry.locked(locked);
        let is_kept = self.charged.descriptor != Amounts::NONE;
        let file = is_kept.then_some(file);
        let mut sensor = Sensor::new(registered, file, self.token, self.pid, self.uid);
        sensor.place = Some(self.place);
        sensor.charge = Some(self.file_charge);
        registry.open(sensor);
        stream
    }

    /// What the next directory must know of a sensor that waits.
    pub(crate) fn kept(&self) -> KeptSensor {
        KeptSensor {
            descriptor: self.descriptor.clone(),
            kind: self.shape.kind(),
            lanes: self.shape.lanes(),
            clock: self.clock,
            token: self.token,
            pid: self.pid,
            uid: self.uid,
            state: SensorState::Live,
            was_read: false,
            spared: false,
            place: Some((self.place.page, self.place.line)),
            deferred: self.file_charge.watch(),
        }
    }

    /// A sensor that waited in an earlier life of the directory; none if that cannot have been one.
    pub(crate) fn restore(kept: KeptSensor, registry: &mut Registry) -> Option<Self> {
        let shape = shape_of(&kept.descriptor, kept.kind, kept.lanes).ok()?;
        let (page, line) = kept.place?;
        let charged = Charged::of(&kept.descriptor, &shape).deferred(&shape);
        Some(Self {
            connection: None,
            pid: kept.pid,
            uid: kept.uid,
            file_charge: FileCharge::restored(kept.deferred?),
            charged: charged.count(kept.uid, registry),
            token: kept.token,
            descriptor: kept.descriptor,
            shape,
            clock: kept.clock,
            place: Place { page, line },
            deferred: Some(String::new()),
        })
    }
}
