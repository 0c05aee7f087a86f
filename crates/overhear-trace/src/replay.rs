// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replay: all streams of a trace in total order.
//!
//! The order is that of a live monitor: (time, stream, sequence). A gap comes right before the
//! first element after it; that is, its key is its `to`.

use std::slice;

use overhear_event::{
    Analysis, CompactKey, ElementView, Gap, GapCause, KeyOrigin, LoserTree, MergeKey, Nanos,
    StreamDescriptor, Timestamp,
};

use crate::map::fetch;
use crate::packet::{record_time, TIME_BYTES};
use crate::reader::{CorruptStream, RecordedStream, TraceReader};
use crate::scan::{Damage, Packets, Verify, MOST_DAMAGES};

/// An advance per element would double the cost of a replay, and analyses must not depend on the
/// number of advances: there is one for each such span of trace time.
const ADVANCE: Nanos = Nanos::from_ms(1);

/// Maximum number of elements in one batch: few enough to stay in the nearest cache.
const BATCH: usize = 128;

/// When a record is read, the memory this many bytes after it is prefetched. The processor cannot
/// predict accesses to alternating streams, and the merge would wait for memory up to a quarter of
/// its time.
const AHEAD: usize = 1024;

/// What a replay delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Elements delivered.
    pub events: u64,
    /// Gaps delivered.
    pub gaps: u64,
    /// Missed elements that these gaps stand for.
    pub discarded: u64,
    /// The last advance.
    pub advanced_to: Timestamp,
    /// Damage in addition to [`TraceReader::corrupt`]. Where the number of elements in it is known,
    /// the replay delivers them as a gap.
    pub corrupt: Vec<CorruptStream>,
}

/// The unread records of a stream's packet: all that each element needs is in one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Records<'a> {
    stream: &'a StreamDescriptor,
    /// The bytes from the next record on; empty if a gap is next, and at the end.
    left: &'a [u8],
    /// Bytes of each payload.
    payload_bytes: u32,
    /// Sequence of the next record.
    sequence: u64,
    /// Merge key of the record after the next one. It is computed early, because the merge waits
    /// for it. It is less than the next record's key in the cases that need more work: the packet
    /// ends, or the time goes back, or too far ahead.
    behind: CompactKey,
}

impl<'a> Records<'a> {
    /// Takes the next record, which has this key, if there is one, and room for it. Returns the key
    /// of the record after it.
    #[inline(always)]
    fn take(
        &mut self,
        key: CompactKey,
        origin: KeyOrigin,
        room: &mut slice::IterMut<'_, ElementView<'a>>,
    ) -> Option<CompactKey> {
        let (stream, sequence, behind) = (self.stream, self.sequence, self.behind);
        let (_, rest) = self.left.split_first_chunk::<TIME_BYTES>()?;
        let (payload, left) = rest.split_at_checked(self.payload_bytes as usize)?;
        let element = room.next()?;
        self.sequence = sequence + 1;
        self.left = left;
        self.look_ahead(origin, key.rank());
        fetch(left, AHEAD);
        *element = ElementView {
            stream,
            sequence,
            time: origin.time(key),
            payload,
        };
        Some(behind)
    }

    /// Computes the key of the record after the next one.
    #[inline(always)]
    fn look_ahead(&mut self, origin: KeyOrigin, rank: usize) {
        let at = TIME_BYTES + self.payload_bytes as usize;
        self.behind = match self.left.get(at..at + TIME_BYTES) {
            Some(time) => origin.key(record_time(time), rank),
            None => CompactKey::UNKNOWN,
        };
    }
}

/// Reads one stream packet by packet.
#[derive(Debug)]
struct Cursor<'a> {
    stream: &'a RecordedStream,
    packets: Packets<'a>,
    /// The gaps and packets that follow the repeated elements.
    then: Option<(slice::Iter<'a, Gap>, Packets<'a>)>,
    /// Gaps that precede the packets.
    gaps: slice::Iter<'a, Gap>,
    /// Bytes after the records of the last packet.
    behind: usize,
    /// The next gap, if there are no records.
    gap: Option<Gap>,
    /// End of the last packet by its head.
    packet_end: Timestamp,
    damages: Vec<Damage>,
    /// Number of damaged parts beyond those that are listed.
    further: u64,
}

