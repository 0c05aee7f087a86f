// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's side of registration. Cold: it allocates, calls the kernel and may wait, but
//! never longer than [`PATIENCE`] for a registration.

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

/// How long a program waits for the directory, for all its answers to one registration together,
/// before it goes on unheard.
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
    /// The least number of slots wanted, in the ring, in each lane, in the queue; 0 for the
    /// directory's choice.
    pub capacity: u64,
    /// Who will write.
    pub kind: WriterKind,
    /// How many lanes a laned sensor wants, 0 for the directory's choice. Of a concurrent sensor: how
    /// many spare elements, for writes at the same time. No meaning for others.
    pub lanes: u32,
}

/// A stream that the directory granted.
#[derive(Debug)]
pub struct Registration {
    /// The stream's memory, writable.
    pub mapping: Arc<Mapping>,
    /// Where things lie in it.
    pub shape: Shape,
    /// What to stamp with.
    pub clock: ClockId,
    /// The number of its first stream.
    pub stream: StreamId,
    /// The sensor's line in the control page, by which it is switched on and off and gets lanes
    /// back; none where the directory has none.
    pub control: Option<Control>,
    /// Why there was no memory for the sensor when it was registered. It is switched off until there is,
    /// and then heard without further ado.
    pub deferred: Option<String>,
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
    /// The granted numbers make no sensor.
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

/// A variable of the environment; none for a program with raised privileges, which does not trust it.
#[must_use]
pub fn environment(name: &str) -> Option<OsString> {
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

/// Registers a sensor with the directory at `socket`. A directory that is started again meanwhile, or has
/// no room for another connection at this moment, is asked again as long as there is time.
///
/// # Errors
/// [`RegisterError`].
pub fn register_at(socket: &Path, request: SensorRequest) -> Result<Registration, RegisterError> {
    patiently(|end| register_until(socket, &request, end))
}

/// Before a directory is asked for the second time.
const FIRST_PAUSE: Duration = Duration::from_millis(4);

/// Asks a directory until it answers, or for a lasting reason does not, or there is no time left.
fn patiently<T>(
    mut attempt: impl FnMut(Instant) -> Result<T, Failure>,
) -> Result<T, RegisterError> {
    let end = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        let result = attempt(end);
        let left = end.saturating_duration_since(Instant::now());
        match result {
            Err(Failure::Passing(_)) if pause < left => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            Err(Failure::Passing(error) | Failure::Lasting(error)) => return Err(error),
            Ok(answer) => return Ok(answer),
        }
    }
}

/// Why an attempt failed: for a reason that may pass, or not.
enum Failure {
    Passing(RegisterError),
    Lasting(RegisterError),
}

impl<E: Into<RegisterError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let passes = match &error {
            RegisterError::Closed { .. } => true,
            RegisterError::Unreachable { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            _ => false,
        };
        match passes {
            true => Self::Passing(error),
            false => Self::Lasting(error),
        }
    }
}

fn refused(request: &SensorRequest, sentence: String, again: bool) -> Failure {
    let sensor = request.sensor.clone();
    let error = RegisterError::Refused { sensor, sentence };
    match again {
        true => Failure::Passing(error),
        false => Failure::Lasting(error),
    }
}

fn register_until(
    socket: &Path,
    request: &SensorRequest,
    end: Instant,
) -> Result<Registration, Failure> {
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
    // Whoever is turned away may find so before anything is sent.
    let (reply, files) = match (sent, received) {
        (_, Ok(received)) => received,
        (Err(error), Err(_)) | (Ok(()), Err(error)) => return Err(error.into()),
    };
    let mut files = files.into_iter();
    let (granted, file) = match (reply, files.next()) {
        (Reply::Granted(granted), Some(file)) => (granted, file),
        (Reply::Refused { sentence, again }, _) => return Err(refused(request, sentence, again)),
        _ => return Err(link.misunderstood().into()),
    };
    let shape = Shape::new(granted.kind, payload, granted.capacity, granted.lanes)?;
    // An older directory knows simple sensors alone, and says so by what it grants.
    let understood = granted.kind == kind
        && usize::try_from(granted.stride) == Ok(shape.elements().stride_bytes());
    // A file shorter than its shape would let the program die of SIGBUS later.
    let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
    if !understood || u64::try_from(size).unwrap_or(0) < shape.bytes() as u64 {
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
        Reply::Refused { sentence, again } => return Err(refused(request, sentence, again)),
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
    /// Whether the sensor still waits for memory.
    #[must_use]
    pub fn is_deferred(&self) -> bool {
        let line = self
            .control
            .as_ref()
            .and_then(|control| control.line().ok());
        self.deferred.is_some() && line.is_some_and(|line| line.is_deferred())
    }

    /// Takes the sensor out of the directory. Monitors read what is left and close the stream.
    /// The map stays until the registration is dropped.
    ///
    /// # Errors
    /// [`RegisterError`] if the directory is gone; then there is nothing to take out.
    pub fn unregister(&self) -> Result<(), RegisterError> {
        // Nobody can take it out twice, so it is asked for again where the answer was lost.
        patiently(|end| {
            let left = end.saturating_duration_since(Instant::now());
            let link = Link::for_one_exchange(&self.socket, left)?;
            link.send(&Request::Unregister(Unregister {
                stream: self.stream.as_raw(),
                token: self.token,
            }))?;
            match link.receive()?.0 {
                Reply::Refused {
                    sentence,
                    again: true,
                } => {
                    let sensor = self.stream.to_string();
                    let error = RegisterError::Refused { sensor, sentence };
                    Err(Failure::Passing(error))
                }
                _ => Ok(()),
            }
        })
    }
}
