// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which period, deadline and evaluations per period cost the least CPU time for a requested
//! latency.
//!
//! GRTMon leaves T_M, d and l to the user and calls their choice future work
//! [GRTMon, section 4.2.2]. Here only l is given. Utilisation is `Q / T_M`. For fixed numbers R_i
//! it falls with T_M, so a local optimum lies where some R_i is about to step, at
//! `T_M = largest_period(s_i, d, R_i, l)`, or at a bound. These periods are tried, and a coarse
//! grid of others; then the neighbourhood of the best one is searched. What is found always holds
//! the latency; that nothing is cheaper is certain where no buffer is limited, no pool is used, and
//! every R_i is small. The search is bounded: parameters of odd sizes end it early, and if nothing
//! was found until then the error states it.

mod plan_cost;
mod search;

use alloc::vec::Vec;

use overhear_event::Nanos;

use crate::exact::{ceil_div, mul, Ratio};
use crate::{Overflow, PeriodicTask, SensorLoad, SensorShare, Span};
use plan_cost::PlanCost;
use search::Search;

/// The requirements on a monitor, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// l: every evaluation ends before this length after the element's stamp.
    pub latency: Span,
    /// T_M is at least this.
    pub least_period: Nanos,
    /// T_M is at most this: the directory sizes buffers for it.
    pub largest_period: Nanos,
    /// Time that each period costs besides evaluating and copying.
    pub overhead: Nanos,
    /// What the effective deadline has above the one that the scheduler is given: late wake-ups,
    /// hold-back ([`Lateness::total`](crate::Lateness::total)). Zero in a perfect world.
    pub lateness: Nanos,
    /// The most of `runtime / deadline` that the scheduler grants, above 0 and at most 1.
    pub density: Ratio,
    /// Whether the demand of all sensors is bounded as a whole ([`Pool`](crate::Pool)), which is
    /// cheaper, but holds for a fixed set of sensors only.
    pub joint_bound: bool,
}

/// The parameters of a monitor that fulfils a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationPlan {
    /// T_M and d; d includes the request's lateness.
    pub task: PeriodicTask,
    /// d without the lateness, at most T_M: the deadline that the scheduler must be given.
    pub deadline: Nanos,
    /// The runtime per period, with overhead and copies.
    pub runtime: Span,
    /// The part of the runtime that evaluations share.
    pub evaluations: Span,
    /// R and the copies of each sensor, in the order of the sensors. In a pool R is only how many
    /// evaluations the sensor alone would need.
    pub shares: Vec<SensorShare>,
    /// The guaranteed latency, at most the requested one.
    pub latency: Span,
}

impl ReservationPlan {
    /// runtime / T_M.
    #[must_use]
    pub fn utilisation(&self) -> Ratio {
        Ratio::new(self.runtime.as_ns(), self.task.t_m()).unwrap_or(Ratio::whole(0))
    }
}

/// Why no monitor was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The density is not above 0 and at most 1.
    #[error("the density {density} cannot be granted; give more than 0 and at most 1")]
    Density {
        /// As given.
        density: Ratio,
    },
    /// A sensor's evaluations can never keep up with it.
    #[error(
        "sensor {sensor} is evaluated for {wcet} per element, above its period T = {period}; make its \
         evaluations cheaper, or declare a longer period"
    )]
    TooSlow {
        /// The sensor's place in the list, from zero.
        sensor: usize,
        /// W.
        wcet: Nanos,
        /// T.
        period: Nanos,
    },
    /// No period within the bounds holds the latency.
    #[error(
        "no period from {least} to {largest} keeps the latency below {latency}; allow a longer \
         latency, shorter periods or a higher density, or make the evaluations cheaper"
    )]
    NothingFits {
        /// The requested l.
        latency: Span,
        /// The least period that was allowed.
        least: Nanos,
        /// The largest period that was allowed.
        largest: Nanos,
    },
    /// The search ended before it had found one, or could exclude that there is one.
    #[error(
        "no period from {least} to {largest} was found that keeps the latency below {latency}, \
         before the search was given up; name a period, or narrow the bounds"
    )]
    GivenUp {
        /// The requested l.
        latency: Span,
        /// The least period that was allowed.
        least: Nanos,
        /// The largest period that was allowed.
        largest: Nanos,
    },
    /// The parameters leave 128-bit integers.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

