// SPDX-License-Identifier: MIT OR Apache-2.0
//! A second source of events, which a reader merges with the ring of a stream.

use overhear_event::Timestamp;

use crate::{LostEvents, TraceEvent};

/// The next item of a second source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedItem<'a> {
    /// An event.
    Event(TraceEvent<'a>),
    /// Events that were lost. The first time is when the source began, if no event is before them.
    Lost(LostEvents),
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
