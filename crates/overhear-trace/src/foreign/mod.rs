// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of other tracers, read by libbabeltrace2.
//!
//! A folder with CTF traces (of LTTng's kernel and UST tracers, of ros2_tracing, of perf) becomes a
//! graph of the library's components: one `source.ctf.fs` per trace, `filter.utils.muxer`, which
//! puts the events of all traces into the order of time, and a sink of ours. The graph delivers one
//! [`ForeignMessage`] after the other: an event with its fields, or a loss. [`crate::import_trace`]
//! makes elements of them.
//!
//! # Design constraints
//!
//! - The graph calls us back from C. The callback only queues the messages. Events are read outside
//!   of the graph, and so is everything else that may fail, so that nothing unwinds through C.
//! - Memory is bounded by the library's batches and the size of one event: traces may be larger
//!   than memory.
//! - A field whose type has no counterpart is left out; an event without a time is
//!   [`ForeignMessage::Timeless`].
//! - The library ends its process by assertions on some damaged traces: [`ForeignTrace`] runs it in
//!   this process, [`IsolatedTrace`] in another one.

mod confinement;
mod event;
mod frames;
mod graph;
mod isolated;
mod library;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use overhear_event::Timestamp;
use rustix::fs::FileType;

use crate::folder::Folder;
pub use isolated::{send_foreign_trace, IsolatedTrace};

/// A field of a foreign event. Arrays and structures are left out.
#[derive(Clone, Debug, PartialEq)]
pub enum ForeignValue {
    /// A whole number, a truth value, or an enumeration's value.
    Whole(i128),
    /// A fraction.
    Fraction(f64),
    /// A text.
    Text(String),
}

/// Fields with their names, in the order of the event's type.
pub type ForeignFields = Vec<(Arc<str>, ForeignValue)>;

/// An event of a foreign trace.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignEvent {
    /// Time by the foreign clock, usually since 1970.
    pub time: Timestamp,
    /// Name as the tracer wrote it, usually `provider:event` or `event`.
    pub name: Arc<str>,
    /// Fields of the packet (`cpu_id`), the environment (`vpid`) and the contexts.
    pub context: ForeignFields,
    /// The event's own fields.
    pub payload: ForeignFields,
}

impl ForeignEvent {
    /// The field of this name, in the payload or the context.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&ForeignValue> {
        let mut fields = self.payload.iter().chain(&self.context);
        fields.find_map(|(known, value)| (&**known == name).then_some(value))
    }

    /// The whole number of this name.
    #[must_use]
    pub fn whole(&self, name: &str) -> Option<i128> {
        match self.value(name)? {
            ForeignValue::Whole(value) => Some(*value),
            _ => None,
        }
    }

    /// The text of this name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            ForeignValue::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Events that a tracer has discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignLoss {
    /// Begin of the time in which they were discarded; `None` if the trace does not state it.
    pub from: Option<Timestamp>,
    /// End of this time.
    pub to: Option<Timestamp>,
    /// Number of events. A discarded packet counts as one event.
    pub events: u64,
    /// Whether `events` is a lower bound.
    pub at_least: bool,
}

/// The next item of a foreign trace.
#[derive(Clone, Debug, PartialEq)]
pub enum ForeignMessage {
    /// An event.
    Event(ForeignEvent),
    /// A loss.
    Loss(ForeignLoss),
    /// An event without a time, or with one before the origin of its clock.
    Timeless,
}

/// Reason why a foreign trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// The library is missing, or lacks something.
    #[error("cannot load libbabeltrace2, which reads foreign traces: {reason}; install it (Debian: libbabeltrace2-0)")]
    Library {
        /// Message of the linker or of the library.
        reason: String,
    },
    /// There is no trace.
    #[error("{} is no trace: neither it nor a folder in it has a file `metadata`", path.display())]
    NoTrace {
        /// The trace.
        path: PathBuf,
    },
    /// The process that reads the trace has ended before it.
    #[error("the process that reads {} by libbabeltrace2 failed: {reason}; the trace is damaged, or the library has a defect", path.display())]
    Reader {
        /// The trace.
        path: PathBuf,
        /// The kind of failure.
        reason: String,
    },
    /// The library cannot read it.
    #[error("libbabeltrace2 cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The trace.
        path: PathBuf,
        /// Message of the library.
        reason: String,
    },
}

