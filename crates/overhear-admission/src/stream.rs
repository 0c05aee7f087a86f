// SPDX-License-Identifier: MIT OR Apache-2.0
//! The constraint (T, D, tau) of a stream, and how many elements it lets through.

use core::fmt;

use overhear_event::{Nanos, Rate, RateError};

use crate::exact::{add, ceil_div, mul, signed, sub};
use crate::{Overflow, Span};

/// A jitter-constrained stream (T, D, tau) [GRTMon, section 4.2]: how fast elements may come.
///
/// Holding one proves `0 < T` and `D <= T`. It states for the elements `a_0 <= a_1 <= ...` that for
/// all `i <= j`: `a_j - a_i >= t_S(j - i)`, with `t_S(e) = max(e*D, e*T - tau)` (equation 6). It is
/// an upper bound only: a stream may always be slower, or silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalBound {
    t: u64,
    d: u64,
    tau: u64,
}

/// Why four numbers are not a jitter-constrained stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrivalBoundError {
    /// T must be more than zero.
    #[error(
        "the period T is {period_ns} ns; give the mean distance of two elements, at least 1 ns"
    )]
    PeriodNotPositive {
        /// T as given.
        period_ns: i128,
    },
    /// D must not be negative.
    #[error(
        "the least distance D is {distance_ns} ns; give 0 where elements may come at the same time"
    )]
    NegativeDistance {
        /// D as given.
        distance_ns: i128,
    },
    /// D must not exceed T.
    #[error("the least distance D = {distance_ns} ns exceeds the period T = {period_ns} ns; give D <= T")]
    DistanceAbovePeriod {
        /// D as given.
        distance_ns: i128,
        /// T as given.
        period_ns: i128,
    },
    /// tau must not be negative.
    #[error("the earliness tau is {earliness_ns} ns; give by how much elements may come early, 0 or more")]
    NegativeEarliness {
        /// tau as given.
        earliness_ns: i128,
    },
    /// tau' must not be negative, even where tau + tau' is not.
    #[error(
        "the lateness tau' is {lateness_ns} ns; give by how much elements may come late, 0 or more"
    )]
    NegativeLateness {
        /// tau' as given.
        lateness_ns: i128,
    },
    /// A parameter does not fit 64 bits.
    #[error("{parameter} exceeds 2^64 - 1 ns (584 years); give a shorter time")]
    TooLong {
        /// Which one: `T`, `D` or `tau + tau'`.
        parameter: &'static str,
    },
}

/// The four parameters as configured, unchecked and in nanoseconds.
///
/// Configuration files have signed numbers; [`ArrivalBound::from_parameters`] says which of them is
/// wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// T: the mean distance of two elements.
    pub period_ns: i128,
    /// D: the least distance of two elements.
    pub distance_ns: i128,
    /// tau: by how much an element may come early.
    pub earliness_ns: i128,
    /// tau': by how much an element may come late.
    pub lateness_ns: i128,
}

impl ArrivalBound {
    /// The stream (T, D, tau, tau').
    ///
    /// There is no temporal reference point, so it equals (T, D, tau + tau', 0), and only the sum
    /// is kept (section 4.2).
    ///
    /// # Errors
    /// [`ArrivalBoundError`] if T is zero, D exceeds T, or the sum does not fit 64 bits.
    pub fn new(
        period: Nanos,
        distance: Nanos,
        earliness: Nanos,
        lateness: Nanos,
    ) -> Result<Self, ArrivalBoundError> {
        Self::from_parameters(&Parameters {
            period_ns: i128::from(period.as_ns()),
            distance_ns: i128::from(distance.as_ns()),
            earliness_ns: i128::from(earliness.as_ns()),
            lateness_ns: i128::from(lateness.as_ns()),
        })
    }

    /// The configured stream.
    ///
    /// Signs are checked before tau and tau' are added: a negative tau' must not hide behind a
    /// larger tau.
    ///
    /// # Errors
    /// [`ArrivalBoundError`] that names the parameter.
    pub fn from_parameters(given: &Parameters) -> Result<Self, ArrivalBoundError> {
        let &Parameters {
            period_ns,
            distance_ns,
            earliness_ns,
            lateness_ns,
        } = given;
        if period_ns <= 0 {
            return Err(ArrivalBoundError::PeriodNotPositive { period_ns });
        }
        if distance_ns < 0 {
            return Err(ArrivalBoundError::NegativeDistance { distance_ns });
        }
        if distance_ns > period_ns {
            return Err(ArrivalBoundError::DistanceAbovePeriod {
                distance_ns,
                period_ns,
            });
        }
        if earliness_ns < 0 {
            return Err(ArrivalBoundError::NegativeEarliness { earliness_ns });
        }
        if lateness_ns < 0 {
            return Err(ArrivalBoundError::NegativeLateness { lateness_ns });
        }
        let fit = |value: Option<i128>, parameter| {
            value
                .and_then(|value| u64::try_from(value).ok())
                .ok_or(ArrivalBoundError::TooLong { parameter })
        };
        Ok(Self {
            t: fit(Some(period_ns), "T")?,
            d: fit(Some(distance_ns), "D")?,
            tau: fit(earliness_ns.checked_add(lateness_ns), "tau + tau'")?,
        })
    }

