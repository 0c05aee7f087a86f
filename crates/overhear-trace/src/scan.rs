// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of a stream's file, one after the other, checked against each other and against the
//! bounds of the recording. Damage costs the packets that contain it: the walk continues at the
//! next whole packet. Packets are numbered, so a removed one is noticed, also at the end of a
//! finished recording.
//!
//! All work is linear in the size of the file. A search for the next packet compares each byte
//! once. Checksums of bytes that turn out to be no packet of the stream are computed up to a budget
//! ([`SPARE_BYTES`], and three times the file); beyond that, the rest of the file is damage.

use memchr::memmem;
use overhear_event::{Gap, GapCause, Timestamp};

use crate::ends::StreamEnd;
use crate::packet::{
    discarded_after, Flaw, Packet, PacketHead, PacketLayout, LATEST, MAX_PACKET_BYTES,
};

/// Bytes for which checksums may turn out wrong in any file, in addition to three times its size.
const SPARE_BYTES: u64 = 64 << 20;

/// Packets up to this size are verified even if only heads are read: gaps and empty packets have no
/// records that would confirm their times.
const SMALL_BYTES: usize = 4096;

/// Bounds for the times of the packets of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// The source of the bounds, as part of a message.
    pub(crate) source: &'static str,
}

impl Bounds {
    /// All times that a packet can have.
    pub(crate) const NONE: Self = Self {
        first: Timestamp::ZERO,
        last: LATEST,
        source: "",
    };

    fn check(&self, head: &PacketHead) -> Result<(), Flaw> {
        let gap_to = head.gap.map_or(Timestamp::ZERO, |gap| gap.to.min(LATEST));
        if head.begin >= self.first && head.end.max(gap_to) <= self.last {
            return Ok(());
        }
        Err(Flaw::Corrupt(format!(
            "the packet lasts from {} to {}, but {} from {} to {}",
            head.begin,
            head.end.max(gap_to),
            self.source,
            self.first,
            self.last
        )))
    }
}

/// Checksums that a walk compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// The checksums of packets of up to [`SMALL_BYTES`].
    Small,
    All,
}

/// A part of a file that is no packet of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Index of the file among those of the stream.
    pub(crate) file: usize,
    /// Begin of the damage in the file, in bytes.
    pub(crate) offset: usize,
    /// Size up to the next packet, or to the end of the file; 0 if packets are missing.
    pub(crate) bytes: usize,
    /// Index of the first damaged packet in the file, counting damaged parts as one packet each.
    pub(crate) packet: u64,
    pub(crate) reason: String,
    /// The file ends in the middle of a packet: its writer was killed.
    pub(crate) is_torn: bool,
    /// End of the last packet that precedes it.
    pub(crate) after: Timestamp,
    /// Its elements as a gap, if their number is known.
    pub(crate) gap: Option<Gap>,
}

/// What precedes the first packet of a walk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Index of the first file among those of the stream.
    pub(crate) file: usize,
    /// Number of packets.
    pub(crate) packets: u64,
    /// Sequence of the next element, if none is missing.
    pub(crate) expected: Option<u64>,
    pub(crate) discarded: u64,
}

/// The packets of the files of a stream. Times, sequences and the discarded counter never go back.
#[derive(Debug)]
pub(crate) struct Packets<'a> {
    layout: &'a PacketLayout,
    /// The bytes of the present file.
    bytes_untrusted: &'a [u8],
    /// The bytes of the next files.
    later_untrusted: std::vec::IntoIter<&'a [u8]>,
    file: usize,
    bounds: Bounds,
    verify: Verify,
    /// The end of the stream, if its recorder has noted it.
    end_noted: Option<StreamEnd>,
    offset: usize,
    /// Number of packets and damaged parts that were passed.
    passed: u64,
    end: Timestamp,
    /// The least sequence of the next record.
    next_sequence: u64,
    /// Sequence of the next element, if none is missing; `None` before the first element or gap.
    expected: Option<u64>,
    discarded: u64,
    /// Number of the next packet, if none is missing.
    next_number: u64,
    /// Bytes of wrong checksums that may still be computed.
    budget: u64,
}

