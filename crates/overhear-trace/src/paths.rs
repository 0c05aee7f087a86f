// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places and size limits of the files of a trace, and their replacement.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use overhear_event::StreamId;
use rustix::fs::{flock, FileType, FlockOperation};

use crate::error::{ReadError, WriteError};
use crate::folder::{Folder, FolderError, Replacement};

/// The metadata.
pub(crate) const METADATA: &str = "metadata";
/// The catalogue.
pub(crate) const STREAMS: &str = "streams.json";
/// The file that a recorder keeps locked as long as it lives.
const LOCK: &str = "lock";

/// Maximum size of the metadata and of the catalogue. Both grow with the number of streams.
pub(crate) const MAX_CATALOGUE_BYTES: u64 = 64 << 20;
/// The name of the document.
pub(crate) const REPAIRS: &str = "repairs";
/// The name of the document.
pub(crate) const DISK: &str = "disk";
/// Maximum size of an attached document.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 48 << 20;
/// Maximum number of values in an attached document, as [`ValueCount`] counts them. The smallest
/// one takes 2 bytes of text and 24 bytes of memory.
pub(crate) const MAX_DOCUMENT_VALUES: u64 = 4 << 20;

/// The directory of a trace, `DIR`. CTF readers see `trace/` in it.
#[derive(Debug)]
pub(crate) struct TracePaths {
    dir: PathBuf,
    /// The CTF trace proper: every regular file in it is metadata or a stream.
    trace: Folder,
    /// `overhear/` in it, which CTF readers do not see: they ignore sub-directories.
    own: Folder,
}

impl TracePaths {
    /// Opens a trace to read it. The directory for CTF readers is accepted, too.
    pub(crate) fn open(dir: &Path) -> Result<Self, ReadError> {
        let unreadable = |error: io::Error, file: PathBuf| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ReadError::NotATrace {
                dir: dir.to_path_buf(),
                missing: file,
            },
            _ => unreadable(&file, &error),
        };
        let own = |trace: &Folder| {
            let own = trace.subfolder("overhear");
            own.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    unreadable(error, trace.path().join("overhear").join(STREAMS))
                }
                _ => unreadable(error, trace.path().join("overhear")),
            })
        };
        let named = Folder::open(dir)
            .map_err(|error| unreadable(error, dir.join("trace").join("overhear").join(STREAMS)))?;
        let is = |name: &str, kind| named.kind(name).is_ok_and(|found| found == Some(kind));
        if is(METADATA, FileType::RegularFile) && is("overhear", FileType::Directory) {
            // For error messages only: reads use the folder that was opened.
            #[expect(clippy::disallowed_methods, reason = "nothing is opened by it")]
            let whole = dir.canonicalize().unwrap_or_default();
            if whole.ends_with("trace") {
                return Ok(Self {
                    dir: whole.parent().unwrap_or(&whole).to_path_buf(),
                    own: own(&named)?,
                    trace: named,
                });
            }
        }
        let trace = named
            .subfolder("trace")
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    unreadable(error, dir.join("trace").join("overhear").join(STREAMS))
                }
                _ => unreadable(error, dir.join("trace")),
            })?;
        Ok(Self {
            dir: dir.to_path_buf(),
            own: own(&trace)?,
            trace,
        })
    }

    /// Creates the missing directories of a new trace.
    pub(crate) fn create(dir: &Path) -> Result<Self, WriteError> {
        let exists = || WriteError::Exists {
            dir: dir.to_path_buf(),
        };
        let trace = Folder::create(dir)?.create_subfolder("trace")?;
        // A file of any type.
        if trace.kind(METADATA).is_ok_and(|found| found.is_some()) {
            return Err(exists());
        }
        let own = trace.create_subfolder("overhear")?;
        if own.kind(STREAMS).is_ok_and(|found| found.is_some()) {
            return Err(exists());
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            trace,
            own,
        })
    }

    /// Whether this trace may be changed by the caller.
    pub(crate) fn check_owner(&self) -> Result<(), FolderError> {
        self.trace.check_owner()?;
        self.own.check_owner()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) const fn trace(&self) -> &Folder {
        &self.trace
    }

    pub(crate) const fn own(&self) -> &Folder {
        &self.own
    }

    /// The paths of files, for error messages.
    pub(crate) fn metadata(&self) -> PathBuf {
        self.trace.path().join(METADATA)
    }

    pub(crate) fn stream(&self, id: StreamId, part: Part) -> PathBuf {
        self.trace.path().join(stream_name(id, part))
    }

    pub(crate) fn streams_json(&self) -> PathBuf {
        self.own.path().join(STREAMS)
    }

    pub(crate) fn document(&self, name: &str) -> PathBuf {
        self.own.path().join(document_name(name))
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.own.path().join(LOCK)
    }

    /// The file that a recorder keeps locked; created if it does not exist.
    pub(crate) fn create_lock(&self) -> io::Result<File> {
        self.own.file_to_lock(LOCK)
    }

    /// The same file, if it exists.
    pub(crate) fn open_lock(&self) -> io::Result<File> {
        self.own.file(LOCK)
    }

    /// The names of files that are named like streams, in no particular order.
    pub(crate) fn stream_names(&self) -> io::Result<Vec<OsString>> {
        let mut names = self.trace.names()?;
        names.retain(|name| name.as_encoded_bytes().starts_with(b"stream-"));
        Ok(names)
    }

    /// Replaces the metadata, so that others see the old content or the new one, never a part.
    ///
    /// The new content grows in our own sub-directory, where no CTF reader mistakes it for a
    /// stream.
    pub(crate) fn replace_metadata(&self, content: &[u8]) -> io::Result<()> {
        bounded(content, MAX_CATALOGUE_BYTES)?;
        let mut replacement = self.own.replace_in(&self.trace, METADATA)?;
        replacement.write_all(content)?;
        replacement.commit()
    }

    /// The same with the catalogue.
    pub(crate) fn replace_catalogue(&self, content: &[u8]) -> io::Result<()> {
        bounded(content, MAX_CATALOGUE_BYTES)?;
        self.replace_own(STREAMS, content)
    }

    /// The same with a document, which is written piece by piece.
    pub(crate) fn replace_document(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = BoundedDocument {
            out: BufWriter::new(self.own.replace(document_name(name))?),
            bytes: 0,
            values: ValueCount::default(),
        };
        write(&mut out)?;
        let out = out.out.into_inner();
        out.map_err(io::IntoInnerError::into_error)?.commit()
    }

    fn replace_own(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut replacement = self.own.replace(name)?;
        replacement.write_all(content)?;
        replacement.commit()
    }
}

