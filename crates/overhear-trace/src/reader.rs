// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader: opens a trace, finished or not, whole or not.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_event::{StreamDescriptor, StreamId, Timestamp};

use serde::de::DeserializeOwned;

use crate::catalogue::{parse, Catalogue, CatalogueEntry, TraceIdentity};
use crate::error::ReadError;
use crate::map::Map;
use crate::packet::{Flaw, PacketLayout};
use crate::place::{is_document_name, read_small, Place};
use crate::scan::scan;
use crate::summary::TraceSummary;

/// The end of a stream's file that is no whole packet: the recorder died while writing it. How
/// many elements it held is not known, so it is no gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The stream.
    pub stream: StreamId,
    /// Its file.
    pub file: PathBuf,
    /// Where the tail begins.
    pub offset: u64,
    /// Bytes of it.
    pub bytes: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the last {} bytes, from byte {} on, are torn; everything before them is read",
            self.file.display(),
            self.bytes,
            self.offset
        )
    }
}

/// A place from which on a stream cannot be read, although its file goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptStream {
    /// The file.
    pub file: PathBuf,
    /// Where reading stopped.
    pub offset: u64,
    /// What is wrong there.
    pub reason: String,
}

impl fmt::Display for CorruptStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is damaged at byte {}: {}; what comes before is read, restore the file from a \
             copy for the rest",
            self.file.display(),
            self.offset,
            self.reason
        )
    }
}

/// One stream of a trace.
#[derive(Debug)]
pub(crate) struct RecordedStream {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) layout: PacketLayout,
    pub(crate) file: PathBuf,
    /// Whole packets only.
    pub(crate) map: Map,
    events: u64,
    discarded: u64,
    times: Option<(Timestamp, Timestamp)>,
}

/// A trace, mapped. See the crate's example.
///
/// It shows what was on disk when it was opened, also while the trace is being recorded. Holding
/// one proves that the heads of all packets fit the catalogue and each other. It does not prove
/// that the times inside the packets ascend: [`TraceReader::replay`] finds that out.
#[derive(Debug)]
pub struct TraceReader {
    place: Place,
    identity: TraceIdentity,
    streams: Vec<RecordedStream>,
    torn: Vec<TornTail>,
    corrupt: Vec<CorruptStream>,
    summary: Option<TraceSummary>,
}

