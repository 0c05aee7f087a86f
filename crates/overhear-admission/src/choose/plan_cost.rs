// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one period and deadline cost.

use alloc::vec::Vec;

use overhear_event::Nanos;

use super::{AdmissionRequest, Effort, ReservationPlan, EFFORT, ITERATIONS};
use crate::exact::{add, Ratio};
use crate::several::cost;
use crate::{CopyPlan, Overflow, PeriodicTask, Pool, SensorLoad, SensorShare, SingleSensor, Span};

/// Lengths that one of the many searches in a pool may look at.
const POOL_STEPS: u32 = 2_000;
/// Numbers of evaluations, instead of copies, that are tried one by one before the steps grow.
const TRADE_STEPS: u128 = 16;

/// What one pair (T_M, d) costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlanCost {
    pub(super) task: PeriodicTask,
    /// d without the lateness.
    pub(super) deadline: i128,
    pub(super) runtime: i128,
    pub(super) evaluations: i128,
    pub(super) shares: Vec<SensorShare>,
}

impl PlanCost {
    /// The bill of the shortest deadline within which its own runtime is granted.
    pub(super) fn cheapest(
        sensors: &[SensorLoad],
        t_m: i128,
        request: &AdmissionRequest,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        let top = t_m.min(request.longest_deadline(t_m));
        let mut d = 1;
        for _ in 0..ITERATIONS {
            if d > top || effort.is_spent() {
                break;
            }
            let Some(cost) = Self::of(sensors, t_m, d, request, effort)? else {
                break;
            };
            let needed = request.least_deadline(cost.runtime)?;
            if needed <= d {
                return Ok(Some(cost));
            }
            d = needed;
        }
        Ok(None)
    }

    /// The same runtime with the latest deadline that needs no more.
    pub(super) fn with_latest_deadline(
        self,
        sensors: &[SensorLoad],
        request: &AdmissionRequest,
    ) -> Result<Self, Overflow> {
        let t_m = self.task.t_m();
        let mut high = t_m.min(request.longest_deadline(t_m));
        let (mut low, mut latest) = (self.deadline, self);
        // At most 64 halvings: T_M has 64 bits.
        let mut effort = Effort(EFFORT);
        while low < high && !effort.is_spent() {
            let middle = low + (high - low + 1) / 2;
            match Self::of(sensors, t_m, middle, request, &mut effort)? {
                Some(later) if later.runtime <= latest.runtime => (low, latest) = (middle, later),
                _ => high = middle - 1,
            }
        }
        Ok(latest)
    }

    pub(super) fn utilisation(&self) -> Ratio {
        Ratio::new(self.runtime, self.task.t_m()).unwrap_or(Ratio::whole(0))
    }

    pub(super) fn of(
        sensors: &[SensorLoad],
        t_m: i128,
        d: i128,
        request: &AdmissionRequest,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        let effective = d + i128::from(request.lateness.as_ns());
        let (Ok(t_m), Ok(effective)) = (u64::try_from(t_m), u64::try_from(effective)) else {
            return Ok(None);
        };
        let Ok(task) = PeriodicTask::late(Nanos::from_ns(t_m), Nanos::from_ns(effective)) else {
            return Ok(None);
        };
        match sensors {
            [load] => Self::of_one(load, task, d, request, effort),
            _ => Self::of_several(sensors, task, d, request, effort),
        }
    }

