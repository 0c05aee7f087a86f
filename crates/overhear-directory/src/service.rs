// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service: one thread that accepts registrations and monitors, keeps the sensors and the clock
//! page.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear_event::{ClockId, EventSet, Nanos, StreamId};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getrlimit, Resource};

use crate::audience::Told;
use crate::clock::{sensor_clock, ClockKeeper};
use crate::connection::{Connection, Next};
use crate::journal::Store;
use crate::kept::{Left, CLOCK_NAME};
use crate::memory::{MapError, Mapping};
use crate::needs::Needs;
use crate::peer::Peer;
use crate::poller::{Poller, Token};
use crate::quota::{Quotas, Usage};
use crate::record::DirectoryStatus;
use crate::registry::{lock, OwnedLane, Registry, Unheard};
use crate::rules::Rules;
use crate::sizing::Sizing;
use crate::task;

/// How many registrations may be under way at the same moment.
const MAX_REGISTERING: usize = 256;
/// How many monitors may be connected.
const MAX_MONITORS: usize = 256;
/// How many of them may be of one user.
const MAX_MONITORS_OF_USER: usize = 64;
/// Descriptors for everything but sensors and tasks.
const OTHER_FILES: usize = MAX_REGISTERING + MAX_MONITORS + 128;
/// How often the threads of laned sensors are looked after.
const RECLAIM: Duration = Duration::from_millis(250);
/// Lanes that are looked at while the registry is locked.
const LANES_AT_ONCE: usize = 512;
/// How long threads are looked after at a tick before others are served again.
const LOOK_AFTER: Duration = Duration::from_millis(5);

/// The directory could not start.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The socket could not be made.
    #[error("cannot listen at {}: {source}", .socket.display())]
    Listen {
        /// Where.
        socket: PathBuf,
        /// What the kernel said.
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
    first_stream: u32,
    quotas: Quotas,
    uid: u32,
    standalone: bool,
    retention: Duration,
    sizing: Sizing,
    rules: Rules,
    needs: Option<Needs>,
}

/// What comes from the service manager, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// Sockets that listen already.
    pub(crate) listeners: Vec<OwnedFd>,
    /// What an earlier directory left.
    pub(crate) left: Left,
    /// Where files outlive this one.
    pub(crate) store: Option<Box<dyn Store>>,
}

impl DirectoryBuilder {
    /// The number of the first stream; smaller ones are left to the kernel's streams.
    #[must_use]
    pub const fn first_stream(mut self, id: StreamId) -> Self {
        self.first_stream = id.as_raw();
        self
    }

    /// How many bytes all buffers together may take. 1 GiB by default.
    #[must_use]
    pub fn quota_bytes(mut self, bytes: u64) -> Self {
        let each = Usage {
            bytes,
            sensors: u64::MAX,
        };
        self.quotas = Quotas::new(bytes, each, BTreeMap::new());
        self
    }

    pub(crate) fn quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    pub(crate) fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Nobody in this process reads: a [`ProgramSource`](crate::ProgramSource) of this directory
    /// yields nothing, and sensors do not wait for one.
    #[must_use]
    pub const fn standalone(mut self) -> Self {
        self.standalone = true;
        self
    }

    /// How long the buffers of a process that ended are kept for a monitor to come. A minute by
    /// default.
    #[must_use]
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The largest period of a monitor for which streams with a declared rate are sized: of a sensor that
    /// keeps its rate such a monitor misses nothing, if it wakes at most 50 ms late. A second by
    /// default.
    #[must_use]
    pub const fn largest_period(mut self, period: Nanos) -> Self {
        self.sizing.largest_period = period;
        self
    }

    /// Resolves what evaluations require: the sensors of these events begin switched on, all others
    /// switched off, until a monitor switches them. Without it all begin switched on.
    #[must_use]
    pub fn required(self, events: EventSet) -> Self {
        self.needs(Needs::events(events))
    }

    /// The same for sensors that are named in other ways. What a monitor needs that attaches is switched on
    /// as long as it does, here as everywhere.
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

