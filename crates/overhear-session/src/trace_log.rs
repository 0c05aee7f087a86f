// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX trace logs: a log is a recording in one file.
//!
//! ```text
//!  log --LogReader--> TraceElements --> TraceWriter --> recording in a folder
//! ```
//!
//! [`import_log`] makes a recording of a log. Commands that read a recording call
//! [`with_recording`]: it gives them a folder as it is, and a log as a recording in a temporary
//! folder.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use overhear_event::{Analysis, GapCause, Nanos, Timestamp};
use overhear_posixtrace::{AnalysisSink, LogItem, LogReader, LostEvents, TraceElements};
use overhear_trace::{TraceIdentity, TraceWriter};
use rustix::fs::{FileType, Mode, OFlags};

use crate::conclusion::Exit;
use crate::documents;
use crate::error::{ErrorKind, SessionError};
use crate::quantities::SourceReport;
use crate::recording::{Ending, Recording};
use crate::scratch::Scratch;
use crate::session::create_error;

/// Span of trace time after which the writer is advanced, so that packets of slow streams do not
/// stay in memory until they are full.
const ADVANCE: Nanos = Nanos::from_ms(50);

/// Totals and notes of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedLog {
    /// Events of the log.
    pub events: u64,
    /// Streams written.
    pub streams: usize,
    /// Events that are not in the log: lost before, overwritten, or damaged.
    pub missed: u64,
    /// Messages about missing events.
    pub notes: Vec<String>,
}

/// Opens a regular file; `None` if the path is something else, or does not exist.
fn open_file(path: &Path) -> Result<Option<OwnedFd>, SessionError> {
    // A FIFO without a writer must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let unreadable = |cause: io::Error| {
        let message = format!("cannot read {}: {cause}", path.display());
        SessionError::new(ErrorKind::Usage, message)
    };
    let is_file = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
    match rustix::fs::stat(path) {
        Ok(stat) if is_file(stat.st_mode) => {}
        // The reader of recordings reports it.
        _ => return Ok(None),
    }
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = file.map_err(|error| unreadable(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| unreadable(error.into()))?;
    Ok(is_file(stat.st_mode).then_some(file))
}

/// Opens a log. `None` if the path is no regular file.
fn open_log(path: &Path) -> Result<Option<LogReader>, SessionError> {
    let Some(file) = open_file(path)? else {
        return Ok(None);
    };
    LogReader::open(file).map(Some).map_err(|error| {
        let file = path.display();
        let message = match error.errno() {
            libc::EINVAL => {
                format!("{file} is a file, and no POSIX trace log; name a log, or the directory of a recording or trace")
            }
            _ => format!("{file}: {error}"),
        };
        SessionError::new(ErrorKind::Usage, message)
    })
}

/// Whether the path is a trace log.
#[must_use]
pub fn is_log(path: &Path) -> bool {
    open_log(path).is_ok_and(|log| log.is_some())
}

/// Makes a recording in `out` of the log `path`. `None` if the path is no regular file.
///
/// # Errors
/// [`SessionError`] if the file is no log, or the recording cannot be written.
pub fn import_log(path: &Path, out: &Path) -> Result<Option<ImportedLog>, SessionError> {
    open_log(path)?
        .map(|log| convert(log, path, out))
        .transpose()
}

fn convert(mut log: LogReader, path: &Path, out: &Path) -> Result<ImportedLog, SessionError> {
    let unreadable = |error| {
        let message = format!("{}: {error}", path.display());
        SessionError::new(ErrorKind::Incomplete, message)
    };
    let header = log.header().clone();
    let identity = TraceIdentity {
        realtime_offset: Nanos::from_ns(u64::try_from(header.realtime_offset_ns).unwrap_or(0)),
        ..TraceIdentity::default()
    };
    let writer = TraceWriter::create(out, identity);
    let mut writer = writer.map_err(|error| create_error(&error))?;
    let mut elements = TraceElements::new(&header);
    for (event, name) in log.names() {
        elements.define(*event, name);
    }
    let mut imported = ImportedLog::default();
    let mut last = log.times().map_or(Timestamp::ZERO, |(first, _)| first);
    let mut advanced_to = Timestamp::ZERO;
    // `finish` returns the errors of the writer.
    while let Some(item) = log.next().map_err(unreadable)? {
        let mut sink = AnalysisSink(&mut writer);
        match item {
            LogItem::Event(event) => {
                imported.events += 1;
                last = event.time;
                elements.event(&event, &mut sink);
            }
            LogItem::Lost(loss) => {
                imported.missed = imported.missed.saturating_add(loss.missed);
                last = loss.to;
                elements.lost(loss, &mut sink);
            }
        }
        if last > advanced_to.plus(ADVANCE) {
            advanced_to = last;
            elements.report_unconverted(&mut AnalysisSink(&mut writer));
            Analysis::advance(&mut writer, last);
        }
    }
    let mut sink = AnalysisSink(&mut writer);
    elements.report_unconverted(&mut sink);
    if log.refused() > 0 {
        imported.missed = imported.missed.saturating_add(log.refused());
        elements.lost(
            LostEvents {
                from: last,
                to: last,
                missed: log.refused(),
                cause: GapCause::Full,
            },
            &mut sink,
        );
    }
    if log.cut_bytes() > 0 {
        // At least one event was in the incomplete frame.
        elements.lost(
            LostEvents {
                from: last,
                to: last,
                missed: 1,
                cause: GapCause::Corrupt,
            },
            &mut sink,
        );
    }
    imported.streams = elements.streams().count();
    imported.notes = notes(&log, path, elements.unconverted());
    Analysis::advance(&mut writer, last);
    let incomplete = |error: overhear_trace::WriteError| {
        SessionError::new(ErrorKind::Incomplete, error.to_string())
    };
    writer.finish().map_err(incomplete)?;
    let document = document(&log, path, &imported);
    let attached = writer.attach_document(documents::RUN, &document.to_json());
    attached.map_err(incomplete)?;
    Ok(imported)
}

