// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs and monitors say to the directory, and it to them: one JSON document per SEQPACKET
//! packet.
//!
//! JSON, because registration is cold, additions stay readable to older peers, and `strace`
//! shows what happens.
//!
//! A program registers one sensor per connection: `register`, `granted`, `mapped`, `sealed`. A
//! monitor keeps its connection: after `attach` comes `attached`, an `opened` with a file for each
//! sensor that matches, `settled`, and from then on an `opened` for each sensor that appears and an
//! `ended` for each that is gone. The monitor says `finished` when it has read what had ended.

use overhear_event::{ClockId, Rate, TypeSchema, WriterKind};
use serde::{Deserialize, Serialize};

use crate::needs::Needs;
use crate::query::Query;
use crate::record::{SensorRecord, UnheardRecord};

/// The version of the protocol. Unknown fields are ignored, so additions need no new one.
pub(crate) const VERSION: u32 = 1;

/// To the directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Register(Register),
    /// The memory is mapped.
    Mapped,
    Unregister(Unregister),
    /// Which sensors are there?
    List(About),
    /// Hand over the sensors that match, now and later.
    Attach(About),
    Switch(Switch),
    /// The monitor has read these sensors to their end.
    Finished {
        streams: Vec<u32>,
    },
    /// How is the directory?
    Status {
        version: u32,
    },
    /// Which sensors of this user are not heard?
    Unheard {
        version: u32,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Register {
    pub(crate) version: u32,
    pub(crate) sensor: String,
    pub(crate) instance: String,
    pub(crate) schema: TypeSchema,
    pub(crate) rate: Option<Rate>,
    /// The least number of slots that the program wants: in the ring, in each lane, in the queue.
    pub(crate) capacity: u64,
    #[serde(default)]
    pub(crate) kind: WriterKind,
    /// Of a laned sensor; 0 for the directory's choice. Of a concurrent sensor: spare elements.
    #[serde(default)]
    pub(crate) lanes: u32,
    /// Whether the program knows of sensors that wait for memory.
    #[serde(default)]
    pub(crate) may_defer: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unregister {
    pub(crate) stream: u32,
    pub(crate) token: u64,
}

/// Which sensors a request is about.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) version: u32,
    pub(crate) query: Query,
    /// Of a monitor that attaches: what it evaluates of these.
    #[serde(default)]
    pub(crate) needs: Needs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Switch {
    pub(crate) version: u32,
    pub(crate) query: Query,
    pub(crate) enabled: bool,
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
        /// It is worth while to ask again in a moment: nothing has been looked at.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// Some of the sensors that match; the last packet says that there are no more.
    Sensors {
        sensors: Vec<SensorRecord>,
        more: bool,
    },
    Attached(Attached),
    Opened(Opened),
    /// Everything that was there when the monitor attached has been opened.
    Settled,
    /// Nothing more will be written. The monitor reads what is left and says `finished`.
    Ended {
        stream: u32,
    },
    Switched {
        changed: u32,
    },
    Status(crate::record::DirectoryStatus),
    /// The latest of them.
    Unheard {
        sensors: Vec<UnheardRecord>,
    },
}

/// Where to write. The memory file comes along, and the control page's behind it.
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
    /// The sensor's line in the control page; none without one.
    #[serde(default)]
    pub(crate) line: Option<u32>,
    /// Why there is no memory yet, of a sensor that waits for it. Its line says when there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deferred: Option<String>,
}

/// The monitor's subscription begins. The clock page comes along, if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Attached {
    /// Tells directories apart: stream numbers are unique within one.
    pub(crate) directory: u64,
    /// Sensors that match and that this monitor may not hear, and by which rule.
    pub(crate) denied: u32,
    pub(crate) sentence: String,
}

/// A sensor to read. Its memory file comes along.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) sensor: SensorRecord,
    /// It appeared after the monitor attached: there was no element before.
    pub(crate) fresh: bool,
}
