// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared parts of the suites: streams to record, an analysis that stores its items, and
//! babeltrace2.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod packets;
pub mod plan;
pub mod small_packets;

use std::path::Path;
use std::process::Command;

use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, Nanos, Origin, StreamDescriptor, StreamId, Task,
    Timestamp, TypeSchema,
};
use overhear_trace::TraceIdentity;

pub fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

pub fn identity() -> TraceIdentity {
    TraceIdentity {
        hostname: "test\"host\\".to_owned(),
        realtime_offset: Nanos::from_ns(1_700_000_000_123_456_789),
        uuid: Some(*b"overhear-testing"),
    }
}

pub fn descriptor(id: u32, sensor: &str, origin: Origin, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor {
        capacity: 1024,
        ..StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
    }
}

pub fn program() -> Origin {
    Origin::Program(Task {
        pid: 4242,
        start: at(17),
        comm: "engine".to_owned(),
    })
}

/// A schema with a field of every kind.
pub fn every_kind() -> TypeSchema {
    TypeSchema::builder("every_kind")
        .field("a", FieldKind::U64, "ns")
        .field("b", FieldKind::I64, "")
        .field("c", FieldKind::F64, "m/s")
        .field("d", FieldKind::U32, "1/s")
        .field("e", FieldKind::I32, "\\")
        .field("f", FieldKind::F32, "*/")
        .field("g", FieldKind::U16, "\"")
        .field("h", FieldKind::I16, "µs")
        .field("event", FieldKind::U8, "")
        .field("_j", FieldKind::I8, "")
        .field("name", FieldKind::Text(10), "")
        .build()
        .unwrap()
}

/// Two numbers, 16 bytes.
pub fn pair() -> TypeSchema {
    TypeSchema::builder("pair")
        .field("x", FieldKind::U64, "")
        .field("y", FieldKind::U64, "B")
        .build()
        .unwrap()
}

pub fn pair_payload(x: u64) -> [u8; 16] {
    let mut payload = [0; 16];
    payload[..8].copy_from_slice(&x.to_ne_bytes());
    payload[8..].copy_from_slice(&(!x).to_ne_bytes());
    payload
}

/// An item that outlives the call.
#[derive(Clone, Debug, PartialEq)]
pub enum Owned {
    Element {
        stream: u32,
        sequence: u64,
        time: Timestamp,
        payload: Vec<u8>,
    },
    Gap(Gap),
}

impl Owned {
    pub fn stream(&self) -> u32 {
        match self {
            Self::Element { stream, .. } => *stream,
            Self::Gap(gap) => gap.stream.as_raw(),
        }
    }

    /// The time that determines its order.
    pub fn time(&self) -> Timestamp {
        match self {
            Self::Element { time, .. } => *time,
            Self::Gap(gap) => gap.to,
        }
    }

    pub fn give(&self, update: &mut dyn Analysis, streams: &[StreamDescriptor]) {
        let stream = streams
            .iter()
            .find(|s| s.id.as_raw() == self.stream())
            .unwrap();
        match self {
            Self::Element {
                sequence,
                time,
                payload,
                ..
            } => update.element(&ElementView {
                stream,
                sequence: *sequence,
                time: *time,
                payload,
            }),
            Self::Gap(gap) => update.gap(stream, gap),
        }
    }
}

/// Stores all items, and checks that time does not go back.
#[derive(Debug, Default)]
pub struct Memory {
    pub items: Vec<Owned>,
    /// Advances, each with the number of items before it.
    pub advances: Vec<(usize, Timestamp)>,
    pub advanced_to: Timestamp,
}

impl Analysis for Memory {
    fn element(&mut self, element: &ElementView<'_>) {
        assert!(element.time >= self.advanced_to);
        self.items.push(Owned::Element {
            stream: element.stream.id.as_raw(),
            sequence: element.sequence,
            time: element.time,
            payload: element.payload.to_vec(),
        });
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        assert_eq!(stream.id, gap.stream);
        self.items.push(Owned::Gap(*gap));
    }

    fn advance(&mut self, now: Timestamp) {
        assert!(now > self.advanced_to);
        self.advances.push((self.items.len(), now));
        self.advanced_to = now;
    }
}

/// Whether babeltrace2 is installed; prints "skipped" if not.
pub fn has_babeltrace() -> bool {
    let found = Command::new("babeltrace2")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: babeltrace2 is not installed");
    }
    found
}

/// Runs babeltrace2, which must exit with 0, and returns what it printed.
pub fn babeltrace(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new("babeltrace2")
        .arg(dir)
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "babeltrace2: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Number of event messages that babeltrace2 counts.
pub fn babeltrace_events(dir: &Path) -> u64 {
    let text = babeltrace(dir, &["--component=sink.utils.counter"]);
    let line = text.lines().rev().find(|l| l.contains("Event message"));
    let Some(line) = line else { return 0 };
    let number = line.split_whitespace().next().unwrap();
    number.replace(',', "").parse().unwrap()
}
