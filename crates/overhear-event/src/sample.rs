// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples: elements of samplers, in programs, in the kernel and in the monitor.
//!
//! All samplers write elements of one form, so that one analysis evaluates them all: the type id
//! [`SAMPLE_TYPE`], five fields that describe the sample, and a field for each sampled quantity.
//!
//! ```
//! use overhear_event::{FieldKind, SampleLayout, SampleSchema};
//!
//! let schema = SampleSchema::new().count("instructions", "").level("temperature", "m°C").build()?;
//! let layout = SampleLayout::of(&schema).expect("it has the form of a sample");
//! assert_eq!(layout.quantities().len(), 2);
//! assert!(layout.quantities()[0].is_count() && !layout.quantities()[1].is_count());
//! # Ok::<(), overhear_event::SchemaError>(())
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use crate::{FieldKind, SchemaError, TypeSchema, TypeSchemaBuilder};

/// The type id of every sample.
pub const SAMPLE_TYPE: &str = "overhear_sample";

const TID: &str = "tid";
const PID: &str = "pid";
const POINT: &str = "point";
const CPU: &str = "cpu";
const DURATION: &str = "duration";

/// The occurrence at which a sample is taken ([EPOS, section III]: periodic, execution flow, job).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SamplePoint {
    /// A period has passed.
    Period,
    /// A thread leaves the CPU.
    Switch,
    /// A thread is woken.
    WakeUp,
    /// A system call begins.
    SystemCallEntry,
    /// A system call ends.
    SystemCallExit,
    /// A timer has expired, in the hybrid policy.
    Timer,
    /// A probe, a function or a line of the program.
    Probe,
    /// A job has ended.
    JobEnd,
    /// A thread has ended.
    ThreadEnd,
    /// The program called `sample()`.
    Program,
    /// An element of a sensor.
    Sensor,
}

impl SamplePoint {
    /// All points, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Period,
        Self::Switch,
        Self::WakeUp,
        Self::SystemCallEntry,
        Self::SystemCallExit,
        Self::Timer,
        Self::Probe,
        Self::JobEnd,
        Self::ThreadEnd,
        Self::Program,
        Self::Sensor,
    ];

    /// The number of this point in elements, from 1.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        self as u32 + 1
    }

    /// The point with this number.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        let index = usize::try_from(raw.checked_sub(1)?).ok()?;
        Self::ALL.get(index).copied()
    }

    /// The name for display and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Period => "period",
            Self::Switch => "switch",
            Self::WakeUp => "wake_up",
            Self::SystemCallEntry => "system_call_entry",
            Self::SystemCallExit => "system_call_exit",
            Self::Timer => "timer",
            Self::Probe => "probe",
            Self::JobEnd => "job_end",
            Self::ThreadEnd => "thread_end",
            Self::Program => "program",
            Self::Sensor => "sensor",
        }
    }
}

/// Builds the schema of a sampler's elements.
#[derive(Clone, Debug)]
pub struct SampleSchema(TypeSchemaBuilder);

impl SampleSchema {
    /// A sample without quantities. Its first fields are `tid` and `pid` (0: not of one thread or
    /// process), `point` ([`SamplePoint::as_raw`]), `cpu`, and `duration`: the nanoseconds to which
    /// the counts belong, 0 where there was no sample before.
    #[must_use]
    pub fn new() -> Self {
        Self(
            TypeSchema::builder(SAMPLE_TYPE)
                .field(TID, FieldKind::U32, "")
                .field(PID, FieldKind::U32, "")
                .field(POINT, FieldKind::U32, "")
                .field(CPU, FieldKind::U32, "")
                .field(DURATION, FieldKind::U64, "ns"),
        )
    }

    /// Appends a count: what was counted since the previous sample of the same thread, process or
    /// job (unsigned, 64 bits). The sum of a count over samples is a total.
    #[must_use]
    pub fn count(self, name: &str, unit: &str) -> Self {
        Self(self.0.field(name, FieldKind::U64, unit))
    }

    /// Appends a level: a value at the time of the sample (signed, 64 bits). Its sum has no
    /// meaning.
    #[must_use]
    pub fn level(self, name: &str, unit: &str) -> Self {
        Self(self.0.field(name, FieldKind::I64, unit))
    }

    /// Appends a level that is not an integer.
    #[must_use]
    pub fn real_level(self, name: &str, unit: &str) -> Self {
        Self(self.0.field(name, FieldKind::F64, unit))
    }

    /// Checks and builds the schema.
    ///
    /// # Errors
    /// [`SchemaError`], see [`TypeSchema::new`].
    pub fn build(self) -> Result<TypeSchema, SchemaError> {
        self.0.build()
    }
}

impl Default for SampleSchema {
    fn default() -> Self {
        Self::new()
    }
}

