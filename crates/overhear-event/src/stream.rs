// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who writes a stream, and what its elements look like.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{EventName, Field, Nanos, Timestamp, TypeSchema, HEXADECIMAL};

/// The number of a stream, unique within one directory and its traces.
///
/// It is the second key of the total order: two elements with the same time are ordered by it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StreamId(u32);

impl StreamId {
    /// From the number the directory gave.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The number the directory gave.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A process that owns sensors. Process ids are reused, the pair with the start time is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    /// Process id, as the directory sees it.
    pub pid: u32,
    /// When the process started, since boot: the time that the machine was suspended is included,
    /// unlike in the stamps of elements. It tells processes apart, it is not to be compared.
    pub start: Timestamp,
    /// The process' short name (`comm`) when it registered.
    pub comm: String,
}

/// What kind of writer a stream has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A sensor of a program.
    Program(Task),
    /// The kernel, on one CPU.
    Kernel {
        /// The CPU whose ring this is.
        cpu: u32,
    },
    /// A clerk: Overhear itself sampled the values from the operating system.
    Clerk,
}

/// A declared production rate: the jitter-constrained stream (T, D, tau) of seed 000, section
/// 4.2. Any two elements i <= j keep a distance of at least
/// `max((j - i) * D, (j - i) * T - tau)` (equation 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// T, the period; more than zero.
    pub period: Nanos,
    /// D, the least distance of two elements; at most T.
    pub distance: Nanos,
    /// tau, by how much elements may come early in sum.
    pub jitter: Nanos,
}

/// Why a declared rate was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// T must be more than zero.
    #[error(
        "the declared period T is 0 ns; give the mean distance of two elements, at least 1 ns"
    )]
    ZeroPeriod,
    /// D must not exceed T.
    #[error(
        "the declared least distance D = {distance} exceeds the period T = {period}; give D <= T"
    )]
    DistanceAbovePeriod {
        /// D as declared.
        distance: Nanos,
        /// T as declared.
        period: Nanos,
    },
}

impl Rate {
    /// Checks and builds (T, D, tau).
    ///
    /// # Errors
    /// [`RateError`] if T is zero or D exceeds T.
    pub fn new(period: Nanos, distance: Nanos, jitter: Nanos) -> Result<Self, RateError> {
        if period == Nanos::ZERO {
            return Err(RateError::ZeroPeriod);
        }
        if distance > period {
            return Err(RateError::DistanceAbovePeriod { distance, period });
        }
        Ok(Self {
            period,
            distance,
            jitter,
        })
    }
}

/// All that is known of a stream besides its elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDescriptor {
    /// The stream's number.
    pub id: StreamId,
    /// Who writes.
    pub origin: Origin,
    /// The sensor's id: what it measures. For kernel streams, the hook.
    pub sensor: String,
    /// Which instance of the sensor this is; empty where there is only one.
    pub instance: String,
    /// Which lane of a laned sensor this is; `None` for sensors of other kinds. The lanes of a
    /// sensor are streams of their own with consecutive numbers, and one sensor for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<u32>,
    /// What an element's payload contains.
    pub schema: Arc<TypeSchema>,
    /// The declared rate, if any.
    pub rate: Option<Rate>,
    /// How many elements the buffer holds, for people; readers have their own geometry.
    pub capacity: u64,
}

impl StreamDescriptor {
    /// The number of the sensor's first stream: the same for all lanes of a sensor.
    #[must_use]
    pub const fn first_stream(&self) -> StreamId {
        match self.lane {
            Some(lane) => StreamId(self.id.0.wrapping_sub(lane)),
            None => self.id,
        }
    }

    /// Whether both are lanes of one sensor, or one sensor of the kernel on two CPUs.
    #[must_use]
    pub fn is_same_sensor(&self, other: &Self) -> bool {
        match (&self.origin, &other.origin) {
            (Origin::Kernel { .. }, Origin::Kernel { .. }) => {
                self.sensor == other.sensor && self.instance == other.instance
            }
            _ => self.first_stream() == other.first_stream(),
        }
    }

    /// Whether a field is more than an id or a kind, so that its least, mean and greatest value say something: every
    /// field of programs may be, and of the kernel those with a unit, and the arguments and results of probes (the
    /// program knows what they mean). An address is none.
    #[must_use]
    pub fn is_quantity(&self, field: &Field) -> bool {
        let of_probe = crate::kernel::is_probe(&self.sensor);
        let of_kernel = matches!(self.origin, Origin::Kernel { .. });
        let is_known =
            !field.unit.is_empty() || of_probe && !["tid", "pid"].contains(&field.name.as_str());
        field.unit != HEXADECIMAL && (!of_kernel || is_known)
    }

    /// The name of the events in this stream.
    #[must_use]
    pub fn event(&self) -> EventName {
        match self.origin {
            Origin::Program(_) => EventName::user(&self.sensor),
            Origin::Kernel { .. } => EventName::kernel(&self.sensor),
            Origin::Clerk => EventName::clerk(&self.sensor),
        }
    }

    /// The name for people: `comm(pid)/sensor#instance`, `kernel/hook@cpu`, `clerk/sensor`; a lane
    /// has its number behind it, `comm(pid)/sensor[2]`.
    #[must_use]
    pub fn label(&self) -> String {
        let name = self.sensor_label();
        match self.lane {
            Some(lane) => alloc::format!("{name}[{lane}]"),
            None => name,
        }
    }

    /// The name of what wrote the stream, for a sentence about its schema: [`Self::sensor_label`] for programs, the
    /// event of the kernel, whose streams of all CPUs have one schema.
    #[must_use]
    pub fn schema_label(&self) -> String {
        match self.origin {
            Origin::Kernel { .. } => self.event().as_str().into(),
            _ => self.sensor_label(),
        }
    }

    /// The name of the sensor for people: that of [`Self::label`] without the lane.
    #[must_use]
    pub fn sensor_label(&self) -> String {
        match &self.origin {
            Origin::Kernel { cpu } => alloc::format!("kernel/{}@{cpu}", self.sensor),
            Origin::Clerk => alloc::format!("clerk/{}", self.sensor),
            Origin::Program(task) if self.instance.is_empty() => {
                alloc::format!("{}({})/{}", task.comm, task.pid, self.sensor)
            }
            Origin::Program(task) => {
                alloc::format!(
                    "{}({})/{}#{}",
                    task.comm,
                    task.pid,
                    self.sensor,
                    self.instance
                )
            }
        }
    }
}
