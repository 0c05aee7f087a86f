// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of active trace streams as a source of a monitor.
//!
//! ```text
//!  directory: areas -> AreaFeed -> AreaObserver -> StreamObserver -> TraceElements -> Inbox
//!                      of each process            of each stream     streams of elements
//! ```
//!
//! The source finds the areas through a directory, also those of later processes, and the streams
//! in each area, also later ones. It maps areas for reading only: it changes nothing for the traced
//! processes and the controllers, which can still read each event.
//!
//! # Completeness
//!
//! - A stream that appears is read from its first event on. Its ring is kept for a while after its
//!   end, so that a short stream is read as well.
//! - Events that were overwritten, not finished, or lost because the stream was full are a gap with
//!   their number and cause.
//! - If an event is recorded into two streams, each of them has an element: the instance of a
//!   sensor is the name of its trace stream.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_directory::areas::{AreaEvent, AreaFeed, OpenedArea};
use overhear_directory::{AreaRecord, Directory, LinkError, Matcher};
use overhear_event::{
    ElementView, Gap, Inbox, Source, SourceError, StreamDescriptor, StreamId, StreamIdRange,
};

use crate::elements::{ElementSink, StreamNumbers, TraceElements};
use crate::observer::{AreaObserver, ObserveFrom, ObservedItem, ObservedStream, StreamObserver};
use crate::{EventId, LogHeader};

/// First stream id of this source. Other sources of a monitor number their streams from the
/// beginning of the local range on.
const FIRST_STREAM_ID: u32 = 1 << 31;
/// Maximum number of elements and gaps of a trace stream in one poll: a monitor's queue has room
/// for them.
const MAX_EVENTS_PER_POLL: u32 = 32 << 10;
/// Time between two checks whether processes of an area are alive that did not announce it.
const LIFE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Selects trace streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSelection {
    /// The process that is traced.
    pub pid: u32,
    /// The name of the streams; `None` for all of the process.
    pub name: Option<String>,
}

impl StreamSelection {
    fn matches(&self, stream: &ObservedStream) -> bool {
        let of_process = stream.target == self.pid || stream.traced.contains(&self.pid);
        let name = self.name.as_ref();
        of_process && name.is_none_or(|name| name.as_bytes() == stream.name)
    }
}

impl std::str::FromStr for StreamSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pid, name) = match text.split_once('/') {
            Some((pid, name)) => (pid, Some(name.to_string())),
            None => (text, None),
        };
        let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| {
            format!("`{pid}` is no process id; name PID, or PID/NAME for a stream with a name")
        })?;
        Ok(Self { pid, name })
    }
}

impl std::fmt::Display for StreamSelection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}/{name}", self.pid),
            None => write!(f, "{}", self.pid),
        }
    }
}

/// Reads the trace streams of a directory's processes.
#[derive(Debug)]
pub struct LiveStreams {
    feed: AreaFeed,
    areas: BTreeMap<u64, LiveArea>,
    matcher: Option<Matcher>,
    selection: Option<StreamSelection>,
    /// Whether streams that appear now are read.
    takes_new: bool,
    numbers: StreamNumbers,
    opened: u64,
    complaints: Vec<SourceError>,
}

/// An area that is observed.
#[derive(Debug)]
struct LiveArea {
    observer: AreaObserver,
    record: AreaRecord,
    streams: Vec<LiveStream>,
    /// Place and generation of the streams that were found, also of those that have ended.
    known: HashSet<(usize, u32)>,
    /// Time of the next check whether a process of it is alive, when the announced ones have ended.
    next_look: Instant,
}

/// A trace stream that is observed.
#[derive(Debug)]
struct LiveStream {
    reader: StreamObserver,
    elements: TraceElements,
    named: Vec<bool>,
    instance: String,
    capacity: u64,
    // Streams of elements that the matcher does not select.
    hidden: HashSet<StreamId>,
    /// Whether the last poll left events, or found one that was not finished.
    has_rest: bool,
}

impl LiveStreams {
    /// The trace streams of a directory in this process, each from its first event on.
    #[must_use]
    pub fn embedded(directory: &Directory) -> Self {
        let mut streams = Self::of(AreaFeed::embedded(directory));
        streams.takes_new = true;
        streams
    }

    /// The trace streams of the directory at `socket`: existing ones from `from` on, later ones
    /// from their first event on. Only the event types that the matcher selects, as sensors, and
    /// only the streams of the selection.
    ///
    /// # Errors
    /// [`LinkError`] if no directory listens there.
    pub fn connect(
        socket: &Path,
        from: ObserveFrom,
        matcher: Option<Matcher>,
        selection: Option<StreamSelection>,
    ) -> Result<Self, LinkError> {
        let mut streams = Self::of(AreaFeed::connect(socket)?);
        (streams.matcher, streams.selection) = (matcher, selection);
        let existing = streams.feed.poll_existing()?;
        for event in existing {
            streams.take(event);
        }
        streams.find_streams(from);
        streams.takes_new = true;
        Ok(streams)
    }

