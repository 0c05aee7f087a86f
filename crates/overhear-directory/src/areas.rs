// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace areas for clients of the directory: a traced process announces its area ([`publish`]), a
//! controller opens that of another process ([`open_of_process`]), and a monitor gets all that it
//! may read, also later ones ([`AreaFeed`]).
//!
//! The directory checks only the file: that it is shared memory of a fixed size, and belongs to the
//! user of the process. Its contents can be changed by the traced process at any time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::RegisterError;
use crate::client::{retry_until_timeout, socket_path, AttemptError, REGISTRATION_TIMEOUT};
use crate::packet::{Link, LinkError, MAX_REPLY};
use crate::protocol::{Areas, NoArea, OpenArea, Reply, Request, VERSION};
use crate::registry::{lock, Registry};
use crate::service::Directory;
use crate::trace_area::{descriptions, own_description, AREA_SENSOR};
use crate::{AreaAccess, AreaRecord};

/// Time between two requests for new areas.
const LIST_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two attempts to reach a directory again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two attempts at a directory that has refused.
const REFUSED_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait for the reply to a monitor's first request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An error in opening the area of a process.
#[derive(Debug, thiserror::Error)]
pub enum OpenAreaError {
    /// The environment has no directory.
    #[error("no directory listens, and trace areas of other processes are found only through a directory; start `overheard`, or the programs with `overhear run`")]
    NoDirectory,
    /// The directory cannot be reached.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The directory's rules do not permit it.
    #[error("the directory at {} refuses: {message}", .socket.display())]
    Refused {
        /// The directory's socket.
        socket: PathBuf,
        /// The reason, as a message.
        message: String,
    },
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// The process has not announced an area.
    #[error("process {0} has no trace area at this directory: it must be linked with liboverhear_posixtrace, and have found the directory when it started")]
    NoArea(u32),
}

/// An area with an open file.
#[derive(Debug)]
pub struct OpenedArea {
    /// The directory's record of it.
    pub record: AreaRecord,
    /// The file. With [`AreaAccess::Read`] it can only be mapped for reading.
    pub file: OwnedFd,
}

/// Announces the trace area of this process at the directory of its environment, so that monitors
/// and controllers find it. It takes at most half a second. It must be called again after a fork,
/// and when the process has another area.
///
/// # Errors
/// [`RegisterError`]; the process can still trace itself.
pub fn publish(area: impl AsFd) -> Result<(), RegisterError> {
    let socket = socket_path().ok_or(RegisterError::NoDirectory)?;
    publish_at(&socket, area)
}

/// As [`publish`], at the directory at `socket`.
///
/// # Errors
/// [`RegisterError`].
pub fn publish_at(socket: &Path, area: impl AsFd) -> Result<(), RegisterError> {
    let files = descriptions(area.as_fd()).map_err(|errno| RegisterError::Refused {
        sensor: AREA_SENSOR.to_string(),
        message: format!("its trace area cannot be opened again: {errno}"),
    })?;
    retry_until_timeout(|end| {
        let left = end.saturating_duration_since(Instant::now());
        let link = Link::for_one_exchange(socket, left)?;
        let request = Request::PublishArea { version: VERSION };
        let sent = link.send_with(&request, &[files[0].as_fd(), files[1].as_fd()]);
        let received = link.receive();
        // A rejected connection may already have its refusal, although the send failed.
        let (reply, _) = match (sent, received) {
            (_, Ok(received)) => received,
            (Err(error), Err(_)) | (Ok(()), Err(error)) => return Err(error.into()),
        };
        match reply {
            Reply::Published => Ok(()),
            Reply::Refused { message, again } => {
                let sensor = AREA_SENSOR.to_string();
                let error = RegisterError::Refused { sensor, message };
                Err(match again {
                    true => AttemptError::Transient(error),
                    false => AttemptError::Final(error),
                })
            }
            _ => Err(link.misunderstood().into()),
        }
    })
}

/// Opens the trace area of a process by the directory of this environment.
///
/// # Errors
/// [`OpenAreaError`].
pub fn open_of_process(pid: u32, access: AreaAccess) -> Result<OpenedArea, OpenAreaError> {
    let socket = socket_path().ok_or(OpenAreaError::NoDirectory)?;
    open_of_process_at(&socket, pid, access)
}

