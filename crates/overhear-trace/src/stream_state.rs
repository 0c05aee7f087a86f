// SPDX-License-Identifier: MIT OR Apache-2.0
//! The writer's state of one stream: its file, and the packet that is being filled.

use std::fs::File;
use std::sync::Arc;

use overhear_event::{ElementView, StreamDescriptor, Timestamp};

use crate::ends::StreamEnd;
use crate::packet::{PacketHead, PacketLayout, BLOCK};

/// The writer's state of one stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) layout: PacketLayout,
    /// `None` before the first packet, and whenever too many files are open.
    pub(crate) file: Option<File>,
    /// Size of the file; 0 before the first packet.
    pub(crate) file_bytes: u64,
    /// The packet that is being filled: room for its head, then records. Empty before the first
    /// record.
    pub(crate) packet: Vec<u8>,
    pub(crate) records: u64,
    /// Its maximum size in bytes, and whether a block of the file ends after it.
    room: usize,
    ends_with_block: bool,
    pub(crate) first_sequence: u64,
    pub(crate) begin: Timestamp,
    /// The end of the last record or gap, also while it is pending.
    pub(crate) end: Timestamp,
    /// The least sequence that the next element may have.
    pub(crate) next_sequence: u64,
    pub(crate) discarded: u64,
    /// Number of the next packet. Packet 0 is the empty one at the begin of [`StreamState::file`].
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
    pub(crate) const fn new(descriptor: Arc<StreamDescriptor>, layout: PacketLayout) -> Self {
        Self {
            descriptor,
            layout,
            file: None,
            file_bytes: 0,
            packet: Vec::new(),
            records: 0,
            room: 0,
            ends_with_block: false,
            first_sequence: 0,
            begin: Timestamp::ZERO,
            end: Timestamp::ZERO,
            next_sequence: 0,
            discarded: 0,
            next_number: 1,
            begin_sequence: None,
            end_sequence: 0,
            end_on_disk: Timestamp::ZERO,
        }
    }

    /// Notes that a packet with this head is on disk, with `bytes` bytes.
    pub(crate) fn note_written(&mut self, head: &PacketHead, bytes: usize) {
        // A packet without a gap has the pending records.
        let count = head.gap.map_or(self.records, |gap| gap.missed);
        let after = head.first_sequence.saturating_add(count);
        self.begin_sequence.get_or_insert(head.first_sequence);
        self.end_sequence = self.end_sequence.max(after);
        self.end_on_disk = head.end;
        self.next_number += 1;
        self.file_bytes += bytes as u64;
    }

    /// The end of the stream on disk; `None` if it has no file.
    pub(crate) fn written_end(&self) -> Option<StreamEnd> {
        (self.file_bytes > 0).then(|| StreamEnd {
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
        if packet_bytes > 0 && packet_bytes.is_multiple_of(BLOCK) {
            let empty = self.layout.head_bytes() + self.layout.trailer_bytes();
            let begun = match self.file_bytes {
                // It begins with an empty packet.
                0 => empty % packet_bytes,
                bytes => (bytes % packet_bytes as u64) as usize,
            };
            let rest = packet_bytes - begun;
            self.ends_with_block = rest >= empty + self.layout.record_bytes();
            // If no record fits there any more, a later packet will end with a block.
            self.room = match self.ends_with_block {
                true => rest,
                false => packet_bytes.min(rest + packet_bytes / 2),
            };
        }
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
