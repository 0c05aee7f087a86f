// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor's side of the protocol: lists sensors, switches them, and maps the ones to read.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_event::{Inbox, Source, SourceError, StreamId};
use overhear_stream::{LayoutError, Segment};

use crate::clock::page_geometry;
use crate::memory::{MapError, Mapping};
use crate::needs::Needs;
use crate::packet::{Link, LinkError, MAX_REPLY};
use crate::protocol::{Attached, Budget, Opened, QueryRequest, Reply, Request, Switch, VERSION};
use crate::query::Query;
use crate::registry::ReadableSensor;
use crate::sensor_record::{DirectoryStatus, NotConnectedRecord, SensorRecord};
use crate::streams::{SensorWrites, StreamSet};

pub use crate::streams::Begin;

/// How long a monitor waits for an answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts to reach a directory again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);
/// Finished sensors that are remembered for a directory that may not know of them, at most.
const MAX_FINISHED_SENSORS: usize = 64 * 1024;
/// Sensors in one request of a budget, at most: its packet is far smaller than the largest one.
const MAX_SWITCHED_PER_REQUEST: usize = 2048;
/// Packets taken in one round, at most: elements must not wait for a thousand new sensors.
const MAX_PACKETS_PER_ROUND: usize = 1024;

/// Why a request to a directory failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The directory cannot be reached.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The directory refused the request.
    #[error("the directory at {} refuses: {message}", .socket.display())]
    Refused {
        /// The directory's socket.
        socket: PathBuf,
        /// The reason, as a message.
        message: String,
    },
    /// A memory file from the directory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The layout of a sensor from the directory is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A monitor's connection to a directory.
///
/// ```no_run
/// use overhear_directory::{Begin, MonitorConnection, Query};
/// use std::path::Path;
///
/// let mut connection = MonitorConnection::connect(Path::new("/run/overhear/directory.sock"))?;
/// for sensor in connection.list(&Query::parse("server/*")?)? {
///     println!("{} {}", sensor.descriptor.label(), sensor.published);
/// }
/// let source = connection.attach(Query::all(), Begin::Now)?;
/// # let _ = source;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MonitorConnection {
    link: Link,
}

impl MonitorConnection {
    /// Connects to the directory at `socket`; [`client::socket_path`](crate::client::socket_path)
    /// has the default. The directory closes a connection without a first request within two
    /// seconds; after it there is no time limit.
    ///
    /// # Errors
    /// [`AttachError::Link`] if no directory listens there.
    pub fn connect(socket: &Path) -> Result<Self, AttachError> {
        let link = Link::open(socket, RESPONSE_TIMEOUT)?;
        Ok(Self { link })
    }

    fn refused(&self, message: String) -> AttachError {
        let socket = self.link.socket().to_path_buf();
        AttachError::Refused { socket, message }
    }

    fn unexpected(&self, reply: Reply) -> AttachError {
        match reply {
            Reply::Refused { message, .. } => self.refused(message),
            _ => self.link.misunderstood().into(),
        }
    }

    fn about(query: &Query) -> QueryRequest {
        QueryRequest {
            version: VERSION,
            query: query.clone(),
            needs: Needs::all(),
        }
    }

