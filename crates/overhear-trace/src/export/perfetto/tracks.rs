// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tracks of sensors: their elements as instants, their numbers as counters, and pairs of begin
//! and end as slices.

use std::io::Write;

use overhear_event::{
    ElementView, Origin, StreamDescriptor, StreamId, Timestamp, Value, SAMPLE_TYPE,
};

use super::super::schema;
use super::super::spans::{
    function_of, is_of_cpus, is_of_threads, name_of, Edge, Lanes, SpanFields,
};
use super::{signed, PerfettoExport};

/// Owner of spans: a sensor, or all CPUs of one sensor's name, or one CPU.
pub(super) type SpansOf = (Option<StreamId>, String, Option<u32>);

fn spans_of(stream: &StreamDescriptor) -> SpansOf {
    if let Some((function, _)) = function_of(stream) {
        return (None, format!("{function}#{}", stream.instance), None);
    }
    match stream.origin {
        Origin::Program(_) => (Some(stream.first_stream()), String::new(), None),
        Origin::Kernel { cpu } if is_of_cpus(stream) => (None, stream.sensor.clone(), Some(cpu)),
        Origin::Kernel { .. } | Origin::Sampler => (None, stream.sensor.clone(), None),
    }
}

/// The tracks of a sensor: its elements, and one counter for each field that is a number.
#[derive(Debug)]
pub(super) struct Tracks {
    elements: u64,
    counters: Vec<Option<u64>>,
}

/// The tracks of spans. A span that the kernel begins on one CPU may end on another, so its CPUs
/// share them, except for interrupts and timers.
#[derive(Debug)]
pub(super) struct SpanTracks {
    parent: u64,
    fields: SpanFields,
    lanes: Lanes,
    tracks: Vec<u64>,
    of_threads: bool,
}

impl<W: Write> PerfettoExport<W> {
    /// Announces a stream. Calls of a probed function are drawn as slices only if a stream of their
    /// returns is announced.
    pub fn announce(&mut self, stream: &StreamDescriptor) {
        if let Some((_, Edge::End)) = function_of(stream) {
            self.returning.insert(spans_of(stream));
        }
    }

    /// The slice that an element begins or ends.
    fn slice(&mut self, element: &ElementView<'_>, fields: &[schema::Annotation]) {
        let stream = element.stream;
        let Some(spans) = self.spans.get_mut(&spans_of(stream)) else {
            return;
        };
        let Some(event) = spans.fields.read(stream, element.payload) else {
            return;
        };
        let begins = event.edge == Edge::Begin;
        let found = match event.edge {
            Edge::Begin => {
                let nested = spans.fields.nested();
                spans.lanes.begin(event.key, event.same, nested)
            }
            Edge::End => spans.lanes.end(&event.key).map(|lane| (lane, false)),
        };
        let Some((lane, missed_end)) = found else {
            return;
        };
        let (parent, known) = (spans.parent, spans.tracks.get(lane).copied());
        let track = known.unwrap_or_else(|| {
            let name = match spans_of(stream).2 {
                Some(cpu) => format!("{} CPU {cpu}", stream.sensor),
                None => stream.sensor.clone(),
            };
            self.track(&name, Some(parent), None)
        });
        if let (None, Some(spans)) = (known, self.spans.get_mut(&spans_of(stream))) {
            spans.tracks.push(track);
        }
        if missed_end {
            self.slice_edge(element.time, track, None, &[]);
        }
        let name = begins.then(|| name_of(element));
        self.slice_edge(element.time, track, name, fields);
    }

    /// Ends the slices of a thread that has ended: some system calls never return.
    pub(super) fn end_slices_of(&mut self, tid: u32, time: Timestamp) {
        let mut tracks = Vec::new();
        for spans in self.spans.values_mut().filter(|spans| spans.of_threads) {
            let ended = spans.lanes.end_all(tid.into()).into_iter();
            tracks.extend(ended.filter_map(|lane| spans.tracks.get(lane).copied()));
        }
        for track in tracks {
            self.slice_edge(time, track, None, &[]);
        }
    }

    /// The begin of a slice, which has a name, or its end.
    pub(super) fn slice_edge(
        &mut self,
        time: Timestamp,
        track: u64,
        name: Option<String>,
        fields: &[schema::Annotation],
    ) {
        let event = schema::TrackEvent {
            kind: if name.is_some() { 1 } else { 2 },
            track_uuid: track,
            name,
            categories: vec!["overhear".to_string()],
            debug_annotations: fields.to_vec(),
            ..schema::TrackEvent::default()
        };
        self.packet(Some(time), schema::Data::Event(event));
    }

