// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time-line as the columns that the page draws (see `html/mod.rs`): of a whole recording, or
//! piece by piece of a run that goes on.
//!
//! A [`Picture`] is an update that keeps intervals, elements and gaps, each up to a limit
//! ([`Room`]), so that neither it nor the page grows with the run. A [`Piece`] of it serialises
//! itself row by row: the document is never in memory as a whole.

mod gaps;
mod left_out;
mod sensors;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use overhear_event::{Analysis, ElementView, Gap, Nanos, Origin, StreamDescriptor, Timestamp};
use overhear_metrics::compensation::Delays;
use overhear_metrics::{Row, Scheduling, StateReason, Thread, ThreadState, Timeline};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use gaps::Gaps;
use sensors::{Seen, SensorColumns};

pub(crate) use left_out::Remedy;

/// Limits of a picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Number of intervals of threads: each takes some 14 bytes of the page.
    intervals: u64,
    /// Size of the elements of sensors, in bytes of the page.
    element_bytes: u64,
    /// Number of gaps: each takes some 200 bytes of the page.
    gaps: usize,
}

impl Room {
    /// For a page of some 16 MB, not counting the rows of threads in its tables.
    pub(crate) const PAGE: Self = Self {
        intervals: 600_000,
        element_bytes: 6_000_000,
        gaps: 4_000,
    };

    /// For each of two runs on a page.
    pub(crate) const fn half(self) -> Self {
        Self {
            intervals: self.intervals / 2,
            element_bytes: self.element_bytes / 2,
            gaps: self.gaps / 2,
        }
    }
}

/// A part of a run, in time since its begin; all of it by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// Begin of the part.
    pub from: Nanos,
    /// End of the part; `None` for the end of the run.
    pub to: Option<Nanos>,
}

impl TimeRange {
    /// First and last moment of the part in a run that began at `begin`.
    pub(crate) fn of_run(self, begin: Timestamp) -> (Timestamp, Timestamp) {
        let to = self.to.map_or(Timestamp::MAX, |to| begin.plus(to));
        (begin.plus(self.from), to)
    }
}

/// Analysis that keeps the data which the page draws. If costs are known, it keeps all times both
/// as recorded and compensated.
#[derive(Debug)]
pub(crate) struct Picture {
    scheduling: Scheduling<Timeline>,
    columns: SensorColumns,
    gaps: Gaps,
    delays: Option<Delays>,
    /// First and last moment that is shown.
    from: Timestamp,
    until: Timestamp,
    /// Time of the newest item.
    now: Timestamp,
    moved_end: Option<Timestamp>,
}

/// Size of the threads' histograms in bytes, for the tables that a live page shows with the
/// picture.
const LIVE_HISTOGRAM_BYTES: usize = 6 << 20;

impl Default for Picture {
    /// The picture of a run that goes on. A second picture may have the same run in compensated
    /// time.
    fn default() -> Self {
        let all = (Timestamp::ZERO, Timestamp::MAX);
        let mut picture = Self::new(Room::PAGE.half(), None, all);
        picture.scheduling = picture
            .scheduling
            .with_histogram_bytes(LIVE_HISTOGRAM_BYTES);
        picture
    }
}

impl Picture {
    /// An empty picture of the time between two moments. `delays` places items in compensated time,
    /// if costs are known.
    pub(crate) fn new(
        room: Room,
        delays: Option<Delays>,
        (from, until): (Timestamp, Timestamp),
    ) -> Self {
        let mut timeline = Timeline::with_limit(room.intervals).within(from, until);
        if delays.is_some() {
            timeline = timeline.compensated();
        }
        Self {
            // The report has histograms of its own.
            scheduling: Scheduling::new(timeline).with_histogram_bytes(0),
            columns: SensorColumns::with_room(room.element_bytes),
            gaps: Gaps::with_room(room.gaps),
            delays,
            from,
            until,
            now: Timestamp::ZERO,
            moved_end: None,
        }
    }

    /// Divides the room among the announced sensors. `streams` has the maximum number of elements
    /// of each stream.
    pub(crate) fn expect<'a>(
        &mut self,
        streams: impl Iterator<Item = (&'a Arc<StreamDescriptor>, u64)>,
    ) {
        let first = streams.map(|(stream, elements)| (stream.first_stream(), elements));
        self.columns.divide(first);
    }

