// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of a packet: head, records, trailer.
//!
//! All numbers are in the byte order of the recording machine, and nothing is aligned: TSDL gives
//! every field an alignment of 8 bits, so a record on disk is the bytes of `{u64 time, payload}`
//! and writing one is a copy.
//!
//! | byte | field | part | meaning |
//! |---|---|---|---|
//! | 0 | `magic` u32 | header | 0xC1FC1FC1 |
//! | 4 | `stream_id` u32 | header | the stream *class* |
//! | 8 | `stream_instance_id` u64 | header | the stream |
//! | 16 | `timestamp_begin` u64 | context | ns |
//! | 24 | `timestamp_end` u64 | context | ns |
//! | 32 | `content_size` u64 | context | bits of head and records |
//! | 40 | `packet_size` u64 | context | bits with padding and trailer |
//! | 48 | `events_discarded` u64 | context | missed elements of the stream so far |
//! | 56 | `packet_seq_num` u64 | context | number of the packet in its stream, from 0 |
//! | 64 | `stream` u32 | context | the stream again, for people |
//! | 68 | `cpu_id` u32, or `pid` u32 and `comm` 16 bytes, or nothing | context | by origin |
//! | | records | content | `{u64 time, payload}` each |
//! | | zeros | padding | fewer than a record has bytes, up to where the packet ends with a block of 4096 bytes of the file |
//! | end - 44 | first sequence u64 | trailer | of the first record, or of the first missed element |
//! | end - 36 | missed u64 | trailer | how many elements this gap stands for |
//! | end - 28 | from u64 | trailer | the gap's `from`, ns |
//! | end - 20 | to u64 | trailer | the gap's `to`, ns |
//! | end - 12 | cause u32 | trailer | 0 where the packet is no gap |
//! | end - 8 | record bytes u32 | trailer | 8 + bytes of a payload; never 0 |
//! | end - 4 | checksum u32 | trailer | CRC-32C of all bytes of the packet that precede it |
//!
//! Formats 1 to 3 have no `packet_seq_num`: `stream` is at byte 56. Formats 1 and 2 have no
//! checksum: their trailer has 40 bytes and ends with the bytes of a record.
//!
//! Only our reader reads the trailer. For CTF it is padding, too, between the end of the content
//! and the end of the packet. If its fields were in the context, readers would print them with
//! every single event; if they were in the header, readers would warn of unknown fields.

use overhear_event::{Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp};

use crate::checksum::checksum;
use crate::format::{FIRST_FORMAT_WITH_CHECKSUMS, FIRST_FORMAT_WITH_NUMBERS};

/// Marks the beginning of a CTF packet.
pub(crate) const MAGIC: u32 = 0xC1FC_1FC1;
/// Bytes of [`PacketLayout::signature`]: magic, class and stream.
pub(crate) const SIGNATURE_BYTES: usize = 16;
/// Bytes of the fields up to `events_discarded`, which all formats have.
const COMMON_BYTES: usize = 56;
/// Bytes of the packet's number.
const NUMBER_BYTES: usize = 8;
/// Bytes of the trailer without the checksum.
const POSITION_BYTES: usize = 40;
/// Bytes of the checksum, the last field of a packet.
const CHECKSUM_BYTES: usize = 4;
/// Padding ends where the size of the file is a multiple of this.
pub(crate) const BLOCK: usize = 4096;
/// Bytes of `comm` in the context of a program's stream.
pub(crate) const COMM_BYTES: usize = 16;
/// Bytes of the time before every payload.
pub(crate) const TIME_BYTES: usize = 8;
/// Maximum size of a packet of any writer. A larger size is damage, not a torn tail.
pub(crate) const MAX_PACKET_BYTES: usize = 4 << 20;
/// The latest time that a packet may have. With a wall clock offset below the same bound it stays
/// inside the signed 64 bits that CTF readers compute with (year 2116).
pub(crate) const LATEST: Timestamp = Timestamp::from_monotonic_ns(1 << 62);

/// The fields of the context for the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextKind {
    Program,
    Kernel,
    Sampler,
}

impl ContextKind {
    pub(crate) fn of(origin: &Origin) -> Self {
        match origin {
            Origin::Program(_) => Self::Program,
            Origin::Kernel { .. } => Self::Kernel,
            Origin::Sampler => Self::Sampler,
        }
    }
}

/// The common properties of all packets of one stream.
#[derive(Clone, Debug)]
pub(crate) struct PacketLayout {
    class: u32,
    stream: StreamId,
    record_bytes: usize,
    head_bytes: usize,
    has_checksum: bool,
    has_number: bool,
    /// The end of the context, the same in every packet of the stream.
    origin: Vec<u8>,
}

