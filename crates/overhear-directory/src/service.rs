// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service: one thread that serves programs and monitors, and maintains the registry and the
//! clock page.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear_event::{printable, ClockId, EventSet, Nanos, StreamId, StreamIdRange};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getrlimit, Resource as ProcessResource};

use crate::clock::{sensor_clock, ClockKeeper};
use crate::connection::{Connection, Next, CONNECTION};
use crate::fair_queue::FairQueue;
use crate::file_watch::FileWatch;
use crate::journal::Store;
use crate::lane_upkeep::LaneUpkeep;
use crate::limits::{LimitSettings, Machine};
use crate::memory::{MapError, Mapping};
use crate::needs::Needs;
use crate::opening::Opening;
use crate::packet::send;
use crate::peer::Peer;
use crate::poller::{Poller, Ready, Token};
use crate::protocol::Reply;
use crate::quota::Resource;
use crate::recovery::{Recovered, CLOCK_NAME};
use crate::registry::{lock, NotConnected, Registry};
use crate::rules::Rules;
use crate::sensor_record::DirectoryStatus;
use crate::sizing::Sizing;
use crate::task;
use crate::worker::{Prepared, PreparedBuffer, WorkQueue, Worker};

/// Time for the turns of connections between two polls.
const SERVE_DURATION: Duration = Duration::from_millis(2);

/// Why a directory could not start.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The socket could not be made.
    #[error("cannot listen at {}: {source}", .socket.display())]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// No memory for the clock page.
    #[error(transparent)]
    Map(#[from] MapError),
    /// No thread.
    #[error("cannot start the directory's thread: {0}")]
    Thread(io::Error),
}

/// Settings of a [`Directory`].
#[derive(Clone, Debug)]
pub struct DirectoryBuilder {
    streams: StreamIdRange,
    limits: LimitSettings,
    uid: u32,
    standalone: bool,
    retention: Duration,
    sizing: Sizing,
    rules: Rules,
    needs: Option<Needs>,
}

/// The state inherited from the service manager, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Listening sockets.
    pub(crate) listeners: Vec<OwnedFd>,
    /// The state of an earlier directory.
    pub(crate) left: Recovered,
    /// The store of files for the next directory.
    pub(crate) store: Option<Box<dyn Store>>,
}

impl DirectoryBuilder {
    /// The number of the first stream; smaller ones are those of the kernel's streams.
    #[must_use]
    pub const fn first_stream(mut self, id: StreamId) -> Self {
        self.streams = StreamIdRange::SESSION.starting_at(id);
        self
    }

    /// Limit of the bytes of all buffers together. 1 GiB by default.
    #[must_use]
    pub fn quota_bytes(mut self, bytes: u64) -> Self {
        self.limits.all = vec![(Resource::BufferBytes, bytes)];
        self
    }

    /// QueryRequest how many bytes the buffers of sensors without a declared rate take together:
    /// each gets less, the more sensors there are. Without it, each gets 64 Ki elements or 4 MiB.
    #[must_use]
    pub const fn unrated_bytes(mut self, bytes: u64) -> Self {
        self.sizing.unrated_bytes = Some(bytes);
        self
    }

    pub(crate) fn limits(mut self, limits: LimitSettings) -> Self {
        self.limits = limits;
        self
    }

    pub(crate) fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Makes a directory without a monitor in this process: a
    /// [`ProgramSource`](crate::ProgramSource) of it yields nothing, and sensors are not held for
    /// one.
    #[must_use]
    pub const fn standalone(mut self) -> Self {
        self.standalone = true;
        self
    }

    /// How long the buffers of an ended process are kept for a later monitor. A minute by default.
    #[must_use]
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The largest monitor period for which streams with a declared rate are sized. A monitor with
    /// this period misses no element of a sensor that keeps its rate, if it wakes at most 50 ms
    /// late. A second by default.
    #[must_use]
    pub const fn largest_period(mut self, period: Nanos) -> Self {
        self.sizing.largest_period = period;
        self
    }

