// SPDX-License-Identifier: MIT OR Apache-2.0
//! The writer: an analysis that writes its items as a trace.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Nanos, StreamDescriptor, StreamId, Timestamp,
};

use serde::Serialize;

use crate::catalogue::{Catalogue, CatalogueEntry, TraceIdentity};
use crate::checksum::{seal_document, SealingWriter};
use crate::ends::{Ends, ENDS};
use crate::error::WriteError;
use crate::folder::size_on_disk;
use crate::format::{FORMAT, LAST_FORMAT_WITHOUT_CHECKSUMS};
use crate::limits::DiskLimits;
use crate::metadata::{render, StreamClass};
use crate::packet::{
    discarded_after, PacketHead, PacketLayout, LATEST, MAX_PACKET_BYTES, TIME_BYTES,
};
use crate::paths::{is_document_name, stream_name, Lock, Part, TracePaths, DISK};
use crate::ring::{write_disk_document, Ring};
use crate::stream_state::StreamState;
use crate::summary::TraceSummary;
use crate::thinning::Thinning;

/// Default maximum size of a packet. The kernel caches bytes that are written together in large
/// pages, which cost less than many small ones, also when they are mapped. Only a stream with 1.3
/// MB/s fills such a packet within the time that elements may be pending.
const DEFAULT_PACKET_BYTES: usize = 256 << 10;
/// Default time of pending elements: a killed recorder loses at most this much of the items that it
/// had received.
const DEFAULT_PENDING: Nanos = Nanos::from_ms(200);
/// Limit for the memory of the unwritten packets of all streams: above it, packets are written
/// before they are full.
const MOST_PENDING_BYTES: usize = 16 << 20;
/// Maximum number of streams with open files: sensors of the same process need files, too.
const MOST_OPEN_FILES: usize = 256;
/// Number of streams that are found without a look-up in the index.
const RECENT: usize = 64;

/// Writes a trace. See the crate's example.
///
/// Elements of one stream must come in order; streams may be mixed in any way. An element is on
/// disk when its packet is: when that is full, after [`TraceWriter::advance`] by 200 ms, or at
/// [`TraceWriter::finish`], which a dropped writer calls itself.
///
/// Each stream takes memory for the packet that is being filled:
///
/// - at most the maximum size of a packet ([`TraceWriter::with_packet_bytes`]);
/// - for a slow stream, at most some four times the bytes that come within the time that elements
///   may be pending ([`TraceWriter::with_pending`]). This needs regular advances: without them the
///   packet of every stream grows until it is full, however slow the stream is.
///
/// All packets together take at most 16 MiB: if there are too many streams for that, packets are
/// smaller.
#[derive(Debug)]
pub struct TraceWriter {
    paths: TracePaths,
    catalogue: Catalogue,
    classes: Vec<StreamClass>,
    streams: Vec<StreamState>,
    index: HashMap<StreamId, usize>,
    /// Indices of recently used streams, by the low bits of their numbers: a look-up in `index`
    /// costs as much as recording.
    recent: [Option<(StreamId, usize)>; RECENT],
    /// Streams were opened that are not in the files yet.
    unpublished: bool,
    packet_bytes: usize,
    pending: Nanos,
    /// No pending record is older than this.
    oldest_pending: Timestamp,
    /// Memory of all packets in bytes.
    pending_bytes: usize,
    open_files: usize,
    /// If the size of the recording is limited.
    ring: Option<Ring>,
    /// If the rate of the recording is limited.
    thinning: Option<Thinning>,
    summary: TraceSummary,
    error: Option<WriteError>,
    /// Set when nothing more can be written.
    dead: Option<WriteError>,
    finished: bool,
    /// Held until the end; `repair` refuses a locked trace.
    lock: Option<Lock>,
}

impl TraceWriter {
    /// Starts a trace in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// [`WriteError`] if there is a trace already, the files cannot be written, or the folder is
    /// not trusted: it belongs to neither root nor the caller, or the caller is root and others can
    /// write to it.
    pub fn create(dir: impl AsRef<Path>, identity: TraceIdentity) -> Result<Self, WriteError> {
        if identity.realtime_offset.as_ns() > LATEST.as_monotonic_ns() {
            return Err(WriteError::RealtimeOffset(identity.realtime_offset));
        }
        let paths = TracePaths::create(dir.as_ref())?;
        let lock = paths.create_lock();
        let lock = lock.map_err(|cause| create_error(paths.lock(), &cause))?;
        let Some(lock) = Lock::take(lock) else {
            return Err(WriteError::Exists {
                dir: paths.dir().to_path_buf(),
            });
        };
        let mut writer = Self {
            paths,
            catalogue: Catalogue::new(identity),
            classes: Vec::new(),
            streams: Vec::new(),
            index: HashMap::new(),
            recent: [None; RECENT],
            unpublished: true,
            packet_bytes: DEFAULT_PACKET_BYTES,
            pending: DEFAULT_PENDING,
            oldest_pending: Timestamp::MAX,
            pending_bytes: 0,
            open_files: 0,
            ring: None,
            thinning: None,
            summary: TraceSummary::default(),
            error: None,
            dead: None,
            finished: false,
            lock: Some(lock),
        };
        if let Err(error) = writer.publish() {
            // The drop must not try again.
            writer.finished = true;
            return Err(error);
        }
        Ok(writer)
    }

