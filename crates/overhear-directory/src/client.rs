// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's side of registration. Cold: it allocates, calls the kernel and may wait, but
//! never longer than [`PATIENCE`] for each answer.

use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_event::{ClockId, Rate, StreamId, TypeSchema};
use overhear_stream::{Geometry, LayoutError};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{
    connect, recvmsg, sockopt, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    ReturnFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::memory::{MapError, Mapping};
use crate::protocol::{Granted, Register, Reply, Request, Unregister, MAX_PACKET, VERSION};
use crate::SOCKET_VARIABLE;

/// How long a program waits for an answer of the directory before it goes on unheard.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What a program says of a sensor.
#[derive(Clone, Debug)]
pub struct SensorRequest {
    /// What the sensor measures; unique in the task together with `instance`.
    pub sensor: String,
    /// Which one of several; empty where there is one.
    pub instance: String,
    /// What an element contains.
    pub schema: TypeSchema,
    /// The declared rate, if any.
    pub rate: Option<Rate>,
    /// The least number of slots wanted, 0 for the directory's choice.
    pub capacity: u64,
}

/// A stream that the directory granted.
#[derive(Debug)]
pub struct Registration {
    /// The stream's memory, writable.
    pub mapping: Arc<Mapping>,
    /// Where things lie in it.
    pub geometry: Geometry,
    /// What to stamp with.
    pub clock: ClockId,
    /// The stream's number.
    pub stream: StreamId,
    token: u64,
    socket: PathBuf,
}

/// Why a sensor is not heard.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// No directory is known.
    #[error("no directory listens: {SOCKET_VARIABLE} is not set, or empty, and none of the usual sockets exists; start the program with `overhear run`")]
    NoDirectory,
    /// The directory cannot be talked to.
    #[error("cannot {action} the directory at {}: {source}", .socket.display())]
    Unreachable {
        /// What was tried.
        action: &'static str,
        /// Where.
        socket: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The directory said no.
    #[error("the directory refused sensor `{sensor}`: {sentence}")]
    Refused {
        /// Which sensor.
        sensor: String,
        /// Its sentence.
        sentence: String,
    },
    /// The directory went away, or has no time.
    #[error("the directory at {} closed the connection without an answer", .socket.display())]
    Closed {
        /// Where.
        socket: PathBuf,
    },
    /// The directory's answer makes no sense.
    #[error("the directory at {} answered something that this program does not understand; they may be of different versions", .socket.display())]
    Misunderstood {
        /// Where.
        socket: PathBuf,
    },
    /// The granted memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The granted numbers make no stream.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Where the directory listens: the environment's word, then the usual places. An empty variable
/// switches sensors off. A program with raised privileges does not trust its environment.
#[must_use]
pub fn socket_path() -> Option<PathBuf> {
    if let Some(path) = environment(SOCKET_VARIABLE) {
        return (!path.is_empty()).then(|| path.into());
    }
    let user = environment("XDG_RUNTIME_DIR")
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(&folder).join("overhear/directory.sock"));
    let places = [user, Some(PathBuf::from("/run/overhear/directory.sock"))];
    places.into_iter().flatten().find(|path| path.exists())
}

fn environment(name: &str) -> Option<OsString> {
    // SAFETY: reads a word that the kernel gave to the process at its start.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure {
        None
    } else {
        std::env::var_os(name)
    }
}

/// Registers a sensor with the directory of this environment.
///
/// # Errors
/// [`RegisterError`]; the program goes on with private memory.
pub fn register(request: SensorRequest) -> Result<Registration, RegisterError> {
    let socket = socket_path().ok_or(RegisterError::NoDirectory)?;
    register_at(&socket, request)
}

