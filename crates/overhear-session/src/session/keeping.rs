// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is kept of a session: the trace and the documents beside it.

use std::io;
use std::path::{Path, PathBuf};

use overhear_directory::monotonic_now;
use overhear_event::Nanos;
use overhear_trace::{Folder, TraceIdentity, TraceWriter, WriteError};
use serde::Serialize;

use crate::error::{ErrorKind, SessionError};
use crate::limits;
use crate::quantities::TraceReport;
use crate::recording::{self, Recording};

/// What was made for a recording that has not begun, insides first: if the program cannot be run,
/// the place is as it was, so that the command can be corrected and repeated. Files and folders
/// that were there before are not ours to remove, nor is anything that we do not know.
#[derive(Default)]
pub(super) struct Unused(Made);

/// What a recording begins with and was not there before, insides first.
#[derive(Default)]
pub(super) struct Made {
    out: PathBuf,
    entries: Vec<Entry>,
    is_out_new: bool,
}

/// A file or folder that a recording begins with, by the folders in which it lies.
#[derive(Clone, Copy)]
struct Entry {
    folders: &'static [&'static str],
    name: &'static str,
    is_folder: bool,
}

const OWN: &[&str] = &["trace", "overhear"];

const ENTRIES: [Entry; 8] = [
    Entry::new(&["trace"], "metadata", false),
    Entry::new(OWN, "streams.json", false),
    Entry::new(OWN, "ends.json", false),
    Entry::new(OWN, "summary.json", false),
    Entry::new(OWN, "run.json", false),
    Entry::new(OWN, "lock", false),
    Entry::new(&["trace"], "overhear", true),
    Entry::new(&[], "trace", true),
];

impl Entry {
    const fn new(folders: &'static [&'static str], name: &'static str, is_folder: bool) -> Self {
        Self {
            folders,
            name,
            is_folder,
        }
    }

    fn folder(self, out: &Path) -> io::Result<Folder> {
        let mut folders = self.folders.iter();
        folders.try_fold(Folder::open(out)?, |folder, name| folder.subfolder(name))
    }

    fn is_there(self, out: &Path) -> bool {
        let found = self
            .folder(out)
            .and_then(|folder| Ok(folder.kind(self.name)?.is_some()));
        found.unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
    }
}

impl Unused {
    /// What will be made in `out`, and is not there yet.
    pub(super) fn not_there_yet(out: &Path) -> Made {
        let mut entries = ENTRIES.to_vec();
        entries.retain(|entry| !entry.is_there(out));
        let found = Folder::open(out).map(drop);
        Made {
            out: out.to_path_buf(),
            entries,
            is_out_new: found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
        }
    }

    /// These are being made.
    pub(super) fn note(&mut self, made: Made) {
        self.0 = made;
    }

    /// The recording has begun: nothing is removed any more.
    pub(super) fn are_used(&mut self) {
        self.0 = Made::default();
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        let Made {
            out,
            entries,
            is_out_new,
        } = &self.0;
        // A folder that somebody else has put something into stays.
        for entry in entries {
            let _ = entry.folder(out).map(|folder| match entry.is_folder {
                true => folder.remove_subfolder(entry.name),
                false => folder.remove_file(entry.name),
            });
        }
        if *is_out_new {
            let _ = Folder::above(out).map(|(above, name)| above.remove_subfolder(name));
        }
    }
}

/// Creates the trace of a recording in the folder `out`.
///
/// # Errors
/// [`SessionError`] if the folder cannot be used.
pub fn create_trace(out: &Path) -> Result<TraceWriter, SessionError> {
    let realtime = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let realtime = u64::try_from(realtime.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(realtime.tv_nsec).unwrap_or(0);
    let hostname = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let offset = realtime.saturating_sub(monotonic_now().as_monotonic_ns());
    let identity = TraceIdentity {
        hostname,
        realtime_offset: Nanos::from_ns(offset),
        uuid: None,
    };
    TraceWriter::create(out, identity).map_err(|error| uncreated(&error))
}

/// Why no trace is begun.
pub fn uncreated(error: &WriteError) -> SessionError {
    let kind = match error {
        WriteError::Write { .. } | WriteError::Replace { .. } => ErrorKind::Incomplete,
        WriteError::Folder(_) => ErrorKind::Unavailable,
        _ => ErrorKind::Usage,
    };
    SessionError::new(kind, error.to_string())
}

/// Keeps what was found live and cannot be computed from the recording.
pub fn keep(writer: &mut TraceWriter, name: &str, found: Option<&impl Serialize>) {
    if let Some(found) = found {
        // Errors are remembered by the writer and come out of `finish`.
        let _ = writer.attach_document(name, found);
    }
}

/// Ends the trace of a recording. Errors become notes of the recording.
pub fn close_trace(
    mut writer: TraceWriter,
    out: &Path,
    recording: &mut Recording,
    segments: &[overhear_stream::Segment],
) -> TraceReport {
    // Errors are remembered by the writer and come out of `finish`.
    let _ = writer.attach_document("clock", &recording::clock_document(segments));
    let finished = writer.finish();
    if let Err(error) = &finished {
        recording.notes.push(limits::explained(error.to_string()));
    }
    let document = recording.to_json();
    if writer.attach_document("run", &document).is_err() && finished.is_ok() {
        recording
            .notes
            .push("the run's description could not be written".to_string());
    }
    let summary = writer.summary();
    TraceReport {
        directory: Some(out.display().to_string()),
        events: summary.events,
        bytes: summary.bytes,
        unrecorded: summary.unrecorded,
    }
}
