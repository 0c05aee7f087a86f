// SPDX-License-Identifier: MIT OR Apache-2.0
//! The elements of sensors in columns, as the page draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use overhear_event::kernel::{SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    ElementView, FieldKind, Gap, Origin, StreamDescriptor, StreamId, Timestamp, Update, Value,
};
use overhear_trace::name_of_number;
use serde_json::{json, Value as Json};

use super::{packed, varints};

/// Elements that are drawn; the rest is said to be left out.
const MOST_MARKS: u64 = 4_000_000;

/// Fields of the kernel's elements of whose numbers some have names: there are few different ones.
const NAMED_FIELDS: [&str; 4] = ["number", "kind", "operation", "family"];

/// A delta of the page's format that continues in the next entry.
const CONTINUED: u32 = u32::MAX;

/// Keeps elements in columns: those of all program sensors, and of all that comes from the kernel
/// or a clerk and is not drawn as states of threads. An update like any other. The lanes of a
/// sensor share columns, and so do the CPUs of a hook: their elements come in the order of time.
#[derive(Debug, Default)]
pub(crate) struct SensorColumns {
    of_stream: BTreeMap<StreamId, usize>,
    /// By name, and of probes the file.
    of_hook: BTreeMap<(String, String), usize>,
    sensors: Vec<Columns>,
    kept: u64,
    dropped: u64,
}

/// What a reader of the columns has seen of a sensor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    count: u64,
    deltas: usize,
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
    // The CPU of each element, where the stream has one.
    cpus: Option<Vec<f64>>,
    // By how much more than the one before each element is moved in compensated time; empty where costs are
    // not known.
    shrinks: Vec<i64>,
    delay: i64,
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
        let cpus = matches!(stream.origin, Origin::Kernel { .. }).then(Vec::new);
        Self {
            stream,
            first: Timestamp::ZERO,
            last: Timestamp::ZERO,
            count: 0,
            first_sequence: 0,
            deltas: Vec::new(),
            fields,
            cpus,
            shrinks: Vec::new(),
            delay: 0,
        }
    }

    fn push(&mut self, element: &ElementView<'_>, moved: Option<Timestamp>) {
        if let Some(moved) = moved {
            let delay = element.time.since(moved).as_ns().cast_signed();
            self.shrinks.push(delay - self.delay);
            self.delay = delay;
        }
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
        if let (Some(cpus), Origin::Kernel { cpu }) = (&mut self.cpus, &element.stream.origin) {
            cpus.push(f64::from(*cpu));
        }
    }

    /// Where a reader is that has seen at most so many more elements.
    fn after(&self, seen: Seen, most: usize) -> Seen {
        if self.count - seen.count <= most as u64 {
            return Seen {
                count: self.count,
                deltas: self.deltas.len(),
            };
        }
        // The first element has no delta.
        let mut next = seen;
        next.count += u64::from(seen.count == 0);
        while next.count - seen.count < most as u64 {
            next.count += u64::from(self.deltas[next.deltas] != CONTINUED);
            next.deltas += 1;
        }
        next
    }

    /// What the numbers of a kernel's field are called: those that have names.
    fn names(&self, field: &str, numbers: &[f64]) -> BTreeMap<String, &'static str> {
        if !matches!(self.stream.origin, Origin::Kernel { .. }) {
            return BTreeMap::new();
        }
        let different: BTreeSet<u64> = match NAMED_FIELDS.contains(&field) {
            true => numbers.iter().map(|number| *number as u64).collect(),
            false => BTreeSet::new(),
        };
        let named = different.into_iter().filter_map(|number| {
            let name = name_of_number(&self.stream.sensor, field, number)?;
            Some((number.to_string(), name))
        });
        named.collect()
    }

    /// What came after `seen` up to `next`; nothing if there is nothing new.
    fn json(&self, index: usize, seen: Seen, next: Seen, begin: Timestamp) -> Option<Json> {
        if next.count == seen.count {
            return None;
        }
        let (pid, comm) = match &self.stream.origin {
            Origin::Program(task) => (Some(task.pid), task.comm.as_str()),
            _ => (None, ""),
        };
        let (from, to) = (seen.count as usize, next.count as usize);
        let schema = self.stream.schema.fields().iter();
        let mut fields: Vec<Json> = schema
            .zip(&self.fields)
            .map(|(field, column)| match column {
                Column::Numbers(numbers) => json!({
                    "name": field.name,
                    "unit": field.unit,
                    "kind": "number",
                    "whole": !matches!(field.kind, FieldKind::F32 | FieldKind::F64),
                    "values": packed(numbers[from..to].iter().map(|number| number.to_le_bytes())),
                    "names": self.names(&field.name, &numbers[from..to]),
                }),
                Column::Texts(texts) => json!({
                    "name": field.name,
                    "unit": field.unit,
                    "kind": "text",
                    "values": texts[from..to],
                }),
            })
            .collect();
        if let Some(cpus) = &self.cpus {
            fields.push(json!({
                "name": "cpu",
                "unit": "",
                "kind": "number",
                "whole": true,
                "values": packed(cpus[from..to].iter().map(|cpu| cpu.to_le_bytes())),
            }));
        }
        // Positions in several lanes, or on several CPUs, have no order among themselves.
        let is_one = self.stream.lane.is_none() && self.cpus.is_none();
        let mut json = json!({
            "index": index,
            "pid": pid,
            "comm": comm,
            "id": self.stream.sensor,
            "instance": self.stream.instance,
            "type": self.stream.schema.id(),
            "first_ns": self.first.since(begin).as_ns(),
            "deltas": packed(self.deltas[seen.deltas..next.deltas].iter().map(|delta| delta.to_le_bytes())),
            "first_sequence": is_one.then_some(self.first_sequence),
            "fields": fields,
        });
        if let (Some(shrinks), Some(json)) = (self.shrinks.get(from..to), json.as_object_mut()) {
            json.insert("shrinks".to_string(), varints(shrinks).into());
        }
        Some(json)
    }
}

