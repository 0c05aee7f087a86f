// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear posix`: the active POSIX trace streams of a directory.

use std::path::Path;

use overhear_directory::areas::{AreaEvent, AreaFeed};
use overhear_directory::{AreaRecord, Begin, Query};
use overhear_posixtrace::{
    AreaObserver, EventId, Inheritance, LiveStreams, ObserveFrom, ObservedStream, StreamFullPolicy,
    USER_EVENT_MAX,
};
use serde::Serialize;

use crate::error::{ErrorKind, SessionError, Setting};

/// The trace streams of a directory, as a JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct PosixListing {
    /// Version of the program that made the document.
    pub overhear_version: String,
    /// The socket of the directory.
    pub socket: String,
    /// Number of processes that could be traced: those of the areas that the caller may read.
    pub processes: u64,
    /// The active streams, by area and slot.
    pub streams: Vec<PosixStream>,
    /// Areas that cannot be read, with the reason.
    pub notes: Vec<String>,
}

/// One active trace stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PosixStream {
    /// `comm(pid)` of the traced process.
    pub task: String,
    /// The traced process.
    pub pid: u32,
    /// User of the process.
    pub uid: u32,
    /// The name of the stream; empty by default.
    pub name: String,
    /// `running`, `suspended`, or `ended`: its process or its controller is gone, and its last
    /// events can still be read.
    pub state: &'static str,
    /// Whether it has no free slot for another event.
    pub full: bool,
    /// `loop`, `until_full` or `flush`.
    pub policy: &'static str,
    /// Whether children of the process are traced into it.
    pub inherited: bool,
    /// The processes that are traced into it now.
    pub traced: Vec<u32>,
    /// Whether it has a log.
    pub log: bool,
    /// The process that controls it.
    pub controller: u32,
    /// Maximum number of events that it holds.
    pub capacity: u64,
    /// Maximum bytes of data of an event.
    pub max_data_size: u64,
    /// Number of events recorded since its creation.
    pub recorded: u64,
    /// Number of events that were lost because the stream was full.
    pub lost_full: u64,
    /// Number of events that newer ones have replaced, read or not.
    pub overwritten: u64,
    /// Names of the event types of the process that it does not filter out.
    pub event_types: Vec<String>,
}

impl PosixStream {
    fn of(record: &AreaRecord, area: &AreaObserver, stream: &ObservedStream) -> Self {
        let target = record.members.iter().find(|it| it.pid == stream.target);
        let comm = target.or(record.members.first());
        let comm = comm.map_or("", |task| task.comm.as_str());
        let replaced = match stream.policy {
            StreamFullPolicy::Loop => stream.written.saturating_sub(stream.capacity as u64),
            StreamFullPolicy::UntilFull | StreamFullPolicy::Flush => 0,
        };
        let types = (0..USER_EVENT_MAX).filter_map(EventId::user);
        let types = types.filter(|event| !stream.filter.contains(*event));
        Self {
            task: format!("{comm}({})", stream.target),
            pid: stream.target,
            uid: record.uid,
            name: text(&stream.name),
            state: match (stream.ended || record.ended, stream.running) {
                (true, _) => "ended",
                (false, true) => "running",
                (false, false) => "suspended",
            },
            full: stream.full,
            policy: match stream.policy {
                StreamFullPolicy::Loop => "loop",
                StreamFullPolicy::UntilFull => "until_full",
                StreamFullPolicy::Flush => "flush",
            },
            inherited: stream.inheritance == Inheritance::Inherited,
            traced: stream.traced.clone(),
            log: stream.has_log,
            controller: stream.controller,
            capacity: stream.capacity as u64,
            max_data_size: stream.max_data_size as u64,
            recorded: stream.written,
            lost_full: stream.lost_full,
            overwritten: replaced,
            event_types: types
                .filter(|event| *event != EventId::UNNAMED)
                .filter_map(|event| area.event_name(event))
                .map(|name| text(&name))
                .collect(),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// This program observes others, and is not traced itself: the library of traced processes, with
/// which it is linked, checks for this symbol.
#[no_mangle]
#[allow(non_upper_case_globals, reason = "a symbol of C")]
static oh_posix_trace_observer_: u8 = 1;

/// The trace streams of the directory at `socket` as a source: the event types that match as
/// sensors. Existing streams are read from `begin` on, later ones from their first event on.
///
/// # Errors
/// [`SessionError`] if no directory listens.
pub fn source(socket: &Path, query: &Query, begin: Begin) -> Result<LiveStreams, SessionError> {
    let matcher = query.compile();
    let matcher =
        matcher.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
    let from = match begin {
        Begin::Now => ObserveFrom::Now,
        Begin::Buffer => ObserveFrom::Oldest,
    };
    let streams = LiveStreams::connect(socket, from, Some(matcher), None);
    streams.map_err(|error| SessionError::new(ErrorKind::Unavailable, error.to_string()))
}

/// The active trace streams of the directory at `socket` that this user may read.
///
/// # Errors
/// [`SessionError`] if no directory listens.
pub fn list(socket: &Path) -> Result<PosixListing, SessionError> {
    let mut listing = PosixListing {
        overhear_version: env!("CARGO_PKG_VERSION").to_string(),
        socket: socket.display().to_string(),
        processes: 0,
        streams: Vec::new(),
        notes: Vec::new(),
    };
    let unavailable = |error: overhear_directory::LinkError| {
        let message = format!("{error}; start `overheard`, or `overhear run` with this socket");
        SessionError::new(ErrorKind::Unavailable, message).about(Setting::Socket)
    };
    let mut feed = AreaFeed::connect(socket).map_err(unavailable)?;
    for event in feed.poll_existing().map_err(unavailable)? {
        let AreaEvent::Opened(opened) = event else {
            continue;
        };
        let record = opened.record;
        if !record.ended {
            listing.processes += record.members.len() as u64;
        }
        match AreaObserver::open(opened.file) {
            Ok(area) => {
                let streams = area.streams();
                let streams = streams
                    .iter()
                    .map(|stream| PosixStream::of(&record, &area, stream));
                listing.streams.extend(streams);
            }
            Err(error) => {
                let task = record.members.first();
                let task =
                    task.map_or(String::new(), |task| format!("{}({})", task.comm, task.pid));
                listing
                    .notes
                    .push(format!("the trace area of {task} cannot be read: {error}"));
            }
        }
    }
    Ok(listing)
}
