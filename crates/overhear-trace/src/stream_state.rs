// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the writer knows of one stream: its file, and the packet that is being filled.

use std::fs::File;
use std::sync::Arc;

use overhear_event::{ElementView, StreamDescriptor, Timestamp};

use crate::packet::{PacketLayout, TRAILER_BYTES};

/// What files are mapped by.
const PAGE: usize = 4096;

/// What the writer knows of one stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) descriptor: Arc<StreamDescriptor>,
    pub(crate) layout: PacketLayout,
    pub(crate) file: Option<File>,
    pub(crate) file_bytes: u64,
    /// A packet in the making: room for its head, then records. Empty before the first record.
    pub(crate) packet: Vec<u8>,
    pub(crate) records: u64,
    /// Bytes that it may have.
    room: usize,
    pub(crate) first_sequence: u64,
    pub(crate) begin: Timestamp,
    /// The end of the last record or gap, also while it is pending.
    pub(crate) end: Timestamp,
    /// The least sequence the next element may have.
    pub(crate) next_sequence: u64,
    pub(crate) discarded: u64,
}

impl StreamState {
    /// Of a stream from which nothing has come.
    pub(crate) const fn new(descriptor: Arc<StreamDescriptor>, layout: PacketLayout) -> Self {
        Self {
            descriptor,
            layout,
            file: None,
            file_bytes: 0,
            packet: Vec::new(),
            records: 0,
            room: 0,
            first_sequence: 0,
            begin: Timestamp::ZERO,
            end: Timestamp::ZERO,
            next_sequence: 0,
            discarded: 0,
        }
    }

    /// Begins a packet, with a record of this element. Packets that may have whole pages end where the file has as many
    /// as they may have: so what is written at once lies together in memory, and is mapped and unmapped together.
    pub(crate) fn begin_packet(&mut self, element: &ElementView<'_>, packet_bytes: usize) {
        self.packet.clear();
        self.packet.resize(self.layout.head_bytes(), 0);
        self.first_sequence = element.sequence;
        self.begin = element.time;
        self.room = packet_bytes;
        if packet_bytes > 0 && packet_bytes.is_multiple_of(PAGE) {
            let empty = self.layout.head_bytes() + TRAILER_BYTES;
            let begun = match self.file {
                Some(_) => (self.file_bytes % packet_bytes as u64) as usize,
                // By an empty packet.
                None => empty,
            };
            let room = packet_bytes.saturating_sub(begun);
            if room >= empty + self.layout.record_bytes() {
                self.room = room;
            }
        }
    }

    /// If there is no room for another record: how many bytes are to be left free behind the last one.
    #[inline]
    pub(crate) fn padding(&self, record_bytes: usize, packet_bytes: usize) -> Option<usize> {
        match self.room.checked_sub(self.packet.len() + TRAILER_BYTES) {
            Some(free) if free >= record_bytes => None,
            Some(free) if packet_bytes.is_multiple_of(PAGE) => Some(free),
            _ => Some(0),
        }
    }

    /// Makes room for a record and what follows the last one. Doubles it, so that few records need more room, but not
    /// beyond what a packet may have.
    #[inline]
    pub(crate) fn reserve(&mut self, record_bytes: usize, packet_bytes: usize) {
        let needed = self.packet.len() + record_bytes + TRAILER_BYTES;
        let room = self.packet.capacity();
        if needed > room {
            let wanted = (2 * room).min(packet_bytes).max(needed);
            self.packet.reserve_exact(wanted - self.packet.len());
        }
    }
}
