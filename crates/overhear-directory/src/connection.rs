// SPDX-License-Identifier: MIT OR Apache-2.0
//! Somebody who talks to the directory: a program that registers a sensor, or a monitor. Here are
//! the packets of both and the steps of the hand-over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overhear_event::{ClockId, Origin, Rate, StreamDescriptor, StreamId, WriterKind};
use overhear_stream::Shape;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::control::Place;
use crate::memory::{Mapping, MemoryFile};
use crate::packet::{receive, send, MAX_REQUEST};
use crate::peer::Peer;
use crate::protocol::{Granted, Register, Reply, Request, Unregister, VERSION};
use crate::query::Matcher;
use crate::record::SensorState;
use crate::registry::{lock, random, MonitorId, Registered, Registry, Sensor};
use crate::sizing::Sizing;
use crate::task;

/// How long a program may take between two packets.
const PATIENCE: Duration = Duration::from_secs(2);

/// One conversation.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    number: u32,
    peer: Peer,
    // Whether the peer may register sensors; it may always ask.
    may_register: Result<(), String>,
    /// Whether there is room for it as a monitor.
    pub(crate) may_monitor: Result<(), String>,
    // None for a monitor: it may be silent as long as it likes.
    deadline: Option<Instant>,
    pending: Option<Pending>,
    // What to hand to monitors to read times with.
    clock: Option<Arc<OwnedFd>>,
    /// A list that is on its way: what was asked for, and the number to go on with.
    pub(crate) listing: Option<(Matcher, StreamId)>,
}

/// Granted, but not mapped yet.
#[derive(Debug)]
struct Pending {
    file: MemoryFile,
    token: u64,
    descriptor: StreamDescriptor,
    shape: Shape,
    clock: ClockId,
    place: Place,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What to do with a connection after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Keep,
    Close,
}

