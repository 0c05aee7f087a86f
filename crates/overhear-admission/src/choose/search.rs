// SPDX-License-Identifier: MIT OR Apache-2.0
//! The search for the cheapest period.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use overhear_event::Nanos;

use super::plan_cost::PlanCost;
use super::{AdmissionRequest, Effort, EFFORT, ITERATIONS};
use crate::exact::{add, mul, signed, Ratio};
use crate::several::cost;
use crate::{largest_period, Overflow, SensorLoad, Span};

/// Evaluations per period that are tried one by one, before the steps grow.
const SMALL_R: u128 = 96;
/// Periods that are tried for a vector of R where buffers are limited.
const BETWEEN: i128 = 4;

/// The periods that were tried, and the cheapest bill.
pub(super) struct Search<'a> {
    pub(super) sensors: &'a [SensorLoad],
    pub(super) request: &'a AdmissionRequest,
    pub(super) top: i128,
    pub(super) tried: BTreeSet<i128>,
    pub(super) effort: Effort,
    /// Utilisation and T_M of all that fit.
    pub(super) fitting: Vec<(Ratio, i128)>,
    pub(super) best: Option<PlanCost>,
}

impl<'a> Search<'a> {
    pub(super) fn new(sensors: &'a [SensorLoad], request: &'a AdmissionRequest) -> Self {
        let longest = i128::from(request.largest_period.as_ns());
        Self {
            sensors,
            request,
            top: request.longest_deadline(0).min(longest),
            tried: BTreeSet::new(),
            effort: Effort(EFFORT),
            fitting: Vec::new(),
            best: None,
        }
    }

    pub(super) fn everywhere(&mut self) -> Result<(), Overflow> {
        self.grid()?;
        if self.sensors.len() > 1 {
            self.chain()?;
        }
        for i in 0..self.sensors.len() {
            self.steps_of(i)?;
        }
        self.refine()
    }

    /// The longest period of each vector (R_1, R_2, ...) that can be the best one, from (1, 1, ...)
    /// on.
    ///
    /// A vector R costs Q(R), needs the deadline d(R) = Q(R)/density and allows the period T(R) =
    /// min over i of T_i(R_i, d(R)). Let R lie below the best vector R* in every place, and let b
    /// be a sensor that binds T(R). Either R_b < R*_b: then raising R_b stays below R*. Or R_b =
    /// R*_b: then T(R) >= T_b(R*_b, d(R*)) >= T(R*), since d(R) <= d(R*), and R costs no more than
    /// R*, so R is as good. So the chain that raises the binding sensor meets the best vector, as
    /// long as it goes by single steps and neither copies nor a pool change the cost.
    pub(super) fn chain(&mut self) -> Result<(), Overflow> {
        let mut r = alloc::vec![1_u128; self.sensors.len()];
        let longest = Span::of(self.top.max(0));
        while !self.effort.is_spent() {
            let mut runtime = i128::from(self.request.overhead.as_ns());
            for (load, &r) in self.sensors.iter().zip(&r) {
                runtime = add(runtime, cost(r, load.wcet)?)?;
            }
            let d = self.request.least_deadline(runtime)?;
            if d > self.top {
                break;
            }
            let mut binding = 0;
            let mut least = i128::MAX;
            for (i, &r) in r.iter().enumerate() {
                self.effort.spend(1);
                let t_m = self.longest_with(i, d, r)?.unwrap_or(0);
                if t_m < least {
                    (binding, least) = (i, t_m);
                }
            }
            self.attempt(least)?;
            // Copies make the longest period dear, or a buffer makes it impossible: the vector also
            // serves shorter ones, down to its deadline.
            if self.sensors.iter().any(|load| load.buffer.is_some()) {
                for part in 0..BETWEEN {
                    self.attempt(d + mul(least - d, part)? / BETWEEN)?;
                }
            }
            let bound = self.sensors[binding].stream.elements_within(longest);
            if least >= self.top || r[binding] >= bound {
                break;
            }
            let now = r[binding];
            r[binding] += if now < SMALL_R { 1 } else { now / 24 };
        }
        Ok(())
    }