    /// The stream that a sensor declared.
    ///
    /// # Errors
    /// [`RateError`] if the fields of `rate` were not checked by [`Rate::new`] and do not hold.
    pub fn from_rate(rate: &Rate) -> Result<Self, RateError> {
        let rate = Rate::new(rate.period, rate.distance, rate.jitter)?;
        Ok(Self {
            t: rate.period.as_ns(),
            d: rate.distance.as_ns(),
            tau: rate.jitter.as_ns(),
        })
    }

    /// The same constraint in the vocabulary that is declared and stored.
    #[must_use]
    pub const fn to_rate(self) -> Rate {
        Rate {
            period: Nanos::from_ns(self.t),
            distance: Nanos::from_ns(self.d),
            jitter: Nanos::from_ns(self.tau),
        }
    }

    /// T, more than zero.
    #[must_use]
    pub const fn period(self) -> Nanos {
        Nanos::from_ns(self.t)
    }

    /// D, at most T.
    #[must_use]
    pub const fn distance(self) -> Nanos {
        Nanos::from_ns(self.d)
    }

    /// tau, which includes tau'.
    #[must_use]
    pub const fn jitter(self) -> Nanos {
        Nanos::from_ns(self.tau)
    }

    /// The same bound E with unique parameters.
    ///
    /// Neighbours are at least T - tau apart anyway, so D is raised to that; and with D = T the
    /// jitter has no effect, so it becomes zero. Two constraints allow the same streams exactly if
    /// their canonical forms are equal.
    #[must_use]
    pub fn canonical(self) -> Self {
        let d = self.d.max(self.t.saturating_sub(self.tau));
        let tau = if d == self.t { 0 } else { self.tau };
        Self { t: self.t, d, tau }
    }

    /// The same stream of a writer that may be preempted for up to `delay` between the stamp of an
    /// element and its publication.
    ///
    /// A monitor sees the instants of publication. These may lie `delay` closer together than the
    /// stamps, as if tau' were larger. The latency counted from the stamp is longer by `delay`,
    /// too.
    ///
    /// # Errors
    /// [`ArrivalBoundError::TooLong`] if tau no longer fits 64 bits.
    pub fn with_publication_delay(self, delay: Nanos) -> Result<Self, ArrivalBoundError> {
        // The delay reorders nothing, but it lets neighbours meet: D shrinks by it as well.
        let delayed = Self::new(
            self.period(),
            Nanos::from_ns(self.d.saturating_sub(delay.as_ns())),
            self.jitter(),
            delay,
        )?;
        Ok(delayed)
    }

    /// L, the burst length: how many elements in a row may come at distance D (section 4.2.1).
    /// `None` is an endless burst.
    ///
    /// Corrected: the printed `1 + floor(tau / (T - D))` divides by zero where D = T; such a stream
    /// always runs at distance D.
    #[must_use]
    pub fn burst_length(self) -> Option<u128> {
        let slack = self.t - self.d;
        (slack > 0).then(|| 1 + u128::from(self.tau / slack))
    }

    /// t_S(e), the least distance of an element and its e-th successor (equation 6), which is also
    /// the inverse of E: `E(t) <= B` exactly if `t <= t_S(B)`, for `B >= 1`.
    ///
    /// # Errors
    /// [`Overflow`] for numbers of elements beyond reason.
    pub fn least_span(self, e: u128) -> Result<Span, Overflow> {
        self.t_s(signed(e)?).map(Span::of)
    }

    /// E(t), the most elements in a half-open interval of length t (equation 2):
    /// `min(ceil(t/D), ceil((t+tau)/T))`, the first term only where D > 0; zero for t = 0.
    ///
    /// Corrected: the printed form chooses its branch by `t >= L*D`, which has no value where
    /// D = T; the minimum of both is the same otherwise. And with D = 0 the printed form counts
    /// `ceil(tau/T)` elements in an empty interval.
    #[must_use]
    pub fn elements_within(self, t: Span) -> u128 {
        // Unsigned, so that the sum of any span and any tau fits.
        let t = t.as_ns().unsigned_abs();
        if t == 0 {
            return 0;
        }
        let by_period = (t + u128::from(self.tau)).div_ceil(u128::from(self.t));
        match u128::from(self.d) {
            0 => by_period,
            d => by_period.min(t.div_ceil(d)),
        }
    }

    /// Ec(t), the most elements in a closed interval of length t:
    /// `1 + min(floor(t/D), floor((t+tau)/T))`. For whole nanoseconds `Ec(t) = E(t + 1)`.
    #[must_use]
    pub fn elements_in_closed(self, t: Span) -> u128 {
        let t = t.as_ns().unsigned_abs();
        let by_period = (t + u128::from(self.tau)) / u128::from(self.t);
        1 + match u128::from(self.d) {
            0 => by_period,
            d => by_period.min(t / d),
        }
    }

