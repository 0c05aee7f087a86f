// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes in the description of a monitor.

use std::path::Path;

use overhear_admission::{ArrivalBoundError, Overflow};
use overhear_directory::QueryError;
use overhear_event::{Nanos, IN_PLACE_BYTES};

use crate::error::{ErrorKind, SessionError};

/// A mistake in the description of a monitor. Each message names the entry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    #[error("cpus is 0; give at least 1")]
    NoCpus,
    #[error("dedicated_cpu sets a CPU apart, and level is \"shared\"; leave one of them out")]
    OwnCpuIsShared,
    #[error("there is no [[sensor]]; name at least one with its period")]
    NoSensor,
    #[error("{0}")]
    Probe(String),
    #[error("sensor `{0}` stands there twice")]
    SensorTwice(String),
    #[error("[[sensor]] number {0}: its `id` is empty; give the sensor's id, or a pattern")]
    EmptyId(usize),
    #[error("sensor `{id}`: {mistake}")]
    Sensor { id: String, mistake: SensorMistake },
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
    #[error("update `{0}` has no wcet; measure one with `overhear run --measure-wcet`")]
    NoWcet(String),
    #[error("update `{0}` has a `memory`, which is for updates of plug-ins; leave it out")]
    MemoryWithoutPlugin(String),
    #[error("[monitor] `largest_period` is {largest}, below `least_period`, {least}; give more")]
    Periods { largest: Nanos, least: Nanos },
    #[error("[monitor] `wake_up_lateness`, `scheduler_lateness` and `hold_back` together: {0}")]
    Lateness(Overflow),
    #[error(
        "[monitor] has no `latency`, and admission is about one; give the length within which every element is \
         to be evaluated"
    )]
    NoLatency,
    #[error(
        "{whose} `latency` is {wished}, and `wake_up_lateness`, `scheduler_lateness` and `hold_back` alone are {lateness}; \
         give more"
    )]
    ShortLatency {
        whose: String,
        wished: Nanos,
        lateness: Nanos,
    },
    #[error(
        "updates with the executors \"bandwidth\" and \"buffered\" reserve CPU time beside the guaranteed \
         ones, which have a CPU of their own; set one apart by `dedicated_cpu`, or give level \"shared\""
    )]
    ReservedBesideExclusive,
    #[error("{0}")]
    CopyingLateness(Overflow),
}

/// A mistake in a `[[sensor]]`, without its id.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SensorMistake {
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
        "{0} elements were missed in the recording, so it does not say how fast the sensor \
         is; record it again, or declare period, distance and jitter"
    )]
    FittedToLosses(u64),
    #[error("it has no period; give period, distance and jitter, or a recording it is fitted to")]
    NoPeriod,
    #[error("{0}")]
    Arrivals(ArrivalBoundError),
}

impl MonitorError {
    /// The error about the file `path`.
    pub(crate) fn in_file(&self, path: &Path) -> SessionError {
        SessionError::new(ErrorKind::Usage, format!("{}: {self}", path.display()))
    }
}
