// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a log.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

use overhear_event::{Gap, GapCause, StreamDescriptor, Timestamp};
use overhear_trace::{
    ChannelHeader, FrameWriter, PacketBuilder, FRAME_OVERHEAD_BYTES, PACKET_HEAD_BYTES,
    SIZED_RECORD_BYTES,
};

use super::documents::{
    descriptor, event_head, event_type, LogDocument, Segments, StatusDocument, CLEAR,
    EVENT_HEAD_BYTES, EVENT_TYPE, LOG, STATUS, STREAM,
};
use super::output::{check, Output};
use super::{FinalStatus, LogError, LogHeader, LogState, CONTENT};
use crate::{EventId, LogFullPolicy, LostEvents, TraceEvent, Truncation, EVENT_NAME_MAX};

/// A packet is written when it has this many bytes of records.
const PACKET_BYTES: usize = 64 << 10;
/// Maximum bytes in memory that could not be written yet. Further events are lost.
const MAX_BACKLOG_BYTES: usize = 8 << 20;
/// Maximum bytes of data of a user event.
const MAX_DATA_BYTES: usize = 1 << 20;
/// Least limit of the data of an event: system events do not depend on max-data-size.
const SYSTEM_DATA_BYTES: usize = 4096;
/// Bytes of a gap's frame.
const GAP_BYTES: u64 = FRAME_OVERHEAD_BYTES as u64 + 40;
/// Bytes of a packet without records.
const PACKET_OVERHEAD: u64 = (FRAME_OVERHEAD_BYTES + PACKET_HEAD_BYTES) as u64;

/// Bytes of the root of a LOOP log.
const ROOT_BYTES: u64 = 4096;
/// A segment of a LOOP log is complete at log-max-size divided by this number.
const SEGMENTS: u64 = 8;
/// Bytes of the begin of a segment, with the names of all event types.
const SEGMENT_HEAD_BYTES: u64 = 40 << 10;
/// Maximum bytes of events of a LOOP log, so that no position in the file overflows.
const MAX_RING_BYTES: u64 = 1 << 60;
/// Bytes at the end of a segment: the status and the end of the log.
const SEGMENT_TAIL_BYTES: u64 = 1024;

/// Bytes of [`EventId::STOP`] that an UNTIL_FULL log keeps free for its last event.
const STOP_BYTES: u64 = event_bytes(size_of::<i32>());

/// Bytes of an event that count for log-max-size.
const fn event_bytes(data_bytes: usize) -> u64 {
    (SIZED_RECORD_BYTES + EVENT_HEAD_BYTES + data_bytes) as u64
}

/// Maximum bytes of data of an event in a log with these attributes.
fn max_data_bytes(header: &LogHeader) -> usize {
    header.attributes.max_data_size.max(SYSTEM_DATA_BYTES)
}

/// The segments of a LOOP log.
#[derive(Debug)]
struct Ring {
    segments: Segments,
    /// Bytes of events at which a segment is complete.
    segment_events: u64,
    /// Maximum bytes of events in complete segments when another one begins. With that one, they
    /// are at most log-max-size.
    max_complete: u64,
    /// Bytes at the end of a segment that are kept free: for an event, a gap, and the log's end.
    reserve: u64,
    /// Bytes of events in the segment that is being written.
    events: u64,
    /// Its index.
    current: u64,
    /// Index and bytes of events of the others, the oldest first.
    complete: VecDeque<(u64, u64)>,
}

impl Ring {
    fn new(header: &LogHeader) -> Self {
        let log_bytes = (header.attributes.log_size as u64).min(MAX_RING_BYTES);
        let segment_events = (log_bytes / SEGMENTS).max(1);
        // A segment can exceed its size by an event, and the oldest one can be that much smaller
        // than the next.
        let events = 2 * event_bytes(header.attributes.data_bytes());
        let max_complete = log_bytes.saturating_sub(segment_events + events);
        let largest = event_bytes(max_data_bytes(header));
        let reserve = largest + PACKET_OVERHEAD + GAP_BYTES + SEGMENT_TAIL_BYTES;
        // Room for packets that are not full; a segment with too many of them is complete earlier.
        let packets = segment_events + segment_events / 4 + PACKET_OVERHEAD;
        let bytes = SEGMENT_HEAD_BYTES + packets + reserve;
        Self {
            segments: Segments {
                first_at: ROOT_BYTES,
                bytes: bytes.next_multiple_of(4096),
                this: None,
            },
            segment_events,
            max_complete,
            reserve,
            events: 0,
            current: 0,
            complete: VecDeque::new(),
        }
    }

