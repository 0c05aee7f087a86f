// SPDX-License-Identifier: MIT OR Apache-2.0
//! A laned sensor whose element type is known at run time only: for bindings to other languages.

use crate::dynamic::PayloadSizeError;
use crate::laned::{OpenLanes, Refused};
use crate::sensor::SensorError;
use crate::SensorRequest;

/// An element was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DynamicLanedError {
    /// The payload does not fit the schema.
    #[error(transparent)]
    Size(#[from] PayloadSizeError),
    /// It was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Writes elements that a schema describes from many threads at once, given as bytes: what
/// [`DynamicSensor`](crate::DynamicSensor) is to `Sensor`, this is to [`LanedSensor`](crate::LanedSensor).
#[derive(Debug)]
pub struct DynamicLanedSensor {
    open: Box<OpenLanes>,
    payload_bytes: usize,
}

impl DynamicLanedSensor {
    /// Registers the sensor; the kind in the request is laned whatever it says.
    /// Without lanes in it there are twice as many as CPUs, at least 16.
    ///
    /// # Errors
    /// [`SensorError`], as of [`LanedSensorBuilder::register`](crate::LanedSensorBuilder::register).
    pub fn register(request: SensorRequest) -> Result<Self, SensorError> {
        let payload_bytes = request.schema.size() as usize;
        let open = Box::new(OpenLanes::open(request)?);
        Ok(Self {
            open,
            payload_bytes,
        })
    }

    /// Appends an element to the calling thread's lane, see
    /// [`LanedSensor::write`](crate::LanedSensor::write).
    ///
    /// # Errors
    /// [`DynamicLanedError`]: nothing was written, and what is a loss was counted.
    #[inline]
    pub fn write(&self, payload: &[u8]) -> Result<(), DynamicLanedError> {
        if payload.len() != self.payload_bytes {
            return Err(DynamicLanedError::Size(PayloadSizeError {
                payload: payload.len(),
                expected: self.payload_bytes,
            }));
        }
        Ok(self.open.write(payload)?)
    }

    /// Claims a lane for the calling thread, see [`LanedSensor::prepare_thread`](crate::LanedSensor::prepare_thread).
    ///
    /// # Errors
    /// [`Refused::NoLane`], counted.
    pub fn prepare_thread(&self) -> Result<(), Refused> {
        self.open.prepare_thread()
    }

    /// Whether the sensor is switched on: one load.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.open.is_enabled()
    }

    /// Registers the sensor again if nobody hears it; see
    /// [`Sensor::register_again`](crate::Sensor::register_again).
    ///
    /// # Errors
    /// [`SensorError`] if the directory's stream makes no sense; the sensor goes on as it was.
    pub fn register_again(&mut self) -> Result<bool, SensorError> {
        self.open.register_again()
    }

    /// Whether a directory owns the streams, so that monitors can hear them.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.open.stream.is_heard()
    }

    /// Why nobody hears the sensor, `None` if somebody does.
    #[must_use]
    pub fn unheard_because(&self) -> Option<&str> {
        let unheard = self.open.stream.unheard.as_str();
        (!unheard.is_empty()).then_some(unheard)
    }
}
