// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams fitted to what a sensor really did.
//!
//! Three questions, three answers: the whole [`ParetoFront`] of a recorded trace and the stream on
//! it that suits a monitor best ([`fit_monitor`]); the jitter for given periods while the trace is
//! still being recorded ([`StreamingFit`]); and the period of a sensor that fills every slot
//! ([`fit_strip`]).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Ordering;

use overhear_event::{Nanos, Timestamp};

use crate::exact::{add, ceil_div, mul, signed, sub, Ratio};
use crate::pareto_front::{fitted, least_gap, lower_hull, ordered, points_of, slopes, upper_hull};
use crate::{ArrivalBound, FitError, Overflow, ParetoFront, PeriodicTask, SingleSensor, Span};

/// Finds tau(T) for many periods at once while elements come in: exact, with constant memory.
///
/// Fixed T: `c = max(0, c + T - gap)`, and tau is the largest c (Lindley's recursion). O(number of
/// periods) for each element.
#[derive(Clone, Debug)]
pub struct StreamingFit {
    candidates: Vec<Candidate>,
    last: Option<Timestamp>,
    least_gap: Option<u64>,
    elements: usize,
}

#[derive(Clone, Debug)]
struct Candidate {
    t: Nanos,
    /// How early the last element was, measured against the earliest possible start.
    c: i128,
    tau: i128,
}

impl StreamingFit {
    /// Fits one stream for each of `periods`.
    #[must_use]
    pub fn new(periods: &[Nanos]) -> Self {
        let start = |&t| Candidate { t, c: 0, tau: 0 };
        Self {
            candidates: periods.iter().map(start).collect(),
            last: None,
            least_gap: None,
            elements: 0,
        }
    }

    /// Takes the next element.
    ///
    /// # Errors
    /// [`FitError::OutOfOrder`] if it is earlier than the one before; it is not taken then.
    pub fn push(&mut self, at: Timestamp) -> Result<(), FitError> {
        if let Some(last) = self.last {
            if at < last {
                return Err(FitError::OutOfOrder {
                    element: self.elements,
                });
            }
            let gap = at.since(last).as_ns();
            self.least_gap = Some(self.least_gap.map_or(gap, |least| least.min(gap)));
            for candidate in &mut self.candidates {
                let t = i128::from(candidate.t.as_ns());
                // A number of elements that overflows here cannot come within 2^64 ns at once;
                // saturation refuses the fit later instead of wrapping.
                candidate.c = candidate.c.saturating_add(t - i128::from(gap)).max(0);
                candidate.tau = candidate.tau.max(candidate.c);
            }
        }
        self.last = Some(at);
        self.elements += 1;
        Ok(())
    }

    /// The tightest streams for what came so far, in the order of the periods.
    ///
    /// # Errors
    /// [`FitError`] before the second element, for a period of zero, and where a jitter does not
    /// fit 64 bits.
    pub fn streams(&self) -> Result<Vec<ArrivalBound>, FitError> {
        let gap = self.least_gap.ok_or(FitError::TooShort {
            elements: self.elements,
        })?;
        let streams = self.candidates.iter();
        streams.map(|c| fitted(c.t, gap, c.tau)).collect()
    }
}

/// A stream of the front, and what a monitor needs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorFit {
    /// The stream.
    pub stream: ArrivalBound,
    /// R for the requested latency.
    pub r: u128,
    /// b_max(R).
    pub b_max: u128,
}