/// Whether a process with this number exists.
fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // Of another user's process it returns EPERM.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Messages about missing events.
fn notes(log: &LogReader, path: &Path, unconverted: u64) -> Vec<String> {
    let file = path.display();
    let mut notes = Vec::new();
    if !log.is_complete() {
        let writer = log.writer_pid();
        notes.push(match is_alive(writer) {
            true => format!("{file} is still being written by process {writer}: later events are missing"),
            false => format!(
                "{file} is not complete: process {writer}, which wrote it, was killed; events that it had not flushed are missing"
            ),
        });
    }
    match log.damaged() {
        0 => {}
        1 => notes.push(format!(
            "{file} is damaged in one place; everything else is read"
        )),
        places => notes.push(format!(
            "{file} is damaged in {places} places; everything else is read"
        )),
    }
    if log.cut_bytes() > 0 {
        let bytes = log.cut_bytes();
        notes.push(format!(
            "{file} ends within a frame: its last {bytes} bytes are left out"
        ));
    }
    if log.refused() > 0 {
        let refused = log.refused();
        notes.push(format!("the log was full and refused {refused} events"));
    }
    let flush_error = log.status().flush_error;
    if flush_error != 0 {
        let cause = io::Error::from_raw_os_error(flush_error);
        notes.push(format!(
            "a flush of the stream to its log had failed: {cause}"
        ));
    }
    if unconverted > 0 {
        notes.push(format!(
            "{unconverted} events are left out: they are of too many processes, or of the kernel in another size than this version expects"
        ));
    }
    notes
}

/// The document `run` of a recording that was a log. It has no end if the log has none.
fn document(log: &LogReader, path: &Path, imported: &ImportedLog) -> Recording {
    let header = log.header();
    let name = String::from_utf8_lossy(&header.attributes.name);
    let stream = match name.is_empty() {
        true => String::new(),
        false => format!(" of the stream {name}"),
    };
    let source = SourceReport {
        name: "log".to_owned(),
        active: "posix-trace".to_owned(),
        message: format!("events{stream} in {}", path.display()),
        sensors: Vec::new(),
    };
    let (first, last) = log.times().unwrap_or_default();
    let command = [OsString::from("import"), path.as_os_str().to_owned()];
    let mut recording = Recording::begin(&command, vec![source], first);
    recording.notes.clone_from(&imported.notes);
    recording.end = log.is_complete().then_some(Ending {
        end_ns: last.as_monotonic_ns(),
        exit: Exit::Code(0),
    });
    recording
}

/// A recording that a command reads.
#[derive(Debug)]
pub struct RecordingInput {
    named: PathBuf,
    folder: PathBuf,
    // Removed at the end.
    scratch: Option<Scratch>,
}

impl RecordingInput {
    /// The recording in a folder as it is, that of a log in a temporary folder.
    ///
    /// # Errors
    /// [`SessionError`] if the path is a file but no log, or the temporary folder has no room.
    pub fn open(path: &Path) -> Result<Self, SessionError> {
        let mut input = Self {
            named: path.to_path_buf(),
            folder: path.to_path_buf(),
            scratch: None,
        };
        let Some(log) = open_log(path)? else {
            return Ok(input);
        };
        let scratch = Scratch::for_recording().map_err(|cause| {
            let message = format!("cannot create a temporary folder for the events of {}: {cause}; choose another place by TMPDIR", path.display());
            SessionError::new(ErrorKind::Unavailable, message)
        })?;
        input.folder = scratch.recording();
        input.scratch = Some(scratch);
        convert(log, path, &input.folder).map_err(|error| input.explained(error))?;
        Ok(input)
    }

    /// The folder of the recording.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An error about the recording, with the name that the user has given.
    #[must_use]
    pub fn explained(&self, mut error: SessionError) -> SessionError {
        if self.scratch.is_some() {
            let (folder, named) = (self.folder.display(), self.named.display());
            error.message = error
                .message
                .replace(&folder.to_string(), &named.to_string());
        }
        error
    }
}

/// Calls `read` with the folder of the recording `path`, which may be a log.
///
/// # Errors
/// Those of [`RecordingInput::open`] and of `read`.
pub fn with_recording<T>(
    path: &Path,
    read: impl FnOnce(&Path) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    let input = RecordingInput::open(path)?;
    read(input.folder()).map_err(|error| input.explained(error))
}
