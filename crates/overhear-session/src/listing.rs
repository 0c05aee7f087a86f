// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear list`: the registered sensors of a directory.

use overhear_directory::{SensorRecord, SensorState};
use serde::Serialize;

use crate::identity::Identity;

/// The sensors of a directory, as a JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// Version of the program that made the document.
    pub overhear_version: String,
    /// The socket of the directory.
    pub socket: String,
    /// The sensors that match, in the order of registration.
    pub sensors: Vec<Listed>,
}

/// One sensor.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Names, type and declared rate.
    #[serde(flatten)]
    pub identity: Identity,
    /// `simple`, `laned` or `concurrent`.
    pub kind: String,
    /// Number of lanes of a laned sensor; 0 for others.
    pub lanes: u32,
    /// Elements that its ring, or each of its lanes, holds.
    pub capacity: u64,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Elements written since it was registered.
    pub elements: u64,
    /// Writes refused because they were nested in another.
    pub lost_nested: u64,
    /// Writes refused because no slot or lane was free.
    pub lost_full: u64,
    /// Enabled, disabled, or ended with a buffer that is retained.
    pub state: State,
    /// The user whose process registered it.
    pub uid: u32,
    /// Monitors that are attached to it.
    pub monitors: u32,
}

/// The state of a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Switched on.
    On,
    /// Switched off.
    Off,
    /// Its process has ended or has unregistered it. Its buffer is retained for a while.
    Ended,
}

impl State {
    /// The name in tables and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Ended => "ended",
        }
    }
}

/// The entry of a directory's record.
#[must_use]
pub fn listed_of(record: &SensorRecord) -> Listed {
    Listed {
        identity: Identity::of(&record.descriptor),
        kind: record.kind.name().to_string(),
        lanes: record.lanes,
        capacity: record.descriptor.capacity,
        bytes: record.bytes,
        elements: record.published,
        lost_nested: record.lost_nested,
        lost_full: record.lost_full,
        state: state_of(record),
        uid: record.uid,
        monitors: record.monitors,
    }
}

/// The state of a directory's record.
#[must_use]
pub const fn state_of(record: &SensorRecord) -> State {
    match (record.state, record.enabled) {
        (SensorState::Live, true) => State::On,
        (SensorState::Live, false) => State::Off,
        _ => State::Ended,
    }
}
