// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repair: cuts what a killed recorder left, so that strict readers accept the trace.
//!
//! Our own reader does without: it leaves the same parts out, and changes nothing on disk.

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
use crate::paths::{stream_name, Lock, TracePaths, MAX_CATALOGUE_BYTES, METADATA};
use crate::reader::{CorruptStream, TraceReader};
use crate::repairs::{Repairs, TornTail};
use crate::scan::{scan, Bounds};

/// What metadata in plain text begins with (CTF 1.8, section 7).
const SIGNATURE: &[u8] = b"/* CTF 1.8 */";

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Tails that were cut off.
    pub cut: Vec<TornTail>,
    /// Files that held no whole packet and were removed.
    pub removed: Vec<PathBuf>,
    /// The metadata, if it was cut short or overwritten and has been written anew.
    pub restored: Option<PathBuf>,
    /// Damage that cannot be repaired by cutting a tail; it was left alone.
    pub corrupt: Vec<CorruptStream>,
}

/// Repairs the trace in `dir`: torn tails are cut to whole packets, files without any packet are
/// removed. Metadata that other readers could not use, because it was cut short or overwritten, is
/// written anew from the catalogue. Whole packets are never touched, and a sound trace is left as it is.
///
/// # Errors
/// [`RepairError`] if this is no trace, it is in a folder of another user, a recorder is at work on it, or a file cannot be
/// changed.
pub fn repair(dir: impl AsRef<Path>) -> Result<RepairReport, RepairError> {
    let place = TracePaths::open(dir.as_ref())?;
    place.check_owner()?;
    // Held until we are done. A trace without the file (a copy) has no recorder.
    let _lock = match place.open_lock() {
        Ok(file) => {
            let in_use = || RepairError::InUse {
                dir: place.dir().to_path_buf(),
            };
            Some(Lock::take(file).ok_or_else(in_use)?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(change_error(&place.lock(), &error)),
    };
    let reader = TraceReader::open_place(place)?;
    let mut report = RepairReport {
        corrupt: reader.corrupt().to_vec(),
        ..RepairReport::default()
    };
    let mut streams = Vec::new();
    for stream in reader.recorded() {
        let id = stream.descriptor.id;
        let is_torn = reader.torn().iter().any(|tail| tail.stream == id);
        if is_torn || stream.map.bytes().is_empty() {
            streams.push((id, stream.layout.clone(), stream.bounds, stream.end_noted));
        }
    }
    let torn: Vec<TornTail> = reader.torn().to_vec();
    // The maps must be gone before the files shrink.
    let place = reader.into_place();
    // Listed first: if this process is killed between, no loss is forgotten.
    let mut repairs = Repairs::read(&place)?;
    let catalogue = Catalogue::read(&place)?;
    if repairs.add(&torn) {
        let mut json = repairs.to_json();
        if catalogue.has_checksums() {
            seal_document(&mut json);
        }
        let listed = place.replace_document(REPAIRS, |out| out.write_all(&json));
        listed.map_err(|cause| change_error(&place.document(REPAIRS), &cause))?;
    }
    for (id, layout, bounds, end_noted) in streams {
        repair_stream(&place, id, (&layout, bounds, end_noted), &mut report)?;
    }
    report.restored = restore_metadata(&place, &catalogue)?;
    // What was restored is not damaged any more.
    let is_restored = |file: &Path| report.restored.as_deref() == Some(file);
    report.corrupt.retain(|damage| !is_restored(&damage.file));
    Ok(report)
}

/// Cuts the torn tail of a stream, and removes a file without a packet. It is opened once: what is cut is what was
/// scanned.
fn repair_stream(
    place: &TracePaths,
    id: StreamId,
    (layout, bounds, end_noted): (&PacketLayout, Bounds, Option<StreamEnd>),
    report: &mut RepairReport,
) -> Result<(), RepairError> {
    let (name, path) = (stream_name(id), place.stream(id));
    let failed = |cause: io::Error| change_error(&path, &cause);
    // What is no regular file was reported as corrupt, and a stream may have no file.
    if place.trace().kind(&name).map_err(failed)? != Some(FileType::RegularFile) {
        return Ok(());
    }
    let file = place.trace().file_to_change(&name).map_err(failed)?;
    let map = Map::of(&file).map_err(failed)?;
    let bytes = map.bytes().len() as u64;
    // Without the torn tail; other damage stays where it is.
    let found = scan(layout, map.bytes(), bounds, end_noted);
    drop(map);
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
        place.trace().remove_file(&name).map_err(failed)?;
        report.removed.push(path);
    }
    Ok(())
}

/// Gives a file the time back that it had before it was cut: readers take the latest time of a killed recording from it.
fn keep_time(file: &File, before: &Metadata) -> io::Result<()> {
    let kept = FileTimes::new();
    let kept = kept
        .set_accessed(before.accessed()?)
        .set_modified(before.modified()?);
    file.set_times(kept)
}

/// Writes the metadata again if what is there is no metadata, or a part of what belongs there: as
/// a recorder leaves it that dies between the catalogue and the metadata, and a disk that lost its end.
/// Other differences are those of other versions, and stay.
fn restore_metadata(
    place: &TracePaths,
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
    let file = place.metadata();
    let found = place.trace().read(METADATA, MAX_CATALOGUE_BYTES);
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
    place
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