    fn of(feed: AreaFeed) -> Self {
        let range = StreamIdRange::LOCAL.starting_at(StreamId::from_raw(FIRST_STREAM_ID));
        Self {
            feed,
            areas: BTreeMap::new(),
            matcher: None,
            selection: None,
            takes_new: false,
            numbers: StreamNumbers::of(range),
            opened: 0,
            complaints: Vec::new(),
        }
    }

    /// Whether a stream of elements is one of this source.
    #[must_use]
    pub const fn has_stream(stream: StreamId) -> bool {
        stream.as_raw() >= FIRST_STREAM_ID
    }

    /// Whether later streams are read. They are by default.
    pub const fn take_new(&mut self, takes_new: bool) {
        self.takes_new = takes_new;
    }

    /// Number of trace streams that are read now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.areas.values().map(|area| area.streams.len()).sum()
    }

    /// Number of trace streams that were found so far.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether a process of the areas is alive: it could create another stream.
    #[must_use]
    pub fn has_process(&self, pid: u32) -> bool {
        let mut areas = self.areas.values();
        areas.any(|area| area.observer.living_processes().contains(&pid))
    }

    fn take(&mut self, event: AreaEvent) {
        match event {
            AreaEvent::Opened(opened) => self.open(opened),
            AreaEvent::Changed(record) => {
                if let Some(area) = self.areas.get_mut(&record.area) {
                    area.record = record;
                }
            }
            AreaEvent::Ended(area) => {
                if let Some(area) = self.areas.get_mut(&area) {
                    area.record.ended = true;
                }
            }
        }
    }

    fn open(&mut self, opened: OpenedArea) {
        let OpenedArea { record, file } = opened;
        match AreaObserver::open(file) {
            Ok(observer) => {
                let area = LiveArea {
                    observer,
                    streams: Vec::new(),
                    known: HashSet::new(),
                    next_look: Instant::now(),
                    record,
                };
                self.areas.insert(area.record.area, area);
            }
            Err(error) => {
                let task = record.members.first();
                let task = task.map_or_else(String::new, |it| format!("{}({})", it.comm, it.pid));
                let message = format!("the trace area of {task} cannot be read: {error}");
                self.complaints.push(SourceError(message));
            }
        }
    }

    /// Opens the streams that are new.
    fn find_streams(&mut self, from: ObserveFrom) {
        let Self {
            areas,
            selection,
            numbers,
            opened,
            complaints,
            ..
        } = self;
        for area in areas.values_mut() {
            let known = &area.known;
            let new = area
                .observer
                .streams_besides(|slot, generation| known.contains(&(slot, generation)));
            for stream in new {
                area.known.insert((stream.slot, stream.generation));
                if selection.as_ref().is_some_and(|it| !it.matches(&stream)) {
                    continue;
                }
                // A stream that had ended before this monitor came has no next event.
                if stream.ended && from == ObserveFrom::Now {
                    continue;
                }
                *opened += 1;
                match area.observer.observe(&stream, from) {
                    Ok(reader) => {
                        let numbers = numbers.clone();
                        let live = LiveStream::new(&stream, reader, &area.record, numbers);
                        area.streams.push(live);
                    }
                    Err(error) => {
                        let name = String::from_utf8_lossy(&stream.name);
                        let pid = stream.target;
                        let message = format!(
                            "the trace stream `{name}` of process {pid} cannot be read: {error}"
                        );
                        complaints.push(SourceError(message));
                    }
                }
            }
        }
    }
}

impl LiveArea {
    /// Whether all its processes have ended: those that announced it, and their children.
    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if !self.record.ended || now < self.next_look {
            return false;
        }
        self.next_look = now + LIFE_CHECK_INTERVAL;
        self.observer.living_processes().is_empty()
    }
}

impl LiveStream {
    fn new(
        stream: &ObservedStream,
        reader: StreamObserver,
        record: &AreaRecord,
        numbers: StreamNumbers,
    ) -> Self {
        let target = record.members.iter().find(|it| it.pid == stream.target);
        let comm = target.or(record.members.first());
        let mut header = LogHeader {
            pid: stream.target,
            comm: comm.map(|it| it.comm.clone()).unwrap_or_default(),
            ..LogHeader::default()
        };
        header.attributes.max_data_size = stream.max_data_size;
        let printable = |c: char| if c.is_control() { '?' } else { c };
        let instance = String::from_utf8_lossy(&stream.name);
        Self {
            reader,
            elements: TraceElements::new(&header).with_numbers(numbers),
            named: vec![false; EventId::COUNT],
            instance: instance.chars().map(printable).collect(),
            capacity: stream.capacity as u64,
            hidden: HashSet::new(),
            has_rest: false,
        }
    }

