// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several sensors and one pool of CPU time, seen as a whole.
//!
//! GRTMon adds up what each sensor needs alone (`several.rs`). Bursts of different sensors need
//! not be paid for as if each stood alone: what counts is the demand of all of them,
//!
//! ```text
//! Q = sum R_i*W_i     w(u) = sum W_i*Ec_i(u)     rho = sum W_i/T_i
//! ```
//!
//! over closed windows of length u. The results here are exact for a fixed set of sensors whose
//! evaluations may be throttled and continued. They replace GRTMon's fallback E(l) for the
//! backlog, which it calls difficult to improve; where sensors are added at run time, keep E(l).
//!
//! Each result is a maximum over the lengths u at which one more element can come. Beyond a horizon
//! nothing larger follows, but for odd rates the horizon may be far away. After a number of steps a
//! safe over-estimate is returned instead, and marked as such.

use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::exact::{add, ceil_div, compare_sum, count, floor_div, lcm, mul, sub};
use crate::{Overflow, PeriodicTask, SensorLoad, Span};

/// A bound that always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolBound<V> {
    /// The bound.
    pub value: V,
    /// Whether no smaller bound holds. If not, the search was cut short, and the value is a safe
    /// over-estimate.
    pub exact: bool,
}

/// Sensors, the task that evaluates all of them, and the search for its bounds.
#[derive(Clone, Debug)]
pub struct Pool<'a> {
    sensors: &'a [SensorLoad],
    m: PeriodicTask,
    steps: u32,
    /// `(W_i*T_M, T_i)`: their quotients add up to `rho*T_M`.
    rates: Vec<(i128, i128)>,
    /// `sum W_i*ceil(T_M/T_i)`: with this runtime the horizon is near.
    ample: i128,
    /// The largest length at which a burst ends.
    knee: i128,
}

impl<'a> Pool<'a> {
    /// Lengths of windows that are looked at before a search gives up exactness. So many take
    /// seconds; frequent callers set fewer ([`Pool::with_steps`]).
    pub const STEPS: u32 = 2_000_000;

