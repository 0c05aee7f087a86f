// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repair: cuts the torn tails that a killed recorder leaves, so that strict readers accept the
//! trace.
//!
//! Our own reader does not need it: it leaves the same parts out, and changes nothing on disk.

use std::fs::{File, FileTimes, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use overhear_event::StreamId;
use rustix::fs::FileType;

use crate::catalogue::Catalogue;
use crate::checksum::{seal_document, DocumentCheck};
use crate::ends::StreamEnd;
use crate::error::RepairError;
use crate::map::Map;
use crate::metadata::{self, StreamClass};
use crate::packet::PacketLayout;
use crate::paths::REPAIRS;
use crate::paths::{stream_name, Lock, Part, TracePaths, MAX_CATALOGUE_BYTES, METADATA};
use crate::reader::{CorruptStream, TraceReader};
use crate::repairs::{Repairs, TornTail};
use crate::scan::{scan, Before, Bounds};

/// First bytes of metadata in plain text (CTF 1.8, section 7).
const SIGNATURE: &[u8] = b"/* CTF 1.8 */";

/// The changes of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Tails that were cut off.
    pub cut: Vec<TornTail>,
    /// Files that held no whole packet, or were about to be removed by their recorder, and were
    /// removed.
    pub removed: Vec<PathBuf>,
    /// The metadata, if it was cut short or overwritten and has been written anew.
    pub restored: Option<PathBuf>,
    /// Damage that cannot be repaired by cutting a tail; it was not changed.
    pub corrupt: Vec<CorruptStream>,
}

