// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader: opens a trace, finished or not, whole or not.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use overhear_budget::ByteRate;
use overhear_event::{Gap, GapCause, Nanos, StreamDescriptor, StreamId, Timestamp};
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::catalogue::{parse, parse_as, Catalogue, CatalogueEntry, TraceIdentity};
use crate::checksum::{check_document, strip_document, DocumentCheck};
use crate::disk::{read_disk_document, DiskDocument, RemovedPackets};
use crate::ends::{Ends, StreamEnd, ENDS};
use crate::error::ReadError;
use crate::limits::DiskLimits;
use crate::map::Map;
use crate::metadata::check_metadata;
use crate::packet::{discarded_after, PacketLayout};
use crate::paths::{
    check_size, document_name, is_document_name, part_of_name, stream_name, unreadable, Part,
    TracePaths, ValueCount, DISK, MAX_CATALOGUE_BYTES, MAX_DOCUMENT_BYTES, METADATA, REPAIRS,
};
use crate::repairs::{Repairs, TornTail};
use crate::ring::bytes_of_recording;
use crate::scan::{scan, Before, Bounds, Damage, Packets, Verify};
use crate::summary::TraceSummary;
use crate::tree::{BoundedTree, MAX_TREE_BYTES};

/// Maximum time of a packet after the last advance, or after its file was written: recorders need
/// not advance after the last element, and the wall clock may be set while they run.
const TOLERANCE: Nanos = Nanos::from_ms(24 * 3_600 * 1_000);

/// Maximum number of attempts to open a recording whose recorder removes packets meanwhile.
const MOST_ATTEMPTS: usize = 64;

/// A damaged part of a recording. Everything else is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptStream {
    /// The file.
    pub file: PathBuf,
    /// The stream in it; `None` for a document, and a file of no known stream.
    pub stream: Option<StreamId>,
    /// Begin of the damage in the file, in bytes.
    pub offset: u64,
    /// Number of bytes that are left out, up to the next whole packet; 0 if the damage is not a
    /// part of a file.
    pub bytes: u64,
    /// Index of the packet in its file.
    pub packet: Option<u64>,
    /// Number of elements that are left out, or missing. A replay delivers them as a gap. `None` if
    /// it is unknown.
    pub missed: Option<u64>,
    /// Up to this time the stream is whole.
    pub after: Timestamp,
    /// Description of the damage.
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

    /// The number of damaged places beyond those that are listed.
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
            (0, Some(missed)) if self.packet.is_some() => {
                write!(f, "{missed} elements are missed, ")?;
            }
            (0, _) => {}
            (bytes, Some(missed)) => {
                write!(f, "{bytes} bytes with {missed} elements are left out, ")?;
            }
            (bytes, None) => write!(f, "{bytes} bytes are left out, ")?,
        }
        f.write_str("everything else is read; restore the file from a copy")
    }
}

/// A file of a stream.
#[derive(Debug)]
pub(crate) struct StreamFile {
    pub(crate) path: PathBuf,
    pub(crate) part: Part,
    /// Whole packets only, in the last file of a stream.
    pub(crate) map: Map,
}

/// One stream of a trace.
#[derive(Debug)]
pub(crate) struct RecordedStream {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) layout: PacketLayout,
    /// In the order of their packets; that of repeated elements is the first one.
    pub(crate) files: Vec<StreamFile>,
    /// The packets before the first one that is kept.
    removed: Option<RemovedPackets>,
    /// The gaps in their place.
    pub(crate) gaps: Vec<Gap>,
    pub(crate) bounds: Bounds,
    /// The end of the stream, if its recorder has finished.
    pub(crate) end_noted: Option<StreamEnd>,
    events: u64,
    discarded: u64,
    /// Those of them that were left out to keep a limit.
    left_out: u64,
    times: Option<(Timestamp, Timestamp)>,
}