    /// The tracks of a sensor, made at its first element or gap. Lanes share them.
    pub(super) fn tracks(&mut self, stream: &StreamDescriptor) -> u64 {
        let key = stream.first_stream();
        if let Some(tracks) = self.tracks.get(&key) {
            return tracks.elements;
        }
        let parent = match &stream.origin {
            Origin::Program(task) => Some(self.process_track(task.pid, &task.comm)),
            Origin::Kernel { .. } | Origin::Sampler => None,
        };
        let name = match stream.instance.as_str() {
            "" => stream.sensor.clone(),
            instance => format!("{}#{instance}", stream.sensor),
        };
        let elements = self.track(&name, parent, None);
        // Samples have counters for each thread.
        let is_of_samples = stream.schema.id() == SAMPLE_TYPE;
        let fields = stream.schema.fields().iter();
        let counters = fields
            .map(|field| {
                let is_writer = field.name.starts_with("writer_");
                let is_number = field.kind.is_number() && !is_writer && !is_of_samples;
                (is_number && stream.is_quantity(field)).then(|| {
                    let counter = schema::CounterDescriptor {
                        unit_name: field.unit.clone(),
                    };
                    self.track(&format!("{name}.{}", field.name), parent, Some(counter))
                })
            })
            .collect();
        if let (Some(fields), false) = (
            SpanFields::of(stream, self.returning.contains(&spans_of(stream))),
            self.spans.contains_key(&spans_of(stream)),
        ) {
            let spans = SpanTracks {
                parent: elements,
                fields,
                lanes: Lanes::default(),
                tracks: Vec::new(),
                of_threads: is_of_threads(stream),
            };
            self.spans.insert(spans_of(stream), spans);
        }
        self.tracks.insert(key, Tracks { elements, counters });
        elements
    }

    /// The tracks of processes are numbered by their ids, far from the numbers of others.
    pub(super) fn process_track(&mut self, pid: u32, comm: &str) -> u64 {
        let uuid = 1 << 40 | u64::from(pid);
        if self.process_tracks.insert(pid) {
            let name = self.processes.get(&pid).filter(|name| !name.is_empty());
            let process = schema::ProcessDescriptor {
                pid: signed(pid),
                process_name: name.cloned().unwrap_or_else(|| comm.to_string()),
            };
            let track = schema::TrackDescriptor {
                uuid,
                process: Some(process),
                ..schema::TrackDescriptor::default()
            };
            self.packet(None, schema::Data::Track(track));
        }
        uuid
    }

    pub(super) fn track(
        &mut self,
        name: &str,
        parent_uuid: Option<u64>,
        counter: Option<schema::CounterDescriptor>,
    ) -> u64 {
        let uuid = self.next_track;
        self.next_track += 1;
        let track = schema::TrackDescriptor {
            uuid,
            name: name.to_string(),
            parent_uuid,
            counter,
            process: None,
            thread: None,
        };
        self.packet(None, schema::Data::Track(track));
        uuid
    }

    pub(super) fn instant(
        &mut self,
        time: Timestamp,
        track: u64,
        name: &str,
        fields: Vec<schema::Annotation>,
    ) {
        let event = schema::TrackEvent {
            kind: 3,
            track_uuid: track,
            name: Some(name.to_string()),
            categories: vec!["overhear".to_string()],
            debug_annotations: fields,
            ..schema::TrackEvent::default()
        };
        self.packet(Some(time), schema::Data::Event(event));
    }

    /// The sequence and the fields of an element.
    pub(super) fn annotations(element: &ElementView<'_>) -> Vec<schema::Annotation> {
        let sequence = annotation("sequence", Value::Unsigned(element.sequence));
        let schema = &element.stream.schema;
        let fields = schema.fields().iter().enumerate();
        let fields = fields.filter_map(|(index, field)| {
            let value = schema.read(index, element.payload)?;
            Some(annotation(&field.name, value))
        });
        std::iter::once(sequence).chain(fields).collect()
    }

    pub(super) fn sensor(&mut self, element: &ElementView<'_>) {
        let stream = element.stream;
        let track = self.tracks(stream);
        let fields = Self::annotations(element);
        let mut counted = Vec::new();
        let counters = self.tracks.get(&stream.first_stream());
        let counters = counters.map_or(&[][..], |tracks| &tracks.counters);
        for index in 0..stream.schema.fields().len() {
            let Some(value) = stream.schema.read(index, element.payload) else {
                continue;
            };
            if let Some(&Some(counter)) = counters.get(index) {
                counted.push((counter, counter_value(value)));
            }
        }
        self.slice(element, &fields);
        self.instant(element.time, track, &stream.sensor, fields);
        self.sample(element);
        for (track_uuid, counter) in counted {
            let event = schema::TrackEvent {
                kind: 4,
                track_uuid,
                counter,
                ..schema::TrackEvent::default()
            };
            self.packet(Some(element.time), schema::Data::Event(event));
        }
    }
}

pub(super) fn annotation(name: &str, value: Value<'_>) -> schema::Annotation {
    let value = match value {
        Value::Unsigned(value) => schema::Value::Unsigned(value),
        Value::Signed(value) => schema::Value::Signed(value),
        Value::Float(value) => schema::Value::Float(value),
        Value::Text(text) => schema::Value::Text(text.to_string()),
    };
    schema::Annotation {
        name: Some(name.to_string()),
        value: Some(value),
    }
}

/// Counters are signed; a number that does not fit becomes a floating-point number.
pub(super) fn counter_value(value: Value<'_>) -> Option<schema::Counter> {
    match value {
        Value::Unsigned(value) => Some(match i64::try_from(value) {
            Ok(value) => schema::Counter::Integer(value),
            Err(_) => schema::Counter::Float(value as f64),
        }),
        Value::Signed(value) => Some(schema::Counter::Integer(value)),
        Value::Float(value) => Some(schema::Counter::Float(value)),
        Value::Text(_) => None,
    }
}
