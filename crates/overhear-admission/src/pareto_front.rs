// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Pareto front of a trace: every pair of rate and jitter that covers it and is worth having.

use alloc::vec;
use alloc::vec::Vec;

use overhear_event::{Nanos, Timestamp};

use crate::exact::{add, mul, signed, sub, Ratio};
use crate::{ArrivalBound, Overflow};

/// A point of a hull: a number of elements and a length of time.
///
/// Both coordinates come from a slice of 64-bit times, so numbers stay below 2^60, lengths below
/// 2^64, and the products of the hull's orientation test below 2^126.
type Point = (i128, i128);

/// The least spans of a trace, reduced to their lower convex hull.
///
/// `G(m) = min over i of a_(i+m) - a_i` is the least length that m + 1 elements take. A stream
/// (T, D, tau) covers the trace exactly if `D <= G(1)` and `tau >= tau(T)`, with
/// `tau(T) = max over m of m*T - G(m)`. This is convex in T and depends on the vertices of the
/// lower hull of (m, G(m)) alone, so these are the whole front of rate against jitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParetoFront {
    vertices: Vec<Point>,
    least_gap: u64,
}

/// Why no stream can be fitted to a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// There is no distance to be seen.
    #[error(
        "the trace has {elements} elements, but a rate shows only between two; record a longer \
         trace"
    )]
    TooShort {
        /// Elements of the trace.
        elements: usize,
    },
    /// The times are not in order.
    #[error(
        "element {element} of the trace is earlier than the one before; sort the trace by time"
    )]
    OutOfOrder {
        /// The first such element, counted from zero.
        element: usize,
    },
    /// The elements are so dense that no period of a nanosecond or more fits.
    #[error(
        "the elements of the trace are less than a nanosecond apart on average, so they have no \
         period; check the clock that stamped them"
    )]
    NoPeriod,
    /// The parameters leave 128-bit integers.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

impl ParetoFront {
    /// The front of a trace, in O(n log n) time and O(n) memory.
    ///
    /// Divide and conquer: every pair of elements is separated by exactly one split of the trace.
    /// Over one split, the lower hull of all (j - i, a_j - a_i) is the Minkowski sum of the right
    /// half's lower hull and the left half's upper hull turned round.
    ///
    /// # Errors
    /// [`FitError`] for fewer than two elements, and for times out of order.
    pub fn of_trace(trace: &[Timestamp]) -> Result<Self, FitError> {
        let times = ordered(trace)?;
        let least_gap = least_gap(&times);
        let mut spans = vec![None; times.len()];
        spans[0] = Some(0);
        hulls(&times, 0, &mut spans);
        let spans = spans.into_iter().enumerate();
        let vertices = lower_hull(spans.filter_map(|(m, g)| Some((m as i128, g?))));
        Ok(Self {
            vertices,
            least_gap,
        })
    }

    /// The vertices (m, G(m)), from (0, 0) to the whole trace.
    pub fn vertices(&self) -> impl ExactSizeIterator<Item = (u64, Nanos)> + '_ {
        // Numbers and lengths of a trace fit 64 bits, as the trace itself does.
        let narrow = |value: i128| u64::try_from(value).unwrap_or(u64::MAX);
        self.vertices
            .iter()
            .map(move |&(m, g)| (narrow(m), Nanos::from_ns(narrow(g))))
    }

    /// G(1), the least distance of two neighbours: the largest D that covers the trace.
    #[must_use]
    pub fn least_gap(&self) -> Nanos {
        Nanos::from_ns(self.least_gap)
    }

    /// The mean distance of two neighbours.
    #[must_use]
    pub fn mean_gap(&self) -> Ratio {
        let (elements, length) = self.vertices.last().copied().unwrap_or((1, 0));
        Ratio::new(length, elements).unwrap_or(Ratio::whole(0))
    }

    /// tau(T), the least jitter with which the period covers the trace; O(log n).
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn least_jitter(&self, period: Nanos) -> Result<i128, Overflow> {
        let t = i128::from(period.as_ns());
        // `m*T - G(m)` rises with m while the hull's slope is below T.
        let (mut low, mut high) = (0, self.vertices.len().saturating_sub(1));
        while low < high {
            let middle = low + (high - low) / 2;
            let (here, next) = (self.vertices[middle], self.vertices[middle + 1]);
            if next.1 - here.1 < mul(t, next.0 - here.0)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let (m, g) = self.vertices.get(low).copied().unwrap_or((0, 0));
        sub(mul(m, t)?, g)
    }

    /// The largest period, hence the lowest rate, that covers the trace with this jitter:
    /// `min over m >= 1 of (G(m) + tau) / m`.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn largest_period(&self, jitter: Nanos) -> Result<Ratio, Overflow> {
        let tau = i128::from(jitter.as_ns());
        let mut least: Option<Ratio> = None;
        for &(m, g) in self.vertices.iter().skip(1) {
            let period = Ratio::new(add(g, tau)?, m).ok_or(Overflow)?;
            least = Some(least.map_or(period, |least| least.min(period)));
        }
        least.ok_or(Overflow)
    }

    /// The slopes of the front: the periods at which one more element begins to bind the jitter.
    pub fn slopes(&self) -> impl Iterator<Item = Ratio> + '_ {
        slopes(&self.vertices)
    }

    /// The tightest stream with the given period that covers the trace: least tau, largest D.
    ///
    /// A period above about 0.9 times the mean gap bets on the trace's end: tau then grows with
    /// the length of the trace.
    ///
    /// # Errors
    /// [`FitError`] if the period is zero or the jitter does not fit 64 bits.
    pub fn stream(&self, period: Nanos) -> Result<ArrivalBound, FitError> {
        fitted(period, self.least_gap, self.least_jitter(period)?)
    }
}