/// Registers a sensor with the directory at `socket`.
///
/// # Errors
/// [`RegisterError`].
pub fn register_at(socket: &Path, request: SensorRequest) -> Result<Registration, RegisterError> {
    let connection = Connection::open(socket)?;
    let (sensor, payload) = (request.sensor.clone(), request.schema.size());
    connection.send(&Request::Register(Register {
        version: VERSION,
        sensor: request.sensor,
        instance: request.instance,
        schema: request.schema,
        rate: request.rate,
        capacity: request.capacity,
    }))?;
    let (reply, file) = connection.receive()?;
    let (granted, file) = match (reply, file) {
        (Reply::Granted(granted), Some(file)) => (granted, file),
        (Reply::Refused { sentence }, _) => {
            return Err(RegisterError::Refused { sensor, sentence })
        }
        _ => return Err(connection.misunderstood()),
    };
    let Granted {
        stream,
        token,
        stride,
        capacity,
        clock,
    } = granted;
    let geometry = Geometry::with_stride(payload, stride, capacity)?;
    // A file shorter than its geometry would let the program die of SIGBUS later.
    let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
    if u64::try_from(size).unwrap_or(0) < geometry.bytes() as u64 {
        return Err(connection.misunderstood());
    }
    let mapping = Arc::new(Mapping::writable(&file, geometry.bytes())?);
    drop(file);
    connection.send(&Request::Mapped)?;
    match connection.receive()?.0 {
        Reply::Sealed => {}
        Reply::Refused { sentence } => return Err(RegisterError::Refused { sensor, sentence }),
        _ => return Err(connection.misunderstood()),
    }
    let stream = StreamId::from_raw(stream);
    Ok(Registration {
        mapping,
        geometry,
        clock,
        stream,
        token,
        socket: socket.to_path_buf(),
    })
}

impl Registration {
    /// Takes the sensor out of the directory. Monitors read what is left and close the stream.
    /// The map stays until the registration is dropped.
    ///
    /// # Errors
    /// [`RegisterError`] if the directory is gone; then there is nothing to take out.
    pub fn unregister(&self) -> Result<(), RegisterError> {
        let connection = Connection::open(&self.socket)?;
        let request = Unregister {
            stream: self.stream.as_raw(),
            token: self.token,
        };
        connection.send(&Request::Unregister(request))?;
        connection.receive().map(|_| ())
    }
}

struct Connection<'a> {
    fd: OwnedFd,
    socket: &'a Path,
}

impl<'a> Connection<'a> {
    fn open(socket: &'a Path) -> Result<Self, RegisterError> {
        let fail = |action| {
            move |errno: rustix::io::Errno| RegisterError::Unreachable {
                action,
                socket: socket.to_path_buf(),
                source: errno.into(),
            }
        };
        let address = SocketAddrUnix::new(socket).map_err(fail("address"))?;
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(fail("open a socket to"))?;
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&fd, timeout, Some(PATIENCE))
                .map_err(fail("limit the wait for"))?;
        }
        connect(&fd, &address).map_err(fail("connect to"))?;
        Ok(Self { fd, socket })
    }

    fn misunderstood(&self) -> RegisterError {
        RegisterError::Misunderstood {
            socket: self.socket.to_path_buf(),
        }
    }

    fn unreachable(&self, action: &'static str, errno: rustix::io::Errno) -> RegisterError {
        RegisterError::Unreachable {
            action,
            socket: self.socket.to_path_buf(),
            source: errno.into(),
        }
    }

    /// Waits for a packet, but not longer than [`PATIENCE`] in all. A program with an interval
    /// timer, as profilers set, is interrupted again and again: each wait is for what is left.
    fn wait_for_answer(&self) -> Result<(), RegisterError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.unreachable("hear from", rustix::io::Errno::TIMEDOUT));
            }
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(self.unreachable("hear from", errno)),
            }
        }
    }

    fn send(&self, request: &Request) -> Result<(), RegisterError> {
        let packet = serde_json::to_vec(request).map_err(|_| self.misunderstood())?;
        // NOSIGNAL: a directory that went away must not kill the program.
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &packet, SendFlags::NOSIGNAL))
            .map_err(|errno| self.unreachable("write to", errno))?;
        Ok(())
    }

    fn receive(&self) -> Result<(Reply, Option<OwnedFd>), RegisterError> {
        self.wait_for_answer()?;
        let (packet, file) =
            receive(&self.fd).map_err(|errno| self.unreachable("hear from", errno))?;
        if packet.is_empty() {
            let socket = self.socket.to_path_buf();
            return Err(RegisterError::Closed { socket });
        }
        let reply = serde_json::from_slice(&packet).map_err(|_| self.misunderstood())?;
        Ok((reply, file))
    }
}

/// Receives a packet and the file that may come with it. An empty packet means that the other
/// side has gone.
pub(crate) fn receive(fd: &OwnedFd) -> rustix::io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut packet = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        let slices = &mut [IoSliceMut::new(&mut packet)];
        recvmsg(fd, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    packet.truncate(message.bytes);
    Ok((packet, file))
}

/// Sends a packet, and a file with it.
pub(crate) fn send(
    fd: &OwnedFd,
    packet: &[u8],
    file: Option<rustix::fd::BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(fd, &[IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}