impl<'a> Packets<'a> {
    pub(crate) fn new(
        layout: &'a PacketLayout,
        files_untrusted: Vec<&'a [u8]>,
        bounds: Bounds,
        verify: Verify,
        end_noted: Option<StreamEnd>,
        before: Before,
    ) -> Self {
        let bytes: usize = files_untrusted.iter().map(|bytes| bytes.len()).sum();
        let mut later_untrusted = files_untrusted.into_iter();
        Self {
            layout,
            bytes_untrusted: later_untrusted.next().unwrap_or_default(),
            later_untrusted,
            file: before.file,
            bounds,
            verify,
            end_noted: end_noted.filter(|_| layout.has_number()),
            offset: 0,
            passed: 0,
            end: Timestamp::ZERO,
            next_sequence: 0,
            expected: before.expected,
            discarded: before.discarded,
            next_number: before.packets,
            budget: (bytes as u64).saturating_mul(3).saturating_add(SPARE_BYTES),
        }
    }

    /// Index of the file of the next packet.
    pub(crate) const fn file(&self) -> usize {
        self.file
    }

    /// Begin of the next packet in the file.
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    /// Index of the packet that was read last.
    pub(crate) const fn last_packet(&self) -> u64 {
        self.passed.saturating_sub(1)
    }

