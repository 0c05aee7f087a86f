// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a session's recording: created, removed if the run does not begin, and closed.

use std::io;
use std::path::{Path, PathBuf};

use overhear_directory::monotonic_now;
use overhear_event::Nanos;
use overhear_trace::{Folder, TraceIdentity, TraceWriter, WriteError};

use crate::disk_limits::DiskLimits;
use crate::documents;
use crate::error::{ErrorKind, SessionError};
use crate::limits;
use crate::quantities::TraceReport;
use crate::recording::{self, Recording};

/// The files and folders that a recording created before its run began. Dropping it removes them,
/// so that the command can be corrected and repeated. It never removes files and folders that
/// existed before, nor files that a recording does not create.
#[derive(Default)]
pub(super) struct NewFiles(MissingFiles);

/// The files and folders of a recording that do not exist yet, contents before their folders.
#[derive(Default)]
pub(super) struct MissingFiles {
    out: PathBuf,
    entries: Vec<Entry>,
    is_out_new: bool,
}

/// A file or folder that a recording creates, with the path of its folder.
#[derive(Clone, Copy)]
struct Entry {
    folders: &'static [&'static str],
    name: &'static str,
    is_folder: bool,
}

const DOCUMENTS: &[&str] = &["trace", "overhear"];

const ENTRIES: [Entry; 9] = [
    Entry::new(&["trace"], "metadata", false),
    Entry::new(DOCUMENTS, "streams.json", false),
    Entry::new(DOCUMENTS, "disk.json", false),
    Entry::new(DOCUMENTS, "ends.json", false),
    Entry::new(DOCUMENTS, "summary.json", false),
    Entry::new(DOCUMENTS, "run.json", false),
    Entry::new(DOCUMENTS, "lock", false),
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

    fn exists(self, out: &Path) -> bool {
        let found = self
            .folder(out)
            .and_then(|folder| Ok(folder.kind(self.name)?.is_some()));
        found.unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
    }
}

impl MissingFiles {
    /// Those in the folder `out`.
    pub(super) fn in_folder(out: &Path) -> Self {
        let mut entries = ENTRIES.to_vec();
        entries.retain(|entry| !entry.exists(out));
        let found = Folder::open(out).map(drop);
        Self {
            out: out.to_path_buf(),
            entries,
            is_out_new: found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
        }
    }
}

impl NewFiles {
    /// These are created now.
    pub(super) fn set(&mut self, files: MissingFiles) {
        self.0 = files;
    }

    /// The run has begun: no file is removed any more.
    pub(super) fn keep(&mut self) {
        self.0 = MissingFiles::default();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        let MissingFiles {
            out,
            entries,
            is_out_new,
        } = &self.0;
        // A folder with other files in it stays.
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

/// Creates the trace of a recording in the folder `out`, within limits.
///
/// # Errors
/// [`SessionError`] if the folder cannot be used, or the limits have no room for elements.
pub fn create_trace(out: &Path, limits: DiskLimits) -> Result<TraceWriter, SessionError> {
    limits.check().map_err(|error| create_error(&error))?;
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
    let created = TraceWriter::create(out, identity);
    let created = created.and_then(|writer| writer.with_limits(limits));
    created.map_err(|error| create_error(&error))
}

/// The error of a trace that cannot be created.
pub fn create_error(error: &WriteError) -> SessionError {
    let kind = match error {
        WriteError::Write { .. } | WriteError::Replace { .. } => ErrorKind::Incomplete,
        WriteError::Folder(_) => ErrorKind::Unavailable,
        _ => ErrorKind::Usage,
    };
    SessionError::new(kind, error.to_string())
}

/// Ends the trace of a recording. Errors become notes of the recording.
pub fn close_trace(
    mut writer: TraceWriter,
    out: &Path,
    recording: &mut Recording,
    segments: &[overhear_stream::Segment],
) -> TraceReport {
    // An error is kept by the writer, whose `finish` returns it.
    let _ = writer.attach_document(documents::CLOCK, &recording::clock_document(segments));
    let finished = writer.finish();
    if let Err(error) = &finished {
        recording.notes.push(limits::explained(error.to_string()));
    }
    let document = recording.to_json();
    if writer.attach_document(documents::RUN, &document).is_err() && finished.is_ok() {
        recording
            .notes
            .push("the run's description could not be written".to_string());
    }
    let summary = writer.summary();
    TraceReport {
        directory: Some(out.display().to_string()),
        events: summary.events,
        bytes: summary.bytes,
        left_out: summary.left_out,
        unrecorded: summary.unrecorded,
    }
}