/// A quantity of samples: a field of their schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledQuantity {
    /// The name, a C identifier.
    pub name: String,
    /// The unit, empty for a plain number.
    pub unit: String,
    /// The field's index in the schema.
    pub field: usize,
    kind: FieldKind,
}

impl SampledQuantity {
    /// Whether values are counts since the previous sample; otherwise they are levels.
    #[must_use]
    pub fn is_count(&self) -> bool {
        self.kind == FieldKind::U64
    }
}

/// What a sample says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleHeader {
    /// The thread, 0 for a sample of no single thread.
    pub tid: u32,
    /// The process, 0 for a sample of no single process.
    pub pid: u32,
    /// The occurrence at which it was taken; `None` for a number that this version does not know.
    pub point: Option<SamplePoint>,
    /// The CPU on which it was taken.
    pub cpu: u32,
    /// The nanoseconds to which counts belong, 0 if there was no sample before.
    pub duration_ns: u64,
}

/// The places of a sample's fields in a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleLayout {
    tid: usize,
    pid: usize,
    point: usize,
    cpu: usize,
    duration: usize,
    quantities: Vec<SampledQuantity>,
}

impl SampleLayout {
    /// The layout of a schema; `None` if its elements are not samples.
    #[must_use]
    pub fn of(schema: &TypeSchema) -> Option<Self> {
        if schema.id() != SAMPLE_TYPE {
            return None;
        }
        let [tid, pid, point, cpu, duration] =
            [TID, PID, POINT, CPU, DURATION].map(|name| schema.index_of(name));
        let duration = duration?;
        let quantities = schema.fields().iter().enumerate().skip(duration + 1);
        Some(Self {
            tid: tid?,
            pid: pid?,
            point: point?,
            cpu: cpu?,
            duration,
            quantities: quantities
                .filter(|(_, field)| field.kind.is_number())
                .map(|(index, field)| SampledQuantity {
                    name: field.name.clone(),
                    unit: field.unit.clone(),
                    field: index,
                    kind: field.kind,
                })
                .collect(),
        })
    }

    /// The quantities, in the order of their fields.
    #[must_use]
    pub fn quantities(&self) -> &[SampledQuantity] {
        &self.quantities
    }

    /// The header of a sample; `None` if the payload is too short.
    #[must_use]
    pub fn header(&self, schema: &TypeSchema, payload: &[u8]) -> Option<SampleHeader> {
        let number = |index| schema.read(index, payload)?.as_u64();
        let small = |index| u32::try_from(number(index)?).ok();
        Some(SampleHeader {
            tid: small(self.tid)?,
            pid: small(self.pid)?,
            point: SamplePoint::from_raw(small(self.point)?),
            cpu: small(self.cpu)?,
            duration_ns: number(self.duration)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{SampleHeader, SampleLayout, SamplePoint, SampleSchema};
    use crate::{FieldKind, TypeSchema};

    #[test]
    fn points_keep_their_numbers() {
        for point in SamplePoint::ALL {
            assert_eq!(SamplePoint::from_raw(point.as_raw()), Some(point));
        }
        assert_eq!(SamplePoint::from_raw(0), None);
        assert_eq!(SamplePoint::from_raw(12), None);
    }

    #[test]
    fn header_and_quantities_are_found() {
        let schema = SampleSchema::new().count("faults", "").level("rss", "B");
        let schema = schema.build().expect("valid");
        let mut payload = [0_u8; 40];
        for (place, number) in [7_u32, 5, 8, 3].into_iter().enumerate() {
            payload[4 * place..][..4].copy_from_slice(&number.to_ne_bytes());
        }
        payload[16..24].copy_from_slice(&1_000_u64.to_ne_bytes());
        let layout = SampleLayout::of(&schema).expect("a sample");
        let header = SampleHeader {
            tid: 7,
            pid: 5,
            point: Some(SamplePoint::JobEnd),
            cpu: 3,
            duration_ns: 1_000,
        };
        assert_eq!(layout.header(&schema, &payload), Some(header));
        assert_eq!(layout.header(&schema, &payload[..20]), None);
        let names: alloc::vec::Vec<_> = layout.quantities().iter().map(|q| &*q.name).collect();
        assert_eq!(names, ["faults", "rss"]);
        // Elements of sensors with several writers have two fields before these.
        let laned = schema.with_writer().expect("it has room");
        assert_eq!(
            SampleLayout::of(&laned).expect("a sample").quantities()[0].field,
            7
        );
    }

    #[test]
    fn other_types_are_no_samples() {
        let other = TypeSchema::builder("position").field("tid", FieldKind::U32, "");
        assert_eq!(SampleLayout::of(&other.build().expect("valid")), None);
    }
}
