// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of variable size.

use overhear_event::parts::{MessageTooLong, PartLayout};
use overhear_event::{SchemaError, WriterKind};

use crate::dynamic::DynamicSensor;
use crate::sensor::SensorError;
use crate::SensorRequest;

/// Bytes of a message in each element by default: an element of four cache lines.
const DATA_BYTES: u32 = 256 - 8 - 16;

/// Writes messages of any length. Each is split over one or more elements.
///
/// The reader puts them together again with [`overhear_event::parts::Rejoiner`], or with the
/// analysis `Messages` of `overhear-metrics`. A message of which an element was missed is lost as
/// a whole, and counted. So is one with more parts than the sensor has slots: set a capacity
/// that holds several of the longest.
///
/// ```
/// use overhear::MessageSensor;
///
/// let mut log = MessageSensor::builder("log").capacity(1024).register()?;
/// log.write(b"a line of any length")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MessageSensor {
    sensor: DynamicSensor,
    layout: PartLayout,
    message: u64,
    /// The element that is being filled.
    payload: Box<[u8]>,
}

impl MessageSensor {
    /// Settings of a sensor with this id.
    #[must_use]
    pub fn builder(id: &str) -> MessageSensorBuilder {
        MessageSensorBuilder {
            id: id.to_string(),
            instance: String::new(),
            type_id: "message".to_string(),
            data_bytes: DATA_BYTES,
            capacity: 0,
        }
    }

    /// Writes a message. It does not wait, allocate or enter the kernel; how long it takes depends
    /// on the message's length alone. While the sensor is switched off it writes nothing.
    ///
    /// # Errors
    /// [`MessageTooLong`] if it has 4 GiB or more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), MessageTooLong> {
        let sensor = &mut self.sensor;
        if !sensor.is_enabled() {
            // No loss, so it has no number.
            return Ok(());
        }
        self.layout
            .split(self.message, bytes, &mut self.payload, |part| {
                // Its length is the layout's, which is the schema's.
                let _ = sensor.write(part);
            })?;
        self.message = self.message.wrapping_add(1);
        Ok(())
    }

    /// The sensor whose elements are the parts, for what all sensors have.
    #[must_use]
    pub const fn parts(&self) -> &DynamicSensor {
        &self.sensor
    }

    /// Registers a sensor that no directory owns again; see
    /// [`Sensor::register_again`](crate::Sensor::register_again). Messages are numbered from 0 in
    /// the new stream.
    ///
    /// # Errors
    /// [`SensorError`] if the directory's stream makes no sense; the sensor goes on as it was.
    pub fn register_again(&mut self) -> Result<bool, SensorError> {
        let connected = self.sensor.register_again()?;
        if self.sensor.written() == 0 {
            self.message = 0;
        }
        Ok(connected)
    }
}

/// See [`MessageSensor::builder`].
#[derive(Clone, Debug)]
pub struct MessageSensorBuilder {
    id: String,
    instance: String,
    type_id: String,
    data_bytes: u32,
    capacity: u64,
}

/// A sensor for messages could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MessageSensorError {
    /// No element can carry so much, or it would carry nothing.
    #[error("sensor `{sensor}`: a part carries 1 to 4072 bytes of a message, not {data_bytes}")]
    BadPartSize {
        /// The sensor's id.
        sensor: String,
        /// The requested number.
        data_bytes: u32,
    },
    /// The type id is no name.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The sensor could not be made.
    #[error(transparent)]
    Sensor(#[from] SensorError),
}

impl MessageSensorBuilder {
    /// Which one of several sensors with the same id this is.
    #[must_use]
    pub fn instance(mut self, instance: &str) -> Self {
        self.instance = instance.to_string();
        self
    }

    /// The type id, `message` by default: describes the content of the messages.
    #[must_use]
    pub fn type_id(mut self, type_id: &str) -> Self {
        self.type_id = type_id.to_string();
        self
    }

    /// Bytes of a message in each element, 1 to 4072; 232 by default. Larger ones waste
    /// more on short messages, smaller ones need more elements for long ones.
    #[must_use]
    pub const fn data_bytes(mut self, bytes: u32) -> Self {
        self.data_bytes = bytes;
        self
    }

    /// Sets the minimum number of slots, each for one part.
    #[must_use]
    pub const fn capacity(mut self, parts: u64) -> Self {
        self.capacity = parts;
        self
    }

    /// Registers the sensor; see [`SensorBuilder::register`](crate::SensorBuilder::register).
    ///
    /// # Errors
    /// [`MessageSensorError`]. A missing directory is no error.
    pub fn register(self) -> Result<MessageSensor, MessageSensorError> {
        let Some(layout) = PartLayout::new(self.data_bytes) else {
            return Err(MessageSensorError::BadPartSize {
                sensor: self.id,
                data_bytes: self.data_bytes,
            });
        };
        let sensor = DynamicSensor::register(SensorRequest {
            schema: layout.schema(&self.type_id)?,
            sensor: self.id,
            instance: self.instance,
            rate: None,
            capacity: self.capacity,
            kind: WriterKind::Simple,
            lanes: 0,
        })?;
        Ok(MessageSensor {
            sensor,
            layout,
            message: 0,
            payload: vec![0; layout.payload_bytes()].into_boxed_slice(),
        })
    }
}
