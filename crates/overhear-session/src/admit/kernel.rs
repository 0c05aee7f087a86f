// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings of kernel sensors: how large they are, and when that is too small.
//!
//! (T, D, tau) bounds a kernel sensor as a whole, over all CPUs. Every part of a stream keeps the
//! bounds of the stream: between two of its elements lie at least as many of the whole. So each
//! CPU's ring gets the room for all of it, and what the monitor reads, evaluates and holds back is
//! that of one sensor.

use overhear_admission::{ArrivalBound, Span};
use overhear_event::{EventSet, Nanos, StreamDescriptor, TypeSchema};
use overhear_kernel::{possible_cpus, ring_bytes, Sensor};
use overhear_monitor::Merge;

use super::narrow;
use super::sensor::ResolvedSensor;
use crate::config::kernel::KernelSource;
use crate::configured_monitor::evaluation::number_of;

/// The sizes of a ring, in elements.
const LEAST_ELEMENTS: u64 = 64;
const MOST_ELEMENTS: u64 = 65_536;
/// The element that may be in the making, and one more for a reader at the border.
const SPARE: u64 = 2;
/// What rings have that nobody asked for, but the kernel's programs want: hardly any.
pub(crate) const UNUSED_ELEMENTS: u32 = 8;

/// A kernel sensor that a monitor hears, and its rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelRing {
    /// The sensor, or a probe.
    pub(crate) source: KernelSource,
    schema: TypeSchema,
    /// Elements of each CPU's ring, a power of two.
    pub(crate) elements: u32,
}

impl KernelRing {
    /// Rings for a sensor of this stream: for what can come in two periods and the lateness, where
    /// no period is longer than the latency; or for as many elements as the file says.
    pub(super) fn new(
        source: KernelSource,
        stream: ArrivalBound,
        (latency, lateness): (Nanos, Nanos),
        buffer: Option<u64>,
    ) -> Result<Self, String> {
        let span = latency.plus(latency).plus(lateness);
        let elements = match buffer {
            Some(buffer) if buffer >= MOST_ELEMENTS => {
                return Err(format!(
                    "its buffer is {buffer}; a ring of the kernel holds at most {}",
                    MOST_ELEMENTS - 1
                ));
            }
            Some(buffer) => (buffer + 1).next_power_of_two().max(UNUSED_ELEMENTS.into()),
            None => {
                let come = narrow(stream.elements_within(span.into()));
                let wanted = come.saturating_add(SPARE).min(MOST_ELEMENTS);
                wanted.next_power_of_two().max(LEAST_ELEMENTS)
            }
        };
        let schema = source.schema().map_err(|error| error.to_string())?;
        Ok(Self {
            source,
            schema,
            elements: elements as u32,
        })
    }

    /// Refuses a field that is no number of its elements.
    pub(super) fn require_number(&self, field: &str) -> Result<(), String> {
        number_of(&self.schema, field).map(|_| ())
    }

    /// Elements that each ring holds for a reader: one slot may be in the making.
    pub(super) fn buffer(&self) -> u64 {
        u64::from(self.elements) - 1
    }

    /// The map of all rings, and the queues that are copied to.
    pub(super) fn bytes(&self) -> u64 {
        let elements = u64::from(self.elements);
        let queue = Merge::bytes_for(self.schema.size(), elements) as u64;
        (mapped(&self.schema, elements) + queue).saturating_mul(possible_cpus().into())
    }
}

/// Rings that are there although none of `rings` asks for them.
pub(super) fn unused_bytes(rings: &[KernelRing]) -> u64 {
    let unused = unused(rings).into_iter();
    let each = unused.map(|sensor| mapped(&sensor.schema(), UNUSED_ELEMENTS.into()));
    each.sum::<u64>().saturating_mul(possible_cpus().into())
}

/// The sensors that are always heard and not among these, if there are any of these.
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

/// The map of a kernel stream's ring.
pub(super) fn mapped_bytes(stream: &StreamDescriptor) -> u64 {
    mapped(&stream.schema, stream.capacity)
}

fn mapped(schema: &TypeSchema, elements: u64) -> u64 {
    // There is no ring that cannot be.
    ring_bytes(schema, elements).unwrap_or(0)
}

/// Why the rings do not hold what can come between two readings with this period, or the queues
/// behind them, which are twice as large, what can wait within the latency.
pub(super) fn too_small(
    sensors: &[ResolvedSensor],
    (period, lateness): (Nanos, Nanos),
    latency: Span,
) -> Option<String> {
    sensors.iter().find_map(|sensor| {
        let ring = sensor.ring.as_ref().filter(|_| sensor.count > 0)?;
        let within = |span| narrow(sensor.load.stream.elements_within(span));
        let come = within(period.plus(period).plus(lateness).into()).saturating_add(SPARE);
        let needed = come.max(within(latency).div_ceil(2));
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
