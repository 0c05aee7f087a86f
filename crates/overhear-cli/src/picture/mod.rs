// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time-line as the columns that the page draws (`page/mod.rs` describes them): of a recording at
//! once, of a run that goes on piece by piece.

mod sensors;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::prelude::{Engine, BASE64_STANDARD};
use overhear_event::{Gap, Origin, StreamDescriptor, Timestamp};
use overhear_metrics::{Reason, Row, Scheduling, Thread, ThreadState, Timeline};
use serde_json::{json, Value as Json};

pub(crate) use sensors::SensorColumns;

/// Elements that were missed, as the picture shows them.
#[derive(Debug)]
pub(crate) struct PicturedGap {
    pub(crate) stream: Arc<StreamDescriptor>,
    pub(crate) gap: Gap,
    /// From when to when in compensated time, where costs are known.
    pub(crate) moved: Option<(Timestamp, Timestamp)>,
}

use sensors::Seen;

/// What the picture is made of.
pub(crate) struct Parts<'a> {
    pub(crate) scheduling: &'a Scheduling<Timeline>,
    pub(crate) columns: &'a SensorColumns,
    pub(crate) gaps: &'a [PicturedGap],
    pub(crate) begin: Timestamp,
    pub(crate) end: Timestamp,
}

/// What a reader of the picture has seen of it, so that it is told the rest alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    // Intervals per thread.
    threads: Vec<usize>,
    sensors: Vec<Seen>,
    gaps: usize,
}

/// The whole time-line document.
pub(crate) fn timeline(parts: &Parts<'_>) -> Json {
    piece(parts, &mut Cursor::default(), usize::MAX).0
}

/// What came after `seen`, which is brought up to date: about `most` intervals, and as many elements
/// of each sensor; and whether there is more.
pub(crate) fn piece(parts: &Parts<'_>, seen: &mut Cursor, most: usize) -> (Json, bool) {
    let mut room = most;
    let since = |time: Timestamp| time.since(parts.begin).as_ns();
    let all = parts.scheduling.threads();
    let rows = parts.scheduling.observer().rows();
    seen.threads.resize(all.len(), 0);
    let threads: Vec<Json> = all
        .iter()
        .zip(rows)
        .zip(&mut seen.threads)
        .enumerate()
        .filter_map(|(index, ((thread, row), seen))| {
            let json = thread_json(index, thread, row, seen, room, parts)?;
            room -= json.1;
            Some(json.0)
        })
        .collect();
    let sensors = parts.columns.json(&mut seen.sensors, most, parts.begin);
    let more = (seen.threads.iter().zip(rows)).any(|(seen, row)| *seen < row.lengths.len())
        || parts.columns.has_more(&seen.sensors);
    let mut processes: Vec<(u32, String)> = Vec::new();
    let mut place: BTreeMap<u32, usize> = BTreeMap::new();
    let mut add = |pid: u32, comm: &str| {
        let at = *place.entry(pid).or_insert_with(|| {
            processes.push((pid, String::new()));
            processes.len() - 1
        });
        // The name that a process had last says most.
        if !comm.is_empty() {
            processes[at].1 = comm.to_string();
        }
    };
    for thread in all {
        let leader = thread.tid == thread.pid;
        add(thread.pid, if leader { thread.comm.as_str() } else { "" });
    }
    for pid in parts.columns.pids() {
        add(pid, "");
    }
    let gaps: Vec<Json> = parts.gaps[seen.gaps..]
        .iter()
        .map(|PicturedGap { stream, gap, moved }| {
            let pid = match &stream.origin {
                Origin::Program(task) => Some(task.pid),
                _ => None,
            };
            let mut json = json!({
                "label": stream.label(),
                "pid": pid,
                "from_ns": since(gap.from),
                "to_ns": since(gap.to),
                "missed": gap.missed,
                "cause": gap.cause.name(),
                "sensor": parts.columns.index(stream),
            });
            if let (Some((from, to)), Some(json)) = (moved, json.as_object_mut()) {
                json.insert("moved".to_string(), json!([since(*from), since(*to)]));
            }
            json
        })
        .collect();
    seen.gaps = parts.gaps.len();
    let json = json!({
        "origin_ns": parts.begin.as_monotonic_ns(),
        "end_ns": parts.end.as_monotonic_ns(),
        "processes": processes
            .iter()
            .map(|(pid, comm)| json!({ "pid": pid, "comm": comm }))
            .collect::<Vec<_>>(),
        "threads": threads,
        "sensors": sensors,
        "gaps": gaps,
        "dropped_intervals": parts.scheduling.observer().dropped(),
        "dropped_marks": parts.columns.dropped(),
    });
    (json, more)
}