impl TraceReader {
    /// Opens the trace in `dir`: what was given to [`crate::TraceWriter::create`], or `trace` in
    /// it.
    ///
    /// # Errors
    /// [`ReadError`] if this is no trace. Damaged streams are no errors: see
    /// [`TraceReader::torn`] and [`TraceReader::corrupt`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, ReadError> {
        let place = find(dir.as_ref());
        // Recorders list a stream before they make its file, so that whoever looks for files
        // first finds all of them in the catalogue.
        let files = stream_files(&place);
        let catalogue = Catalogue::read(&place)?;
        let mut reader = Self {
            identity: catalogue.identity,
            streams: Vec::with_capacity(catalogue.streams.len()),
            torn: Vec::new(),
            corrupt: Vec::new(),
            summary: None,
            place,
        };
        for entry in &catalogue.streams {
            reader.add(entry);
        }
        // Ties between streams are broken by this order.
        reader.streams.sort_by_key(|stream| stream.descriptor.id);
        let known: BTreeSet<_> = reader.streams.iter().map(|s| s.file.clone()).collect();
        for file in files.difference(&known) {
            reader.corrupt.push(CorruptStream {
                file: file.clone(),
                offset: 0,
                reason: "streams.json does not know this stream".to_owned(),
            });
        }
        let file = reader.place.document("summary");
        if file.exists() {
            let json = reader.read_json(&file)?;
            reader.summary = Some(parse(&file, &json)?);
        }
        Ok(reader)
    }

    fn add(&mut self, entry: &CatalogueEntry) {
        let layout = PacketLayout::new(entry.class, &entry.descriptor);
        let file = self.place.stream(entry.descriptor.id);
        let mut map = match Map::open(&file) {
            Ok(map) => map,
            // Nothing has come from this stream.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Map::empty(),
            Err(error) => {
                self.corrupt.push(CorruptStream {
                    file: file.clone(),
                    offset: 0,
                    reason: error.to_string(),
                });
                Map::empty()
            }
        };
        let length = map.bytes().len();
        let found = scan(&layout, map.bytes());
        map.keep(found.whole_bytes);
        match found.flaw {
            None => {}
            Some(Flaw::Torn) => self.torn.push(TornTail {
                stream: entry.descriptor.id,
                file: file.clone(),
                offset: found.whole_bytes as u64,
                bytes: (length - found.whole_bytes) as u64,
            }),
            Some(Flaw::Corrupt(reason)) => self.corrupt.push(CorruptStream {
                file: file.clone(),
                offset: found.whole_bytes as u64,
                reason,
            }),
        }
        self.streams.push(RecordedStream {
            descriptor: Arc::clone(&entry.descriptor),
            layout,
            file,
            map,
            events: found.events,
            discarded: found.discarded,
            times: found.times,
        });
    }

    /// Where and when it was recorded.
    #[must_use]
    pub const fn identity(&self) -> &TraceIdentity {
        &self.identity
    }

    /// The streams by their numbers, also those from which nothing came.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = &Arc<StreamDescriptor>> {
        self.streams.iter().map(|stream| &stream.descriptor)
    }

    /// How many elements can be read from a stream, and how many its gaps stand for; `None` if
    /// there is no such stream.
    #[must_use]
    pub fn count(&self, stream: StreamId) -> Option<(u64, u64)> {
        let stream = self.recorded().iter().find(|s| s.descriptor.id == stream)?;
        Some((stream.events, stream.discarded))
    }

    /// How many elements can be read.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.streams.iter().map(|stream| stream.events).sum()
    }

    /// How many elements the gaps stand for.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        self.streams
            .iter()
            .fold(0, |sum, stream| sum.saturating_add(stream.discarded))
    }

    /// From when to when there are elements or gaps; `None` where there are none.
    #[must_use]
    pub fn times(&self) -> Option<(Timestamp, Timestamp)> {
        let times = || self.streams.iter().filter_map(|stream| stream.times);
        let first = times().map(|(first, _)| first).min()?;
        let last = times().map(|(_, last)| last).max()?;
        Some((first, last))
    }

    /// What the writer said at the end; `None` where the recorder was killed or is at work.
    #[must_use]
    pub const fn summary(&self) -> Option<&TraceSummary> {
        self.summary.as_ref()
    }

    /// Tails that are not shown, because they are no whole packets.
    #[must_use]
    pub fn torn(&self) -> &[TornTail] {
        &self.torn
    }

    /// Places from which on streams cannot be read.
    #[must_use]
    pub fn corrupt(&self) -> &[CorruptStream] {
        &self.corrupt
    }

    /// A document that was attached; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`ReadError`] if the name is no file name or the document is damaged.
    pub fn document(&self, name: &str) -> Result<Option<serde_json::Value>, ReadError> {
        self.document_as(name)
    }

    /// As [`TraceReader::document`], parsed into a type of its own: large documents take far less memory so.
    ///
    /// # Errors
    /// [`ReadError`] if the name is no file name, or the document is damaged or of another type.
    pub fn document_as<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReadError> {
        if !is_document_name(name) {
            return Err(ReadError::DocumentName(name.to_owned()));
        }
        let file = self.place.document(name);
        if !file.exists() {
            return Ok(None);
        }
        let json = self.read_json(&file)?;
        parse(&file, &json).map(Some)
    }

    pub(crate) fn recorded(&self) -> &[RecordedStream] {
        &self.streams
    }

    fn read_json(&self, file: &Path) -> Result<Vec<u8>, ReadError> {
        read_small(file).map_err(|cause| unreadable(file, &cause))
    }
}

/// Accepts the directory that CTF readers are given, too.
pub(crate) fn find(dir: &Path) -> Place {
    let inner = dir.join("metadata").is_file() && dir.join("overhear").is_dir();
    match dir.canonicalize() {
        Ok(whole) if inner && whole.ends_with("trace") => {
            Place::new(whole.parent().unwrap_or(&whole))
        }
        _ => Place::new(dir),
    }
}

/// The files that are named like streams, sorted. Where they cannot be listed there is no trace,
/// and the catalogue's error says so.
fn stream_files(place: &Place) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(place.trace()).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"stream-"))
        .map(|entry| entry.path())
        .collect()
}

fn unreadable(file: &Path, cause: &io::Error) -> ReadError {
    ReadError::Unreadable {
        file: file.to_path_buf(),
        cause: cause.to_string(),
    }
}