    /// The sensors that match and that this user may read, in the order of their registration.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn list(&mut self, query: &Query) -> Result<Vec<SensorRecord>, AttachError> {
        self.link.send(&Request::List(Self::about(query)))?;
        let mut all = Vec::new();
        loop {
            match self.link.receive()?.0 {
                Reply::Sensors { sensors, more } => {
                    all.extend(sensors);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.unexpected(other)),
            }
        }
    }

    /// The directory's status.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn status(&mut self) -> Result<DirectoryStatus, AttachError> {
        self.link.send(&Request::Status { version: VERSION })?;
        match self.link.receive()?.0 {
            Reply::Status(status) => Ok(status),
            other => Err(self.unexpected(other)),
        }
    }

    /// The latest sensors that were refused or deferred: those of this user, or of all users for
    /// root and the directory's own user.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn not_connected(&mut self) -> Result<Vec<NotConnectedRecord>, AttachError> {
        self.link
            .send(&Request::NotConnected { version: VERSION })?;
        match self.link.receive()?.0 {
            Reply::NotConnected { sensors } => Ok(sensors),
            other => Err(self.unexpected(other)),
        }
    }

    /// Switches the sensors that match on or off, and returns the number that changed. Use
    /// [`Query::stream`] for a single one.
    ///
    /// # Errors
    /// [`AttachError::Refused`] if some match and this user may switch none of them.
    pub fn set_enabled(&mut self, query: &Query, enabled: bool) -> Result<u32, AttachError> {
        self.link.send(&Request::Switch(Switch {
            version: VERSION,
            query: query.clone(),
            enabled,
        }))?;
        match self.link.receive()?.0 {
            Reply::Switched { changed, .. } => Ok(changed),
            other => Err(self.unexpected(other)),
        }
    }

    /// Switches sensors off to keep a budget, and others on again, by the numbers of their streams.
    /// Returns the number of requests that changed something.
    ///
    /// A sensor that is off for a budget counts the writes that it skips: each monitor that reads
    /// it gets them as gaps of the cause `budget`. A sensor stays on while a monitor needs it that
    /// does not yield to budgets ([`Needs::yield_to_budgets`]). When this connection ends, its
    /// requests end. An attached monitor uses [`AttachedSource::switch_for_budget`].
    ///
    /// # Errors
    /// [`AttachError::Refused`] if this user may not switch one of them; the others are switched.
    pub fn switch_for_budget(
        &mut self,
        off: &[StreamId],
        on: &[StreamId],
    ) -> Result<u32, AttachError> {
        let numbers = |streams: &[StreamId]| streams.iter().map(|stream| stream.as_raw()).collect();
        self.link.send(&Request::Budget(Budget {
            version: VERSION,
            off: numbers(off),
            on: numbers(on),
        }))?;
        match self.link.receive()?.0 {
            Reply::Switched { changed, .. } => Ok(changed),
            other => Err(self.unexpected(other)),
        }
    }

    /// Attaches to the sensors that match: to existing ones from `begin` on, to later ones from
    /// their first element on. Returns when all existing ones have been mapped.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(self, query: Query, begin: Begin) -> Result<AttachedSource, AttachError> {
        self.attach_needing(query, begin, Needs::all())
    }

    /// As [`Self::attach`], and states which of the sensors are evaluated: a directory that
    /// switches off unneeded sensors switches these on.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_needing(
        self,
        query: Query,
        begin: Begin,
        needs: Needs,
    ) -> Result<AttachedSource, AttachError> {
        let mut source = AttachedSource {
            query,
            needs,
            begin: Some(begin),
            link: None,
            socket: self.link.socket().to_path_buf(),
            directory: 0,
            streams: StreamSet::default(),
            named_again: BTreeSet::new(),
            read: BTreeSet::new(),
            settled: false,
            renumbered: false,
            next_reconnect: Instant::now(),
            complaints: Vec::new(),
            off: BTreeSet::new(),
            kept_on: 0,
            refusal: String::new(),
            packet: vec![0; MAX_REPLY],
        };
        let denied = source.subscribe(self)?;
        while let (false, Some(link)) = (source.settled, &source.link) {
            let (reply, files) = link.receive()?;
            source.take(reply, files);
        }
        if let (Some(message), true) = (denied, source.streams.ids().next().is_none()) {
            let socket = source.socket;
            return Err(AttachError::Refused { socket, message });
        }
        Ok(source)
    }
}

/// Reads sensors of a directory in another process.
///
/// If the directory ends, reading of the attached sensors continues. The source connects to the
/// next directory at the same socket and attaches to sensors that appeared meanwhile.
#[derive(Debug)]
pub struct AttachedSource {
    query: Query,
    needs: Needs,
    // Start position for sensors that existed before; `None` once all of them are attached.
    begin: Option<Begin>,
    // None while no directory is connected.
    link: Option<Link>,
    socket: PathBuf,
    directory: u64,
    streams: StreamSet,
    // Sensors that a directory after a reconnect has named so far. Once all are named, the others
    // have ended.
    named_again: BTreeSet<StreamId>,
    // The newest sensors that were read to their end: they are reported again to a restarted
    // directory.
    read: BTreeSet<StreamId>,
    settled: bool,
    // The current streams have numbers of a directory that is gone: they are closed before streams
    // of the next one are opened.
    renumbered: bool,
    next_reconnect: Instant,
    complaints: Vec<SourceError>,
    // Sensors that are switched off for this monitor's budget: requested again after a reconnect.
    off: BTreeSet<StreamId>,
    // Sensors of the latest budget request that stay on, because another monitor needs them.
    kept_on: u32,
    // The latest refusal of such a request.
    refusal: String,
    // Buffer for a packet.
    packet: Vec<u8>,
}

impl AttachedSource {
    /// Every clock segment seen so far, oldest first, for the trace.
    #[must_use]
    pub fn clock_segments(&self) -> &[Segment] {
        self.streams.clock_segments()
    }

    /// Drops the history of clock segments, for monitors that record nothing: then a round in which
    /// no sensor appears or ends allocates nothing.
    pub fn forget_clock_segments(&mut self) {
        self.streams.forget_history();
    }