    /// Tries a period, cut off at the largest one.
    pub(super) fn attempt(&mut self, t_m: i128) -> Result<(), Overflow> {
        let t_m = t_m.min(self.top);
        let least = i128::from(self.request.least_period.as_ns()).max(1);
        if t_m < least || self.effort.is_spent() || !self.tried.insert(t_m) {
            return Ok(());
        }
        let Some(cost) = PlanCost::cheapest(self.sensors, t_m, self.request, &mut self.effort)?
        else {
            return Ok(());
        };
        self.fitting.push((cost.utilisation(), t_m));
        let better = self.best.as_ref().is_none_or(|best| {
            let order = cost.utilisation().cmp(&best.utilisation());
            order.is_lt() || (order.is_eq() && t_m > best.task.t_m())
        });
        if better {
            self.best = Some(cost);
        }
        Ok(())
    }

    pub(super) fn grid(&mut self) -> Result<(), Overflow> {
        let mut shrinking = self.top;
        for i in 1..=64 {
            self.attempt(mul(self.top, i)? / 64)?;
            self.attempt(shrinking)?;
            shrinking = mul(shrinking, 9)? / 10;
        }
        Ok(())
    }

    /// The periods at which this sensor's R is about to step.
    pub(super) fn steps_of(&mut self, i: usize) -> Result<(), Overflow> {
        let load = self.sensors[i];
        let r_max = load.stream.elements_within(Span::of(self.top.max(0)));
        let mut r = 1;
        loop {
            let mut d = 1;
            for _ in 0..ITERATIONS {
                let Some(t_m) = self.longest_with(i, d, r)? else {
                    break;
                };
                let t_m = t_m.min(self.top);
                self.attempt(t_m)?;
                // The deadline that this period needs leaves less of the latency to the period.
                let d_here = d.min(t_m);
                let cost = PlanCost::of(self.sensors, t_m, d_here, self.request, &mut self.effort)?;
                let Some(cost) = cost else {
                    break;
                };
                let needed = self.request.least_deadline(cost.runtime)?;
                if needed <= d {
                    break;
                }
                d = needed;
            }
            if r > r_max || self.effort.is_spent() {
                break;
            }
            r += if r < SMALL_R { 1 } else { (r / 24).max(1) };
        }
        if let Some(buffer) = load.buffer {
            let longest = load.stream.t_s(signed(u128::from(buffer))?)?;
            for k in 2..6 {
                self.attempt(mul(longest, k - 1)? / k)?;
            }
            self.attempt(longest - 1)?;
        }
        Ok(())
    }

    /// The largest period with R evaluations of one sensor and the deadline d.
    pub(super) fn longest_with(
        &self,
        i: usize,
        d: i128,
        r: u128,
    ) -> Result<Option<i128>, Overflow> {
        let effective = add(d, i128::from(self.request.lateness.as_ns()))?;
        let Ok(effective) = u64::try_from(effective).map(Nanos::from_ns) else {
            return Ok(None);
        };
        let stream = self.sensors[i].stream;
        let longest = largest_period(stream, effective, r, self.request.latency)?;
        Ok(longest.map(Span::as_ns))
    }

    /// Searches around the best period, until nothing better is found there.
    pub(super) fn refine(&mut self) -> Result<(), Overflow> {
        for _ in 0..8 {
            let Some(best) = self.best.clone() else {
                return Ok(());
            };
            let d = self.request.least_deadline(best.runtime)?;
            let mut t_m = self.top;
            for (i, share) in best.shares.iter().enumerate() {
                t_m = t_m.min(self.longest_with(i, d, share.r)?.unwrap_or(0));
            }
            for near in [0, -1, 1, -2, 2] {
                self.attempt(add(t_m, near)?)?;
            }
            for k in 1..12 {
                for sign in [1, -1] {
                    let Some(t_m) = self.best.as_ref().map(|best| best.task.t_m()) else {
                        return Ok(());
                    };
                    self.attempt(t_m + sign * (t_m >> k).max(1))?;
                }
            }
            if self.best.as_ref() == Some(&best) {
                return Ok(());
            }
        }
        Ok(())
    }
}