/// The properties that differ from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketHead {
    /// Position of the packet in its stream, from 0; always 0 in formats without numbers.
    pub(crate) number: u64,
    /// Sequence of the first record, or the gap's `first`.
    pub(crate) first_sequence: u64,
    /// Present in the empty packet that stands for a gap.
    pub(crate) gap: Option<Gap>,
    pub(crate) begin: Timestamp,
    pub(crate) end: Timestamp,
    /// Missed elements of the stream up to and including this packet.
    pub(crate) discarded: u64,
}

/// A checked packet: it lies inside the file, belongs to this stream, and its records are whole.
/// The times and payloads of inner records are not checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) head: PacketHead,
    pub(crate) records: &'a [u8],
    /// Bytes after the records.
    pub(crate) behind: usize,
    /// Size of the packet in the file.
    pub(crate) bytes: usize,
}

/// Reason why no packet could be read at some place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The file ends before the packet does: the writer was killed.
    Torn,
    /// The bytes are not a packet of this stream.
    Corrupt(String),
    /// The packet is whole, but others that precede it in the stream are missing in the file.
    Missing,
}

/// The counter of discarded events after `missed` more. It stops below the largest number, which
/// means "unknown" to babeltrace2 and makes it abort.
pub(crate) fn discarded_after(discarded: u64, missed: u64) -> u64 {
    discarded.saturating_add(missed).min(u64::MAX - 1)
}

pub(crate) const fn cause_to_raw(cause: GapCause) -> u32 {
    match cause {
        GapCause::Overwritten => 1,
        GapCause::Late => 2,
        GapCause::Nested => 3,
        GapCause::Kernel => 4,
        GapCause::Corrupt => 5,
        GapCause::Epoch => 6,
        GapCause::Full => 7,
        GapCause::Inconsistent => 8,
        GapCause::Budget => 9,
        GapCause::Disk => 10,
        GapCause::Unsampled => 11,
    }
}

pub(crate) fn cause_from_raw(raw: u32) -> Option<GapCause> {
    GapCause::ALL
        .into_iter()
        .find(|&cause| cause_to_raw(cause) == raw)
}

/// The numbers of the causes, for the comment in the metadata.
pub(crate) fn cause_numbers() -> impl Iterator<Item = (u32, &'static str)> {
    GapCause::ALL
        .into_iter()
        .map(|cause| (cause_to_raw(cause), cause.name()))
}

impl PacketLayout {
    /// Layout of the packets of a stream in a recording of this format.
    pub(crate) fn new(class: u32, descriptor: &StreamDescriptor, format: u32) -> Self {
        let has_number = format >= FIRST_FORMAT_WITH_NUMBERS;
        let mut origin = descriptor.id.as_raw().to_ne_bytes().to_vec();
        match &descriptor.origin {
            Origin::Program(task) => {
                origin.extend(task.pid.to_ne_bytes());
                let mut comm = [0; COMM_BYTES];
                let mut length = task.comm.len().min(COMM_BYTES);
                while !task.comm.is_char_boundary(length) {
                    length -= 1;
                }
                comm[..length].copy_from_slice(&task.comm.as_bytes()[..length]);
                origin.extend(comm);
            }
            Origin::Kernel { cpu } => origin.extend(cpu.to_ne_bytes()),
            Origin::Sampler => {}
        }
        Self {
            class,
            stream: descriptor.id,
            record_bytes: TIME_BYTES + descriptor.schema.size() as usize,
            head_bytes: COMMON_BYTES + if has_number { NUMBER_BYTES } else { 0 } + origin.len(),
            has_checksum: format >= FIRST_FORMAT_WITH_CHECKSUMS,
            has_number,
            origin,
        }
    }

    /// Bytes of a record with its time.
    pub(crate) const fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Bytes before the first record.
    pub(crate) const fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// The stream.
    pub(crate) const fn stream(&self) -> StreamId {
        self.stream
    }

    /// Bytes after the padding.
    pub(crate) const fn trailer_bytes(&self) -> usize {
        POSITION_BYTES + if self.has_checksum { CHECKSUM_BYTES } else { 0 }
    }

    /// Bytes of an empty packet.
    pub(crate) const fn empty_bytes(&self) -> u64 {
        (self.head_bytes + self.trailer_bytes()) as u64
    }

    /// Whether packets carry a checksum.
    pub(crate) const fn has_checksum(&self) -> bool {
        self.has_checksum
    }

    /// Whether packets are numbered.
    pub(crate) const fn has_number(&self) -> bool {
        self.has_number
    }

