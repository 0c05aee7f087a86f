// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distributions of values of either sign, including fractions.

mod counted;
mod edges;

use std::borrow::Cow;

use self::counted::{are_whole, Counted};
use self::edges::{cut, linear, logarithmic};
use crate::histogram::{Bounded, HistogramMemory};

/// Largest number of values that are kept as they are.
const MAX_EXACT_VALUES: usize = 512;
/// Number of values that are collected and then counted together, once there are more.
const COLLECTED_VALUES: usize = 128;

/// Distribution of values of either sign, including fractions.
///
/// Minimum, maximum and mean are exact to the rounding of doubles. Quantiles and the borders
/// between buckets are exact to the relative [`error`](Distribution::error): a thousandth, or up to
/// 0.25 where the memory is bounded. Up to 512 values are kept as they are.
///
/// ```
/// use overhear_metrics::Distribution;
///
/// let mut volts = Distribution::new();
/// for value in [-2.5, -1.75, -1.75, -1.5] {
///     assert!(volts.record(value));
/// }
/// assert!(!volts.record(f64::NAN));
/// assert_eq!((volts.min(), volts.max()), (Some(-2.5), Some(-1.5)));
/// assert_eq!((volts.quantile(0.5), volts.mean()), (Some(-1.75), Some(-1.875)));
/// assert_eq!(volts.count(), 4);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// The first `taken` entries are values that are not counted yet; the rest is spare.
    values: Vec<f64>,
    taken: usize,
    counted: Option<Box<Counted>>,
}

/// The values from `low` to `high`. Of whole numbers both are included. Of fractions, `high` is not
/// included, unless it is the greatest value or equal to `low`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueBucket {
    /// Smallest value of the bucket.
    pub low: f64,
    /// Largest value of the bucket, or the smallest one of the next bucket.
    pub high: f64,
    /// Number of values.
    pub count: u64,
}

