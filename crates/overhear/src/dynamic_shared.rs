// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors for many threads whose element type is known at run time only: for bindings to other
//! languages.

use overhear_event::{Nanos, WriterKind};

use crate::concurrent::OpenQueue;
use crate::dynamic::PayloadSizeError;
use crate::laned::{OpenLanes, Refused};
use crate::pace::PaceError;
use crate::sensor::SensorError;
use crate::{thread, SensorRequest};

/// An element was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DynamicSharedError {
    /// The payload does not fit the schema.
    #[error(transparent)]
    Size(#[from] PayloadSizeError),
    /// It was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Writes elements that a schema describes from many threads at once, given as bytes: what
/// [`DynamicSensor`](crate::DynamicSensor) is to `Sensor`, this is to
/// [`LanedSensor`](crate::LanedSensor) and [`ConcurrentSensor`](crate::ConcurrentSensor).
#[derive(Debug)]
pub struct DynamicSharedSensor {
    open: Open,
    payload_bytes: usize,
}

#[derive(Debug)]
enum Open {
    Lanes(Box<OpenLanes>),
    Queue(Box<OpenQueue>),
}

impl DynamicSharedSensor {
    /// Registers the sensor: a concurrent one if the request's kind is `Concurrent`, else a laned
    /// one. `lanes` of the request is the number of lanes or of simultaneous writes; 0 means twice
    /// the number of CPUs, at least 16.
    ///
    /// # Errors
    /// [`SensorError`], as of
    /// [`LanedSensorBuilder::register`](crate::LanedSensorBuilder::register).
    pub fn register(request: SensorRequest) -> Result<Self, SensorError> {
        let payload_bytes = request.schema.size() as usize;
        let open = match request.kind {
            WriterKind::Concurrent => {
                let writers = request.lanes;
                Open::Queue(Box::new(OpenQueue::open(request, writers)?))
            }
            _ => Open::Lanes(Box::new(OpenLanes::open(request)?)),
        };
        Ok(Self {
            open,
            payload_bytes,
        })
    }

    /// Appends an element, see [`LanedSensor::write`](crate::LanedSensor::write) and
    /// [`ConcurrentSensor::write`](crate::ConcurrentSensor::write).
    ///
    /// # Errors
    /// [`DynamicSharedError`]: nothing was written, and what is a loss was counted.
    #[inline]
    pub fn write(&self, payload: &[u8]) -> Result<(), DynamicSharedError> {
        if payload.len() != self.payload_bytes {
            return Err(DynamicSharedError::Size(PayloadSizeError {
                payload: payload.len(),
                expected: self.payload_bytes,
            }));
        }
        match &self.open {
            Open::Lanes(lanes) => Ok(lanes.write(payload)?),
            Open::Queue(queue) => Ok(queue.write(payload)?),
        }
    }

    /// Claims a lane for the calling thread, see
    /// [`LanedSensor::prepare_thread`](crate::LanedSensor::prepare_thread); for a queue, reads
    /// its id.
    ///
    /// # Errors
    /// [`Refused::NoLane`], counted.
    pub fn prepare_thread(&self) -> Result<(), Refused> {
        match &self.open {
            Open::Lanes(lanes) => lanes.prepare_thread(),
            Open::Queue(_) => {
                thread::prepare_thread();
                Ok(())
            }
        }
    }

    /// Waits until the declared rate allows the calling thread the next element, see
    /// [`LanedSensor::pace`](crate::LanedSensor::pace) and
    /// [`ConcurrentSensor::pace`](crate::ConcurrentSensor::pace).
    ///
    /// # Errors
    /// [`PaceError`] if the sensor has declared no rate.
    pub fn pace(&self) -> Result<Nanos, PaceError> {
        match &self.open {
            Open::Lanes(lanes) => lanes.pace(),
            Open::Queue(queue) => queue.pace(),
        }
    }

    /// Time until the next call; zero allows the element. See
    /// [`DynamicSensor::pace_left`](crate::DynamicSensor::pace_left).
    ///
    /// # Errors
    /// [`PaceError`] if the sensor has declared no rate.
    pub fn pace_left(&self) -> Result<Nanos, PaceError> {
        match &self.open {
            Open::Lanes(lanes) => lanes.pace_left(),
            Open::Queue(queue) => queue.pace_left(),
        }
    }

    /// Whether the sensor is switched on: one load.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        match &self.open {
            Open::Lanes(lanes) => lanes.is_enabled(),
            Open::Queue(queue) => queue.is_enabled(),
        }
    }

    /// Registers a sensor that no directory owns again; see
    /// [`Sensor::register_again`](crate::Sensor::register_again).
    ///
    /// # Errors
    /// [`SensorError`] if the directory's stream makes no sense; the sensor goes on as it was.
    pub fn register_again(&mut self) -> Result<bool, SensorError> {
        match &mut self.open {
            Open::Lanes(lanes) => lanes.register_again(),
            Open::Queue(queue) => queue.register_again(),
        }
    }

    /// Whether a directory owns the streams, so that monitors can read them.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        match &self.open {
            Open::Lanes(lanes) => lanes.stream.is_connected(),
            Open::Queue(queue) => queue.stream.is_connected(),
        }
    }

    /// Why no monitor can read the sensor; `None` if a directory owns its stream.
    #[must_use]
    pub fn not_connected_reason(&self) -> Option<&str> {
        match &self.open {
            Open::Lanes(lanes) => lanes.stream.not_connected_reason(),
            Open::Queue(queue) => queue.stream.not_connected_reason(),
        }
    }
}
