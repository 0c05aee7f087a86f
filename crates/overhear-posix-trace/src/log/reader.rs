// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use overhear_event::{Gap, GapCause, Timestamp};
use overhear_trace::{
    ChannelFrame, Decoded, FrameContent, FrameDecoder, PacketFrame, RecordForm,
    FRAME_OVERHEAD_BYTES,
};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fcntl_getfl, fstat, FileType, OFlags};

use super::documents::{
    parse_event, parse_event_type, LogDocument, Segments, StatusDocument, EVENT_TYPE, LOG, STATUS,
    STREAM,
};
use super::{FinalStatus, LogError, LogHeader, LogItem, CONTENT};
use crate::{EventId, LostEvents};

/// Bytes of a file in which a log must begin. The bytes before it are left out.
const MAX_BYTES_BEFORE_LOG: u64 = 4 << 20;
/// Maximum number of segments that are searched for: a log has about ten.
const MAX_SEGMENTS: u64 = 1 << 10;
/// Bytes of a segment in which its first whole frame is searched for.
const SEGMENT_SEARCH_BYTES: u64 = 1 << 20;

/// Bytes of the header's frame, which precedes the document with the properties.
const HEADER_FRAME_BYTES: u64 = (FRAME_OVERHEAD_BYTES + 16 + CONTENT.len()) as u64;

/// The input of a reader.
#[derive(Debug)]
enum Input {
    /// A regular file, from `at` up to `end`.
    File { file: File, at: u64, end: u64 },
    /// A pipe, socket or other descriptor.
    Channel(File),
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File { file, at, end } => {
                let room = usize::try_from(end.saturating_sub(*at)).unwrap_or(usize::MAX);
                let room = room.min(buffer.len());
                let count = file.read_at(&mut buffer[..room], *at)?;
                *at += count as u64;
                Ok(count)
            }
            Self::Channel(file) => loop {
                match file.read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        poll(&mut [PollFd::new(&*file, PollFlags::IN)], None)?;
                    }
                    result => return result,
                }
            },
        }
    }
}

/// A part of a file whose frames have ascending numbers.
#[derive(Clone, Copy, Debug)]
struct Part {
    begin: u64,
    end: u64,
    /// Its frames have at least this number, and lower ones than those of the next part.
    number: u64,
    end_number: u64,
}

/// The reader's action after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Continue,
    /// Events or losses can be returned.
    Return,
    /// Nothing of this part follows.
    EndPart,
}

/// The content of the frames that were read.
#[derive(Debug, Default)]
struct Contents {
    header: Option<LogHeader>,
    writer: u32,
    segments: Option<Segments>,
    names: Vec<(EventId, Vec<u8>)>,
    status: StatusDocument,
    /// The end of the log was read.
    has_ended: bool,
    /// Numbers that the next frame may have. A higher one than the least shows damage.
    numbers: (u64, u64),
    /// Damaged places so far.
    damaged: u64,
    /// Bytes of no frame came after the last frame.
    has_rest: bool,
    /// The packet that is read: the form and a copy of its records, and the position in them.
    form: Option<RecordForm>,
    records: Vec<u8>,
    at: usize,
    /// Sequence of the next event.
    sequence: u64,
    last: Timestamp,
    losses: VecDeque<LostEvents>,
    has_losses: bool,
    /// Events that a LOOP log has overwritten.
    overwritten: u64,
}

impl Contents {
    fn take(&mut self, frame: &ChannelFrame<'_>) -> Then {
        let (least, end) = self.numbers;
        if !(least..end).contains(&frame.number) {
            // Of an older or newer round of a LOOP log, or of another log in the same file.
            return Then::EndPart;
        }
        self.damaged += u64::from(frame.number > least);
        self.numbers.0 = frame.number + 1;
        self.has_rest = false;
        match &frame.content {
            FrameContent::Document { name, bytes } => self.take_document(name, bytes),
            FrameContent::Packet(packet) if packet.stream == STREAM => self.take_packet(packet),
            FrameContent::Gap(gap) if gap.stream == STREAM => self.take_gap(gap),
            FrameContent::End(time) => {
                self.has_ended = true;
                self.note_missing(self.status.end_sequence, *time);
                return Then::EndPart;
            }
            _ => {}
        }
        match self.form.is_some() || !self.losses.is_empty() {
            true => Then::Return,
            false => Then::Continue,
        }
    }

