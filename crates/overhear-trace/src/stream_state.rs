// SPDX-License-Identifier: MIT OR Apache-2.0
//! The writer's state of one stream: its file, and the packet that is being filled.

use std::fs::File;
use std::sync::Arc;

use overhear_event::{ElementView, Gap, GapCause, Nanos, StreamDescriptor, Timestamp};

use crate::ends::StreamEnd;
use crate::lives::is_about_lives;
use crate::packet::{PacketHead, PacketLayout, BLOCK, LATEST};

/// The packets of a stream in its present file.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartAccount {
    /// Elements in them.
    pub(crate) records: u64,
    /// Missed elements in their gaps, in the order of [`GapCause::ALL`].
    pub(crate) missed: [u64; GapCause::ALL.len()],
    /// Sequence and begin of the first element or gap.
    pub(crate) first: Option<(u64, Timestamp)>,
    /// Size of the file, and its size on the disk.
    pub(crate) bytes: u64,
    pub(crate) allocated: u64,
}

/// The writer's state of one stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) layout: PacketLayout,
    /// Whether its elements are never left out: without them, those of others have no names.
    pub(crate) is_about_lives: bool,
    /// `None` before the first packet, and whenever too many files are open.
    pub(crate) file: Option<File>,
    /// Size of the present file; 0 before its first packet.
    pub(crate) file_bytes: u64,
    /// The content of the present file.
    pub(crate) part: PartAccount,
    /// The packet that is being filled: room for its head, then records. Empty before the first
    /// record.
    pub(crate) packet: Vec<u8>,
    pub(crate) records: u64,
    /// Its maximum size in bytes, and whether a block of the file ends after it.
    room: usize,
    ends_with_block: bool,
    /// Size that the file must have before it, if it ends with a block.
    begun_at: u64,
    pub(crate) first_sequence: u64,
    pub(crate) begin: Timestamp,
    /// The end of the last record or gap, also while it is pending.
    pub(crate) end: Timestamp,
    /// The least sequence that the next element may have.
    pub(crate) next_sequence: u64,
    pub(crate) discarded: u64,
    /// Gaps after the last packet on disk, at most one of each cause.
    pub(crate) gaps: Vec<Gap>,
    /// Number of the next packet. Each file begins with an empty one.
    pub(crate) next_number: u64,
    /// Sequence of the first element or missed element; `None` before there is one.
    pub(crate) begin_sequence: Option<u64>,
    /// Sequence after the last element or missed element on disk.
    pub(crate) end_sequence: u64,
    /// End of the last packet on disk.
    pub(crate) end_on_disk: Timestamp,
}

impl StreamState {
    /// State of a stream without items.
    pub(crate) fn new(descriptor: Arc<StreamDescriptor>, layout: PacketLayout) -> Self {
        Self {
            is_about_lives: is_about_lives(&descriptor),
            descriptor,
            layout,
            file: None,
            file_bytes: 0,
            part: PartAccount::default(),
            packet: Vec::new(),
            records: 0,
            room: 0,
            ends_with_block: false,
            begun_at: 0,
            first_sequence: 0,
            begin: Timestamp::ZERO,
            end: Timestamp::ZERO,
            next_sequence: 0,
            discarded: 0,
            gaps: Vec::new(),
            next_number: 0,
            begin_sequence: None,
            end_sequence: 0,
            end_on_disk: Timestamp::ZERO,
        }
    }

    /// Notes that a packet with this head is on disk, with `bytes` bytes.
    pub(crate) fn note_written(&mut self, head: &PacketHead, bytes: usize) {
        // A packet without a gap has the pending records.
        let count = head.gap.map_or(self.records, |gap| gap.missed);
        match head.gap {
            None => self.part.records += count,
            Some(gap) => {
                let missed = &mut self.part.missed[gap.cause.number() as usize - 1];
                *missed = missed.saturating_add(count);
            }
        }
        let first = (head.first_sequence, head.begin);
        self.part.first.get_or_insert(first);
        let after = head.first_sequence.saturating_add(count);
        self.begin_sequence.get_or_insert(head.first_sequence);
        self.end_sequence = self.end_sequence.max(after);
        self.end_on_disk = head.end;
        self.next_number += 1;
        self.file_bytes += bytes as u64;
    }

    /// Ends the present file; returns its account.
    pub(crate) fn take_part(&mut self) -> PartAccount {
        self.part.bytes = std::mem::take(&mut self.file_bytes);
        std::mem::take(&mut self.part)
    }