    pub(crate) fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        self.columns.announce(stream);
    }

    pub(crate) fn expect_wakeups(&mut self) {
        self.scheduling.expect_wakeups();
    }

    pub(crate) const fn scheduling(&self) -> &Scheduling<Timeline> {
        &self.scheduling
    }

    /// Time of the newest item, or the end that was set.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets the end: the program has ended at this time.
    pub(crate) fn end(&mut self, end: Timestamp) {
        self.now = self.now.max(end);
        self.scheduling.finish(end);
        if let Some(delays) = &self.delays {
            let moved_end = end.minus(delays.last());
            let moved = |tid: u32, at: Timestamp| match at == end {
                true => moved_end,
                false => delays.moved(tid, at),
            };
            self.scheduling.observer_mut().settle(moved);
            self.moved_end = Some(moved_end);
        }
    }

    fn settle(&mut self) {
        if let Some(delays) = &self.delays {
            let timeline = self.scheduling.observer_mut();
            timeline.settle(|tid, at| delays.moved(tid, at));
        }
    }

    fn shows(&self, time: Timestamp) -> bool {
        (self.from..=self.until).contains(&time)
    }

    /// The last moment for which the picture shows something.
    fn end_of_shown(&self) -> Timestamp {
        let timeline = self.scheduling.observer().cut_at();
        let columns = self.columns.cut_at();
        let all = match (timeline, columns) {
            // The other part goes on.
            (None, _) if !self.scheduling.threads().is_empty() => self.now,
            (_, None) if !self.columns.is_empty() => self.now,
            (timeline, columns) => timeline.max(columns).unwrap_or(self.now),
        };
        all.min(self.until)
    }

    /// The whole picture of a run that began at `begin`.
    pub(crate) fn whole(&self, begin: Timestamp) -> Piece<'_> {
        self.piece(begin, &mut Cursor::default(), usize::MAX).0
    }

    /// The data since `seen`: about `most` intervals, and at most `most` elements of each sensor.
    /// Moves `seen` to their end. The flag is true if there are more.
    pub(crate) fn piece(
        &self,
        begin: Timestamp,
        seen: &mut Cursor,
        most: usize,
    ) -> (Piece<'_>, bool) {
        let rows = self.scheduling.observer().rows();
        let mut next = Cursor {
            threads: Vec::with_capacity(rows.len()),
            sensors: self.columns.after(&seen.sensors, most),
            gaps: self.gaps.kept().len(),
        };
        let mut room = most;
        let mut more = self.columns.has_more(&next.sensors);
        for (index, row) in rows.iter().enumerate() {
            let from = seen.threads.get(index).copied().unwrap_or(0);
            let to = row.lengths.len().min(from.saturating_add(room));
            room -= to - from;
            more |= to < row.lengths.len();
            next.threads.push(to);
        }
        let piece = Piece {
            picture: self,
            begin: begin.max(self.from),
            run_begin: begin,
            seen: std::mem::replace(seen, next.clone()),
            next,
            remedy: Remedy::None,
        };
        (piece, more)
    }
}

impl Analysis for Picture {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.columns.announce(&Arc::new(stream.clone()));
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.now = self.now.max(element.time);
        let moved = self.delays.as_mut().map(|delays| delays.element(element));
        self.scheduling.element(element);
        self.settle();
        if self.shows(element.time) {
            self.columns.push(element, moved.map(|moved| moved.time));
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.now = self.now.max(gap.from);
        let moved = self.delays.as_mut().map(|delays| delays.gap(stream, gap));
        self.scheduling.gap(stream, gap);
        self.settle();
        if !self.shows(gap.to) {
            return;
        }
        if !self.gaps.push(stream, gap, moved) {
            // Later states would look complete.
            self.scheduling.observer_mut().cut(gap.from);
            self.columns.close();
        }
    }

    fn advance(&mut self, now: Timestamp) {
        // The end of all observation is not a moment of the run.
        if now < Timestamp::MAX {
            self.now = self.now.max(now);
        }
        self.scheduling.advance(now);
    }
}

/// Read position of a reader in the picture, so that it gets only the rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    // Intervals per thread.
    threads: Vec<usize>,
    sensors: Vec<Seen>,
    gaps: usize,
}

/// The time-line document, or a piece of it: the data between two cursors.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    picture: &'a Picture,
    /// Origin of all times, and the begin of the run.
    begin: Timestamp,
    run_begin: Timestamp,
    seen: Cursor,
    next: Cursor,
    remedy: Remedy,
}