impl RecordedStream {
    fn repeated_files(&self) -> usize {
        let is_repeated = |file: &&StreamFile| matches!(file.part, Part::Repeated(_));
        self.files.iter().take_while(is_repeated).count()
    }

    /// The packet of repeated elements, if there is one.
    pub(crate) fn repeated(&self, verify: Verify) -> Option<Packets<'_>> {
        let files = &self.files[..self.repeated_files()];
        let bytes: Vec<&[u8]> = files.iter().map(|file| file.map.bytes()).collect();
        (!bytes.is_empty()).then(|| {
            let before = Before::default();
            Packets::new(&self.layout, bytes, self.bounds, verify, None, before)
        })
    }

    /// All other packets.
    pub(crate) fn packets(&self, verify: Verify) -> Packets<'_> {
        let (bytes, before) = self.kept();
        let (bounds, end) = (self.bounds, self.end_noted);
        Packets::new(&self.layout, bytes, bounds, verify, end, before)
    }

    /// The bytes of the kept packets, and what precedes them.
    fn kept(&self) -> (Vec<&[u8]>, Before) {
        let file = self.repeated_files();
        let bytes = self.files[file..].iter().map(|file| file.map.bytes());
        let before = self
            .removed
            .as_ref()
            .map_or(Before::default(), |removed| Before {
                file,
                packets: removed.packets,
                expected: Some(removed.end_sequence),
                discarded: removed.discarded,
            });
        (bytes.collect(), before)
    }

    /// The path of a file by its index; the stream's last one if it has none of this index.
    pub(crate) fn path(&self, file: usize) -> &Path {
        let file = self.files.get(file).or(self.files.last());
        file.map_or(Path::new(""), |file| &file.path)
    }

    /// What a repair needs: the parts after the repeated elements, and what precedes them.
    pub(crate) fn kept_parts(&self) -> (Vec<Part>, Before) {
        let files = &self.files[self.repeated_files()..];
        let parts = files.iter().map(|file| file.part).collect();
        (parts, self.kept().1)
    }

    fn bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|file| file.map.bytes().len() as u64)
            .sum()
    }
}

/// A trace, mapped. See the crate's example.
///
/// It has the state of the files when it was opened, also while the trace is being recorded.
/// Holding one proves that the heads of all packets fit the catalogue, each other and the
/// recording's bounds. It does not prove that records are unchanged: [`TraceReader::replay`]
/// compares the checksums of packets when it reaches them.
#[derive(Debug)]
pub struct TraceReader {
    paths: TracePaths,
    identity: TraceIdentity,
    streams: Vec<RecordedStream>,
    torn: Vec<TornTail>,
    /// Number of tails of `torn` that are still in the files.
    uncut: usize,
    corrupt: Vec<CorruptStream>,
    summary: Option<TraceSummary>,
    /// The ends of streams; empty without a summary, and in older formats.
    ends: HashMap<StreamId, StreamEnd>,
    /// Time when the summary was written.
    written: Option<Timestamp>,
    /// The limits of the recording, and what they removed; `None` if it has no usable document.
    disk: Option<DiskDocument>,
    /// Files that the catalogue does not list, and remains of removed parts.
    remains: Vec<OsString>,
}