/// As [`open_of_process`], by the directory at `socket`.
///
/// # Errors
/// [`OpenAreaError`].
pub fn open_of_process_at(
    socket: &Path,
    pid: u32,
    access: AreaAccess,
) -> Result<OpenedArea, OpenAreaError> {
    let end = Instant::now() + REGISTRATION_TIMEOUT;
    loop {
        let opened = ask_for(socket, end, pid, access);
        let left = end.saturating_duration_since(Instant::now());
        match opened {
            // It is being restarted, or all its connections are in use.
            Err(Failed::Transient(_)) if !left.is_zero() => {
                std::thread::sleep(left.min(Duration::from_millis(10)));
            }
            Err(Failed::Transient(error) | Failed::Final(error)) => return Err(error),
            Ok(opened) => return Ok(opened),
        }
    }
}

/// Whether another attempt could succeed.
enum Failed {
    Transient(OpenAreaError),
    Final(OpenAreaError),
}

impl From<LinkError> for Failed {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed { .. } => Self::Transient(error.into()),
            _ => Self::Final(error.into()),
        }
    }
}

fn ask_for(
    socket: &Path,
    end: Instant,
    pid: u32,
    access: AreaAccess,
) -> Result<OpenedArea, Failed> {
    let left = end.saturating_duration_since(Instant::now());
    let link = Link::for_one_exchange(socket, left)?;
    let sent = link.send(&Request::OpenArea(OpenArea {
        version: VERSION,
        pid: Some(pid),
        area: None,
        access,
    }));
    let (reply, files) = match (sent, link.receive()) {
        (_, Ok(received)) => received,
        (Err(error), Err(_)) | (Ok(()), Err(error)) => return Err(error.into()),
    };
    match (reply, files.into_iter().next()) {
        (Reply::Area(record), Some(file)) => Ok(OpenedArea {
            record,
            file: own_description(file, access),
        }),
        (Reply::NoArea(NoArea::NoProcess), _) => Err(Failed::Final(OpenAreaError::NoProcess(pid))),
        (Reply::NoArea(NoArea::NotAnnounced), _) => Err(Failed::Final(OpenAreaError::NoArea(pid))),
        (Reply::Refused { message, again }, _) => {
            let socket = socket.to_path_buf();
            let error = OpenAreaError::Refused { socket, message };
            Err(match again {
                true => Failed::Transient(error),
                false => Failed::Final(error),
            })
        }
        _ => Err(link.misunderstood().into()),
    }
}

/// A change of the areas that a monitor may read.
#[derive(Debug)]
pub enum AreaEvent {
    /// An area, open for reading.
    Opened(OpenedArea),
    /// Its members have changed.
    Changed(AreaRecord),
    /// All its processes have ended: nothing is recorded into it any more. The value is its number.
    Ended(u64),
}

/// The trace areas of a directory that this process may read, and later ones.
///
/// A monitor polls it. A poll never waits for the directory. Without a directory the areas that are
/// open stay open, and no new ones appear.
#[derive(Debug)]
pub struct AreaFeed {
    directory: DirectorySide,
    // The areas that were opened, and their last record.
    known: BTreeMap<u64, AreaRecord>,
    // The generation of the last list.
    generation: Option<u64>,
}

#[derive(Debug)]
enum DirectorySide {
    Embedded(Arc<Mutex<Registry>>),
    Remote(Box<Remote>),
}

/// A directory in another process.
#[derive(Debug)]
struct Remote {
    socket: PathBuf,
    // None while no directory is connected.
    link: Option<Link>,
    identity: Option<u64>,
    // The request that the directory replies to next.
    waits_for: WaitsFor,
    // The parts of a list so far.
    list: Vec<AreaRecord>,
    to_open: VecDeque<u64>,
    // Areas that this process may not open after all.
    refused: Vec<u64>,
    next_request: Instant,
    packet: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    Nothing,
    List,
    Area(u64),
}

impl AreaFeed {
    /// The areas of a directory in this process.
    #[must_use]
    pub fn embedded(directory: &Directory) -> Self {
        Self::of(DirectorySide::Embedded(directory.registry()))
    }

