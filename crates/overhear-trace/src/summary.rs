// SPDX-License-Identifier: MIT OR Apache-2.0
//! The summary `overhear/summary.json`: the totals and the end of a recording.

use overhear_event::Timestamp;
use serde::{Deserialize, Serialize};

/// Totals of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Elements on disk.
    pub events: u64,
    /// Bytes of all streams on disk.
    pub bytes: u64,
    /// Missed elements in the gaps on disk.
    pub discarded: u64,
    /// Those of them that were left out, to keep a limit of the disk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Elements and missed elements that the writer received and could not write.
    pub unrecorded: u64,
    /// The last advance: nothing else happened until then.
    pub advanced_to: Timestamp,
    /// Begin of the earliest packet and end of the latest one; `None` if there are none, and in
    /// recordings of older versions. A packet outside is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<(Timestamp, Timestamp)>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}
