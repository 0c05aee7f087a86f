// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor's side: what is there, and the memory of what it wants to read.

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
use crate::protocol::{About, Attached, Opened, Reply, Request, Switch, VERSION};
use crate::query::Query;
use crate::record::{DirectoryStatus, SensorRecord, UnheardRecord};
use crate::registry::Registered;
use crate::streams::StreamSet;

pub use crate::streams::Begin;

/// How long a monitor waits for an answer of the directory.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a monitor whose directory is gone looks for the next.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How many sensors that were read to their end are remembered.
const REMEMBERED: usize = 64 * 1024;
/// How many packets are taken in one round: elements must not wait for a thousand sensors.
const AT_ONCE: usize = 1024;

/// A directory cannot be asked, or says no.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It cannot be talked to.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It said no.
    #[error("the directory at {} refuses: {sentence}", .socket.display())]
    Refused {
        /// Where.
        socket: PathBuf,
        /// Its sentence.
        sentence: String,
    },
    /// What it handed over cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// What it said of a sensor makes no sense.
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
    /// knows where it usually is. The directory gives a connection up over which nothing is asked for two
    /// seconds; once something was, it may be silent.
    ///
    /// # Errors
    /// [`AttachError::Link`] if nobody listens there.
    pub fn connect(socket: &Path) -> Result<Self, AttachError> {
        let link = Link::open(socket, PATIENCE)?;
        Ok(Self { link })
    }

    fn refused(&self, sentence: String) -> AttachError {
        let socket = self.link.socket().to_path_buf();
        AttachError::Refused { socket, sentence }
    }

    fn unexpected(&self, reply: Reply) -> AttachError {
        match reply {
            Reply::Refused { sentence, .. } => self.refused(sentence),
            _ => self.link.misunderstood().into(),
        }
    }

    fn about(query: &Query) -> About {
        About {
            version: VERSION,
            query: query.clone(),
            needs: Needs::all(),
        }
    }

    /// The sensors that match and that this user may hear, in the order of their registration.
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

    /// How the directory is doing.
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

    /// The latest sensors that were not heard, of this user; for root and the directory's own user, of
    /// everybody.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn unheard(&mut self) -> Result<Vec<UnheardRecord>, AttachError> {
        self.link.send(&Request::Unheard { version: VERSION })?;
        match self.link.receive()?.0 {
            Reply::Unheard { sensors } => Ok(sensors),
            other => Err(self.unexpected(other)),
        }
    }

    /// Switches the sensors that match on or off, and returns how many that changed. Use
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
            Reply::Switched { changed } => Ok(changed),
            other => Err(self.unexpected(other)),
        }
    }

    /// Reads the sensors that match: those that are there, from `begin` on, and those that will
    /// appear, from their first element on. Returns when everything that is there has been mapped.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach(self, query: Query, begin: Begin) -> Result<AttachedSource, AttachError> {
        self.attach_needing(query, begin, Needs::all())
    }

    /// The same, and says which of these are evaluated: where only what is needed is observed, these are
    /// switched on.
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
            opened_again: BTreeSet::new(),
            read: BTreeSet::new(),
            settled: false,
            renumbered: false,
            look_again: Instant::now(),
            complaints: Vec::new(),
            packet: vec![0; MAX_REPLY],
        };
        let denied = source.subscribe(self)?;
        while let (false, Some(link)) = (source.settled, &source.link) {
            let (reply, files) = link.receive()?;
            source.take(reply, files);
        }
        if let (Some(sentence), true) = (denied, source.streams.ids().next().is_none()) {
            let socket = source.socket;
            return Err(AttachError::Refused { socket, sentence });
        }
        Ok(source)
    }
}

/// Reads sensors of a directory in another process.
///
/// If the directory goes away, the sensors that are attached are read on, and the next directory at
/// the same place is asked for those that have appeared meanwhile.
#[derive(Debug)]
pub struct AttachedSource {
    query: Query,
    needs: Needs,
    // Of sensors that were there before: none once the monitor has seen them all.
    begin: Option<Begin>,
    // None while the directory is gone.
    link: Option<Link>,
    socket: PathBuf,
    directory: u64,
    streams: StreamSet,
    // Sensors that the directory has named since the monitor attached, until all are named: others
    // are gone.
    opened_again: BTreeSet<StreamId>,
    // Sensors read to their end, of which a directory that died meanwhile may not have heard: the
    // youngest of them.
    read: BTreeSet<StreamId>,
    settled: bool,
    // The streams being read have the numbers of a directory that is gone: they are closed before
    // the next one's are heard of.
    renumbered: bool,
    look_again: Instant,
    complaints: Vec<SourceError>,
    // Room for what the directory says.
    packet: Vec<u8>,
}

impl AttachedSource {
    /// Every clock segment seen so far, oldest first, for the trace.
    #[must_use]
    pub fn clock_segments(&self) -> &[Segment] {
        self.streams.clock_segments()
    }

    /// Keeps no clock segments from now on, for monitors that record nothing: then a round in which no
    /// sensor appears or ends needs no memory.
    pub fn forget_clock_segments(&mut self) {
        self.streams.forget_history();
    }

    /// Whether a directory tells of sensors that appear and end. Without one, what is attached is
    /// read on.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// How many sensors are read.
    #[must_use]
    pub fn sensors(&self) -> usize {
        self.streams.ids().count()
    }