/// (T, min(gap, T), tau), from numbers that a trace gave.
pub(crate) fn fitted(period: Nanos, gap: u64, tau: i128) -> Result<ArrivalBound, FitError> {
    if period == Nanos::ZERO {
        return Err(FitError::NoPeriod);
    }
    let tau = u64::try_from(tau).map_err(|_| Overflow)?;
    let distance = Nanos::from_ns(gap.min(period.as_ns()));
    ArrivalBound::new(period, distance, Nanos::from_ns(tau), Nanos::ZERO)
        .map_err(|_| FitError::Overflow(Overflow))
}

/// The times of a trace of two or more elements in order.
pub(crate) fn ordered(trace: &[Timestamp]) -> Result<Vec<i128>, FitError> {
    if trace.len() < 2 {
        return Err(FitError::TooShort {
            elements: trace.len(),
        });
    }
    if let Some(before) = trace.windows(2).position(|pair| pair[1] < pair[0]) {
        return Err(FitError::OutOfOrder {
            element: before + 1,
        });
    }
    let times = trace.iter().map(|at| i128::from(at.as_monotonic_ns()));
    Ok(times.collect())
}

/// The least distance of two neighbours.
pub(crate) fn least_gap(times: &[i128]) -> u64 {
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.min()
        .and_then(|gap| u64::try_from(gap).ok())
        .unwrap_or(0)
}

/// The slopes of the edges between `vertices`, whose first coordinates ascend.
pub(crate) fn slopes(vertices: &[Point]) -> impl Iterator<Item = Ratio> + '_ {
    vertices
        .windows(2)
        .filter_map(|edge| Ratio::new(edge[1].1 - edge[0].1, edge[1].0 - edge[0].0))
}

/// The points, from a trace of times, as pairs of place and time.
pub(crate) fn points_of(times: &[i128]) -> Result<Vec<Point>, Overflow> {
    times
        .iter()
        .enumerate()
        .map(|(i, &at)| Ok((signed(i as u128)?, at)))
        .collect()
}

/// The lower hull of points whose first coordinates strictly ascend.
pub(crate) fn lower_hull(points: impl IntoIterator<Item = Point>) -> Vec<Point> {
    let mut hull: Vec<Point> = Vec::new();
    for point in points {
        while let [.., o, a] = hull[..] {
            // The hull turns left at `a`, or `a` is not part of it.
            let turn = (a.0 - o.0) * (point.1 - o.1) - (a.1 - o.1) * (point.0 - o.0);
            if turn > 0 {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// The upper hull of points whose first coordinates strictly ascend.
pub(crate) fn upper_hull(points: impl IntoIterator<Item = Point>) -> Vec<Point> {
    let mut hull = lower_hull(points.into_iter().map(|(x, y)| (x, -y)));
    for point in &mut hull {
        point.1 = -point.1;
    }
    hull
}

/// Lower and upper hull of `times`, whose first one has the place `first`. On the way all pairs
/// that bind offer their spans. The recursion is as deep as the logarithm of the length.
fn hulls(times: &[i128], first: usize, spans: &mut [Option<i128>]) -> (Vec<Point>, Vec<Point>) {
    if let [only] = times {
        let point = vec![(first as i128, *only)];
        return (point.clone(), point);
    }
    let middle = times.len() / 2;
    let (left_low, left_up) = hulls(&times[..middle], first, spans);
    let (right_low, right_up) = hulls(&times[middle..], first + middle, spans);
    offer(&left_up, &right_low, spans);
    (
        lower_hull(left_low.into_iter().chain(right_low)),
        upper_hull(left_up.into_iter().chain(right_up)),
    )
}

/// Walks along the Minkowski sum of the right half's lower hull and the left half's upper hull
/// turned round, edge by edge in the order of slopes, and lowers the spans it passes.
fn offer(left_up: &[Point], right_low: &[Point], spans: &mut [Option<i128>]) {
    let turned: Vec<Point> = left_up.iter().rev().map(|&(x, y)| (-x, -y)).collect();
    let (mut i, mut j) = (0, 0);
    loop {
        let (p, q) = (turned[i], right_low[j]);
        // The places of the right half are larger, so the distance is positive.
        let slot = usize::try_from(p.0 + q.0)
            .ok()
            .and_then(|distance| spans.get_mut(distance));
        if let Some(slot) = slot {
            let span = p.1 + q.1;
            *slot = Some(slot.map_or(span, |known: i128| known.min(span)));
        }
        match (turned.get(i + 1), right_low.get(j + 1)) {
            (None, None) => return,
            (None, Some(_)) => j += 1,
            (Some(_), None) => i += 1,
            (Some(a), Some(b)) => {
                if (a.1 - p.1) * (b.0 - q.0) <= (b.1 - q.1) * (a.0 - p.0) {
                    i += 1;
                } else {
                    j += 1;
                }
            }
        }
    }
}