    /// The writes of all attached sensors now, and those of sensors that have ended since the last
    /// call. Until the first call, sensors that end are not remembered.
    pub fn writes(&mut self) -> Vec<SensorWrites> {
        self.streams.writes()
    }

    /// Switches attached sensors off to keep a budget, and others on again, by the numbers of their
    /// streams. It does not wait for the directory: a refusal is a complaint of a later round. A
    /// sensor that is off counts the writes that it skips, and each monitor that reads it gets them
    /// as gaps of the cause `budget`. When this source is dropped, or its process is killed, its
    /// requests end.
    ///
    /// The needs of this source should [yield to budgets](Needs::yield_to_budgets): else its own
    /// need keeps the sensors on.
    pub fn switch_for_budget(&mut self, off: &[StreamId], on: &[StreamId]) {
        for stream in on {
            self.off.remove(stream);
        }
        self.off.extend(off);
        self.request_budget(off, on);
    }

    /// Number of sensors of the latest switch that stay on, because a monitor without a budget
    /// needs them. A directory needs some time to answer.
    #[must_use]
    pub const fn kept_on(&self) -> u32 {
        self.kept_on
    }

    fn request_budget(&mut self, off: &[StreamId], on: &[StreamId]) {
        let numbers = |streams: &[StreamId]| streams.iter().map(|stream| stream.as_raw()).collect();
        let parts = off.len().max(on.len()).div_ceil(MAX_SWITCHED_PER_REQUEST);
        for part in 0..parts {
            let begin = part * MAX_SWITCHED_PER_REQUEST;
            let of_part = |streams: &[StreamId]| {
                let end = (begin + MAX_SWITCHED_PER_REQUEST).min(streams.len());
                numbers(streams.get(begin..end).unwrap_or_default())
            };
            let request = Request::Budget(Budget {
                version: VERSION,
                off: of_part(off),
                on: of_part(on),
            });
            let sent = self.link.as_ref().map(|link| link.send(&request));
            if let Some(Err(error)) = sent {
                return self.disconnect(error);
            }
        }
    }

    /// Whether a directory is connected. Without one, the attached sensors are read, and no new
    /// ones appear.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Number of attached sensors.
    #[must_use]
    pub fn sensors(&self) -> usize {
        self.streams.ids().count()
    }

    /// Attaches over this connection. Returns a message if some matching sensors may not be read.
    fn subscribe(&mut self, connection: MonitorConnection) -> Result<Option<String>, AttachError> {
        let request = Request::Attach(QueryRequest {
            needs: self.needs.clone(),
            ..MonitorConnection::about(&self.query)
        });
        connection.link.send(&request)?;
        let (reply, files) = connection.link.receive()?;
        let Attached {
            directory,
            denied,
            message,
        } = match reply {
            Reply::Attached(attached) => attached,
            other => return Err(connection.unexpected(other)),
        };
        if directory != self.directory {
            // Another directory: it does not have the current sensors, and its numbers start again.
            let all: Vec<StreamId> = self.streams.ids().collect();
            self.renumbered = !all.is_empty();
            self.read.clear();
            self.off.clear();
            for stream in all {
                self.streams.end(stream);
            }
        }
        self.directory = directory;
        let page = files.into_iter().next();
        let bytes = page_geometry().bytes();
        let page = page.filter(|page| is_at_least(page, bytes));
        let page = page
            .map(|page| Mapping::read_only(&page, bytes))
            .transpose()?;
        self.streams.set_clock(page.map(Arc::new));
        self.link = Some(connection.link);
        self.named_again.clear();
        self.settled = false;
        let denied = (denied > 0).then(|| {
            let matching = match denied {
                1 => "1 sensor that matches",
                _ => &format!("{denied} sensors that match"),
            };
            format!("{matching} `{}` cannot be read: {message}", self.query)
        });
        self.complaints.extend(denied.clone().map(SourceError));
        Ok(denied)
    }

