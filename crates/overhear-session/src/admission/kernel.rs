// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings of kernel sensors: their sizes, and whether they are large enough.
//!
//! (T, D, tau) bounds a kernel sensor over all CPUs together. The elements of one CPU are a
//! subsequence of that stream, and each subsequence keeps its bounds. So the ring of each CPU is
//! large enough for the complete stream, while the monitor reads, evaluates and holds back the
//! elements of one sensor in total.

use overhear_admission::{ArrivalBound, Span};
use overhear_event::{EventSet, Nanos, StreamDescriptor, TypeSchema};
use overhear_kernel::{possible_cpus, ring_bytes, Sensor};
use overhear_monitor::Merge;

use super::saturated;
use super::sensor::ResolvedSensor;
use crate::builtin_updates::numeric_field;
use crate::config::kernel::KernelSource;

/// Limits of the size of a ring, in elements.
const MIN_RING_ELEMENTS: u64 = 64;
const MAX_RING_ELEMENTS: u64 = 65_536;
/// Slots that a reader cannot count on: one may be in the middle of a write, one is at the reader's
/// position.
const SPARE_ELEMENTS: u64 = 2;
/// Size of a ring that the kernel's programs need and no update reads, in elements.
pub(crate) const UNUSED_ELEMENTS: u32 = 8;

/// A kernel sensor of a monitor, and its rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelRing {
    /// The sensor, or a probe.
    pub(crate) source: KernelSource,
    schema: TypeSchema,
    /// Elements of each CPU's ring, a power of two.
    pub(crate) elements: u32,
}

impl KernelRing {
    /// Rings for a sensor of this stream. Without `buffer` they hold the elements of two periods
    /// and the lateness, where the latency bounds a period.
    pub(super) fn new(
        source: KernelSource,
        stream: ArrivalBound,
        (latency, lateness): (Nanos, Nanos),
        buffer: Option<u64>,
    ) -> Result<Self, String> {
        let span = latency.plus(latency).plus(lateness);
        let elements = match buffer {
            Some(buffer) if buffer >= MAX_RING_ELEMENTS => {
                return Err(format!(
                    "its buffer is {buffer}; a ring of the kernel holds at most {}",
                    MAX_RING_ELEMENTS - 1
                ));
            }
            Some(buffer) => (buffer + 1).next_power_of_two().max(UNUSED_ELEMENTS.into()),
            None => {
                let arriving = saturated(stream.elements_within(span.into()));
                let wanted = arriving
                    .saturating_add(SPARE_ELEMENTS)
                    .min(MAX_RING_ELEMENTS);
                wanted.next_power_of_two().max(MIN_RING_ELEMENTS)
            }
        };
        let schema = source.schema().map_err(|error| error.to_string())?;
        Ok(Self {
            source,
            schema,
            elements: elements as u32,
        })
    }

    /// Refuses a field that is not a number of its elements.
    pub(super) fn require_number(&self, field: &str) -> Result<(), String> {
        numeric_field(&self.schema, field).map(|_| ())
    }

    /// Elements that each ring holds for a reader: one slot may be in the middle of a write.
    pub(super) fn buffer(&self) -> u64 {
        u64::from(self.elements) - 1
    }

    /// Bytes of the map of all rings, and of the queues into which their elements are copied.
    pub(super) fn bytes(&self) -> u64 {
        let elements = u64::from(self.elements);
        let queue = Merge::bytes_for(self.schema.size(), elements) as u64;
        (mapped(&self.schema, elements) + queue).saturating_mul(possible_cpus().into())
    }
}

/// Bytes of the rings that no entry of `rings` names.
pub(super) fn unused_bytes(rings: &[KernelRing]) -> u64 {
    let unused = unused(rings).into_iter();
    let each = unused.map(|sensor| mapped(&sensor.schema(), UNUSED_ELEMENTS.into()));
    each.sum::<u64>().saturating_mul(possible_cpus().into())
}

/// The sensors that the kernel's programs always write and that `rings` does not name; empty if
/// `rings` is.
pub(crate) fn unused(rings: &[KernelRing]) -> Vec<Sensor> {
    if rings.is_empty() {
        return Vec::new();
    }
    let mut always: Vec<Sensor> = Sensor::required_by(&EventSet::default()).collect();
    let is_named = |sensor: &Sensor| {
        let mut named = rings.iter();
        named.any(|ring| ring.source == KernelSource::Sensor(*sensor))
    };
    always.retain(|sensor| !is_named(sensor));
    always
}

/// Bytes of the map of a kernel stream's ring.
pub(super) fn mapped_bytes(stream: &StreamDescriptor) -> u64 {
    mapped(&stream.schema, stream.capacity)
}

fn mapped(schema: &TypeSchema, elements: u64) -> u64 {
    // The schema comes from a ring that exists.
    ring_bytes(schema, elements).unwrap_or(0)
}

/// The refusal if a ring is too small for the elements that can arrive between two readings with
/// this period, or if the queue that it is copied to, which is twice as large, is too small for the
/// elements that can wait within the latency.
pub(super) fn too_small(
    sensors: &[ResolvedSensor],
    (period, lateness): (Nanos, Nanos),
    latency: Span,
) -> Option<String> {
    sensors.iter().find_map(|sensor| {
        let ring = sensor.ring.as_ref().filter(|_| sensor.count > 0)?;
        let within = |span| saturated(sensor.load.stream.elements_within(span));
        let arriving =
            within(period.plus(period).plus(lateness).into()).saturating_add(SPARE_ELEMENTS);
        let needed = arriving.max(within(latency).div_ceil(2));
        let has = u64::from(ring.elements);
        (needed > has).then(|| {
            let advice = match sensor.has_own_buffer {
                true => "give a larger `buffer`, or leave it out",
                false => "that is the most; give a shorter `latency` or `largest_period`",
            };
            format!(
                "sensor `{}` can write {needed} elements between two readings with a period of {period}, and the \
                 ring of each CPU holds {has}; {advice}",
                sensor.id
            )
        })
    })
}