    /// The next packet; `None` at the end of the last file.
    pub(crate) fn next(&mut self) -> Result<Option<Packet<'a>>, Damage> {
        while self.offset >= self.bytes_untrusted.len() {
            let Some(bytes_untrusted) = self.later_untrusted.next() else {
                return self.missing_at_end().map_or(Ok(None), Err);
            };
            self.bytes_untrusted = bytes_untrusted;
            (self.offset, self.passed) = (0, 0);
            self.file += 1;
        }
        let (packet, flaw) = match self.parse(self.offset) {
            Err(flaw) => (None, flaw),
            Ok(packet) => match self.check(self.offset, &packet, self.verify) {
                Ok(()) => {
                    self.accept(&packet);
                    return Ok(Some(packet));
                }
                Err(Flaw::Missing) => return Err(self.missing_before(&packet.head)),
                Err(flaw) => (Some(packet), flaw),
            },
        };
        Err(self.skip(packet.as_ref(), flaw))
    }

    fn parse(&self, offset: usize) -> Result<Packet<'a>, Flaw> {
        let rest = self.bytes_untrusted.get(offset..).unwrap_or_default();
        self.layout.parse(rest, offset)
    }

    /// Checks a packet against its checksum, those before it, and the recording.
    fn check(&mut self, offset: usize, packet: &Packet<'_>, verify: Verify) -> Result<(), Flaw> {
        let head = &packet.head;
        // The number of a packet is used only after its checksum was compared.
        let is_next = !self.layout.has_number() || head.number == self.next_number;
        if verify == Verify::All || packet.bytes <= SMALL_BYTES || !is_next {
            self.verify(offset, packet)?;
        }
        self.bounds.check(head)?;
        if head.begin < self.end {
            return Err(Flaw::Corrupt(format!(
                "the packet begins at {}, before the end of the one before it at {}",
                head.begin, self.end
            )));
        }
        if !is_next && head.number < self.next_number {
            return Err(Flaw::Corrupt(format!("packet {} comes again", head.number)));
        }
        if !is_next && self.follows(packet) {
            return Err(Flaw::Missing);
        }
        let missed = head.gap.map_or(0, |gap| gap.missed);
        if head.discarded != discarded_after(self.discarded, missed) {
            return Err(Flaw::Corrupt(format!(
                "{} discarded events are counted, expected {}",
                head.discarded,
                discarded_after(self.discarded, missed)
            )));
        }
        if !packet.records.is_empty() && head.first_sequence < self.next_sequence {
            return Err(Flaw::Corrupt(format!(
                "sequence {} comes again",
                head.first_sequence
            )));
        }
        Ok(())
    }

    fn verify(&mut self, offset: usize, packet: &Packet<'_>) -> Result<(), Flaw> {
        let bytes = &self.bytes_untrusted[offset..offset + packet.bytes];
        let verified = self.layout.verify(bytes);
        if verified.is_err() {
            self.budget = self.budget.saturating_sub(packet.bytes as u64);
        }
        verified
    }

    fn accept(&mut self, packet: &Packet<'_>) {
        let head = &packet.head;
        let count = (packet.records.len() / self.layout.record_bytes()) as u64;
        if count > 0 {
            self.next_sequence = head.first_sequence + count;
            self.expected = Some(self.next_sequence);
        } else if let Some(gap) = head.gap {
            let after = gap.first.saturating_add(gap.missed);
            self.expected = self.expected.max(Some(after));
        } else if self.layout.has_checksum() {
            // The first packet states the sequence of the next element.
            self.expected = self.expected.max(Some(head.first_sequence));
        }
        self.end = head.end;
        self.discarded = head.discarded;
        if self.layout.has_number() {
            self.next_number = head.number.saturating_add(1);
        }
        self.offset += packet.bytes;
        self.passed += 1;
    }

    /// Continues with the next whole packet. `damaged` is the present packet, if it has the form of
    /// one.
    #[cold]
    fn skip(&mut self, damaged: Option<&Packet<'_>>, flaw: Flaw) -> Damage {
        let offset = self.offset;
        let next = self.find(damaged);
        let end = next.map_or(self.bytes_untrusted.len(), |(offset, _)| offset);
        let is_last = self.later_untrusted.as_slice().is_empty();
        let next = next.or_else(|| Some((end, self.first_of_next_file()?)));
        let is_torn = flaw == Flaw::Torn && next.is_none() && is_last;
        let after = self.end;
        let gap = match (is_torn, next) {
            // It counts as missing at the end, if the end is noted.
            (true, _) => None,
            (false, next) => self.lost(damaged, end, next.map(|(_, head)| head)),
        };
        if let Some((_, head)) = next {
            let missed = head.gap.map_or(0, |gap| gap.missed);
            self.discarded = head.discarded.saturating_sub(missed);
            self.next_number = head.number;
        }
        let packet = self.passed;
        if is_torn {
            self.bytes_untrusted = &self.bytes_untrusted[..offset];
        } else {
            self.offset = end;
            self.passed += 1;
        }
        let reason = match flaw {
            Flaw::Corrupt(reason) => reason,
            Flaw::Torn | Flaw::Missing => {
                "the packet claims more bytes than the file has".to_owned()
            }
        };
        let reason = match next {
            None if self.budget == 0 => {
                format!("{reason}; too much of the rest only looks like packets")
            }
            _ => reason,
        };
        Damage {
            file: self.file,
            offset,
            bytes: end - offset,
            packet,
            reason,
            is_torn,
            after,
            gap,
        }
    }

    /// Begin of the next packet that is whole and later in the stream.
    fn find(&mut self, damaged: Option<&Packet<'_>>) -> Option<(usize, PacketHead)> {
        // Most damage leaves the size of the packet unchanged.
        let beyond = damaged.map(|packet| self.offset + packet.bytes);
        if let Some(found) = beyond.and_then(|offset| self.candidate(offset).ok()) {
            return Some(found);
        }
        let signature = self.layout.signature();
        let finder = memmem::Finder::new(&signature);
        let mut from = self.offset + 1;
        while self.budget > 0 {
            let rest = self.bytes_untrusted.get(from..)?;
            let offset = from + finder.find(rest)?;
            match self.candidate(offset) {
                Ok(found) => return Some(found),
                Err(bytes) => from = offset + bytes,
            }
        }
        None
    }

    /// The head of the first packet of the next file, if it is whole and later in the stream.
    fn first_of_next_file(&self) -> Option<PacketHead> {
        let bytes_untrusted = self.later_untrusted.as_slice().first()?;
        let packet = self.layout.parse(bytes_untrusted, 0).ok()?;
        self.layout.verify(&bytes_untrusted[..packet.bytes]).ok()?;
        let is_later = self.follows(&packet) && self.bounds.check(&packet.head).is_ok();
        is_later.then_some(packet.head)
    }

    /// The head of the packet at this place, if it is whole and later in the stream. Otherwise the
    /// number of bytes that contain no other packet.
    fn candidate(&mut self, offset: usize) -> Result<(usize, PacketHead), usize> {
        let packet = self.parse(offset).map_err(|_| 1_usize)?;
        self.verify(offset, &packet).map_err(|_| 1_usize)?;
        let head = packet.head;
        let is_later = self.follows(&packet) && self.bounds.check(&head).is_ok();
        match is_later {
            true => Ok((offset, head)),
            // Without a checksum it may be anything that looks like a head.
            false if !self.layout.has_checksum() => Err(1),
            false => Err(packet.bytes),
        }
    }

    /// Whether a packet is later in the stream than those that were read. Others may be missing
    /// before it.
    fn follows(&self, packet: &Packet<'_>) -> bool {
        let head = &packet.head;
        let missed = head.gap.map_or(0, |gap| gap.missed);
        head.begin >= self.end
            && head.number >= self.next_number
            && head.discarded >= discarded_after(self.discarded, missed)
            && (packet.records.is_empty() || head.first_sequence >= self.next_sequence)
    }

    /// The packets between the last one and this one are not in the file.
    #[cold]
    fn missing_before(&mut self, next: &PacketHead) -> Damage {
        let count = next.number - self.next_number;
        let damage = self.missing(count, next);
        let missed = next.gap.map_or(0, |gap| gap.missed);
        self.discarded = next.discarded.saturating_sub(missed);
        self.next_number = next.number;
        damage
    }

    /// The packets after the last one are not in the file, although the recorder has noted them.
    #[cold]
    fn missing_at_end(&mut self) -> Option<Damage> {
        let (count, end) = self.take_end()?;
        (count > 0).then(|| self.missing(count, &end))
    }

    /// The number of packets that are left up to the noted end, and that end as the head of a
    /// further packet.
    fn take_end(&mut self) -> Option<(u64, PacketHead)> {
        let noted = self.end_noted.take()?;
        let count = noted.packets.checked_sub(self.next_number)?;
        if self.passed == 0 && self.expected.is_none() {
            self.expected = Some(noted.first_sequence);
        }
        let end = noted.end.min(self.bounds.last).max(self.end);
        let head = PacketHead {
            number: noted.packets,
            first_sequence: noted.end_sequence,
            gap: None,
            begin: end,
            end,
            discarded: noted.discarded,
        };
        Some((count, head))
    }

    /// Packets that are not in the file, up to the next one.
    fn missing(&self, count: u64, next: &PacketHead) -> Damage {
        let first = self.next_number;
        let reason = match count {
            1 => format!("packet {first} of the stream is missing"),
            _ => format!(
                "packets {first} to {} of the stream are missing",
                first.saturating_add(count - 1)
            ),
        };
        Damage {
            file: self.file,
            offset: self.offset,
            bytes: 0,
            packet: self.passed,
            reason,
            is_torn: false,
            after: self.end,
            gap: self.lost_before(next, self.most_records(count), 0),
        }
    }

    /// An upper bound of the number of records in `packets` packets.
    fn most_records(&self, packets: u64) -> u64 {
        let most = MAX_PACKET_BYTES / self.layout.record_bytes();
        packets.saturating_mul(most as u64)
    }

    /// The loss between the last packet and the next one, if its size is known.
    fn lost(
        &mut self,
        damaged: Option<&Packet<'_>>,
        end: usize,
        next: Option<PacketHead>,
    ) -> Option<Gap> {
        let record_bytes = self.layout.record_bytes();
        // A packet that ends where the next one begins most likely has the number of records that
        // it states.
        let stated = damaged
            .filter(|packet| self.offset + packet.bytes == end)
            .map(|packet| (packet.records.len() / record_bytes) as u64);
        let Some(next) = next else {
            if !self.later_untrusted.as_slice().is_empty() {
                // The numbers of packets in a later file show what is missing.
                return None;
            }
            if let Some((count, noted)) = self.take_end() {
                return self.lost_before(&noted, self.most_records(count), stated.unwrap_or(0));
            }
            let (first, missed) = (self.expected.unwrap_or(0), stated.unwrap_or(0));
            return self.gap(first, missed, self.end);
        };
        // Sequences may jump without a gap: then the jump is larger than the number of records that
        // fit into the bytes.
        let most = ((end - self.offset) / record_bytes) as u64;
        self.lost_before(&next, most, stated.unwrap_or(0))
    }

    /// The loss before a packet: elements, with the upper bound `most` and the likely number
    /// `stated`, and those in the gaps of the lost part.
    fn lost_before(&self, next: &PacketHead, most: u64, stated: u64) -> Option<Gap> {
        let missed = next.gap.map_or(0, |gap| gap.missed);
        let discarded = next
            .discarded
            .saturating_sub(missed)
            .saturating_sub(self.discarded);
        let most = most.saturating_add(discarded);
        let between = self
            .expected
            .and_then(|expected| next.first_sequence.checked_sub(expected))
            .filter(|between| *between <= most);
        let lost = between.unwrap_or_else(|| stated.saturating_add(discarded));
        let first = next.first_sequence.saturating_sub(lost);
        self.gap(first, lost, next.begin)
    }

    fn gap(&self, first: u64, missed: u64, to: Timestamp) -> Option<Gap> {
        let from = match self.end {
            Timestamp::ZERO => to,
            end => end,
        };
        (missed > 0).then_some(Gap {
            stream: self.layout.stream(),
            first,
            missed,
            from,
            to,
            cause: GapCause::Corrupt,
        })
    }
}

