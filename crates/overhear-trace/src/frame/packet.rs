// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets of a channel: consecutive elements of one stream.
//!
//! | byte | field | meaning |
//! |---|---|---|
//! | 0 | stream u32 | the stream |
//! | 4 | count u32 | number of records, at least 1 |
//! | 8 | first sequence u64 | of the first record |
//! | 16 | first time u64 | ns, of the first record |
//! | 24 | last time u64 | ns, of the last record |
//! | 32 | record bytes u32 | of each record, or 0: records have sizes of their own |
//! | 36 | reserved u32 | 0 |
//! | 40 | records | `{u64 time, payload}`, or `{u64 time, u32 payload bytes, payload}` |
//!
//! A payload of the second form may be shorter than the schema requires: the rest of it is zero. It
//! may be longer, too; readers that have only the schema ignore the excess.

use overhear_event::{StreamDescriptor, StreamId, Timestamp};

use crate::packet::{LATEST, TIME_BYTES};

/// Bytes of a packet before its records.
pub const PACKET_HEAD_BYTES: usize = 40;
/// Bytes of a record with a size of its own, without its payload.
pub const SIZED_RECORD_BYTES: usize = TIME_BYTES + 4;

/// One record of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRecord<'a> {
    /// Position of the element in its stream.
    pub sequence: u64,
    /// When it was committed.
    pub time: Timestamp,
    /// The payload. In packets with records of their own sizes it may be shorter or longer than the
    /// stream's schema requires.
    pub payload: &'a [u8],
}

/// Collects records for [`FrameWriter::packet`](super::FrameWriter::packet). Its memory is reused.
#[derive(Clone, Debug)]
pub struct PacketBuilder {
    stream: StreamId,
    /// 0 if records have sizes of their own.
    record_bytes: u32,
    count: u32,
    first_sequence: u64,
    first: Timestamp,
    last: Timestamp,
    records: Vec<u8>,
}

impl PacketBuilder {
    fn new(stream: StreamId, record_bytes: u32) -> Self {
        Self {
            stream,
            record_bytes,
            count: 0,
            first_sequence: 0,
            first: Timestamp::ZERO,
            last: Timestamp::ZERO,
            records: Vec::new(),
        }
    }

    /// For records with the size of the stream's schema.
    #[must_use]
    pub fn fixed(stream: &StreamDescriptor) -> Self {
        Self::new(stream.id, TIME_BYTES as u32 + stream.schema.size())
    }

    /// For records with sizes of their own.
    #[must_use]
    pub fn sized(stream: &StreamDescriptor) -> Self {
        Self::new(stream.id, 0)
    }

    /// Appends a record. Sequences must be consecutive, and times must not decrease: an earlier
    /// time is replaced by that of the record before.
    ///
    /// # Panics
    /// If the packet is for records of another size.
    pub fn push(&mut self, sequence: u64, time: Timestamp, payload: &[u8]) {
        self.push_parts(sequence, time, payload, &[]);
    }

    /// As [`PacketBuilder::push`], with a payload in two parts.
    ///
    /// # Panics
    /// If the packet is for records of another size.
    #[inline]
    pub fn push_parts(&mut self, sequence: u64, time: Timestamp, payload: &[u8], rest: &[u8]) {
        let bytes = payload.len() + rest.len();
        let time = time.max(self.last).min(LATEST);
        if self.count == 0 {
            self.first_sequence = sequence;
            self.first = time;
        }
        self.records
            .extend_from_slice(&time.as_monotonic_ns().to_ne_bytes());
        match self.record_bytes {
            0 => self
                .records
                .extend_from_slice(&(bytes as u32).to_ne_bytes()),
            fixed => assert_eq!(fixed as usize, TIME_BYTES + bytes, "the size of a record"),
        }
        self.records.extend_from_slice(payload);
        self.records.extend_from_slice(rest);
        self.last = time;
        self.count += 1;
    }

