// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader: opens a trace, finished or not, whole or not.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use overhear_event::{Nanos, StreamDescriptor, StreamId, Timestamp};

use serde::de::DeserializeOwned;

use crate::catalogue::{parse, Catalogue, CatalogueEntry, TraceIdentity};
use crate::checksum::{check_document, strip_document, DocumentCheck};
use crate::error::ReadError;
use crate::map::Map;
use crate::metadata::check_metadata;
use crate::packet::PacketLayout;
use crate::place::{is_document_name, read_small, Place};
use crate::scan::{scan, Bounds, Damage};
use crate::summary::TraceSummary;

/// How much later than the last advance, or than its file was written, a packet may end: recorders need not advance
/// after the last element, and the wall clock may be set while they are at work.
const TOLERANCE: Nanos = Nanos::from_ms(24 * 3_600 * 1_000);

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

/// A damaged part of a recording. Everything else is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptStream {
    /// The file.
    pub file: PathBuf,
    /// The stream in it; `None` for a document, and a file of no known stream.
    pub stream: Option<StreamId>,
    /// Where the damage begins.
    pub offset: u64,
    /// Bytes that are left out, up to the next whole packet; 0 where it is not a part of a file.
    pub bytes: u64,
    /// Index of the packet in its file.
    pub packet: Option<u64>,
    /// Elements that are left out. A replay delivers them as a gap. `None` if their number is not known.
    pub missed: Option<u64>,
    /// Up to this time the stream is whole.
    pub after: Timestamp,
    /// What is wrong there.
    pub reason: String,
}

impl CorruptStream {
    /// Damage of a whole file.
    pub(crate) fn of_file(file: &Path, reason: String) -> Self {
        Self {
            file: file.to_path_buf(),
            stream: None,
            offset: 0,
            bytes: 0,
            packet: None,
            missed: None,
            after: Timestamp::ZERO,
            reason,
        }
    }

    pub(crate) fn of_packet(file: &Path, stream: StreamId, damage: &Damage) -> Self {
        Self {
            file: file.to_path_buf(),
            stream: Some(stream),
            offset: damage.offset as u64,
            bytes: damage.bytes as u64,
            packet: Some(damage.packet),
            missed: damage.gap.map(|gap| gap.missed),
            after: damage.after,
            reason: damage.reason.clone(),
        }
    }

    /// Damage beyond the places that are listed one by one.
    pub(crate) fn further(file: &Path, stream: StreamId, after: Timestamp, places: u64) -> Self {
        Self {
            stream: Some(stream),
            after,
            ..Self::of_file(file, format!("{places} more places in it are damaged"))
        }
    }
}

impl fmt::Display for CorruptStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is damaged at byte {}",
            self.file.display(),
            self.offset
        )?;
        if let Some(packet) = self.packet {
            write!(f, ", in packet {packet}")?;
        }
        write!(f, ": {}; ", self.reason)?;
        match (self.bytes, self.missed) {
            (0, _) => {}
            (bytes, Some(missed)) => {
                write!(f, "{bytes} bytes with {missed} elements are left out, ")?;
            }
            (bytes, None) => write!(f, "{bytes} bytes are left out, ")?,
        }
        f.write_str("everything else is read; restore the file from a copy")
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
    pub(crate) bounds: Bounds,
    events: u64,
    discarded: u64,
    times: Option<(Timestamp, Timestamp)>,
}