    /// Subscribes; returns why some sensors are not heard, if that is so.
    fn subscribe(&mut self, connection: MonitorConnection) -> Result<Option<String>, AttachError> {
        let request = Request::Attach(About {
            needs: self.needs.clone(),
            ..MonitorConnection::about(&self.query)
        });
        connection.link.send(&request)?;
        let (reply, files) = connection.link.receive()?;
        let Attached {
            directory,
            denied,
            sentence,
        } = match reply {
            Reply::Attached(attached) => attached,
            other => return Err(connection.unexpected(other)),
        };
        if directory != self.directory {
            // Another directory: it knows nothing of what is being read, and numbers anew.
            let all: Vec<StreamId> = self.streams.ids().collect();
            self.renumbered = !all.is_empty();
            self.read.clear();
            for stream in all {
                self.streams.end(stream);
            }
        }
        self.directory = directory;
        let page = files.into_iter().next();
        let bytes = page_geometry().bytes();
        let page = page.filter(|page| holds(page, bytes));
        let page = page
            .map(|page| Mapping::read_only(&page, bytes))
            .transpose()?;
        self.streams.set_clock(page.map(Arc::new));
        self.link = Some(connection.link);
        self.opened_again.clear();
        self.settled = false;
        let denied = (denied > 0).then(|| {
            let matching = match denied {
                1 => "1 sensor that matches",
                _ => &format!("{denied} sensors that match"),
            };
            format!("{matching} `{}` cannot be heard: {sentence}", self.query)
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
            Reply::Ended { stream } => self.streams.end(StreamId::from_raw(stream)),
            Reply::Settled => {
                self.settled = true;
                // What the directory no longer knows has been freed while nobody listened.
                let known = std::mem::take(&mut self.opened_again);
                let gone = self.streams.ids().filter(|id| !known.contains(id));
                let gone: Vec<StreamId> = gone.collect();
                for stream in gone {
                    self.streams.end(stream);
                }
            }
            _ => {
                let socket = self.socket.clone();
                self.lose(LinkError::Misunderstood { socket });
            }
        }
    }

    fn open(&mut self, opened: Opened, files: Vec<OwnedFd>) -> Result<(), AttachError> {
        let Opened { sensor, fresh } = opened;
        let id = sensor.descriptor.id;
        if !self.settled {
            self.opened_again.insert(id);
        }
        if self.streams.contains(id) {
            return Ok(());
        }
        if self.read.contains(&id) {
            return self.finish(&[id]);
        }
        let misunderstood = || LinkError::Misunderstood {
            socket: self.socket.clone(),
        };
        let file = files.into_iter().next().ok_or_else(misunderstood)?;
        let shape = sensor.shape()?;
        if !holds(&file, shape.bytes()) {
            return Err(misunderstood().into());
        }
        let mapping = Arc::new(Mapping::read_only(&file, shape.bytes())?);
        let registered = Registered {
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

    /// Tells that these sensors have been read to their end.
    fn finish(&mut self, finished: &[StreamId]) -> Result<(), AttachError> {
        self.read.extend(finished);
        while self.read.len() > REMEMBERED {
            self.read.pop_first();
        }
        if let (false, Some(link)) = (finished.is_empty(), &self.link) {
            let streams = finished.iter().map(|stream| stream.as_raw()).collect();
            link.send(&Request::Finished { streams })?;
        }
        Ok(())
    }

    /// The directory is gone.
    fn lose(&mut self, error: LinkError) {
        self.link = None;
        self.look_again = Instant::now() + LOOK_AGAIN;
        let sentence =
            format!("{error}; what is attached is read on, new sensors are not heard of");
        self.complaints.push(SourceError(sentence));
    }

    /// Takes the directory's news.
    fn hear(&mut self) {
        if self.link.is_none() && Instant::now() >= self.look_again {
            self.look_again = Instant::now() + LOOK_AGAIN;
            // What it has not seen has appeared meanwhile: of that every element counts.
            self.begin = None;
            if let Ok(connection) = MonitorConnection::connect(&self.socket) {
                // The next attempt may go better.
                let _ = self.subscribe(connection);
            }
        }
        if self.renumbered {
            return;
        }
        for _ in 0..AT_ONCE {
            let Some(link) = &self.link else { return };
            match link.receive_now(&mut self.packet) {
                Ok(Some((reply, files))) => self.take(reply, files),
                Ok(None) => return,
                Err(error) => self.lose(error),
            }
        }
    }
}

impl Source for AttachedSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        // Whoever has ended by now has published all it will: asked before the last read.
        self.hear();
        for complaint in self.complaints.drain(..) {
            inbox.complain(complaint);
        }
        let finished = self.streams.poll(inbox);
        if std::mem::take(&mut self.renumbered) {
            return Ok(());
        }
        if let Err(AttachError::Link(error)) = self.finish(&finished) {
            self.lose(error);
        }
        Ok(())
    }
}

/// Whether a file is as large as it must be: a map beyond its end would kill the monitor.
fn holds(file: &OwnedFd, bytes: usize) -> bool {
    let size = rustix::fs::fstat(file).map_or(0, |stat| stat.st_size);
    usize::try_from(size).is_ok_and(|size| size >= bytes)
}