impl SensorColumns {
    pub(crate) fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        let key = stream.first_stream();
        if self.of_stream.contains_key(&key) {
            return;
        }
        let next = self.sensors.len();
        let index = match &stream.origin {
            Origin::Program(_) => next,
            Origin::Kernel { .. } | Origin::Clerk => {
                let drawn_as_states = [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE, SCHEDSTAT];
                if drawn_as_states.contains(&stream.sensor.as_str()) {
                    return;
                }
                let of = (stream.sensor.clone(), stream.instance.clone());
                *self.of_hook.entry(of).or_insert(next)
            }
        };
        self.of_stream.insert(key, index);
        if index == next {
            self.sensors.push(Columns::new(Arc::clone(stream)));
        }
    }

    /// The processes that own a sensor of which there are elements.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        let heard = self.sensors.iter().filter(|columns| columns.count > 0);
        heard.filter_map(|columns| match &columns.stream.origin {
            Origin::Program(task) => Some(task.pid),
            _ => None,
        })
    }

    /// Which of the sensors a stream belongs to.
    pub(crate) fn index(&self, stream: &StreamDescriptor) -> Option<usize> {
        self.of_stream.get(&stream.first_stream()).copied()
    }

    /// What came after `seen`, which is brought up to date: at most so many elements of each sensor.
    pub(crate) fn json(&self, seen: &mut Vec<Seen>, most: usize, begin: Timestamp) -> Vec<Json> {
        seen.resize(self.sensors.len(), Seen::default());
        let news = self.sensors.iter().zip(seen).enumerate();
        news.filter_map(|(index, (columns, seen))| {
            let next = columns.after(*seen, most);
            columns.json(index, std::mem::replace(seen, next), next, begin)
        })
        .collect()
    }

    /// Whether there are elements beyond `seen`.
    pub(crate) fn has_more(&self, seen: &[Seen]) -> bool {
        let mut pairs = self.sensors.iter().zip(seen);
        pairs.any(|(columns, seen)| columns.count > seen.count)
    }

    /// Elements that had no room.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl SensorColumns {
    /// Keeps an element, with its compensated time where costs are known.
    pub(crate) fn push(&mut self, element: &ElementView<'_>, moved: Option<Timestamp>) {
        let Some(&index) = self.of_stream.get(&element.stream.first_stream()) else {
            return;
        };
        if self.kept < MOST_MARKS {
            self.kept += 1;
            self.sensors[index].push(element, moved);
        } else {
            self.dropped += 1;
        }
    }
}

impl Update for SensorColumns {
    fn element(&mut self, element: &ElementView<'_>) {
        self.push(element, None);
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}
