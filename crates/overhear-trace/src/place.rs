// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the files of a trace lie, and how a file is replaced.

use std::fs;
use std::fs::File;
use std::io;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use overhear_event::StreamId;
use rustix::fs::{flock, FlockOperation};

/// The directory of a trace: `DIR`, in which `trace/` is what CTF readers see.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The CTF trace proper: every regular file in it is metadata or a stream.
    pub(crate) fn trace(&self) -> PathBuf {
        self.dir.join("trace")
    }

    pub(crate) fn metadata(&self) -> PathBuf {
        self.trace().join("metadata")
    }

    pub(crate) fn stream(&self, id: StreamId) -> PathBuf {
        self.trace().join(format!("stream-{id}"))
    }

    /// What CTF readers do not see: they ignore sub-directories.
    pub(crate) fn own(&self) -> PathBuf {
        self.trace().join("overhear")
    }

    pub(crate) fn streams_json(&self) -> PathBuf {
        self.document("streams")
    }

    pub(crate) fn document(&self, name: &str) -> PathBuf {
        self.own().join(format!("{name}.json"))
    }

    /// The recorder holds a lock on this file as long as it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.own().join("lock")
    }

    /// Replaces `target`, so that others see the old content or the new one, never a part.
    ///
    /// The new content grows in our own sub-directory, where no CTF reader takes it for a stream.
    /// It is not forced to the disk: the promise is about killed processes, and a recorder must
    /// not wait for disks.
    pub(crate) fn replace(&self, target: &Path, content: &[u8]) -> io::Result<()> {
        self.replace_by(target, |file| file.write_all(content))
    }

    /// As [`Place::replace`], with content that is written piece by piece.
    pub(crate) fn replace_by(
        &self,
        target: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.own().join(format!(".{name}.new"));
        let result = File::create(&temporary)
            .and_then(|file| {
                let mut file = BufWriter::new(file);
                write(&mut file)?;
                file.flush()
            })
            .and_then(|()| fs::rename(&temporary, target));
        if result.is_err() {
            // The first error is what the user needs to know.
            let _ = fs::remove_file(&temporary);
        }
        result
    }
}

/// Says that somebody may change the files of a trace.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock; `None` if it is taken. It vanishes with the process.
    pub(crate) fn take(file: File) -> Option<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing does not suffice: a child that another thread is about to start shares the
        // lock until it becomes another program. Nothing can be done if this fails, and closing
        // comes next.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Names of attached documents: they become file names, so they are restricted, and the names
/// that this crate uses itself are taken.
pub(crate) fn is_document_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && !["streams", "summary"].contains(&name)
}

/// JSON documents above this size are refused before anything is allocated for them.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// Reads a whole regular file of moderate size.
pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if about.len() > MAX_JSON_BYTES {
        return Err(io::Error::other(format!(
            "it has {} bytes, more than the {MAX_JSON_BYTES} that are allowed",
            about.len()
        )));
    }
    let mut content = Vec::with_capacity(about.len() as usize);
    File::open(path)?
        .take(MAX_JSON_BYTES)
        .read_to_end(&mut content)?;
    Ok(content)
}

/// Whether a recorder is at work in `dir` at this moment.
pub fn is_being_written(dir: impl AsRef<Path>) -> bool {
    // A shared lock is refused as long as a recorder holds its own; that of another reader is not in
    // the way.
    File::open(Place::new(dir.as_ref()).lock())
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}
