// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's side of registration. Cold: it allocates, calls the kernel and may wait, but
//! never longer than [`REGISTRATION_TIMEOUT`] for a registration.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_event::{ClockId, Rate, StreamId, TypeSchema, WriterKind};
use overhear_stream::{LayoutError, Shape};

use crate::control::Control;
use crate::memory::{MapError, Mapping};
use crate::packet::{Link, LinkError};
use crate::protocol::{Register, Reply, Request, Unregister, VERSION};
use crate::SOCKET_VARIABLE;

/// How long a program waits for all answers of the directory to one registration. Then it goes on
/// without a directory.
pub const REGISTRATION_TIMEOUT: Duration = Duration::from_millis(500);

/// The description of a sensor, as a program registers it.
#[derive(Clone, Debug)]
pub struct SensorRequest {
    /// What the sensor measures; unique in the task together with `instance`.
    pub sensor: String,
    /// The instance, of several sensors with this id; empty for a single one.
    pub instance: String,
    /// The payload of an element.
    pub schema: TypeSchema,
    /// The declared rate, if any.
    pub rate: Option<Rate>,
    /// The least number of slots, in the ring, in each lane or in the queue; 0 lets the directory
    /// choose.
    pub capacity: u64,
    /// The kind of its writer.
    pub kind: WriterKind,
    /// Lanes of a laned sensor, 0 lets the directory choose. Spare elements of a concurrent sensor,
    /// one for each write at the same time. Ignored for other kinds.
    pub lanes: u32,
}

/// A stream that the directory granted.
#[derive(Debug)]
pub struct Registration {
    /// The stream's memory, writable.
    pub mapping: Arc<Mapping>,
    /// The layout of the memory.
    pub shape: Shape,
    /// The clock of its stamps.
    pub clock: ClockId,
    /// The number of its first stream.
    pub stream: StreamId,
    /// The sensor's line in the control page, by which the directory switches it and reclaims
    /// lanes; `None` if the directory has no control pages.
    pub control: Option<Control>,
    /// Why there was no memory for the sensor when it was registered. It is switched off until
    /// there is memory; then the directory switches it on, and the program does nothing.
    pub deferred: Option<String>,
    token: u64,
    socket: PathBuf,
}

/// Why a sensor is not connected to a directory.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// No directory is known.
    #[error("no directory listens: {SOCKET_VARIABLE} is not set, or empty, and none of the usual sockets exists; start the program with `overhear run`")]
    NoDirectory,
    /// The directory cannot be reached.
    #[error("cannot {action} the directory at {}: {source}", .socket.display())]
    Unreachable {
        /// The operation that failed.
        action: &'static str,
        /// The directory's socket.
        socket: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The directory refused the sensor.
    #[error("the directory refused sensor `{sensor}`: {message}")]
    Refused {
        /// The sensor's id.
        sensor: String,
        /// The reason, as a message.
        message: String,
    },
    /// The directory has ended, or closed the connection because it is overloaded.
    #[error("the directory at {} closed the connection without an answer", .socket.display())]
    Closed {
        /// The directory's socket.
        socket: PathBuf,
    },
    /// The directory's answer cannot be decoded.
    #[error("the directory at {} answered something that this program does not understand; they may be of different versions", .socket.display())]
    Misunderstood {
        /// The directory's socket.
        socket: PathBuf,
    },
    /// The granted memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The granted layout is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The directory's socket: the one that the environment names, else the first default one that
/// exists. An empty variable switches sensors off. A program with raised privileges ignores its
/// environment.
#[must_use]
pub fn socket_path() -> Option<PathBuf> {
    if let Some(path) = environment(SOCKET_VARIABLE) {
        return (!path.is_empty()).then(|| path.into());
    }
    let user = environment("XDG_RUNTIME_DIR")
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(&folder).join("overhear/directory.sock"));
    let paths = [user, Some(PathBuf::from("/run/overhear/directory.sock"))];
    paths.into_iter().flatten().find(|path| path.exists())
}

