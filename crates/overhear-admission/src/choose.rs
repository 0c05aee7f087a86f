// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which period, deadline and evaluations per period cost the least CPU time for a wished latency.
//!
//! The thesis leaves T_M, d and l to the user and calls their choice future work (section 4.2.2).
//! Here only l is given. Utilisation is `Q / T_M`. For fixed numbers R_i it falls with T_M, so a
//! local optimum lies where some R_i is about to step, at `T_M = largest_period(s_i, d, R_i, l)`,
//! or at a bound. These periods are tried, and a coarse grid of others; then the neighbourhood of
//! the best one is searched. What is found always holds the latency; that nothing is cheaper is
//! certain where no buffer is limited, no pool is used, and every R_i is small. The search is bounded: parameters of odd
//! sizes end it early, and if nothing was found until then the error says so.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use overhear_event::Nanos;

use crate::exact::{add, ceil_div, mul, signed, Ratio};
use crate::several::cost;
use crate::{
    largest_period, CopyPlan, Overflow, PeriodicTask, Pool, SensorLoad, SensorShare, SingleSensor,
    Span,
};

/// What is asked of a monitor, and what it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
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
    /// Whether the demand of all sensors is bounded as a whole ([`Pool`]), which is cheaper, but
    /// holds for a fixed set of sensors only.
    pub pooled: bool,
}

/// The parameters of a monitor that grants a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// T_M and d, the latter with the wish's lateness.
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
    /// The latency that is guaranteed, at most the wished one.
    pub latency: Span,
}

impl Choice {
    /// runtime / T_M.
    #[must_use]
    pub fn utilisation(&self) -> Ratio {
        Ratio::new(self.runtime.as_ns(), self.task.t_m()).unwrap_or(Ratio::whole(0))
    }
}

