// SPDX-License-Identifier: MIT OR Apache-2.0
//! One error per operation, each a message for the user.

use std::io::ErrorKind;
use std::path::PathBuf;

use overhear_event::{Nanos, StreamId, Timestamp};

use crate::folder::FolderError;
use crate::format::{FORMAT, OLDEST_FORMAT};

/// Reason why something could not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// There is a trace already.
    #[error("{} already holds a trace; record into another directory or remove it first", .dir.display())]
    Exists {
        /// The directory.
        dir: PathBuf,
    },
    /// A directory or file of the trace could not be created.
    #[error("cannot create {}: {cause}; choose a directory you may write to", .path.display())]
    Create {
        /// The directory or file.
        path: PathBuf,
        /// The error of the operating system.
        cause: String,
    },
    /// The folder is not trusted for writing.
    #[error(transparent)]
    Folder(FolderError),
    /// A packet could not be written. The recording ends here.
    #[error("cannot write {} beyond byte {offset}: {cause}; the {recorded} elements recorded until then are kept, later ones are not recorded; make room and record again", .file.display())]
    Write {
        /// The stream's file.
        file: PathBuf,
        /// The end of the last whole packet, where the file now ends.
        offset: u64,
        /// The error of the operating system.
        cause: String,
        /// Number of elements of all streams in the trace.
        recorded: u64,
    },
    /// A document or the metadata could not be written anew.
    #[error("cannot write {}: {cause}; make room and try again", .file.display())]
    Replace {
        /// The file; its old content is kept.
        file: PathBuf,
        /// The error of the operating system.
        cause: String,
    },
    /// The name of a document cannot be a file name.
    #[error("`{0}` cannot name a document; use letters, digits, `_` and `-`, at most 64, and none of `streams`, `summary`, `repairs` and `disk`")]
    DocumentName(String),
    /// The wall clock offset is beyond what CTF readers can show.
    #[error("a wall clock {0} ahead of the monotonic clock is beyond the year 2116; set the machine's clock")]
    RealtimeOffset(Nanos),
    /// Two streams have one number.
    #[error("stream {stream} ({label}) was already opened with another description; streams of one trace need different ids")]
    Conflict {
        /// The common number.
        stream: StreamId,
        /// Name of the later stream.
        label: String,
    },
    /// An element does not come after its predecessor.
    #[error("stream {stream} ({label}): the element {sequence} at {time} does not follow the last one, {last_sequence} at {last}; pass elements in the order of their stream")]
    Order {
        /// The stream.
        stream: StreamId,
        /// Its name.
        label: String,
        /// The element's sequence.
        sequence: u64,
        /// The element's time.
        time: Timestamp,
        /// The sequence of the last element or gap.
        last_sequence: u64,
        /// The time of the last element, or the end of the last gap.
        last: Timestamp,
    },
    /// A time that CTF readers cannot show, or a sequence without a successor.
    #[error("stream {stream} ({label}): the element {sequence} at {time} is out of range; its clock or its writer is broken")]
    Range {
        /// The stream.
        stream: StreamId,
        /// Its name.
        label: String,
        /// The element's sequence.
        sequence: u64,
        /// The element's time.
        time: Timestamp,
    },
    /// A payload does not have the size of its schema.
    #[error("stream {stream} ({label}): a payload has {found} bytes, its schema has {expected}; it was not recorded")]
    Payload {
        /// The stream.
        stream: StreamId,
        /// Its name.
        label: String,
        /// Bytes of the payload.
        found: usize,
        /// Bytes by the schema.
        expected: usize,
    },
    /// The rate of the recording is too small.
    #[error("a recording with {rate} bytes per second has no room for a packet; give at least {} bytes per second (16KiB/s)", crate::DiskLimits::LEAST_RATE)]
    TooSlow {
        /// The rate in bytes per second.
        rate: u64,
    },
    /// The maximum size of the recording is too small.
    #[error("a recording of at most {max_bytes} bytes has no room for elements; give at least {} bytes (1MiB)", crate::DiskLimits::LEAST_BYTES)]
    TooSmall {
        /// The maximum size.
        max_bytes: u64,
    },
    /// Descriptions and documents alone reach the maximum size of the recording.
    #[error("the recording may have {max_bytes} bytes, but with the descriptions of its {streams} streams and its documents it needs at least {needed}; give it more, or observe fewer sensors")]
    NoRoom {
        /// The maximum size.
        max_bytes: u64,
        /// The size that would suffice now.
        needed: u64,
        /// Number of streams.
        streams: usize,
    },
    /// The trace has been finished.
    #[error("the trace in {} is finished and takes no more elements", .dir.display())]
    Finished {
        /// The directory.
        dir: PathBuf,
    },
}

/// Reason why a trace could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The directory is not a trace of Overhear.
    #[error("{} is not a trace of Overhear: {} is missing; give the directory that `overhear run --out` wrote", .dir.display(), .missing.display())]
    NotATrace {
        /// The directory.
        dir: PathBuf,
        /// A file that every trace has.
        missing: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {}: {cause}; check its permissions and the disk", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        cause: String,
    },
    /// A file of a kind that recorders do not leave, or a larger one.
    #[error("{} is not read: {cause}; restore it from a copy", .file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The kind or size of the file.
        cause: String,
    },
    /// A JSON file is damaged.
    #[error("{} is damaged at byte {offset}: {cause}; restore it from a copy, or read the trace with babeltrace2", .file.display())]
    BadJson {
        /// The file.
        file: PathBuf,
        /// Where parsing stopped.
        offset: u64,
        /// The expected content there.
        cause: String,
    },
    /// A document is valid JSON with other content.
    #[error("{} cannot be understood: {cause}; remove the file to go on without it", .file.display())]
    OtherContent {
        /// The document.
        file: PathBuf,
        /// The expected content there.
        cause: String,
    },
    /// The catalogue is of another version.
    #[error("{} has format {found}, this version reads formats {OLDEST_FORMAT} to {FORMAT}; read it with the version of Overhear that wrote it", .file.display())]
    OtherFormat {
        /// The catalogue.
        file: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The trace comes from a machine of another byte order.
    #[error("{} was recorded on a machine with {found:?} byte order; read it there, or with babeltrace2", .file.display())]
    OtherByteOrder {
        /// The catalogue.
        file: PathBuf,
        /// Its byte order.
        found: String,
    },
    /// Two streams have one number.
    #[error("{} lists stream {stream} twice; restore it from a copy", .file.display())]
    TwiceInCatalogue {
        /// The catalogue.
        file: PathBuf,
        /// The number.
        stream: StreamId,
    },
    /// The name of a document cannot be a file name.
    #[error("`{0}` cannot name a document; use letters, digits, `_` and `-`, at most 64")]
    DocumentName(String),
}

/// Why a trace could not be repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// The trace cannot even be opened.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The folder is not one to write to.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A recorder is at work.
    #[error("{} is still being recorded; stop the recorder first", .dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A file could not be cut, removed or written.
    #[error("cannot repair {}: {cause}; check its permissions", .file.display())]
    Change {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        cause: String,
        /// The kind of that.
        kind: ErrorKind,
    },
}

impl From<FolderError> for WriteError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Create { path, cause } => Self::Create { path, cause },
            refused => Self::Folder(refused),
        }
    }
}
