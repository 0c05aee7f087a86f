// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a stream: its writer, its schema, its declared rate.

use alloc::string::String;
use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{EventName, Field, Nanos, StreamId, Timestamp, TypeSchema, HEXADECIMAL};

/// A process that owns sensors. Process ids are reused, the pair with the start time is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    /// Process id, in the directory's PID namespace.
    pub pid: u32,
    /// Start time of the process since boot, which includes suspended time, unlike stamps of
    /// elements. It distinguishes processes with the same id; it cannot be compared with other
    /// times.
    pub start: Timestamp,
    /// The process' short name (`comm`) when it registered.
    pub comm: String,
}

/// The kind of origin of a stream.
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
    /// A sampler: Overhear itself read the values from the operating system.
    #[serde(alias = "clerk")]
    Sampler,
}

impl Origin {
    /// A sensor of a process whose start time is not known, as in a foreign trace; it is zero.
    #[must_use]
    pub fn program(pid: u32, comm: impl Into<String>) -> Self {
        Self::Program(Task {
            pid,
            start: Timestamp::ZERO,
            comm: comm.into(),
        })
    }
}

/// A declared production rate: the jitter-constrained stream (T, D, tau) of
/// [GRTMon, section 4.2]. Any two elements i <= j keep a distance of at least
/// `max((j - i) * D, (j - i) * T - tau)` (equation 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// T, the period; more than zero.
    pub period: Nanos,
    /// D, the least distance of two elements; at most T.
    pub distance: Nanos,
    /// tau, the amount by which elements may come early in total.
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

/// The description of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDescriptor {
    /// The stream's number.
    pub id: StreamId,
    /// Its origin.
    pub origin: Origin,
    /// The sensor's id, which names what it measures. For kernel streams, the hook.
    pub sensor: String,
    /// The instance, of several sensors with this id in a task; empty for a single one.
    pub instance: String,
    /// The lane of a laned sensor; `None` for sensors of other kinds. The lanes of a sensor are
    /// streams with consecutive numbers, and are shown to users as one sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<u32>,
    /// The schema of the payload.
    pub schema: Arc<TypeSchema>,
    /// The declared rate, if any.
    pub rate: Option<Rate>,
    /// Number of elements that the buffer holds, for display; readers use their own geometry.
    pub capacity: u64,
}

impl StreamDescriptor {
    /// A stream of the only instance of a sensor: without lanes, declared rate and known capacity.
    /// Other values are set by `StreamDescriptor { lane: Some(0), ..StreamDescriptor::new(...) }`.
    #[must_use]
    pub fn new(
        id: StreamId,
        origin: Origin,
        sensor: impl Into<String>,
        schema: impl Into<Arc<TypeSchema>>,
    ) -> Self {
        Self {
            id,
            origin,
            sensor: sensor.into(),
            instance: String::new(),
            lane: None,
            schema: schema.into(),
            rate: None,
            capacity: 0,
        }
    }

    /// The number of the sensor's first stream: the same for all lanes of a sensor.
    #[must_use]
    pub const fn first_stream(&self) -> StreamId {
        match self.lane {
            Some(lane) => StreamId::from_raw(self.id.as_raw().wrapping_sub(lane)),
            None => self.id,
        }
    }

    /// Whether both streams are of one sensor: lanes, or a kernel sensor on two CPUs.
    #[must_use]
    pub fn is_same_sensor(&self, other: &Self) -> bool {
        match (&self.origin, &other.origin) {
            (Origin::Kernel { .. }, Origin::Kernel { .. }) => {
                self.sensor == other.sensor && self.instance == other.instance
            }
            _ => self.first_stream() == other.first_stream(),
        }
    }

    /// Whether least, mean and greatest value of a field are meaningful, because it is more than an
    /// id or a kind. That holds for all fields of programs except addresses; and of the kernel for
    /// fields with a unit, and for arguments and results of probes.
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
            Origin::Sampler => EventName::sampler(&self.sensor),
        }
    }

    /// The name for display: `comm(pid)/sensor#instance`, `kernel/hook@cpu`, `sampler/sensor`; a
    /// lane has its number at the end, `comm(pid)/sensor[2]`.
    #[must_use]
    pub fn label(&self) -> String {
        let name = self.sensor_label();
        match self.lane {
            Some(lane) => alloc::format!("{name}[{lane}]"),
            None => name,
        }
    }

    /// The name for a message about the schema: [`Self::sensor_label`] for programs; for the
    /// kernel the event, because the streams of all CPUs have one schema.
    #[must_use]
    pub fn schema_label(&self) -> String {
        match self.origin {
            Origin::Kernel { .. } => self.event().as_str().into(),
            _ => self.sensor_label(),
        }
    }

    /// The name of the sensor for display: [`Self::label`] without the lane.
    #[must_use]
    pub fn sensor_label(&self) -> String {
        match &self.origin {
            Origin::Kernel { cpu } => alloc::format!("kernel/{}@{cpu}", self.sensor),
            Origin::Sampler => alloc::format!("sampler/{}", self.sensor),
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