/// At most `room` intervals of a thread from `seen` on, with their number, and if these are all, what it
/// does at the end if it goes on.
fn thread_json(
    index: usize,
    thread: &Thread,
    row: &Row,
    seen: &mut usize,
    room: usize,
    parts: &Parts<'_>,
) -> Option<(Json, usize)> {
    let begin = parts.begin;
    let from = *seen;
    let to = row.lengths.len().min(from.saturating_add(room));
    let is_all = to == row.lengths.len();
    let open = (is_all && thread.state() != ThreadState::Absent && thread.since() < parts.end)
        .then(|| {
            let cpu = thread
                .cpu()
                .filter(|_| thread.state() == ThreadState::Running);
            let (kind, value) = reason(thread.reason());
            json!({
                "from_ns": thread.since().since(begin).as_ns(),
                "state": thread.state().code(),
                "cpu": cpu.unwrap_or(u32::from(u16::MAX)),
                "reason": [kind, value],
            })
        });
    let start = match row.start {
        Some(start) => start,
        None if open.is_some() => thread.since(),
        None => return None,
    };
    *seen = to;
    if from == to && open.is_none() && from > 0 {
        return None;
    }
    // Few reasons come again and again: a table, and a column of places in it.
    let mut table: Vec<Reason> = Vec::new();
    let mut places: BTreeMap<Reason, u16> = BTreeMap::new();
    let reasons = row.reasons[from..to].iter().map(|&reason| {
        let place = *places.entry(reason).or_insert_with(|| {
            // The last place stands for what is not told: there, the table is full.
            match u16::try_from(table.len()) {
                Ok(place) if place < u16::MAX && reason != Reason::Untold => {
                    table.push(reason);
                    place
                }
                _ => u16::MAX,
            }
        });
        place.to_le_bytes()
    });
    let reasons = packed(reasons);
    let mut json = json!({
        "index": index,
        "pid": thread.pid,
        "tid": thread.tid,
        "comm": thread.comm,
        "first_ns": start.since(begin).as_ns(),
        "lengths": packed(row.lengths[from..to].iter().map(|length| length.to_le_bytes())),
        "states": BASE64_STANDARD.encode(&row.states[from..to]),
        "cpus": packed(row.cpus[from..to].iter().map(|cpu| cpu.to_le_bytes())),
        "reasons": reasons,
        "reason_table": table.iter().map(|&of| reason(of)).collect::<Vec<_>>(),
        "open": open,
    });
    if let (Some(shrinks), Some(json)) = (row.shrinks.get(from..to), json.as_object_mut()) {
        // Those of a time-line that is not compensated are missing, but for an empty row.
        if to > from {
            json.insert("shrinks".to_string(), varints(shrinks).into());
            json.insert("delay_ns".to_string(), row.first_delay.as_ns().into());
        }
    }
    Some((json, to - from))
}

/// Whole numbers, most of them small: seven bits in a byte, the low ones first, the sign in the lowest
/// (as protobuf's sint64).
fn varints(values: &[i64]) -> String {
    let mut bytes = Vec::with_capacity(values.len() * 2);
    for value in values {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    BASE64_STANDARD.encode(bytes)
}

/// A reason as the page reads it.
const fn reason(reason: Reason) -> (&'static str, u32) {
    match reason {
        Reason::Untold => ("", 0),
        Reason::Asleep(state) => ("asleep", state as u32),
        Reason::Displaced(tid) => ("displaced", tid),
        Reason::Yielded(tid) => ("yielded", tid),
        Reason::Woken(tid) => ("woken", tid),
        Reason::Again => ("again", 0),
    }
}

fn packed<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> String {
    let bytes: Vec<u8> = values.flatten().collect();
    BASE64_STANDARD.encode(bytes)
}
