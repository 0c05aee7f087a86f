// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of values over a wide range, in bounded memory.

use std::borrow::Cow;

use crate::buckets::Buckets;

/// A histogram of whole numbers with three significant digits, as HdrHistogram has them.
///
/// The first few values are kept as they are, because most histograms have no more: one of a
/// thread that ran ten times takes a hundred bytes instead of 16 KiB. Later ones are collected and counted
/// many at once: of histograms that are used by turns, the caches hold what was collected, but not all
/// buckets.
///
/// Minimum, maximum and mean are exact; quantiles are exact to a thousandth. Values above 2^48
/// (78 hours in nanoseconds) count as 2^48.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Places for values that are not counted yet.
    places: Vec<u64>,
    /// How many of them are taken: the values in the order of their coming.
    taken: usize,
    /// All others, if there are any.
    counted: Option<Box<Counted>>,
}

#[derive(Clone, Debug)]
struct Counted {
    buckets: Buckets,
    // Exact, where the buckets are not.
    min: u64,
    max: u64,
    sum: u128,
}

/// So many values are kept as they are.
const FEW: usize = 512;
/// So many are collected once there are more: few enough that a cache holds those of some tens of
/// histograms.
const COLLECTED: usize = 128;

/// More than are ever counted at once.
const MANY: u64 = 4 * FEW as u64;

impl Counted {
    const fn new(buckets: Buckets) -> Self {
        Self {
            buckets,
            min: u64::MAX,
            max: 0,
            sum: 0,
        }
    }

    fn none() -> Box<Self> {
        Box::new(Self::new(Buckets::default()))
    }

    fn count(&mut self, values: &[u64]) {
        let (min, max) = (&mut self.min, &mut self.max);
        // Nearly all values lie between those that came before. What is larger than the buckets never does.
        let span = |min: u64, max: u64| (max.min(LARGEST) + 1).saturating_sub(min);
        let (mut low, mut between) = (*min, span(*min, *max));
        self.buckets.record_all(values.iter().map(|&value| {
            if value.wrapping_sub(low) >= between {
                (*min, *max) = (value.min(*min), value.max(*max));
                (low, between) = (*min, span(*min, *max));
                return value.min(LARGEST);
            }
            value
        }));
        self.sum += match self.max <= u64::MAX / MANY {
            // Added up they are no larger than a word.
            true => u128::from(values.iter().sum::<u64>()),
            false => values.iter().map(|value| u128::from(*value)).sum(),
        };
    }
}

/// The values from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The smallest value counted here.
    pub low: u64,
    /// The largest value counted here.
    pub high: u64,
    /// How many there were.
    pub count: u64,
}

