// SPDX-License-Identifier: MIT OR Apache-2.0
//! The document `overhear/ends.json`: the ends of the streams of a finished recording. With it,
//! missing packets at the end of a file are noticed.

use std::collections::HashMap;

use overhear_event::{StreamId, Timestamp};
use serde::{Deserialize, Serialize};

/// Name of the document.
pub(crate) const ENDS: &str = "ends";

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamEnd {
    pub(crate) stream: StreamId,
    /// Number of packets in its file.
    pub(crate) packets: u64,
    /// Sequence of the first element, missed or not.
    pub(crate) first_sequence: u64,
    /// Sequence after the last element, missed or not.
    pub(crate) end_sequence: u64,
    /// Number of missed elements in its gaps.
    pub(crate) discarded: u64,
    /// End of the last packet.
    pub(crate) end: Timestamp,
}

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ends {
    pub(crate) streams: Vec<StreamEnd>,
}

impl Ends {
    /// The ends by stream. If several have one number, which no writer leaves, the last one counts.
    pub(crate) fn by_stream(&self) -> HashMap<StreamId, StreamEnd> {
        self.streams.iter().map(|end| (end.stream, *end)).collect()
    }
}
