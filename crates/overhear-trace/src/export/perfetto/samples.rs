// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tracks of samples: a counter for each thread and quantity, and a slice for each job.
//!
//! Counts are per second of the time to which they belong, so that samples at unequal distances can
//! be compared, and begin with that time: Perfetto draws a value from its time to the next one.

use std::collections::BTreeMap;
use std::io::Write;

use overhear_event::{
    ElementView, Nanos, SampleHeader, SampleLayout, SamplePoint, SampledQuantity, StreamDescriptor,
    StreamId, Timestamp, Value,
};

use super::super::schema;
use super::tracks::counter_value;
use super::PerfettoExport;

/// The samples of one sampler.
#[derive(Debug)]
pub(super) struct Sampler {
    layout: SampleLayout,
    tasks: BTreeMap<(u32, u32), Task>,
}

/// The tracks of one thread.
#[derive(Debug, Default)]
struct Task {
    /// One for each quantity.
    counters: Vec<u64>,
    /// The track of the thread or process.
    parent: Option<u64>,
    /// The end of the last job: slices of one track must not overlap.
    last_job: Timestamp,
    /// Whether there are samples at other points than job ends: these have all counts.
    has_samples: bool,
}

/// The samplers of a trace by their first streams.
#[derive(Debug, Default)]
pub(super) struct Samplers(BTreeMap<StreamId, Option<Sampler>>);

impl Samplers {
    /// The sampler of a stream; `None` if its elements are not samples.
    fn of(&mut self, stream: &StreamDescriptor) -> Option<&mut Sampler> {
        let sampler = self.0.entry(stream.first_stream());
        let sampler = sampler.or_insert_with(|| {
            SampleLayout::of(&stream.schema).map(|layout| Sampler {
                layout,
                tasks: BTreeMap::new(),
            })
        });
        sampler.as_mut()
    }
}

impl<W: Write> PerfettoExport<W> {
    /// Writes the counters of a sample, and the slice of a job.
    pub(super) fn sample(&mut self, element: &ElementView<'_>) {
        let (stream, payload) = (element.stream, element.payload);
        let Some(sampler) = self.samplers.of(stream) else {
            return;
        };
        let Some(header) = sampler.layout.header(&stream.schema, payload) else {
            return;
        };
        // What is left at the end of a thread is no usual sample.
        if header.point == Some(SamplePoint::ThreadEnd) {
            return;
        }
        let is_job = header.point == Some(SamplePoint::JobEnd);
        let key = (header.pid, header.tid);
        let quantities = sampler.layout.quantities().to_vec();
        let is_known = sampler.tasks.contains_key(&key);
        if !is_known {
            let task = self.sampled_task(stream, &header, &quantities);
            let sampler = self.samplers.of(stream);
            sampler.map(|sampler| sampler.tasks.insert(key, task));
        }
        let task = self.samplers.of(stream);
        let Some(task) = task.and_then(|sampler| sampler.tasks.get_mut(&key)) else {
            return;
        };
        task.has_samples |= !is_job;
        let job = is_job.then(|| {
            (
                task.parent,
                std::mem::replace(&mut task.last_job, element.time),
            )
        });
        let counters = match is_job && task.has_samples {
            true => Vec::new(),
            false => task.counters.clone(),
        };
        if let Some((parent, last)) = job {
            self.job(element, &header, parent, last);
        }
        for (quantity, track_uuid) in quantities.iter().zip(counters) {
            let value = stream.schema.read(quantity.field, payload);
            let Some((time, counter)) =
                value.and_then(|value| drawn(quantity, &header, element.time, value))
            else {
                continue;
            };
            let event = schema::TrackEvent {
                kind: 4,
                track_uuid,
                counter: Some(counter),
                ..schema::TrackEvent::default()
            };
            self.packet(Some(time), schema::Data::Event(event));
        }
    }

    /// The tracks of a thread, process or system that is sampled for the first time.
    fn sampled_task(
        &mut self,
        stream: &StreamDescriptor,
        header: &SampleHeader,
        quantities: &[SampledQuantity],
    ) -> Task {
        let parent = match (header.pid, header.tid) {
            (0, 0) => None,
            (pid, 0) => Some(self.process_track(pid, "")),
            (pid, tid) => Some(self.thread_track(tid, pid)),
        };
        let counters = quantities.iter().map(|quantity| {
            let unit = unit(quantity);
            let counter = schema::CounterDescriptor { unit_name: unit };
            let name = format!("{}.{}", stream.sensor, quantity.name);
            self.track(&name, parent, Some(counter))
        });
        let counters = counters.collect();
        Task {
            counters,
            parent,
            ..Task::default()
        }
    }

    /// The slice of a job. Its track is made at the first one.
    fn job(
        &mut self,
        element: &ElementView<'_>,
        header: &SampleHeader,
        parent: Option<u64>,
        last: Timestamp,
    ) {
        let name = format!("{} jobs", element.stream.sensor);
        let key = (element.stream.first_stream(), header.pid, header.tid);
        let track = match self.job_tracks.get(&key) {
            Some(&track) => track,
            None => {
                let track = self.track(&name, parent, None);
                self.job_tracks.insert(key, track);
                track
            }
        };
        let begin = element.time.minus(Nanos::from_ns(header.duration_ns));
        let begin = begin.max(last);
        let fields = Self::annotations(element);
        self.slice_edge(begin, track, Some("job".to_string()), &fields);
        self.slice_edge(element.time, track, None, &[]);
    }
}

/// The unit of what is drawn: time per time is a share.
fn unit(quantity: &SampledQuantity) -> String {
    match (quantity.is_count(), quantity.unit.as_str()) {
        (false, unit) => unit.to_string(),
        (true, "ns") => "%".to_string(),
        (true, unit) => format!("{unit}/s"),
    }
}

/// What is drawn of a value, and from when on; `None` for a count without a duration.
fn drawn(
    quantity: &SampledQuantity,
    header: &SampleHeader,
    time: Timestamp,
    value: Value<'_>,
) -> Option<(Timestamp, schema::Counter)> {
    if !quantity.is_count() {
        return Some((time, counter_value(value)?));
    }
    let duration_ns = Some(header.duration_ns).filter(|ns| *ns > 0)?;
    let scale = if quantity.unit == "ns" { 100.0 } else { 1e9 };
    let rate = value.as_f64()? * scale / duration_ns as f64;
    let begin = time.minus(Nanos::from_ns(duration_ns));
    Some((begin, schema::Counter::Float(rate)))
}