impl<'a> Cursor<'a> {
    fn new(stream: &'a RecordedStream) -> Self {
        let (gaps, kept) = (stream.gaps.iter(), stream.packets(Verify::All));
        let (gaps, packets, then) = match stream.repeated(Verify::All) {
            None => (gaps, kept, None),
            Some(repeated) => ([].iter(), repeated, Some((gaps, kept))),
        };
        Self {
            stream,
            packets,
            then,
            gaps,
            behind: 0,
            gap: None,
            packet_end: Timestamp::ZERO,
            damages: Vec::new(),
            further: 0,
        }
    }

    /// Continues after this time: with the remaining records, or with the next packet that has any
    /// items. Returns the time of the next item, `None` at the end.
    #[inline(never)]
    fn go_on(&mut self, records: &mut Records<'a>, now: Timestamp) -> Option<Timestamp> {
        self.gap = None;
        loop {
            while records.left.is_empty() {
                if let Some(gap) = self.gaps.next() {
                    self.gap = Some(*gap);
                    return Some(gap.to.max(now));
                }
                let packet = match self.packets.next() {
                    Ok(None) => {
                        (self.gaps, self.packets) = self.then.take()?;
                        continue;
                    }
                    Ok(Some(packet)) => packet,
                    Err(damage) => match self.note(damage, now) {
                        Some(time) => return Some(time),
                        None => continue,
                    },
                };
                self.packet_end = packet.head.end;
                if let Some(gap) = packet.head.gap {
                    self.gap = Some(gap);
                    // In a ring the packet ends before the element after the gap.
                    let end = packet.head.end;
                    let end = end.max(gap.to.min(end.plus(Nanos::from_ns(1))));
                    return Some(end.max(now));
                }
                self.behind = packet.behind;
                // The records are whole: the packet was checked.
                records.left = packet.records;
                records.sequence = packet.head.first_sequence;
            }
            let time = record_time(records.left);
            if time >= now && time <= self.packet_end {
                return Some(time);
            }
            let damage = self.rest_of_packet(records, time, now);
            if let Some(time) = self.note(damage, now) {
                return Some(time);
            }
        }
    }

    /// Keeps damage for the summary. Returns the time of its gap, if there is one.
    #[cold]
    fn note(&mut self, mut damage: Damage, now: Timestamp) -> Option<Timestamp> {
        self.gap = damage.gap;
        let time = damage.gap.map(|gap| gap.to.max(now));
        if damage.is_torn {
            // The torn tail is not mapped.
            damage.reason = "the file has changed".to_owned();
        }
        if self.damages.len() < MOST_DAMAGES {
            self.damages.push(damage);
        } else {
            self.further += 1;
        }
        time
    }

    /// The damage of the rest of a packet whose next record has an impossible time.
    #[cold]
    fn rest_of_packet(&self, records: &mut Records<'_>, time: Timestamp, now: Timestamp) -> Damage {
        let left = std::mem::take(&mut records.left);
        let count = left.len() / (TIME_BYTES + records.payload_bytes as usize);
        let reason = match time < now {
            true => format!("an element at {time} comes after one at {now}"),
            false => format!(
                "an element at {time} comes after the end of its packet at {}",
                self.packet_end
            ),
        };
        Damage {
            file: self.packets.file(),
            offset: self.packets.offset() - self.behind - left.len(),
            bytes: left.len(),
            packet: self.packets.last_packet(),
            reason,
            is_torn: false,
            after: now,
            gap: Some(Gap {
                stream: records.stream.id,
                first: records.sequence,
                missed: count as u64,
                from: now,
                to: self.packet_end.max(now),
                cause: GapCause::Corrupt,
            }),
        }
    }
}

