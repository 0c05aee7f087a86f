// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scan of a stream's file: which part of it is whole packets, and what ends that part.

use overhear_event::Timestamp;

use crate::packet::{discarded_after, Flaw, Packet, PacketLayout};

/// What a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Length of the part that consists of whole, consistent packets.
    pub(crate) whole_bytes: usize,
    pub(crate) events: u64,
    /// Sum over the gaps.
    pub(crate) discarded: u64,
    /// Times of the first packet's begin and the last one's end.
    pub(crate) times: Option<(Timestamp, Timestamp)>,
    /// What follows the whole part; nothing, if it ends with the file.
    pub(crate) flaw: Option<Flaw>,
}

/// The packets of a file, one after the other, and checked against each other: times, sequences
/// and the discarded counter never go back.
#[derive(Debug)]
pub(crate) struct Packets<'a> {
    layout: &'a PacketLayout,
    bytes_untrusted: &'a [u8],
    offset: usize,
    end: Timestamp,
    next_sequence: u64,
    discarded: u64,
}

impl<'a> Packets<'a> {
    pub(crate) fn new(layout: &'a PacketLayout, bytes_untrusted: &'a [u8]) -> Self {
        Self {
            layout,
            bytes_untrusted,
            offset: 0,
            end: Timestamp::ZERO,
            next_sequence: 0,
            discarded: 0,
        }
    }

    /// Where the next packet begins.
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    /// The next packet; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Packet<'a>>, Flaw> {
        let rest = self.bytes_untrusted.get(self.offset..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let packet = self.layout.parse(rest, self.offset)?;
        let head = &packet.head;
        if head.begin < self.end {
            return Err(Flaw::Corrupt(format!(
                "the packet begins at {}, before the end of the one before it at {}",
                head.begin, self.end
            )));
        }
        let missed = head.gap.map_or(0, |gap| gap.missed);
        if head.discarded != discarded_after(self.discarded, missed) {
            return Err(Flaw::Corrupt(format!(
                "{} discarded events are counted, expected {}",
                head.discarded,
                discarded_after(self.discarded, missed)
            )));
        }
        if !packet.records.is_empty() {
            if head.first_sequence < self.next_sequence {
                return Err(Flaw::Corrupt(format!(
                    "sequence {} comes again",
                    head.first_sequence
                )));
            }
            let count = packet.records.len() / self.layout.record_bytes();
            self.next_sequence = head.first_sequence + count as u64;
        }
        self.end = head.end;
        self.discarded = head.discarded;
        self.offset += packet.bytes;
        Ok(Some(packet))
    }
}

/// Walks over the whole file. It touches the heads and the last record of each packet only.
pub(crate) fn scan(layout: &PacketLayout, bytes_untrusted: &[u8]) -> Scan {
    let mut packets = Packets::new(layout, bytes_untrusted);
    let mut found = Scan {
        whole_bytes: 0,
        events: 0,
        discarded: 0,
        times: None,
        flaw: None,
    };
    loop {
        match packets.next() {
            Ok(Some(packet)) => {
                found.whole_bytes = packets.offset();
                found.events += (packet.records.len() / layout.record_bytes()) as u64;
                found.discarded = packet.head.discarded;
                let begin = found.times.map_or(packet.head.begin, |(begin, _)| begin);
                found.times = Some((begin, packet.head.end));
            }
            Ok(None) => return found,
            Err(flaw) => {
                found.flaw = Some(flaw);
                return found;
            }
        }
    }
}