    /// Switches on the sensors of these events, as analyses require them, and all others off,
    /// until a monitor switches them. By default all are on.
    #[must_use]
    pub fn required(self, events: EventSet) -> Self {
        self.needs(Needs::events(events))
    }

    /// As [`Self::required`], for other selections. Sensors that an attached monitor needs are on
    /// as well.
    #[must_use]
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = Some(needs);
        self
    }

    /// Starts the directory; it listens at `socket`, which must not exist yet.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn start(self, socket: &Path) -> Result<Directory, DirectoryError> {
        let inherited = Inherited {
            listeners: vec![self.listen(socket)?],
            ..Inherited::default()
        };
        let mut directory = self.start_with(inherited)?;
        directory.socket = socket.to_path_buf();
        directory.owns_socket = true;
        Ok(directory)
    }

    /// Makes a listening socket.
    pub(crate) fn listen(&self, socket: &Path) -> Result<OwnedFd, DirectoryError> {
        let fail = |errno: rustix::io::Errno| DirectoryError::Listen {
            socket: socket.to_path_buf(),
            source: errno.into(),
        };
        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(fail)?;
        let address = SocketAddrUnix::new(socket).map_err(fail)?;
        rustix::net::bind(&listener, &address).map_err(fail)?;
        if self.uid == 0 {
            // Programs of root may drop their privileges: peer credentials decide about
            // registrations, not the mode of the socket's file.
            rustix::fs::chmod(socket, Mode::from_raw_mode(0o666)).map_err(fail)?;
        }
        rustix::net::listen(&listener, 256).map_err(fail)?;
        Ok(listener)
    }

    /// Starts the directory with the state inherited from the service manager.
    pub(crate) fn start_with(self, inherited: Inherited) -> Result<Directory, DirectoryError> {
        let Inherited {
            listeners,
            mut left,
            store,
        } = inherited;
        let fail = |errno: rustix::io::Errno| DirectoryError::Thread(errno.into());
        let (stop, stopped) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(read, write)| (write, read))
            .map_err(fail)?;
        let poller = Poller::new().map_err(fail)?;
        poller.add(&stopped, Token::Stop).map_err(fail)?;
        for (index, listener) in (0..).zip(&listeners) {
            poller.add(listener, Token::Listener(index)).map_err(fail)?;
        }
        let poller = Arc::new(poller);

        let clock = match left.clock.take() {
            Some(page) => ClockKeeper::resume(page)?,
            None => ClockKeeper::start()?,
        };
        let clock_map = clock.as_ref().map(ClockKeeper::map).transpose()?;
        let clock_file = clock.as_ref().map(ClockKeeper::reader).transpose()?;
        let sensor_clock = if clock.is_some() {
            sensor_clock()
        } else {
            ClockId::Monotonic
        };
        let mut registry = Registry::new(
            self.streams,
            sensor_clock,
            self.rules,
            self.limits.quotas(&machine(), self.uid),
            Arc::clone(&poller),
        );
        registry.retention = self.retention;
        registry.sizing = self.sizing;
        let needs = self.needs.as_ref().map(Needs::compile).transpose();
        registry.needs = needs.expect("queries are compiled when they are made");
        let mut complaints = Vec::new();
        match FileWatch::new() {
            Ok(watch) => registry.watch_files(watch),
            Err(error) => complaints.push(format!("files cannot be watched: {error}")),
        }
        match store {
            Some(store) => {
                if let Some(clock) = &clock {
                    if let Err(error) = store.keep(CLOCK_NAME, clock.keep()?.as_fd()) {
                        let message = "the clock page does not outlive a restart";
                        complaints.push(format!("{message}: {error}"));
                    }
                }
                complaints.extend(registry.restore(left, store).err());
            }
            // No later directory continues the page, so it is sealed.
            None => clock.as_ref().map_or(Ok(()), ClockKeeper::seal)?,
        }
        if let Some(watch) = registry.file_watch() {
            poller.add(watch, Token::Freed).map_err(fail)?;
        }
        if !self.standalone {
            registry.attach_embedded();
        }
        let queue = WorkQueue::new().map_err(DirectoryError::Thread)?;
        poller.add(&*queue, Token::Worker).map_err(fail)?;
        registry.work_queue = Some(Arc::clone(&queue));
        let registry = Arc::new(Mutex::new(registry));
        let mut lanes = LaneUpkeep::new(Arc::clone(&registry));
        let worker = Worker::start(Arc::clone(&queue), move || lanes.turn());
        let worker = worker.map_err(DirectoryError::Thread)?;
        let service = Service {
            listeners,
            _stopped: stopped,
            uid: self.uid,
            clock,
            clock_file: clock_file.map(Arc::new),
            registry: Arc::clone(&registry),
            poller,
            queue,
            _worker: worker,
            connections: BTreeMap::new(),
            next_connection: 0,
            turns: FairQueue::default(),
            complaints,
        };
        let thread = std::thread::Builder::new()
            .name("oh-directory".to_string())
            .spawn(move || service.run())
            .map_err(DirectoryError::Thread)?;
        Ok(Directory {
            socket: PathBuf::new(),
            owns_socket: false,
            registry,
            clock_map: clock_map.map(Arc::new),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// The limits of this machine.
fn machine() -> Machine {
    let about = rustix::system::sysinfo();
    let watches = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
    let watches = watches.ok().and_then(|text| text.trim().parse().ok());
    Machine {
        memory_bytes: about.totalram as u64 * u64::from(about.mem_unit),
        descriptors: getrlimit(ProcessResource::Nofile)
            .current
            .unwrap_or(u64::MAX),
        watches: watches.unwrap_or(8192),
    }
}

/// A running directory. It ends, and removes its socket, when dropped; existing maps of its buffers
/// stay valid.
#[derive(Debug)]
pub struct Directory {
    socket: PathBuf,
    // Whether this directory made the socket's file, and removes it.
    owns_socket: bool,
    registry: Arc<Mutex<Registry>>,
    clock_map: Option<Arc<Mapping>>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Directory {
    /// Settings for a directory.
    #[must_use]
    pub fn builder() -> DirectoryBuilder {
        let uid = rustix::process::geteuid().as_raw();
        DirectoryBuilder {
            streams: StreamIdRange::SESSION,
            limits: LimitSettings {
                is_embedded: true,
                ..LimitSettings::default()
            },
            uid,
            standalone: false,
            retention: Duration::from_secs(60),
            sizing: Sizing::default(),
            rules: Rules::default(),
            needs: None,
        }
    }

    /// Its socket: the value for [`SOCKET_VARIABLE`](crate::SOCKET_VARIABLE).
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Takes the sensors that were refused, given up or deferred since the last call.
    #[must_use]
    pub fn take_not_connected(&self) -> NotConnected {
        lock(&self.registry).take_not_connected()
    }

    /// Names the program that this directory serves: its descendants may register, whatever their
    /// user. By default a directory of root serves everybody, any other its own user and root.
    pub fn serve_program(&self, pid: u32) {
        lock(&self.registry).program = Some(pid);
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> DirectoryStatus {
        lock(&self.registry).status()
    }

    pub(crate) fn registry(&self) -> Arc<Mutex<Registry>> {
        Arc::clone(&self.registry)
    }

    pub(crate) fn clock_map(&self) -> Option<Arc<Mapping>> {
        self.clock_map.clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.owns_socket {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

struct Service {
    listeners: Vec<OwnedFd>,
    // Kept open for the poller.
    _stopped: OwnedFd,
    uid: u32,
    clock: Option<ClockKeeper>,
    clock_file: Option<Arc<OwnedFd>>,
    registry: Arc<Mutex<Registry>>,
    poller: Arc<Poller>,
    queue: Arc<WorkQueue>,
    _worker: Worker,
    connections: BTreeMap<u32, Connection>,
    next_connection: u32,
    // Connections that are ready for a turn.
    turns: FairQueue<u32>,
    // Messages about state that cannot be stored, not logged yet.
    complaints: Vec<String>,
}

impl Service {
    fn run(mut self) {
        let mut next_tick = Instant::now() + ClockKeeper::INTERVAL;
        let mut is_tidy = true;
        loop {
            let wait = match is_tidy && self.turns.is_empty() {
                true => next_tick.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            for (token, ready) in self.poller.wait(wait) {
                match token {
                    Token::Stop => return,
                    Token::Connection(number) => self.is_ready(number, ready),
                    Token::Listener(index) => self.accept(index as usize),
                    Token::Process(pid) => lock(&self.registry).process_ended(pid),
                    Token::Freed => {
                        lock(&self.registry).collect_freed();
                    }
                    Token::Worker => self.take_prepared(),
                }
            }
            self.take_turns();
            is_tidy = !lock(&self.registry).tidy(Instant::now());
            let admitted = lock(&self.registry).admit_deferred();
            is_tidy &= admitted.is_empty();
            for (uid, file, opening) in admitted {
                self.queue.prepare(uid, file, opening);
            }
            self.take_pending();
            let now = Instant::now();
            if now >= next_tick {
                // The clock first: it alone has a deadline.
                if let Some(clock) = &mut self.clock {
                    clock.tick();
                }
                next_tick = Instant::now() + ClockKeeper::INTERVAL;
                self.tick(now);
            }
        }
    }

    /// The periodic work, ten times a second.
    fn tick(&mut self, now: Instant) {
        let overdue = self.connections.iter().filter(|(_, c)| c.is_overdue(now));
        let overdue: Vec<u32> = overdue.map(|(number, _)| *number).collect();
        for number in overdue {
            self.close(number);
        }
        for (number, connection) in &mut self.connections {
            if std::mem::take(&mut connection.is_later) {
                self.turns.push(connection.peer().uid, *number);
            }
        }
        let mut registry = lock(&self.registry);
        registry.end_unmapped();
        self.complaints.extend(registry.take_complaints(now));
        drop(registry);
        // Only a service has complaints; its standard error is the service manager's log.
        for complaint in self.complaints.drain(..) {
            eprintln!("overheard: {}", printable(&complaint));
        }
    }

    /// Handles a socket that is readable or writable.
    fn is_ready(&mut self, number: u32, ready: Ready) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.is_readable |= ready.to_read;
            connection.is_full &= !ready.to_write;
            self.turns.push(connection.peer().uid, number);
        }
    }

    /// Serves connections round robin by user, until the next poll is due.
    fn take_turns(&mut self) {
        let begun = Instant::now();
        while let Some(number) = self.turns.pop() {
            self.serve(number);
            if begun.elapsed() >= SERVE_DURATION {
                return;
            }
        }
    }

    fn serve(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        match connection.serve(&self.registry, &self.queue) {
            Next::Again => self.turns.push(connection.peer().uid, number),
            Next::Idle => {
                let token = Token::Connection(number);
                let (reads, writes) = connection.interest();
                self.poller.rearm(&*connection, token, reads, writes);
            }
            Next::Wait => {}
            Next::Close => self.close(number),
        }
    }

    /// Opens the buffers that the worker has prepared.
    fn take_prepared(&mut self) {
        for Prepared { opening, result } in self.queue.take_prepared() {
            let Some(number) = opening.connection else {
                self.open_deferred(opening, result);
                continue;
            };
            let Some(connection) = self.connections.get_mut(&number) else {
                let message = "its program ended before its buffer was ready";
                drop(result);
                opening.refuse(&mut lock(&self.registry), message);
                continue;
            };
            connection.is_prepared();
            match result {
                Ok((file, mapping, locked)) => {
                    let mut registry = lock(&self.registry);
                    let stream = opening.open(file, mapping, locked, &mut registry);
                    drop(registry);
                    connection.is_open(stream, &self.registry);
                }
                Err(message) => {
                    connection.not_opened(opening, &message, &self.registry);
                }
            }
            self.close(number);
        }
    }

    /// Opens a deferred sensor whose buffer is prepared, if its process is alive.
    fn open_deferred(&mut self, opening: Opening, result: PreparedBuffer) {
        let mut registry = lock(&self.registry);
        match result {
            Ok((file, mapping, locked)) if registry.watches(opening.pid) => {
                opening.open(file, mapping, locked, &mut registry);
            }
            result => {
                let stream = opening.stream();
                drop(result);
                opening.give_back(&mut registry);
                registry.forget_kept(stream);
            }
        }
    }

    /// Queues turns for monitors with new events.
    fn take_pending(&mut self) {
        let pending = lock(&self.registry).take_pending();
        for (number, goes_on) in pending {
            match self.connections.get(&number) {
                Some(connection) if goes_on => {
                    if !connection.is_full {
                        self.turns.push(connection.peer().uid, number);
                    }
                }
                _ => self.close(number),
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // A bounded number of connections, then their requests: endless connections of one user
        // must not block the others.
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            let Ok(fd) = rustix::net::accept_with(listener, flags) else {
                return;
            };
            // First, so that a flood of connections costs little.
            if let Some(uid) = Peer::user_of(&fd) {
                match self.charge_connection(uid) {
                    Ok(()) => self.admit(fd, uid),
                    Err(message) => self.reject(&fd, message),
                }
            }
        }
    }

    /// Charges a user for another connection. If all are in use, the user with the most loses its
    /// oldest one that is not a monitor's, if it has more than this user.
    fn charge_connection(&mut self, uid: u32) -> Result<(), String> {
        let mut registry = lock(&self.registry);
        let Err(shortage) = registry.charge(uid, CONNECTION) else {
            return Ok(());
        };
        let own = registry.quotas.used_by(uid).get(Resource::Connections);
        let largest = registry.quotas.largest_user(Resource::Connections);
        drop(registry);
        let victim = match (shortage.user, largest) {
            (None, Some((largest, count))) if count > own + 1 && largest != uid => largest,
            _ => return Err(shortage.message),
        };
        let mut theirs = self.connections.iter();
        let oldest = theirs.find(|(_, c)| c.peer().uid == victim && !c.is_monitor());
        let Some(oldest) = oldest.map(|(number, _)| *number) else {
            return Err(shortage.message);
        };
        self.close(oldest);
        let charged = lock(&self.registry).charge(uid, CONNECTION);
        charged.map_err(|shortage| shortage.message)
    }

    /// Rejects a connection for now.
    fn reject(&self, fd: &OwnedFd, message: String) {
        lock(&self.registry).count_turned_away();
        let reply = Reply::Refused {
            message,
            again: true,
        };
        if let Ok(packet) = serde_json::to_vec(&reply) {
            // An error means that the peer is gone.
            let _ = send(fd, &packet, &[]);
        }
    }

    /// Adds a connection that has been charged.
    fn admit(&mut self, fd: OwnedFd, uid: u32) {
        let Some(peer) = Peer::of(&fd) else {
            lock(&self.registry).release(uid, CONNECTION);
            return;
        };
        let may_register = self.may_register(&peer);
        let number = self.next_connection;
        self.next_connection = number.wrapping_add(1);
        let clock = self.clock_file.clone();
        let connection = Connection::new(fd, number, peer, may_register, clock);
        let token = Token::Connection(number);
        match self.poller.add_once(&connection, token) {
            Ok(()) => drop(self.connections.insert(number, connection)),
            Err(_) => lock(&self.registry).release(uid, CONNECTION),
        }
    }

    fn may_register(&self, peer: &Peer) -> Result<(), String> {
        if peer.uid == self.uid || peer.uid == 0 {
            return Ok(());
        }
        let program = lock(&self.registry).program;
        let served = match program {
            // Data read by the process id is valid only if the peer is alive afterwards.
            Some(program) => task::descends_from(peer.pid, program) && peer.process().is_some(),
            None => self.uid == 0,
        };
        if served {
            return Ok(());
        }
        Err(format!(
            "it runs as user {}, this directory serves user {} and the program it was made for",
            peer.uid, self.uid
        ))
    }

    fn close(&mut self, number: u32) {
        if let Some(mut connection) = self.connections.remove(&number) {
            // A program that goes away between grant and map loses the grant.
            connection.withdraw(&self.registry);
            let mut registry = lock(&self.registry);
            registry.release(connection.peer().uid, connection.amounts());
            if connection.is_monitor() {
                registry.detach(connection.monitor());
                registry.end_budget(connection.monitor());
            }
        }
    }
}
