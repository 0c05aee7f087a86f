// SPDX-License-Identifier: MIT OR Apache-2.0
//! The elements of sensors in columns, as the page draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use overhear_event::kernel::{SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    ElementView, FieldKind, Origin, SampleLayout, StreamDescriptor, StreamId, Timestamp, Value,
};
use overhear_trace::name_of_number;
use serde::{Serialize, Serializer};

use super::{varints, Column, Sequence};

/// Fields of the kernel's elements that have names for some of their numbers. They have few
/// different numbers.
const NAMED_FIELDS: [&str; 4] = ["number", "kind", "operation", "family"];

/// A delta of the page's format that continues in the next entry.
const CONTINUED: u32 = u32::MAX;

/// Keeps elements in columns: those of all program sensors, and those of kernel sensors and
/// samplers that are not drawn as states of threads. The lanes of a sensor share columns, and so do
/// the CPUs of a hook: their elements come in the order of time.
///
/// A sensor whose elements find no room is cut: none of its later elements is kept.
#[derive(Debug, Default)]
pub(super) struct SensorColumns {
    of_stream: BTreeMap<StreamId, usize>,
    /// Index by name, and for probes also by file.
    of_hook: BTreeMap<(String, String), usize>,
    sensors: Vec<Columns>,
    /// Bytes of the page that all elements may take, and those they take already.
    room: u64,
    used: u64,
}

/// A sensor of which not all elements are kept.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) label: String,
    /// Time of the first element that is not kept.
    pub(super) at: Timestamp,
    /// Elements that are not kept.
    pub(super) dropped: u64,
}

/// Read position of a reader in the columns of a sensor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    count: u64,
    deltas: usize,
}

#[cfg(test)]
impl Seen {
    pub(super) const fn count(self) -> u64 {
        self.count
    }
}

#[derive(Debug)]
struct Columns {
    stream: Arc<StreamDescriptor>,
    first: Timestamp,
    last: Timestamp,
    count: u64,
    first_sequence: u64,
    deltas: Vec<u32>,
    fields: Vec<Values>,
    // The CPU of each element, if the stream has one.
    cpus: Option<Vec<f64>>,
    // For each element, how much more it is moved in compensated time than the one before; empty if
    // costs are unknown.
    shrinks: Vec<i64>,
    delay: i64,
    /// Bytes of the page that the elements may take, and those they take already.
    room: u64,
    used: u64,
    /// Time of the first element that is not kept, and the number of such elements.
    cut_at: Option<Timestamp>,
    dropped: u64,
}

#[derive(Debug)]
enum Values {
    Numbers(Vec<f64>),
    /// All texts in one string, and the end of each.
    Texts(String, Vec<u32>),
}

/// Size of `bytes` bytes of a column as base64.
const fn encoded(bytes: u64) -> u64 {
    bytes.div_ceil(3) * 4
}

/// Size of a text in the document, with its quotes and comma; escapes are not counted.
const fn quoted(bytes: u64) -> u64 {
    bytes + 3
}