    /// Notes that a new file begins with this empty packet.
    pub(crate) fn note_begun(&mut self, head: &PacketHead, bytes: usize) {
        self.file_bytes = bytes as u64;
        self.next_number = head.number + 1;
        self.end_on_disk = head.end;
    }

    /// Bytes of the empty packet that is written before the next one, if that begins a file.
    pub(crate) const fn bytes_of_begin(&self) -> u64 {
        match self.file_bytes {
            0 => self.layout.empty_bytes(),
            _ => 0,
        }
    }

    /// Bytes that a flush writes, without padding.
    pub(crate) fn bytes_of_flush(&self) -> u64 {
        let packet = (self.packet.len() + self.layout.trailer_bytes()) as u64;
        packet + self.bytes_of_gaps() + self.bytes_of_begin()
    }

    /// Bytes of the pending gaps.
    pub(crate) fn bytes_of_gaps(&self) -> u64 {
        self.gaps.len() as u64 * self.layout.empty_bytes()
    }

    /// Leaves out the pending records: they become a gap.
    pub(crate) fn leave_out(&mut self) {
        let missed = std::mem::take(&mut self.records);
        self.add_gap(&Gap {
            stream: self.descriptor.id,
            first: self.first_sequence,
            missed,
            from: match self.next_number {
                0 => self.begin,
                _ => self.end_on_disk,
            },
            to: self.end,
            cause: GapCause::Disk,
        });
    }

    /// Adds a gap after everything that was received. Gaps of one cause are one gap, if no packet
    /// was written between them.
    pub(crate) fn add_gap(&mut self, gap: &Gap) {
        let begin = match self.next_number {
            0 if self.gaps.is_empty() => gap.from.min(gap.to),
            _ => gap.from.max(self.end),
        };
        self.end = gap.to.max(begin).min(LATEST);
        match self.gaps.iter_mut().find(|it| it.cause == gap.cause) {
            None => self.gaps.push(*gap),
            Some(pending) => {
                pending.missed = pending.missed.saturating_add(gap.missed);
                pending.from = pending.from.min(gap.from);
                pending.to = pending.to.max(gap.to);
            }
        }
    }

    /// Begin and end of the packet of a gap. The packets of a stream must not overlap, whatever the
    /// gap contains: of two gaps at the same place the second one has no duration. The gap's own
    /// times are in the trailer.
    pub(crate) fn times_of_gap(&self, gap: &Gap) -> (Timestamp, Timestamp) {
        let begin = match self.next_number {
            0 => gap.from.min(gap.to),
            _ => gap.from.max(self.end_on_disk),
        };
        let begin = begin.min(LATEST);
        (begin, gap.to.min(LATEST).max(begin))
    }

    /// The same for a stream of several files. babeltrace2 sorts their packets by begin, and
    /// reverses those with the same begin. So a gap begins after the packet before it, and ends
    /// before the packet after it.
    pub(crate) fn times_of_gap_in_ring(&self, gap: &Gap) -> (Timestamp, Timestamp) {
        let (begin, end) = self.times_of_gap(gap);
        if self.next_number == 0 {
            return (begin, end);
        }
        let begin = begin.max(self.end_on_disk.plus(Nanos::from_ns(1)));
        let end = before(end);
        match begin <= end {
            true => (begin, end),
            false => (self.end_on_disk, self.end_on_disk),
        }
    }

    /// Time of the empty packet at the begin of a file, if the stream has several.
    pub(crate) fn time_of_begin_in_ring(&self, next: Timestamp) -> Timestamp {
        match self.next_number {
            0 => before(next),
            _ => self.end_on_disk,
        }
    }

    /// The pending gap that is written next.
    pub(crate) fn next_gap(&self) -> Option<Gap> {
        self.gaps.first().copied()
    }

    /// Drops the gap that was written. The others follow it: several gaps of one cause became one,
    /// so their sequences would overlap.
    pub(crate) fn drop_gap(&mut self) {
        let written = self.gaps.remove(0);
        let after = written.first.saturating_add(written.missed);
        if let Some(next) = self.gaps.first_mut() {
            next.first = after;
        }
    }

    /// Forgets everything that is pending; returns the number of elements.
    pub(crate) fn take_pending(&mut self) -> u64 {
        let missed = self.gaps.drain(..).map(|gap| gap.missed);
        missed.fold(std::mem::take(&mut self.records), u64::saturating_add)
    }

    /// The end of the stream on disk; `None` if it had no packets.
    pub(crate) fn written_end(&self) -> Option<StreamEnd> {
        (self.next_number > 0).then(|| StreamEnd {
            stream: self.descriptor.id,
            packets: self.next_number,
            first_sequence: self.begin_sequence.unwrap_or(0),
            end_sequence: self.end_sequence,
            discarded: self.discarded,
            end: self.end_on_disk,
        })
    }

