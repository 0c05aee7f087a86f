// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replay: all streams of a trace in total order.
//!
//! The order is the live monitor's: (time, stream, sequence), where a gap takes the place right
//! before the first element after it, that is, its key is its `to`.

use overhear_event::{ElementView, Gap, Nanos, Timestamp, Turn, Turns, Update};

use crate::packet::{record_time, Flaw, TIME_BYTES, TRAILER_BYTES};
use crate::reader::{CorruptStream, RecordedStream, TraceReader};
use crate::scan::Packets;

/// An advance per element would double the cost of a replay, and evaluations must not depend on
/// how often they learn the time: it is told once this span of trace time has passed.
const ADVANCE: Nanos = Nanos::from_ms(1);

/// So many elements at most are handed over at once: few enough to stay in the nearest cache.
const BATCH: usize = 128;

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
    /// Places where streams could not be read any further, in addition to
    /// [`TraceReader::corrupt`].
    pub corrupt: Vec<CorruptStream>,
}

/// Reads one stream. What comes next in it is a gap or records of a packet, and nothing at its
/// end.
#[derive(Debug)]
struct Cursor<'a> {
    stream: &'a RecordedStream,
    packets: Packets<'a>,
    gap: Option<Gap>,
    /// The packet's records from the next one on, nothing if a gap is next, and at the end.
    records: &'a [u8],
    /// Of a record.
    bytes: usize,
    /// Of the next record.
    sequence: u64,
    /// Of the next record or gap.
    time: Timestamp,
    /// Of the record behind the next one in its packet, if there is one. It is looked at early, because whose turn
    /// is next waits for it.
    time_behind: Timestamp,
    /// Where and why the stream could not be read any further.
    flaw: Option<(usize, String)>,
}

impl<'a> Cursor<'a> {
    fn new(stream: &'a RecordedStream) -> Self {
        let mut cursor = Self {
            stream,
            packets: Packets::new(&stream.layout, stream.map.bytes()),
            gap: None,
            records: &[],
            bytes: stream.layout.record_bytes(),
            sequence: 0,
            time: Timestamp::ZERO,
            time_behind: Timestamp::ZERO,
            flaw: None,
        };
        cursor.next_packet();
        cursor
    }

    fn is_at_end(&self) -> bool {
        self.records.is_empty() && self.gap.is_none()
    }

    /// The payload of the next record, and what comes behind it.
    #[inline(always)]
    fn next(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (record, behind) = self.records.split_at_checked(self.bytes)?;
        Some((record.get(TIME_BYTES..)?, behind))
    }

    /// Goes to this place behind the next record.
    #[inline(always)]
    fn go_to(&mut self, behind: &'a [u8]) {
        self.sequence += 1;
        self.records = behind;
        if behind.is_empty() {
            self.next_packet();
        } else {
            self.set_time(self.time_behind);
        }
    }

    /// Goes to the next packet that holds anything.
    #[inline(never)]
    fn next_packet(&mut self) {
        self.gap = None;
        self.records = &[];
        loop {
            let packet = match self.packets.next() {
                Ok(Some(packet)) => packet,
                Ok(None) => return,
                // The scan found only whole packets, so the file has changed since.
                Err(Flaw::Torn) => return self.fail(0, "the file has changed".to_owned()),
                Err(Flaw::Corrupt(reason)) => return self.fail(0, reason),
            };
            if let Some(gap) = packet.head.gap {
                self.gap = Some(gap);
                self.time = packet.head.end;
                return;
            }
            // They are whole: that is checked.
            self.records = packet.records;
            if !self.records.is_empty() {
                self.sequence = packet.head.first_sequence;
                return self.set_time(record_time(self.records));
            }
        }
    }

    /// The next record has this time, which must not be earlier than the last one's.
    #[inline(always)]
    fn set_time(&mut self, time: Timestamp) {
        if let Some(behind) = self.records.get(self.bytes..) {
            self.time_behind = record_time(behind);
        }
        if time < self.time {
            self.goes_back(time);
        } else {
            self.time = time;
        }
    }