    /// Makes a socket to be asked at.
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
            // Programs of root may drop their privileges; who may register is decided by peer
            // credentials, not by the mode of a file.
            rustix::fs::chmod(socket, Mode::from_raw_mode(0o666)).map_err(fail)?;
        }
        rustix::net::listen(&listener, 256).map_err(fail)?;
        Ok(listener)
    }

    /// Starts the directory with what the service manager hands over.
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
            self.first_stream,
            sensor_clock,
            self.rules,
            self.quotas,
            Arc::clone(&poller),
        );
        registry.retention = self.retention;
        registry.sizing = self.sizing;
        let needs = self.needs.as_ref().map(Needs::compile).transpose();
        registry.needs = needs.expect("queries are compiled when they are made");
        registry.most_files = most_files();
        let mut complaints = Vec::new();
        match store {
            Some(store) => {
                if let Some(clock) = &clock {
                    if let Err(error) = store.keep(CLOCK_NAME, clock.keep()?.as_fd()) {
                        let sentence = "the clock page does not outlive a restart";
                        complaints.push(format!("{sentence}: {error}"));
                    }
                }
                complaints.extend(registry.restore(left, store).err());
            }
            // Nobody will go on with these pages, so nobody has to be able to write them anew.
            None => clock.as_ref().map_or(Ok(()), ClockKeeper::seal)?,
        }
        if !self.standalone {
            registry.attach_embedded();
        }
        let registry = Arc::new(Mutex::new(registry));
        let service = Service {
            listeners,
            _stopped: stopped,
            uid: self.uid,
            clock,
            clock_file: clock_file.map(Arc::new),
            registry: Arc::clone(&registry),
            poller,
            connections: BTreeMap::new(),
            next_connection: 0,
            full: BTreeSet::new(),
            complaints,
            next_lane: None,
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

/// Descriptors that sensors and tasks may take.
fn most_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.saturating_sub(OTHER_FILES).max(limit / 4)
}

/// A running directory. It ends, and removes its socket, when dropped; buffers stay with those
/// who have mapped them.
#[derive(Debug)]
pub struct Directory {
    socket: PathBuf,
    // The file of the socket goes with a directory that made it.
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
            first_stream: 1,
            quotas: Quotas::default(),
            uid,
            standalone: false,
            retention: Duration::from_secs(60),
            sizing: Sizing::default(),
            rules: Rules::default(),
            needs: None,
        }
    }

    /// Where it listens: the value for [`SOCKET_VARIABLE`](crate::SOCKET_VARIABLE).
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What wanted to be heard since the last call, and is not.
    #[must_use]
    pub fn take_unheard(&self) -> Unheard {
        lock(&self.registry).take_unheard()
    }

    /// Names the program that this directory serves: its descendants may register as whatever user
    /// they run. Without it a directory of root serves everybody, any other its own user and root.
    pub fn serve_program(&self, pid: u32) {
        lock(&self.registry).program = Some(pid);
    }

    /// How it is doing.
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
    // Waited for by the poller.
    _stopped: OwnedFd,
    uid: u32,
    clock: Option<ClockKeeper>,
    clock_file: Option<Arc<OwnedFd>>,
    registry: Arc<Mutex<Registry>>,
    poller: Arc<Poller>,
    connections: BTreeMap<u32, Connection>,
    next_connection: u32,
    // Connections whose sockets had no room for what they are to be told.
    full: BTreeSet<u32>,
    // What cannot be kept over a restart, not told yet.
    complaints: Vec<String>,
    // The lane at which the next look after threads begins.
    next_lane: Option<(StreamId, u32)>,
}

impl Service {
    fn run(mut self) {
        let mut next_tick = Instant::now() + ClockKeeper::INTERVAL;
        let mut next_reclaim = Instant::now() + RECLAIM;
        loop {
            let wait = next_tick.saturating_duration_since(Instant::now());
            let mut ready = BTreeSet::new();
            for token in self.poller.wait(wait) {
                match token {
                    Token::Stop => return,
                    Token::Connection(number) => {
                        ready.insert(number);
                        self.serve(number);
                    }
                    Token::Listener(index) => self.accept(index as usize),
                    Token::Process(pid) => lock(&self.registry).process_ended(pid),
                }
            }
            self.tell_monitors(&ready);
            let now = Instant::now();
            if now < next_tick {
                continue;
            }
            // The clock first: it is the only one that is waited for.
            if let Some(clock) = &mut self.clock {
                clock.tick();
            }
            next_tick = Instant::now() + ClockKeeper::INTERVAL;
            self.dismiss_overdue(now);
            let mut registry = lock(&self.registry);
            registry.free_outdated(now);
            self.complaints.extend(registry.tend_journal());
            // An embedded directory lives as long as one program, and `doctor` tells its user.
            if !registry.has_embedded_monitor() {
                self.complaints.extend(registry.take_unlocked());
            }
            drop(registry);
            if now >= next_reclaim && self.reclaim_lanes() {
                next_reclaim = now + RECLAIM;
            }
            // Only services complain, and theirs is the journal of the service manager.
            for complaint in self.complaints.drain(..) {
                eprintln!("overheard: {complaint}");
            }
        }
    }