    /// The areas of the directory at `socket`.
    ///
    /// # Errors
    /// [`LinkError`] if no directory listens there.
    pub fn connect(socket: &Path) -> Result<Self, LinkError> {
        let link = Link::open(socket, RESPONSE_TIMEOUT)?;
        Ok(Self::of(DirectorySide::Remote(Box::new(Remote {
            socket: socket.to_path_buf(),
            link: Some(link),
            identity: None,
            waits_for: WaitsFor::Nothing,
            list: Vec::new(),
            to_open: VecDeque::new(),
            refused: Vec::new(),
            next_request: Instant::now(),
            packet: vec![0; MAX_REPLY],
        }))))
    }

    const fn of(directory: DirectorySide) -> Self {
        Self {
            directory,
            known: BTreeMap::new(),
            generation: None,
        }
    }

    /// The changes since the last call.
    pub fn poll(&mut self) -> Vec<AreaEvent> {
        let mut events = Vec::new();
        match &mut self.directory {
            DirectorySide::Embedded(registry) => {
                let registry = Arc::clone(registry);
                self.poll_embedded(&lock(&registry), &mut events);
            }
            DirectorySide::Remote(_) => self.poll_remote(&mut events),
        }
        events
    }

    /// As [`Self::poll`], after the first reply of the directory: all areas that exist are opened.
    ///
    /// # Errors
    /// [`LinkError`] if the directory does not reply.
    pub fn poll_existing(&mut self) -> Result<Vec<AreaEvent>, LinkError> {
        let end = Instant::now() + RESPONSE_TIMEOUT;
        let mut events = self.poll();
        while let DirectorySide::Remote(remote) = &self.directory {
            if self.generation.is_some()
                && remote.waits_for == WaitsFor::Nothing
                && remote.to_open.is_empty()
            {
                break;
            }
            let Some(link) = &remote.link else {
                let socket = remote.socket.clone();
                return Err(LinkError::Closed { socket });
            };
            link.wait_until_readable(end)?;
            events.extend(self.poll());
        }
        Ok(events)
    }

    fn poll_embedded(&mut self, registry: &Registry, events: &mut Vec<AreaEvent>) {
        let generation = registry.area_generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let all = registry.areas_from(crate::trace_area::AreaId::default());
        let all: Vec<AreaRecord> = all.map(|(id, area)| area.record(id)).collect();
        for record in self.take_list(all, events) {
            let id = crate::trace_area::AreaId::from_raw(record.area);
            let area = registry.area(id);
            let file = area.map(|area| area.files.with(AreaAccess::Read).try_clone_to_owned());
            // Without a descriptor it is tried again with the next change.
            if let Some(Ok(file)) = file {
                self.open(OpenedArea { record, file }, events);
            }
        }
    }

    /// Compares a list with the known areas; returns those to open.
    fn take_list(&mut self, list: Vec<AreaRecord>, events: &mut Vec<AreaEvent>) -> Vec<AreaRecord> {
        let listed = |area: &u64| list.iter().any(|record| record.area == *area);
        let gone: Vec<u64> = self
            .known
            .keys()
            .copied()
            .filter(|it| !listed(it))
            .collect();
        for area in gone {
            self.end(area, events);
        }
        let mut to_open = Vec::new();
        for record in list {
            match self.known.get_mut(&record.area) {
                None => to_open.push(record),
                Some(known) if *known != record => {
                    let ends = record.ended && !known.ended;
                    *known = record.clone();
                    events.push(match ends {
                        true => AreaEvent::Ended(record.area),
                        false => AreaEvent::Changed(record),
                    });
                }
                Some(_) => {}
            }
        }
        to_open
    }

    fn end(&mut self, area: u64, events: &mut Vec<AreaEvent>) {
        if self.known.remove(&area).is_some_and(|record| !record.ended) {
            events.push(AreaEvent::Ended(area));
        }
    }

    fn open(&mut self, area: OpenedArea, events: &mut Vec<AreaEvent>) {
        let OpenedArea { record, .. } = &area;
        let (number, ended) = (record.area, record.ended);
        self.known.insert(number, record.clone());
        events.push(AreaEvent::Opened(area));
        if ended {
            events.push(AreaEvent::Ended(number));
        }
    }