    /// The pool of `sensors` under the monitor `task`.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn new(sensors: &'a [SensorLoad], task: PeriodicTask) -> Result<Self, Overflow> {
        let mut rates = Vec::with_capacity(sensors.len());
        let (mut ample, mut knee) = (0, 0);
        for load in sensors {
            let (t, w) = (load.stream.t(), wcet(load));
            rates.push((mul(w, task.t_m())?, t));
            ample = add(ample, mul(w, ceil_div(task.t_m(), t))?)?;
            knee = load.stream.crossover()?.max(knee);
        }
        Ok(Self {
            sensors,
            m: task,
            steps: Self::STEPS,
            rates,
            ample,
            knee,
        })
    }

    /// The same pool, its searches cut short after `steps`.
    #[must_use]
    pub fn with_steps(mut self, steps: u32) -> Self {
        self.steps = steps.max(1);
        self
    }

    /// l_pool(Q), the latency that the runtime `q` per period gives:
    /// `sup over u of T_M*ceil(w(u)/Q) + d - u`. `None` where it grows without end,
    /// `Q < rho*T_M`. It is at most l for `Q = sum R_i*W_i`.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn latency(&self, q: Span) -> Result<Option<PoolBound<Span>>, Overflow> {
        let q = q.as_ns();
        let Some(horizon) = self.horizon(q)? else {
            return Ok(None);
        };
        let mut best = self.m.l_min().as_ns();
        let mut steps = 0;
        let mut length = (q > 0).then_some(0);
        while let Some(u) = length.filter(|&u| horizon.covers(u)) {
            let envelope = self.latest(u, q)?;
            if envelope <= best {
                break;
            }
            steps += 1;
            if steps > self.steps {
                return Ok(Some(PoolBound {
                    value: Span::of(envelope),
                    exact: false,
                }));
            }
            let periods = mul(self.m.t_m(), ceil_div(self.demand(u)?, q))?;
            best = best.max(sub(add(periods, self.m.d())?, u)?);
            length = self.longer(u)?;
        }
        Ok(Some(PoolBound {
            value: Span::of(best),
            exact: true,
        }))
    }

    /// Q_min(l), the least runtime per period with `l_pool(Q) <= l`:
    /// `max(rho*T_M, max over u of w(u) / floor((l-d+u)/T_M))`. `None` if `l < l_min`.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn least_runtime(&self, l: Span) -> Result<Option<PoolBound<Span>>, Overflow> {
        let (t_m, l_min) = (self.m.t_m(), self.m.l_min());
        if l < l_min {
            return Ok(None);
        }
        let above = sub(l.as_ns(), l_min.as_ns())?;
        let mut q = self.mean_demand()?;
        let mut horizon = self.horizon(q)?.unwrap_or(Horizon(None));
        let mut steps = 0;
        let mut length = Some(0);
        while let Some(u) = length.filter(|&u| horizon.covers(u)) {
            // No later length demands more than the envelope of this one, T_M*(C+rho*u)/(K+u).
            let (most, over) = (mul(t_m, self.envelope(u)?)?, add(above, u)?);
            if most <= mul(q, over)? {
                break;
            }
            steps += 1;
            if steps > self.steps && over > 0 {
                return Ok(Some(PoolBound {
                    value: Span::of(q.max(ceil_div(most, over))),
                    exact: false,
                }));
            }
            let periods = floor_div(add(sub(l.as_ns(), self.m.d())?, u)?, t_m);
            let needed = ceil_div(self.demand(u)?, periods);
            if needed > q {
                q = needed;
                horizon = self.horizon(q)?.unwrap_or(Horizon(None));
            }
            length = self.longer(u)?;
        }
        Ok(Some(PoolBound {
            value: Span::of(q),
            exact: true,
        }))
    }

    /// q_A, the largest number of unevaluated elements of the sensor at place `a`, for the runtime
    /// `q` per period. `None` where it grows without end, `Q < rho*T_M`; zero where there is no
    /// such sensor.
    ///
    /// ```text
    /// q_A = max over k >= 1, u of min(E_A(k*T_M+d-u), E_A(k*T_M+d) - n'),
    /// n'  = max(0, floor(((k-1)*Q - w_others(u)) / W_A)),  n'+1 <= Ec_A(u)
    /// ```
    ///
    /// The window begins at a check that finds nothing. Shortly before `k*T_M + d` the oldest
    /// unevaluated element of A is the one that came at u, and n' came before it.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn backlog(&self, a: usize, q: Span) -> Result<Option<PoolBound<u128>>, Overflow> {
        let q = q.as_ns();
        let Some(horizon) = self.horizon(q)? else {
            return Ok(None);
        };
        let Some(load) = self.sensors.get(a) else {
            return Ok(Some(PoolBound {
                value: 0,
                exact: true,
            }));
        };
        // What comes before the monitor has looked waits in any case.
        let mut best = load.stream.e(self.m.l_min().as_ns())?;
        let mut steps = 0;
        let mut length = (q > 0).then_some(0);
        while let Some(u) = length.filter(|&u| horizon.covers(u)) {
            let envelope = load.stream.e(self.latest(u, q)?)?;
            if envelope <= best {
                break;
            }
            let own = load.stream.e_closed(u)?;
            let demand = self.demand(u)?;
            let others = sub(demand, mul(wcet(load), own)?)?;
            // The largest k with (k-1)*Q below the demand of all that came until u.
            let mut k = ceil_div(demand, q);
            while k >= 1 {
                // Also where nothing is waiting: every length looked at is a step.
                steps += 1;
                if steps > self.steps {
                    return Ok(Some(PoolBound {
                        value: count(envelope),
                        exact: false,
                    }));
                }
                let until = add(mul(k, self.m.t_m())?, self.m.d())?;
                let waiting = load.stream.e(sub(until, u)?)?;
                // It shrinks with k, down to zero where the window ends before u.
                if waiting <= best {
                    break;
                }
                let before = earlier_elements(load, sub(mul(k - 1, q)?, others)?);
                if before < own {
                    let came = load.stream.e(until)?;
                    best = best.max(waiting.min(sub(came, before)?));
                }
                k -= 1;
            }
            length = self.longer(u)?;
        }
        Ok(Some(PoolBound {
            value: count(best),
            exact: true,
        }))
    }

    /// w(u): the execution time of all elements that can come in a closed window.
    fn demand(&self, u: i128) -> Result<i128, Overflow> {
        self.sensors.iter().try_fold(0, |sum, load| {
            add(sum, mul(wcet(load), load.stream.e_closed(u)?)?)
        })
    }

    /// A straight line, rounded up, that w never exceeds.
    fn envelope(&self, u: i128) -> Result<i128, Overflow> {
        self.sensors.iter().try_fold(0, |sum, load| {
            add(sum, load.stream.weighted_envelope(wcet(load), u)?)
        })
    }

    /// How much later than u the envelope's demand is evaluated; later lengths give no more.
    fn latest(&self, u: i128, q: i128) -> Result<i128, Overflow> {
        let periods = ceil_div(mul(self.m.t_m(), self.envelope(u)?)?, q);
        sub(add(self.m.l_min().as_ns(), periods)?, u)
    }

    /// `rho*T_M`, rounded up.
    fn mean_demand(&self) -> Result<i128, Overflow> {
        let mut q = 0;
        for &(demand, t) in &self.rates {
            q = add(q, floor_div(demand, t))?;
        }
        while compare_sum(&self.rates, q)? == Ordering::Greater {
            q = add(q, 1)?;
        }
        Ok(q)
    }

    /// The length beyond which nothing larger follows; `None` where the backlog grows without end.
    fn horizon(&self, q: i128) -> Result<Option<Horizon>, Overflow> {
        let order = compare_sum(&self.rates, q)?;
        let near = add(self.knee, self.m.t_m())?;
        Ok(match order {
            Ordering::Greater => None,
            _ if q >= self.ample => Some(Horizon(Some(near))),
            Ordering::Less => Some(Horizon(None)),
            // Demand and supply are equal in the mean: all repeats after a common multiple.
            Ordering::Equal => {
                let repeat = self
                    .sensors
                    .iter()
                    .try_fold(self.m.t_m(), |all, load| lcm(all, load.stream.t()));
                Some(Horizon(repeat.and_then(|repeat| near.checked_add(repeat))))
            }
        })
    }

    /// The next larger length at which a closed window can hold one more element; `None` without
    /// sensors. The first length is zero.
    fn longer(&self, u: i128) -> Result<Option<i128>, Overflow> {
        let mut next: Option<i128> = None;
        for load in self.sensors {
            // Ec(u) elements fit, so the distance of one more exceeds u: t_S is the inverse.
            let at = load.stream.t_s(load.stream.e_closed(u)?)?;
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        Ok(next)
    }
}

/// The last length that must be looked at, or none: then only the envelope ends the search.
#[derive(Clone, Copy)]
struct Horizon(Option<i128>);

impl Horizon {
    fn covers(self, u: i128) -> bool {
        self.0.is_none_or(|end| u <= end)
    }
}

/// n': elements of this sensor that were evaluated in the time that the others left.
fn earlier_elements(load: &SensorLoad, left: i128) -> i128 {
    match wcet(load) {
        // Evaluations that take no time only wait for the others' to end.
        0 => 0,
        w => floor_div(left, w).max(0),
    }
}

fn wcet(load: &SensorLoad) -> i128 {
    i128::from(load.wcet.as_ns())
}