    fn take_document(&mut self, name: &str, bytes_untrusted: &[u8]) {
        match name {
            LOG => {
                if let Some(document) = LogDocument::parse(bytes_untrusted) {
                    self.header = Some(document.header());
                    (self.writer, self.segments) = (document.writer, document.segments);
                }
            }
            STATUS => {
                if let Some(status) = StatusDocument::parse(bytes_untrusted) {
                    self.status = status;
                }
            }
            EVENT_TYPE => {
                if let Some((event, name)) = parse_event_type(bytes_untrusted) {
                    match self.names.iter_mut().find(|(known, _)| *known == event) {
                        Some((_, known)) => name.clone_into(known),
                        None => self.names.push((event, name.to_vec())),
                    }
                }
            }
            _ => {}
        }
    }

    fn take_packet(&mut self, packet: &PacketFrame<'_>) {
        if packet.first_sequence < self.sequence {
            // Damaged, or repeated.
            return;
        }
        self.note_missing(packet.first_sequence, packet.first);
        self.form = Some(packet.form());
        self.at = 0;
        self.records.clear();
        self.records.extend_from_slice(packet.bytes());
    }

    fn take_gap(&mut self, gap: &Gap) {
        if gap.first < self.sequence {
            return;
        }
        self.note_missing(gap.first, gap.from);
        self.sequence = gap.first.saturating_add(gap.missed);
        self.note_loss(LostEvents {
            from: gap.from.max(self.last),
            to: gap.to.max(self.last),
            missed: gap.missed,
            cause: gap.cause,
        });
    }

    /// Events before this sequence are not in the log.
    fn note_missing(&mut self, sequence: u64, time: Timestamp) {
        let missed = sequence.saturating_sub(self.sequence);
        if missed == 0 {
            return;
        }
        let is_overwritten = self.sequence == 0 && self.segments.is_some();
        let cause = match is_overwritten {
            true => GapCause::Overwritten,
            false => GapCause::Corrupt,
        };
        if is_overwritten {
            self.overwritten = missed;
        }
        self.sequence = sequence;
        let to = time.max(self.last);
        self.note_loss(LostEvents {
            from: match self.last {
                Timestamp::ZERO => to,
                last => last,
            },
            to,
            missed,
            cause,
        });
    }

    fn note_loss(&mut self, loss: LostEvents) {
        self.last = loss.to;
        self.has_losses = true;
        self.losses.push_back(loss);
    }

    /// Skips the events of the packet that was taken.
    fn skip_packet(&mut self) {
        while let Some(form) = self.form {
            match form.record_at(&self.records, self.at) {
                Some((time, _, at)) => {
                    self.at = at;
                    self.sequence += 1;
                    self.last = self.last.max(time);
                }
                None => self.form = None,
            }
        }
        self.losses.clear();
    }

    /// Continues at the begin of the log.
    fn rewind(&mut self) {
        self.form = None;
        self.losses.clear();
        (self.sequence, self.last) = (0, Timestamp::ZERO);
    }
}

/// A record in [`Contents::records`], or a loss.
enum Step {
    Event(Timestamp, std::ops::Range<usize>),
    Lost(LostEvents),
    End,
}

/// Reads a log: a regular file as a whole, other descriptors in sequence. Nothing in it is trusted:
/// damaged parts are left out, and their events are counted as lost.
#[derive(Debug)]
pub struct LogReader {
    input: Input,
    decoder: FrameDecoder,
    contents: Contents,
    header: LogHeader,
    /// The parts of a regular file, in the order of their events.
    parts: Vec<Part>,
    /// Index of the part that is read.
    part: usize,
    is_part_finished: bool,
    /// The first frames of the log are damaged.
    begins_damaged: bool,
    /// Properties of a regular file as a whole.
    survey: Survey,
}

/// Facts about a log as a whole.
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    damaged: u64,
    cut_bytes: u64,
    overwritten: u64,
    has_losses: bool,
    times: Option<(Timestamp, Timestamp)>,
}