impl Connection {
    pub(crate) fn new(
        fd: OwnedFd,
        number: u32,
        peer: Peer,
        may_register: Result<(), String>,
        clock: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            fd,
            number,
            peer,
            may_register,
            may_monitor: Ok(()),
            deadline: Some(Instant::now() + PATIENCE),
            pending: None,
            clock,
            listing: None,
        }
    }

    /// Whether it has been silent for too long.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether nothing has come of it so far.
    pub(crate) const fn is_idle(&self) -> bool {
        self.pending.is_none() && self.deadline.is_some()
    }

    /// Whether it is a monitor's.
    pub(crate) const fn is_monitor(&self) -> bool {
        self.deadline.is_none()
    }

    pub(crate) const fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) const fn monitor(&self) -> MonitorId {
        MonitorId::Connection(self.number)
    }

    pub(crate) fn clock(&self) -> Option<BorrowedFd<'_>> {
        self.clock.as_ref().map(|clock| clock.as_fd())
    }

    /// From now on it may be silent as long as it likes, if there is room for another monitor.
    pub(crate) fn become_monitor(&mut self) -> Result<(), String> {
        if self.deadline.is_some() {
            self.may_monitor.clone()?;
            self.deadline = None;
        }
        Ok(())
    }

    /// Takes one packet.
    pub(crate) fn serve(&mut self, registry: &Mutex<Registry>) -> Next {
        let packet = match receive(&self.fd, MAX_REQUEST, RecvFlags::empty()) {
            Ok((packet, _)) if packet.is_empty() => return Next::Close,
            Ok((packet, _)) => packet,
            Err(Errno::AGAIN) => return Next::Keep,
            Err(Errno::MSGSIZE) => {
                let sentence = format!(
                    "its request exceeds {MAX_REQUEST} bytes; use fewer fields or shorter names"
                );
                return self.refuse(registry, "?", &sentence);
            }
            Err(_) => return Next::Close,
        };
        if self.deadline.is_some() {
            self.deadline = Some(Instant::now() + PATIENCE);
        }
        match serde_json::from_slice(&packet) {
            Ok(Request::Register(request)) => self.register(request, registry),
            Ok(Request::Mapped) => self.mapped(registry),
            Ok(Request::Unregister(request)) => self.unregister(&request, registry),
            Ok(Request::List(about)) => self.list(&about, registry),
            Ok(Request::Attach(about)) => self.attach(&about, registry),
            Ok(Request::Switch(switch)) => self.switch(&switch, registry),
            Ok(Request::Finished { streams }) => self.finished(&streams, registry),
            Ok(Request::Status { version }) => self.status(version, registry),
            Err(error) => {
                let sentence = format!("the request is not understood: {error}");
                self.refuse(registry, "?", &sentence)
            }
        }
    }

    /// Says no to a sensor, and remembers it: first in the registry, so that whoever has heard the
    /// refusal finds it counted.
    pub(crate) fn refuse(&self, registry: &Mutex<Registry>, sensor: &str, sentence: &str) -> Next {
        lock(registry).unheard(self.peer.pid, sensor, sentence);
        self.deny(sentence)
    }

    /// Says no to a monitor.
    pub(crate) fn deny(&self, sentence: &str) -> Next {
        let sentence = sentence.to_string();
        self.reply(&Reply::Refused { sentence }, &[]);
        Next::Close
    }

    /// Sends a reply; false if the other side is gone, or does not read.
    pub(crate) fn reply(&self, reply: &Reply, files: &[BorrowedFd<'_>]) -> bool {
        self.try_reply(reply, files).is_ok()
    }

    pub(crate) fn try_reply(
        &self,
        reply: &Reply,
        files: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        let packet = serde_json::to_vec(reply).map_err(|_| Errno::INVAL)?;
        send(&self.fd, &packet, files)
    }

    /// Takes back a grant that was not mapped: its memory counts no longer.
    pub(crate) fn withdraw(&mut self, registry: &Mutex<Registry>) {
        if let Some(pending) = self.pending.take() {
            let mut registry = lock(registry);
            let sentence = "its program did not map the buffer in time, or ended meanwhile";
            registry.unheard(self.peer.pid, &pending.descriptor.sensor, sentence);
            self.give_back(&pending, &mut registry);
        }
    }

    fn give_back(&self, pending: &Pending, registry: &mut Registry) {
        registry.unreserve(self.peer.uid, pending.file.bytes() as u64);
        registry.give_back(self.peer.pid, pending.place, pending.shape.lanes());
    }

    fn register(&mut self, request: Register, registry: &Mutex<Registry>) -> Next {
        self.withdraw(registry);
        let sensor = request.sensor.clone();
        let granted = self.grant(request, registry).map(|pending| {
            let control = lock(registry).control_reader(self.peer.pid, pending.place);
            let line = control.as_ref().map(|_| pending.place.line);
            let reply = Reply::Granted(Granted {
                stream: pending.descriptor.id.as_raw(),
                token: pending.token,
                stride: u32::try_from(pending.shape.elements().stride_bytes()).unwrap_or(u32::MAX),
                capacity: pending.shape.elements().capacity(),
                clock: pending.clock,
                kind: pending.shape.kind(),
                lanes: pending.shape.lanes(),
                line,
            });
            let mut files = vec![pending.file.as_fd()];
            files.extend(control.as_ref().map(AsFd::as_fd));
            let sent = self.reply(&reply, &files);
            self.pending = Some(pending);
            sent
        });
        match granted {
            Ok(true) => Next::Keep,
            Ok(false) => Next::Close,
            Err(sentence) => self.refuse(registry, &sensor, &sentence),
        }
    }

    /// Reserves under the lock, allocates without it: large buffers take time, and monitors must
    /// not wait for them.
    fn grant(&self, request: Register, registry: &Mutex<Registry>) -> Result<Pending, String> {
        let sizing = lock(registry).sizing;
        let (mut descriptor, shape) = self.checked(request, sizing)?;
        let (clock, place) = self.reserve(&mut descriptor, &shape, &mut lock(registry))?;
        let name = format!("overhear-{}", descriptor.sensor);
        let initial = shape.initial(clock, u64::from(descriptor.id.as_raw()));
        let file = MemoryFile::create(&name, shape.bytes(), &initial).map_err(|error| {
            let mut registry = lock(registry);
            registry.unreserve(self.peer.uid, shape.bytes() as u64);
            registry.give_back(self.peer.pid, place, shape.lanes());
            error.to_string()
        })?;
        Ok(Pending {
            file,
            token: random(),
            descriptor,
            shape,
            clock,
            place,
        })
    }

    /// What the request makes of itself: all but the number.
    fn checked(
        &self,
        request: Register,
        sizing: Sizing,
    ) -> Result<(StreamDescriptor, Shape), String> {
        if request.version != VERSION {
            return Err(format!(
                "it speaks version {} of the protocol, this directory version {VERSION}",
                request.version
            ));
        }
        check_name("id", &request.sensor, false)?;
        check_name("instance", &request.instance, true)?;
        // A rate from another process has not been checked by its constructor.
        let rate = request
            .rate
            .map(|rate| Rate::new(rate.period, rate.distance, rate.jitter))
            .transpose()
            .map_err(|error| error.to_string())?;
        let (shape, schema) = shape_of(&request, rate.as_ref(), sizing)?;
        let descriptor = StreamDescriptor {
            id: StreamId::default(),
            origin: Origin::Program(task::of_pid(self.peer.pid)),
            sensor: request.sensor,
            instance: request.instance,
            lane: None,
            schema: Arc::new(schema),
            rate,
            capacity: shape.elements().capacity(),
        };
        Ok((descriptor, shape))
    }

    /// Everything that a sensor needs besides its memory. After an error nothing of it is taken.
    fn reserve(
        &self,
        descriptor: &mut StreamDescriptor,
        shape: &Shape,
        registry: &mut Registry,
    ) -> Result<(ClockId, Place), String> {
        let Peer { pid, uid, .. } = self.peer;
        let rules = &registry.rules;
        rules.register(&self.peer, descriptor, &self.may_register)?;
        if let Some(twin) = registry.twin(pid, &descriptor.sensor, &descriptor.instance) {
            if task::maps_file(pid, twin.inode) {
                return Err(format!(
                    "this process has such a sensor already; give the second one an instance \
                     (id `{}`, instance `{}`)",
                    descriptor.sensor, descriptor.instance
                ));
            }
            // An `exec` unmaps the stream and ends nothing that the directory watches: the process
            // goes on as another program, which may have sensors of the same names.
            let stream = twin.registered.descriptor.id;
            registry.end(stream, SensorState::Retained);
        }
        if !registry.has_files() && !registry.has_embedded_monitor() {
            return Err(
                "this directory has no file descriptors left; raise its limit \
                 (`ulimit -n`, or LimitNOFILE in its unit)"
                    .to_string(),
            );
        }
        // Counted from here on, mapped or not: the pages are about to exist.
        let bytes = shape.bytes() as u64;
        registry.reserve(uid, bytes)?;
        let enabled = !registry.is_unneeded(uid, descriptor);
        let placed = registry
            .take_streams(shape.streams())
            .and_then(|id| Ok((id, registry.place(pid, shape.lanes(), enabled)?)));
        let (id, place) = placed.inspect_err(|_| registry.unreserve(uid, bytes))?;
        descriptor.id = id;
        Ok((registry.clock, place))
    }

    fn mapped(&mut self, registry: &Mutex<Registry>) -> Next {
        let Some(pending) = self.pending.take() else {
            return Next::Close;
        };
        match seal(&pending) {
            Ok((mapping, locked)) => {
                let inode = pending.file.inode();
                let registered = Registered {
                    descriptor: Arc::new(pending.descriptor),
                    mapping: Arc::new(mapping),
                    shape: pending.shape,
                    clock: pending.clock,
                };
                let mut registry = lock(registry);
                registry.locked(locked);
                // The monitor in this process needs no descriptor; others cannot have this sensor.
                let file = registry.has_files().then_some(pending.file);
                let mut sensor = Sensor::new(
                    registered,
                    file,
                    pending.token,
                    inode,
                    self.peer.pid,
                    self.peer.uid,
                );
                sensor.place = Some(pending.place);
                registry.open(sensor);
                drop(registry);
                self.reply(&Reply::Sealed, &[]);
                Next::Close
            }
            Err(sentence) => {
                self.give_back(&pending, &mut lock(registry));
                self.refuse(registry, &pending.descriptor.sensor, &sentence)
            }
        }
    }

    fn unregister(&self, request: &Unregister, registry: &Mutex<Registry>) -> Next {
        let stream = StreamId::from_raw(request.stream);
        let reply = if lock(registry).unregister(stream, request.token) {
            Reply::Unregistered
        } else {
            let sentence = "there is no such stream, or it belongs to somebody else";
            Reply::Refused {
                sentence: sentence.to_string(),
            }
        };
        self.reply(&reply, &[]);
        Next::Close
    }
}

