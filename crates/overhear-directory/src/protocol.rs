// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between the directory and its clients: one JSON document per SEQPACKET packet.
//!
//! JSON, because registration is cold, older peers ignore additions, and `strace` shows the
//! packets.
//!
//! A program registers one sensor per connection: `register`, `granted`, `mapped`, `sealed`. A
//! monitor keeps its connection: `attach` is answered by `attached`, an `opened` with a file for
//! each sensor that matches, and `settled`. Then comes an `opened` for each new sensor and an
//! `ended` for each that has ended. The monitor sends `finished` when it has read such a sensor to
//! its end.
//!
//! A process announces its trace area over a connection of its own: `publish_area` with two files,
//! `published`. A monitor sends `list_areas`, answered by `areas`, and `open_area`, answered by
//! `area` with a file or by `no_area`.

use overhear_event::{ClockId, Rate, TypeSchema, WriterKind};
use serde::{Deserialize, Serialize};

use crate::needs::Needs;
use crate::query::Query;
use crate::sensor_record::{NotConnectedRecord, SensorRecord};
use crate::trace_area::{AreaAccess, AreaRecord};

/// The version of the protocol. Unknown fields are ignored, so additions do not change it.
pub(crate) const VERSION: u32 = 1;

/// A packet to the directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Register(Register),
    /// The memory is mapped.
    Mapped,
    Unregister(Unregister),
    /// Requests a list of the sensors that match.
    List(QueryRequest),
    /// Requests the sensors that match, existing and later ones.
    Attach(QueryRequest),
    Switch(Switch),
    /// Switches sensors off for the monitor's budget, and others on again.
    Budget(Budget),
    /// The monitor has read these sensors to their end.
    Finished {
        streams: Vec<u32>,
    },
    /// Requests the directory's status.
    Status {
        version: u32,
    },
    /// Requests the latest sensors that were refused or deferred.
    NotConnected {
        version: u32,
    },
    /// Announces the trace area of the peer. Two descriptions of its file come with the packet, the
    /// first one for reading and writing, the second one for reading.
    PublishArea {
        version: u32,
    },
    /// Requests the trace areas that the peer may read.
    ListAreas {
        version: u32,
        /// The generation of the list that the peer has.
        #[serde(default)]
        known: Option<u64>,
    },
    /// Requests a descriptor of a trace area.
    OpenArea(OpenArea),
}

/// The area to open: that of a process, or the one with a number.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OpenArea {
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) pid: Option<u32>,
    #[serde(default)]
    pub(crate) area: Option<u64>,
    pub(crate) access: AreaAccess,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Register {
    pub(crate) version: u32,
    pub(crate) sensor: String,
    pub(crate) instance: String,
    pub(crate) schema: TypeSchema,
    pub(crate) rate: Option<Rate>,
    /// The least number of slots: in the ring, in each lane, in the queue.
    pub(crate) capacity: u64,
    #[serde(default)]
    pub(crate) kind: WriterKind,
    /// Lanes of a laned sensor, 0 lets the directory choose. Spare elements of a concurrent sensor.
    #[serde(default)]
    pub(crate) lanes: u32,
    /// Whether the program supports deferred sensors.
    #[serde(default)]
    pub(crate) may_defer: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unregister {
    pub(crate) stream: u32,
    pub(crate) token: u64,
}

/// The sensors of a `list` or `attach`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct QueryRequest {
    pub(crate) version: u32,
    pub(crate) query: Query,
    /// For `attach`: the sensors that the monitor evaluates.
    #[serde(default)]
    pub(crate) needs: Needs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Switch {
    pub(crate) version: u32,
    pub(crate) query: Query,
    pub(crate) enabled: bool,
}

/// The sensors whose budget has changed: numbers of streams. They are few, or in several requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Budget {
    pub(crate) version: u32,
    pub(crate) off: Vec<u32>,
    pub(crate) on: Vec<u32>,
}

/// A packet from the directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Granted(Granted),
    /// The stream is open for monitors.
    Sealed,
    Unregistered,
    Refused {
        message: String,
        /// Whether the request may be repeated soon: it was rejected unread.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// Some of the sensors that match. `more` is false in the last packet.
    Sensors {
        sensors: Vec<SensorRecord>,
        more: bool,
    },
    Attached(Attached),
    Opened(Opened),
    /// All sensors that existed at the `attach` have been opened.
    Settled,
    /// The sensor has ended. The monitor reads the rest and sends `finished`.
    Ended {
        stream: u32,
    },
    Switched {
        changed: u32,
        /// Of a `budget`: the number of sensors that stay on, because a monitor without a budget
        /// needs them.
        #[serde(default, skip_serializing_if = "is_zero")]
        kept_on: u32,
    },
    Status(crate::sensor_record::DirectoryStatus),
    /// The latest sensors that were refused or deferred.
    NotConnected {
        sensors: Vec<NotConnectedRecord>,
    },
    /// The trace area is known.
    Published,
    Areas(Areas),
    /// A trace area. A descriptor of its file comes with the packet.
    Area(AreaRecord),
    NoArea(NoArea),
}

/// Some of the trace areas that the peer may read. `more` is false in the last packet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Areas {
    /// The directory's identity, as in [`Attached`]: numbers of areas are unique within one.
    pub(crate) directory: u64,
    /// Changes with the list.
    pub(crate) generation: u64,
    /// The list is the one that the peer knows: `areas` is empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_known: bool,
    pub(crate) areas: Vec<AreaRecord>,
    pub(crate) more: bool,
}

/// Why no trace area can be opened, besides a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NoArea {
    /// There is no such process.
    NoProcess,
    /// The process has announced no area, or there is no area with this number.
    NotAnnounced,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A granted sensor. Its memory file comes with the packet, then that of the control page.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) stream: u32,
    /// Proves the right to unregister.
    pub(crate) token: u64,
    pub(crate) stride: u32,
    pub(crate) capacity: u64,
    pub(crate) clock: ClockId,
    #[serde(default)]
    pub(crate) kind: WriterKind,
    #[serde(default)]
    pub(crate) lanes: u32,
    /// The sensor's line in the control page; `None` without a page.
    #[serde(default)]
    pub(crate) line: Option<u32>,
    /// Why there is no memory yet, of a deferred sensor. Its control line changes when there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deferred: Option<String>,
}

/// The subscription has begun. The clock page comes with the packet, if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Attached {
    /// The directory's identity: stream numbers are unique within one directory.
    pub(crate) directory: u64,
    /// Number of matching sensors that this monitor cannot read, and the reason.
    pub(crate) denied: u32,
    pub(crate) message: String,
}

/// A sensor to read. Its memory file comes with the packet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) sensor: SensorRecord,
    /// Whether it appeared after the `attach`: then it is read from its first element.
    pub(crate) fresh: bool,
}
