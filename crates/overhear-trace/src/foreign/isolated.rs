// SPDX-License-Identifier: MIT OR Apache-2.0
//! Foreign traces that a process of its own reads: a trace that crashes the library ends that
//! process, and what was read before remains.
//!
//! The process is started by the caller's command, which calls [`send_foreign_trace`]; its standard
//! output is a pipe. It sends the decoded messages before it lets the library go on, so a crash
//! loses no message that the library has delivered. The receiver takes no more memory than a frame
//! and the names, waits for the next message no longer than a given time, and accepts no more
//! messages than the trace has bits: each event has at least one.

use std::io;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::FileType;

use super::confinement::confine;
use super::frames::{FrameReader, FrameWriter, Received};
use super::graph::Plugins;
use super::{loaded, ForeignError, ForeignMessage, ForeignTrace};
use crate::folder::Folder;

/// Bytes of frames that are sent and received at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads the trace at `path` and sends its messages through `out`: the whole task of the process
/// that an [`IsolatedTrace`] starts. It gives up the rights that it does not need.
///
/// # Errors
/// Errors of `out`. Errors of the trace are sent.
pub fn send_foreign_trace(path: &Path, out: impl Write) -> io::Result<()> {
    let mut frames = FrameWriter::new(BufWriter::with_capacity(BUFFER_BYTES, out));
    let unreadable = |reason: String| ForeignError::Unreadable {
        path: path.to_path_buf(),
        reason,
    };
    let opened = loaded().and_then(|library| {
        // The library opens its own files here, and none later.
        let plugins = Plugins::find(library).map_err(|reason| ForeignError::Library { reason })?;
        confine(path).map_err(|error| unreadable(error.to_string()))?;
        ForeignTrace::open_with(path, library, &plugins)
    });
    let mut trace = match opened {
        Ok(trace) => trace,
        Err(error) => return frames.result(Err(&error)),
    };
    loop {
        if !trace.has_pending() {
            frames.flush()?;
        }
        match trace.next_message() {
            Ok(Some(message)) => match frames.message(&message) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    return frames.result(Err(&unreadable(error.to_string())));
                }
                Err(error) => return Err(error),
            },
            Ok(None) => return frames.result(Ok(())),
            Err(error) => return frames.result(Err(&error)),
        }
    }
}

/// Foreign traces that a process of its own reads.
#[derive(Debug)]
pub struct IsolatedTrace {
    path: PathBuf,
    child: Child,
    frames: FrameReader<BufReader<PatientPipe>>,
    /// Number of messages that may still come.
    messages_left: u64,
    has_ended: bool,
}

impl IsolatedTrace {
    /// Starts a process that calls [`send_foreign_trace`] with `path` and its standard output. It
    /// may take `patience` for each message.
    ///
    /// # Errors
    /// [`ForeignError::Reader`] if it cannot be started.
    pub fn open(
        path: &Path,
        command: &mut Command,
        patience: Duration,
    ) -> Result<Self, ForeignError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let failed = |error: io::Error| ForeignError::Reader {
            path: path.to_path_buf(),
            reason: format!("it cannot be started: {error}"),
        };
        let mut child = command.spawn().map_err(failed)?;
        let Some(pipe) = child.stdout.take() else {
            return Err(failed(io::Error::from(io::ErrorKind::BrokenPipe)));
        };
        let pipe = BufReader::with_capacity(BUFFER_BYTES, PatientPipe { pipe, patience });
        Ok(Self {
            path: path.to_path_buf(),
            child,
            frames: FrameReader::new(pipe),
            messages_left: bits(path),
            has_ended: false,
        })
    }

    /// As [`ForeignTrace::next_message`].
    ///
    /// # Errors
    /// [`ForeignError`] from where the trace is damaged; after it comes the end.
    pub fn next_message(&mut self) -> Result<Option<ForeignMessage>, ForeignError> {
        if self.has_ended {
            return Ok(None);
        }
        let received = match self.messages_left {
            0 => Err(io::Error::from(io::ErrorKind::QuotaExceeded)),
            _ => self.frames.next(),
        };
        self.messages_left -= u64::from(self.messages_left > 0);
        let reason = match received {
            Ok(Received::Message(message)) => return Ok(Some(message)),
            Ok(Received::Result(result)) => {
                self.has_ended = true;
                return result.map(|()| None);
            }
            Err(error) => self.reason(&error),
        };
        self.has_ended = true;
        Err(ForeignError::Reader {
            path: self.path.clone(),
            reason,
        })
    }

    /// Reason why no more messages come. Ends the process.
    #[cold]
    fn reason(&mut self, error: &io::Error) -> String {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            let ended = self.child.wait();
            return match ended.map(|status| (status.signal(), status.code())) {
                Ok((Some(signal), _)) => format!("signal {signal}{} ended it", meaning(signal)),
                Ok((None, Some(code))) => format!("it ended with status {code}"),
                Ok((None, None)) => "it ended".to_owned(),
                Err(error) => error.to_string(),
            };
        }
        self.end();
        match error.kind() {
            io::ErrorKind::TimedOut => format!(
                "no event came from it for {} s",
                self.frames.input().get_ref().patience.as_secs_f64()
            ),
            io::ErrorKind::InvalidData => "it sent no valid events".to_owned(),
            io::ErrorKind::QuotaExceeded => {
                "it sent more events than the trace has bits".to_owned()
            }
            _ => error.to_string(),
        }
    }

    /// Ends the process and waits for it.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for IsolatedTrace {
    fn drop(&mut self) {
        self.end();
    }
}

/// A name for signals that crashes end with.
fn meaning(signal: i32) -> &'static str {
    use rustix::process::Signal;
    match signal {
        _ if signal == Signal::ABORT.as_raw() => " (abort: an assertion of the library failed)",
        _ if signal == Signal::SEGV.as_raw() => " (segmentation fault)",
        _ if signal == Signal::BUS.as_raw() => " (bus error)",
        _ if signal == Signal::FPE.as_raw() => " (arithmetic error)",
        _ if signal == Signal::TRAP.as_raw() => " (trap: the library had no memory)",
        _ if signal == Signal::KILL.as_raw() => " (kill)",
        _ => "",
    }
}

/// Bits of all files of the traces at a path, and some more for losses.
fn bits(path: &Path) -> u64 {
    let mut bytes = 4096_u64;
    for trace in ForeignTrace::traces(path) {
        let Ok(folder) = Folder::open(&trace) else {
            continue;
        };
        for name in folder.names().unwrap_or_default() {
            if folder.kind(&name).ok().flatten() == Some(FileType::RegularFile) {
                let about = folder.file(&name).and_then(|file| file.metadata());
                bytes = bytes.saturating_add(about.map_or(0, |about| about.len()));
            }
        }
    }
    bytes.saturating_mul(8)
}

/// A pipe whose reader waits for the next bytes no longer than this.
#[derive(Debug)]
struct PatientPipe {
    pipe: ChildStdout,
    patience: Duration,
}

impl Read for PatientPipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let patience = Timespec {
            tv_sec: i64::try_from(self.patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: self.patience.subsec_nanos().into(),
        };
        let mut pipes = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut pipes, Some(&patience))? {
            0 => Err(io::Error::from(io::ErrorKind::TimedOut)),
            _ => self.pipe.read(buffer),
        }
    }
}