    /// First bytes of every packet of the stream, in all formats.
    pub(crate) fn signature(&self) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        signature[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        signature[4..8].copy_from_slice(&self.class.to_ne_bytes());
        signature[8..].copy_from_slice(&u64::from(self.stream.as_raw()).to_ne_bytes());
        signature
    }

    /// Compares the checksum of a whole packet with its bytes.
    pub(crate) fn verify(&self, packet: &[u8]) -> Result<(), Flaw> {
        if !self.has_checksum {
            return Ok(());
        }
        let Some((covered, stored)) = packet.split_last_chunk() else {
            return Err(Flaw::Torn);
        };
        let (stored, computed) = (u32::from_ne_bytes(*stored), checksum(covered));
        if stored == computed {
            return Ok(());
        }
        Err(corrupt(format!(
            "the packet's checksum is {stored:#010x}, but its bytes have {computed:#010x}"
        )))
    }

    /// Completes a packet that has room for the head, and records: fills in the head and appends
    /// `padding` bytes of padding, fewer than a record has, and the trailer.
    pub(crate) fn seal(&self, packet: &mut Vec<u8>, head: &PacketHead, padding: usize) {
        let content_bits = packet.len() as u64 * 8;
        packet.reserve_exact(padding + self.trailer_bytes());
        packet.resize(packet.len() + padding, 0);
        let packet_bits = (packet.len() + self.trailer_bytes()) as u64 * 8;
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            packet[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC.to_ne_bytes());
        put(&self.class.to_ne_bytes());
        put(&u64::from(self.stream.as_raw()).to_ne_bytes());
        put(&head.begin.as_monotonic_ns().to_ne_bytes());
        put(&head.end.as_monotonic_ns().to_ne_bytes());
        put(&content_bits.to_ne_bytes());
        put(&packet_bits.to_ne_bytes());
        put(&head.discarded.to_ne_bytes());
        if self.has_number {
            put(&head.number.to_ne_bytes());
        }
        put(&self.origin);
        let (missed, from, to, cause) = match head.gap {
            Some(gap) => (gap.missed, gap.from, gap.to, cause_to_raw(gap.cause)),
            None => (0, Timestamp::ZERO, Timestamp::ZERO, 0),
        };
        packet.extend(head.first_sequence.to_ne_bytes());
        packet.extend(missed.to_ne_bytes());
        packet.extend(from.as_monotonic_ns().to_ne_bytes());
        packet.extend(to.as_monotonic_ns().to_ne_bytes());
        packet.extend(cause.to_ne_bytes());
        // A payload has at most a page, so the cast cannot cut anything off.
        packet.extend((self.record_bytes as u32).to_ne_bytes());
        if self.has_checksum {
            packet.extend(checksum(packet).to_ne_bytes());
        }
    }

    /// An empty packet.
    pub(crate) fn empty(&self, head: &PacketHead) -> Vec<u8> {
        let mut packet = vec![0; self.head_bytes];
        self.seal(&mut packet, head, 0);
        packet
    }

