// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that are granted, and not yet open for monitors.

use std::sync::Arc;

use overhear_event::{ClockId, StreamDescriptor, StreamId};
use overhear_stream::Shape;

use crate::control::ControlSlot;
use crate::description::record_bytes;
use crate::file_watch::FileCharge;
use crate::journal::KeptSensor;
use crate::memory::{Mapping, MemoryFile};
use crate::quota::{Amounts, Resource};
use crate::registry::{ReadableSensor, Refusal, Registry, Sensor, MAX_TOUCHED_BYTES};
use crate::sensor_record::{shape_of, SensorState};

const PAGE: u64 = 4096;

/// A granted sensor that is not open for monitors yet, without its memory.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The connection that waits for it; `None` for a deferred sensor.
    pub(crate) connection: Option<u32>,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) file_charge: FileCharge,
    pub(crate) charged: Charged,
    pub(crate) token: u64,
    pub(crate) descriptor: StreamDescriptor,
    pub(crate) shape: Shape,
    pub(crate) clock: ClockId,
    pub(crate) slot: ControlSlot,
    /// Why it waits for memory, of a deferred sensor.
    pub(crate) deferred: Option<String>,
}

/// The charges of a sensor, by the event that ends them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    /// Ends when the kernel frees its file.
    pub(crate) file: Amounts,
    /// Ends when the directory removes its record.
    record: Amounts,
    /// Ends when the directory closes its file.
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

    /// The charges of a deferred sensor: its headers, and the pages that its program may touch.
    pub(crate) fn deferred(self, shape: &Shape) -> Self {
        // Each header may begin in one page and end in the next.
        let pieces = shape.initial(ClockId::Monotonic, 0).into_iter();
        let headers = pieces.map(|(_, words)| (8 * words.len() as u64).next_multiple_of(PAGE));
        let bytes = headers.sum::<u64>() + MAX_TOUCHED_BYTES;
        Self {
            file: Amounts::of(Resource::RecordBytes, bytes).and(Resource::Deferred, 1),
            ..self
        }
    }

    /// Charges a user. After an error nothing is charged.
    pub(crate) fn charge(mut self, uid: u32, registry: &mut Registry) -> Result<Self, Refusal> {
        match registry.charge(uid, self.descriptor) {
            Ok(()) => {}
            // Without a descriptor only the monitor in this process can read the sensor.
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

    /// Counts the charges of a restored deferred sensor, except that of its file, which its watch
    /// has.
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

    /// Takes the grant back: the sensor will not exist. Its file has been closed, and stays charged
    /// until the kernel frees it.
    pub(crate) fn give_back(self, registry: &mut Registry) {
        registry.give_back(self.pid, self.slot, self.shape.lanes());
        registry.give_back_streams(self.descriptor.id);
        registry.release(self.uid, self.charged.record);
        registry.release(self.uid, self.charged.descriptor);
        registry.file_closed(Some(self.file_charge));
    }

    /// Takes the grant back and records the reason.
    pub(crate) fn refuse(self, registry: &mut Registry, message: &str) {
        registry.note_not_connected((self.pid, self.uid), &self.descriptor.sensor, message);
        self.give_back(registry);
    }

    /// The charge of its file once it is no longer deferred.
    pub(crate) fn file_amounts(&self) -> Amounts {
        Charged::of(&self.descriptor, &self.shape).file
    }

    /// A deferred sensor gets its memory, which has been charged: this charge replaces that of its
    /// headers.
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
        let registered = ReadableSensor {
            descriptor: Arc::new(self.descriptor),
            mapping: Arc::new(mapping),
            shape: self.shape,
            clock: self.clock,
        };
        registry.locked(locked);
        let is_kept = self.charged.descriptor != Amounts::NONE;
        let file = is_kept.then_some(file);
        let mut sensor = Sensor::new(registered, file, self.token, self.pid, self.uid);
        sensor.slot = Some(self.slot);
        sensor.charge = Some(self.file_charge);
        registry.open(sensor);
        stream
    }

    /// The record of a deferred sensor for the next directory.
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
            auto_disabled: false,
            slot: Some((self.slot.page, self.slot.line)),
            deferred: self.file_charge.watch(),
        }
    }

    /// A deferred sensor from before a restart; `None` if the record is not one of a deferred
    /// sensor.
    pub(crate) fn restore(kept: KeptSensor, registry: &mut Registry) -> Option<Self> {
        let shape = shape_of(&kept.descriptor, kept.kind, kept.lanes).ok()?;
        let (page, line) = kept.slot?;
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
            slot: ControlSlot { page, line },
            deferred: Some(String::new()),
        })
    }
}