impl Distribution {
    /// An empty distribution. It grows with its values and their range, to half a MiB.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            values: Vec::new(),
            taken: 0,
            counted: None,
        }
    }

    /// An empty distribution with all the memory that it can need: recording allocates nothing
    /// until a bucket has counted 2^32 values.
    #[must_use]
    pub fn preallocated() -> Self {
        Self {
            values: vec![0.0; COLLECTED_VALUES],
            taken: 0,
            counted: Some(Box::new(Counted::preallocated())),
        }
    }

    /// Bytes of memory that its counts take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let counted = self.counted.as_ref().map(|it| it.memory_bytes());
        self.values.capacity() * size_of::<f64>() + counted.unwrap_or(0)
    }

    /// Records a value and returns true; an infinite value or NaN is not recorded.
    #[inline]
    pub fn record(&mut self, value: f64) -> bool {
        if !value.is_finite() {
            return false;
        }
        match self.values.get_mut(self.taken) {
            Some(free) => *free = value,
            None => self.make_room(value),
        }
        self.taken += 1;
        true
    }

    #[inline(never)]
    fn make_room(&mut self, value: f64) {
        let room = self.values.len();
        if self.counted.is_none() && room < MAX_EXACT_VALUES {
            self.values.resize((2 * room).max(4), 0.0);
        } else {
            let counted = self.counted.get_or_insert_with(|| Box::new(Counted::new()));
            counted.count(&self.values[..self.taken]);
            self.taken = 0;
            // The list of exact values had another length.
            if room != COLLECTED_VALUES {
                self.values = vec![0.0; COLLECTED_VALUES];
            }
        }
        self.values[self.taken] = value;
    }

    /// As [`Distribution::record`], within memory that several distributions share.
    #[inline]
    pub(crate) fn record_within(&mut self, value: f64, memory: &mut HistogramMemory) -> bool {
        if !value.is_finite() {
            return false;
        }
        match self.values.get_mut(self.taken) {
            Some(free) => *free = value,
            None => memory.grow(self, |it| it.make_room(value)),
        }
        self.taken += 1;
        true
    }

    /// Largest relative error of a quantile: 0 while all values are kept as they are, then a
    /// thousandth; up to 0.25 where the memory is bounded.
    #[must_use]
    pub fn error(&self) -> f64 {
        let counted = self.counted.as_ref();
        counted.map_or(0.0, |it| it.error())
    }

    /// Records all values of another distribution.
    pub fn add(&mut self, other: &Self) {
        for &value in other.recent() {
            self.record(value);
        }
        if let Some(other) = &other.counted {
            let counted = self.counted.get_or_insert_with(|| Box::new(Counted::new()));
            counted.merge(other);
        }
    }

    /// The values that are not counted yet.
    fn recent(&self) -> &[f64] {
        &self.values[..self.taken]
    }

    /// The counts of all values.
    fn all(&self) -> Cow<'_, Counted> {
        match &self.counted {
            Some(counted) if self.taken == 0 => Cow::Borrowed(counted),
            counted => {
                let mut all = counted.as_deref().cloned().unwrap_or_else(Counted::new);
                all.count(self.recent());
                Cow::Owned(all)
            }
        }
    }

    /// Number of recorded values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.taken as u64 + self.counted.as_ref().map_or(0, |it| it.total)
    }

    /// Smallest value; `None` without values.
    #[must_use]
    pub fn min(&self) -> Option<f64> {
        let counted = self.counted.iter().map(|it| it.min);
        let least = self.recent().iter().copied().chain(counted);
        let least = least.fold(f64::INFINITY, f64::min);
        (self.count() > 0).then_some(least)
    }

    /// Largest value; `None` without values.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        let counted = self.counted.iter().map(|it| it.max);
        let greatest = self.recent().iter().copied().chain(counted);
        let greatest = greatest.fold(f64::NEG_INFINITY, f64::max);
        (self.count() > 0).then_some(greatest)
    }

    /// Sum of all values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        let counted = self.counted.as_ref().map_or(0.0, |it| it.sum);
        counted + self.recent().iter().sum::<f64>()
    }

    /// Mean; `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum() / self.count() as f64)
    }

    /// Whether all values were whole numbers.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let counted = self.counted.as_ref().is_none_or(|it| it.is_whole);
        counted && are_whole(self.recent())
    }

    /// The smallest value that at least this fraction of the values does not exceed, or a value
    /// that is larger by at most the relative [`error`](Distribution::error). It is never below the
    /// minimum nor above the maximum; `None` without values.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        let (min, max) = (self.min()?, self.max()?);
        // The rank that HdrHistogram takes.
        let rank = (fraction.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let rank = rank.max(1);
        if self.counted.as_ref().is_none_or(|it| it.total == 0) {
            let mut sorted = self.recent().to_vec();
            sorted.sort_unstable_by(f64::total_cmp);
            return sorted.get(rank as usize - 1).copied();
        }
        let (all, mut up_to) = (self.all(), 0);
        let found = all.found().find(|found| {
            up_to += found.count;
            up_to >= rank
        });
        Some(found?.greatest.clamp(min, max))
    }

    /// The distribution in few buckets for users, from the first to the last one with a value. If
    /// all values have one sign, the limits are preferred numbers (ISO 3): twenty per decade for
    /// values within two decades, ten within four, five for more. Otherwise buckets have equal
    /// width.
    #[must_use]
    pub fn buckets(&self) -> Vec<ValueBucket> {
        let (Some(min), Some(max)) = (self.min(), self.max()) else {
            return Vec::new();
        };
        let is_whole = self.is_whole();
        // Values that are not counted yet are exact.
        let counted = self.counted.iter().flat_map(|it| it.found());
        let counted = counted.map(|found| (found.greatest, found.count));
        let recent = self.recent().iter().map(|value| (*value, 1));
        let all = || counted.clone().chain(recent.clone());
        // Negative numbers are mirrored.
        let is_mirrored = max <= 0.0 && min < 0.0;
        let sign = if is_mirrored { -1.0 } else { 1.0 };
        let (low, high) = match is_mirrored {
            true => (-max, -min),
            false => (min, max),
        };
        // A border belongs to the values above it; mirrored, to those below.
        let is_open = is_mirrored && !is_whole;
        let is_up_to = |edge: f64, value: f64| edge < value || edge == value && !is_open;
        let edges = if low < 0.0 {
            linear(low, high, is_whole)
        } else {
            let magnitudes = all().map(|(value, _)| value.abs());
            let least = magnitudes.filter(|it| *it > 0.0).fold(high, f64::min);
            let edges = logarithmic(low, high, least, is_whole);
            cut(edges, low, high, is_up_to)
        };
        let mut counts = vec![0; edges.len() - 1];
        for (value, count) in all() {
            // Minimum and maximum are exact; other values have the error of their buckets.
            let at = (sign * value).clamp(low, high);
            let index = edges.partition_point(|edge| is_up_to(*edge, at));
            counts[index.clamp(1, edges.len() - 1) - 1] += count;
        }
        // Minimum and maximum belong to the first and the last bucket, wherever they were counted.
        for is_reversed in [false, true] {
            let place = match is_reversed {
                false => counts.iter().position(|count| *count > 0),
                true => counts.iter().rposition(|count| *count > 0),
            };
            let end = if is_reversed { counts.len() - 1 } else { 0 };
            if let Some(place) = place.filter(|place| *place != end) {
                counts[place] -= 1;
                counts[end] += 1;
            }
        }
        let buckets = edges.windows(2).zip(counts).map(|(pair, count)| {
            let end = if is_whole { pair[1] - 1.0 } else { pair[1] };
            match is_mirrored {
                true => ValueBucket {
                    low: 0.0 - end,
                    high: 0.0 - pair[0],
                    count,
                },
                false => ValueBucket {
                    low: pair[0],
                    high: end,
                    count,
                },
            }
        });
        let mut buckets: Vec<ValueBucket> = buckets.collect();
        if is_mirrored {
            buckets.reverse();
        }
        buckets
    }
}

impl Bounded for Distribution {
    fn bound(&mut self, bytes: usize) {
        let own = self.values.capacity() * size_of::<f64>();
        if let Some(counted) = &mut self.counted {
            counted.bound(bytes.saturating_sub(own));
        }
    }

    fn bytes(&self) -> usize {
        self.memory_bytes()
    }
}

#[cfg(test)]
mod tests;