/// The largest value told apart.
const LARGEST: u64 = 1 << 48;

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram. It grows with its values and their range, to 80 KiB at most.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            places: Vec::new(),
            taken: 0,
            counted: None,
        }
    }

    /// An empty histogram with all the memory that it can ever need, 80 KiB: counting allocates nothing.
    #[must_use]
    pub fn preallocated() -> Self {
        Self {
            places: vec![0; COLLECTED],
            taken: 0,
            counted: Some(Box::new(Counted::new(Buckets::up_to(LARGEST)))),
        }
    }

    /// Bytes that its counts take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let counted = self.counted.as_ref().map(|it| it.buckets.memory_bytes());
        self.places.capacity() * size_of::<u64>() + counted.unwrap_or(0)
    }

    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        match self.places.get_mut(self.taken) {
            Some(place) => *place = value,
            None => self.make_room(value),
        }
        self.taken += 1;
    }

    /// More places as long as there are few values; then they are counted. The value takes the first place.
    #[inline(never)]
    fn make_room(&mut self, value: u64) {
        self.find_room();
        self.places[self.taken] = value;
    }

    fn find_room(&mut self) {
        let places = self.places.len();
        if self.counted.is_none() && places < FEW {
            self.places.resize((2 * places).max(4), 0);
            return;
        }
        let counted = self.counted.get_or_insert_with(Counted::none);
        counted.count(&self.places[..self.taken]);
        self.taken = 0;
        // There may have been more, or fewer than it is worth to count together.
        if places != COLLECTED {
            self.places = vec![0; COLLECTED];
        }
    }

    /// The values that are not counted yet.
    fn recent(&self) -> &[u64] {
        &self.places[..self.taken]
    }

    /// Counts everything that another histogram has counted.
    pub fn add(&mut self, other: &Self) {
        for &value in other.recent() {
            self.record(value);
        }
        if let Some(other) = &other.counted {
            let counted = self.counted.get_or_insert_with(Counted::none);
            for (value, count) in other.buckets.counted() {
                counted.buckets.record_many(value.min(LARGEST), count);
            }
            counted.min = counted.min.min(other.min);
            counted.max = counted.max.max(other.max);
            counted.sum += other.sum;
        }
    }

    /// How many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        let counted = self.counted.as_ref().map(|it| it.buckets.total());
        self.taken as u64 + counted.unwrap_or(0)
    }

    /// The smallest value, `None` if there was none.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        let counted = self.counted.iter().map(|it| it.min);
        let least = self.recent().iter().copied().chain(counted).min();
        least.filter(|_| self.count() > 0)
    }

    /// The largest value, `None` if there was none.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        let counted = self.counted.iter().map(|it| it.max);
        let most = self.recent().iter().copied().chain(counted).max();
        most.filter(|_| self.count() > 0)
    }

    /// The sum of all values.
    #[must_use]
    pub fn sum(&self) -> u128 {
        let recent: u128 = self.recent().iter().map(|&value| u128::from(value)).sum();
        recent + self.counted.as_ref().map_or(0, |it| it.sum)
    }

    /// The mean, `None` if there was no value.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum() as f64 / self.count() as f64)
    }

    /// The smallest recorded value that at least this fraction of the values does not exceed;
    /// never below the minimum nor above the maximum. `None` if there was no value.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        let (min, max) = (self.min()?, self.max()?);
        let found = match self.all_counted() {
            Some(buckets) => buckets.quantile(fraction),
            None => {
                let mut sorted = self.recent().to_vec();
                sorted.sort_unstable();
                // The rank that HdrHistogram takes: the smallest value that at least this
                // fraction of the values does not exceed.
                let rank = (fraction.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
                sorted[rank.saturating_sub(1)].min(LARGEST)
            }
        };
        Some(found.clamp(min, max))
    }

    /// The buckets with what is not counted yet, `None` if nothing is counted.
    fn all_counted(&self) -> Option<Cow<'_, Buckets>> {
        let counted = self.counted.as_ref().filter(|it| it.buckets.total() > 0)?;
        let mut buckets = Cow::Borrowed(&counted.buckets);
        if self.taken > 0 {
            let recent = self.recent().iter().map(|&value| value.min(LARGEST));
            buckets.to_mut().record_all(recent);
        }
        Some(buckets)
    }

    /// Values and how often each occurred; a value may be told more than once.
    fn for_each(&self, mut told: impl FnMut(u64, u64)) {
        for &value in self.recent() {
            told(value.min(LARGEST), 1);
        }
        let counted = self.counted.iter().flat_map(|it| it.buckets.counted());
        counted.for_each(|(value, count)| told(value, count));
    }

    /// The histogram in few buckets for people, from the first to the last one with a value. The
    /// limits are preferred numbers (ISO 3): twenty to a decade for values within two decades, ten
    /// within four, five beyond.
    #[must_use]
    pub fn buckets(&self) -> Vec<Bucket> {
        let (Some(min), Some(max)) = (self.min(), self.max()) else {
            return Vec::new();
        };
        let (min, max) = (min.min(LARGEST), max.min(LARGEST));
        let edges = edges(min, max);
        let mut buckets: Vec<Bucket> = edges
            .windows(2)
            .map(|pair| Bucket {
                low: pair[0],
                high: pair[1] - 1,
                count: 0,
            })
            .collect();
        self.for_each(|value, count| {
            // The ends are exact; in between a value is known to a thousandth.
            let at = value.clamp(min, max);
            let index = edges.partition_point(|&edge| edge <= at) - 1;
            buckets[index].count += count;
        });
        buckets
    }
}

/// The preferred numbers of one decade, times 100 (ISO 3, series R20).
const R20: [u64; 20] = [
    100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800,
    900,
];

/// Ascending limits of buckets: the first one does not exceed `min`, the last one exceeds `max`.
fn edges(min: u64, max: u64) -> Vec<u64> {
    let decades = max.max(1).ilog10() - min.max(1).ilog10();
    let step = match decades {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    };
    let numbers = (0..=u64::MAX.ilog10()).flat_map(|decade| {
        let scale = 10_u128.pow(decade);
        R20.iter()
            .step_by(step)
            .map(move |&number| u64::try_from(u128::from(number) * scale / 100).unwrap_or(u64::MAX))
    });
    // Below ten, neighbours coincide; limits are whole numbers.
    let mut edges: Vec<u64> = Vec::new();
    for number in std::iter::once(0).chain(numbers) {
        if edges.last().is_none_or(|&last| last < number) {
            edges.push(number);
        }
    }
    let first = edges.partition_point(|&edge| edge <= min).saturating_sub(1);
    let behind = edges.partition_point(|&edge| edge <= max);
    edges.drain(..).take(behind + 1).skip(first).collect()
}

#[cfg(test)]
mod tests {
    use super::{Bucket, Histogram};

