// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory's records of sensors and of its own status, as clients get them.

use overhear_event::{ClockId, StreamDescriptor, WriterKind};
use overhear_stream::{LayoutError, Shape};
use serde::{Deserialize, Serialize};

/// The state of a sensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SensorState {
    /// Its process is alive and has not unregistered it.
    #[default]
    Live,
    /// Its process unregistered it; monitors read the rest.
    Unregistered,
    /// Its process ended; the buffer is retained for a while.
    Retained,
}

impl SensorState {
    /// The name in tables and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Unregistered => "unregistered",
            Self::Retained => "retained",
        }
    }
}

/// A sensor. The names of the fields are those of `overhear list --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SensorRecord {
    /// Its first stream: number, task, names, schema as monitors see it, rate, capacity of the
    /// ring, of each lane, or of the queue.
    pub descriptor: StreamDescriptor,
    /// The kind of its writer.
    pub kind: WriterKind,
    /// Lanes of a laned sensor, 0 of others.
    pub lanes: u32,
    /// The clock of its stamps.
    pub clock: ClockId,
    /// The user whose process registered it.
    pub uid: u32,
    /// Its state.
    pub state: SensorState,
    /// Whether it is switched on.
    pub enabled: bool,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Elements written since it was registered, over all lanes.
    pub published: u64,
    /// Writes refused because they were nested in another.
    pub lost_nested: u64,
    /// Writes refused because no element or lane was free.
    pub lost_full: u64,
    /// Monitors that are attached to it.
    pub monitors: u32,
}

impl SensorRecord {
    /// The layout of its memory.
    ///
    /// # Errors
    /// [`LayoutError`] if the record is invalid, so that no directory can have made it.
    pub fn shape(&self) -> Result<Shape, LayoutError> {
        shape_of(&self.descriptor, self.kind, self.lanes)
    }
}

/// The layout of the memory of a sensor with this descriptor.
pub(crate) fn shape_of(
    descriptor: &StreamDescriptor,
    kind: WriterKind,
    lanes: u32,
) -> Result<Shape, LayoutError> {
    // The monitors' payload includes the writer, the sensor's does not.
    let writer = if kind.names_threads() { 8 } else { 0 };
    let payload = descriptor.schema.size();
    let own = payload.checked_sub(writer);
    let own = own.ok_or(LayoutError::BadPayload(payload.into()))?;
    Shape::new(kind, own, descriptor.capacity, lanes)
}

/// The status of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// The directory's process.
    pub pid: u32,
    /// Number of sensors, including retained ones.
    pub sensors: u64,
    /// Number of these whose process has ended, or that were unregistered.
    pub retained: u64,
    /// Bytes of all buffers.
    pub bytes: u64,
    /// Number of attached monitors.
    pub monitors: u64,
    /// Buffers that were freed before a monitor had read them to the end.
    pub freed_unread: u64,
    /// Requests for sensors that were refused, given up or deferred.
    pub not_connected: u64,
    /// Restarts with stored sensors.
    pub restarts: u64,
    /// Connections that were rejected because their users had too many.
    #[serde(default)]
    pub turned_away: u64,
    /// Deferred sensors. They are counted in `not_connected`, too.
    #[serde(default)]
    pub deferred: u64,
}

/// A sensor that was refused, given up or deferred. The names of the fields are those of
/// `overhear list --not-connected --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotConnectedRecord {
    /// Its process.
    pub pid: u32,
    /// The user of the process.
    pub uid: u32,
    /// The short name of the process.
    pub comm: String,
    /// The sensor's id.
    pub sensor: String,
    /// The reason.
    pub message: String,
    /// Number of its requests.
    pub count: u64,
}

impl std::fmt::Display for NotConnectedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            pid,
            comm,
            sensor,
            message,
            ..
        } = self;
        let (sensor, comm) = (sensor.escape_debug(), comm.escape_debug());
        write!(
            f,
            "sensor `{sensor}` of {comm} ({pid}) is not connected: {message}"
        )
    }
}