    fn begin_of(&self, segment: u64) -> u64 {
        self.segments.first_at + segment * self.segments.bytes
    }

    /// Completes the current segment, and begins another one: that of the oldest events, if there
    /// would be too many. Returns whether events are overwritten.
    fn next_segment(&mut self) -> bool {
        self.complete
            .push_back((self.current, std::mem::take(&mut self.events)));
        let complete: u64 = self.complete.iter().map(|(_, events)| events).sum();
        match self.complete.front().copied() {
            // The segment that was written last stays readable in any case.
            Some((oldest, events)) if complete > self.max_complete && self.complete.len() > 1 => {
                self.complete.pop_front();
                self.current = oldest;
                events > 0
            }
            _ => {
                self.current = self.complete.len() as u64;
                false
            }
        }
    }
}

/// Writes a log. Events are in memory until a packet is full, and written by
/// [`LogWriter::flush`] and [`LogWriter::finish`]; a writer that is dropped leaves a log as if it
/// were killed.
///
/// After an error the log continues: each call first writes what could not be written before.
/// Events that do not fit into memory meanwhile are lost, and counted in the log.
#[derive(Debug)]
pub struct LogWriter {
    output: Output,
    frames: FrameWriter<Vec<u8>>,
    header: LogHeader,
    descriptor: StreamDescriptor,
    packet: PacketBuilder,
    names: Vec<(EventId, Vec<u8>)>,
    /// Sequence of the next event.
    sequence: u64,
    last: Timestamp,
    /// Bytes of events in the log, for UNTIL_FULL.
    events: u64,
    /// Events that a full log refused.
    refused: u64,
    /// `overrun` since the last call that returned it.
    state: LogState,
    /// Whether events were ever overwritten or refused.
    was_overrun: bool,
    /// The `STOP` after the last event of a full log is written.
    is_closed: bool,
    ring: Option<Ring>,
    /// Position and number of the frame with the status that is overwritten in place.
    status_at: Option<(u64, u64)>,
    /// The last error's number, or 0.
    flush_error: i32,
    /// Events that were lost after an error, and the time of the first one.
    unrecorded: Option<(Timestamp, u64)>,
}

impl LogWriter {
    /// Checks that a log with this policy can be written to the descriptor.
    ///
    /// # Errors
    /// `EBADF` if it is not open for writing, `EINVAL` if the policy does not permit its type.
    pub fn check(fd: BorrowedFd<'_>, policy: LogFullPolicy) -> Result<(), LogError> {
        check(fd, policy).map(|_| ())
    }

    /// Begins a log. The content of a file is replaced; with `O_APPEND` the log begins at its end.
    ///
    /// # Errors
    /// Those of [`LogWriter::check`]; `ENOSPC` and others if the first frames cannot be written.
    pub fn create(fd: OwnedFd, header: &LogHeader) -> Result<Self, LogError> {
        let attributes = &header.attributes;
        let policy = attributes.log_full;
        let kind = check(std::os::fd::AsFd::as_fd(&fd), policy)?;
        if attributes.max_data_size > MAX_DATA_BYTES {
            let message = format!(
                "events with {} bytes of data are too large for a log, which takes {MAX_DATA_BYTES}",
                attributes.max_data_size
            );
            return Err(LogError::new(libc::EINVAL, message));
        }
        let descriptor = descriptor(header).map_err(|error| LogError::new(libc::EINVAL, error))?;
        let mut writer = Self {
            output: Output::new(fd, kind)?,
            frames: FrameWriter::new(Vec::new()),
            header: header.clone(),
            packet: PacketBuilder::sized(&descriptor),
            descriptor,
            names: Vec::new(),
            sequence: 0,
            last: Timestamp::ZERO,
            events: 0,
            refused: 0,
            state: LogState::default(),
            was_overrun: false,
            is_closed: false,
            ring: (policy == LogFullPolicy::Loop).then(|| Ring::new(header)),
            status_at: None,
            flush_error: 0,
            unrecorded: None,
        };
        writer.output.truncate()?;
        writer.begin()?;
        Ok(writer)
    }