    #[cold]
    fn goes_back(&mut self, time: Timestamp) {
        let reason = format!("an element at {time} comes after one at {}", self.time);
        self.fail(TRAILER_BYTES + self.records.len(), reason);
    }

    /// Ends the stream so many bytes before the end of the last packet that was read.
    #[cold]
    fn fail(&mut self, before: usize, reason: String) {
        self.flaw = Some((self.packets.offset() - before, reason));
        self.records = &[];
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
        let mut cursors: Vec<_> = self.recorded().iter().map(Cursor::new).collect();
        // Those that have a turn come first, in the order of the turns.
        cursors.sort_by_key(|cursor| (cursor.is_at_end(), cursor.stream.descriptor.id));
        let turns = (0..)
            .zip(&cursors)
            .filter(|(_, cursor)| !cursor.is_at_end())
            .map(|(index, cursor)| Turn::new(cursor.time, cursor.stream.descriptor.id, index));
        let turns = Turns::new(turns.collect());
        Replay {
            reader: self,
            cursors,
            turns,
            batch: Vec::with_capacity(BATCH),
            summary: ReplaySummary::default(),
            has_begun: false,
            has_ended: false,
        }
    }
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay<'a> {
    reader: &'a TraceReader,
    cursors: Vec<Cursor<'a>>,
    turns: Turns,
    /// Elements that follow each other and have not been handed over; empty between steps.
    batch: Vec<ElementView<'a>>,
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
        let Self {
            cursors,
            turns,
            batch,
            summary,
            ..
        } = self;
        if !std::mem::replace(&mut self.has_begun, true) {
            for stream in self.reader.streams() {
                for update in updates.iter_mut() {
                    update.open(stream);
                }
            }
        }
        let mut left = elements;
        let mut due = summary.advanced_to.plus(ADVANCE);
        while let Some(rank) = turns.top_rank() {
            let cursor = &mut cursors[rank];
            if left == 0 {
                hand_over(batch, updates, summary);
                return true;
            }
            if cursor.time > due {
                hand_over(batch, updates, summary);
                tell(updates, summary, cursor.time);
                due = cursor.time.plus(ADVANCE);
            }
            if let Some((payload, behind)) = cursor.next() {
                if batch.len() == BATCH {
                    hand_over(batch, updates, summary);
                }
                batch.push(ElementView {
                    stream: &cursor.stream.descriptor,
                    sequence: cursor.sequence,
                    time: cursor.time,
                    payload,
                });
                left -= 1;
                cursor.go_to(behind);
            } else if let Some(gap) = cursor.gap {
                hand_over(batch, updates, summary);
                summary.gaps += 1;
                summary.discarded = summary.discarded.saturating_add(gap.missed);
                for update in updates.iter_mut() {
                    update.gap(&cursor.stream.descriptor, &gap);
                }
                cursor.next_packet();
            }
            if cursor.is_at_end() {
                turns.remove_top();
            } else {
                turns.go_on_at(cursor.time);
            }
        }
        hand_over(batch, updates, summary);
        if !self.has_ended {
            self.has_ended = true;
            self.conclude(updates);
        }
        false
    }

    fn conclude(&mut self, updates: &mut [&mut dyn Update]) {
        for cursor in &mut self.cursors {
            if let Some((offset, reason)) = cursor.flaw.take() {
                self.summary.corrupt.push(CorruptStream {
                    file: cursor.stream.file.clone(),
                    offset: offset as u64,
                    reason,
                });
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

/// Has the elements evaluated.
#[inline(never)]
fn hand_over(
    batch: &mut Vec<ElementView<'_>>,
    updates: &mut [&mut dyn Update],
    summary: &mut ReplaySummary,
) {
    summary.events += batch.len() as u64;
    for update in updates.iter_mut() {
        update.elements(batch);
    }
    batch.clear();
}

/// Tells the time. What follows is not older than `now`.
#[cold]
fn tell(updates: &mut [&mut dyn Update], summary: &mut ReplaySummary, now: Timestamp) {
    summary.advanced_to = now;
    for update in updates.iter_mut() {
        update.advance(now);
    }
}