    #[test]
    fn buckets_are_preferred_numbers_without_holes() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.buckets(), []);
        for value in [0, 1, 4, 4, 7] {
            histogram.record(value);
        }
        let bucket = |low, high, count| Bucket { low, high, count };
        let counts = [1, 1, 0, 0, 2, 0, 0, 1];
        let single: Vec<Bucket> = counts
            .into_iter()
            .enumerate()
            .map(|(value, count)| bucket(value as u64, value as u64, count))
            .collect();
        assert_eq!(histogram.buckets(), single);

        let mut histogram = Histogram::new();
        for value in [1_010, 1_119, 1_120, 1_399] {
            histogram.record(value);
        }
        assert_eq!(
            histogram.buckets(),
            [
                bucket(1_000, 1_119, 2),
                bucket(1_120, 1_249, 1),
                bucket(1_250, 1_399, 1)
            ]
        );
    }

    #[test]
    fn buckets_count_every_value_whatever_the_range() {
        for values in [
            vec![1, u64::MAX],
            vec![5, 5_000_000_000],
            vec![999, 1_000, 99_999],
        ] {
            let mut histogram = Histogram::new();
            for &value in &values {
                histogram.record(value);
            }
            let buckets = histogram.buckets();
            assert_eq!(
                buckets.iter().map(|b| b.count).sum::<u64>(),
                values.len() as u64
            );
            assert!(buckets.len() <= 90, "{} buckets", buckets.len());
            assert!(buckets
                .windows(2)
                .all(|pair| pair[0].high + 1 == pair[1].low));
            assert!(buckets[0].count > 0 && buckets[buckets.len() - 1].count > 0);
        }
    }

    #[test]
    fn few_values_and_many_tell_the_same() {
        let value = |index: u64| (index * 7_919) % 10_000 + 1;
        let (mut all, mut half, mut other) = (Histogram::new(), Histogram::new(), Histogram::new());
        for index in 0..1_000 {
            all.record(value(index));
            if index % 2 == 0 {
                &mut half
            } else {
                &mut other
            }
            .record(value(index));
        }
        half.add(&other);
        let mut few = Histogram::new();
        (0..100).for_each(|index| few.record(value(index * 10)));
        for fraction in [0.01, 0.5, 0.99, 1.0] {
            assert_eq!(all.quantile(fraction), half.quantile(fraction));
            let mut sorted: Vec<u64> = (0..1_000).map(value).collect();
            sorted.sort_unstable();
            let exact = sorted[(fraction * 1_000.0) as usize - 1];
            let told = all.quantile(fraction).unwrap();
            assert!(
                told.abs_diff(exact) * 1_000 <= exact,
                "{told} instead of {exact}"
            );
        }
        assert_eq!(all.buckets(), half.buckets());
        assert_eq!(few.count(), 100);
    }

    #[test]
    fn many_values_of_any_size_are_added_up_exactly() {
        let sizes: Vec<u64> = (0..=64)
            .map(|bits| u64::MAX.checked_shr(64 - bits).unwrap_or(0))
            .collect();
        for turned in [0, 1, 20, 48, 49, 50, 64] {
            for (sizes, repeated) in [(&sizes[..], 11), (&sizes[..48], 23), (&sizes[49..], 60)] {
                let mut values = sizes.repeat(repeated);
                values.rotate_left(turned % sizes.len());
                for mut histogram in [Histogram::new(), Histogram::preallocated()] {
                    values.iter().for_each(|&value| histogram.record(value));
                    let sum: u128 = values.iter().map(|&value| u128::from(value)).sum();
                    assert_eq!(histogram.sum(), sum);
                    assert_eq!(histogram.count(), values.len() as u64);
                    let ends = (histogram.min(), histogram.max());
                    assert_eq!(ends, (sizes.first().copied(), sizes.last().copied()));
                    assert!(histogram.memory_bytes() <= 82 * 1_024);
                }
            }
        }
    }

    #[test]
    fn one_that_was_added_to_before_it_had_values_counts_on() {
        let mut histogram = Histogram::new();
        histogram.add(&Histogram::preallocated());
        (0..1_000).for_each(|value| histogram.record(value));
        assert_eq!(histogram.count(), 1_000);
        assert_eq!((histogram.min(), histogram.max()), (Some(0), Some(999)));
    }

    #[test]
    fn quantiles_stay_within_the_values() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), None);
        histogram.record(123_456_789);
        for fraction in [0.0, 0.5, 0.99, 1.0] {
            assert_eq!(histogram.quantile(fraction), Some(123_456_789));
        }
        histogram.record(u64::MAX);
        assert_eq!(histogram.max(), Some(u64::MAX));
        assert_eq!(histogram.count(), 2);
    }
}
