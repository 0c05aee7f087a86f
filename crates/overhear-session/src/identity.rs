// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of a sensor: names, type and declared rate, the same in all documents and tables.

use overhear_event::{Field, FieldKind, Origin, Rate, StreamDescriptor};
use serde::Serialize;

use crate::quantities::DeclaredReport;

/// Names, type and declared rate of a sensor. The keys are the same in every JSON document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Identity {
    /// The id of its first stream, unique within its directory.
    pub stream: u32,
    /// `comm(pid)` of its process.
    pub task: String,
    /// The process.
    pub pid: u32,
    /// Sensor id.
    pub id: String,
    /// Instance; empty if the task has one sensor of this id.
    pub instance: String,
    /// Type id.
    #[serde(rename = "type")]
    pub type_id: String,
    /// The fields of an element, in their order.
    pub fields: Vec<FieldIdentity>,
    /// The declared rate.
    pub declared: Option<DeclaredReport>,
}

/// A field of an element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldIdentity {
    /// Name.
    pub name: String,
    /// `u8` to `u64`, `i8` to `i64`, `f32`, `f64`, `text[BYTES]`.
    pub kind: String,
    /// Unit; empty for a plain number.
    pub unit: String,
}

impl Identity {
    /// The identity of a sensor with this description.
    #[must_use]
    pub fn of(stream: &StreamDescriptor) -> Self {
        let (task, pid) = task_and_pid(&stream.origin);
        Self {
            stream: stream.id.as_raw(),
            task,
            pid,
            id: stream.sensor.clone(),
            instance: stream.instance.clone(),
            type_id: stream.schema.id().to_string(),
            fields: stream.schema.fields().iter().map(field).collect(),
            declared: stream.rate.as_ref().map(declared),
        }
    }

    /// `id`, or `id#instance` with an instance.
    #[must_use]
    pub fn name(&self) -> String {
        if self.instance.is_empty() {
            self.id.clone()
        } else {
            format!("{}#{}", self.id, self.instance)
        }
    }
}

/// `comm(pid)` and the process id, which is 0 without a process.
pub fn task_and_pid(origin: &Origin) -> (String, u32) {
    match origin {
        Origin::Program(task) => (format!("{}({})", task.comm, task.pid), task.pid),
        Origin::Kernel { cpu } => (format!("kernel@{cpu}"), 0),
        Origin::Sampler => ("sampler".to_string(), 0),
    }
}

fn field(field: &Field) -> FieldIdentity {
    let kind = match field.kind {
        FieldKind::U8 => "u8".to_string(),
        FieldKind::U16 => "u16".to_string(),
        FieldKind::U32 => "u32".to_string(),
        FieldKind::U64 => "u64".to_string(),
        FieldKind::I8 => "i8".to_string(),
        FieldKind::I16 => "i16".to_string(),
        FieldKind::I32 => "i32".to_string(),
        FieldKind::I64 => "i64".to_string(),
        FieldKind::F32 => "f32".to_string(),
        FieldKind::F64 => "f64".to_string(),
        FieldKind::Text(bytes) => format!("text[{bytes}]"),
    };
    FieldIdentity {
        name: field.name.clone(),
        kind,
        unit: field.unit.clone(),
    }
}

fn declared(rate: &Rate) -> DeclaredReport {
    DeclaredReport {
        period_ns: rate.period.as_ns(),
        distance_ns: rate.distance.as_ns(),
        jitter_ns: rate.jitter.as_ns(),
    }
}