    /// Names an event type, before its first event.
    ///
    /// # Errors
    /// `EINVAL` if the name has more than 64 bytes; errors of the descriptor.
    pub fn define(&mut self, event: EventId, name: &[u8]) -> Result<(), LogError> {
        if name.len() > EVENT_NAME_MAX {
            let message = format!(
                "the name of an event type has {} bytes; it may have {EVENT_NAME_MAX}",
                name.len()
            );
            return Err(LogError::new(libc::EINVAL, message));
        }
        match self.names.iter_mut().find(|(known, _)| *known == event) {
            Some((_, known)) if known == name => return Ok(()),
            Some((_, known)) => name.clone_into(known),
            None => self.names.push((event, name.to_vec())),
        }
        self.frame(|frames| frames.document(EVENT_TYPE, &event_type(event, name)))
    }

    /// Records an event. If the log is full, it is not recorded; but there is room for one
    /// [`EventId::STOP`] then, the last event.
    ///
    /// # Errors
    /// Errors of the descriptor. The event is kept in memory, and lost only if it does not fit.
    pub fn event(&mut self, event: &TraceEvent<'_>) -> Result<LogState, LogError> {
        let data = &event.data[..event.data.len().min(max_data_bytes(&self.header))];
        let bytes = event_bytes(data.len());
        let limit = self.header.attributes.log_size as u64;
        let is_limited = self.header.attributes.log_full == LogFullPolicy::UntilFull;
        if is_limited {
            let closes = self.state.full && event.event == EventId::STOP && !self.is_closed;
            let kept_free = if closes { 0 } else { STOP_BYTES };
            let end = self.events.saturating_add(bytes + kept_free);
            if end > limit || (self.state.full && !closes) {
                self.refuse();
                return Ok(self.take_state());
            }
            self.is_closed |= closes;
        }
        self.make_room(event.time, 1)?;
        let is_cut = data.len() < event.data.len();
        let truncation = match is_cut {
            true => Truncation::Record,
            false => event.truncation,
        };
        let event = TraceEvent {
            data,
            truncation,
            ..*event
        };
        self.packet
            .push_parts(self.sequence, event.time, &event_head(&event), data);
        self.sequence += 1;
        self.last = self.last.max(event.time);
        self.count(bytes);
        self.write_if_due()?;
        Ok(self.take_state())
    }

    /// Records that events were lost. An unknown number counts as one.
    ///
    /// # Errors
    /// As [`LogWriter::event`].
    pub fn lost(&mut self, loss: LostEvents) -> Result<LogState, LogError> {
        let missed = loss.missed.max(1);
        self.make_room(loss.to, missed)?;
        self.gap(LostEvents { missed, ..loss })?;
        self.write_if_due()?;
        Ok(self.take_state())
    }