    fn take(&mut self, reply: Reply, files: Vec<OwnedFd>) {
        match reply {
            Reply::Opened(opened) => {
                let label = opened.sensor.descriptor.label();
                if let Err(error) = self.open(opened, files) {
                    self.complaints
                        .push(SourceError(format!("{label}: {error}")));
                }
            }
            Reply::Ended { stream } => {
                let stream = StreamId::from_raw(stream);
                self.off.remove(&stream);
                self.streams.end(stream);
            }
            Reply::Switched { kept_on, .. } => self.kept_on = kept_on,
            Reply::Refused { message, .. } => self.take_refusal(message),
            Reply::Settled => {
                self.settled = true;
                // Sensors that the directory does not have were freed while no monitor was
                // connected.
                let known = std::mem::take(&mut self.named_again);
                let gone = self.streams.ids().filter(|id| !known.contains(id));
                let gone: Vec<StreamId> = gone.collect();
                for stream in gone {
                    self.off.remove(&stream);
                    self.streams.end(stream);
                }
                // A directory that was restarted has no requests of budgets.
                let off: Vec<StreamId> = self.off.iter().copied().collect();
                self.request_budget(&off, &[]);
            }
            _ => {
                let socket = self.socket.clone();
                self.disconnect(LinkError::Misunderstood { socket });
            }
        }
    }

    /// Complains about a refused request of a budget, unless the last one was refused alike.
    fn take_refusal(&mut self, message: String) {
        if self.refusal != message {
            let socket = self.socket.display();
            let complaint = format!("the directory at {socket} refuses: {message}");
            self.complaints.push(SourceError(complaint));
            self.refusal = message;
        }
    }

    fn open(&mut self, opened: Opened, files: Vec<OwnedFd>) -> Result<(), AttachError> {
        let Opened { sensor, fresh } = opened;
        let id = sensor.descriptor.id;
        if !self.settled {
            self.named_again.insert(id);
        }
        if self.streams.contains(id) {
            return Ok(());
        }
        if self.read.contains(&id) {
            return self.report_finished(&[id]);
        }
        let misunderstood = || LinkError::Misunderstood {
            socket: self.socket.clone(),
        };
        let file = files.into_iter().next().ok_or_else(misunderstood)?;
        let shape = sensor.shape()?;
        if !is_at_least(&file, shape.bytes()) {
            return Err(misunderstood().into());
        }
        let mapping = Arc::new(Mapping::read_only(&file, shape.bytes())?);
        let registered = ReadableSensor {
            descriptor: Arc::new(sensor.descriptor),
            mapping,
            shape,
            clock: sensor.clock,
        };
        let begin = self.begin.filter(|_| !fresh);
        if let Err(error) = self.streams.admit(registered, begin) {
            self.complaints.push(error);
        }
        Ok(())
    }

    /// Reports to the directory that these sensors have been read to their end.
    fn report_finished(&mut self, finished: &[StreamId]) -> Result<(), AttachError> {
        self.read.extend(finished);
        while self.read.len() > MAX_FINISHED_SENSORS {
            self.read.pop_first();
        }
        if let (false, Some(link)) = (finished.is_empty(), &self.link) {
            let streams = finished.iter().map(|stream| stream.as_raw()).collect();
            link.send(&Request::Finished { streams })?;
        }
        Ok(())
    }

    /// Handles the end of the directory.
    fn disconnect(&mut self, error: LinkError) {
        self.link = None;
        self.next_reconnect = Instant::now() + RECONNECT_INTERVAL;
        let message = format!("{error}; attached sensors are still read, new ones are not found");
        self.complaints.push(SourceError(message));
    }

    /// Takes pending packets, or reconnects.
    fn receive_replies(&mut self) {
        if self.link.is_none() && Instant::now() >= self.next_reconnect {
            self.next_reconnect = Instant::now() + RECONNECT_INTERVAL;
            // Sensors that were not attached before have appeared meanwhile: they are read from the
            // start.
            self.begin = None;
            if let Ok(connection) = MonitorConnection::connect(&self.socket) {
                // Tried again later.
                let _ = self.subscribe(connection);
            }
        }
        if self.renumbered {
            return;
        }
        for _ in 0..MAX_PACKETS_PER_ROUND {
            let Some(link) = &self.link else { return };
            match link.receive_now(&mut self.packet) {
                Ok(Some((reply, files))) => self.take(reply, files),
                Ok(None) => return,
                Err(error) => self.disconnect(error),
            }
        }
    }
}

impl Source for AttachedSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        // Ends are taken before the rings are read: a sensor that has ended publishes nothing more.
        self.receive_replies();
        for complaint in self.complaints.drain(..) {
            inbox.complain(complaint);
        }
        let finished = self.streams.poll(inbox);
        if std::mem::take(&mut self.renumbered) {
            return Ok(());
        }
        if let Err(AttachError::Link(error)) = self.report_finished(&finished) {
            self.disconnect(error);
        }
        Ok(())
    }
}

/// Whether a file has at least these bytes: access to a map beyond its end would kill the monitor.
fn is_at_least(file: &OwnedFd, bytes: usize) -> bool {
    let size = rustix::fs::fstat(file).map_or(0, |stat| stat.st_size);
    usize::try_from(size).is_ok_and(|size| size >= bytes)
}
