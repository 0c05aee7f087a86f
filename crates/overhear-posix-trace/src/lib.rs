// SPDX-License-Identifier: MIT OR Apache-2.0
//! The POSIX trace interface [POSIX.1q]: `<trace.h>` and the C library `liboverhear_posixtrace`.
//!
//! A *controller* creates an active trace stream for a process. The *traced* process records events
//! into it, and an *analyser* reads them, live or from a log:
//!
//! ```text
//!  traced process                    shared memory: the AREA of the process and its children
//!    posix_trace_event  ---------->    names of event types | gate | a ring for each stream
//!                                                                        |
//!  controller, analyser                                                  v
//!    posix_trace_create, _start, _stop, _set_filter     reader: events in order, and losses
//!    posix_trace_getnext_event  <-------------------------+              |
//!    posix_trace_flush          <---- LOG: frames in one file descriptor <
//! ```
//!
//! - [`EventId`] is an event type, [`EventTypeSet`] a set of them, [`TraceEvent`] one event.
//! - [`Attributes`] describe a stream before it is created.
//!
//! The page `docs/posix-trace.md` has every requirement of the standard with its test.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![allow(
    clippy::disallowed_types,
    reason = "processes synchronise through the memory of the area; the atomics come from \
              overhear_stream::sync, which the lint cannot distinguish from std's"
)]

// Labels of atomic operations that are stronger than relaxed:
//
// - SYNC(area): the magic number of an area, stored last and loaded first.
// - SYNC(config): the configuration of a slot. A process that loads it also sees the slot's words
//   and its ring.
// - SYNC(name): the length of a name.
// - SYNC(local): the gate's address. A thread that loads it can write events.
// - SYNC(map): the address of a mapped ring.
// - SYNC(value): the address of a value of the process (`per_process`).
// - SYNC(wait): a reader announces that it waits and reads the ring once more; a writer publishes
//   and then checks for readers. The reader's `membarrier`, or a fence of the writer, puts one
//   of them first.
// - SYNC(end): the shutdown of a stream and the readers inside.
// - SYNC(flush): requests, state and result of a flush, between the controller and the thread; each
//   is a value of its own, in one total order for simplicity.
mod announcement;
mod area;
mod areas;
mod attributes;
mod capi;
mod clock;
mod decoder;
mod elements;
mod error;
mod event;
mod event_id;
mod event_type_set;
mod flush;
mod futex;
mod kernel;
mod live;
mod local;
mod log;
mod metrics;
mod observer;
mod per_process;
mod prerecorded;
mod private_file;
mod process;
mod reader;
mod registry;
mod stream;
mod ticket;

pub use attributes::{
    Attributes, Inheritance, LogFullPolicy, StreamFullPolicy, GENERATION_VERSION, NAME_MAX,
};
pub use elements::{AnalysisSink, ElementSink, InboxSink, StreamNumbers, TraceElements};
pub use error::TraceError;
pub use event::{LostEvents, TraceEvent, Truncation};
pub use event_id::{EventId, EVENT_NAME_MAX, USER_EVENT_MAX};
pub use event_type_set::EventTypeSet;
pub use kernel::{KernelRecorder, MergedEvents, MergedItem, CPU_BYTES};
pub use live::{LiveStreams, StreamSelection};
pub use local::record;
pub use log::{FinalStatus, LogError, LogHeader, LogItem, LogReader, LogState, LogWriter};
pub use metrics::{RequiredEvent, TraceEvaluation, TraceMetric, TraceMetricError};
pub use observer::{AreaObserver, ObserveFrom, ObservedItem, ObservedStream, StreamObserver};
pub use stream::{ActiveStream, FilterChange, Stream, StreamStatus, Wait};

/// The user event type of a name in this process and its family. When all are used up, it is
/// [`EventId::UNNAMED`].
///
/// # Errors
/// [`TraceError`]: `ENAMETOOLONG`, `ENOMEM` if the process has no trace area.
pub fn open_event_type(name: &[u8]) -> Result<EventId, TraceError> {
    process::own()?.area().open_name(name)
}

/// The name of an event type in this process: of the standard, of Linux, or of a user event type
/// that [`open_event_type`] has defined.
#[must_use]
pub fn event_type_name(event: EventId) -> Option<Vec<u8>> {
    process::own().ok()?.area().event_name(event)
}
