// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repair: cuts what a killed recorder left, so that strict readers accept the trace.

use std::fs;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::catalogue::Catalogue;
use crate::checksum::DocumentCheck;
use crate::error::RepairError;
use crate::metadata::{self, StreamClass};
use crate::place::{Lock, Place};
use crate::reader::{find, CorruptStream, TornTail, TraceReader};

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
/// [`RepairError`] if this is no trace, a recorder is at work on it, or a file cannot be changed.
pub fn repair(dir: impl AsRef<Path>) -> Result<RepairReport, RepairError> {
    let place = find(dir.as_ref());
    // Held until we are done. A trace without the file (a copy) has no recorder.
    let _lock = match File::open(place.lock()) {
        Ok(file) => {
            let in_use = || RepairError::InUse {
                dir: place.dir().to_path_buf(),
            };
            Some(Lock::take(file).ok_or_else(in_use)?)
        }
        Err(_) => None,
    };
    let reader = TraceReader::open(&dir)?;
    let mut report = RepairReport {
        corrupt: reader.corrupt().to_vec(),
        ..RepairReport::default()
    };
    let torn = reader.torn().to_vec();
    let files: Vec<_> = reader.recorded().iter().map(|s| s.file.clone()).collect();
    // The maps must be gone before the files shrink.
    drop(reader);
    for tail in torn {
        File::options()
            .write(true)
            .open(&tail.file)
            .and_then(|file| file.set_len(tail.offset))
            .map_err(|cause| change_error(&tail.file, &cause))?;
        report.cut.push(tail);
    }
    report.restored = restore_metadata(&place)?;
    for file in files {
        if fs::metadata(&file).is_ok_and(|about| about.is_file() && about.len() == 0) {
            fs::remove_file(&file).map_err(|cause| change_error(&file, &cause))?;
            report.removed.push(file);
        }
    }
    Ok(report)
}

/// Writes the metadata again if what is there is no metadata, or a part of what belongs there: as
/// a recorder leaves it that dies between the catalogue and the metadata, and a disk that lost its end.
/// Other differences are those of other versions, and stay.
fn restore_metadata(place: &Place) -> Result<Option<PathBuf>, RepairError> {
    let catalogue = Catalogue::read(place)?;
    let mut classes = Vec::new();
    for entry in &catalogue.streams {
        // Classes are numbered in the order in which their first streams were opened.
        if entry.class as usize == classes.len() {
            classes.push(StreamClass::of(&entry.descriptor));
        }
    }
    let expected = metadata::render(&catalogue.identity, &classes, catalogue.format);
    let file = place.metadata();
    let found = fs::read(&file).map_err(|cause| change_error(&file, &cause))?;
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
        .replace(&file, expected.as_bytes())
        .map_err(|cause| change_error(&file, &cause))?;
    Ok(Some(file))
}

fn change_error(file: &Path, cause: &io::Error) -> RepairError {
    RepairError::Change {
        file: file.to_path_buf(),
        cause: cause.to_string(),
    }
}