impl Columns {
    fn new(stream: Arc<StreamDescriptor>) -> Self {
        let fields = stream.schema.fields().iter();
        let fields = fields
            .map(|field| match field.kind.is_number() {
                true => Values::Numbers(Vec::new()),
                false => Values::Texts(String::new(), Vec::new()),
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
            room: u64::MAX,
            used: 0,
            cut_at: None,
            dropped: 0,
        }
    }

    /// Upper bound of the size of an element in bytes of the page.
    fn element_bytes(&self) -> u64 {
        let fields = self.stream.schema.fields().iter();
        let fields = fields.map(|field| match field.kind {
            FieldKind::Text(bytes) => quoted(bytes.into()),
            _ => encoded(8),
        });
        let cpu = self.cpus.as_ref().map_or(0, |_| encoded(8));
        // A time, and how far it is moved.
        encoded(4) + encoded(2) + cpu + fields.sum::<u64>()
    }

    /// Additional bytes for the distance of the next element, compared with a usual distance.
    fn distance_bytes(&self, next: Timestamp) -> u64 {
        let distance_ns = match self.count {
            0 => 0,
            _ => next.since(self.last).as_ns(),
        };
        distance_ns / u64::from(CONTINUED) * encoded(4)
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
                (Values::Texts(texts, ends), value) => {
                    if let Some(Value::Text(text)) = value {
                        texts.push_str(text);
                    }
                    ends.push(u32::try_from(texts.len()).unwrap_or(u32::MAX));
                }
                (Values::Numbers(numbers), value) => {
                    numbers.push(value.and_then(|value| value.as_f64()).unwrap_or(f64::NAN));
                }
            }
        }
        if let (Some(cpus), Origin::Kernel { cpu }) = (&mut self.cpus, &element.stream.origin) {
            cpus.push(f64::from(*cpu));
        }
    }

    /// Read position after at most `most` more elements.
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

    /// The names of numbers in a field of the kernel, for numbers that have one.
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

    /// The elements from `seen` to `next`; `None` if there is nothing new.
    fn between(
        &self,
        index: usize,
        seen: Seen,
        next: Seen,
        begin: Timestamp,
    ) -> Option<SensorDocument<'_>> {
        if next.count == seen.count {
            return None;
        }
        let (pid, comm) = match &self.stream.origin {
            Origin::Program(task) => (Some(task.pid), task.comm.as_str()),
            _ => (None, ""),
        };
        let (from, to) = (seen.count as usize, next.count as usize);
        let layout = SampleLayout::of(&self.stream.schema);
        let quantities = layout.iter().flat_map(SampleLayout::quantities);
        let counts = quantities.filter(|quantity| quantity.is_count());
        let counts: Vec<&String> = counts.map(|quantity| &quantity.name).collect();
        let schema = self.stream.schema.fields().iter();
        let fields = schema
            .zip(&self.fields)
            .map(|(field, column)| match column {
                Values::Numbers(numbers) => FieldDocument {
                    name: &field.name,
                    unit: &field.unit,
                    kind: "number",
                    whole: Some(!matches!(field.kind, FieldKind::F32 | FieldKind::F64)),
                    count: counts.contains(&&field.name),
                    values: ValuesDocument::numbers(&numbers[from..to]),
                    names: self.names(&field.name, &numbers[from..to]),
                },
                Values::Texts(texts, ends) => FieldDocument {
                    name: &field.name,
                    unit: &field.unit,
                    kind: "text",
                    whole: None,
                    count: false,
                    values: ValuesDocument::Texts {
                        texts,
                        ends,
                        from,
                        to,
                    },
                    names: BTreeMap::new(),
                },
            });
        let mut fields: Vec<FieldDocument<'_>> = fields.collect();
        if let Some(cpus) = &self.cpus {
            fields.push(FieldDocument {
                name: "cpu",
                unit: "",
                kind: "number",
                whole: Some(true),
                count: false,
                values: ValuesDocument::numbers(&cpus[from..to]),
                names: BTreeMap::new(),
            });
        }
        // Positions in several lanes, or on several CPUs, have no common order.
        let is_one = self.stream.lane.is_none() && self.cpus.is_none();
        let deltas = &self.deltas[seen.deltas..next.deltas];
        Some(SensorDocument {
            index,
            pid,
            comm,
            id: &self.stream.sensor,
            instance: &self.stream.instance,
            type_id: self.stream.schema.id().to_string(),
            first_ns: self.first.since(begin).as_ns(),
            deltas: Column::of(deltas.iter().map(|delta| delta.to_le_bytes())),
            first_sequence: is_one.then_some(self.first_sequence),
            fields,
            shrinks: self.shrinks.get(from..to).map(varints),
        })
    }
}

#[derive(Debug, Serialize)]
pub(super) struct SensorDocument<'a> {
    index: usize,
    pid: Option<u32>,
    comm: &'a str,
    id: &'a str,
    instance: &'a str,
    #[serde(rename = "type")]
    type_id: String,
    first_ns: u64,
    deltas: Column,
    first_sequence: Option<u64>,
    fields: Vec<FieldDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shrinks: Option<Column>,
}

#[derive(Debug, Serialize)]
struct FieldDocument<'a> {
    name: &'a str,
    unit: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<bool>,
    /// Whether the values are counts since the previous sample.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    count: bool,
    values: ValuesDocument<'a>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<String, &'static str>,
}

#[derive(Debug)]
enum ValuesDocument<'a> {
    Numbers(Column),
    Texts {
        texts: &'a str,
        ends: &'a [u32],
        from: usize,
        to: usize,
    },
}

impl ValuesDocument<'_> {
    fn numbers(numbers: &[f64]) -> Self {
        Self::Numbers(Column::of(
            numbers.iter().map(|number| number.to_le_bytes()),
        ))
    }
}

impl Serialize for ValuesDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Numbers(column) => column.serialize(serializer),
            &Self::Texts {
                texts,
                ends,
                from,
                to,
            } => {
                let end = |index: usize| ends[index] as usize;
                let begin = |index: usize| index.checked_sub(1).map_or(0, end);
                let texts = || (from..to).map(|index| &texts[begin(index)..end(index)]);
                Sequence(texts).serialize(serializer)
            }
        }
    }
}