/// A variable of the environment; `None` in a program with raised privileges, which ignores it.
#[must_use]
pub fn environment(name: &str) -> Option<OsString> {
    // SAFETY: reads a word of the auxiliary vector, which the kernel wrote at the process' start.
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

/// Registers a sensor with the directory at `socket`. If the directory is being restarted, or all
/// its connections are in use, the request is repeated until [`REGISTRATION_TIMEOUT`].
///
/// # Errors
/// [`RegisterError`].
pub fn register_at(socket: &Path, request: SensorRequest) -> Result<Registration, RegisterError> {
    retry_until_timeout(|end| register_until(socket, &request, end))
}

/// The delay before the first retry. It doubles with each further one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(4);

/// Repeats an attempt until it succeeds, fails for good, or the time is over.
pub(crate) fn retry_until_timeout<T>(
    mut attempt: impl FnMut(Instant) -> Result<T, AttemptError>,
) -> Result<T, RegisterError> {
    let end = Instant::now() + REGISTRATION_TIMEOUT;
    let mut pause = FIRST_RETRY_DELAY;
    loop {
        let result = attempt(end);
        let left = end.saturating_duration_since(Instant::now());
        match result {
            Err(AttemptError::Transient(_)) if pause < left => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            Err(AttemptError::Transient(error) | AttemptError::Final(error)) => return Err(error),
            Ok(answer) => return Ok(answer),
        }
    }
}

/// Whether another attempt could succeed.
pub(crate) enum AttemptError {
    Transient(RegisterError),
    Final(RegisterError),
}

impl<E: Into<RegisterError>> From<E> for AttemptError {
    fn from(error: E) -> Self {
        let error = error.into();
        let is_transient = match &error {
            RegisterError::Closed { .. } => true,
            RegisterError::Unreachable { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            _ => false,
        };
        match is_transient {
            true => Self::Transient(error),
            false => Self::Final(error),
        }
    }
}

fn refused(request: &SensorRequest, message: String, again: bool) -> AttemptError {
    let sensor = request.sensor.clone();
    let error = RegisterError::Refused { sensor, message };
    match again {
        true => AttemptError::Transient(error),
        false => AttemptError::Final(error),
    }
}

fn register_until(
    socket: &Path,
    request: &SensorRequest,
    end: Instant,
) -> Result<Registration, AttemptError> {
    let link = Link::for_one_exchange(socket, end.saturating_duration_since(Instant::now()))?;
    let (kind, payload) = (request.kind, request.schema.size());
    let sent = link.send(&Request::Register(Register {
        version: VERSION,
        sensor: request.sensor.clone(),
        instance: request.instance.clone(),
        schema: request.schema.clone(),
        rate: request.rate,
        capacity: request.capacity,
        kind,
        lanes: request.lanes,
        may_defer: true,
    }));
    let received = link.receive();
    // A rejected connection may already have its refusal, although the send failed.
    let (reply, files) = match (sent, received) {
        (_, Ok(received)) => received,
        (Err(error), Err(_)) | (Ok(()), Err(error)) => return Err(error.into()),
    };
    let mut files = files.into_iter();
    let (granted, file) = match (reply, files.next()) {
        (Reply::Granted(granted), Some(file)) => (granted, file),
        (Reply::Refused { message, again }, _) => return Err(refused(request, message, again)),
        _ => return Err(link.misunderstood().into()),
    };
    let shape = Shape::new(granted.kind, payload, granted.capacity, granted.lanes)?;
    // An older directory grants a simple sensor, whatever kind was requested.
    let is_supported = granted.kind == kind
        && usize::try_from(granted.stride) == Ok(shape.elements().stride_bytes());
    // A file shorter than its layout would kill the program by SIGBUS later.
    let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
    if !is_supported || u64::try_from(size).unwrap_or(0) < shape.bytes() as u64 {
        return Err(link.misunderstood().into());
    }
    let mapping = Arc::new(match granted.deferred {
        None => Mapping::allocated(&file, shape.bytes())?,
        Some(_) => Mapping::writable_later(&file, shape.bytes())?,
    });
    drop(file);
    let control = match (granted.line, files.next()) {
        (Some(line), Some(file)) => Some(Control::map(&file, line, shape.lanes())?),
        _ => None,
    };
    drop(files);
    link.send(&Request::Mapped)?;
    match link.receive()?.0 {
        Reply::Sealed => {}
        Reply::Refused { message, again } => return Err(refused(request, message, again)),
        _ => return Err(link.misunderstood().into()),
    }
    Ok(Registration {
        mapping,
        shape,
        clock: granted.clock,
        stream: StreamId::from_raw(granted.stream),
        control,
        deferred: granted.deferred,
        token: granted.token,
        socket: socket.to_path_buf(),
    })
}

impl From<LinkError> for RegisterError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Unreachable {
                action,
                socket,
                source,
            } => Self::Unreachable {
                action,
                socket,
                source,
            },
            LinkError::Closed { socket } => Self::Closed { socket },
            LinkError::Misunderstood { socket } => Self::Misunderstood { socket },
        }
    }
}

impl Registration {
    /// Whether the sensor is still deferred.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        let line = self
            .control
            .as_ref()
            .and_then(|control| control.line().ok());
        self.deferred.is_some() && line.is_some_and(|line| line.is_deferred())
    }

    /// Unregisters the sensor. Monitors read the rest and close the stream. The map stays until the
    /// registration is dropped.
    ///
    /// # Errors
    /// [`RegisterError`] if the directory is gone; then there is nothing to unregister.
    pub fn unregister(&self) -> Result<(), RegisterError> {
        // Unregistering twice does no harm, so the request is repeated if the answer was lost.
        retry_until_timeout(|end| {
            let left = end.saturating_duration_since(Instant::now());
            let link = Link::for_one_exchange(&self.socket, left)?;
            link.send(&Request::Unregister(Unregister {
                stream: self.stream.as_raw(),
                token: self.token,
            }))?;
            match link.receive()?.0 {
                Reply::Refused {
                    message,
                    again: true,
                } => {
                    let sensor = self.stream.to_string();
                    let error = RegisterError::Refused { sensor, message };
                    Err(AttemptError::Transient(error))
                }
                _ => Ok(()),
            }
        })
    }
}
