// SPDX-License-Identifier: MIT OR Apache-2.0
//! One event of a stream.

use overhear_event::{GapCause, Timestamp};

use crate::EventId;

/// Whether data of an event was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Truncation {
    /// All data is there.
    None,
    /// The event had more data than its stream permits.
    Record,
    /// The reader's buffer was too small for all data.
    Read,
}

/// Bit of an event in a ring: its data was cut when it was recorded.
pub(crate) const FLAG_TRUNCATED: u16 = 1;

/// An event. Its data is borrowed from memory that no other process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent<'a> {
    /// When it was recorded, `CLOCK_MONOTONIC`. Times of one stream do not decrease.
    pub time: Timestamp,
    /// Its type.
    pub event: EventId,
    /// The process that recorded it.
    pub pid: u32,
    /// The thread, as the kernel numbers it.
    pub tid: u32,
    /// The thread as a `pthread_t`; 0 for events of the kernel.
    pub thread: u64,
    /// Return address of the call of `posix_trace_event`; 0 for system events.
    pub address: u64,
    /// Whether data was cut when it was recorded.
    pub truncation: Truncation,
    /// The data.
    pub data: &'a [u8],
}

/// Events that were lost between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostEvents {
    /// Time of the last event before them.
    pub from: Timestamp,
    /// Time of the first event after them, or when the loss was found.
    pub to: Timestamp,
    /// Their number; 0 if it is unknown.
    pub missed: u64,
    /// The cause of the loss.
    pub cause: GapCause,
}
