// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replay: all streams of a trace in total order.
//!
//! The order is the live monitor's: (time, stream, sequence), where a gap takes the place right
//! before the first element after it, that is, its key is its `to`.

use std::slice;

use overhear_event::{
    CompactKey, ElementView, Gap, GapCause, KeyOrigin, LoserTree, MergeKey, Nanos,
    StreamDescriptor, Timestamp, Update,
};

use crate::map::fetch;
use crate::packet::{record_time, TIME_BYTES};
use crate::reader::{CorruptStream, RecordedStream, TraceReader};
use crate::scan::{Damage, Packets, Verify, MOST_DAMAGES};

/// An advance per element would double the cost of a replay, and evaluations must not depend on
/// how often they learn the time: it is told once this span of trace time has passed.
const ADVANCE: Nanos = Nanos::from_ms(1);

/// So many elements at most are handed over at once: few enough to stay in the nearest cache.
const BATCH: usize = 128;

/// What lies so many bytes behind a record is fetched from memory when the record is read. Streams that take turns are
/// too much for the processor to foresee, and the merge would wait for memory up to a quarter of its time.
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
    /// Damage in addition to [`TraceReader::corrupt`]. Where the number of elements in it is known, the replay
    /// delivers them as a gap.
    pub corrupt: Vec<CorruptStream>,
}

/// The records of a stream's packet that have not been read: what each element needs, in one line of the cache.
#[derive(Debug)]
#[repr(align(64))]
struct Records<'a> {
    stream: &'a StreamDescriptor,
    /// From the next one on; nothing if a gap is next, and at the end.
    left: &'a [u8],
    /// Bytes of each payload.
    payload_bytes: u32,
    /// Of the next one.
    sequence: u64,
    /// The turn of the one behind the next. It is looked at early, because whose turn is next waits for it. Less than
    /// the next one's where it is not that simple: the packet ends, or time goes back, or too far ahead.
    behind: CompactKey,
}

impl<'a> Records<'a> {
    /// Takes the next one, which has this turn, if there is one, and room for it. Tells the turn of the one behind it.
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

    /// Looks at the one behind the next.
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
    /// Bytes behind the records of the last packet.
    behind: usize,
    /// What comes next, if there are no records.
    gap: Option<Gap>,
    /// End of the last packet by its head.
    packet_end: Timestamp,
    damages: Vec<Damage>,
    /// Damaged parts beyond those that are listed.
    further: u64,
}

impl<'a> Cursor<'a> {
    fn new(stream: &'a RecordedStream) -> Self {
        Self {
            stream,
            packets: Packets::new(
                &stream.layout,
                stream.map.bytes(),
                stream.bounds,
                Verify::All,
                stream.end_noted,
            ),
            behind: 0,
            gap: None,
            packet_end: Timestamp::ZERO,
            damages: Vec::new(),
            further: 0,
        }
    }

    /// Goes on after this time: with the records that are left, or with the next packet that holds anything. Tells
    /// when, nothing at the end.
    #[inline(never)]
    fn go_on(&mut self, records: &mut Records<'a>, now: Timestamp) -> Option<Timestamp> {
        self.gap = None;
        loop {
            while records.left.is_empty() {
                let packet = match self.packets.next() {
                    Ok(packet) => packet?,
                    Err(damage) => match self.note(damage, now) {
                        Some(time) => return Some(time),
                        None => continue,
                    },
                };
                self.packet_end = packet.head.end;
                if let Some(gap) = packet.head.gap {
                    self.gap = Some(gap);
                    return Some(packet.head.end.max(now));
                }
                self.behind = packet.behind;
                // They are whole: that is checked.
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

    /// Keeps damage for the summary. Returns the time of the gap that stands for it, if there is one.
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

    /// What is left of a packet whose next record has an impossible time.
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
    /// Delivers everything to the updates: elements, gaps at their places, and how time advances.
    ///
    /// It ends with the advance at which the recording ended, or, where the recorder was killed,
    /// at the time of the last element or gap.
    pub fn replay(&self, updates: &mut [&mut dyn Update]) -> ReplaySummary {
        let mut replay = self.begin_replay();
        while replay.step(u64::MAX, updates) {}
        replay.into_summary()
    }

    /// A replay that its caller drives step by step; [`TraceReader::replay`] is all of it at once.
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
        // Those that have a turn come first, in the order of the turns.
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
    /// By rank; those that never had a turn come last.
    cursors: Vec<Cursor<'a>>,
    /// As the cursors.
    records: Vec<Records<'a>>,
    tree: LoserTree,
    /// What the words in the records are written with.
    origin: KeyOrigin,
    /// Elements that follow each other, and room for as many as are handed over at once.
    batch: Vec<ElementView<'a>>,
    /// So many of them have not been handed over; none between steps.
    waiting: usize,
    summary: ReplaySummary,
    has_begun: bool,
    has_ended: bool,
}

impl<'a> Replay<'a> {
    /// Delivers what comes next, until so many more elements have been delivered, and says whether
    /// something may be left. The last step delivers the last advance.
    ///
    /// However the steps are chosen, the updates are called in the same way.
    pub fn step(&mut self, elements: u64, updates: &mut [&mut dyn Update]) -> bool {
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
                tell(updates, &mut self.summary, top.time());
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

    /// Collects elements up to this time, but no more than so many, nor than the batch has room for, and no further
    /// than to the next gap or the end of a packet. Returns how many.
    #[inline(never)]
    fn collect(&mut self, most: u64, until: Timestamp) -> u64 {
        // What each element needs is at hand, not behind `self`.
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

    /// Goes on with the top's stream, whose turn has been taken.
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

    /// Looks at the records behind the next ones, of all streams.
    fn look_ahead(&mut self) {
        self.origin = self.tree.origin();
        for (rank, records) in self.records.iter_mut().enumerate() {
            records.look_ahead(self.origin, rank);
        }
    }

    /// Has the elements evaluated that wait for it.
    #[inline(never)]
    fn hand_over(&mut self, updates: &mut [&mut dyn Update]) {
        let elements = &self.batch[..std::mem::take(&mut self.waiting)];
        self.summary.events += elements.len() as u64;
        for update in updates.iter_mut() {
            update.elements(elements);
        }
    }

    fn conclude(&mut self, updates: &mut [&mut dyn Update]) {
        for cursor in &mut self.cursors {
            let (file, stream) = (&cursor.stream.file, cursor.stream.descriptor.id);
            for damage in cursor.damages.drain(..) {
                let damage = CorruptStream::of_packet(file, stream, &damage);
                let mut known = self.reader.corrupt().iter();
                if !known.any(|it| it.stream == Some(stream) && it.offset == damage.offset) {
                    self.summary.corrupt.push(damage);
                }
            }
            if cursor.further > 0 {
                let after = self
                    .summary
                    .corrupt
                    .last()
                    .map_or(Timestamp::ZERO, |it| it.after);
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
            tell(updates, &mut self.summary, end);
        }
    }

    /// What has been delivered so far; the damage is known at the end.
    #[must_use]
    pub const fn summary(&self) -> &ReplaySummary {
        &self.summary
    }

    /// What has been delivered.
    #[must_use]
    pub fn into_summary(self) -> ReplaySummary {
        self.summary
    }
}

/// Tells the time. What follows is not older than `now`.
#[cold]
fn tell(updates: &mut [&mut dyn Update], summary: &mut ReplaySummary, now: Timestamp) {
    summary.advanced_to = now;
    for update in updates.iter_mut() {
        update.advance(now);
    }
}