    /// Delivers the recorded events; returns whether the stream has ended.
    fn poll(&mut self, matcher: Option<&Matcher>, inbox: &mut dyn Inbox) -> bool {
        let has_ended = self.deliver(matcher, inbox);
        let mut sink = SelectedSink {
            inbox,
            matcher,
            instance: &self.instance,
            capacity: self.capacity,
            hidden: &mut self.hidden,
        };
        self.elements.report_unconverted(&mut sink);
        has_ended
    }

    fn deliver(&mut self, matcher: Option<&Matcher>, inbox: &mut dyn Inbox) -> bool {
        let Self {
            reader,
            elements,
            named,
            instance,
            capacity,
            hidden,
            has_rest,
        } = self;
        let mut sink = SelectedSink {
            inbox,
            matcher,
            instance,
            capacity: *capacity,
            hidden,
        };
        let mut delivered = 0;
        while delivered < MAX_EVENTS_PER_POLL as usize {
            delivered += 1;
            match reader.next_event() {
                ObservedItem::Event(event) => {
                    if !std::mem::replace(&mut named[event.event.index()], true) {
                        let kind = event.event;
                        // The event borrows the reader, which has the names.
                        let owned = event.data.to_vec();
                        let head = crate::TraceEvent { data: &[], ..event };
                        if let Some(name) = reader.event_name(kind) {
                            elements.define(kind, &name);
                        }
                        let event = crate::TraceEvent {
                            data: &owned,
                            ..head
                        };
                        elements.event(&event, &mut sink);
                    } else {
                        elements.event(&event, &mut sink);
                    }
                }
                ObservedItem::Lost(loss) => {
                    // It is a gap of each stream, and a damaged ring can have many.
                    delivered += elements.streams().count();
                    elements.lost(loss, &mut sink);
                }
                ObservedItem::Empty => {
                    *has_rest = reader.is_pending();
                    return false;
                }
                ObservedItem::Ended => return true,
            }
        }
        // The rest is still in the ring.
        for stream in elements.streams() {
            sink.leave(stream.id);
        }
        *has_rest = true;
        false
    }

    /// Its processes have ended without shutting it down.
    fn finish(&mut self, matcher: Option<&Matcher>, inbox: &mut dyn Inbox) {
        let mut sink = SelectedSink {
            inbox,
            matcher,
            instance: &self.instance,
            capacity: self.capacity,
            hidden: &mut self.hidden,
        };
        while let Some(loss) = self.reader.take_loss() {
            self.elements.lost(loss, &mut sink);
        }
        self.elements.close(&mut sink);
    }
}

/// Passes the items of selected streams on, and completes their descriptors.
struct SelectedSink<'a> {
    inbox: &'a mut dyn Inbox,
    matcher: Option<&'a Matcher>,
    instance: &'a str,
    capacity: u64,
    hidden: &'a mut HashSet<StreamId>,
}

impl SelectedSink<'_> {
    fn leave(&mut self, stream: StreamId) {
        if !self.hidden.contains(&stream) {
            self.inbox.leave(stream);
        }
    }

    fn shows(&self, stream: StreamId) -> bool {
        self.hidden.is_empty() || !self.hidden.contains(&stream)
    }
}

impl ElementSink for SelectedSink<'_> {
    fn open(&mut self, stream: &Arc<StreamDescriptor>) {
        let stream = StreamDescriptor {
            instance: self.instance.to_owned(),
            capacity: self.capacity,
            ..StreamDescriptor::clone(stream)
        };
        if self.matcher.is_some_and(|it| !it.matches(&stream)) {
            self.hidden.insert(stream.id);
        } else {
            self.inbox.open(Arc::new(stream));
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let stream = element.stream.id;
        if self.shows(stream) {
            let (sequence, time) = (element.sequence, element.time);
            self.inbox.element(stream, sequence, time, element.payload);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.shows(stream.id) {
            self.inbox.gap(stream.id, gap.first, gap.missed, gap.cause);
        }
    }

    fn close(&mut self, stream: StreamId) {
        if !self.hidden.remove(&stream) {
            self.inbox.close(stream);
        }
    }
}

impl Source for LiveStreams {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        for event in self.feed.poll() {
            self.take(event);
        }
        if self.takes_new {
            self.find_streams(ObserveFrom::Creation);
        }
        for complaint in self.complaints.drain(..) {
            inbox.complain(complaint);
        }
        let matcher = self.matcher.as_ref();
        self.areas.retain(|_, area| {
            // Checked before the rings are read: a process that has ended records nothing more.
            let is_over = area.is_over();
            area.streams.retain_mut(|stream| {
                let ended = stream.poll(matcher, inbox);
                if ended {
                    stream.finish(matcher, inbox);
                }
                !ended
            });
            let has_rest = area.streams.iter().any(|stream| stream.has_rest);
            if is_over && !has_rest {
                for stream in &mut area.streams {
                    stream.finish(matcher, inbox);
                }
            }
            !is_over || has_rest
        });
        Ok(())
    }
}