impl TraceReader {
    /// Opens the trace in `dir`: the directory that was passed to [`crate::TraceWriter::create`],
    /// or `trace` in it.
    ///
    /// # Errors
    /// [`ReadError`] if this is no trace. Damaged streams are not errors: see [`TraceReader::torn`]
    /// and [`TraceReader::corrupt`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, ReadError> {
        Self::open_paths(TracePaths::open(dir.as_ref())?)
    }

    /// Opens the trace in an open place. Nothing is changed there.
    pub(crate) fn open_paths(mut paths: TracePaths) -> Result<Self, ReadError> {
        for _ in 0..MOST_ATTEMPTS {
            // Without the document, or with a damaged one, nothing is removed meanwhile.
            let before = read_disk_document(&paths).unwrap_or_default();
            let reader = Self::open_once(paths, before.as_deref())?;
            let after = read_disk_document(&reader.paths).unwrap_or_default();
            if before == after {
                return Ok(reader);
            }
            // The recorder removed packets meanwhile.
            paths = reader.into_paths();
        }
        let before = read_disk_document(&paths).unwrap_or_default();
        Self::open_once(paths, before.as_deref())
    }

    fn open_once(paths: TracePaths, disk: Option<&[u8]>) -> Result<Self, ReadError> {
        // Recorders list a stream before they create its file, so a reader that lists the files
        // first finds all of them in the catalogue. If they cannot be listed there is no trace, and
        // the catalogue's error reports that.
        let files: BTreeSet<_> = paths
            .stream_names()
            .unwrap_or_default()
            .into_iter()
            .collect();
        let catalogue = Catalogue::read(&paths)?;
        let (has_numbers, has_limits) = (catalogue.has_numbers(), catalogue.has_limits());
        let mut reader = Self {
            identity: catalogue.identity,
            streams: Vec::with_capacity(catalogue.streams.len()),
            torn: Vec::new(),
            uncut: 0,
            corrupt: Vec::new(),
            summary: None,
            ends: HashMap::new(),
            written: None,
            disk: None,
            remains: Vec::new(),
            paths,
        };
        reader.check_documents();
        reader.read_summary()?;
        if has_numbers {
            reader.read_ends()?;
        }
        if has_limits {
            reader.read_disk(disk)?;
        }
        let mut parts: HashMap<StreamId, Vec<Part>> = HashMap::new();
        let mut unlisted = BTreeSet::new();
        for name in files {
            match part_of_name(&name) {
                Some((id, part)) if reader.is_kept(part, has_limits) => {
                    parts.entry(id).or_default().push(part);
                }
                // A recorder that dies leaves these.
                Some(_) if reader.disk.is_some() => reader.remains.push(name),
                // The damaged document was reported.
                Some((_, Part::Repeated(_))) if has_limits => {}
                _ => {
                    unlisted.insert(name);
                }
            }
        }
        for entry in &catalogue.streams {
            let parts = parts.remove(&entry.descriptor.id);
            reader.add(entry, catalogue.format, parts.unwrap_or_default());
        }
        for (id, parts) in parts {
            unlisted.extend(parts.into_iter().map(|part| stream_name(id, part).into()));
        }
        reader.uncut = reader.torn.len();
        reader.read_repairs()?;
        // Ties between streams are broken by this order.
        reader.streams.sort_by_key(|stream| stream.descriptor.id);
        for name in unlisted {
            reader.note_unlisted(&name);
        }
        Ok(reader)
    }

    fn note_unlisted(&mut self, name: &OsStr) {
        let reason = "streams.json does not list this stream".to_owned();
        let file = self.paths.trace().path().join(name);
        self.corrupt.push(CorruptStream::of_file(&file, reason));
    }

    /// Whether a file of this part is read. Recordings without limits have one file per stream.
    fn is_kept(&self, part: Part, has_limits: bool) -> bool {
        match part {
            Part::Number(number) => number >= self.first_part() && (has_limits || number == 0),
            Part::Repeated(number) => self.disk.as_ref().is_some_and(|it| number == it.first_part),
        }
    }

    fn first_part(&self) -> u64 {
        self.disk.as_ref().map_or(0, |disk| disk.first_part)
    }

    /// Reads the document about removed packets. Without it, all parts are read, and what is
    /// missing is damage.
    fn read_disk(&mut self, json: Option<&[u8]>) -> Result<(), ReadError> {
        let file = self.paths.document(DISK);
        let Some(json) = json else {
            let reason = "the document is missing".to_owned();
            self.corrupt.push(CorruptStream::of_file(&file, reason));
            return Ok(());
        };
        if matches!(check_document(json), DocumentCheck::Wrong { .. }) {
            // `check_documents` has reported it.
            return Ok(());
        }
        match parse(&file, json) {
            Ok(disk) => self.disk = Some(disk),
            Err(error) => self.note_unusable(&file, error)?,
        }
        Ok(())
    }

    /// Compares the checksums of all documents and of the metadata. A wrong one is damage; the
    /// document is used as far as it can be read.
    fn check_documents(&mut self) {
        // Files that cannot be read are reported when they are needed.
        let own = self.paths.own();
        let mut names = own.names().unwrap_or_default();
        names.retain(|name| Path::new(name).extension().is_some_and(|it| it == "json"));
        names.sort();
        let mut wrong = Vec::new();
        for name in names {
            let Ok(json) = own.read(&name, MAX_CATALOGUE_BYTES) else {
                continue;
            };
            wrong.push((own.path().join(name), check_document(&json)));
        }
        if let Ok(text) = self.paths.trace().read(METADATA, MAX_CATALOGUE_BYTES) {
            wrong.push((self.paths.metadata(), check_metadata(&text)));
        }
        for (file, check) in wrong {
            if let DocumentCheck::Wrong { stored, computed } = check {
                self.distrust(&file, stored, computed);
            }
        }
    }

    fn distrust(&mut self, file: &Path, stored: u32, computed: u32) {
        let reason = format!("its checksum is {stored:#010x}, but its bytes have {computed:#010x}");
        self.corrupt.push(CorruptStream::of_file(file, reason));
    }

    /// A recording without a usable summary is read as one whose recorder was killed.
    fn read_summary(&mut self) -> Result<(), ReadError> {
        let parsed = match self.read_json("summary") {
            Ok(None) => return Ok(()),
            Ok(Some((file, json))) => {
                parse::<TraceSummary>(&file, &json).map(|summary| (summary, check_document(&json)))
            }
            Err(error) => Err(error),
        };
        let written = self.paths.own().file(document_name("summary"));
        let written = written.and_then(|file| file.metadata()?.modified());
        self.written = written.ok().and_then(|time| self.monotonic(time));
        let file = self.paths.document("summary");
        match parsed {
            Ok((summary, check)) => {
                if let Some(reason) = self.impossible(&summary) {
                    self.corrupt.push(CorruptStream::of_file(&file, reason));
                } else if !matches!(check, DocumentCheck::Wrong { .. }) {
                    self.summary = Some(summary);
                }
                Ok(())
            }
            Err(error) => self.note_unusable(&file, error),
        }
    }

    /// Reads the ends of the streams of a finished recording.
    fn read_ends(&mut self) -> Result<(), ReadError> {
        if self.summary.is_none() {
            return Ok(());
        }
        let parsed = match self.read_json(ENDS) {
            Ok(None) => return Ok(()),
            Ok(Some((file, json))) => {
                parse::<Ends>(&file, &json).map(|ends| (ends, check_document(&json)))
            }
            Err(error) => Err(error),
        };
        match parsed {
            Ok((_, DocumentCheck::Wrong { .. })) => Ok(()),
            Ok((ends, _)) => {
                self.ends = ends.by_stream();
                Ok(())
            }
            Err(error) => self.note_unusable(&self.paths.document(ENDS), error),
        }
    }

    /// Notes a damaged document that is not essential. A type that no recorder leaves there remains
    /// an error.
    fn note_unusable(&mut self, file: &Path, error: ReadError) -> Result<(), ReadError> {
        if matches!(error, ReadError::Refused { .. }) {
            return Err(error);
        }
        let reason = error.to_string();
        self.corrupt.push(CorruptStream::of_file(file, reason));
        Ok(())
    }

    /// Adds the tails that repairs have cut.
    fn read_repairs(&mut self) -> Result<(), ReadError> {
        let repairs = match Repairs::read(&self.paths) {
            Ok(repairs) => repairs,
            Err(error) => return self.note_unusable(&self.paths.document(REPAIRS), error),
        };
        for cut in repairs.tails(&self.paths) {
            // A repair that was killed may have listed the tail without cutting it.
            if !self.torn.contains(&cut) {
                self.torn.push(cut);
            }
        }
        self.torn.sort_by_key(|tail| (tail.stream, tail.offset));
        Ok(())
    }

    /// The reason why a summary cannot be true: its last advance is later than its own time.
    fn impossible(&self, summary: &TraceSummary) -> Option<String> {
        let written = self.written?.plus(TOLERANCE);
        // A copy may have another file time.
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

    /// Bounds of the times in a stream's file: by the summary that the recorder wrote at the end,
    /// or by the time of the file.
    fn bounds(&self, layout: &PacketLayout, files: &[StreamFile]) -> Bounds {
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
        let written = || self.monotonic(files.last()?.map.modified()?);
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
        // A copy may have another file time: then no packet in it fits.
        let bytes = files.first().map_or(&[][..], |file| file.map.bytes());
        let first = layout.parse(bytes, 0).map(|packet| packet.head.begin);
        match first {
            Ok(first) if first > bounds.last => Bounds::NONE,
            _ => bounds,
        }
    }

    fn add(&mut self, entry: &CatalogueEntry, format: u32, mut parts: Vec<Part>) {
        let layout = PacketLayout::new(entry.class, &entry.descriptor, format);
        let stream = entry.descriptor.id;
        if !parts.iter().any(|part| matches!(part, Part::Number(_))) {
            // The stream has no packets. Something else of its name is reported.
            parts.push(Part::Number(self.first_part()));
        }
        // The file of repeated elements is the first one.
        parts.sort();
        let open = |part: &Part| self.open_part(stream, *part);
        let opened: Vec<_> = parts.iter().map(open).collect();
        let mut files = Vec::new();
        for (file, error) in opened {
            if let Some(error) = error {
                self.corrupt.push(CorruptStream {
                    stream: Some(stream),
                    ..CorruptStream::of_file(&file.path, error)
                });
            }
            files.push(file);
        }
        let mut removed = self.disk.iter().flat_map(|disk| &disk.removed);
        let removed = removed.find(|it| it.stream == stream);
        let mut recorded = RecordedStream {
            descriptor: Arc::clone(&entry.descriptor),
            bounds: self.bounds(&layout, &files),
            layout,
            files,
            removed: removed.cloned(),
            gaps: Vec::new(),
            end_noted: self.ends.get(&stream).copied(),
            events: 0,
            discarded: 0,
            left_out: 0,
            times: None,
        };
        self.scan(&mut recorded);
        self.streams.push(recorded);
    }

    /// Opens a file of a stream, and returns the error if there is one.
    fn open_part(&self, stream: StreamId, part: Part) -> (StreamFile, Option<String>) {
        let opened = self.paths.trace().file(stream_name(stream, part));
        let (map, error) = match opened.and_then(|file| Map::of(&file)) {
            Ok(map) => (map, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Map::empty(), None),
            Err(error) => (Map::empty(), Some(error.to_string())),
        };
        let path = self.paths.stream(stream, part);
        (StreamFile { path, part, map }, error)
    }

    /// Reads the heads of the packets of a stream.
    fn scan(&mut self, recorded: &mut RecordedStream) {
        let (stream, bounds) = (recorded.descriptor.id, recorded.bounds);
        let (bytes, before) = recorded.kept();
        let found = scan(&recorded.layout, bytes, bounds, recorded.end_noted, before);
        let repeated = recorded.repeated_files();
        let bytes = recorded.files[..repeated].iter().map(|it| it.map.bytes());
        let bytes: Vec<&[u8]> = bytes.collect();
        let before = Before::default();
        let repeated = scan(&recorded.layout, bytes, bounds, None, before);
        let last = recorded.files.len().saturating_sub(1);
        for damage in repeated.damages.iter().chain(&found.damages) {
            let path = recorded.path(damage.file);
            if damage.is_torn && damage.file == last {
                let bytes = recorded.files[last].map.bytes().len() - damage.offset;
                self.torn.push(TornTail {
                    stream,
                    file: path.to_path_buf(),
                    offset: damage.offset as u64,
                    bytes: bytes as u64,
                });
            } else {
                let damage = CorruptStream::of_packet(path, stream, damage);
                self.corrupt.push(damage);
            }
        }
        if found.further > 0 {
            let after = found.damages.last().map_or(Timestamp::ZERO, |it| it.after);
            let path = recorded.path(last);
            let further = CorruptStream::further(path, stream, after, found.further);
            self.corrupt.push(further);
        }
        if let Some(file) = recorded.files.last_mut() {
            file.map.keep(found.whole_bytes);
        }
        if let Some(removed) = &recorded.removed {
            recorded.gaps = removed.gaps(found.first);
        }
        let missed = recorded.gaps.iter().map(|gap| gap.missed);
        let of_disk = recorded
            .gaps
            .iter()
            .filter(|gap| gap.cause == GapCause::Disk);
        let of_disk = of_disk.map(|gap| gap.missed);
        recorded.left_out = of_disk.fold(found.left_out, u64::saturating_add);
        recorded.events = found.events + repeated.events;
        recorded.discarded = missed.fold(found.discarded, discarded_after);
        let of_gaps = recorded
            .gaps
            .first()
            .map(|gap| (gap.from, gap.to.max(gap.from)));
        let times = [repeated.times, of_gaps, found.times];
        recorded.times = times
            .into_iter()
            .flatten()
            .reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
    }

    /// Where and when it was recorded.
    #[must_use]
    pub const fn identity(&self) -> &TraceIdentity {
        &self.identity
    }

    /// The streams by their numbers, including those without items.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = &Arc<StreamDescriptor>> {
        self.streams.iter().map(|stream| &stream.descriptor)
    }

    /// Number of elements that can be read from a stream, and number of missed elements in its
    /// gaps; `None` if there is no such stream.
    #[must_use]
    pub fn count(&self, stream: StreamId) -> Option<(u64, u64)> {
        let stream = self.recorded().iter().find(|s| s.descriptor.id == stream)?;
        Some((stream.events, stream.discarded))
    }

    /// Number of elements that can be read.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.streams.iter().map(|stream| stream.events).sum()
    }

    /// Number of missed elements in the gaps.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        self.streams
            .iter()
            .fold(0, |sum, stream| sum.saturating_add(stream.discarded))
    }

    /// Begin of the first and end of the last element or gap; `None` if there are none.
    #[must_use]
    pub fn times(&self) -> Option<(Timestamp, Timestamp)> {
        let times = || self.streams.iter().filter_map(|stream| stream.times);
        let first = times().map(|(first, _)| first).min()?;
        let last = times().map(|(_, last)| last).max()?;
        Some((first, last))
    }

    /// The latest time that an item in a finished recording may have: a day after its summary was
    /// written.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        let last = self.times().map_or(Timestamp::ZERO, |(_, last)| last);
        // A copy may have another file time.
        let written = self
            .written
            .filter(|written| written.plus(TOLERANCE) >= last);
        let latest = written.map(|written| written.plus(TOLERANCE));
        latest.unwrap_or(Bounds::NONE.last).min(Bounds::NONE.last)
    }

    /// The writer's summary; `None` if the recorder was killed or is still running.
    #[must_use]
    pub const fn summary(&self) -> Option<&TraceSummary> {
        self.summary.as_ref()
    }

    /// Tails that are left out, because they are no whole packets, and those that a repair has cut.
    #[must_use]
    pub fn torn(&self) -> &[TornTail] {
        &self.torn
    }

    /// Number of tails that a repair would cut, so that strict readers accept the trace.
    #[must_use]
    pub const fn uncut_tails(&self) -> usize {
        self.uncut
    }

    /// The limits of the recording on the disk.
    #[must_use]
    pub fn limits(&self) -> DiskLimits {
        let Some(disk) = &self.disk else {
            return DiskLimits::default();
        };
        let rate = disk.bytes_per_second;
        DiskLimits {
            rate: rate.and_then(|rate| ByteRate::per_second(rate).ok()),
            max_bytes: disk.max_bytes,
        }
    }

    /// Number of elements that are not in the recording because of its limits: the sum over the
    /// gaps of the cause `disk`.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        let left_out = self.streams.iter().map(|stream| stream.left_out);
        left_out.fold(0, u64::saturating_add)
    }

    /// The bytes by which the recording may still grow, if its size is limited.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn free_bytes(&self) -> io::Result<Option<u64>> {
        let Some(max_bytes) = self.limits().max_bytes else {
            return Ok(None);
        };
        let taken = bytes_of_recording(&self.paths, |_| true)?;
        Ok(Some(max_bytes.saturating_sub(taken)))
    }

    /// Names of files that a killed recorder was about to remove. They are not read.
    pub(crate) fn remains(&self) -> &[OsString] {
        &self.remains
    }

    /// Places that cannot be read.
    #[must_use]
    pub fn corrupt(&self) -> &[CorruptStream] {
        &self.corrupt
    }

    /// Bytes of all packets that can be read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.streams.iter().map(RecordedStream::bytes).sum()
    }

    /// An attached document; `None` if there is none of this name. It has at most 48 MiB, and takes
    /// at most 96 MiB of memory; [`TraceReader::document_as`] takes less.
    ///
    /// # Errors
    /// [`ReadError`] if the name is no file name, or the document is damaged or too large.
    pub fn document(&self, name: &str) -> Result<Option<serde_json::Value>, ReadError> {
        let Some((file, json)) = self.read_document(name)? else {
            return Ok(None);
        };
        let left_bytes = Cell::new(MAX_TREE_BYTES);
        parse_as(&file, &json, BoundedTree::new(&left_bytes)).map(Some)
    }

    /// An attached document, as a value of this type; `None` if there is none of this name.
    ///
    /// # Errors
    /// As [`TraceReader::document`], and [`ReadError::OtherContent`] if it is JSON, but not a value
    /// of this type.
    pub fn document_as<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReadError> {
        let Some((file, json)) = self.read_document(name)? else {
            return Ok(None);
        };
        match serde_json::from_slice(&json) {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.is_data() => Err(ReadError::OtherContent {
                file,
                cause: error.to_string(),
            }),
            // The message has the position of the byte.
            Err(_) => Err(match parse::<IgnoredAny>(&file, &json) {
                Err(error) => error,
                Ok(_) => ReadError::OtherContent {
                    file,
                    cause: "its nesting is too deep".to_owned(),
                },
            }),
        }
    }

    fn read_document(&self, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>, ReadError> {
        if !is_document_name(name) {
            return Err(ReadError::DocumentName(name.to_owned()));
        }
        let mut document = self.read_json(name)?;
        if let Some((_, json)) = &mut document {
            strip_document(json);
        }
        Ok(document)
    }

    pub(crate) fn recorded(&self) -> &[RecordedStream] {
        &self.streams
    }

    pub(crate) fn into_paths(self) -> TracePaths {
        self.paths
    }

    /// A JSON file of ours with its path, if it exists.
    fn read_json(&self, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>, ReadError> {
        let file = self.paths.document(name);
        let own = self.paths.own();
        let json = own.read(document_name(name), MAX_DOCUMENT_BYTES);
        let json = json.and_then(|json| {
            check_size(json.len() as u64, ValueCount::of(&json))?;
            Ok(json)
        });
        match json {
            Ok(json) => Ok(Some((file, json))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&file, &error)),
        }
    }
}
