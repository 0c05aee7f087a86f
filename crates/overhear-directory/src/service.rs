// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service: one thread that accepts registrations, keeps the streams and the clock page.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear_event::{ClockId, StreamId};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::clock::{sensor_clock, ClockKeeper};
use crate::connection::{Connection, Next};
use crate::memory::{MapError, Mapping};
use crate::registry::{lock, Registry, Unheard};
use crate::task;

/// How many registrations may be under way at the same moment.
const MAX_CONNECTIONS: usize = 256;

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
    quota_bytes: u64,
    uid: u32,
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
    pub const fn quota_bytes(mut self, bytes: u64) -> Self {
        self.quota_bytes = bytes;
        self
    }

    /// Starts the directory; it listens at `socket`, which must not exist yet.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn start(self, socket: &Path) -> Result<Directory, DirectoryError> {
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
        rustix::net::listen(&listener, 64).map_err(fail)?;
        let (stop, stopped) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(read, write)| (write, read))
            .map_err(fail)?;

        let clock = ClockKeeper::start()?;
        let clock_map = clock.as_ref().map(ClockKeeper::map).transpose()?;
        let sensor_clock = if clock.is_some() {
            sensor_clock()
        } else {
            ClockId::Monotonic
        };
        let registry = Registry::new(self.first_stream, self.quota_bytes, sensor_clock);
        let registry = Arc::new(Mutex::new(registry));
        let service = Service {
            listener,
            stopped,
            uid: self.uid,
            clock,
            registry: Arc::clone(&registry),
            connections: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("oh-directory".to_string())
            .spawn(move || service.run())
            .map_err(DirectoryError::Thread)?;
        Ok(Directory {
            socket: socket.to_path_buf(),
            registry,
            clock_map: clock_map.map(Arc::new),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// A running directory. It ends, and removes its socket, when dropped; buffers stay with those
/// who have mapped them.
#[derive(Debug)]
pub struct Directory {
    socket: PathBuf,
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
            quota_bytes: 1 << 30,
            uid,
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
        let _ = std::fs::remove_file(&self.socket);
    }
}

struct Service {
    listener: OwnedFd,
    stopped: OwnedFd,
    uid: u32,
    clock: Option<ClockKeeper>,
    registry: Arc<Mutex<Registry>>,
    connections: Vec<Connection>,
}

impl Service {
    fn run(mut self) {
        let mut next_tick = Instant::now() + ClockKeeper::INTERVAL;
        loop {
            let wait = next_tick.saturating_duration_since(Instant::now());
            let (stopped, ready) = self.wait(wait);
            if stopped {
                return;
            }
            self.serve(&ready);
            self.accept();
            lock(&self.registry).notice_ended_processes();
            if Instant::now() >= next_tick {
                if let Some(clock) = &mut self.clock {
                    clock.tick();
                }
                next_tick = Instant::now() + ClockKeeper::INTERVAL;
            }
        }
    }

    /// Waits for something to do; says whether to stop and which connections have a packet.
    fn wait(&self, timeout: Duration) -> (bool, Vec<bool>) {
        let mut polled = vec![
            PollFd::new(&self.stopped, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        polled.extend(
            self.connections
                .iter()
                .map(|c| PollFd::new(c, PollFlags::IN)),
        );
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(timeout.subsec_nanos()).max(1_000_000),
        };
        let _ = rustix::event::poll(&mut polled, Some(&timeout));
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        (ready[0], ready[2..].to_vec())
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(fd) = rustix::net::accept_with(&self.listener, flags) {
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&fd) else {
                continue;
            };
            let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
            let uid = peer.uid.as_raw();
            let connection = Connection::new(fd, pid);
            if !self.may_register(pid, uid) {
                let sentence = format!(
                    "it runs as user {uid}, this directory serves user {} and the program it was \
                     made for",
                    self.uid
                );
                connection.refuse(&self.registry, "?", &sentence);
                continue;
            }
            if self.connections.len() >= MAX_CONNECTIONS {
                // Whoever connected and says nothing has to make room.
                match self.connections.iter().position(Connection::is_idle) {
                    Some(oldest) => drop(self.connections.remove(oldest)),
                    None => {
                        let sentence = "too many programs are registering; try again later";
                        connection.refuse(&self.registry, "?", sentence);
                        continue;
                    }
                }
            }
            self.connections.push(connection);
        }
    }

    fn may_register(&self, pid: u32, uid: u32) -> bool {
        if uid == self.uid || uid == 0 {
            return true;
        }
        let program = lock(&self.registry).program;
        match program {
            Some(program) => task::descends_from(pid, program),
            None => self.uid == 0,
        }
    }

    fn serve(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut index = 0;
        let registry = &self.registry;
        self.connections.retain_mut(|connection| {
            let readable = ready.get(index).copied().unwrap_or(false);
            index += 1;
            let next = if readable {
                connection.serve(registry)
            } else {
                Next::Keep
            };
            let stays = next == Next::Keep && connection.deadline() > now;
            if !stays {
                // A program that stops talking between grant and map loses its grant.
                connection.withdraw(registry);
            }
            stays
        });
    }
}