/// Foreign traces that are read in this process.
pub struct ForeignTrace {
    path: PathBuf,
    graph: graph::GraphReader,
}

impl ForeignTrace {
    /// Whether the library to open traces with is installed.
    ///
    /// # Errors
    /// [`ForeignError::Library`], with the package to install.
    pub fn available() -> Result<(), ForeignError> {
        loaded().map(|_| ())
    }

    /// Opens all traces in a folder and the folders in it.
    ///
    /// # Errors
    /// [`ForeignError`], a message for the user.
    pub fn open(path: &Path) -> Result<Self, ForeignError> {
        let library = loaded()?;
        let plugins =
            graph::Plugins::find(library).map_err(|reason| ForeignError::Library { reason })?;
        Self::open_with(path, library, &plugins)
    }

    fn open_with(
        path: &Path,
        library: &'static library::Library,
        plugins: &graph::Plugins,
    ) -> Result<Self, ForeignError> {
        let traces = Self::traces(path);
        if traces.is_empty() {
            return Err(ForeignError::NoTrace {
                path: path.to_path_buf(),
            });
        }
        for trace in &traces {
            check(trace).map_err(|reason| ForeignError::Unreadable {
                path: trace.clone(),
                reason,
            })?;
        }
        let graph = graph::GraphReader::new(library, plugins, &traces).map_err(|reason| {
            ForeignError::Unreadable {
                path: path.to_path_buf(),
                reason,
            }
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            graph,
        })
    }

    /// The folders that are traces, as [`ForeignTrace::open`] opens them: this one and those below
    /// it that have a file `metadata`. Links to folders are not followed, except the first one, so
    /// that no trace is read twice and no circle is walked.
    #[must_use]
    pub fn traces(path: &Path) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![path.to_path_buf()]);
        while let Some(path) = folders.pop() {
            let Ok(folder) = Folder::open(&path) else {
                continue;
            };
            for name in folder.names().unwrap_or_default() {
                match folder.kind(&name).ok().flatten() {
                    Some(FileType::Directory) => folders.push(path.join(&name)),
                    // Of any type, so that there is an error message about it.
                    Some(_) if name == "metadata" => found.push(path.clone()),
                    _ => {}
                }
            }
        }
        found.sort();
        found
    }

    /// Whether the library has delivered messages that are not read yet.
    fn has_pending(&self) -> bool {
        self.graph.has_pending()
    }

    /// The next message, in the order of time; `None` at the end.
    ///
    /// # Errors
    /// [`ForeignError::Unreadable`] from where the trace is damaged; after it comes the end.
    pub fn next_message(&mut self) -> Result<Option<ForeignMessage>, ForeignError> {
        self.graph
            .next_message()
            .map_err(|reason| ForeignError::Unreadable {
                path: self.path.clone(),
                reason,
            })
    }
}

/// How an import reads a foreign trace.
pub enum ForeignReader<'a> {
    /// In this process. A trace that crashes the library ends this process.
    InProcess,
    /// In a process of its own per pass.
    Isolated {
        /// Makes the command of a process that calls [`send_foreign_trace`].
        command: &'a dyn Fn() -> Command,
        /// Maximum time for each message.
        patience: Duration,
    },
}

impl ForeignReader<'_> {
    /// Opens all traces in a folder and the folders in it.
    pub(crate) fn open(&self, path: &Path) -> Result<OpenTrace, ForeignError> {
        Ok(match self {
            Self::InProcess => OpenTrace::InProcess(ForeignTrace::open(path)?),
            Self::Isolated { command, patience } => {
                OpenTrace::Isolated(IsolatedTrace::open(path, &mut command(), *patience)?)
            }
        })
    }
}

/// Foreign traces, being read in this process or in another one.
pub(crate) enum OpenTrace {
    InProcess(ForeignTrace),
    Isolated(IsolatedTrace),
}

impl OpenTrace {
    pub(crate) fn next_message(&mut self) -> Result<Option<ForeignMessage>, ForeignError> {
        match self {
            Self::InProcess(trace) => trace.next_message(),
            Self::Isolated(trace) => trace.next_message(),
        }
    }
}