/// Result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Size of the last file without the torn tail.
    pub(crate) whole_bytes: usize,
    pub(crate) events: u64,
    /// Sum over the gaps, and over the damage of known size.
    pub(crate) discarded: u64,
    /// Sum over the gaps of the cause `disk`.
    pub(crate) left_out: u64,
    /// Begin of the first packet with an element or a gap.
    pub(crate) first: Option<Timestamp>,
    /// Times of the first packet's begin and the last one's end.
    pub(crate) times: Option<(Timestamp, Timestamp)>,
    pub(crate) damages: Vec<Damage>,
    /// Number of damaged parts beyond those that are listed.
    pub(crate) further: u64,
}

/// Maximum number of damaged parts of a file that are listed.
pub(crate) const MOST_DAMAGES: usize = 16;

/// Walks over all files. It reads the heads and the last record of each packet, and small
/// packets as a whole.
pub(crate) fn scan(
    layout: &PacketLayout,
    files_untrusted: Vec<&[u8]>,
    bounds: Bounds,
    end_noted: Option<StreamEnd>,
    before: Before,
) -> Scan {
    let whole_bytes = files_untrusted.last().map_or(0, |bytes| bytes.len());
    let verify = Verify::Small;
    let mut packets = Packets::new(layout, files_untrusted, bounds, verify, end_noted, before);
    let mut found = Scan {
        whole_bytes,
        events: 0,
        discarded: 0,
        left_out: 0,
        first: None,
        times: None,
        damages: Vec::new(),
        further: 0,
    };
    loop {
        match packets.next() {
            Ok(Some(packet)) => {
                found.events += (packet.records.len() / layout.record_bytes()) as u64;
                let missed = packet.head.gap.map_or(0, |gap| gap.missed);
                found.discarded = discarded_after(found.discarded, missed);
                if packet
                    .head
                    .gap
                    .is_some_and(|gap| gap.cause == GapCause::Disk)
                {
                    found.left_out = found.left_out.saturating_add(missed);
                }
                if packet.head.gap.is_some() || !packet.records.is_empty() {
                    found.first.get_or_insert(packet.head.begin);
                }
                let begin = found.times.map_or(packet.head.begin, |(begin, _)| begin);
                found.times = Some((begin, packet.head.end));
            }
            Ok(None) => return found,
            Err(damage) => {
                if damage.is_torn {
                    found.whole_bytes = damage.offset;
                }
                let lost = damage.gap.map_or(0, |gap| gap.missed);
                found.discarded = discarded_after(found.discarded, lost);
                if damage.is_torn || found.damages.len() < MOST_DAMAGES {
                    found.damages.push(damage);
                } else {
                    found.further += 1;
                }
            }
        }
    }
}
