// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second source of events, which a reader merges with the ring of a stream.

use overhear_event::{GapCause, Timestamp};

use crate::TraceEvent;

/// The next item of a second source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedItem<'a> {
    /// An event.
    Event(TraceEvent<'a>),
    /// Events that were lost.
    Lost {
        /// Time of the last event before them, or when the source began.
        from: Timestamp,
        /// Time of the first event after them, or when the loss was found.
        to: Timestamp,
        /// Their number; 0 if it is unknown.
        missed: u64,
        /// The cause of the loss.
        cause: GapCause,
    },
}

/// A source of events that a reader merges by time with the ring of a stream.
///
/// The reader polls; then it takes the item of the source before the event of the ring if its time
/// is not greater, and an event of the ring only if its time is not beyond the horizon.
pub trait MergedEvents: Send {
    /// Fetches the events that have happened until `now`. Returns the horizon: later polls deliver
    /// no item with an earlier time.
    fn poll(&mut self, now: Timestamp) -> Timestamp;

    /// Time of the next item up to the horizon.
    fn next_time(&self) -> Option<Timestamp>;

    /// Takes the next item up to the horizon. The times of the items do not decrease.
    fn take(&mut self) -> Option<MergedItem<'_>>;
}