    /// Sets the maximum size of packets (default 256 KiB; at least one element, at most 4 MiB). If
    /// it is a multiple of 4096, full packets end where the size of the file is a multiple of it,
    /// with padding after the last record that fits.
    #[must_use]
    pub fn with_packet_bytes(mut self, bytes: usize) -> Self {
        let rate = self.thinning.as_ref().map(Thinning::packet_bytes);
        let size = self.ring.as_ref().map(Ring::packet_bytes);
        let most = rate.into_iter().chain(size).min();
        self.packet_bytes = bytes.min(most.unwrap_or(MAX_PACKET_BYTES));
        self
    }

    /// Limits the recording on the disk. Packets are smaller then, so that each is a small part of
    /// the limit, and the format is 5. Call it before anything is recorded.
    ///
    /// # Errors
    /// [`WriteError`] if the limits are too small, or a file cannot be written.
    pub fn with_limits(mut self, limits: DiskLimits) -> Result<Self, WriteError> {
        if limits.is_none() || !self.streams.is_empty() {
            return Ok(self);
        }
        limits.check()?;
        self.thinning = limits.rate.map(Thinning::new);
        self.ring = limits
            .max_bytes
            .map(|max_bytes| Ring::new(limits, max_bytes));
        let packet_bytes = self.packet_bytes;
        self = self.with_packet_bytes(packet_bytes);
        self.catalogue.format = FORMAT;
        // A reader that finds the format finds the document, too.
        let written = write_disk_document(&self.paths, limits, 0, Vec::new());
        let published = match written {
            Ok(()) => self.publish(),
            Err(cause) => Err(cannot_replace(&self.paths.document(DISK), &cause)),
        };
        match published {
            Ok(()) => Ok(self),
            Err(error) => {
                // The drop must not try again.
                self.finished = true;
                Err(error)
            }
        }
    }

    /// Writes format 2, which has no checksums, for readers that do not support format 3. Call it
    /// before anything is recorded. A recording with limits keeps its format.
    #[must_use]
    pub fn without_checksums(mut self) -> Self {
        if self.streams.is_empty() && self.ring.is_none() && self.thinning.is_none() {
            self.catalogue.format = LAST_FORMAT_WITHOUT_CHECKSUMS;
            self.unpublished = true;
        }
        self
    }

    /// Sets the maximum time that elements stay in memory, in trace time (default 200 ms).
    #[must_use]
    pub fn with_pending(mut self, pending: Nanos) -> Self {
        self.pending = pending;
        self
    }

    /// Announces a stream, so that it is part of the trace even if it has no items. Elements and
    /// gaps of unknown streams announce them.
    ///
    /// # Errors
    /// [`WriteError::Conflict`] if another stream has this id.
    pub fn open(&mut self, descriptor: &StreamDescriptor) -> Result<(), WriteError> {
        let index = self.state(descriptor)?;
        if *self.streams[index].descriptor == *descriptor {
            Ok(())
        } else {
            Err(conflict(descriptor))
        }
    }

    /// Records an element.
    ///
    /// # Errors
    /// [`WriteError`]; the element is counted as unrecorded.
    pub fn element(&mut self, element: &ElementView<'_>) -> Result<(), WriteError> {
        let result = self.try_element(element);
        self.account(result, 1)
    }

