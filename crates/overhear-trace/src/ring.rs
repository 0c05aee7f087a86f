// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a recording with a maximum size: parts, of which the oldest are removed.
//!
//! A part has a file of each stream that had packets in its time, so all streams begin a new file
//! at the same time, and a removed part leaves the newest window complete for all streams. Files
//! are removed as a whole, because that is as fast as to punch holes into one file, works on every
//! file system and in copies, and other CTF readers read what is left.
//!
//! | step of a removal | if the recorder dies after it |
//! |---|---|
//! | 1. elements to repeat are written to new files | readers ignore them |
//! | 2. `disk.json` is replaced: the part is removed | readers ignore its files |
//! | 3. the files of the part and older repeated elements are removed | |
//!
//! Space is counted as the file system counts it, for all files of the folder. There is a reserve
//! for new copies of documents, which are replaced as a whole, and for the page.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io::{self, Write};

use overhear_event::{GapCause, Timestamp};

use crate::checksum::seal_document;
use crate::disk::{DiskDocument, RemovedPackets};
use crate::folder::Folder;
use crate::limits::DiskLimits;
use crate::lives::Lives;
use crate::map::Map;
use crate::packet::{PacketHead, BLOCK, MAX_PACKET_BYTES};
use crate::paths::{document_name, part_of_name, stream_name, Part, TracePaths, DISK};
use crate::scan::{Before, Bounds, Packets, Verify};
use crate::stream_state::{PartAccount, StreamState};
use crate::writer::Content;

/// Number of parts that the maximum size has room for: so much of it is in use at least, except
/// for one part.
const PARTS: u64 = 16;
/// Bounds of the reserve for documents and the page: an eighth of the maximum size within them.
const LEAST_RESERVE: u64 = 256 << 10;
const MOST_RESERVE: u64 = 16 << 20;
/// Bytes of one stream in `disk.json` and `ends.json`, at most.
const BYTES_OF_STREAM: u64 = 1_024;
/// Bytes that the file system may add to a packet: the rest of a block, a block of the index of the
/// file, and one of the folder.
const SLACK: u64 = 16 << 10;
/// Bytes of a repeated element with its time.
const BYTES_OF_LIFE: u64 = 64;

/// A file that gets no more packets.
#[derive(Debug)]
struct ClosedFile {
    /// Index of the stream.
    stream: usize,
    account: PartAccount,
    /// The state of the stream at its end.
    packets: u64,
    discarded: u64,
    end_sequence: u64,
    end: Timestamp,
}

/// What a removal changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Removal {
    /// Elements that can be read no more.
    pub(crate) elements: u64,
    /// Bytes of their packets.
    pub(crate) bytes: u64,
}

/// The parts of a recording.
#[derive(Debug)]
pub(crate) struct Ring {
    limits: DiskLimits,
    max_bytes: u64,
    /// Bytes of the catalogue and the metadata.
    described_bytes: u64,
    /// Number of the first part that is kept, and of the part that is written.
    first: u64,
    current: u64,
    /// The parts before the current one.
    closed: VecDeque<Vec<ClosedFile>>,
    /// Bytes on the disk: of these, of the current part, and of all other files.
    closed_bytes: u64,
    current_bytes: u64,
    other_bytes: u64,
    /// By index of the stream.
    removed: BTreeMap<usize, RemovedPackets>,
    lives: Lives,
}

impl Ring {
    pub(crate) fn new(limits: DiskLimits, max_bytes: u64) -> Self {
        Self {
            limits,
            max_bytes,
            described_bytes: 0,
            first: 0,
            current: 0,
            closed: VecDeque::new(),
            closed_bytes: 0,
            current_bytes: 0,
            other_bytes: 0,
            removed: BTreeMap::new(),
            lives: Lives::default(),
        }
    }

    /// Size of a part.
    fn part_bytes(&self) -> u64 {
        (self.max_bytes - self.base_reserve()) / PARTS
    }

    /// Maximum size of packets: some fit into a part.
    pub(crate) fn packet_bytes(&self) -> usize {
        let bytes = usize::try_from(self.part_bytes() / 4).unwrap_or(usize::MAX);
        // Whole blocks of the file.
        let bytes = bytes.min(MAX_PACKET_BYTES);
        bytes - bytes % BLOCK
    }

    pub(crate) const fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The part that is written.
    pub(crate) const fn part(&self) -> Part {
        Part::Number(self.current)
    }

    fn base_reserve(&self) -> u64 {
        (self.max_bytes / 8).clamp(LEAST_RESERVE, MOST_RESERVE)
    }

    fn used(&self) -> u64 {
        self.closed_bytes + self.current_bytes + self.other_bytes
    }

    /// Whether a packet or document of this size may be written.
    pub(crate) fn has_room(&self, bytes: u64, streams: usize, content: Content) -> bool {
        let reserve = match content {
            Content::Packet => self.base_reserve() + self.described_bytes,
            Content::Document => 0,
        };
        let of_streams = streams as u64 * BYTES_OF_STREAM;
        self.used() + bytes + SLACK + of_streams + reserve <= self.max_bytes
    }