/// The stream of the front for which the monitor `m` needs the least R to reach the latency l; of
/// the periods tried with this R the one with the least backlog, of these the largest.
///
/// Only periods up to `margin` times the mean gap are considered, so that the fit does not bet on
/// the trace's end; 9/10 is a good margin. `None` if `l < l_min`.
///
/// R is the least over all these periods: whether R evaluations reach l is decided by bisection
/// over T, because `e*T - tau(T)` is concave in T for every e.
///
/// # Errors
/// [`FitError`] if the trace is too dense.
pub fn fit_monitor(
    front: &ParetoFront,
    m: PeriodicTask,
    l: Span,
    margin: Ratio,
) -> Result<Option<MonitorFit>, FitError> {
    let mean = front.mean_gap();
    let mean = Ratio::new(
        mul(mean.numerator(), margin.numerator())?,
        mul(mean.denominator(), margin.denominator())?,
    )
    .ok_or(Overflow)?;
    if mean < Ratio::whole(1) {
        return Err(FitError::NoPeriod);
    }
    let search = MonitorSearch {
        front,
        m,
        l,
        longest: u64::try_from(mean.floor()).map_err(|_| Overflow)?,
    };
    let sensor = search.sensor(search.longest)?;
    let Some(mut high) = sensor.least_r(l)? else {
        return Ok(None);
    };
    let (mut low, mut period) = (sensor.r_min(), search.longest);
    while low < high {
        let middle = low + (high - low) / 2;
        match search.period_for(middle)? {
            Some(found) => (high, period) = (middle, found),
            None => low = middle + 1,
        }
    }
    search.least_backlog(high, period).map(Some)
}

/// The periods of a front that a monitor may rely on.
struct MonitorSearch<'a> {
    front: &'a ParetoFront,
    m: PeriodicTask,
    l: Span,
    longest: u64,
}

