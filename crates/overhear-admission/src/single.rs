// SPDX-License-Identifier: MIT OR Apache-2.0
//! One sensor under one monitor [GRTMon, section 4.2.1]: latency against evaluations per period.
//!
//! Every result is exact: there is a stream within the constraint, and a monitor within its
//! period and deadline, that comes as close to the bound as one likes.

use overhear_event::Nanos;

use crate::exact::{add, ceil_div, count, floor_div, mul, signed, sub};
use crate::{ArrivalBound, Overflow, PeriodicTask, Span};

/// A stream and the periodic task that evaluates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SingleSensor {
    s: ArrivalBound,
    m: PeriodicTask,
}

impl SingleSensor {
    /// The stream `s` under the monitor `m`.
    #[must_use]
    pub const fn new(s: ArrivalBound, m: PeriodicTask) -> Self {
        Self { s, m }
    }

    /// The stream.
    #[must_use]
    pub const fn stream(self) -> ArrivalBound {
        self.s
    }

    /// The monitor.
    #[must_use]
    pub const fn task(self) -> PeriodicTask {
        self.m
    }

    /// `R_min = ceil(T_M / T)` (equation 4): with fewer evaluations per period the backlog of a
    /// dense stream grows without end.
    #[must_use]
    pub fn r_min(self) -> u128 {
        count(self.r_min_signed())
    }

    /// `R_max = E(T_M)` (equation 5): the least R with which the latency is l_min. More evaluations
    /// per period gain nothing.
    #[must_use]
    pub fn r_max(self) -> u128 {
        self.s.elements_within(self.m.period().into())
    }

    /// l(R), the latency: the least length that every element's way from its stamp to the end of
    /// its evaluation stays below (equation 18). `None` where it grows without end, `R < R_min`.
    ///
    /// ```text
    /// l(R) = T_M + d + max(0, k*(T_M - R*D), (k+1)*(T_M - R*T) + tau),  k = floor((L-1) / R)
    /// ```
    ///
    /// Corrected: the printed equation lacks the zero in the maximum and then promises less than
    /// l_min where R reaches R_max. L does not exist where D = T; the latency is l_min there.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn latency(self, r: u128) -> Result<Option<Span>, Overflow> {
        if r < self.r_min() {
            return Ok(None);
        }
        let l_min = self.m.l_min();
        let Some(l) = self.s.burst_length().filter(|_| r < self.r_max()) else {
            return Ok(Some(l_min));
        };
        let (r, t_m) = (signed(r)?, self.m.t_m());
        let k = floor_div(signed(l - 1)?, r);
        // Element k*R is the last one of the burst that begins a period of the monitor,
        // element (k+1)*R the first one behind the burst (equations 14 and 15).
        let burst = sub(mul(k, t_m)?, mul(mul(k, r)?, self.s.d())?)?;
        let behind = sub(mul(k + 1, t_m)?, mul(mul(k + 1, r)?, self.s.t())?)?;
        let behind = add(behind, self.s.tau())?;
        add(l_min.as_ns(), burst.max(behind).max(0)).map(|l| Some(Span::of(l)))
    }

    /// The least R with `l(R) <= l`, by binary search between R_min and R_max as GRTMon does;
    /// `None` if `l < l_min`.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn least_r(self, l: Span) -> Result<Option<u128>, Overflow> {
        if l < self.m.l_min() {
            return Ok(None);
        }
        self.least_between(|r| Ok(self.latency(r)?.is_some_and(|reached| reached <= l)))
            .map(Some)
    }

    /// b_max(R), the largest backlog: elements that exist and are not yet evaluated (equations 19
    /// to 23). `None` where it grows without end, `R < R_min`.
    ///
    /// ```text
    /// b_max(R) = max over k in {1, k_a - 1, k_a}, k >= 1, of E(k*T_M + d) - (k-1)*R
    /// k_a = ceil((L*D - d) / T_M)
    /// ```
    ///
    /// Corrected: equations 21 to 23 are printed with floor where E has ceil, and k = 1 must always
    /// be tried, else the result is too small for R >= R_max. It lies between `E(T_M + d)` and
    /// `E(l(R))`.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn b_max(self, r: u128) -> Result<Option<u128>, Overflow> {
        if r < self.r_min() {
            return Ok(None);
        }
        let mut b_max = self.s.e(self.m.l_min().as_ns())?;
        if let Some(l) = self.s.burst_length().filter(|_| r < self.r_max()) {
            let (r, t_m, d) = (signed(r)?, self.m.t_m(), self.m.d());
            let k_a = ceil_div(sub(mul(signed(l)?, self.s.d())?, d)?, t_m);
            for k in [k_a - 1, k_a] {
                if k > 1 {
                    let came = self.s.e(add(mul(k, t_m)?, d)?)?;
                    b_max = b_max.max(sub(came, mul(k - 1, r)?)?);
                }
            }
        }
        Ok(Some(count(b_max)))
    }

    /// The least C with `b_max(C) <= buffer`: copied per period to private memory, so many elements
    /// keep a buffer of this size from overflowing. `None` if the buffer is smaller than
    /// `E(T_M + d)`; then no rate does.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn least_copy_rate(self, buffer: u128) -> Result<Option<u128>, Overflow> {
        if buffer < self.s.elements_within(self.m.l_min()) {
            return Ok(None);
        }
        self.least_between(|c| Ok(self.b_max(c)?.is_some_and(|b| b <= buffer)))
            .map(Some)
    }

    fn r_min_signed(self) -> i128 {
        ceil_div(self.m.t_m(), self.s.t())
    }

    /// The least number in R_min..=R_max for which `holds`; what holds for one number holds for all
    /// larger ones, and it holds for R_max.
    fn least_between(
        self,
        holds: impl Fn(u128) -> Result<bool, Overflow>,
    ) -> Result<u128, Overflow> {
        let (mut low, mut high) = (self.r_min(), self.r_max());
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle)? {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }
}

/// The largest period T_M with which R evaluations per period, each finished within the relative
/// deadline d, reach the latency l; rounded down, `None` below one nanosecond.
///
/// ```text
/// min(R*T, min over k >= 0 of (l - d + t_S(k*R)) / (k+1))
/// ```
///
/// It turns equation 13 round. The quotient is monotone in k on either piece of t_S, so only the
/// ends count: k in `{0, k0-1, k0, k0+1}` with `k0 = floor(tau / (R*(T-D))) + 1`.
///
/// # Errors
/// [`Overflow`] for parameters beyond reason.
pub fn largest_period(
    s: ArrivalBound,
    d: Nanos,
    r: u128,
    l: Span,
) -> Result<Option<Span>, Overflow> {
    let r = signed(r)?;
    let left = sub(l.as_ns(), i128::from(d.as_ns()))?;
    let mut t_m = mul(r, s.t())?;
    let slack = mul(r, s.t() - s.d())?;
    let k0 = if slack > 0 {
        floor_div(s.tau(), slack) + 1
    } else {
        0
    };
    for k in [0, (k0 - 1).max(0), k0, k0 + 1] {
        let bound = floor_div(add(left, s.t_s(mul(k, r)?)?)?, k + 1);
        t_m = t_m.min(bound);
    }
    Ok((t_m >= 1).then(|| Span::of(t_m)))
}
