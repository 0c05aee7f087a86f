// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is kept of a session: the trace and the documents beside it.

use std::path::{Path, PathBuf};

use overhear_directory::monotonic_now;
use overhear_event::Nanos;
use overhear_trace::{TraceIdentity, TraceWriter};
use serde::Serialize;

use crate::exit::{Failure, INCONCLUSIVE, USAGE};
use crate::limits;
use crate::recording::{self, Recording};
use crate::report::TraceReport;

/// What was made for a recording that has not begun, insides first: if the program cannot be run,
/// the place is as it was, so that the command can be corrected and repeated. Files and folders
/// that were there before are not ours to remove, nor is anything that we do not know.
#[derive(Default)]
pub(super) struct Unused(Vec<PathBuf>);

impl Unused {
    /// What will be made in `out`, and is not there yet.
    pub(super) fn not_there_yet(out: &Path) -> Vec<PathBuf> {
        let trace = out.join("trace");
        let own = trace.join("overhear");
        let files = ["streams.json", "summary.json", "run.json", "lock"].map(|name| own.join(name));
        let mut all = vec![trace.join("metadata")];
        all.extend(files);
        all.extend([own, trace, out.to_path_buf()]);
        all.retain(|path| path.symlink_metadata().is_err());
        all
    }

    /// These are being made.
    pub(super) fn note(&mut self, made: Vec<PathBuf>) {
        self.0 = made;
    }

    /// The recording has begun: nothing is removed any more.
    pub(super) fn are_used(&mut self) {
        self.0.clear();
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        for path in &self.0 {
            // A folder that somebody else has put something into stays.
            let _ = match path.is_dir() {
                true => std::fs::remove_dir(path),
                false => std::fs::remove_file(path),
            };
        }
    }
}

pub(crate) fn create_trace(out: &Path) -> Result<TraceWriter, Failure> {
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
    TraceWriter::create(out, identity).map_err(|error| {
        let status = match &error {
            overhear_trace::WriteError::Write { .. }
            | overhear_trace::WriteError::Replace { .. } => INCONCLUSIVE,
            _ => USAGE,
        };
        Failure::new(status, error.to_string())
    })
}

/// Keeps what was found live and cannot be computed from the recording.
pub(crate) fn keep(writer: &mut TraceWriter, name: &str, found: Option<&impl Serialize>) {
    if let Some(found) = found {
        // Errors are remembered by the writer and come out of `finish`.
        let _ = writer.attach_document(name, found);
    }
}

pub(crate) fn close_trace(
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