    /// Gives lanes back whose threads have ended, as many as there is time for; says whether all have been
    /// looked at. The kernel is asked without the lock: a look-up costs microseconds, and there may
    /// be a thread for each of many thousand lanes.
    fn reclaim_lanes(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            let from = self.next_lane.unwrap_or((StreamId::from_raw(0), 0));
            let (owned, next) = lock(&self.registry).owned_lanes(from, LANES_AT_ONCE);
            let left: Vec<OwnedLane> = owned.into_iter().filter(OwnedLane::is_left).collect();
            if !left.is_empty() {
                lock(&self.registry).reclaim(&left);
            }
            self.next_lane = next;
            if next.is_none() || begun.elapsed() >= LOOK_AFTER {
                return next.is_none();
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // A round of connections, then what they want: who connects for ever must not keep others
        // from being served.
        for _ in 0..64 {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            let Ok(fd) = rustix::net::accept_with(listener, flags) else {
                return;
            };
            let Some(peer) = Peer::of(&fd) else {
                continue;
            };
            let may_register = self.may_register(&peer);
            let number = self.next_connection;
            self.next_connection = number.wrapping_add(1);
            let clock = self.clock_file.clone();
            let connection = Connection::new(fd, number, peer, may_register, clock);
            if self.make_room(&connection)
                && self
                    .poller
                    .add(&connection, Token::Connection(number))
                    .is_ok()
            {
                self.connections.insert(number, connection);
            }
        }
    }

    /// Whoever connected and says nothing has to make room.
    fn make_room(&mut self, newcomer: &Connection) -> bool {
        let registering = self.connections.values().filter(|c| !c.is_monitor());
        if registering.count() < MAX_REGISTERING {
            return true;
        }
        let idle = self.connections.iter().find(|(_, c)| c.is_idle());
        match idle.map(|(number, _)| *number) {
            Some(oldest) => {
                self.close(oldest);
                true
            }
            None => {
                let sentence = "too many programs are registering; try again later";
                newcomer.refuse(&self.registry, "?", sentence);
                false
            }
        }
    }

    fn may_register(&self, peer: &Peer) -> Result<(), String> {
        if peer.uid == self.uid || peer.uid == 0 {
            return Ok(());
        }
        let program = lock(&self.registry).program;
        let served = match program {
            Some(program) => task::descends_from(peer.pid, program),
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

    fn serve(&mut self, number: u32) {
        let room = self.room_for_monitor(number);
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.may_monitor = room;
        if connection.serve(&self.registry) == Next::Close {
            self.close(number);
        }
    }

    /// Whether a connection may become a monitor's.
    fn room_for_monitor(&self, number: u32) -> Result<(), String> {
        let newcomer = self.connections.get(&number).filter(|c| !c.is_monitor());
        let Some(uid) = newcomer.map(|newcomer| newcomer.peer().uid) else {
            return Ok(());
        };
        let monitors = self.connections.values().filter(|c| c.is_monitor());
        let (mut all, mut of_user) = (0, 0);
        for monitor in monitors {
            all += 1;
            of_user += usize::from(monitor.peer().uid == uid);
        }
        if of_user >= MAX_MONITORS_OF_USER && uid != 0 {
            return Err(format!(
                "user {uid} has {MAX_MONITORS_OF_USER} monitors here already; end one of them"
            ));
        }
        if all >= MAX_MONITORS {
            return Err(format!(
                "{MAX_MONITORS} monitors are here already; end one of them"
            ));
        }
        Ok(())
    }

    fn close(&mut self, number: u32) {
        self.full.remove(&number);
        if let Some(mut connection) = self.connections.remove(&number) {
            // A program that stops talking between grant and map loses its grant.
            connection.withdraw(&self.registry);
            if connection.is_monitor() {
                lock(&self.registry).detach(connection.monitor());
            }
        }
    }

    fn dismiss_overdue(&mut self, now: Instant) {
        let overdue = self.connections.iter().filter(|(_, c)| c.is_overdue(now));
        let overdue: Vec<u32> = overdue.map(|(number, _)| *number).collect();
        for number in overdue {
            self.close(number);
        }
    }

    /// Tells monitors what is new. Those whose sockets were full are asked again when there is room,
    /// that is if they are among the `ready`: who does not read costs nothing.
    fn tell_monitors(&mut self, ready: &BTreeSet<u32>) {
        let (mut waiting, lost) = lock(&self.registry).waiting_monitors();
        for number in lost {
            self.close(number);
        }
        let listing = self.connections.iter().filter(|(_, c)| c.listing.is_some());
        waiting.extend(listing.map(|(number, _)| *number));
        waiting.extend(&self.full);
        waiting.retain(|number| ready.contains(number) || !self.full.contains(number));
        waiting.sort_unstable();
        waiting.dedup();
        for number in waiting {
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            let told = connection.tell(&mut lock(&self.registry));
            let wants_room = told == Told::Waiting;
            if wants_room != self.full.contains(&number) {
                self.poller
                    .want_room(&*connection, Token::Connection(number), wants_room);
                match wants_room {
                    true => self.full.insert(number),
                    false => self.full.remove(&number),
                };
            }
            if told == Told::Gone {
                self.close(number);
            }
        }
    }
}