    /// More evaluations per period can save more copies than they cost, so they are tried from the
    /// least R up, until the evaluations alone cost as much as the best so far.
    pub(super) fn of_one(
        load: &SensorLoad,
        task: PeriodicTask,
        deadline: i128,
        request: &AdmissionRequest,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        effort.spend(1);
        let sensor = SingleSensor::new(load.stream, task);
        let Some(least) = sensor.least_r(request.latency)? else {
            return Ok(None);
        };
        let overhead = i128::from(request.overhead.as_ns());
        let mut candidates = alloc::vec![least];
        if let Some(buffer) = load.buffer {
            let Some(direct) = sensor.least_copy_rate(u128::from(buffer))? else {
                return Ok(None);
            };
            let mut more = 1;
            while least + more < direct {
                candidates.push(least + more);
                more += (more / TRADE_STEPS).max(1);
            }
            candidates.extend((direct > least).then_some(direct));
        }
        let mut best: Option<Self> = None;
        for r in candidates {
            let evaluations = cost(r, load.wcet)?;
            let bare = add(overhead, evaluations)?;
            if best.as_ref().is_some_and(|best| bare >= best.runtime) {
                break;
            }
            effort.spend(1);
            let plan = match (load.buffer, sensor.b_max(r)?) {
                (Some(buffer), Some(backlog)) => {
                    CopyPlan::least(sensor, backlog, u128::from(buffer))?
                }
                _ => CopyPlan::Direct,
            };
            let runtime = add(bare, cost(plan.copies(), load.copy)?)?;
            if best.as_ref().is_none_or(|best| runtime < best.runtime) {
                best = Some(Self {
                    task,
                    deadline,
                    runtime,
                    evaluations,
                    shares: alloc::vec![SensorShare { r, plan }],
                });
            }
        }
        Ok(best)
    }

    pub(super) fn of_several(
        sensors: &[SensorLoad],
        task: PeriodicTask,
        deadline: i128,
        request: &AdmissionRequest,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        let each = u32::try_from(sensors.len()).unwrap_or(u32::MAX);
        effort.spend(each);
        let mut shares = Vec::with_capacity(sensors.len());
        let mut evaluations = 0;
        for load in sensors {
            let Some(r) = SingleSensor::new(load.stream, task).least_r(request.latency)? else {
                return Ok(None);
            };
            evaluations = add(evaluations, cost(r, load.wcet)?)?;
            shares.push(SensorShare {
                r,
                plan: CopyPlan::Direct,
            });
        }
        let pool = Pool::new(sensors, task)?.with_steps(POOL_STEPS);
        if request.joint_bound {
            effort.spend(each.saturating_mul(POOL_STEPS / 4));
            let Some(least) = pool.least_runtime(request.latency)? else {
                return Ok(None);
            };
            evaluations = least.value.as_ns().min(evaluations);
        }
        let mut runtime = add(i128::from(request.overhead.as_ns()), evaluations)?;
        for (i, (load, share)) in sensors.iter().zip(&mut shares).enumerate() {
            let Some(buffer) = load.buffer.map(u128::from) else {
                continue;
            };
            // E(l) bounds the backlog and is cheap to compute.
            if load.stream.elements_within(request.latency) <= buffer {
                continue;
            }
            effort.spend(each.saturating_mul(POOL_STEPS / 4));
            let Some(backlog) = pool.backlog(i, Span::of(evaluations))? else {
                return Ok(None);
            };
            let sensor = SingleSensor::new(load.stream, task);
            share.plan = CopyPlan::least(sensor, backlog.value, buffer)?;
            if share.plan == CopyPlan::Infeasible {
                return Ok(None);
            }
            runtime = add(runtime, cost(share.plan.copies(), load.copy)?)?;
        }
        Ok(Some(Self {
            task,
            deadline,
            runtime,
            evaluations,
            shares,
        }))
    }

    pub(super) fn into_choice(
        self,
        sensors: &[SensorLoad],
        request: &AdmissionRequest,
    ) -> Result<ReservationPlan, Overflow> {
        let cost = self.with_latest_deadline(sensors, request)?;
        let mut latency = cost.task.l_min();
        if request.joint_bound && sensors.len() > 1 {
            latency = request.latency;
        } else {
            for (load, share) in sensors.iter().zip(&cost.shares) {
                let sensor = SingleSensor::new(load.stream, cost.task);
                // R is at least R_min, so there is a latency.
                latency = latency.max(sensor.latency(share.r)?.unwrap_or(request.latency));
            }
        }
        Ok(ReservationPlan {
            task: cost.task,
            // It is at most T_M, which fits.
            deadline: Nanos::from_ns(u64::try_from(cost.deadline).map_err(|_| Overflow)?),
            runtime: Span::of(cost.runtime),
            evaluations: Span::of(cost.evaluations),
            shares: cost.shares,
            latency,
        })
    }
}