/// Size limit of metadata.
const MAX_METADATA_BYTES: u64 = 64 << 20;

/// Refuses files for which the library would wait without an end: files that are not regular ones,
/// and metadata that is cut off.
fn check(trace: &Path) -> Result<(), String> {
    let folder = Folder::open(trace).map_err(|error| error.to_string())?;
    for name in folder.names().map_err(|error| error.to_string())? {
        match folder.kind(&name) {
            Ok(Some(FileType::RegularFile | FileType::Directory) | None) | Err(_) => {}
            Ok(Some(_)) => return Err(format!("`{}` in it is no regular file", name.display())),
        }
    }
    let text = folder.read("metadata", MAX_METADATA_BYTES);
    let text = text.map_err(|error| format!("its file `metadata`: {error}"))?;
    match is_cut_off(&text) {
        true => Err("its file `metadata` ends within a packet".to_owned()),
        false => Ok(()),
    }
}

fn loaded() -> Result<&'static library::Library, ForeignError> {
    library::library().map_err(|reason| ForeignError::Library {
        reason: reason.to_owned(),
    })
}

/// First word of a packet of metadata (CTF 1.8.3, section 7.1).
const METADATA_MAGIC: u32 = 0x75d1_1d57;
/// Magic, UUID, checksum, the two sizes in bits, and five bytes of kinds and versions.
const METADATA_HEAD_BYTES: usize = 37;

/// Whether metadata in packets, as LTTng writes them, ends before its content does. The library
/// would read at the end of the file for ever.
fn is_cut_off(metadata: &[u8]) -> bool {
    let word = |at: usize, packet: &[u8], swapped: bool| {
        let bytes = packet.get(at..at + 4).and_then(|word| word.try_into().ok());
        let word = bytes.map(u32::from_le_bytes);
        word.map(|word| if swapped { word.swap_bytes() } else { word })
    };
    let mut rest = metadata;
    while let Some(magic) = word(0, rest, false) {
        let swapped = magic != METADATA_MAGIC;
        if swapped && magic.swap_bytes() != METADATA_MAGIC {
            // Plain text, or data for which the library has an error message.
            return false;
        }
        let size = |at| word(at, rest, swapped).map(|bits| bits as usize / 8);
        let (Some(content), Some(packet)) = (size(24), size(28)) else {
            return true;
        };
        if content < METADATA_HEAD_BYTES || packet < content {
            return false;
        }
        if content > rest.len() {
            return true;
        }
        rest = rest.get(packet..).unwrap_or_default();
    }
    false
}

/// Message of an error and of its sources.
fn error_chain(error: &dyn Error) -> String {
    let mut chain = error.to_string();
    let mut source = error.source();
    while let Some(below) = source {
        chain.push_str(": ");
        chain.push_str(&below.to_string());
        source = below.source();
    }
    chain
}

/// A message of several lines as one line.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").trim_end_matches(['.', ':']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::is_cut_off;

    fn packet(content: u32, size: u32, swapped: bool) -> Vec<u8> {
        let word = |word: u32| match swapped {
            true => word.to_be_bytes(),
            false => word.to_le_bytes(),
        };
        let mut packet = word(super::METADATA_MAGIC).to_vec();
        packet.extend([0; 20]);
        packet.extend(word(content * 8));
        packet.extend(word(size * 8));
        packet.resize(size as usize, b' ');
        packet
    }

    #[test]
    fn metadata_that_ends_within_a_packet_is_cut_off() {
        for swapped in [false, true] {
            let whole = [packet(64, 4096, swapped), packet(100, 128, swapped)].concat();
            assert!(!is_cut_off(&whole));
            // Padding may be missing, but content may not.
            assert!(!is_cut_off(&whole[..4096 + 100]));
            assert!(is_cut_off(&whole[..4096 + 99]));
            assert!(is_cut_off(&whole[..4096 + 30]));
            assert!(is_cut_off(&whole[..63]));
            assert!(!is_cut_off(&whole[..64]));
        }
        assert!(!is_cut_off(b"/* CTF 1.8 */ trace {"));
        assert!(!is_cut_off(b""));
    }
}
