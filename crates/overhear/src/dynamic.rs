// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sensor whose element type is known at run time only: for bindings to other languages.

use std::path::Path;

use overhear_event::{ClockId, Nanos};
use overhear_stream::{SharedWords, SimpleWriter};

use crate::pace::PaceError;
use crate::sensor::{is_on, stamp, OpenStream, SensorError};
use crate::SensorRequest;

/// A payload has not the size of the sensor's schema. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the payload has {payload} bytes, an element of this sensor has {expected}; fill every field"
)]
pub struct PayloadSizeError {
    /// Bytes of the payload.
    pub payload: usize,
    /// Bytes that the schema describes.
    pub expected: usize,
}

/// Writes elements that a schema describes, given as bytes. One thread at a time.
///
/// [`Sensor`](crate::Sensor) is the same with a Rust type; here the fields are a value, so the
/// size of each payload is checked when it is written.
///
/// ```
/// use overhear::{DynamicSensor, FieldKind, SensorRequest, TypeSchema, WriterKind};
///
/// let schema =
///     TypeSchema::builder("depth").field("requests", FieldKind::U64, "requests").build()?;
/// let mut sensor = DynamicSensor::register(SensorRequest {
///     sensor: "queue".to_string(),
///     instance: String::new(),
///     schema,
///     rate: None,
///     capacity: 0,
///     kind: WriterKind::Simple,
///     lanes: 0,
/// })?;
/// sensor.write(&3_u64.to_ne_bytes())?;
/// assert!(sensor.write(&[0; 7]).is_err());
/// assert_eq!(sensor.written(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DynamicSensor {
    // Declared before the stream whose memory it points into, so dropped before it.
    writer: SimpleWriter<SharedWords>,
    clock: ClockId,
    payload_bytes: usize,
    stream: OpenStream,
}

impl DynamicSensor {
    /// Registers the sensor. Cold: allocates, calls the kernel, may wait for the directory.
    ///
    /// Without a directory the sensor works all the same, not connected: that is no error.
    ///
    /// # Errors
    /// [`SensorError`] if the element is too large, there is no memory, or the request is for
    /// another kind of writer than a simple one.
    pub fn register(request: SensorRequest) -> Result<Self, SensorError> {
        Self::over(OpenStream::open(request)?)
    }

    /// [`DynamicSensor::register`] with the directory at this socket instead of the environment's.
    ///
    /// # Errors
    /// As for [`DynamicSensor::register`].
    pub fn register_at(socket: &Path, request: SensorRequest) -> Result<Self, SensorError> {
        Self::over(OpenStream::open_at(Some(socket.to_path_buf()), request)?)
    }

    fn over(stream: OpenStream) -> Result<Self, SensorError> {
        // SAFETY: the mapping is owned by `stream`, a field of the same value that is dropped after
        // the writer.
        let words = unsafe { stream.mapping.words() };
        let geometry = stream.ring()?;
        let writer = SimpleWriter::new(words, geometry)?;
        Ok(Self {
            writer,
            clock: stream.clock,
            payload_bytes: geometry.payload_bytes(),
            stream,
        })
    }

    /// Appends an element, unless the sensor is switched off. Wait-free; real-time safe.
    ///
    /// # Errors
    /// [`PayloadSizeError`] if the payload has another size than the schema.
    #[inline]
    pub fn write(&mut self, payload: &[u8]) -> Result<(), PayloadSizeError> {
        if payload.len() != self.payload_bytes {
            return Err(PayloadSizeError {
                payload: payload.len(),
                expected: self.payload_bytes,
            });
        }
        let clock = self.clock;
        if self.is_enabled() {
            self.writer.write(payload, || stamp(clock));
        }
        Ok(())
    }

    /// Waits until the declared rate allows the next element; see
    /// [`Sensor::pace`](crate::Sensor::pace).
    ///
    /// # Errors
    /// [`PaceError`] if the sensor has declared no rate.
    pub fn pace(&mut self) -> Result<Nanos, PaceError> {
        self.stream.pace(self.writer.count())
    }

    /// Time until the declared rate allows the next element; zero allows it now.
    ///
    /// [`DynamicSensor::pace`] without the sleep, for callers with locks to give back before they
    /// sleep: they call again until it is zero.
    ///
    /// # Errors
    /// [`PaceError`] if the sensor has declared no rate.
    pub fn pace_left(&mut self) -> Result<Nanos, PaceError> {
        self.stream.pace_left(self.writer.count())
    }

    /// Registers a sensor that no directory owns again; see
    /// [`Sensor::register_again`](crate::Sensor::register_again).
    ///
    /// # Errors
    /// [`SensorError`] if the directory's stream makes no sense; the sensor goes on as it was.
    pub fn register_again(&mut self) -> Result<bool, SensorError> {
        if let Some(stream) = self.stream.again() {
            // SAFETY: the mapping is owned by `stream`, which is stored in the same value below.
            let words = unsafe { stream.mapping.words() };
            self.writer = SimpleWriter::new(words, stream.ring()?)?;
            self.clock = stream.clock;
            // The old memory is unmapped here, after the old writer.
            self.stream = stream;
        }
        Ok(self.is_connected())
    }

    /// Whether the sensor is switched on: one load. See
    /// [`Sensor::is_enabled`](crate::Sensor::is_enabled).
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        is_on(self.stream.switch, || self.writer.skip())
    }

    /// Elements written since the stream's start.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.writer.count()
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.stream.is_connected()
    }

    /// Why no monitor can read the sensor; `None` if a directory owns its stream.
    #[must_use]
    pub fn not_connected_reason(&self) -> Option<&str> {
        self.stream.not_connected_reason()
    }
}
