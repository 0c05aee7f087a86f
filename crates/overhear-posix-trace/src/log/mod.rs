// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs: the events of a trace stream in one file descriptor.
//!
//! A [`LogWriter`] receives events and losses in their order, and writes frames
//! ([`overhear_trace::FrameWriter`], `docs/frames.md`). A [`LogReader`] returns the same events,
//! also of a log whose writer was killed at any point.
//!
//! ```text
//! APPEND, UNTIL_FULL, any descriptor:
//!   header | posix-trace | status | stream | event-type ... | packet | gap | ... | status | end
//!
//! LOOP, a regular file:
//!   root, 4096 bytes               segment 0                      segment 1       ... segment n
//!   header | posix-trace | status  header | posix-trace | stream | event-type ... | packet ...
//!                                  ^--- each segment has this begin, and can be read alone
//! ```
//!
//! - The document `posix-trace` has the attributes, and the place of the segments. `event-type` has
//!   the number and the name of an event type. `status` is written when the log is created; in a
//!   file it is overwritten in place when an error occurs and at the end, so a full disk cannot
//!   prevent it.
//! - All events are elements of one stream, whose sequences count lost events, too.
//! - A LOOP log overwrites its oldest segment before it has more than log-max-size bytes of events.
//!   A segment ends where the numbers of frames decrease: the frames after that are of an older
//!   round.
//!
//! # Design constraints
//!
//! - Flushed events stay readable: they are not overwritten, except those of the oldest segment.
//! - An error loses nothing that fits into 8 MiB of memory: the next call continues at the byte
//!   where the last one failed.
//! - A write never delivers `SIGPIPE` or `SIGXFSZ` to the program: the error number is enough.

mod documents;
mod error;
mod output;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use error::LogError;
pub use reader::LogReader;
pub use writer::LogWriter;

use crate::{Attributes, LostEvents, TraceEvent};

/// The text of the header of every log.
pub(crate) const CONTENT: &str = "posix trace log";

/// The properties of a log that are fixed at its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogHeader {
    /// The attributes of the stream.
    pub attributes: Attributes,
    /// The traced process.
    pub pid: u32,
    /// Its short name.
    pub comm: String,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` in nanoseconds.
    pub realtime_offset_ns: i64,
    /// Resolution of the times of events in nanoseconds.
    pub clock_resolution_ns: u64,
}

/// The state of a log after a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct LogState {
    /// The log has log-max-size bytes of events and its policy is UNTIL_FULL: events are refused.
    pub full: bool,
    /// Events were overwritten or refused since the last call.
    pub overrun: bool,
}

/// The status of a stream when its log was completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinalStatus {
    /// Whether events were recorded.
    pub running: bool,
    /// Whether the stream was full.
    pub full: bool,
    /// Whether events were lost.
    pub overrun: bool,
    /// The last error number of a flush, or 0.
    pub flush_error: i32,
    /// Whether the log was full.
    pub log_full: bool,
    /// Whether events of the log were lost or overwritten.
    pub log_overrun: bool,
}

/// The next part of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogItem<'a> {
    /// An event.
    Event(TraceEvent<'a>),
    /// Events that are not in the log. The cause is `Overwritten` for those of a LOOP log,
    /// `Corrupt` for a damaged part of the log; others are as they were written.
    Lost(LostEvents),
}