/// Periods that are tried for a pool, out of those that suit the sensors one by one.
const SCOUTED: usize = 16;
/// Formulas that a search may evaluate: fractions of a second. Requests of usual sizes take
/// less than a third of it.
const EFFORT: u32 = 1_000_000;
/// Steps of an iteration that usually ends after three; what has not ended is given up.
const ITERATIONS: usize = 24;

/// The monitor with the least utilisation that fulfils `request`; of equal ones that with the
/// longest period.
///
/// # Errors
/// [`PlanError`] if none is found.
pub fn choose(
    sensors: &[SensorLoad],
    request: &AdmissionRequest,
) -> Result<ReservationPlan, PlanError> {
    if request.density <= Ratio::whole(0) || request.density > Ratio::whole(1) {
        return Err(PlanError::Density {
            density: request.density,
        });
    }
    let slow = sensors.iter().zip(0..);
    let mut slow = slow.filter(|(load, _)| load.wcet > load.stream.period());
    if let Some((load, sensor)) = slow.next() {
        return Err(PlanError::TooSlow {
            sensor,
            wcet: load.wcet,
            period: load.stream.period(),
        });
    }
    let mut search = Search::new(sensors, request);
    if request.joint_bound && sensors.len() > 1 {
        // A pool is dear to compute. The periods that suit the sensors one by one suit it, too.
        let apart = AdmissionRequest {
            joint_bound: false,
            ..*request
        };
        let mut scout = Search::new(sensors, &apart);
        scout.everywhere()?;
        scout.fitting.sort_unstable();
        for &(_, t_m) in scout.fitting.iter().take(SCOUTED) {
            search.attempt(t_m)?;
        }
        if search.best.is_none() {
            search.grid()?;
        }
        search.refine()?;
    } else {
        search.everywhere()?;
    }
    match search.best {
        Some(cost) => Ok(cost.into_choice(sensors, request)?),
        None if search.effort.is_spent() => Err(PlanError::GivenUp {
            latency: request.latency,
            least: request.least_period,
            largest: request.largest_period,
        }),
        None => Err(PlanError::NothingFits {
            latency: request.latency,
            least: request.least_period,
            largest: request.largest_period,
        }),
    }
}

/// The monitor with the period T_M and the least utilisation that fulfils `request`; `None` if
/// there is none.
///
/// The deadline is the least fixed point of `d = runtime(d) / density`: a shorter one cannot be
/// met, a longer one costs no less. Afterwards it is moved as late as the runtime stays.
///
/// # Errors
/// [`Overflow`] for parameters beyond reason.
pub fn choose_for_period(
    sensors: &[SensorLoad],
    period: Nanos,
    request: &AdmissionRequest,
) -> Result<Option<ReservationPlan>, Overflow> {
    let mut effort = Effort(EFFORT);
    match PlanCost::cheapest(sensors, i128::from(period.as_ns()), request, &mut effort)? {
        Some(cost) => cost.into_choice(sensors, request).map(Some),
        None => Ok(None),
    }
}

impl AdmissionRequest {
    /// What the latency leaves to the deadline, besides a period and the lateness.
    fn longest_deadline(&self, t_m: i128) -> i128 {
        self.latency.as_ns() - t_m - i128::from(self.lateness.as_ns())
    }

    /// The shortest deadline within which the scheduler grants the runtime.
    fn least_deadline(&self, runtime: i128) -> Result<i128, Overflow> {
        let scaled = mul(runtime, self.density.denominator())?;
        Ok(ceil_div(scaled, self.density.numerator()).max(1))
    }
}

/// What a search may still spend.
struct Effort(u32);

impl Effort {
    fn spend(&mut self, formulas: u32) {
        self.0 = self.0.saturating_sub(formulas);
    }

    const fn is_spent(&self) -> bool {
        self.0 == 0
    }
}