/// A trace, mapped. See the crate's example.
///
/// It shows what was on disk when it was opened, also while the trace is being recorded. Holding
/// one proves that the heads of all packets fit the catalogue, each other and the recording's bounds. It does not
/// prove that records are what was written: [`TraceReader::replay`] compares the checksums of packets when it
/// comes to them.
#[derive(Debug)]
pub struct TraceReader {
    place: Place,
    identity: TraceIdentity,
    streams: Vec<RecordedStream>,
    torn: Vec<TornTail>,
    corrupt: Vec<CorruptStream>,
    summary: Option<TraceSummary>,
    /// When the summary was written.
    written: Option<Timestamp>,
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
            written: None,
            place,
        };
        reader.check_documents();
        reader.read_summary();
        for entry in &catalogue.streams {
            reader.add(entry, catalogue.format);
        }
        // Ties between streams are broken by this order.
        reader.streams.sort_by_key(|stream| stream.descriptor.id);
        let known: BTreeSet<_> = reader.streams.iter().map(|s| s.file.clone()).collect();
        for file in files.difference(&known) {
            let reason = "streams.json does not know this stream".to_owned();
            reader.corrupt.push(CorruptStream::of_file(file, reason));
        }
        Ok(reader)
    }

    /// Compares the checksums of all documents and of the metadata. A wrong one is damage; the document is used as far
    /// as it can be read.
    fn check_documents(&mut self) {
        let mut files: Vec<_> = fs::read_dir(self.place.own())
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|file| file.extension().is_some_and(|it| it == "json"))
            .collect();
        files.sort();
        for file in files {
            // What cannot be read is reported by those that need it.
            let Ok(json) = Map::open(&file) else {
                continue;
            };
            let check = check_document(json.bytes());
            if let DocumentCheck::Wrong { stored, computed } = check {
                self.distrust(&file, stored, computed);
            }
        }
        let file = self.place.metadata();
        let check = Map::open(&file).map(|text| check_metadata(text.bytes()));
        if let Ok(DocumentCheck::Wrong { stored, computed }) = check {
            self.distrust(&file, stored, computed);
        }
    }

    fn distrust(&mut self, file: &Path, stored: u32, computed: u32) {
        let reason = format!("its checksum is {stored:#010x}, but its bytes have {computed:#010x}");
        self.corrupt.push(CorruptStream::of_file(file, reason));
    }

    /// A recording without a usable summary is read as one whose recorder was killed.
    fn read_summary(&mut self) {
        let file = self.place.document("summary");
        if !file.exists() {
            return;
        }
        let modified = fs::metadata(&file).and_then(|about| about.modified());
        self.written = modified.ok().and_then(|time| self.monotonic(time));
        let parsed = self.read_json(&file).and_then(|json| {
            let summary = parse(&file, &json)?;
            Ok((summary, check_document(&json)))
        });
        match parsed {
            Ok((summary, check)) => {
                if let Some(reason) = self.impossible(&summary) {
                    self.corrupt.push(CorruptStream::of_file(&file, reason));
                } else if !matches!(check, DocumentCheck::Wrong { .. }) {
                    self.summary = Some(summary);
                }
            }
            Err(error) => {
                let reason = error.to_string();
                self.corrupt.push(CorruptStream::of_file(&file, reason));
            }
        }
    }

    /// Why a summary cannot be true: it states a last advance after it was written itself.
    fn impossible(&self, summary: &TraceSummary) -> Option<String> {
        let written = self.written?.plus(TOLERANCE);
        // A copy may have got another time.
        let is_likely = summary.times.is_none_or(|(_, last)| last <= written);
        let advanced_to = summary.advanced_to;
        // Sources that have ended advance beyond all times.
        let has_ended = advanced_to > Bounds::NONE.last;
        (is_likely && !has_ended && advanced_to > written).then(|| {
            format!("it states that the recording ended at {advanced_to}, but was written before {written}")
        })
    }

    /// A time of the wall clock on the clock of the recording.
    fn monotonic(&self, time: SystemTime) -> Option<Timestamp> {
        let since = time.duration_since(UNIX_EPOCH).ok()?;
        let since = u64::try_from(since.as_nanos()).ok()?;
        let since = since.checked_sub(self.identity.realtime_offset.as_ns())?;
        Some(Timestamp::from_monotonic_ns(since))
    }

    /// Bounds of the times in a stream's file: what the recorder wrote down at the end, or when the file was written.
    fn bounds(&self, layout: &PacketLayout, map: &Map) -> Bounds {
        if let Some((first, last)) = self.summary.and_then(|summary| summary.times) {
            return Bounds {
                first,
                last,
                source: "by summary.json the recording lasts",
            };
        }
        let advanced_to = self.summary.map(|summary| summary.advanced_to);
        let advanced_to =
            advanced_to.filter(|time| *time > Timestamp::ZERO && *time <= Bounds::NONE.last);
        let written = || self.monotonic(map.modified()?);
        let (last, source) = match advanced_to {
            Some(last) => (Some(last), "by summary.json the recording lasts"),
            None => (written(), "by the time of the file it was written"),
        };
        let bounds = Bounds {
            last: last.map_or(Bounds::NONE.last, |last| {
                last.plus(TOLERANCE).min(Bounds::NONE.last)
            }),
            source,
            ..Bounds::NONE
        };
        // A copy may have got another time: then nothing in it fits.
        let first = layout.parse(map.bytes(), 0).map(|packet| packet.head.begin);
        match first {
            Ok(first) if first > bounds.last => Bounds::NONE,
            _ => bounds,
        }
    }

    fn add(&mut self, entry: &CatalogueEntry, format: u32) {
        let layout = PacketLayout::new(entry.class, &entry.descriptor, format);
        let file = self.place.stream(entry.descriptor.id);
        let mut map = match Map::open(&file) {
            Ok(map) => map,
            // Nothing has come from this stream.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Map::empty(),
            Err(error) => {
                self.corrupt.push(CorruptStream {
                    stream: Some(entry.descriptor.id),
                    ..CorruptStream::of_file(&file, error.to_string())
                });
                Map::empty()
            }
        };
        let length = map.bytes().len();
        let bounds = self.bounds(&layout, &map);
        let found = scan(&layout, map.bytes(), bounds);
        map.keep(found.whole_bytes);
        let stream = entry.descriptor.id;
        for damage in &found.damages {
            if damage.is_torn {
                self.torn.push(TornTail {
                    stream,
                    file: file.clone(),
                    offset: damage.offset as u64,
                    bytes: (length - damage.offset) as u64,
                });
            } else {
                let damage = CorruptStream::of_packet(&file, stream, damage);
                self.corrupt.push(damage);
            }
        }
        if found.further > 0 {
            let after = found.damages.last().map_or(Timestamp::ZERO, |it| it.after);
            let further = CorruptStream::further(&file, stream, after, found.further);
            self.corrupt.push(further);
        }
        self.streams.push(RecordedStream {
            descriptor: Arc::clone(&entry.descriptor),
            layout,
            file,
            map,
            bounds,
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

    /// The latest time that anything in a finished recording may have: a day after its summary was written.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        let last = self.times().map_or(Timestamp::ZERO, |(_, last)| last);
        // A copy may have got another time.
        let written = self
            .written
            .filter(|written| written.plus(TOLERANCE) >= last);
        let latest = written.map(|written| written.plus(TOLERANCE));
        latest.unwrap_or(Bounds::NONE.last).min(Bounds::NONE.last)
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
        let mut json = self.read_json(&file)?;
        strip_document(&mut json);
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
