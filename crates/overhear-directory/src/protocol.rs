// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program and the directory say to each other: one JSON document per SEQPACKET packet.
//!
//! JSON, because registration is cold, additions stay readable to older peers, and `strace`
//! shows what happens.

use overhear_event::{ClockId, Rate, TypeSchema};
use serde::{Deserialize, Serialize};

/// The version of the protocol. Unknown fields are ignored, so additions need no new one.
pub(crate) const VERSION: u32 = 1;
/// The largest packet: a schema of some hundred fields.
pub(crate) const MAX_PACKET: usize = 64 * 1024;

/// From the program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Register(Register),
    /// The memory is mapped.
    Mapped,
    Unregister(Unregister),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Register {
    pub(crate) version: u32,
    pub(crate) sensor: String,
    pub(crate) instance: String,
    pub(crate) schema: TypeSchema,
    pub(crate) rate: Option<Rate>,
    /// The least number of slots that the program wants.
    pub(crate) capacity: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unregister {
    pub(crate) stream: u32,
    pub(crate) token: u64,
}

/// From the directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Granted(Granted),
    /// Monitors know the stream.
    Sealed,
    Unregistered,
    Refused {
        sentence: String,
    },
}

/// Where to write. The memory file comes along.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) stream: u32,
    /// Proves the right to unregister.
    pub(crate) token: u64,
    pub(crate) stride: u32,
    pub(crate) capacity: u64,
    pub(crate) clock: ClockId,
}
