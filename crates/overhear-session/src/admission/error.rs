// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in the description of a monitor.

use std::path::Path;

use overhear_admission::{ArrivalBoundError, Overflow};
use overhear_directory::QueryError;
use overhear_event::{Nanos, IN_PLACE_BYTES};

use crate::error::{ErrorKind, SessionError, Setting};

/// An error in the description of a monitor. Each message names the entry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    #[error("cpus is 0; give at least 1")]
    NoCpus,
    #[error("dedicated_cpu sets a CPU apart, and level is \"shared\"; leave one of them out")]
    DedicatedCpuIsShared,
    #[error("there is no [[sensor]]; name at least one with its period")]
    NoSensor,
    #[error("{0}")]
    Probe(String),
    #[error("sensor `{0}` is listed twice")]
    SensorTwice(String),
    #[error("[[sensor]] number {0}: its `id` is empty; give the sensor's id, or a pattern")]
    EmptyId(usize),
    #[error("sensor `{id}`: {error}")]
    Sensor { id: String, error: SensorError },
    #[error("sensor `{0}` is evaluated by no [[update]] that takes time; add one with its wcet")]
    SensorWithoutUpdate(String),
    #[error(
        "update `{update}` takes sensor `{sensor}`, which is not described; add a [[sensor]] with \
         this id"
    )]
    UnknownSensor { update: String, sensor: String },
    #[error(
        "update `{0}` evaluates in place, which is for elements above {IN_PLACE_BYTES} bytes, and \
         none of its sensors has them; give the sensor's `payload`, or leave `in_place` out"
    )]
    NothingInPlace(String),
    #[error("update `{update}`: `{sensor}` {message}")]
    Field {
        update: String,
        sensor: String,
        message: String,
    },
    #[error("update `{0}` has no wcet; measure one in a run of `overhear run`")]
    NoWcet(String),
    #[error("update `{0}` has a `memory`, which is for updates of plug-ins; leave it out")]
    MemoryWithoutPlugin(String),
    #[error("[monitor] `largest_period` is {largest}, below `least_period`, {least}; give more")]
    Periods { largest: Nanos, least: Nanos },
    #[error("[monitor] `wake_up_lateness`, `scheduler_lateness` and `hold_back` together: {0}")]
    Lateness(Overflow),
    #[error(
        "[monitor] has no `latency`, which admission needs; give the length within which every element is \
         to be evaluated"
    )]
    NoLatency,
    #[error(
        "{entry} `latency` is {latency}, and `wake_up_lateness`, `scheduler_lateness` and `hold_back` alone are {lateness}; \
         give more"
    )]
    ShortLatency {
        entry: String,
        latency: Nanos,
        lateness: Nanos,
    },
    #[error(
        "updates with the executors \"bandwidth\" and \"buffered\" reserve CPU time besides the guaranteed \
         ones, which have a CPU of their own; set one apart by `dedicated_cpu`, or give level \"shared\""
    )]
    ReservationsBesidesExclusive,
    #[error("{0}")]
    CopyingLateness(Overflow),
}

/// An error in a `[[sensor]]`, without its id.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SensorError {
    #[error("{0}")]
    Kernel(String),
    #[error("{0}")]
    Pattern(QueryError),
    #[error("its {key} is {number}; give {least} to {most}")]
    OutOfRange {
        key: &'static str,
        number: u32,
        least: u32,
        most: u32,
    },
    #[error("its buffer is 0; give at least 1, or leave it out")]
    NoBuffer,
    #[error("distance and jitter follow from the fit; leave them out")]
    FittedAndStated,
    #[error("{0}")]
    Fit(String),
    #[error(
        "{0} elements were missed in the recording, so the rate of the sensor is \
         not known; record it again, or declare period, distance and jitter"
    )]
    FittedToLosses(u64),
    #[error("it has no period; give period, distance and jitter, or a recording to fit")]
    NoPeriod,
    #[error("{0}")]
    Arrivals(ArrivalBoundError),
}

impl MonitorError {
    /// The error about the file `path`.
    pub(crate) fn in_file(&self, path: &Path) -> SessionError {
        let error = SessionError::new(ErrorKind::Usage, format!("{}: {self}", path.display()));
        match self {
            Self::NoWcet(_) => error.about(Setting::MeasureWcet),
            _ => error,
        }
    }
}
