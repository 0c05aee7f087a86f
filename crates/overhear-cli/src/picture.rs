// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time-line of a recording as the columns that the page draws (`page/mod.rs` describes them).

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::prelude::{Engine, BASE64_STANDARD};
use overhear_event::{
    ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp, Update, Value,
};
use overhear_metrics::{Row, Scheduling, Thread, Timeline};
use serde_json::{json, Value as Json};

/// Elements of program sensors that are drawn as marks; the rest is said to be left out.
const MOST_MARKS: u64 = 4_000_000;

/// A delta of the page's format that continues in the next entry.
const CONTINUED: u32 = u32::MAX;

/// What the picture is made of.
pub(crate) struct Parts<'a> {
    pub(crate) scheduling: &'a Scheduling<Timeline>,
    pub(crate) columns: &'a SensorColumns,
    pub(crate) gaps: &'a [(Arc<StreamDescriptor>, Gap)],
    pub(crate) begin: Timestamp,
    pub(crate) end: Timestamp,
}

/// Keeps the elements of all program sensors in columns. An update like any other. The lanes of a
/// sensor share columns: their elements come in the order of time.
#[derive(Debug, Default)]
pub(crate) struct SensorColumns {
    sensors: BTreeMap<StreamId, Columns>,
    kept: u64,
    dropped: u64,
}

#[derive(Debug)]
struct Columns {
    stream: Arc<StreamDescriptor>,
    first: Timestamp,
    last: Timestamp,
    count: u64,
    first_sequence: u64,
    deltas: Vec<u32>,
    fields: Vec<Column>,
}

#[derive(Debug)]
enum Column {
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

impl Columns {
    fn new(stream: Arc<StreamDescriptor>) -> Self {
        let fields = stream.schema.fields().iter();
        let fields = fields
            .map(|field| match field.kind.is_number() {
                true => Column::Numbers(Vec::new()),
                false => Column::Texts(Vec::new()),
            })
            .collect();
        Self {
            stream,
            first: Timestamp::ZERO,
            last: Timestamp::ZERO,
            count: 0,
            first_sequence: 0,
            deltas: Vec::new(),
            fields,
        }
    }

    fn push(&mut self, element: &ElementView<'_>) {
        if self.count == 0 {
            (self.first, self.first_sequence) = (element.time, element.sequence);
        } else {
            let mut delta = element.time.since(self.last).as_ns();
            while delta >= u64::from(CONTINUED) {
                self.deltas.push(CONTINUED);
                delta -= u64::from(CONTINUED);
            }
            self.deltas.push(delta as u32);
        }
        self.last = element.time;
        self.count += 1;
        for (index, column) in self.fields.iter_mut().enumerate() {
            let value = element.stream.schema.read(index, element.payload);
            match (column, value) {
                (Column::Texts(texts), Some(Value::Text(text))) => texts.push(text.to_string()),
                (Column::Texts(texts), _) => texts.push(String::new()),
                (Column::Numbers(numbers), value) => {
                    numbers.push(value.and_then(|value| value.as_f64()).unwrap_or(f64::NAN));
                }
            }
        }
    }
}

impl SensorColumns {
    pub(crate) fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        if matches!(stream.origin, Origin::Program(_)) {
            self.sensors
                .entry(stream.first_stream())
                .or_insert_with(|| Columns::new(Arc::clone(stream)));
        }
    }
}