impl TraceReader {
    /// Delivers everything to the updates: elements, gaps in their places, and advances.
    ///
    /// It ends with the last advance of the recording or, if the recorder was killed, with the time
    /// of the last element or gap.
    pub fn replay(&self, updates: &mut [&mut dyn Analysis]) -> ReplaySummary {
        let mut replay = self.begin_replay();
        while replay.step(u64::MAX, updates) {}
        replay.into_summary()
    }

    /// A replay that its caller drives step by step; [`TraceReader::replay`] runs all steps.
    #[must_use]
    pub fn begin_replay(&self) -> Replay<'_> {
        let begin = |stream| {
            let mut cursor = Cursor::new(stream);
            let mut records = Records {
                stream: &stream.descriptor,
                left: &[],
                payload_bytes: stream.descriptor.schema.size(),
                sequence: 0,
                behind: CompactKey::UNKNOWN,
            };
            let time = cursor.go_on(&mut records, Timestamp::ZERO);
            (cursor, records, time)
        };
        let mut streams: Vec<_> = self.recorded().iter().map(begin).collect();
        // Streams with a next item come first, in the order of the merge keys.
        streams.sort_by_key(|(cursor, _, time)| (time.is_none(), cursor.stream.descriptor.id));
        let tree = (0..)
            .zip(&streams)
            .filter_map(|(index, (cursor, _, time))| {
                Some(MergeKey::new((*time)?, cursor.stream.descriptor.id, index))
            });
        let tree = LoserTree::new(tree.collect());
        let (cursors, records): (_, Vec<_>) = streams.into_iter().map(|it| (it.0, it.1)).unzip();
        let nothing = records.first().map(|records: &Records<'_>| ElementView {
            stream: records.stream,
            sequence: 0,
            time: Timestamp::ZERO,
            payload: &[],
        });
        let mut replay = Replay {
            reader: self,
            cursors,
            records,
            origin: tree.origin(),
            tree,
            batch: nothing.map_or(Vec::new(), |nothing| vec![nothing; BATCH]),
            waiting: 0,
            summary: ReplaySummary::default(),
            has_begun: false,
            has_ended: false,
        };
        replay.look_ahead();
        replay
    }
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay<'a> {
    reader: &'a TraceReader,
    /// By rank; streams that never had an item come last.
    cursors: Vec<Cursor<'a>>,
    /// In the order of the cursors.
    records: Vec<Records<'a>>,
    tree: LoserTree,
    /// The epoch of the keys in the records.
    origin: KeyOrigin,
    /// Consecutive elements, and room for a whole batch.
    batch: Vec<ElementView<'a>>,
    /// Number of elements in the batch that are not delivered yet; 0 between steps.
    waiting: usize,
    summary: ReplaySummary,
    has_begun: bool,
    has_ended: bool,
}