impl SensorColumns {
    /// Columns without elements, with this limit in bytes of the page.
    pub(super) fn with_room(room: u64) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Divides the room among the announced sensors: slow ones get room for all their elements, and
    /// the others share the rest. `elements` is the maximum number of elements of a stream.
    pub(super) fn divide(&mut self, streams: impl Iterator<Item = (StreamId, u64)>) {
        let mut needs = vec![0_u64; self.sensors.len()];
        for (stream, elements) in streams {
            if let Some(&index) = self.of_stream.get(&stream) {
                needs[index] += elements * self.sensors[index].element_bytes();
            }
        }
        let mut ascending: Vec<usize> = (0..needs.len()).collect();
        ascending.sort_by_key(|&index| needs[index]);
        let mut left = self.room;
        for (rank, &index) in ascending.iter().enumerate() {
            let share = left / (ascending.len() - rank) as u64;
            self.sensors[index].room = needs[index].min(share);
            left -= self.sensors[index].room;
        }
    }

    pub(super) fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        let key = stream.first_stream();
        if self.of_stream.contains_key(&key) {
            return;
        }
        let next = self.sensors.len();
        let index = match &stream.origin {
            Origin::Program(_) => next,
            Origin::Kernel { .. } | Origin::Sampler => {
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

    /// The processes that own a sensor with elements.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        let active = self.sensors.iter().filter(|columns| columns.count > 0);
        active.filter_map(|columns| match &columns.stream.origin {
            Origin::Program(task) => Some(task.pid),
            _ => None,
        })
    }

    /// Index of the sensor that a stream belongs to.
    pub(super) fn index(&self, stream: &StreamDescriptor) -> Option<usize> {
        self.of_stream.get(&stream.first_stream()).copied()
    }

    /// Read positions after `seen` and at most `most` more elements of each sensor.
    pub(super) fn after(&self, seen: &[Seen], most: usize) -> Vec<Seen> {
        let seen = seen
            .iter()
            .copied()
            .chain(std::iter::repeat(Seen::default()));
        let both = self.sensors.iter().zip(seen);
        both.map(|(columns, seen)| columns.after(seen, most))
            .collect()
    }

    /// The elements between two read positions.
    pub(super) fn between<'a>(
        &'a self,
        seen: &'a [Seen],
        next: &'a [Seen],
        begin: Timestamp,
    ) -> impl Iterator<Item = SensorDocument<'a>> {
        let seen = seen
            .iter()
            .copied()
            .chain(std::iter::repeat(Seen::default()));
        let all = self.sensors.iter().zip(seen).zip(next).enumerate();
        all.filter_map(move |(index, ((columns, seen), &next))| {
            columns.between(index, seen, next, begin)
        })
    }

    /// Whether there are elements after `seen`.
    pub(super) fn has_more(&self, seen: &[Seen]) -> bool {
        let mut pairs = self.sensors.iter().zip(seen);
        pairs.any(|(columns, seen)| columns.count > seen.count)
    }

    /// Whether there are no elements.
    pub(super) fn is_empty(&self) -> bool {
        self.sensors.iter().all(|columns| columns.count == 0)
    }

    /// The sensors of which not all elements are kept; those that lack most come first.
    pub(super) fn cuts(&self) -> Vec<Cut> {
        let all = self.sensors.iter().filter_map(|columns| {
            Some(Cut {
                label: columns.stream.sensor_label(),
                at: columns.cut_at?,
                dropped: columns.dropped,
            })
        });
        let mut all: Vec<Cut> = all.collect();
        all.sort_by_key(|cut| std::cmp::Reverse(cut.dropped));
        all
    }

    /// Time when the last sensor was cut; `None` if a sensor with elements was not cut.
    pub(super) fn cut_at(&self) -> Option<Timestamp> {
        let active = self.sensors.iter();
        let active = active.filter(|columns| columns.count > 0 || columns.dropped > 0);
        let cuts: Option<Vec<Timestamp>> = active.map(|columns| columns.cut_at).collect();
        cuts?.into_iter().max()
    }

    /// Keeps no element of any sensor from now on.
    pub(super) fn close(&mut self) {
        self.room = 0;
    }

    /// Keeps an element if there is room, with its compensated time if costs are known.
    pub(super) fn push(&mut self, element: &ElementView<'_>, moved: Option<Timestamp>) {
        let Some(&index) = self.of_stream.get(&element.stream.first_stream()) else {
            return;
        };
        let columns = &mut self.sensors[index];
        let bytes = columns.element_bytes() + columns.distance_bytes(element.time);
        let has_room = columns.used + bytes <= columns.room && self.used + bytes <= self.room;
        if columns.cut_at.is_some() || !has_room {
            columns.cut_at.get_or_insert(element.time);
            columns.dropped += 1;
            return;
        }
        columns.used += bytes;
        self.used += bytes;
        columns.push(element, moved);
    }
}