    /// Begins a packet with a record of this element. If packets may consist of whole blocks, they
    /// end where the size of the file is a multiple of the maximum size of a packet: so bytes that
    /// are written together are together in memory, and are mapped and unmapped together.
    pub(crate) fn begin_packet(&mut self, element: &ElementView<'_>, packet_bytes: usize) {
        self.packet.clear();
        self.packet.resize(self.layout.head_bytes(), 0);
        self.first_sequence = element.sequence;
        self.begin = element.time;
        (self.room, self.ends_with_block) = (packet_bytes, false);
        let empty = (self.layout.head_bytes() + self.layout.trailer_bytes()) as u64;
        self.begun_at = match self.file_bytes {
            // It begins with an empty packet.
            0 => empty,
            bytes => bytes,
        };
        if packet_bytes > 0 && packet_bytes.is_multiple_of(BLOCK) {
            let empty = self.layout.head_bytes() + self.layout.trailer_bytes();
            let begun = (self.begun_at % packet_bytes as u64) as usize;
            let rest = packet_bytes - begun;
            self.ends_with_block = rest >= empty + self.layout.record_bytes();
            // If no record fits there any more, a later packet will end with a block.
            self.room = match self.ends_with_block {
                true => rest,
                false => packet_bytes.min(rest + packet_bytes / 2),
            };
        }
    }

    /// Whether the packet is still to be written where it would end with a block.
    pub(crate) const fn is_where_begun(&self) -> bool {
        self.begun_at == self.file_bytes
    }

    /// If there is no room for another record: number of free bytes after the last one.
    #[inline]
    pub(crate) fn padding(&self, record_bytes: usize) -> Option<usize> {
        match self
            .room
            .checked_sub(self.packet.len() + self.layout.trailer_bytes())
        {
            Some(free) if free >= record_bytes => None,
            Some(free) if self.ends_with_block => Some(free),
            _ => Some(0),
        }
    }

    /// Reserves memory for a record and the bytes after the last one. It doubles the memory, so
    /// that few records need more, but not beyond the maximum size of a packet. Returns the number
    /// of additional bytes.
    #[inline]
    pub(crate) fn reserve(&mut self, record_bytes: usize, packet_bytes: usize) -> usize {
        let needed = self.packet.len() + record_bytes + self.layout.trailer_bytes();
        let room = self.packet.capacity();
        if needed > room {
            let wanted = (2 * room).min(packet_bytes).max(needed);
            self.packet.reserve_exact(wanted - self.packet.len());
        }
        self.packet.capacity() - room
    }
}

/// The time before this one.
const fn before(time: Timestamp) -> Timestamp {
    Timestamp::from_monotonic_ns(time.as_monotonic_ns().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::StreamState;
    use crate::format::FORMAT;
    use crate::packet::{PacketHead, PacketLayout};

    #[test]
    fn memory_of_a_packet_is_bounded_by_its_size() {
        const BYTES: usize = 8_192;
        let time = Timestamp::ZERO;
        for payload_bytes in 1..4_000 {
            let schema = TypeSchema::builder("t").field("text", FieldKind::Text(payload_bytes), "");
            let descriptor = StreamDescriptor {
                id: StreamId::from_raw(1),
                origin: Origin::Sampler,
                sensor: "a".to_owned(),
                instance: String::new(),
                lane: None,
                schema: Arc::new(schema.build().unwrap()),
                rate: None,
                capacity: 8,
            };
            let layout = PacketLayout::new(1, &descriptor, FORMAT);
            let (record, payload) = (layout.record_bytes(), vec![1; usize::from(payload_bytes)]);
            let element = ElementView {
                stream: &descriptor,
                sequence: 0,
                time,
                payload: &payload,
            };
            let mut state = StreamState::new(Arc::new(descriptor.clone()), layout);
            state.begin_packet(&element, BYTES);
            let padding = loop {
                state.reserve(record, BYTES);
                state.packet.resize(state.packet.len() + record, 1);
                if let Some(padding) = state.padding(record) {
                    break padding;
                }
            };
            assert!(padding < record);
            let head = PacketHead {
                number: 1,
                first_sequence: 0,
                gap: None,
                begin: time,
                end: time,
                discarded: 0,
            };
            state.layout.seal(&mut state.packet, &head, padding);
            assert_eq!(state.packet.len(), state.room, "{payload_bytes}");
            let memory = state.packet.capacity();
            assert!(memory <= BYTES, "{memory} for {payload_bytes}");
        }
    }
}
