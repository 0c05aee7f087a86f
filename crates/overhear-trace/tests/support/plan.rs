// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary recordings: streams of any schema with elements and gaps, and the order in which a
//! replay must deliver them.

use std::path::Path;

use overhear_event::{
    FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{TraceSummary, TraceWriter};
use proptest::collection::vec;
use proptest::prelude::{any, prop, prop_oneof, Just, Strategy};

use super::{at, descriptor, identity, program, Owned};

#[derive(Clone, Debug)]
pub enum Step {
    /// An element with this distance in nanoseconds to the one before, and a seed for its payload.
    Element(u64, u64),
    /// Missed elements before the next one.
    Gap(u64, GapCause),
}

#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub kinds: Vec<FieldKind>,
    pub origin: u8,
    pub start: u64,
    /// Time from the last element to the end of the observation.
    pub tail: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub streams: Vec<StreamPlan>,
    pub packet_bytes: usize,
    pub pending: u64,
    pub advance_every: usize,
}

fn kind() -> impl Strategy<Value = FieldKind> {
    prop_oneof![
        Just(FieldKind::U8),
        Just(FieldKind::U16),
        Just(FieldKind::U32),
        Just(FieldKind::U64),
        Just(FieldKind::I8),
        Just(FieldKind::I16),
        Just(FieldKind::I32),
        Just(FieldKind::I64),
        Just(FieldKind::F32),
        Just(FieldKind::F64),
        (1_u16..40).prop_map(FieldKind::Text),
    ]
}

/// Distance of an element to the one before: often 0, rarely longer than the distance of advances,
/// or than a merge looks ahead.
fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..4,
        20 => 0_u64..500,
        1 => 0_u64..2_000_000,
        1 => 0_u64..6_000_000_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (pause(), any::<u64>()).prop_map(|(dt, seed)| Step::Element(dt, seed)),
        1 => (0_u64..2_000, prop::sample::select(GapCause::ALL.to_vec()))
            .prop_map(|(missed, cause)| Step::Gap(missed, cause)),
    ]
}

fn stream(steps: usize) -> impl Strategy<Value = StreamPlan> {
    (
        vec(kind(), 0..8),
        0_u8..3,
        0_u64..1_000,
        0_u64..1_000,
        vec(step(), 0..steps),
    )
        .prop_map(|(mut kinds, origin, start, tail, steps)| {
            // Without padding, fields must come in descending alignment.
            kinds.sort_by_key(|kind| std::cmp::Reverse(kind.align()));
            StreamPlan {
                kinds,
                origin,
                start,
                tail,
                steps,
            }
        })
}

pub fn plan() -> impl Strategy<Value = Plan> {
    (
        prop_oneof![7 => vec(stream(60), 0..6), 1 => vec(stream(12), 30..90)],
        // Few bytes, or those of a page.
        prop_oneof![4 => 0_usize..1_500, 1 => 4_096..4_097_usize],
        0_u64..3_000,
        1_usize..20,
    )
        .prop_map(|(streams, packet_bytes, pending, advance_every)| Plan {
            streams,
            packet_bytes,
            pending,
            advance_every,
        })
}

/// A payload whose numbers are printed without rounding and whose texts need no escapes.
pub fn printable(schema: &TypeSchema, mut seed: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    for field in schema.fields() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let quarters = f64::from((seed >> 52) as u32) / 4.0 - 512.0;
        match field.kind {
            FieldKind::F32 => payload.extend((quarters as f32).to_ne_bytes()),
            FieldKind::F64 => payload.extend(quarters.to_ne_bytes()),
            FieldKind::Text(bytes) => {
                // Never empty: for an empty text babeltrace2 2.0.4 prints what the memory of an
                // earlier message held (efficios/babeltrace#116).
                let length = (seed >> 33) as usize % usize::from(bytes) + 1;
                payload.extend((0..usize::from(bytes)).map(|i| match i < length {
                    true => b'a' + ((seed >> (i % 48)) % 26) as u8,
                    false => 0,
                }));
            }
            number => {
                payload.extend(&(seed ^ (seed >> 29)).to_ne_bytes()[..number.size() as usize])
            }
        }
    }
    payload
}

impl Plan {
    pub fn descriptors(&self) -> Vec<StreamDescriptor> {
        let mut descriptors = Vec::new();
        for (index, stream) in self.streams.iter().enumerate() {
            let mut schema = TypeSchema::builder("planned");
            for (number, kind) in stream.kinds.iter().enumerate() {
                schema = schema.field(&format!("f{number}"), *kind, "ms");
            }
            let origin = match stream.origin {
                0 => program(),
                1 => Origin::Kernel { cpu: index as u32 },
                _ => Origin::Sampler,
            };
            // Ids that are neither dense nor in order, so that nothing relies on it.
            let id = (index as u32 * 7 + 3) % 101;
            let sensor = format!("sensor{}", index % 2);
            descriptors.push(descriptor(id, &sensor, origin, schema.build().unwrap()));
        }
        descriptors
    }

    /// What the streams contain, in total order. A gap lasts from the element before to the
    /// element after; gaps at the same place keep their order.
    pub fn items(&self) -> Vec<Owned> {
        let mut items = Vec::new();
        for (plan, stream) in self.streams.iter().zip(self.descriptors()) {
            let (mut now, mut sequence) = (plan.start, 0);
            let mut waiting: Vec<Gap> = Vec::new();
            for step in &plan.steps {
                match *step {
                    Step::Gap(missed, cause) => {
                        waiting.push(gap(stream.id, sequence, missed, now, now, cause));
                        sequence += missed;
                    }
                    Step::Element(dt, seed) => {
                        now += dt;
                        let ended = waiting.drain(..).map(|g| Gap { to: at(now), ..g });
                        items.extend(ended.map(Owned::Gap));
                        items.push(Owned::Element {
                            stream: stream.id.as_raw(),
                            sequence,
                            time: at(now),
                            payload: printable(&stream.schema, seed),
                        });
                        sequence += 1;
                    }
                }
            }
            let to = at(now + plan.tail);
            items.extend(waiting.into_iter().map(|g| Owned::Gap(Gap { to, ..g })));
        }
        items.sort_by_key(|item| (item.time(), item.stream()));
        items
    }

    /// Records it, in total order.
    pub fn record(&self, dir: &Path) -> TraceSummary {
        let streams = self.descriptors();
        let mut writer = TraceWriter::create(dir, identity())
            .unwrap()
            .with_packet_bytes(self.packet_bytes)
            .with_pending(Nanos::from_ns(self.pending));
        for stream in &streams {
            writer.open(stream).unwrap();
        }
        for (index, item) in self.items().iter().enumerate() {
            if index % self.advance_every == 0 {
                writer.advance(item.time()).unwrap();
            }
            item.give(&mut writer, &streams);
        }
        writer.finish().unwrap()
    }
}

pub fn gap(stream: StreamId, first: u64, missed: u64, from: u64, to: u64, cause: GapCause) -> Gap {
    Gap {
        stream,
        first,
        missed,
        from: Timestamp::from_monotonic_ns(from),
        to: Timestamp::from_monotonic_ns(to),
        cause,
    }
}