    /// Writes everything so far.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EPIPE` and others of the descriptor. Nothing is lost: a later call
    /// continues.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.record_unrecorded()?;
        self.seal()?;
        self.drain()
    }

    /// Removes all events, and keeps the names. Events in a pipe or a socket cannot be removed: a
    /// document `clear` follows them.
    ///
    /// # Errors
    /// Errors of the descriptor.
    pub fn clear(&mut self) -> Result<(), LogError> {
        self.sequence -= u64::from(self.packet.count());
        self.packet.clear();
        (self.events, self.refused) = (0, 0);
        (self.state, self.unrecorded) = (LogState::default(), None);
        (self.was_overrun, self.is_closed) = (false, false);
        if self.output.truncate()? {
            self.frames = FrameWriter::new(Vec::new());
            self.sequence = 0;
            self.ring = self.ring.take().map(|_| Ring::new(&self.header));
            self.begin()
        } else {
            self.frame(|frames| frames.document(CLEAR, b""))?;
            self.drain()
        }
    }

    /// Completes the log.
    ///
    /// # Errors
    /// Errors of the descriptor. In a file that can be overwritten the status is written even if
    /// events cannot be.
    pub fn finish(mut self, status: &FinalStatus) -> Result<(), LogError> {
        let flushed = self.flush();
        let status = FinalStatus {
            flush_error: match status.flush_error {
                0 => self.flush_error,
                error => error,
            },
            log_full: status.log_full || self.state.full,
            log_overrun: status.log_overrun || self.was_overrun,
            ..*status
        };
        let document = StatusDocument::new(&status, true, self.refused, self.sequence);
        self.overwrite_status(document);
        flushed?;
        let end = self.last;
        self.frame(|frames| frames.document(STATUS, &document.to_json()))?;
        self.frame(|frames| frames.end(end))?;
        self.drain()?;
        let end = self.ring.as_ref().map_or(self.output.position(), |ring| {
            ring.begin_of(ring.complete.len() as u64 + 1)
        });
        self.output.leave_at_end(end);
        Ok(())
    }

    /// Appends a frame to those that are still to be written.
    fn frame(
        &mut self,
        encode: impl FnOnce(&mut FrameWriter<Vec<u8>>) -> std::io::Result<()>,
    ) -> Result<(), LogError> {
        // Memory does not fail; sizes are limited before.
        encode(&mut self.frames).map_err(|error| LogError::new(libc::EINVAL, error))
    }

    /// The first frames of the log.
    fn begin(&mut self) -> Result<(), LogError> {
        let segments = self.ring.as_ref().map(|ring| ring.segments);
        self.frame_head(segments)?;
        let at = self.output.position() + self.frames.get_ref().len() as u64;
        self.status_at = self
            .output
            .is_rewritable()
            .then(|| (at, self.frames.next_number()));
        let document = StatusDocument::default();
        self.frame(|frames| frames.document(STATUS, &document.to_json()))?;
        match &self.ring {
            Some(ring) => {
                let begin = ring.begin_of(0);
                self.drain()?;
                self.output.seek(begin);
                self.begin_segment()?;
            }
            None => self.frame_names()?,
        }
        self.drain()
    }

    fn frame_head(&mut self, segments: Option<Segments>) -> Result<(), LogError> {
        let header = ChannelHeader {
            content: CONTENT.to_owned(),
            realtime_offset_ns: self.header.realtime_offset_ns,
        };
        let document = LogDocument::new(&self.header, segments).to_json();
        self.frame(|frames| {
            frames.header(&header)?;
            frames.document(LOG, &document)
        })
    }

    fn frame_names(&mut self) -> Result<(), LogError> {
        let (frames, descriptor) = (&mut self.frames, &self.descriptor);
        let mut result = frames.stream(descriptor);
        for (event, name) in &self.names {
            result = result.and_then(|()| frames.document(EVENT_TYPE, &event_type(*event, name)));
        }
        result.map_err(|error| LogError::new(libc::EINVAL, error))
    }

    /// The first frames of the current segment, in memory.
    fn begin_segment(&mut self) -> Result<(), LogError> {
        let segments = self.ring.as_ref().map(|ring| Segments {
            this: Some(ring.current),
            ..ring.segments
        });
        self.frame_head(segments)?;
        self.frame_names()
    }

    /// Counts bytes of events.
    fn count(&mut self, bytes: u64) {
        self.events = self.events.saturating_add(bytes);
        if let Some(ring) = &mut self.ring {
            ring.events = ring.events.saturating_add(bytes);
        }
    }

    fn refuse(&mut self) {
        self.refused += 1;
        self.note_overrun(true);
        if !self.state.full {
            self.state.full = true;
            self.overwrite_status(self.present_status());
        }
    }

    /// The status of a log that is still being written.
    fn present_status(&self) -> StatusDocument {
        let status = FinalStatus {
            flush_error: self.flush_error,
            log_full: self.state.full,
            log_overrun: self.was_overrun,
            ..FinalStatus::default()
        };
        StatusDocument::new(&status, false, self.refused, 0)
    }

    fn overwrite_status(&mut self, document: StatusDocument) {
        let Some((at, number)) = self.status_at else {
            return;
        };
        let mut frames = FrameWriter::starting_at(Vec::new(), number);
        if frames.document(STATUS, &document.to_json()).is_ok() {
            // An error of the log is reported by the call that writes events.
            let _ = self.output.overwrite(at, frames.get_ref());
        }
    }

    /// Turns the pending records into a packet in memory.
    fn seal(&mut self) -> Result<(), LogError> {
        let packet = self.frames.packet(&mut self.packet);
        packet.map_err(|error| LogError::new(libc::EINVAL, error))
    }

    /// Writes all frames in memory.
    fn drain(&mut self) -> Result<(), LogError> {
        let drained = self.output.drain(self.frames.get_mut());
        if let Err(error) = &drained {
            if self.flush_error != error.errno() {
                self.flush_error = error.errno();
                self.overwrite_status(self.present_status());
            }
        }
        drained
    }

    /// Makes sure that something fits into memory; else it is counted as lost.
    fn make_room(&mut self, time: Timestamp, count: u64) -> Result<(), LogError> {
        let mut made = Ok(());
        if self.frames.get_ref().len() > MAX_BACKLOG_BYTES {
            made = self.drain();
        }
        if made.is_ok() && self.is_segment_complete() {
            made = self.next_segment();
        }
        if made.is_ok() {
            made = self.record_unrecorded();
        }
        if made.is_err() {
            let (_, missed) = self.unrecorded.get_or_insert((time, 0));
            *missed = missed.saturating_add(count);
        }
        made
    }

    /// Records the events that were lost after an error.
    fn record_unrecorded(&mut self) -> Result<(), LogError> {
        match self.unrecorded.take() {
            None => Ok(()),
            Some((time, missed)) => self.gap(LostEvents {
                from: self.last,
                to: time,
                missed,
                cause: GapCause::Full,
            }),
        }
    }

    fn gap(&mut self, loss: LostEvents) -> Result<(), LogError> {
        let LostEvents {
            from,
            to,
            missed,
            cause,
        } = loss;
        self.seal()?;
        let gap = Gap {
            stream: STREAM,
            first: self.sequence,
            missed,
            from,
            to: to.max(from),
            cause,
        };
        self.frame(|frames| frames.gap(&gap))?;
        self.sequence = self.sequence.saturating_add(missed);
        self.last = self.last.max(to);
        self.count(GAP_BYTES);
        Ok(())
    }

    /// Writes a packet that is full, and completes a segment that is.
    fn write_if_due(&mut self) -> Result<(), LogError> {
        if self.packet.bytes() >= PACKET_BYTES {
            self.seal()?;
        }
        if self.is_segment_complete() {
            return self.next_segment();
        }
        match self.packet.is_empty() {
            true => self.drain(),
            false => Ok(()),
        }
    }

    /// Whether the current segment of a LOOP log has all its events, or no space for another large
    /// event. The largest event and the end of the log still fit.
    fn is_segment_complete(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| {
            let pending = self.frames.get_ref().len() + self.packet.bytes();
            let end = self.output.begin_of_pending() + pending as u64 + PACKET_OVERHEAD;
            let used = end - ring.begin_of(ring.current);
            ring.events >= ring.segment_events || used + ring.reserve >= ring.segments.bytes
        })
    }

    /// Continues in another segment. Everything that belongs to the current one must be written
    /// before: until then, nothing is added.
    fn next_segment(&mut self) -> Result<(), LogError> {
        self.seal()?;
        self.drain()?;
        if let Some(ring) = &mut self.ring {
            let is_overrun = ring.next_segment();
            let begin = ring.begin_of(ring.current);
            self.output.seek(begin);
            self.note_overrun(is_overrun);
        }
        self.begin_segment()?;
        self.drain()
    }

    fn note_overrun(&mut self, is_overrun: bool) {
        self.was_overrun |= is_overrun;
        self.state.overrun |= is_overrun;
    }

    /// The state; an overrun is reported once.
    fn take_state(&mut self) -> LogState {
        let state = self.state;
        self.state.overrun = false;
        state
    }
}