    /// Checks the packet at the start of `rest_untrusted`, which has the bytes from `offset` to the
    /// end of the file.
    pub(crate) fn parse<'a>(
        &self,
        rest_untrusted: &'a [u8],
        offset: usize,
    ) -> Result<Packet<'a>, Flaw> {
        let Some(head_untrusted) = rest_untrusted.get(..self.head_bytes) else {
            // A cut head still begins with the magic, which garbage does not.
            let magic = MAGIC.to_ne_bytes();
            let length = rest_untrusted.len().min(magic.len());
            return Err(if rest_untrusted[..length] == magic[..length] {
                Flaw::Torn
            } else {
                foreign(rest_untrusted)
            });
        };
        let mut fields = Fields(head_untrusted);
        if fields.u32() != MAGIC {
            return Err(foreign(rest_untrusted));
        }
        let class = fields.u32();
        let stream = fields.u64();
        if class != self.class || stream != u64::from(self.stream.as_raw()) {
            return Err(corrupt(format!(
                "the packet belongs to stream {stream} of class {class}, expected stream {} of class {}",
                self.stream, self.class
            )));
        }
        let begin = fields.time();
        let end = fields.time();
        let content_bits = fields.u64();
        let packet_bits = fields.u64();
        let discarded = fields.u64();
        let number = if self.has_number { fields.u64() } else { 0 };
        if fields.0 != self.origin {
            return Err(corrupt("its context names another origin".to_owned()));
        }
        if begin > end || end > LATEST {
            return Err(corrupt(format!("it lasts from {begin} to {end}")));
        }
        if packet_bits / 8 > MAX_PACKET_BYTES as u64 {
            return Err(corrupt(format!(
                "the packet claims {} bytes, more than any packet has",
                packet_bits / 8
            )));
        }
        let bytes = (packet_bits / 8) as usize;
        let Some(room_bytes) = bytes.checked_sub(self.head_bytes + self.trailer_bytes()) else {
            return Err(corrupt(format!(
                "the packet claims {bytes} bytes, less than an empty one has"
            )));
        };
        let records_bytes = (content_bits / 8).checked_sub(self.head_bytes as u64);
        let records_bytes = records_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let padding = records_bytes.and_then(|records| room_bytes.checked_sub(records));
        let (Some(records_bytes), Some(padding)) = (records_bytes, padding) else {
            return Err(misfit(content_bits, packet_bits));
        };
        if records_bytes % self.record_bytes != 0 {
            return Err(corrupt(format!(
                "{records_bytes} bytes of records are no multiple of the {} that an element has by streams.json",
                self.record_bytes
            )));
        }
        let is_aligned = (offset + bytes).is_multiple_of(BLOCK) && records_bytes > 0;
        let is_padding = padding == 0 || padding < self.record_bytes && is_aligned;
        if packet_bits % 8 != 0 || content_bits % 8 != 0 || !is_padding {
            return Err(misfit(content_bits, packet_bits));
        }
        let Some(packet_untrusted) = rest_untrusted.get(..bytes) else {
            return Err(Flaw::Torn);
        };
        let (content_untrusted, trailer_untrusted) =
            packet_untrusted.split_at(bytes - self.trailer_bytes());
        let records = &content_untrusted[self.head_bytes..][..records_bytes];
        let (first_sequence, gap) = self.parse_trailer(trailer_untrusted, records)?;
        if let Some(last_at) = records.len().checked_sub(self.record_bytes) {
            let first = record_time(records);
            let last = record_time(&records[last_at..]);
            if first != begin || last != end {
                return Err(corrupt(format!(
                    "its records last from {first} to {last}, but its head states {begin} to {end}"
                )));
            }
        }
        Ok(Packet {
            head: PacketHead {
                number,
                first_sequence,
                gap,
                begin,
                end,
                discarded,
            },
            records,
            behind: padding + self.trailer_bytes(),
            bytes,
        })
    }

    fn parse_trailer(
        &self,
        trailer_untrusted: &[u8],
        records: &[u8],
    ) -> Result<(u64, Option<Gap>), Flaw> {
        let mut fields = Fields(trailer_untrusted);
        let first = fields.u64();
        let missed = fields.u64();
        let from = fields.time();
        let to = fields.time();
        let cause = fields.u32();
        let record_bytes = fields.u32();
        if record_bytes as usize != self.record_bytes {
            return Err(corrupt(format!(
                "its records have {record_bytes} bytes, but by the schema in streams.json they have {}",
                self.record_bytes
            )));
        }
        let count = (records.len() / self.record_bytes) as u64;
        if first.checked_add(count).is_none() {
            return Err(corrupt(format!("sequence {first} is out of range")));
        }
        let gap = match (cause, cause_from_raw(cause)) {
            (0, _) => None,
            (_, Some(_)) if count != 0 => {
                return Err(corrupt("a gap with records in it".to_owned()));
            }
            (_, Some(cause)) => Some(Gap {
                stream: self.stream,
                first,
                missed,
                from,
                to,
                cause,
            }),
            (_, None) => return Err(corrupt(format!("unknown cause {cause} of a gap"))),
        };
        Ok((first, gap))
    }
}

/// No packet begins here. If only zeros follow, the machine went down before the data reached the
/// disk: another form of a torn tail.
fn foreign(rest_untrusted: &[u8]) -> Flaw {
    if rest_untrusted.iter().all(|&byte| byte == 0) {
        Flaw::Torn
    } else {
        corrupt("no packet begins here (wrong magic number)".to_owned())
    }
}

fn misfit(content_bits: u64, packet_bits: u64) -> Flaw {
    corrupt(format!(
        "content of {content_bits} bits in a packet of {packet_bits} bits"
    ))
}

fn corrupt(reason: String) -> Flaw {
    Flaw::Corrupt(reason)
}

/// The time of the record at the start of `record`, which has at least [`TIME_BYTES`].
#[inline]
pub(crate) fn record_time(record: &[u8]) -> Timestamp {
    let bytes = record.first_chunk().copied().unwrap_or_default();
    Timestamp::from_monotonic_ns(u64::from_ne_bytes(bytes))
}

/// Reads the numbers of a head one after the other. The head was measured before: running out of
/// bytes is a bug of the layout.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::from_monotonic_ns(self.u64())
    }
}