impl Piece<'_> {
    /// The same piece. `remedy` is the way to see the parts that are left out.
    pub(crate) fn with_remedy(self, remedy: Remedy) -> Self {
        Self { remedy, ..self }
    }

    /// Messages about the parts that the picture leaves out.
    pub(crate) fn left_out(&self) -> Vec<String> {
        left_out::messages(self.picture, self.run_begin, &self.remedy)
    }

    fn since(&self, time: Timestamp) -> u64 {
        time.since(self.begin).as_ns()
    }

    fn end(&self) -> Timestamp {
        self.picture.end_of_shown().max(self.begin)
    }

    /// Processes in the order in which they are shown.
    fn processes(&self) -> Vec<Process> {
        let mut processes: Vec<Process> = Vec::new();
        let mut index: BTreeMap<u32, usize> = BTreeMap::new();
        let mut add = |pid: u32, comm: &str| {
            let at = *index.entry(pid).or_insert_with(|| {
                let comm = String::new();
                processes.push(Process { pid, comm });
                processes.len() - 1
            });
            // The last name of a process is the most useful one.
            if !comm.is_empty() {
                comm.clone_into(&mut processes[at].comm);
            }
        };
        for thread in self.picture.scheduling.threads() {
            let leader = thread.tid == thread.pid;
            add(thread.pid, if leader { thread.comm.as_str() } else { "" });
        }
        for pid in self.picture.columns.pids() {
            add(pid, "");
        }
        processes
    }

    fn threads(&self) -> impl Iterator<Item = ThreadColumns<'_>> {
        let rows = self.picture.scheduling.observer().rows().iter();
        let threads = self.picture.scheduling.threads().iter().zip(rows);
        let both = threads.zip(&self.next.threads).enumerate();
        both.filter_map(|(index, ((thread, row), &to))| {
            let from = self.seen.threads.get(index).copied().unwrap_or(0);
            self.thread(index, thread, row, from, to)
        })
    }

    /// State of a thread at the end, if it still lives.
    fn open(&self, thread: &Thread, row: &Row) -> Option<Open> {
        if row.is_cut {
            return (row.end() < self.end()).then(|| Open {
                from_ns: self.since(row.end()),
                state: ThreadState::Unknown.code(),
                cpu: u32::from(u16::MAX),
                reason: reason(StateReason::Unknown),
            });
        }
        if thread.state() == ThreadState::Absent || thread.since() >= self.end() {
            return None;
        }
        let cpu = thread.cpu();
        let cpu = cpu.filter(|_| thread.state() == ThreadState::Running);
        Some(Open {
            from_ns: self.since(thread.since()),
            state: thread.state().code(),
            cpu: cpu.unwrap_or(u32::from(u16::MAX)),
            reason: reason(thread.reason()),
        })
    }

    /// The intervals of a thread between two positions.
    fn thread<'a>(
        &self,
        index: usize,
        thread: &'a Thread,
        row: &'a Row,
        from: usize,
        to: usize,
    ) -> Option<ThreadColumns<'a>> {
        let is_all = to == row.lengths.len();
        let open = is_all.then(|| self.open(thread, row)).flatten();
        let start = match row.start {
            Some(start) => start,
            None if open.is_some() => thread.since(),
            None => return None,
        };
        if from == to && open.is_none() && from > 0 {
            return None;
        }
        // Few different reasons repeat often: so a table, and a column of indices.
        let mut table: Vec<StateReason> = Vec::new();
        let mut indices: BTreeMap<StateReason, u16> = BTreeMap::new();
        let reasons = row.reasons[from..to].iter().map(|&reason| {
            let index = *indices.entry(reason).or_insert_with(|| {
                // The last index stands for an unknown reason, and for those after the table is
                // full.
                match u16::try_from(table.len()) {
                    Ok(index) if index < u16::MAX && reason != StateReason::Unknown => {
                        table.push(reason);
                        index
                    }
                    _ => u16::MAX,
                }
            });
            index.to_le_bytes()
        });
        let reasons = Column::of(reasons);
        // A time-line that is not compensated has no shrinks, and an empty row has none either.
        let shrinks = row.shrinks.get(from..to).filter(|_| to > from);
        Some(ThreadColumns {
            index,
            pid: thread.pid,
            tid: thread.tid,
            comm: &thread.comm,
            first_ns: self.since(start),
            lengths: Column::of(
                row.lengths[from..to]
                    .iter()
                    .map(|length| length.to_le_bytes()),
            ),
            states: Column(row.states[from..to].to_vec()),
            cpus: Column::of(row.cpus[from..to].iter().map(|cpu| cpu.to_le_bytes())),
            reasons,
            reason_table: table.into_iter().map(reason).collect(),
            open,
            delay_ns: shrinks.map(|_| row.first_delay.as_ns()),
            shrinks: shrinks.map(varints),
        })
    }
}