/// Where everything lies in the memory of a sensor, and what monitors see of an element.
fn shape_of(
    request: &Register,
    rate: Option<&Rate>,
    sizing: Sizing,
) -> Result<(Shape, overhear_event::TypeSchema), String> {
    let kind = request.kind;
    let lanes = match (kind, request.lanes) {
        (WriterKind::Kernel, _) => return Err("only the kernel has kernel streams".to_string()),
        (WriterKind::Laned, 0) => default_lanes(),
        (WriterKind::Laned, lanes) => lanes,
        _ => 0,
    };
    let schema = match kind.names_threads() {
        true => request.schema.with_writer(),
        false => Ok(request.schema.clone()),
    };
    let schema = schema.map_err(|error| error.to_string())?;
    let stride = u64::from(schema.size().div_ceil(8) + 1) * 8;
    let capacity = match kind {
        WriterKind::Concurrent => sizing.queue(rate, stride, request.lanes, request.capacity),
        _ => sizing.capacity(rate, stride, lanes, request.capacity),
    };
    let shape = Shape::new(kind, request.schema.size(), capacity, lanes);
    let shape = shape.map_err(|error| error.to_string())?;
    Ok((shape, schema))
}

/// Lanes for a program that does not say how many threads will write: twice as many as there are
/// CPUs, and eight on small machines.
fn default_lanes() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(2 * cpus).unwrap_or(64).clamp(8, 64)
}

/// Seals the file and maps it for monitors; says whether its pages are locked in memory.
fn seal(pending: &Pending) -> Result<(Mapping, std::io::Result<()>), String> {
    let bytes = pending.file.bytes();
    pending.file.seal().map_err(|error| error.to_string())?;
    // The program could change the size until now. A map beyond the end of the file would kill the
    // monitor at its first look; from here on the seal holds.
    if pending.file.size() < bytes as u64 {
        return Err("its program changed the size of the buffer".to_string());
    }
    let mapping = Mapping::read_only(&pending.file, bytes).map_err(|error| error.to_string())?;
    let locked = mapping.lock();
    Ok((mapping, locked))
}

/// Names appear in traces, tables and file names of exports.
fn check_name(what: &str, name: &str, may_be_empty: bool) -> Result<(), String> {
    let good = name.len() <= 128 && !name.chars().any(char::is_control);
    if good && (may_be_empty || !name.is_empty()) {
        Ok(())
    } else {
        Err(format!(
            "its {what} is empty, longer than 128 bytes or has control characters"
        ))
    }
}