impl<'a> Replay<'a> {
    /// Delivers the next items, until `elements` more elements have been delivered, and returns
    /// whether more may follow. The last step delivers the last advance.
    ///
    /// The calls of the updates do not depend on the choice of steps.
    pub fn step(&mut self, elements: u64, updates: &mut [&mut dyn Analysis]) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            for stream in self.reader.streams() {
                for update in updates.iter_mut() {
                    update.open(stream);
                }
            }
        }
        let mut left = elements;
        let mut due = self.summary.advanced_to.plus(ADVANCE);
        while let Some(top) = self.tree.top() {
            if left == 0 {
                self.hand_over(updates);
                return true;
            }
            if top.time() > due {
                self.hand_over(updates);
                advance_all(updates, &mut self.summary, top.time());
                due = top.time().plus(ADVANCE);
            }
            if let Some(gap) = self.cursors[top.index()].gap {
                self.hand_over(updates);
                self.summary.gaps += 1;
                self.summary.discarded = self.summary.discarded.saturating_add(gap.missed);
                let stream = self.records[top.index()].stream;
                for update in updates.iter_mut() {
                    update.gap(stream, &gap);
                }
                self.go_on();
                continue;
            }
            if self.waiting == BATCH {
                self.hand_over(updates);
            }
            left -= self.collect(left, due);
        }
        self.hand_over(updates);
        if !self.has_ended {
            self.has_ended = true;
            self.conclude(updates);
        }
        false
    }

    /// Collects elements up to this time, at most `most`, within the room of the batch, and up to
    /// the next gap or the end of a packet. Returns their number.
    #[inline(never)]
    fn collect(&mut self, most: u64, until: Timestamp) -> u64 {
        // Local variables instead of accesses through `self` for each element.
        let (records, origin) = (&mut self.records[..], self.origin);
        let room = &mut self.batch[self.waiting..];
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(room.len());
        let mut room = room[..most].iter_mut();
        let is_open = self.tree.run_until(until, |key| {
            records[key.rank()].take(key, origin, &mut room)
        });
        let collected = most - room.len();
        self.waiting += collected;
        if is_open {
            self.go_on();
        }
        collected as u64
    }

    /// Continues with the stream at the top, whose item has been taken.
    fn go_on(&mut self) {
        let Some(top) = self.tree.top() else { return };
        let rank = top.index();
        let records = &mut self.records[rank];
        match self.cursors[rank].go_on(records, top.time()) {
            Some(time) => self.tree.advance_top(time),
            None => self.tree.remove_top(),
        }
        if self.origin == self.tree.origin() {
            records.look_ahead(self.origin, rank);
        } else {
            self.look_ahead();
        }
    }

    /// Computes the keys of the records after the next ones, of all streams.
    fn look_ahead(&mut self) {
        self.origin = self.tree.origin();
        for (rank, records) in self.records.iter_mut().enumerate() {
            records.look_ahead(self.origin, rank);
        }
    }

    /// Delivers the collected elements to the updates.
    #[inline(never)]
    fn hand_over(&mut self, updates: &mut [&mut dyn Analysis]) {
        let elements = &self.batch[..std::mem::take(&mut self.waiting)];
        self.summary.events += elements.len() as u64;
        for update in updates.iter_mut() {
            update.elements(elements);
        }
    }

    fn conclude(&mut self, updates: &mut [&mut dyn Analysis]) {
        for cursor in &mut self.cursors {
            let stream = cursor.stream.descriptor.id;
            for damage in cursor.damages.drain(..) {
                let file = cursor.stream.path(damage.file);
                let damage = CorruptStream::of_packet(file, stream, &damage);
                let mut known = self.reader.corrupt().iter();
                if !known.any(|it| it.file == damage.file && it.offset == damage.offset) {
                    self.summary.corrupt.push(damage);
                }
            }
            if cursor.further > 0 {
                let after = self
                    .summary
                    .corrupt
                    .last()
                    .map_or(Timestamp::ZERO, |it| it.after);
                let file = cursor.stream.path(usize::MAX);
                let further = CorruptStream::further(file, stream, after, cursor.further);
                self.summary.corrupt.push(further);
            }
        }
        let last = self
            .reader
            .times()
            .map_or(Timestamp::ZERO, |(_, last)| last);
        let end = self
            .reader
            .summary()
            .map_or(last, |written| written.advanced_to.max(last));
        if end > self.summary.advanced_to {
            advance_all(updates, &mut self.summary, end);
        }
    }

    /// The totals so far; the damage is known at the end.
    #[must_use]
    pub const fn summary(&self) -> &ReplaySummary {
        &self.summary
    }

    /// The totals.
    #[must_use]
    pub fn into_summary(self) -> ReplaySummary {
        self.summary
    }
}

/// Delivers an advance. Later items are not older than `now`.
#[cold]
fn advance_all(updates: &mut [&mut dyn Analysis], summary: &mut ReplaySummary, now: Timestamp) {
    summary.advanced_to = now;
    for update in updates.iter_mut() {
        update.advance(now);
    }
}