    /// Records a gap.
    ///
    /// # Errors
    /// [`WriteError`]; the missed elements of the gap are counted as unrecorded.
    pub fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) -> Result<(), WriteError> {
        let accepted = self.accept_gap(stream, gap);
        let index = self.account_of(accepted, gap.missed)?;
        // From here on it counts with what is pending.
        let written = self.write_accepted_gap(index);
        self.account(written, 0)
    }

    /// Advances the time; writes packets that have been pending for long.
    ///
    /// # Errors
    /// [`WriteError`]; elements that could not be written are counted as unrecorded.
    pub fn advance(&mut self, now: Timestamp) -> Result<(), WriteError> {
        self.summary.advanced_to = self.summary.advanced_to.max(now);
        let result = self.try_advance(now);
        self.account(result, 0)
    }

    /// Attaches a document, `overhear/NAME.json`, replacing an earlier one of that name. Readers
    /// see the old one or the new one, never a part. It is serialised into the file, and never in
    /// memory as a whole.
    ///
    /// # Errors
    /// [`WriteError`] if the name is no file name, or the document could not be written.
    pub fn attach_document<T: Serialize + ?Sized>(
        &mut self,
        name: &str,
        document: &T,
    ) -> Result<(), WriteError> {
        if !is_document_name(name) {
            return Err(WriteError::DocumentName(name.to_owned()));
        }
        if self.ring.is_some() {
            let mut size = ByteCount(0);
            let counted = serde_json::to_writer(&mut size, document);
            let cause = |error: serde_json::Error| error.into();
            counted.map_err(|error| cannot_replace(&self.paths.document(name), &cause(error)))?;
            let before = self.summary;
            self.make_room(size.0 + CHECKSUM_MEMBER_BYTES, Content::Document)?;
            if self.finished && self.summary != before {
                self.write_summary();
            }
        }
        let file = self.paths.document(name);
        let has_checksums = self.has_checksums();
        let replaced = self.paths.replace_document(name, |out| {
            if has_checksums {
                let mut sealing = SealingWriter::new(&mut *out);
                serde_json::to_writer(&mut sealing, document)?;
                sealing.finish()?;
            } else {
                serde_json::to_writer(&mut *out, document)?;
            }
            out.write_all(b"\n")
        });
        self.count_others();
        replaced.map_err(|cause| cannot_replace(&file, &cause))
    }

    /// Writes all pending packets and closes the trace.
    ///
    /// # Errors
    /// The first [`WriteError`] of the whole recording, if there was one. All that could be written
    /// has been written; [`TraceWriter::summary`] has the numbers.
    pub fn finish(&mut self) -> Result<TraceSummary, WriteError> {
        if !self.finished {
            let result = self.try_finish();
            // The error is remembered, and reported below.
            let _ = self.account(result, 0);
            self.finished = true;
            if self.catalogue.has_numbers() {
                // Written before the summary: a reader that finds the summary finds this document,
                // too.
                let streams = self.streams.iter().filter_map(StreamState::written_end);
                let ends = Ends {
                    streams: streams.collect(),
                };
                self.replace_own_document(ENDS, &ends);
            }
            self.write_summary();
            for state in &mut self.streams {
                state.file = None;
            }
            self.lock = None;
        }
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.summary),
        }
    }

    fn write_summary(&mut self) {
        let mut summary = self.summary;
        if !self.has_checksums() {
            // Older versions do not write it.
            summary.times = None;
        }
        self.replace_own_document("summary", &summary);
    }

    /// Writes a document of the recording itself. An error is kept for [`TraceWriter::finish`].
    fn replace_own_document<T: Serialize>(&mut self, name: &str, document: &T) {
        let json = self.sealed(serde_json::to_vec(document).unwrap_or_default());
        let replaced = self
            .paths
            .replace_document(name, |out| out.write_all(&json));
        let file = self.paths.document(name);
        let _ = self.account(replaced.map_err(|cause| cannot_replace(&file, &cause)), 0);
    }

    /// The totals of the written packets.
    #[must_use]
    pub const fn summary(&self) -> TraceSummary {
        self.summary
    }

    /// Elements and missed elements that could not be written.
    #[must_use]
    pub const fn unrecorded(&self) -> u64 {
        self.summary.unrecorded
    }

    /// The first error, which [`TraceWriter::finish`] will return.
    #[must_use]
    pub const fn error(&self) -> Option<&WriteError> {
        self.error.as_ref()
    }

    fn account(
        &mut self,
        result: Result<(), WriteError>,
        unrecorded: u64,
    ) -> Result<(), WriteError> {
        self.account_of(result, unrecorded)
    }

    fn account_of<T>(
        &mut self,
        result: Result<T, WriteError>,
        unrecorded: u64,
    ) -> Result<T, WriteError> {
        if let Err(error) = &result {
            self.summary.unrecorded = self.summary.unrecorded.saturating_add(unrecorded);
            self.error.get_or_insert_with(|| error.clone());
        }
        result
    }

    fn alive(&self) -> Result<(), WriteError> {
        if let Some(error) = &self.dead {
            return Err(error.clone());
        }
        if self.finished {
            return Err(WriteError::Finished {
                dir: self.paths.dir().to_path_buf(),
            });
        }
        Ok(())
    }

    /// The state of a stream, new or known.
    fn state(&mut self, descriptor: &StreamDescriptor) -> Result<usize, WriteError> {
        if let Some(&index) = self.index.get(&descriptor.id) {
            let known = &self.streams[index].descriptor;
            // A comparison of whole descriptions costs more than recording an element, and callers
            // pass the same one every time.
            let same = Arc::ptr_eq(&known.schema, &descriptor.schema) || **known == *descriptor;
            return if same {
                Ok(index)
            } else {
                Err(conflict(descriptor))
            };
        }
        self.alive()?;
        let class = match self.classes.iter().position(|c| c.fits(descriptor)) {
            Some(class) => class,
            None => {
                self.classes.push(StreamClass::of(descriptor));
                self.classes.len() - 1
            }
        };
        let class = u32::try_from(class).unwrap_or(u32::MAX);
        let index = self.streams.len();
        let layout = PacketLayout::new(class, descriptor, self.catalogue.format);
        let descriptor = Arc::new(descriptor.clone());
        self.index.insert(descriptor.id, index);
        self.catalogue.streams.push(CatalogueEntry {
            class,
            descriptor: Arc::clone(&descriptor),
        });
        self.streams.push(StreamState::new(descriptor, layout));
        self.unpublished = true;
        Ok(index)
    }

    fn try_element(&mut self, element: &ElementView<'_>) -> Result<(), WriteError> {
        let id = element.stream.id;
        let slot = id.as_raw() as usize % RECENT;
        let index = match self.recent[slot] {
            Some((recent, index))
                if recent == id
                    && Arc::ptr_eq(
                        &self.streams[index].descriptor.schema,
                        &element.stream.schema,
                    ) =>
            {
                index
            }
            _ => self.state(element.stream)?,
        };
        self.recent[slot] = Some((id, index));
        self.alive()?;
        let state = &mut self.streams[index];
        let record_bytes = TIME_BYTES + element.payload.len();
        if record_bytes != state.layout.record_bytes() {
            return Err(WriteError::Payload {
                stream: id,
                label: state.descriptor.label(),
                found: element.payload.len(),
                expected: state.layout.record_bytes() - TIME_BYTES,
            });
        }
        if element.time < state.end || element.sequence < state.next_sequence {
            return Err(WriteError::Order {
                stream: id,
                label: state.descriptor.label(),
                sequence: element.sequence,
                time: element.time,
                last_sequence: state.next_sequence.saturating_sub(1),
                last: state.end,
            });
        }
        if element.time > LATEST || element.sequence == u64::MAX {
            return Err(WriteError::Range {
                stream: id,
                label: state.descriptor.label(),
                sequence: element.sequence,
                time: element.time,
            });
        }
        if self.pending_bytes > MOST_PENDING_BYTES {
            self.relieve()?;
        }
        // The sequences of a packet are consecutive, so only the first one is on disk.
        let state = &self.streams[index];
        if state.records > 0 {
            let padding = state.padding(record_bytes);
            if padding.is_some() || element.sequence != state.next_sequence {
                self.flush(index, padding.unwrap_or(0))?;
            }
        }
        let state = &mut self.streams[index];
        if state.records == 0 {
            state.begin_packet(element, self.packet_bytes);
            self.oldest_pending = self.oldest_pending.min(element.time);
        }
        let more = state.reserve(record_bytes, self.packet_bytes);
        let time = element.time.as_monotonic_ns().to_ne_bytes();
        state.packet.extend_from_slice(&time);
        state.packet.extend_from_slice(element.payload);
        state.records += 1;
        state.next_sequence = element.sequence + 1;
        state.end = element.time;
        self.pending_bytes += more;
        Ok(())
    }

    /// Writes packets until half of their memory is free: those that have more than half of their
    /// share.
    #[cold]
    fn relieve(&mut self) -> Result<(), WriteError> {
        let bytes: usize = self.streams.iter().map(|it| it.packet.capacity()).sum();
        let share = bytes / self.streams.len().max(1) / 2;
        for index in 0..self.streams.len() {
            if self.streams[index].packet.capacity() > share {
                self.flush(index, 0)?;
                self.streams[index].packet = Vec::new();
            }
        }
        self.pending_bytes = self.streams.iter().map(|it| it.packet.capacity()).sum();
        Ok(())
    }

    fn accept_gap(&mut self, stream: &StreamDescriptor, gap: &Gap) -> Result<usize, WriteError> {
        let index = self.state(stream)?;
        self.alive()?;
        self.flush(index, 0)?;
        self.streams[index].add_gap(&Gap {
            stream: stream.id,
            ..*gap
        });
        Ok(index)
    }

    fn write_accepted_gap(&mut self, index: usize) -> Result<(), WriteError> {
        let state = &self.streams[index];
        let bytes = state.bytes_of_gaps() + state.bytes_of_begin();
        if self.is_within_rate(state.end, bytes) {
            self.write_gaps(index)?;
        }
        Ok(())
    }

    /// Whether gaps of this size are written now.
    fn is_within_rate(&mut self, now: Timestamp, bytes: u64) -> bool {
        let thinning = self.thinning.as_mut();
        thinning.is_none_or(|thinning| thinning.admit_gaps(now, bytes))
    }

    fn try_advance(&mut self, now: Timestamp) -> Result<(), WriteError> {
        self.alive()?;
        if self.unpublished {
            self.publish()?;
        }
        if self.thinning.as_ref().is_some_and(|it| it.is_pass_due(now)) {
            self.write_due_gaps(now)?;
        }
        if self.oldest_pending.plus(self.pending) > now {
            return Ok(());
        }
        let mut oldest = Timestamp::MAX;
        let mut waiting = 0;
        for index in 0..self.streams.len() {
            let state = &self.streams[index];
            if state.records == 0 {
                continue;
            }
            let (begin, bytes) = (state.begin, state.bytes_of_flush());
            let is_due = begin.plus(self.pending) <= now;
            let waits = is_due && self.waits_for_rate(index, now);
            if is_due && !waits {
                self.flush(index, 0)?;
            } else {
                waiting += if waits { bytes } else { 0 };
                oldest = oldest.min(begin);
            }
        }
        self.oldest_pending = oldest;
        if let Some(thinning) = &mut self.thinning {
            thinning.reserve(waiting);
        }
        Ok(())
    }

    /// Whether a packet that is never left out stays in memory, because the rate is used up. If it
    /// is full, it is written in any case.
    fn waits_for_rate(&mut self, index: usize, now: Timestamp) -> bool {
        let state = &self.streams[index];
        let bytes = state.bytes_of_flush();
        let thinning = self.thinning.as_mut().filter(|_| state.is_about_lives);
        thinning.is_some_and(|thinning| !thinning.permits(now, bytes))
    }

    /// Writes gaps that have been pending for long, while the rate permits it.
    fn write_due_gaps(&mut self, now: Timestamp) -> Result<(), WriteError> {
        let is_pending = |state: &StreamState| !state.gaps.is_empty();
        let bytes = self.streams.iter().map(StreamState::bytes_of_gaps).sum();
        for index in 0..self.streams.len() {
            if !is_pending(&self.streams[index]) {
                continue;
            }
            let bytes = self.streams[index].bytes_of_gaps();
            if !self.is_within_rate(now, bytes) {
                // The rest is written by one of the next advances.
                return Ok(());
            }
            self.write_gaps(index)?;
        }
        if let Some(thinning) = &mut self.thinning {
            thinning.end_pass(now, bytes);
        }
        Ok(())
    }

    fn try_finish(&mut self) -> Result<(), WriteError> {
        self.alive()?;
        for index in 0..self.streams.len() {
            self.flush(index, 0)?;
            // What was left out is counted in any case.
            self.write_gaps(index)?;
        }
        if self.unpublished {
            self.publish()?;
        }
        Ok(())
    }

    /// Updates the catalogue and the metadata, in this order: a reader that finds a stream's file
    /// also finds everything that it needs to read it.
    fn publish(&mut self) -> Result<(), WriteError> {
        let catalogue = self.sealed(self.catalogue.to_json());
        let metadata = render(
            &self.catalogue.identity,
            &self.classes,
            self.catalogue.format,
        );
        if let Some(ring) = &mut self.ring {
            let bytes = (catalogue.len() + metadata.len()) as u64;
            ring.set_described(bytes);
            self.make_room(bytes, Content::Document)?;
        }
        let catalogue = self.paths.replace_catalogue(&catalogue);
        catalogue.map_err(|cause| cannot_replace(&self.paths.streams_json(), &cause))?;
        let metadata = self.paths.replace_metadata(metadata.as_bytes());
        metadata.map_err(|cause| cannot_replace(&self.paths.metadata(), &cause))?;
        self.unpublished = false;
        self.count_others();
        Ok(())
    }

    const fn has_checksums(&self) -> bool {
        self.catalogue.has_checksums()
    }

    /// A document with its checksum.
    fn sealed(&self, mut json: Vec<u8>) -> Vec<u8> {
        if self.has_checksums() {
            seal_document(&mut json);
        }
        json
    }

    /// Writes a stream's pending records as one packet, with `padding` bytes of padding, or leaves
    /// them out to keep the rate.
    fn flush(&mut self, index: usize, padding: usize) -> Result<(), WriteError> {
        let state = &mut self.streams[index];
        if state.records == 0 {
            return Ok(());
        }
        let bytes = (state.packet.len() + padding + state.layout.trailer_bytes()) as u64;
        if let Some(thinning) = &mut self.thinning {
            let with_gaps = state.bytes_of_flush() + padding as u64;
            if state.is_about_lives {
                thinning.charge(state.end, with_gaps);
            } else if !thinning.admit(index, state.end, with_gaps) {
                state.leave_out();
                return Ok(());
            }
        }
        let result = self.write_records(index, padding, bytes);
        self.note_result(result)
    }

    /// Writes the gaps of a stream that are pending.
    fn write_gaps(&mut self, index: usize) -> Result<(), WriteError> {
        if self.streams[index].gaps.is_empty() {
            return Ok(());
        }
        let result = self
            .make_room(self.streams[index].bytes_of_gaps(), Content::Packet)
            .and_then(|()| self.write_pending_gaps(index));
        self.note_result(result)
    }

    /// If a packet cannot be written, the recording is over for all streams: a disk that is full
    /// for one is full for all, and a trace in which streams end at different times would look like
    /// a quiet program.
    fn note_result(&mut self, result: Result<(), WriteError>) -> Result<(), WriteError> {
        if let Err(error) = &result {
            self.dead = Some(error.clone());
            for state in &mut self.streams {
                let lost = state.take_pending();
                self.summary.unrecorded = self.summary.unrecorded.saturating_add(lost);
            }
        }
        result
    }

    fn write_records(
        &mut self,
        index: usize,
        padding: usize,
        bytes: u64,
    ) -> Result<(), WriteError> {
        self.make_room(bytes + self.streams[index].bytes_of_gaps(), Content::Packet)?;
        self.write_pending_gaps(index)?;
        let (begin, first_sequence) = {
            let state = &self.streams[index];
            (state.begin, state.first_sequence)
        };
        let mut file = self.open_file(index, begin, first_sequence)?;
        let state = &mut self.streams[index];
        let head = PacketHead {
            number: state.next_number,
            first_sequence: state.first_sequence,
            gap: None,
            begin: state.begin,
            end: state.end,
            discarded: state.discarded,
        };
        let mut packet = std::mem::take(&mut state.packet);
        // The packet may have been meant for another file, or another place.
        let padding = if state.is_where_begun() { padding } else { 0 };
        state.layout.seal(&mut packet, &head, padding);
        let result = self.append(index, &mut file, &packet, &head);
        let state = &mut self.streams[index];
        // Kept for its memory, if it was not much too large: the next record clears it.
        if packet.len() < packet.capacity() / 4 {
            let before = packet.capacity();
            packet.shrink_to(2 * packet.len());
            self.pending_bytes = (self.pending_bytes + packet.capacity()).saturating_sub(before);
        }
        state.packet = packet;
        result?;
        state.file = Some(file);
        self.summary.events += state.records;
        state.records = 0;
        Ok(())
    }

    /// Writes the pending gaps of a stream, for which there is room.
    fn write_pending_gaps(&mut self, index: usize) -> Result<(), WriteError> {
        while let Some(gap) = self.streams[index].next_gap() {
            let state = &self.streams[index];
            let (begin, end) = match &self.ring {
                Some(_) => state.times_of_gap_in_ring(&gap),
                None => state.times_of_gap(&gap),
            };
            let mut file = self.open_file(index, begin, gap.first)?;
            let state = &self.streams[index];
            let head = PacketHead {
                number: state.next_number,
                first_sequence: gap.first,
                gap: Some(gap),
                begin,
                end,
                discarded: discarded_after(state.discarded, gap.missed),
            };
            let packet = state.layout.empty(&head);
            self.append(index, &mut file, &packet, &head)?;
            let state = &mut self.streams[index];
            state.file = Some(file);
            state.drop_gap();
            self.summary.discarded = self.summary.discarded.saturating_add(gap.missed);
            if gap.cause == GapCause::Disk {
                self.summary.left_out = self.summary.left_out.saturating_add(gap.missed);
            }
        }
        Ok(())
    }

    /// Makes room for this number of bytes: begins a new part, and removes the oldest ones.
    fn make_room(&mut self, bytes: u64, content: Content) -> Result<(), WriteError> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        let streams = &mut self.streams;
        if content == Content::Packet && ring.is_part_full() {
            let begun = ring.begin_part(&self.paths, streams);
            begun.map_err(|cause| cannot_change(&self.paths, &cause))?;
            self.open_files = 0;
        }
        while !ring.has_room(bytes, streams.len(), content) {
            if !ring.has_closed_parts() {
                if !ring.has_packets() {
                    return Err(WriteError::NoRoom {
                        max_bytes: ring.max_bytes(),
                        needed: ring.needed(bytes, streams.len()),
                        streams: streams.len(),
                    });
                }
                let begun = ring.begin_part(&self.paths, streams);
                begun.map_err(|cause| cannot_change(&self.paths, &cause))?;
                self.open_files = 0;
            }
            let removed = ring.remove_oldest(&self.paths, streams);
            let removed = removed.map_err(|cause| cannot_change(&self.paths, &cause))?;
            let summary = &mut self.summary;
            summary.events = summary.events.saturating_sub(removed.elements);
            summary.bytes = summary.bytes.saturating_sub(removed.bytes);
            summary.discarded = summary.discarded.saturating_add(removed.elements);
            summary.left_out = summary.left_out.saturating_add(removed.elements);
        }
        Ok(())
    }

    /// Counts the files that are not streams again, if the size is limited.
    fn count_others(&mut self) {
        if let Some(ring) = &mut self.ring {
            // If it fails, the next removal counts them, and reports its error.
            let _ = ring.count_others(&self.paths);
        }
    }

    /// Appends a packet. If that fails, the file is cut back to its last whole packet.
    fn append(
        &mut self,
        index: usize,
        file: &mut File,
        packet: &[u8],
        head: &PacketHead,
    ) -> Result<(), WriteError> {
        let written = file.write_all(packet);
        let state = &mut self.streams[index];
        if let Err(cause) = written {
            // A part of the packet may be there. If it cannot be cut off now, it is a torn tail,
            // which readers skip.
            let _ = file.set_len(state.file_bytes);
            let offset = state.file_bytes;
            return Err(self.failed(index, offset, &cause));
        }
        state.discarded = head.discarded;
        state.note_written(head, packet.len());
        if let Some(ring) = &mut self.ring {
            // If it fails, the size is the best estimate.
            let after = size_on_disk(file).unwrap_or(state.file_bytes);
            ring.note_growth(std::mem::replace(&mut state.part.allocated, after), after);
        }
        self.summary.bytes += packet.len() as u64;
        let end = head
            .gap
            .map_or(head.end, |gap| head.end.max(gap.to.min(LATEST)));
        self.note_times(head.begin, end);
        Ok(())
    }

    fn note_times(&mut self, begin: Timestamp, end: Timestamp) {
        let (first, last) = self.summary.times.unwrap_or((begin, end));
        self.summary.times = Some((first.min(begin), last.max(end)));
    }

    fn part(&self) -> Part {
        self.ring.as_ref().map_or(Part::Number(0), Ring::part)
    }

    fn failed(&self, index: usize, offset: u64, cause: &io::Error) -> WriteError {
        WriteError::Write {
            file: self
                .paths
                .stream(self.streams[index].descriptor.id, self.part()),
            offset,
            cause: cause.to_string(),
            recorded: self.summary.events,
        }
    }

    /// Opens the file of a stream: a new one, which begins with an empty packet, or the one that it
    /// has written to before. If too many are open, all others are closed: each is opened again
    /// when its stream has a packet.
    fn open_file(
        &mut self,
        index: usize,
        begin: Timestamp,
        first_sequence: u64,
    ) -> Result<File, WriteError> {
        if self.unpublished {
            self.publish()?;
        }
        if let Some(file) = self.streams[index].file.take() {
            return Ok(file);
        }
        let part = self.part();
        let path = self.paths.stream(self.streams[index].descriptor.id, part);
        let is_new = self.streams[index].file_bytes == 0;
        if self.open_files >= MOST_OPEN_FILES {
            for state in &mut self.streams {
                state.file = None;
            }
            self.open_files = 0;
        }
        let name = stream_name(self.streams[index].descriptor.id, part);
        let opened = match is_new {
            true => self.paths.trace().new_file(&name),
            false => self.paths.trace().file_to_change(&name),
        };
        self.open_files += 1;
        let state = &mut self.streams[index];
        if !is_new {
            let offset = state.file_bytes;
            return opened.map_err(|cause| self.failed(index, offset, &cause));
        }
        let mut file = opened.map_err(|cause| create_error(path.clone(), &cause))?;
        // CTF readers count discarded events from packet to packet, so a gap at the start needs a
        // packet before it.
        let has_checksum = state.layout.has_checksum();
        let time = match self.ring {
            Some(_) => state.time_of_begin_in_ring(begin),
            None => begin,
        };
        let head = PacketHead {
            number: state.next_number,
            first_sequence: if has_checksum { first_sequence } else { 0 },
            gap: None,
            begin: time,
            end: time,
            discarded: state.discarded,
        };
        let first = state.layout.empty(&head);
        if let Err(cause) = file.write_all(&first) {
            let _ = self.paths.trace().remove_file(&name);
            return Err(self.failed(index, 0, &cause));
        }
        state.note_begun(&head, first.len());
        self.note_times(time, time);
        self.summary.bytes += first.len() as u64;
        Ok(file)
    }
}