/// Why no monitor was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// The density is not above 0 and at most 1.
    #[error("the density {density} cannot be granted; give more than 0 and at most 1")]
    Density {
        /// As given.
        density: Ratio,
    },
    /// No period within the bounds holds the latency.
    #[error(
        "no period from {least} to {largest} keeps the latency below {latency}; allow a longer \
         latency, shorter periods or a higher density, or make the evaluations cheaper"
    )]
    NothingFits {
        /// l as wished.
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
        /// l as wished.
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

/// Evaluations per period that are tried one by one, before the steps grow.
const SMALL_R: u128 = 96;
/// Lengths that one of the many searches in a pool may look at.
const POOL_STEPS: u32 = 2_000;
/// Periods that are tried for a pool, out of those that suit the sensors one by one.
const SCOUTED: usize = 16;
/// Formulas that a search may evaluate: fractions of a second. Wishes of usual sizes take
/// less than a third of it.
const EFFORT: u32 = 1_000_000;
/// Steps of an iteration that usually ends after three; what has not ended is given up.
const ITERATIONS: usize = 24;
/// Periods that are tried for a vector of R where buffers are limited.
const BETWEEN: i128 = 4;
/// More evaluations instead of copies: so many numbers are tried before the steps grow.
const TRADE_STEPS: u128 = 16;

/// The monitor with the least utilisation that grants `wish`, and of equal ones the longest period.
///
/// # Errors
/// [`ChooseError`] if none is found.
pub fn choose(sensors: &[SensorLoad], wish: &Wish) -> Result<Choice, ChooseError> {
    if wish.density <= Ratio::whole(0) || wish.density > Ratio::whole(1) {
        return Err(ChooseError::Density {
            density: wish.density,
        });
    }
    let mut search = Search::new(sensors, wish);
    if wish.pooled && sensors.len() > 1 {
        // A pool is dear to compute. The periods that suit the sensors one by one suit it, too.
        let apart = Wish {
            pooled: false,
            ..*wish
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
        Some(bill) => Ok(bill.into_choice(sensors, wish)?),
        None if search.effort.is_spent() => Err(ChooseError::GivenUp {
            latency: wish.latency,
            least: wish.least_period,
            largest: wish.largest_period,
        }),
        None => Err(ChooseError::NothingFits {
            latency: wish.latency,
            least: wish.least_period,
            largest: wish.largest_period,
        }),
    }
}

/// The cheapest monitor with the period T_M that grants `wish`; `None` if there is none.
///
/// The deadline is the least fixed point of `d = runtime(d) / density`: a shorter one cannot be
/// met, a longer one costs no less. Afterwards it is moved as late as the runtime stays.
///
/// # Errors
/// [`Overflow`] for parameters beyond reason.
pub fn choose_for_period(
    sensors: &[SensorLoad],
    period: Nanos,
    wish: &Wish,
) -> Result<Option<Choice>, Overflow> {
    let mut effort = Effort(EFFORT);
    match Bill::cheapest(sensors, i128::from(period.as_ns()), wish, &mut effort)? {
        Some(bill) => bill.into_choice(sensors, wish).map(Some),
        None => Ok(None),
    }
}

impl Wish {
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

/// What one pair (T_M, d) costs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bill {
    task: PeriodicTask,
    /// d without the lateness.
    deadline: i128,
    runtime: i128,
    evaluations: i128,
    shares: Vec<SensorShare>,
}

impl Bill {
    /// The bill of the shortest deadline within which its own runtime is granted.
    fn cheapest(
        sensors: &[SensorLoad],
        t_m: i128,
        wish: &Wish,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        let top = t_m.min(wish.longest_deadline(t_m));
        let mut d = 1;
        for _ in 0..ITERATIONS {
            if d > top || effort.is_spent() {
                break;
            }
            let Some(bill) = Self::of(sensors, t_m, d, wish, effort)? else {
                break;
            };
            let needed = wish.least_deadline(bill.runtime)?;
            if needed <= d {
                return Ok(Some(bill));
            }
            d = needed;
        }
        Ok(None)
    }

    /// The same runtime with the latest deadline that needs no more.
    fn with_latest_deadline(self, sensors: &[SensorLoad], wish: &Wish) -> Result<Self, Overflow> {
        let t_m = self.task.t_m();
        let mut high = t_m.min(wish.longest_deadline(t_m));
        let (mut low, mut latest) = (self.deadline, self);
        // At most 64 halvings: T_M has 64 bits.
        let mut effort = Effort(EFFORT);
        while low < high && !effort.is_spent() {
            let middle = low + (high - low + 1) / 2;
            match Self::of(sensors, t_m, middle, wish, &mut effort)? {
                Some(later) if later.runtime <= latest.runtime => (low, latest) = (middle, later),
                _ => high = middle - 1,
            }
        }
        Ok(latest)
    }

    fn utilisation(&self) -> Ratio {
        Ratio::new(self.runtime, self.task.t_m()).unwrap_or(Ratio::whole(0))
    }

    fn of(
        sensors: &[SensorLoad],
        t_m: i128,
        d: i128,
        wish: &Wish,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        let effective = d + i128::from(wish.lateness.as_ns());
        let (Ok(t_m), Ok(effective)) = (u64::try_from(t_m), u64::try_from(effective)) else {
            return Ok(None);
        };
        let Ok(task) = PeriodicTask::late(Nanos::from_ns(t_m), Nanos::from_ns(effective)) else {
            return Ok(None);
        };
        match sensors {
            [load] => Self::of_one(load, task, d, wish, effort),
            _ => Self::of_several(sensors, task, d, wish, effort),
        }
    }

    /// More evaluations per period can save more copies than they cost, so they are tried from the
    /// least R up, until the evaluations alone cost as much as the best so far.
    fn of_one(
        load: &SensorLoad,
        task: PeriodicTask,
        deadline: i128,
        wish: &Wish,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        effort.spend(1);
        let sensor = SingleSensor::new(load.stream, task);
        let Some(least) = sensor.least_r(wish.latency)? else {
            return Ok(None);
        };
        let overhead = i128::from(wish.overhead.as_ns());
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

    fn of_several(
        sensors: &[SensorLoad],
        task: PeriodicTask,
        deadline: i128,
        wish: &Wish,
        effort: &mut Effort,
    ) -> Result<Option<Self>, Overflow> {
        let each = u32::try_from(sensors.len()).unwrap_or(u32::MAX);
        effort.spend(each);
        let mut shares = Vec::with_capacity(sensors.len());
        let mut evaluations = 0;
        for load in sensors {
            let Some(r) = SingleSensor::new(load.stream, task).least_r(wish.latency)? else {
                return Ok(None);
            };
            evaluations = add(evaluations, cost(r, load.wcet)?)?;
            shares.push(SensorShare {
                r,
                plan: CopyPlan::Direct,
            });
        }
        let pool = Pool::new(sensors, task)?.with_steps(POOL_STEPS);
        if wish.pooled {
            effort.spend(each.saturating_mul(POOL_STEPS / 4));
            let Some(least) = pool.least_runtime(wish.latency)? else {
                return Ok(None);
            };
            evaluations = least.value.as_ns().min(evaluations);
        }
        let mut runtime = add(i128::from(wish.overhead.as_ns()), evaluations)?;
        for (i, (load, share)) in sensors.iter().zip(&mut shares).enumerate() {
            let Some(buffer) = load.buffer.map(u128::from) else {
                continue;
            };
            // E(l) bounds the backlog and is cheap to compute.
            if load.stream.elements_within(wish.latency) <= buffer {
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

    fn into_choice(self, sensors: &[SensorLoad], wish: &Wish) -> Result<Choice, Overflow> {
        let bill = self.with_latest_deadline(sensors, wish)?;
        let mut latency = bill.task.l_min();
        if wish.pooled && sensors.len() > 1 {
            latency = wish.latency;
        } else {
            for (load, share) in sensors.iter().zip(&bill.shares) {
                let sensor = SingleSensor::new(load.stream, bill.task);
                // R is at least R_min, so there is a latency.
                latency = latency.max(sensor.latency(share.r)?.unwrap_or(wish.latency));
            }
        }
        Ok(Choice {
            task: bill.task,
            // It is at most T_M, which fits.
            deadline: Nanos::from_ns(u64::try_from(bill.deadline).map_err(|_| Overflow)?),
            runtime: Span::of(bill.runtime),
            evaluations: Span::of(bill.evaluations),
            shares: bill.shares,
            latency,
        })
    }
}

/// The periods that were tried, and the cheapest bill.
struct Search<'a> {
    sensors: &'a [SensorLoad],
    wish: &'a Wish,
    top: i128,
    tried: BTreeSet<i128>,
    effort: Effort,
    /// Utilisation and T_M of all that fit.
    fitting: Vec<(Ratio, i128)>,
    best: Option<Bill>,
}

impl<'a> Search<'a> {
    fn new(sensors: &'a [SensorLoad], wish: &'a Wish) -> Self {
        let longest = i128::from(wish.largest_period.as_ns());
        Self {
            sensors,
            wish,
            top: wish.longest_deadline(0).min(longest),
            tried: BTreeSet::new(),
            effort: Effort(EFFORT),
            fitting: Vec::new(),
            best: None,
        }
    }

    fn everywhere(&mut self) -> Result<(), Overflow> {
        self.grid()?;
        if self.sensors.len() > 1 {
            self.chain()?;
        }
        for i in 0..self.sensors.len() {
            self.steps_of(i)?;
        }
        self.refine()
    }

    /// The longest period of each vector (R_1, R_2, ...) that can be the best one, from (1, 1, ...) on.
    ///
    /// A vector R costs Q(R), needs the deadline d(R) = Q(R)/density and allows the period
    /// T(R) = min over i of T_i(R_i, d(R)). Let R lie below the best vector R* in every place, and let b
    /// be a sensor that binds T(R). Either R_b < R*_b: then raising R_b stays below R*. Or R_b = R*_b:
    /// then T(R) >= T_b(R*_b, d(R*)) >= T(R*), since d(R) <= d(R*), and R costs no more than R*, so R is
    /// as good. So the chain that raises the binding sensor meets the best vector, as long as it goes
    /// by single steps and neither copies nor a pool change the cost.
    fn chain(&mut self) -> Result<(), Overflow> {
        let mut r = alloc::vec![1_u128; self.sensors.len()];
        let longest = Span::of(self.top.max(0));
        while !self.effort.is_spent() {
            let mut runtime = i128::from(self.wish.overhead.as_ns());
            for (load, &r) in self.sensors.iter().zip(&r) {
                runtime = add(runtime, cost(r, load.wcet)?)?;
            }
            let d = self.wish.least_deadline(runtime)?;
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
    fn attempt(&mut self, t_m: i128) -> Result<(), Overflow> {
        let t_m = t_m.min(self.top);
        let least = i128::from(self.wish.least_period.as_ns()).max(1);
        if t_m < least || self.effort.is_spent() || !self.tried.insert(t_m) {
            return Ok(());
        }
        let Some(bill) = Bill::cheapest(self.sensors, t_m, self.wish, &mut self.effort)? else {
            return Ok(());
        };
        self.fitting.push((bill.utilisation(), t_m));
        let better = self.best.as_ref().is_none_or(|best| {
            let order = bill.utilisation().cmp(&best.utilisation());
            order.is_lt() || (order.is_eq() && t_m > best.task.t_m())
        });
        if better {
            self.best = Some(bill);
        }
        Ok(())
    }

    fn grid(&mut self) -> Result<(), Overflow> {
        let mut shrinking = self.top;
        for i in 1..=64 {
            self.attempt(mul(self.top, i)? / 64)?;
            self.attempt(shrinking)?;
            shrinking = mul(shrinking, 9)? / 10;
        }
        Ok(())
    }

    /// The periods at which this sensor's R is about to step.
    fn steps_of(&mut self, i: usize) -> Result<(), Overflow> {
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
                let bill = Bill::of(self.sensors, t_m, d_here, self.wish, &mut self.effort)?;
                let Some(bill) = bill else {
                    break;
                };
                let needed = self.wish.least_deadline(bill.runtime)?;
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
    fn longest_with(&self, i: usize, d: i128, r: u128) -> Result<Option<i128>, Overflow> {
        let effective = add(d, i128::from(self.wish.lateness.as_ns()))?;
        let Ok(effective) = u64::try_from(effective).map(Nanos::from_ns) else {
            return Ok(None);
        };
        let stream = self.sensors[i].stream;
        let longest = largest_period(stream, effective, r, self.wish.latency)?;
        Ok(longest.map(Span::as_ns))
    }

    /// Searches around the best period, until nothing better is found there.
    fn refine(&mut self) -> Result<(), Overflow> {
        for _ in 0..8 {
            let Some(best) = self.best.clone() else {
                return Ok(());
            };
            let d = self.wish.least_deadline(best.runtime)?;
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