impl LogReader {
    /// Opens a log. Of a regular file all frames are checked; on other descriptors the call waits
    /// until the begin of the log has come.
    ///
    /// # Errors
    /// `EBADF` if the descriptor is not open for reading, `EINVAL` if this is no log.
    pub fn open(fd: OwnedFd) -> Result<Self, LogError> {
        let flags = fcntl_getfl(&fd).map_err(|_| {
            let message = "the log's file descriptor is not open";
            LogError::new(libc::EBADF, message)
        })?;
        if flags & OFlags::ACCMODE == OFlags::WRONLY || flags.contains(OFlags::PATH) {
            let message = "the log's file descriptor is not open for reading";
            return Err(LogError::new(libc::EBADF, message));
        }
        let stat = fstat(&fd).map_err(|error| LogError::system("examine", &error.into()))?;
        let file = File::from(fd);
        let input = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Input::File {
                file,
                at: 0,
                end: stat.st_size as u64,
            },
            FileType::Directory => {
                return Err(LogError::new(libc::EINVAL, "a directory is no log"));
            }
            _ => Input::Channel(file),
        };
        let contents = Contents {
            numbers: (0, u64::MAX),
            ..Contents::default()
        };
        let mut reader = Self {
            input,
            decoder: FrameDecoder::default(),
            contents,
            header: LogHeader::default(),
            parts: Vec::new(),
            part: 0,
            is_part_finished: false,
            begins_damaged: false,
            survey: Survey::default(),
        };
        let base = reader.find_begin()?;
        if let Input::File { end, .. } = reader.input {
            reader.find_parts(base, end)?;
            reader.survey()?;
        }
        Ok(reader)
    }

    /// Properties of the log. If they are damaged, the attributes are those of the default.
    #[must_use]
    pub const fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Names of event types: all of a regular file, else those that have come so far.
    #[must_use]
    pub fn names(&self) -> &[(EventId, Vec<u8>)] {
        &self.contents.names
    }

    /// The status of the stream when the log was completed; the last one that was written if it was
    /// not completed.
    #[must_use]
    pub fn status(&self) -> FinalStatus {
        let status = self.contents.status.status();
        let overwritten = self.survey.overwritten.max(self.contents.overwritten);
        FinalStatus {
            overrun: status.overrun || self.survey.has_losses || self.contents.has_losses,
            log_overrun: status.log_overrun || overwritten > 0,
            ..status
        }
    }

    /// Whether the log was completed; on a pipe, whether its end has come.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.contents.status.complete
    }

    /// The process that wrote the log.
    #[must_use]
    pub const fn writer_pid(&self) -> u32 {
        self.contents.writer
    }

    /// Events that the full log refused.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.contents.status.refused
    }

    /// Number of damaged places: of a regular file all, else those so far.
    #[must_use]
    pub const fn damaged(&self) -> u64 {
        match self.input {
            Input::File { .. } => self.survey.damaged,
            Input::Channel(_) => self.contents.damaged,
        }
    }

    /// Bytes of an incomplete frame at the end of the log.
    #[must_use]
    pub fn cut_bytes(&self) -> u64 {
        match self.input {
            Input::File { .. } => self.survey.cut_bytes,
            Input::Channel(_) if self.is_part_finished => self.decoder.cut_bytes() as u64,
            Input::Channel(_) => 0,
        }
    }

    /// Times of the first and the last item of a regular file.
    #[must_use]
    pub const fn times(&self) -> Option<(Timestamp, Timestamp)> {
        self.survey.times
    }

    /// The next event or loss; `None` at the end.
    ///
    /// # Errors
    /// Errors of the descriptor. After `EINTR` the call can be repeated.
    #[allow(clippy::should_implement_trait, reason = "the item borrows the reader")]
    pub fn next(&mut self) -> Result<Option<LogItem<'_>>, LogError> {
        Ok(match self.step()? {
            Step::End => None,
            Step::Event(time, payload) => {
                parse_event(time, &self.contents.records[payload]).map(LogItem::Event)
            }
            Step::Lost(loss) => Some(LogItem::Lost(loss)),
        })
    }

    /// Continues at the oldest event.
    ///
    /// # Errors
    /// `EINVAL` if the log is not in a regular file.
    pub fn rewind(&mut self) -> Result<(), LogError> {
        if self.parts.is_empty() {
            let message = "only a log in a regular file can be rewound";
            return Err(LogError::new(libc::EINVAL, message));
        }
        self.contents.rewind();
        self.start_part(0);
        Ok(())
    }

    #[inline]
    fn step(&mut self) -> Result<Step, LogError> {
        loop {
            let contents = &mut self.contents;
            if let Some(loss) = contents.losses.pop_front() {
                return Ok(Step::Lost(loss));
            }
            if let Some(form) = contents.form {
                let Some((time, payload, at)) = form.record_at(&contents.records, contents.at)
                else {
                    contents.form = None;
                    continue;
                };
                let payload = at - payload.len()..at;
                let is_event = parse_event(time, &contents.records[payload.clone()]).is_some();
                let (before, time) = (contents.last, time.max(contents.last));
                (contents.at, contents.last) = (at, time);
                contents.sequence += 1;
                if is_event {
                    return Ok(Step::Event(time, payload));
                }
                contents.note_loss(LostEvents {
                    from: before,
                    to: time,
                    missed: 1,
                    cause: GapCause::Corrupt,
                });
                continue;
            }
            if !self.next_frame()? {
                return Ok(Step::End);
            }
        }
    }

    /// Reads frames until there are events or losses; false at the end.
    fn next_frame(&mut self) -> Result<bool, LogError> {
        loop {
            if self.is_part_finished {
                if self.part + 1 >= self.parts.len() {
                    return Ok(!self.contents.losses.is_empty());
                }
                self.start_part(self.part + 1);
            }
            match self.decoder.next() {
                Some(Decoded::Frame(frame)) => match self.contents.take(&frame) {
                    Then::Continue => {}
                    Then::Return => return Ok(true),
                    Then::EndPart => self.is_part_finished = true,
                },
                // The sequences of the next packet determine which events are missing.
                Some(Decoded::Damaged(_)) => self.contents.has_rest = true,
                None => self.read()?,
            }
        }
    }

    /// Takes bytes from the input.
    fn read(&mut self) -> Result<(), LogError> {
        if self.decoder.is_finished() {
            self.is_part_finished = true;
            return Ok(());
        }
        match self.decoder.read_from(&mut self.input) {
            Ok(0) => self.decoder.finish(),
            Ok(_) => {}
            Err(error) => return Err(LogError::system("read", &error)),
        }
        Ok(())
    }

    fn start_part(&mut self, index: usize) {
        let part = self.parts[index];
        // Frames are numbered throughout: those that are missing between two parts are damage.
        let number = match index {
            0 => part.number,
            _ => self.contents.numbers.0.min(part.number),
        };
        self.part = index;
        self.is_part_finished = false;
        self.contents.has_rest = false;
        self.contents.numbers = (number, part.end_number);
        self.seek(part.begin, part.end);
    }

    fn seek(&mut self, begin: u64, until: u64) {
        self.decoder.restart_at(begin);
        if let Input::File { at, end, .. } = &mut self.input {
            (*at, *end) = (begin, until);
        }
    }

    /// Finds the begin of the log, and reads its properties. Returns its position in a file.
    fn find_begin(&mut self) -> Result<u64, LogError> {
        let mut begin = None;
        let mut offset_ns = 0;
        while self.contents.header.is_none() {
            match self.decoder.next() {
                Some(Decoded::Frame(frame)) => {
                    let at = frame.offset;
                    match &frame.content {
                        FrameContent::Header(header) if header.content == CONTENT => {
                            begin.get_or_insert((at, frame.number));
                            offset_ns = header.realtime_offset_ns;
                        }
                        // The header before it may be damaged, and another one have been found.
                        FrameContent::Document { name: LOG, .. } => {
                            let header_at = at.saturating_sub(HEADER_FRAME_BYTES);
                            begin = Some((header_at, frame.number.saturating_sub(1)));
                        }
                        // The document with the properties is damaged.
                        FrameContent::Packet(_) | FrameContent::End(_) if begin.is_some() => break,
                        _ if at > MAX_BYTES_BEFORE_LOG => break,
                        _ => {}
                    }
                    if begin.is_some() {
                        let _ = self.contents.take(&frame);
                    }
                }
                Some(Decoded::Damaged(damage)) if damage.offset > MAX_BYTES_BEFORE_LOG => break,
                Some(Decoded::Damaged(_)) => {}
                None => {
                    let is_far = self.decoder.offset() > MAX_BYTES_BEFORE_LOG;
                    if self.decoder.is_finished() || (begin.is_none() && is_far) {
                        break;
                    }
                    self.read()?;
                }
            }
        }
        let (begin, number) =
            begin.ok_or_else(|| LogError::new(libc::EINVAL, "the file is no trace log"))?;
        self.header = self.contents.header.clone().unwrap_or_else(|| LogHeader {
            realtime_offset_ns: offset_ns,
            ..LogHeader::default()
        });
        self.begins_damaged = number > 0;
        Ok(begin)
    }

    /// Finds the parts of a file whose log begins at `base`.
    fn find_parts(&mut self, base: u64, size: u64) -> Result<(), LogError> {
        let Some(segments) = self.contents.segments.filter(|it| it.bytes > 0) else {
            self.parts = vec![Part {
                begin: base,
                end: size,
                number: 0,
                end_number: u64::MAX,
            }];
            return Ok(());
        };
        let place_of = |segment: u64| {
            let after = segment.checked_mul(segments.bytes)?;
            segments.first_at.checked_add(after)
        };
        // The root may be damaged, and this be the begin of a segment.
        let before = segments.this.map_or(Some(0), place_of);
        let base = before.and_then(|before| base.checked_sub(before));
        let base = base.ok_or_else(|| {
            LogError::new(libc::EINVAL, "the places of the log's segments are damaged")
        })?;
        if segments.this.is_none() {
            // The root has the status.
            self.read_root(base, base.saturating_add(segments.first_at).min(size))?;
        }
        for segment in 0..MAX_SEGMENTS {
            let begin = place_of(segment).and_then(|place| base.checked_add(place));
            let Some(begin) = begin.filter(|begin| *begin < size) else {
                break;
            };
            let end = begin.saturating_add(segments.bytes).min(size);
            if let Some(number) = self.first_number(begin, end)? {
                let end_number = u64::MAX;
                self.parts.push(Part {
                    begin,
                    end,
                    number,
                    end_number,
                });
            }
        }
        self.parts.sort_by_key(|part| part.number);
        for index in 1..self.parts.len() {
            self.parts[index - 1].end_number = self.parts[index].number;
        }
        if self.parts.is_empty() {
            self.parts.push(Part {
                begin: base,
                end: size.min(base.saturating_add(segments.first_at)),
                number: 0,
                end_number: u64::MAX,
            });
        }
        Ok(())
    }

    fn read_root(&mut self, begin: u64, end: u64) -> Result<(), LogError> {
        self.seek(begin, end);
        self.contents.numbers = (0, u64::MAX);
        self.contents.damaged = 0;
        self.is_part_finished = false;
        while !self.is_part_finished {
            match self.decoder.next() {
                Some(Decoded::Frame(frame)) => {
                    let _ = self.contents.take(&frame);
                }
                Some(Decoded::Damaged(_)) => {}
                None => self.read()?,
            }
        }
        Ok(())
    }

    /// The number of the first whole frame of a segment.
    fn first_number(&mut self, begin: u64, end: u64) -> Result<Option<u64>, LogError> {
        self.seek(begin, end.min(begin.saturating_add(SEGMENT_SEARCH_BYTES)));
        self.is_part_finished = false;
        while !self.is_part_finished {
            match self.decoder.next() {
                Some(Decoded::Frame(frame)) => return Ok(Some(frame.number)),
                Some(Decoded::Damaged(_)) => {}
                None => self.read()?,
            }
        }
        Ok(None)
    }

    /// Reads all frames of a file once.
    fn survey(&mut self) -> Result<(), LogError> {
        let is_linear = self.contents.segments.is_none();
        // Of a LOOP log, the root has been read.
        let mut damaged = u64::from(self.begins_damaged);
        if !is_linear && !self.begins_damaged {
            damaged += self.contents.damaged;
        }
        self.contents.damaged = 0;
        self.decoder = FrameDecoder::default();
        self.rewind()?;
        let mut first = None;
        let mut cut_bytes = 0;
        while self.next_frame()? {
            let lost_at = self.contents.losses.front().map(|loss| loss.from);
            let read_at = self
                .contents
                .form
                .and_then(|form| form.record_at(&self.contents.records, 0))
                .map(|(time, _, _)| time);
            first = first.or(lost_at).or(read_at);
            self.contents.skip_packet();
        }
        if !self.contents.has_ended {
            cut_bytes = self.decoder.cut_bytes() as u64;
        }
        // The rest of a segment has frames of an older round.
        damaged += self.contents.damaged + u64::from(is_linear && self.contents.has_rest);
        self.survey = Survey {
            damaged,
            cut_bytes,
            overwritten: self.contents.overwritten,
            has_losses: self.contents.has_losses,
            times: first.map(|first| (first, self.contents.last)),
        };
        self.rewind()
    }
}