/// What room is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Packet,
    /// It may take the place that packets leave to documents.
    Document,
}

/// Bytes of the checksum that is added to a document, at most.
const CHECKSUM_MEMBER_BYTES: u64 = 64;

/// Counts bytes.
struct ByteCount(u64);

impl Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn conflict(descriptor: &StreamDescriptor) -> WriteError {
    WriteError::Conflict {
        stream: descriptor.id,
        label: descriptor.label(),
    }
}

fn cannot_change(paths: &TracePaths, cause: &io::Error) -> WriteError {
    cannot_replace(paths.trace().path(), cause)
}

fn cannot_replace(file: &Path, cause: &io::Error) -> WriteError {
    WriteError::Replace {
        file: file.to_path_buf(),
        cause: cause.to_string(),
    }
}

fn create_error(path: PathBuf, cause: &io::Error) -> WriteError {
    WriteError::Create {
        path,
        cause: cause.to_string(),
    }
}

/// Recording is an analysis: errors are kept for [`TraceWriter::finish`].
impl Analysis for TraceWriter {
    fn element(&mut self, element: &ElementView<'_>) {
        let _ = Self::element(self, element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let _ = Self::gap(self, stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        let _ = Self::advance(self, now);
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        // A caller that needs the errors calls `finish`.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{
        ElementView, FieldKind, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::TraceWriter;
    use crate::catalogue::TraceIdentity;
    use crate::reader::TraceReader;

    fn stream() -> StreamDescriptor {
        let schema = TypeSchema::builder("s").field("value", FieldKind::U64, "");
        StreamDescriptor {
            capacity: 16,
            ..StreamDescriptor::new(
                StreamId::from_raw(1),
                Origin::Sampler,
                "s",
                schema.build().unwrap(),
            )
        }
    }

    #[test]
    fn memory_of_a_stream_is_bounded_by_its_packets() {
        let folder = tempfile::tempdir().unwrap();
        let writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
        let mut writer = writer
            .with_packet_bytes(100_000)
            .with_pending(Nanos::from_ms(1));
        let stream = stream();
        let mut sequence = 0;
        let mut write = |writer: &mut TraceWriter, count: u64, distance: u64| {
            let mut most = 0;
            for _ in 0..count {
                let now = writer
                    .streams
                    .first()
                    .map_or(0, |it| it.end.as_monotonic_ns())
                    + distance;
                let time = Timestamp::from_monotonic_ns(now);
                writer.advance(time).unwrap();
                let element = ElementView {
                    stream: &stream,
                    sequence,
                    time,
                    payload: &now.to_ne_bytes(),
                };
                sequence += 1;
                writer.element(&element).unwrap();
                most = most.max(writer.streams[0].packet.capacity());
            }
            most
        };
        // Fast: packets are full before the time has passed.
        let most = write(&mut writer, 20_000, 10);
        assert!((90_000..=100_000).contains(&most), "{most}");
        // Slow: some ten elements per packet.
        write(&mut writer, 40, 100_000);
        let most = write(&mut writer, 40, 100_000);
        assert!(most < 1_000, "{most}");
        // One element alone may be larger than a packet.
        let mut writer = writer.with_packet_bytes(1);
        write(&mut writer, 9, 10);
        assert_eq!(writer.finish().unwrap().events, sequence);
    }

    /// Writes elements of many streams by turns; returns the most memory that their packets took.
    fn write_by_turns(writer: &mut TraceWriter, streams: u32, elements: u64) -> usize {
        let streams: Vec<_> = (1..=streams)
            .map(|id| StreamDescriptor {
                id: StreamId::from_raw(id),
                ..stream()
            })
            .collect();
        let mut most = 0;
        for sequence in 0..elements {
            for stream in &streams {
                let element = ElementView {
                    stream,
                    sequence,
                    time: Timestamp::from_monotonic_ns(sequence),
                    payload: &sequence.to_ne_bytes(),
                };
                writer.element(&element).unwrap();
            }
            let packets = writer.streams.iter().map(|it| it.packet.capacity());
            most = most.max(packets.sum());
        }
        most
    }

    #[test]
    fn packets_of_many_streams_take_bounded_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
        // Without advances, only the limit keeps packets from growing to 256 KiB each.
        let most = write_by_turns(&mut writer, 500, 5_000);
        // One element of each stream may come before the limit is checked.
        assert!(most < super::MOST_PENDING_BYTES + (1 << 20), "{most}");
        assert_eq!(writer.finish().unwrap().events, 500 * 5_000);
        let reader = TraceReader::open(folder.path()).unwrap();
        assert_eq!(reader.events(), 500 * 5_000);
        assert_eq!(reader.replay(&mut []).corrupt, []);
    }

    #[test]
    fn files_of_many_streams_are_not_all_open() {
        let folder = tempfile::tempdir().unwrap();
        let writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
        let mut writer = writer.with_packet_bytes(1_000);
        write_by_turns(&mut writer, 1_000, 200);
        let open = writer.streams.iter().filter(|it| it.file.is_some()).count();
        assert!((1..=super::MOST_OPEN_FILES).contains(&open), "{open}");
        assert_eq!(writer.finish().unwrap().events, 200_000);
        let reader = TraceReader::open(folder.path()).unwrap();
        assert_eq!((reader.events(), reader.streams().len()), (200_000, 1_000));
        let replayed = reader.replay(&mut []);
        assert_eq!((replayed.events, replayed.corrupt), (200_000, Vec::new()));
    }
}
