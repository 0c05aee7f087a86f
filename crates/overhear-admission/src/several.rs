// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several sensors evaluated in chronological order, in GRTMon's form [GRTMon, section 4.2.2].
//!
//! R is computed for each sensor alone, from the common latency. The CPU time of all goes into one
//! pool, and the evaluations borrow from each other in the order of the elements. That corresponds
//! to earliest deadline first, so the latency holds. The backlog of one sensor may grow to E(l).
//!
//! Corrected: borrowing keeps the latency only if an evaluation may be throttled and continue in
//! the next period. Evaluations that cannot be interrupted need
//! [`runtime_for_whole_evaluations`].

use alloc::vec::Vec;

use overhear_event::Nanos;

use crate::exact::{add, mul, signed};
use crate::{ArrivalBound, CopyPlan, Overflow, PeriodicTask, SingleSensor, Span};

/// A sensor and what it costs to evaluate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SensorLoad {
    /// How fast elements may come.
    pub stream: ArrivalBound,
    /// W, the worst-case execution time of one evaluation.
    pub wcet: Nanos,
    /// The worst-case execution time of copying one element to private memory.
    pub copy: Nanos,
    /// Elements that the shared buffer holds; `None` where it needs no regard.
    pub buffer: Option<u64>,
}

/// What one sensor takes from a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SensorShare {
    /// R, evaluations per period.
    pub r: u128,
    /// How the shared buffer is kept from overflowing.
    pub plan: CopyPlan,
}

/// The CPU time that a monitor must have in each period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// One share per sensor, in the order of the sensors.
    pub shares: Vec<SensorShare>,
    /// The part of the runtime that evaluations share: the sum of `R_i * W_i`.
    pub evaluations: Span,
    /// overhead + evaluations + the sum of `C_i * copy_i`.
    pub runtime: Span,
}

/// Why no reservation gives the guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The requested latency is below the minimum of a monitor with this period.
    #[error(
        "the latency {requested} is below the least that this monitor can guarantee, T_M + d = \
         {l_min}; allow {l_min} or more, or shorten the period or the deadline"
    )]
    LatencyTooShort {
        /// The requested l.
        requested: Span,
        /// T_M + d.
        l_min: Span,
    },
    /// A shared buffer overflows before the monitor can have looked.
    #[error(
        "the buffer of sensor {sensor} holds {buffer} elements, but {needed} can come before the \
         monitor looks; give it {needed}, or shorten the period or the deadline"
    )]
    BufferTooSmall {
        /// The sensor's place in the list, from zero.
        sensor: usize,
        /// Elements that the buffer holds.
        buffer: u64,
        /// E(T_M + d).
        needed: u128,
    },
    /// The parameters leave 128-bit integers.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

/// GRTMon's reservation for a common latency l.
///
/// Private memory for a single sensor is b_max(R), for one among several E(l): the latter also
/// holds when sensors are added to the monitor while it runs.
///
/// # Errors
/// [`ReserveError`] if the latency or a buffer cannot be kept.
pub fn reserve(
    sensors: &[SensorLoad],
    task: PeriodicTask,
    l: Span,
    overhead: Nanos,
) -> Result<Reservation, ReserveError> {
    let mut shares = Vec::with_capacity(sensors.len());
    let (mut evaluations, mut copying) = (0, 0);
    for (i, load) in sensors.iter().enumerate() {
        let sensor = SingleSensor::new(load.stream, task);
        let Some(r) = sensor.least_r(l)? else {
            return Err(ReserveError::LatencyTooShort {
                requested: l,
                l_min: task.l_min(),
            });
        };
        let plan = match load.buffer {
            None => CopyPlan::Direct,
            Some(buffer) => {
                let alone = (sensors.len() == 1).then(|| sensor.b_max(r)).transpose()?;
                let backlog = alone
                    .flatten()
                    .unwrap_or_else(|| load.stream.elements_within(l));
                let plan = CopyPlan::of_rate(sensor, backlog, u128::from(buffer))?;
                if plan == CopyPlan::Infeasible {
                    return Err(ReserveError::BufferTooSmall {
                        sensor: i,
                        buffer,
                        needed: load.stream.elements_within(task.l_min()),
                    });
                }
                plan
            }
        };
        evaluations = add(evaluations, cost(r, load.wcet)?)?;
        copying = add(copying, cost(plan.copies(), load.copy)?)?;
        shares.push(SensorShare { r, plan });
    }
    let overhead = i128::from(overhead.as_ns());
    let runtime = add(add(overhead, evaluations)?, copying)?;
    Ok(Reservation {
        shares,
        evaluations: Span::of(evaluations),
        runtime: Span::of(runtime),
    })
}

/// The runtime with which the latency also holds when an evaluation, once begun, cannot be
/// throttled: `Q + max W - 1 ns`, where evaluations begin while less than Q is consumed and take at
/// least a nanosecond each.
///
/// GRTMon claims Q itself to be enough. A counterexample: T = 2, D = 0, tau = 3 with W = 1 and
/// T = 3, D = 0, tau = 3 with W = 4, under T_M = d = 1 with l = 3.
///
/// # Errors
/// [`Overflow`] for parameters beyond reason.
pub fn runtime_for_whole_evaluations(
    sensors: &[SensorLoad],
    evaluations: Span,
) -> Result<Span, Overflow> {
    let longest = sensors.iter().map(|load| load.wcet.as_ns()).max();
    let margin = i128::from(longest.unwrap_or(0).saturating_sub(1));
    add(evaluations.as_ns(), margin).map(Span::of)
}

/// `number * each` nanoseconds.
pub(crate) fn cost(number: u128, each: Nanos) -> Result<i128, Overflow> {
    mul(signed(number)?, i128::from(each.as_ns()))
}