impl Update for SensorColumns {
    fn element(&mut self, element: &ElementView<'_>) {
        let Some(columns) = self.sensors.get_mut(&element.stream.first_stream()) else {
            return;
        };
        if self.kept < MOST_MARKS {
            self.kept += 1;
            columns.push(element);
        } else {
            self.dropped += 1;
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// The time-line document.
pub(crate) fn timeline(parts: &Parts<'_>) -> Json {
    let since = |time: Timestamp| time.since(parts.begin).as_ns();
    let rows = parts.scheduling.observer().rows();
    let threads: Vec<Json> = parts
        .scheduling
        .threads()
        .iter()
        .zip(rows)
        .filter_map(|(thread, row)| thread_json(thread, row, parts.begin))
        .collect();
    let mut processes: Vec<(u32, String)> = Vec::new();
    let mut add = |pid: u32, comm: &str| {
        match processes.iter_mut().find(|(known, _)| *known == pid) {
            // The name that a process had last says most.
            Some((_, name)) if !comm.is_empty() => *name = comm.to_string(),
            Some(_) => {}
            None => processes.push((pid, comm.to_string())),
        }
    };
    for thread in parts.scheduling.threads() {
        let leader = thread.tid == thread.pid;
        add(thread.pid, if leader { &thread.comm } else { "" });
    }
    let sensors: Vec<&Columns> = parts
        .columns
        .sensors
        .values()
        .filter(|columns| columns.count > 0)
        .collect();
    for sensor in &sensors {
        if let Origin::Program(task) = &sensor.stream.origin {
            add(task.pid, "");
        }
    }
    let gaps: Vec<Json> = parts
        .gaps
        .iter()
        .map(|(stream, gap)| {
            let pid = match &stream.origin {
                Origin::Program(task) => Some(task.pid),
                _ => None,
            };
            let sensor = sensors
                .iter()
                .position(|columns| columns.stream.first_stream() == stream.first_stream());
            json!({
                "label": stream.label(),
                "pid": pid,
                "from_ns": since(gap.from),
                "to_ns": since(gap.to),
                "missed": gap.missed,
                "cause": gap.cause.name(),
                "sensor": sensor,
            })
        })
        .collect();
    let cpus = rows
        .iter()
        .flat_map(|row| &row.cpus)
        .filter(|&&cpu| cpu != u16::MAX)
        .max();
    json!({
        "origin_ns": parts.begin.as_monotonic_ns(),
        "end_ns": parts.end.as_monotonic_ns(),
        "cpus": cpus.map_or(0, |cpu| u32::from(*cpu) + 1),
        "processes": processes
            .iter()
            .map(|(pid, comm)| json!({ "pid": pid, "comm": comm }))
            .collect::<Vec<_>>(),
        "threads": threads,
        "sensors": sensors.iter().map(|columns| sensor_json(columns, since(columns.first))).collect::<Vec<_>>(),
        "gaps": gaps,
        "dropped_intervals": parts.scheduling.observer().dropped(),
        "dropped_marks": parts.columns.dropped,
    })
}

fn thread_json(thread: &Thread, row: &Row, begin: Timestamp) -> Option<Json> {
    let start = row.start?;
    Some(json!({
        "pid": thread.pid,
        "tid": thread.tid,
        "comm": thread.comm,
        "first_ns": start.since(begin).as_ns(),
        "lengths": packed(row.lengths.iter().map(|length| length.to_le_bytes())),
        "states": BASE64_STANDARD.encode(&row.states),
        "cpus": packed(row.cpus.iter().map(|cpu| cpu.to_le_bytes())),
    }))
}

fn sensor_json(columns: &Columns, first_ns: u64) -> Json {
    let (pid, comm) = match &columns.stream.origin {
        Origin::Program(task) => (task.pid, task.comm.as_str()),
        _ => (0, ""),
    };
    let fields: Vec<Json> = columns
        .stream
        .schema
        .fields()
        .iter()
        .zip(&columns.fields)
        .map(|(field, column)| match column {
            Column::Numbers(numbers) => json!({
                "name": field.name,
                "unit": field.unit,
                "kind": "number",
                "values": packed(numbers.iter().map(|number| number.to_le_bytes())),
            }),
            Column::Texts(texts) => json!({
                "name": field.name,
                "unit": field.unit,
                "kind": "text",
                "values": texts,
            }),
        })
        .collect();
    json!({
        "pid": pid,
        "comm": comm,
        "id": columns.stream.sensor,
        "instance": columns.stream.instance,
        "type": columns.stream.schema.id(),
        "first_ns": first_ns,
        "deltas": packed(columns.deltas.iter().map(|delta| delta.to_le_bytes())),
        // Positions in several lanes have no order among themselves.
        "first_sequence": columns.stream.lane.is_none().then_some(columns.first_sequence),
        "fields": fields,
    })
}

fn packed<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> String {
    let bytes: Vec<u8> = values.flatten().collect();
    BASE64_STANDARD.encode(bytes)
}