    /// B(l) = E(l): elements that the buffer must hold so that every element can be read with a
    /// latency below l (equation 3).
    #[must_use]
    pub fn buffer_for_latency(self, l: Span) -> u128 {
        self.elements_within(l)
    }

    /// `E(2*T_Mmax + H) + spare`: elements that the directory allocates (section 4.2.1).
    ///
    /// Enough for every monitor with a period up to `largest_period` that copies at R_max, as long
    /// as its effective deadline exceeds the period by no more than `allowance` (H) less its
    /// hold-back. `spare` is one for a writer that is alone, else the number of concurrent writers.
    #[must_use]
    pub fn directory_buffer(self, largest_period: Nanos, allowance: Nanos, spare: u64) -> u128 {
        // Three lengths of 64 bits cannot leave 128.
        let span = 2 * i128::from(largest_period.as_ns()) + i128::from(allowance.as_ns());
        self.elements_within(Span::of(span)) + u128::from(spare)
    }

    pub(crate) fn t(self) -> i128 {
        i128::from(self.t)
    }

    pub(crate) fn d(self) -> i128 {
        i128::from(self.d)
    }

    pub(crate) fn tau(self) -> i128 {
        i128::from(self.tau)
    }

    pub(crate) fn t_s(self, e: i128) -> Result<i128, Overflow> {
        let by_period = sub(mul(e, self.t())?, self.tau())?;
        Ok(mul(e, self.d())?.max(by_period))
    }

    pub(crate) fn e(self, t: i128) -> Result<i128, Overflow> {
        Span::from_signed_ns(t).map_or(Ok(0), |t| signed(self.elements_within(t)))
    }

    pub(crate) fn e_closed(self, t: i128) -> Result<i128, Overflow> {
        Span::from_signed_ns(t).map_or(Ok(0), |t| signed(self.elements_in_closed(t)))
    }

    /// The length from which on the period bounds E rather than the distance, rounded up.
    pub(crate) fn crossover(self) -> Result<i128, Overflow> {
        if self.d == self.t {
            return Ok(0);
        }
        Ok(ceil_div(mul(self.tau(), self.d())?, self.t() - self.d()))
    }

    /// A bound of Ec without the minimum, for envelopes: `1 + (t + tau)/T`, without tau where
    /// D = T, multiplied by `weight` and rounded up once.
    pub(crate) fn weighted_envelope(self, weight: i128, t: i128) -> Result<i128, Overflow> {
        let tau = if self.d == self.t { 0 } else { self.tau() };
        add(weight, ceil_div(mul(weight, add(t, tau)?)?, self.t()))
    }
}

impl fmt::Display for ArrivalBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "T = {}, D = {}, tau = {}",
            self.period(),
            self.distance(),
            self.jitter()
        )
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Rate};

    use super::{ArrivalBound, ArrivalBoundError, Parameters};
    use crate::Span;

    fn stream(t: u64, d: u64, tau: u64) -> ArrivalBound {
        let [t, d, tau] = [t, d, tau].map(Nanos::from_ns);
        ArrivalBound::new(t, d, tau, Nanos::ZERO).unwrap()
    }

    #[test]
    fn burst_of_figure_10_has_four_elements() {
        let figure_10 = stream(3, 2, 3);
        assert_eq!(figure_10.burst_length(), Some(4));
        let dense: [u64; 6] = [0, 2, 4, 6, 9, 12];
        for (e, at) in dense.into_iter().enumerate() {
            assert_eq!(figure_10.least_span(e as u128), Ok(Span::from_ns(at)));
        }
    }

    #[test]
    fn late_publication_lets_neighbours_meet() {
        let delay = Nanos::from_ns(7);
        let delayed = stream(10, 5, 20).with_publication_delay(delay).unwrap();
        assert_eq!(delayed, stream(10, 0, 27));
    }

    #[test]
    fn lateness_is_checked_before_it_is_added() {
        let given = Parameters {
            period_ns: 10,
            distance_ns: 0,
            earliness_ns: 5,
            lateness_ns: -2,
        };
        assert_eq!(
            ArrivalBound::from_parameters(&given),
            Err(ArrivalBoundError::NegativeLateness { lateness_ns: -2 })
        );
        let far = Nanos::from_ns(u64::MAX);
        assert_eq!(
            ArrivalBound::new(far, far, far, Nanos::from_ns(1)),
            Err(ArrivalBoundError::TooLong {
                parameter: "tau + tau'"
            })
        );
    }

    #[test]
    fn rate_with_unchecked_fields_is_refused() {
        let rate = Rate {
            period: Nanos::ZERO,
            distance: Nanos::ZERO,
            jitter: Nanos::ZERO,
        };
        assert!(ArrivalBound::from_rate(&rate).is_err());
        let sound = stream(9, 4, 2);
        assert_eq!(ArrivalBound::from_rate(&sound.to_rate()), Ok(sound));
    }
}