    /// Bytes of the records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.records.len()
    }

    /// Whether it has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of records.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.records.clear();
        self.count = 0;
    }

    pub(super) fn head(&self) -> [u8; PACKET_HEAD_BYTES] {
        let mut head = [0; PACKET_HEAD_BYTES];
        head[..4].copy_from_slice(&self.stream.as_raw().to_le_bytes());
        head[4..8].copy_from_slice(&self.count.to_le_bytes());
        head[8..16].copy_from_slice(&self.first_sequence.to_le_bytes());
        head[16..24].copy_from_slice(&self.first.as_monotonic_ns().to_le_bytes());
        head[24..32].copy_from_slice(&self.last.as_monotonic_ns().to_le_bytes());
        head[32..36].copy_from_slice(&self.record_bytes.to_le_bytes());
        head
    }

    pub(super) fn records(&self) -> &[u8] {
        &self.records
    }
}

/// A packet. Holding one proves that its records are whole, that their times do not decrease, and
/// that their number is right. It does not prove that payloads are valid or that the stream exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFrame<'a> {
    /// The stream.
    pub stream: StreamId,
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// Number of records.
    pub count: u32,
    /// Time of the first record.
    pub first: Timestamp,
    /// Time of the last record.
    pub last: Timestamp,
    /// Bytes of a record with its time; 0 if records have sizes of their own.
    record_bytes: u32,
    records: &'a [u8],
}

impl<'a> PacketFrame<'a> {
    pub(super) fn parse(body_untrusted: &'a [u8]) -> Result<Self, &'static str> {
        let (head, records) = body_untrusted
            .split_at_checked(PACKET_HEAD_BYTES)
            .ok_or("a packet is shorter than its head")?;
        let u32_at = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 4]));
        let u64_at = |at: usize| u64::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 8]));
        let time_at = |at: usize| Timestamp::from_monotonic_ns(u64_at(at));
        let packet = Self {
            stream: StreamId::from_raw(u32_at(0)),
            count: u32_at(4),
            first_sequence: u64_at(8),
            first: time_at(16),
            last: time_at(24),
            record_bytes: u32_at(32),
            records,
        };
        packet.check()?;
        Ok(packet)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.count == 0 || self.last > LATEST {
            return Err("a packet has no records or a time out of range");
        }
        if self
            .first_sequence
            .checked_add(u64::from(self.count))
            .is_none()
        {
            return Err("a packet has a sequence out of range");
        }
        let (mut count, mut first, mut last) = (0_u64, None, Timestamp::ZERO);
        let mut records = self.records();
        for record in &mut records {
            if record.time < last {
                return Err("the times of a packet decrease");
            }
            last = record.time;
            first.get_or_insert(last);
            count += 1;
        }
        let is_whole = records.rest.is_empty() && count == u64::from(self.count);
        if !is_whole || first != Some(self.first) || last != self.last {
            return Err("the records of a packet do not fit its head");
        }
        Ok(())
    }

    /// The records, in their order.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records {
            sequence: self.first_sequence,
            record_bytes: self.record_bytes as usize,
            rest: self.records,
        }
    }

    /// The bytes of the records, for a copy that outlives the frame.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.records
    }

    /// The layout of the records, to read such a copy.
    #[must_use]
    pub const fn form(&self) -> RecordForm {
        RecordForm {
            record_bytes: self.record_bytes,
        }
    }
}

/// The layout of the records of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordForm {
    record_bytes: u32,
}

impl RecordForm {
    /// Time and payload of the record at a position in the bytes of records, and the position after
    /// it.
    #[inline]
    #[must_use]
    pub fn record_at(self, bytes: &[u8], at: usize) -> Option<(Timestamp, &[u8], usize)> {
        let mut records = Records {
            sequence: 0,
            record_bytes: self.record_bytes as usize,
            rest: bytes.get(at..)?,
        };
        let record = records.next()?;
        Some((
            record.time,
            record.payload,
            bytes.len() - records.rest.len(),
        ))
    }
}

/// The records of a packet.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    sequence: u64,
    record_bytes: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = FrameRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<FrameRecord<'a>> {
        let (time, rest) = self.rest.split_first_chunk()?;
        let (payload_bytes, rest) = match self.record_bytes {
            0 => {
                let (bytes, rest) = rest.split_first_chunk()?;
                (u32::from_ne_bytes(*bytes) as usize, rest)
            }
            fixed => (fixed.checked_sub(TIME_BYTES)?, rest),
        };
        let (payload, rest) = rest.split_at_checked(payload_bytes)?;
        self.rest = rest;
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        Some(FrameRecord {
            sequence,
            time: Timestamp::from_monotonic_ns(u64::from_ne_bytes(*time)),
            payload,
        })
    }
}