    fn poll_remote(&mut self, events: &mut Vec<AreaEvent>) {
        loop {
            let DirectorySide::Remote(remote) = &mut self.directory else {
                return;
            };
            match remote.step(self.generation) {
                Ok(None) => return,
                Ok(Some((reply, files))) => self.take_reply(reply, files, events),
                // The directory is too old, or has ended: another one may be started.
                Err(_) => return remote.disconnect(),
            }
        }
    }

    fn take_reply(&mut self, reply: Reply, files: Vec<OwnedFd>, events: &mut Vec<AreaEvent>) {
        let DirectorySide::Remote(remote) = &mut self.directory else {
            return;
        };
        match (reply, remote.waits_for) {
            (Reply::Areas(areas), WaitsFor::List) => {
                let Areas {
                    directory,
                    generation,
                    is_known,
                    areas,
                    more,
                } = areas;
                remote.list.extend(areas);
                if more {
                    return;
                }
                remote.waits_for = WaitsFor::Nothing;
                let list = std::mem::take(&mut remote.list);
                if remote.identity.replace(directory) != Some(directory) {
                    // Another directory: it does not have the known areas, and its numbers start
                    // again.
                    remote.refused.clear();
                    let all: Vec<u64> = self.known.keys().copied().collect();
                    all.into_iter().for_each(|area| self.end(area, events));
                }
                if !is_known {
                    self.generation = Some(generation);
                    let to_open = self.take_list(list, events);
                    if let DirectorySide::Remote(remote) = &mut self.directory {
                        let numbers = to_open.iter().map(|record| record.area);
                        remote.to_open = numbers
                            .filter(|area| !remote.refused.contains(area))
                            .collect();
                    }
                }
            }
            (Reply::Area(record), WaitsFor::Area(_)) => {
                remote.waits_for = WaitsFor::Nothing;
                if let Some(file) = files.into_iter().next() {
                    self.open(OpenedArea { record, file }, events);
                }
            }
            // It ended meanwhile.
            (Reply::NoArea(_), WaitsFor::Area(_)) => remote.waits_for = WaitsFor::Nothing,
            (Reply::Refused { .. }, WaitsFor::Area(area)) => {
                remote.waits_for = WaitsFor::Nothing;
                remote.refused.push(area);
            }
            // It does not support trace areas, or permits no further monitor.
            (Reply::Refused { .. }, WaitsFor::List) => {
                remote.disconnect();
                remote.next_request = Instant::now() + REFUSED_INTERVAL;
            }
            _ => remote.disconnect(),
        }
    }
}

impl Remote {
    fn disconnect(&mut self) {
        self.link = None;
        self.waits_for = WaitsFor::Nothing;
        self.list.clear();
        self.to_open.clear();
        self.next_request = Instant::now() + RECONNECT_INTERVAL;
    }

    /// Sends the next request if it is due; returns a reply if there is one.
    fn step(&mut self, known: Option<u64>) -> Result<Option<(Reply, Vec<OwnedFd>)>, LinkError> {
        let now = Instant::now();
        if self.link.is_none() {
            if now < self.next_request {
                return Ok(None);
            }
            self.next_request = now + RECONNECT_INTERVAL;
            self.link = Some(Link::open(&self.socket, RECONNECT_INTERVAL)?);
        }
        let Some(link) = &self.link else {
            return Ok(None);
        };
        if self.waits_for == WaitsFor::Nothing {
            if let Some(area) = self.to_open.pop_front() {
                link.send(&Request::OpenArea(OpenArea {
                    version: VERSION,
                    pid: None,
                    area: Some(area),
                    access: AreaAccess::Read,
                }))?;
                self.waits_for = WaitsFor::Area(area);
            } else if now >= self.next_request || known.is_none() {
                // The list of an earlier directory is of no use for another one, which has another
                // generation.
                let version = VERSION;
                link.send(&Request::ListAreas { version, known })?;
                self.waits_for = WaitsFor::List;
                self.next_request = now + LIST_INTERVAL;
            } else {
                return Ok(None);
            }
        }
        link.receive_now(&mut self.packet)
    }
}