impl Serialize for Piece<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("Timeline", 8)?;
        document.serialize_field("origin_ns", &self.begin.as_monotonic_ns())?;
        document.serialize_field("end_ns", &self.end().as_monotonic_ns())?;
        if let Some(moved_end) = self.picture.moved_end {
            let moved_end = moved_end.min(self.end());
            document.serialize_field("moved_end_ns", &moved_end.as_monotonic_ns())?;
        }
        document.serialize_field("processes", &self.processes())?;
        document.serialize_field("threads", &Sequence(|| self.threads()))?;
        let columns = &self.picture.columns;
        let sensors = || columns.between(&self.seen.sensors, &self.next.sensors, self.begin);
        document.serialize_field("sensors", &Sequence(sensors))?;
        let gaps = || {
            let gaps = &self.picture.gaps.kept()[self.seen.gaps..self.next.gaps];
            gaps.iter().map(|kept| self.gap(kept))
        };
        document.serialize_field("gaps", &Sequence(gaps))?;
        document.serialize_field("left_out", &self.left_out())?;
        document.end()
    }
}

impl Piece<'_> {
    fn gap<'a>(&self, kept: &'a gaps::PicturedGap) -> GapColumns<'a> {
        let pid = match &kept.stream.origin {
            Origin::Program(task) => Some(task.pid),
            _ => None,
        };
        GapColumns {
            label: kept.stream.label(),
            pid,
            from_ns: self.since(kept.gap.from),
            to_ns: self.since(kept.gap.to),
            missed: kept.gap.missed,
            cause: kept.gap.cause.name(),
            sensor: self.picture.columns.index(&kept.stream),
            moved: kept
                .moved
                .map(|(from, to)| [self.since(from), self.since(to)]),
        }
    }
}

/// Its items are made while it is serialised, one after the other.
struct Sequence<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Sequence<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// Bytes that are base64 in the document.
#[derive(Clone, Debug)]
struct Column(Vec<u8>);

impl Column {
    fn of<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> Self {
        Self(values.flatten().collect())
    }
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(&self.0, &BASE64_STANDARD))
    }
}

#[derive(Debug, Serialize)]
struct Process {
    pid: u32,
    comm: String,
}

#[derive(Debug, Serialize)]
struct ThreadColumns<'a> {
    index: usize,
    pid: u32,
    tid: u32,
    comm: &'a str,
    first_ns: u64,
    lengths: Column,
    states: Column,
    cpus: Column,
    reasons: Column,
    reason_table: Vec<(&'static str, u32)>,
    open: Option<Open>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shrinks: Option<Column>,
}

#[derive(Debug, Serialize)]
struct Open {
    from_ns: u64,
    state: u8,
    cpu: u32,
    reason: (&'static str, u32),
}

#[derive(Debug, Serialize)]
struct GapColumns<'a> {
    label: String,
    pid: Option<u32>,
    from_ns: u64,
    to_ns: u64,
    missed: u64,
    cause: &'a str,
    sensor: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<[u64; 2]>,
}

/// Whole numbers, most of them small: seven bits in a byte, the low ones first, the sign in the
/// lowest (as protobuf's sint64).
fn varints(values: &[i64]) -> Column {
    let mut bytes = Vec::with_capacity(values.len() * 2);
    for value in values {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    Column(bytes)
}

/// A reason in the page's format.
const fn reason(reason: StateReason) -> (&'static str, u32) {
    match reason {
        StateReason::Unknown => ("", 0),
        StateReason::Asleep(state) => ("asleep", state as u32),
        StateReason::Displaced(tid) => ("displaced", tid),
        StateReason::Yielded(tid) => ("yielded", tid),
        StateReason::Woken(tid) => ("woken", tid),
        StateReason::Again => ("again", 0),
    }
}

#[cfg(test)]
mod tests;
