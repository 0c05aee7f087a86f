// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the directory says of a sensor, and of itself.

use overhear_event::{ClockId, StreamDescriptor, WriterKind};
use overhear_stream::{LayoutError, Shape};
use serde::{Deserialize, Serialize};

/// Whether a sensor is still written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SensorState {
    /// Its process lives and has not taken it out.
    #[default]
    Live,
    /// Its process took it out; monitors read what is left.
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

/// A sensor as the directory knows it. The names of the fields are those of `overhear list --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SensorRecord {
    /// Its first stream: number, task, names, schema as monitors see it, rate, capacity of the ring,
    /// of each lane, or of the queue.
    pub descriptor: StreamDescriptor,
    /// Who may write it.
    pub kind: WriterKind,
    /// Lanes of a laned sensor, 0 of others.
    pub lanes: u32,
    /// What its stamps count.
    pub clock: ClockId,
    /// The user whose process registered it.
    pub uid: u32,
    /// Whether it is still written.
    pub state: SensorState,
    /// Whether it is switched on.
    pub enabled: bool,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Elements written since it was registered, over all lanes.
    pub published: u64,
    /// Writes that were refused because they were nested in another.
    pub lost_nested: u64,
    /// Writes that were refused because no element or lane was free.
    pub lost_full: u64,
    /// Monitors that are attached to it.
    pub monitors: u32,
}

impl SensorRecord {
    /// Where everything lies in its memory.
    ///
    /// # Errors
    /// [`LayoutError`] if the numbers make no sensor: the record did not come from a directory.
    pub fn shape(&self) -> Result<Shape, LayoutError> {
        shape_of(&self.descriptor, self.kind, self.lanes)
    }
}

/// Where everything lies in the memory of a sensor with this descriptor.
pub(crate) fn shape_of(
    descriptor: &StreamDescriptor,
    kind: WriterKind,
    lanes: u32,
) -> Result<Shape, LayoutError> {
    // The writer is part of the monitors' payload and not of the sensor's.
    let writer = if kind.names_threads() { 8 } else { 0 };
    let payload = descriptor.schema.size();
    let own = payload.checked_sub(writer);
    let own = own.ok_or(LayoutError::BadPayload(payload.into()))?;
    Shape::new(kind, own, descriptor.capacity, lanes)
}

/// How a directory is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryStatus {
    /// The directory's process.
    pub pid: u32,
    /// Sensors that it knows, retained ones included.
    pub sensors: u64,
    /// Of these, sensors whose process has ended or that were taken out.
    pub retained: u64,
    /// Bytes of all buffers.
    pub bytes: u64,
    /// Monitors that are attached.
    pub monitors: u64,
    /// Buffers that were freed although nobody had read them to the end.
    pub freed_unread: u64,
    /// Requests for sensors that were refused, or not taken up.
    pub unheard: u64,
    /// How often the directory was started again with what it had kept.
    pub restarts: u64,
    /// Connections that were turned away because their users had too many.
    #[serde(default)]
    pub turned_away: u64,
    /// Sensors that wait for memory; they count as unheard, too.
    #[serde(default)]
    pub deferred: u64,
}

/// A sensor that wanted to be heard and is not. The names of the fields are those of
/// `overhear list --unheard --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnheardRecord {
    /// Its process.
    pub pid: u32,
    /// The user of the process.
    pub uid: u32,
    /// The short name of the process.
    pub comm: String,
    /// The sensor's id.
    pub sensor: String,
    /// Why it is not heard.
    pub sentence: String,
    /// How often it asked.
    pub count: u64,
}

impl std::fmt::Display for UnheardRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            pid,
            comm,
            sensor,
            sentence,
            ..
        } = self;
        let (sensor, comm) = (sensor.escape_debug(), comm.escape_debug());
        write!(
            f,
            "sensor `{sensor}` of {comm} ({pid}) is not heard: {sentence}"
        )
    }
}