/// Repairs the trace in `dir`:
///
/// - Torn tails are cut to whole packets.
/// - Files without any packet are removed.
/// - Metadata that other readers could not use, because it was cut short or overwritten, is written
///   anew from the catalogue.
///
/// Whole packets are never changed, and a sound trace remains as it is.
///
/// # Errors
/// [`RepairError`] if this is no trace, it is in a folder of another user, a recorder is writing to
/// it, or a file cannot be changed.
pub fn repair(dir: impl AsRef<Path>) -> Result<RepairReport, RepairError> {
    let paths = TracePaths::open(dir.as_ref())?;
    paths.check_owner()?;
    // Held until the end of the repair. A trace without the file (a copy) has no recorder.
    let _lock = match paths.open_lock() {
        Ok(file) => {
            let in_use = || RepairError::InUse {
                dir: paths.dir().to_path_buf(),
            };
            Some(Lock::take(file).ok_or_else(in_use)?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(change_error(&paths.lock(), &error)),
    };
    let reader = TraceReader::open_paths(paths)?;
    let mut report = RepairReport {
        corrupt: reader.corrupt().to_vec(),
        ..RepairReport::default()
    };
    let mut streams = Vec::new();
    for stream in reader.recorded() {
        let id = stream.descriptor.id;
        let is_torn = reader.torn().iter().any(|tail| tail.stream == id);
        let last = stream.files.last();
        if is_torn || last.is_none_or(|file| file.map.bytes().is_empty()) {
            let (parts, before) = stream.kept_parts();
            streams.push(TornStream {
                id,
                layout: stream.layout.clone(),
                bounds: stream.bounds,
                end_noted: stream.end_noted,
                parts,
                before,
            });
        }
    }
    let remains = reader.remains().to_vec();
    let torn: Vec<TornTail> = reader.torn().to_vec();
    // The maps must be dropped before the files shrink.
    let paths = reader.into_paths();
    // Listed first: if this process is killed in between, no loss is forgotten.
    let mut repairs = Repairs::read(&paths)?;
    let catalogue = Catalogue::read(&paths)?;
    if repairs.add(&torn) {
        let mut json = repairs.to_json();
        if catalogue.has_checksums() {
            seal_document(&mut json);
        }
        let listed = paths.replace_document(REPAIRS, |out| out.write_all(&json));
        listed.map_err(|cause| change_error(&paths.document(REPAIRS), &cause))?;
    }
    for stream in &streams {
        repair_stream(&paths, stream, &mut report)?;
    }
    for name in remains {
        let path = paths.trace().path().join(&name);
        let removed = paths.trace().remove_file(&name);
        removed.map_err(|cause| change_error(&path, &cause))?;
        report.removed.push(path);
    }
    report.restored = restore_metadata(&paths, &catalogue)?;
    // A restored file is not damaged any more.
    let is_restored = |file: &Path| report.restored.as_deref() == Some(file);
    report.corrupt.retain(|damage| !is_restored(&damage.file));
    Ok(report)
}

/// A stream whose last file has a torn tail, or no packet.
struct TornStream {
    id: StreamId,
    layout: PacketLayout,
    bounds: Bounds,
    end_noted: Option<StreamEnd>,
    parts: Vec<Part>,
    before: Before,
}

/// Cuts the torn tail of a stream, and removes a file without a packet. It is opened once: the file
/// that is cut is the one that was scanned.
fn repair_stream(
    paths: &TracePaths,
    stream: &TornStream,
    report: &mut RepairReport,
) -> Result<(), RepairError> {
    let Some((&last, earlier)) = stream.parts.split_last() else {
        return Ok(());
    };
    let id = stream.id;
    let (name, path) = (stream_name(id, last), paths.stream(id, last));
    let failed = |cause: io::Error| change_error(&path, &cause);
    // A file that is not regular was reported as corrupt, and a stream may have no file.
    if paths.trace().kind(&name).map_err(failed)? != Some(FileType::RegularFile) {
        return Ok(());
    }
    let file = paths.trace().file_to_change(&name).map_err(failed)?;
    let mut maps = Vec::new();
    for &part in earlier {
        // One that cannot be opened is damage, which remains.
        let opened = paths.trace().file(stream_name(id, part));
        maps.push(
            opened
                .and_then(|file| Map::of(&file))
                .unwrap_or(Map::empty()),
        );
    }
    maps.push(Map::of(&file).map_err(failed)?);
    let bytes = maps.last().map_or(0, |map| map.bytes().len() as u64);
    // Without the torn tail; other damage remains.
    let files = maps.iter().map(Map::bytes).collect();
    let (layout, end_noted) = (&stream.layout, stream.end_noted);
    let found = scan(layout, files, stream.bounds, end_noted, stream.before);
    drop(maps);
    let offset = found.whole_bytes as u64;
    if offset < bytes {
        let about = file.metadata().map_err(failed)?;
        file.set_len(offset).map_err(failed)?;
        keep_time(&file, &about).map_err(failed)?;
        report.cut.push(TornTail {
            stream: id,
            file: path.clone(),
            offset,
            bytes: bytes - offset,
        });
    }
    if offset == 0 {
        paths.trace().remove_file(&name).map_err(failed)?;
        report.removed.push(path);
    }
    Ok(())
}

/// Restores the time that a file had before it was cut: readers take the latest time of a killed
/// recording from it.
fn keep_time(file: &File, before: &Metadata) -> io::Result<()> {
    let kept = FileTimes::new();
    let kept = kept
        .set_accessed(before.accessed()?)
        .set_modified(before.modified()?);
    file.set_times(kept)
}

/// Writes the metadata again if the present content is no metadata, or a part of the right one. A
/// recorder that dies between the catalogue and the metadata leaves it so, and so does a disk that
/// lost its end. Other differences come from other versions, and remain.
fn restore_metadata(
    paths: &TracePaths,
    catalogue: &Catalogue,
) -> Result<Option<PathBuf>, RepairError> {
    let mut classes = Vec::new();
    for entry in &catalogue.streams {
        // Classes are numbered in the order in which their first streams were opened.
        if entry.class as usize == classes.len() {
            classes.push(StreamClass::of(&entry.descriptor));
        }
    }
    let expected = metadata::render(&catalogue.identity, &classes, catalogue.format);
    let file = paths.metadata();
    let found = paths.trace().read(METADATA, MAX_CATALOGUE_BYTES);
    let found = found.map_err(|cause| change_error(&file, &cause))?;
    let is_part = found.len() < expected.len() && expected.as_bytes().starts_with(&found);
    let is_text = std::str::from_utf8(&found).is_ok_and(|text| !text.contains('\0'));
    let is_wrong = matches!(
        metadata::check_metadata(&found),
        DocumentCheck::Wrong { .. }
    );
    if !is_part && !is_wrong && is_text && found.starts_with(SIGNATURE) {
        return Ok(None);
    }
    paths
        .replace_metadata(expected.as_bytes())
        .map_err(|cause| change_error(&file, &cause))?;
    Ok(Some(file))
}

fn change_error(file: &Path, cause: &io::Error) -> RepairError {
    RepairError::Change {
        file: file.to_path_buf(),
        cause: cause.to_string(),
        kind: cause.kind(),
    }
}
