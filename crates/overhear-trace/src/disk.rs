// SPDX-License-Identifier: MIT OR Apache-2.0
//! The document `overhear/disk.json`: the limits of a recording, and what its size has removed.
//!
//! Its replacement is the moment at which parts are removed: before, a reader reads them; after,
//! their accounts stand in the document, and readers ignore files that are still there. So a
//! recorder may die at any time.

use std::collections::BTreeMap;
use std::io;

use overhear_event::{Gap, GapCause, StreamId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::paths::{document_name, TracePaths, DISK, MAX_DOCUMENT_BYTES};

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DiskDocument {
    /// The limits; see [`crate::DiskLimits`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_bytes: Option<u64>,
    /// Number of the first part that is kept. Files of earlier ones are remains.
    pub(crate) first_part: u64,
    /// The streams of which parts were removed.
    pub(crate) removed: Vec<RemovedPackets>,
}

/// The packets of a stream that were removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovedPackets {
    pub(crate) stream: StreamId,
    /// Sequence of the first element, missed or not, and its time.
    pub(crate) first_sequence: u64,
    pub(crate) from: Timestamp,
    /// Sequence after the last element, missed or not, and the end of the last packet.
    pub(crate) end_sequence: u64,
    pub(crate) to: Timestamp,
    /// Number of packets, and the counter of discarded events after them.
    pub(crate) packets: u64,
    pub(crate) discarded: u64,
    /// Number of elements in them.
    pub(crate) elements: u64,
    /// Number of these elements that are repeated, in the file of that name.
    #[serde(default)]
    pub(crate) repeated: u64,
    /// Missed elements in their gaps, by cause.
    pub(crate) missed: BTreeMap<GapCause, u64>,
}

impl RemovedPackets {
    /// The gaps in place of these packets: one of the cause `disk`, and one for each cause of gaps
    /// in them. `to` is the begin of the first packet that is kept.
    pub(crate) fn gaps(&self, to: Option<Timestamp>) -> Vec<Gap> {
        let left_out = self.elements.saturating_sub(self.repeated);
        let to = to.unwrap_or(self.to);
        let mut missed = self.missed.clone();
        let disk = missed.entry(GapCause::Disk).or_insert(0);
        *disk = disk.saturating_add(left_out);
        let mut next = self.first_sequence.saturating_add(self.repeated);
        let mut gaps = Vec::new();
        for (cause, missed) in missed {
            if missed > 0 {
                gaps.push(Gap {
                    stream: self.stream,
                    first: next,
                    missed,
                    from: self.from.min(to),
                    to,
                    cause,
                });
                next = next.saturating_add(missed);
            }
        }
        gaps
    }
}

/// The bytes of the document; `None` if a recording has none. A reader compares them before and
/// after it has opened all files.
pub(crate) fn read_disk_document(paths: &TracePaths) -> io::Result<Option<Vec<u8>>> {
    match paths.own().read(document_name(DISK), MAX_DOCUMENT_BYTES) {
        Ok(json) => Ok(Some(json)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