impl MonitorSearch<'_> {
    fn sensor(&self, period: u64) -> Result<SingleSensor, FitError> {
        let stream = self.front.stream(Nanos::from_ns(period))?;
        Ok(SingleSensor::new(stream, self.m))
    }

    /// Some period with which R evaluations reach the latency; `None` if there is none.
    fn period_for(&self, r: u128) -> Result<Option<u64>, FitError> {
        // Below T = G(1) nothing is gained: there D = T, and the latency is least already.
        let shortest = self.front.least_gap().as_ns().clamp(1, self.longest);
        let (r_signed, t_m) = (signed(r)?, self.m.t_m());
        let by_rate = u64::try_from(ceil_div(t_m, r_signed.max(1))).map_err(|_| Overflow)?;
        let (mut low, mut high) = (shortest.max(by_rate), self.longest);
        while low <= high {
            let middle = low + (high - low) / 2;
            let sensor = self.sensor(middle)?;
            if sensor.latency(r)?.is_some_and(|reached| reached <= self.l) {
                return Ok(Some(middle));
            }
            let Some(e) = self.late_element(sensor, r_signed)? else {
                return Ok(None);
            };
            // That element's `e*T - tau(T)` must rise. Where it rises to, it is concave.
            let here = Nanos::from_ns(middle);
            let next = Nanos::from_ns(middle.saturating_add(1));
            let price = sub(
                self.front.least_jitter(next)?,
                self.front.least_jitter(here)?,
            )?;
            match e.cmp(&price) {
                Ordering::Greater => low = middle + 1,
                Ordering::Less => high = middle - 1,
                Ordering::Equal => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The number e = k*R of an element that exceeds the latency in the worst case.
    fn late_element(&self, sensor: SingleSensor, r: i128) -> Result<Option<i128>, FitError> {
        let s = sensor.stream();
        let Some(burst) = s.burst_length() else {
            return Ok(None);
        };
        let k = signed(burst - 1)? / r;
        for k in [k, k + 1] {
            let e = mul(k, r)?;
            let ends = add(mul(k + 1, self.m.t_m())?, self.m.d())?;
            if sub(ends, s.t_s(e)?)? > self.l.as_ns() {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// Of the front's bends, the period found and the longest that serves as well, the one with the
    /// least backlog.
    fn least_backlog(&self, r: u128, found: u64) -> Result<MonitorFit, FitError> {
        let serves = |period: u64| -> Result<Option<MonitorFit>, FitError> {
            let sensor = self.sensor(period)?;
            if sensor.latency(r)?.is_none_or(|reached| reached > self.l) {
                return Ok(None);
            }
            let b_max = sensor.b_max(r)?;
            let stream = sensor.stream();
            Ok(b_max.map(|b_max| MonitorFit { stream, r, b_max }))
        };
        // The periods that serve are neighbours, so bisection finds the longest of them.
        let (mut low, mut high) = (found, self.longest);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if serves(middle)?.is_some() {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let bends = self.front.slopes().map(Ratio::floor);
        let bends = bends.filter_map(|period| u64::try_from(period).ok());
        let mut periods: BTreeSet<u64> = bends.collect();
        periods.extend([found, low]);
        let mut best = serves(found)?.ok_or(Overflow)?;
        for &period in periods.range(1..=self.longest) {
            if let Some(fit) = serves(period)? {
                // Periods ascend, so of equal ones the last is the largest.
                if fit.b_max < best.b_max
                    || (fit.b_max == best.b_max && fit.stream.period() > best.stream.period())
                {
                    best = fit;
                }
            }
        }
        Ok(best)
    }
}

/// The narrowest strip `x + i*T - tau <= a_i <= x + i*T` around a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    /// T.
    pub period: Ratio,
    /// tau, the width of the strip.
    pub jitter: Ratio,
}

/// The two-sided stream, in which every element also *must* come in its slot, with the least tau
/// over all periods; O(n).
///
/// It suits sensors that never skip: the clock of a timer, a frame of a video. The width of the
/// strip is convex in T and bends at the slopes of the trace's hulls, so bisection over these finds
/// the least one.
///
/// # Errors
/// [`FitError`] if the trace is too short or all its times are equal.
pub fn fit_strip(trace: &[Timestamp]) -> Result<Strip, FitError> {
    let times = ordered(trace)?;
    let hull = StripHull::of(&times)?;
    let (period, jitter) = hull.narrowest()?;
    if period <= Ratio::whole(0) {
        return Err(FitError::NoPeriod);
    }
    Ok(Strip { period, jitter })
}

/// As [`fit_strip`], with the best period in whole nanoseconds.
///
/// # Errors
/// [`FitError`] if the trace is too short or its period is below a nanosecond.
pub fn fit_strip_stream(trace: &[Timestamp]) -> Result<ArrivalBound, FitError> {
    let times = ordered(trace)?;
    let hull = StripHull::of(&times)?;
    let (period, _) = hull.narrowest()?;
    let mut best: Option<(i128, i128)> = None;
    // The larger period last: of equal widths it wins, as the lower rate.
    for t in [period.floor(), period.ceil()] {
        if t > 0 {
            let width = hull.width(Ratio::whole(t))?.ceil();
            if best.is_none_or(|(least, _)| width <= least) {
                best = Some((width, t));
            }
        }
    }
    let (width, t) = best.ok_or(FitError::NoPeriod)?;
    let period = Nanos::from_ns(u64::try_from(t).map_err(|_| Overflow)?);
    fitted(period, least_gap(&times), width)
}

/// Both hulls of the points (i, a_i).
struct StripHull {
    upper: Vec<(i128, i128)>,
    lower: Vec<(i128, i128)>,
}

impl StripHull {
    fn of(times: &[i128]) -> Result<Self, Overflow> {
        let points = points_of(times)?;
        Ok(Self {
            upper: upper_hull(points.iter().copied()),
            lower: lower_hull(points),
        })
    }

    /// `max(a_i - i*T) - min(a_i - i*T)`.
    fn width(&self, t: Ratio) -> Result<Ratio, Overflow> {
        let left = |&(i, at): &(i128, i128)| sub(mul(at, t.denominator())?, mul(i, t.numerator())?);
        let mut highest = i128::MIN;
        for point in &self.upper {
            highest = highest.max(left(point)?);
        }
        let mut lowest = i128::MAX;
        for point in &self.lower {
            lowest = lowest.min(left(point)?);
        }
        Ratio::new(sub(highest, lowest)?, t.denominator()).ok_or(Overflow)
    }

    /// The period of the least width, and that width.
    fn narrowest(&self) -> Result<(Ratio, Ratio), Overflow> {
        let mut bends: Vec<Ratio> = slopes(&self.upper).chain(slopes(&self.lower)).collect();
        bends.sort_unstable();
        bends.dedup();
        let (mut low, mut high) = (0, bends.len().saturating_sub(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.width(bends[middle])? <= self.width(bends[middle + 1])? {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let period = bends.get(low).copied().ok_or(Overflow)?;
        Ok((period, self.width(period)?))
    }
}