/// A document that grows no larger than readers accept.
struct BoundedDocument<'a> {
    out: BufWriter<Replacement<'a>>,
    bytes: u64,
    values: ValueCount,
}

impl Write for BoundedDocument<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        self.values.add(bytes);
        check_size(self.bytes, self.values.count)?;
        self.out.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Counts the values of JSON text that comes piece by piece. Each value counts at most once for
/// every 24 bytes of memory that it takes, so a text counts as three. Names of members are not kept
/// and do not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ValueCount {
    count: u64,
    is_in_text: bool,
    is_escaped: bool,
    is_behind_text: bool,
}

impl ValueCount {
    /// The count of a whole document.
    pub(crate) fn of(json: &[u8]) -> u64 {
        let mut values = Self::default();
        values.add(json);
        values.count
    }

    fn add(&mut self, json: &[u8]) {
        for &byte in json {
            if self.is_in_text {
                let ends = byte == b'"' && !self.is_escaped;
                self.is_escaped = byte == b'\\' && !self.is_escaped;
                (self.is_in_text, self.is_behind_text) = (!ends, ends);
                continue;
            }
            match byte {
                b'"' => {
                    self.count += 2;
                    self.is_in_text = true;
                }
                b':' if self.is_behind_text => self.count -= 2,
                b',' | b'[' | b'{' => self.count += 1,
                b' ' | b'\t' | b'\r' | b'\n' => continue,
                _ => {}
            }
            self.is_behind_text = false;
        }
    }
}

