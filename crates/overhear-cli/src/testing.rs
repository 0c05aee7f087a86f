// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors and elements that the tests of this crate share.

use std::sync::Arc;

use overhear_event::{
    FieldKind, Gap, GapCause, Nanos, Origin, Rate, StreamDescriptor, StreamId, Task, Timestamp,
    TypeSchema,
};

/// A point of time.
pub(crate) fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

/// `server(4711)/queue#in` with a declared rate of 1 kHz, fields with units, and a text.
pub(crate) fn declared_stream() -> StreamDescriptor {
    let schema = TypeSchema::builder("queue")
        .field("wait", FieldKind::U64, "ns")
        .field("load", FieldKind::F32, "%")
        .field("label", FieldKind::Text(12), "")
        .build()
        .unwrap();
    let rate = Rate::new(Nanos::from_ms(1), Nanos::from_us(100), Nanos::from_ms(5));
    StreamDescriptor {
        id: StreamId::from_raw(3),
        origin: Origin::Program(Task {
            pid: 4711,
            start: Timestamp::ZERO,
            comm: "server".to_string(),
        }),
        sensor: "queue".to_string(),
        instance: "in".to_string(),
        lane: None,
        schema: Arc::new(schema),
        rate: Some(rate.unwrap()),
        capacity: 4096,
    }
}

/// A payload of [`declared_stream`].
pub(crate) fn queue_payload(wait: u64, load: f32, label: &str) -> Vec<u8> {
    let mut bytes = wait.to_ne_bytes().to_vec();
    bytes.extend(load.to_ne_bytes());
    let mut text = label.as_bytes().to_vec();
    text.resize(12, 0);
    bytes.extend(text);
    bytes
}

/// A gap of overwritten elements.
pub(crate) fn gap(stream: &StreamDescriptor, first: u64, missed: u64, from: u64, to: u64) -> Gap {
    Gap {
        stream: stream.id,
        first,
        missed,
        from: at(from),
        to: at(to),
        cause: GapCause::Overwritten,
    }
}

/// `server(4711)/job` with one field and no declared rate.
pub(crate) fn plain_stream() -> StreamDescriptor {
    let schema = TypeSchema::builder("job").field("number", FieldKind::I64, "");
    StreamDescriptor {
        id: StreamId::from_raw(4),
        sensor: "job".to_string(),
        instance: String::new(),
        schema: Arc::new(schema.build().unwrap()),
        rate: None,
        ..declared_stream()
    }
}