    /// A maximum size that would have room for the present streams, documents and a part.
    pub(crate) fn needed(&self, bytes: u64, streams: usize) -> u64 {
        // The documents about streams exist twice while they are replaced.
        let of_streams = 2 * streams as u64 * BYTES_OF_STREAM;
        let needed = self.other_bytes + self.described_bytes + of_streams + bytes + SLACK;
        // The reserve and a part take a fifth.
        let needed = needed + needed / 4 + LEAST_RESERVE;
        needed.div_ceil(1 << 20) << 20
    }

    /// Whether a new part is due.
    pub(crate) fn is_part_full(&self) -> bool {
        self.current_bytes >= self.part_bytes()
    }

    /// Whether a part can be removed: one before the current one.
    pub(crate) fn has_closed_parts(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether the current part has packets.
    pub(crate) const fn has_packets(&self) -> bool {
        self.current_bytes > 0
    }

    /// Notes the size of the catalogue and the metadata.
    pub(crate) fn set_described(&mut self, bytes: u64) {
        self.described_bytes = bytes;
    }

    /// Notes that a file of the current part has grown.
    pub(crate) fn note_growth(&mut self, before: u64, after: u64) {
        self.current_bytes = (self.current_bytes + after).saturating_sub(before);
    }

    /// Counts all files but those of the current and the closed parts again.
    pub(crate) fn count_others(&mut self, paths: &TracePaths) -> io::Result<()> {
        let is_other = |name: &OsStr| {
            !part_of_name(name).is_some_and(|(_, part)| matches!(part, Part::Number(_)))
        };
        let bytes = bytes_of_recording(paths, is_other)?;
        self.other_bytes = bytes;
        Ok(())
    }

    /// Begins the next part. The files of the current one get no more packets.
    pub(crate) fn begin_part(
        &mut self,
        paths: &TracePaths,
        streams: &mut [StreamState],
    ) -> io::Result<()> {
        let mut files = Vec::new();
        for (stream, state) in streams.iter_mut().enumerate() {
            // A file system may release memory of a file when it is closed.
            state.file = None;
            if state.file_bytes == 0 {
                continue;
            }
            let mut account = state.take_part();
            let name = stream_name(state.descriptor.id, self.part());
            account.allocated = paths.trace().allocated(&name)?;
            self.closed_bytes += account.allocated;
            files.push(ClosedFile {
                stream,
                account,
                packets: state.next_number,
                discarded: state.discarded,
                end_sequence: state.end_sequence,
                end: state.end_on_disk,
            });
        }
        self.current_bytes = 0;
        self.current += 1;
        self.closed.push_back(files);
        Ok(())
    }

    /// Removes the oldest part that is closed.
    pub(crate) fn remove_oldest(
        &mut self,
        paths: &TracePaths,
        streams: &[StreamState],
    ) -> io::Result<Removal> {
        let Some(files) = self.closed.pop_front() else {
            return Ok(Removal::default());
        };
        let repeated = |removed: &BTreeMap<usize, RemovedPackets>| -> u64 {
            removed.values().map(|it| it.repeated).sum()
        };
        let (before, old) = (repeated(&self.removed), self.first);
        let old_repeated = self.streams_with_repeated();
        self.take_lives(&files, paths, streams);
        let mut removal = Removal::default();
        for file in &files {
            self.account(file, streams);
            removal.elements += file.account.records;
            removal.bytes += file.account.bytes;
            self.closed_bytes = self.closed_bytes.saturating_sub(file.account.allocated);
        }
        self.first += 1;
        self.write_repeated(paths, streams)?;
        self.write_document(paths)?;
        for file in &files {
            let id = streams[file.stream].descriptor.id;
            remove(paths, &stream_name(id, Part::Number(old)))?;
        }
        for stream in old_repeated {
            let name = stream_name(streams[stream].descriptor.id, Part::Repeated(old));
            remove(paths, &name)?;
        }
        removal.elements = (removal.elements + before).saturating_sub(repeated(&self.removed));
        self.count_others(paths)?;
        Ok(removal)
    }

    fn streams_with_repeated(&self) -> Vec<usize> {
        let removed = self.removed.iter();
        let repeated = removed.filter(|(_, removed)| removed.repeated > 0);
        repeated.map(|(&stream, _)| stream).collect()
    }

    /// Adds a removed file to the account of its stream.
    fn account(&mut self, file: &ClosedFile, streams: &[StreamState]) {
        let account = &file.account;
        let removed = self.removed.entry(file.stream).or_insert_with(|| {
            let (first_sequence, from) = account.first.unwrap_or_default();
            RemovedPackets {
                stream: streams[file.stream].descriptor.id,
                first_sequence,
                from,
                end_sequence: 0,
                to: Timestamp::ZERO,
                packets: 0,
                discarded: 0,
                elements: 0,
                repeated: 0,
                missed: BTreeMap::new(),
            }
        });
        removed.end_sequence = file.end_sequence;
        removed.to = file.end;
        removed.packets = file.packets;
        removed.discarded = file.discarded;
        removed.elements += account.records;
        for (cause, missed) in GapCause::ALL.into_iter().zip(account.missed) {
            if missed > 0 {
                let sum = removed.missed.entry(cause).or_insert(0);
                *sum = sum.saturating_add(missed);
            }
        }
    }

    /// Reads the lives of threads in files that are about to be removed. What cannot be read is
    /// not repeated.
    fn take_lives(&mut self, files: &[ClosedFile], paths: &TracePaths, streams: &[StreamState]) {
        let mut found = Vec::new();
        for file in files {
            let state = &streams[file.stream];
            if !state.is_about_lives {
                continue;
            }
            let name = stream_name(state.descriptor.id, Part::Number(self.first));
            let opened = paths.trace().file(name).and_then(|file| Map::of(&file));
            let Ok(map) = opened else { continue };
            let before = self.removed.get(&file.stream);
            let before = before.map_or(Before::default(), |before| Before {
                packets: before.packets,
                discarded: before.discarded,
                ..Before::default()
            });
            let bytes = vec![map.bytes()];
            let all = (Bounds::NONE, Verify::All);
            let mut packets = Packets::new(&state.layout, bytes, all.0, all.1, None, before);
            while let Ok(Some(packet)) = packets.next() {
                for record in packet.records.chunks_exact(state.layout.record_bytes()) {
                    let time = crate::packet::record_time(record);
                    let payload = &record[crate::packet::TIME_BYTES..];
                    found.push((time, file.stream, payload.to_vec()));
                }
            }
        }
        found.sort_by_key(|(time, stream, _)| (*time, *stream));
        for (time, stream, payload) in found {
            self.lives.element(stream, time, &payload);
        }
    }

    /// Writes the elements that are repeated before the first kept packets.
    fn write_repeated(&mut self, paths: &TracePaths, streams: &[StreamState]) -> io::Result<()> {
        // They may all be of one stream, which has one packet for them.
        let bytes = (self.base_reserve() / 4).min(MAX_PACKET_BYTES as u64 / 2);
        let most = bytes / BYTES_OF_LIFE;
        let mut of_streams: BTreeMap<usize, Vec<(Timestamp, &[u8])>> = BTreeMap::new();
        for element in self.lives.elements(most as usize) {
            let elements = of_streams.entry(element.stream).or_default();
            elements.push((element.time, &element.payload));
        }
        for (stream, removed) in &mut self.removed {
            let elements = of_streams.remove(stream).unwrap_or_default();
            removed.repeated = elements.len() as u64;
            let (Some(first), Some(last)) = (elements.first(), elements.last()) else {
                continue;
            };
            let layout = &streams[*stream].layout;
            let head = PacketHead {
                number: 0,
                first_sequence: removed.first_sequence,
                gap: None,
                begin: first.0,
                end: last.0,
                discarded: 0,
            };
            let mut packet = vec![0; layout.head_bytes()];
            for (time, payload) in &elements {
                packet.extend_from_slice(&time.as_monotonic_ns().to_ne_bytes());
                packet.extend_from_slice(payload);
            }
            layout.seal(&mut packet, &head, 0);
            let name = stream_name(removed.stream, Part::Repeated(self.first));
            let mut file = paths.own().replace_in(paths.trace(), &name)?;
            file.write_all(&packet)?;
            file.commit()?;
        }
        Ok(())
    }

    /// Replaces `disk.json`.
    pub(crate) fn write_document(&self, paths: &TracePaths) -> io::Result<()> {
        write_disk_document(
            paths,
            self.limits,
            self.first,
            self.removed.values().cloned().collect(),
        )
    }
}

/// The bytes that the files of a recording take on the disk, with their folders. Of the files of
/// the trace, those count that `counts` selects.
pub(crate) fn bytes_of_recording(
    paths: &TracePaths,
    counts: impl Fn(&OsStr) -> bool,
) -> io::Result<u64> {
    let content = |folder: &Folder, counts: &dyn Fn(&OsStr) -> bool| {
        let mut bytes = folder.own_allocated()?;
        for name in folder.names()? {
            if counts(&name) {
                bytes += folder.allocated(&name)?;
            }
        }
        Ok::<u64, io::Error>(bytes)
    };
    let dir = Folder::open(paths.dir())?;
    let of_dir = content(&dir, &|name| name != "trace")?;
    let of_trace = content(paths.trace(), &|name| name != "overhear" && counts(name))?;
    Ok(of_dir + of_trace + content(paths.own(), &|_| true)?)
}

/// Removes a file. Somebody else may have done it.
fn remove(paths: &TracePaths, name: &str) -> io::Result<()> {
    match paths.trace().remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces `disk.json`.
pub(crate) fn write_disk_document(
    paths: &TracePaths,
    limits: DiskLimits,
    first_part: u64,
    removed: Vec<RemovedPackets>,
) -> io::Result<()> {
    let document = DiskDocument {
        bytes_per_second: limits
            .rate
            .map(overhear_budget::ByteRate::as_bytes_per_second),
        max_bytes: limits.max_bytes,
        first_part,
        removed,
    };
    let mut json = serde_json::to_vec(&document)?;
    seal_document(&mut json);
    let mut file = paths.own().replace(document_name(DISK))?;
    file.write_all(&json)?;
    file.commit()
}