/// Checks that a document is within the limits.
pub(crate) fn check_size(bytes: u64, values: u64) -> io::Result<()> {
    let (most, found, what) = match bytes > MAX_DOCUMENT_BYTES {
        true => (MAX_DOCUMENT_BYTES, bytes, "bytes"),
        false if values > MAX_DOCUMENT_VALUES => (MAX_DOCUMENT_VALUES, values, "values"),
        false => return Ok(()),
    };
    let cause = format!("it has {found} {what}, more than the {most} that are allowed");
    Err(io::Error::other(cause))
}

/// A file of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    /// Elements of removed packets that are repeated, in a recording whose first part has this
    /// number.
    Repeated(u64),
    /// Packets. A recording without a maximum size has part 0 only.
    Number(u64),
}

/// The name of a stream's file.
pub(crate) fn stream_name(id: StreamId, part: Part) -> String {
    match part {
        Part::Number(0) => format!("stream-{id}"),
        Part::Number(number) => format!("stream-{id}.{number}"),
        Part::Repeated(number) => format!("stream-{id}.repeated-{number}"),
    }
}

/// The stream and the part of a file with this name; `None` if no stream has such a file.
pub(crate) fn part_of_name(name: &OsStr) -> Option<(StreamId, Part)> {
    let rest = name.to_str()?.strip_prefix("stream-")?;
    let (id, part) = match rest.split_once('.') {
        None => (rest, Part::Number(0)),
        Some((id, part)) => match part.strip_prefix("repeated-") {
            Some(number) => (id, Part::Repeated(number.parse().ok()?)),
            None => (id, Part::Number(part.parse().ok()?)),
        },
    };
    let id = StreamId::from_raw(id.parse().ok()?);
    // Other spellings of the numbers are other files.
    (name == OsStr::new(&stream_name(id, part))).then_some((id, part))
}

/// The name of a document's file.
pub(crate) fn document_name(name: &str) -> String {
    format!("{name}.json")
}

/// Readers would refuse larger content.
fn bounded(content: &[u8], most_bytes: u64) -> io::Result<()> {
    match content.len() as u64 {
        bytes if bytes > most_bytes => Err(io::Error::other(format!(
            "it would have {bytes} bytes, more than the {most_bytes} that are read again"
        ))),
        _ => Ok(()),
    }
}

/// The error for a file that cannot be read. [`Folder`] itself refuses types that no recorder
/// leaves there.
pub(crate) fn unreadable(file: &Path, cause: &io::Error) -> ReadError {
    let (file, refused) = (file.to_path_buf(), cause.kind() == io::ErrorKind::Other);
    let cause = cause.to_string();
    match refused {
        true => ReadError::Refused { file, cause },
        false => ReadError::Unreadable { file, cause },
    }
}

/// Holding one proves that no other process with a lock changes the files of the trace.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock; `None` if another process has it. It ends with the process.
    pub(crate) fn take(file: File) -> Option<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing does not suffice: a child that another thread is about to start shares the lock
        // until it executes another program. If this fails nothing can be done, and the file is
        // closed next.
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
        && !["streams", "summary", REPAIRS, DISK].contains(&name)
}

/// Whether a recorder is writing to `dir` at this moment.
pub fn is_being_written(dir: impl AsRef<Path>) -> bool {
    // A shared lock is refused as long as a recorder holds its own; locks of other readers do not
    // conflict.
    let lock = TracePaths::open(dir.as_ref()).map(|paths| paths.open_lock());
    lock.is_ok_and(|lock| {
        lock.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    })
}

#[cfg(test)]
mod tests {
    use super::ValueCount;

    #[test]
    fn texts_count_for_three_values_and_names_for_nothing() {
        for (json, count) in [
            ("[0,1,2]", 3),
            (r#"["a","b"]"#, 6),
            (r#"{"a":1,"b" : 2}"#, 2),
            (r#"["\":[,{\\","b"]"#, 6),
            (r#"{"\\":"\"","c":[]}"#, 5),
        ] {
            assert_eq!(ValueCount::of(json.as_bytes()), count, "{json}");
            let mut pieces = ValueCount::default();
            json.as_bytes()
                .chunks(1)
                .for_each(|piece| pieces.add(piece));
            assert_eq!(pieces.count, count, "{json}");
        }
    }
}
