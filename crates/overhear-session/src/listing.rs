// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear list`: the sensors that a directory knows.

use serde::Serialize;

use crate::identity::Identity;

/// What `overhear list --format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// Version of the program that made it.
    pub overhear_version: String,
    /// Where the directory listens.
    pub socket: String,
    /// The sensors that match, in the order of registration.
    pub sensors: Vec<Listed>,
}

/// One sensor.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Who it is.
    #[serde(flatten)]
    pub identity: Identity,
    /// `simple`, `laned` or `concurrent`.
    pub kind: String,
    /// Lanes of a laned sensor, 0 of others.
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
    /// Whether it is written, switched off, or has ended and waits to be read.
    pub state: State,
    /// The user whose process registered it.
    pub uid: u32,
    /// Monitors that are attached to it.
    pub monitors: u32,
}

/// What a sensor is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Switched on.
    On,
    /// Switched off.
    Off,
    /// Its process has ended or has taken it out; its buffer is kept for a while.
    Ended,
}

impl State {
    /// The word in tables and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Ended => "ended",
        }
    }
}
