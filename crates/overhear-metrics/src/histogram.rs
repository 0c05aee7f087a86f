// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of values over a wide range, in bounded memory.

use std::borrow::Cow;

use crate::buckets::{quantile, Buckets};
use crate::coarse::CoarseBuckets;

/// A histogram of whole numbers with three significant digits, as HdrHistogram has them.
///
/// The first few values are kept as they are, because most histograms have no more: that of a
/// thread that ran ten times takes a hundred bytes instead of 16 KiB. Later values are collected
/// and counted together: so, of several histograms that are used in turns, caches hold the
/// collected values rather than all buckets.
///
/// Minimum, maximum and mean are exact. Quantiles are exact to the relative [`error`](Self::error):
/// a thousandth, or up to 0.25 if the memory is [bounded](Self::bound). Values above 2^48 (78 hours
/// in nanoseconds) count as 2^48.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Values that are not counted yet, followed by spare entries.
    values: Vec<u64>,
    /// Number of these values, at most [`MAX_EXACT_VALUES`], in the order in which they came.
    taken: u32,
    /// Largest number of bytes for values and counts.
    most_bytes: u32,
    /// Counts of all other values, if there are any.
    counted: Option<Box<Counted>>,
}

#[derive(Clone, Debug)]
struct Counted {
    counts: Counts,
    // Exact, in contrast to the buckets.
    min: u64,
    max: u64,
    sum: u128,
}

/// Largest number of values that are kept as they are.
const MAX_EXACT_VALUES: usize = 512;
/// Number of values that are collected and then counted together, once there are more: few enough
/// that a cache holds those of some tens of histograms.
const COLLECTED_VALUES: usize = 128;

/// More values than are ever counted together.
const MANY: u64 = 4 * MAX_EXACT_VALUES as u64;

/// Counts of values: exact to a thousandth, or to the precision that the bound on their memory
/// permits.
#[derive(Clone, Debug)]
enum Counts {
    Fine(Buckets),
    Coarse(CoarseBuckets),
}

impl Counts {
    fn record_many(&mut self, value: u64, count: u64) {
        match self {
            Self::Fine(buckets) => buckets.record_many(value, count),
            Self::Coarse(buckets) => buckets.record_many(value, count),
        }
    }

    fn record_all(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        match self {
            Self::Fine(buckets) => buckets.record_all(values),
            Self::Coarse(buckets) => values.for_each(|value| buckets.record_many(value, 1)),
        }
    }

    const fn total(&self) -> u64 {
        match self {
            Self::Fine(buckets) => buckets.total(),
            Self::Coarse(buckets) => buckets.total(),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Fine(buckets) => buckets.memory_bytes(),
            Self::Coarse(buckets) => buckets.memory_bytes(),
        }
    }

    /// Bytes of all memory blocks.
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Fine(buckets) => buckets.memory_bytes() + buckets.carried_bytes(),
            Self::Coarse(buckets) => buckets.memory_bytes(),
        }
    }

    /// The largest values of the buckets with a count above zero, ascending, with these counts.
    fn counted(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (fine, coarse) = match self {
            Self::Fine(buckets) => (Some(buckets.counted()), None),
            Self::Coarse(buckets) => (None, Some(buckets.counted())),
        };
        let fine = fine.into_iter().flatten();
        fine.chain(coarse.into_iter().flatten())
    }

    /// Takes at most `bytes`, with the number of significant digits that these permit.
    fn bound(&mut self, bytes: usize) {
        let is_coarsest = matches!(self, Self::Coarse(buckets) if buckets.is_coarsest());
        if self.heap_bytes() > bytes && !is_coarsest {
            *self = Self::Coarse(CoarseBuckets::fitting(bytes, || self.counted()));
        }
    }
}

impl Counted {
    const fn new(buckets: Buckets) -> Self {
        Self {
            counts: Counts::Fine(buckets),
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
        // Nearly all values lie between those that came before. Values above the largest bucket
        // never do.
        let span = |min: u64, max: u64| (max.min(LARGEST) + 1).saturating_sub(min);
        let (mut low, mut between) = (*min, span(*min, *max));
        self.counts.record_all(values.iter().map(|&value| {
            if value.wrapping_sub(low) >= between {
                (*min, *max) = (value.min(*min), value.max(*max));
                (low, between) = (*min, span(*min, *max));
                return value.min(LARGEST);
            }
            value
        }));
        self.sum += match self.max <= u64::MAX / MANY {
            // Their sum fits into a word.
            true => u128::from(values.iter().sum::<u64>()),
            false => values.iter().map(|value| u128::from(*value)).sum(),
        };
    }
}

/// The values from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Smallest value of the bucket.
    pub low: u64,
    /// Largest value of the bucket.
    pub high: u64,
    /// Number of values.
    pub count: u64,
}

/// Largest value; greater ones count as this.
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
            values: Vec::new(),
            taken: 0,
            most_bytes: u32::MAX,
            counted: None,
        }
    }

    /// An empty histogram with all the memory that it can need, 80 KiB: counting allocates nothing.
    #[must_use]
    pub fn preallocated() -> Self {
        Self {
            values: vec![0; COLLECTED_VALUES],
            taken: 0,
            most_bytes: u32::MAX,
            counted: Some(Box::new(Counted::new(Buckets::up_to(LARGEST)))),
        }
    }

    /// Bytes of memory of its counts.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let counted = self.counted.as_ref().map(|it| it.counts.memory_bytes());
        self.values.capacity() * size_of::<u64>() + counted.unwrap_or(0)
    }

    /// Bytes of all its memory blocks.
    pub(crate) fn heap_bytes(&self) -> usize {
        let counted = self.counted.as_ref();
        let counted = counted.map(|it| size_of::<Counted>() + it.counts.heap_bytes());
        self.values.capacity() * size_of::<u64>() + counted.unwrap_or(0)
    }

    /// Bounds its memory, now and later. Quantiles lose significant digits; count, minimum, maximum
    /// and sum stay exact. A bound below 512 bytes is not kept.
    pub fn bound(&mut self, bytes: usize) {
        self.most_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.heap_bytes() > bytes {
            self.count_taken();
            self.keep_bound();
        }
    }

    /// Largest relative error of a quantile: 0 while all values are kept as they are, then a
    /// thousandth; up to 0.25 if the memory is bounded.
    #[must_use]
    pub fn error(&self) -> f64 {
        match self.counted.as_deref().map(|it| &it.counts) {
            None => 0.0,
            Some(Counts::Fine(_)) => 0.001,
            Some(Counts::Coarse(buckets)) => buckets.error(),
        }
    }

    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        match self.values.get_mut(self.taken as usize) {
            Some(free) => *free = value,
            None => self.make_room(value),
        }
        self.taken += 1;
    }

    /// Counts a value. Memory is taken, and compared with the bound of `memory`, only when no spare
    /// entry is left.
    #[inline(always)]
    pub(crate) fn record_within(&mut self, value: u64, memory: &mut HistogramMemory) {
        match self.values.get_mut(self.taken as usize) {
            Some(free) => *free = value,
            None => memory.make_room(self, value),
        }
        self.taken += 1;
    }

    /// Makes room for more values while there are few; then counts them. The value takes the first
    /// free entry.
    #[inline(never)]
    fn make_room(&mut self, value: u64) {
        self.find_room();
        self.values[self.taken as usize] = value;
    }

    fn find_room(&mut self) {
        let room = self.values.len();
        let few = MAX_EXACT_VALUES.min(self.most_bytes as usize / size_of::<u64>());
        if self.counted.is_none() && room < few {
            self.values.resize((2 * room).clamp(4, few.max(4)), 0);
            return;
        }
        self.count_taken();
        self.keep_bound();
    }

    /// Counts the collected values.
    fn count_taken(&mut self) {
        let counted = self.counted.get_or_insert_with(Counted::none);
        counted.count(&self.values[..self.taken as usize]);
        self.taken = 0;
        // At most a quarter of a bounded histogram.
        let collected = self.most_bytes as usize / (4 * size_of::<u64>());
        let collected = collected.clamp(4, COLLECTED_VALUES);
        // The list of exact values had another length.
        if self.values.len() != collected {
            self.values = vec![0; collected];
        }
    }

    /// Coarsens the buckets until they fit.
    fn keep_bound(&mut self) {
        let own = self.values.capacity() * size_of::<u64>() + size_of::<Counted>();
        let rest = (self.most_bytes as usize).saturating_sub(own);
        if let Some(counted) = &mut self.counted {
            counted.counts.bound(rest);
        }
    }

    /// The values that are not counted yet.
    fn recent(&self) -> &[u64] {
        &self.values[..self.taken as usize]
    }

    /// Counts all values of another histogram.
    pub fn add(&mut self, other: &Self) {
        for &value in other.recent() {
            self.record(value);
        }
        if let Some(other) = &other.counted {
            let counted = self.counted.get_or_insert_with(Counted::none);
            for (value, count) in other.counts.counted() {
                counted.counts.record_many(value.min(LARGEST), count);
            }
            counted.min = counted.min.min(other.min);
            counted.max = counted.max.max(other.max);
            counted.sum += other.sum;
        }
        self.keep_bound();
    }

    /// Number of counted values.
    #[must_use]
    pub fn count(&self) -> u64 {
        let counted = self.counted.as_ref().map(|it| it.counts.total());
        u64::from(self.taken) + counted.unwrap_or(0)
    }

    /// Smallest value; `None` without values.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        let counted = self.counted.iter().map(|it| it.min);
        let least = self.recent().iter().copied().chain(counted).min();
        least.filter(|_| self.count() > 0)
    }

    /// Largest value; `None` without values.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        let counted = self.counted.iter().map(|it| it.max);
        let most = self.recent().iter().copied().chain(counted).max();
        most.filter(|_| self.count() > 0)
    }

    /// Sum of all values.
    #[must_use]
    pub fn sum(&self) -> u128 {
        let recent: u128 = self.recent().iter().map(|&value| u128::from(value)).sum();
        recent + self.counted.as_ref().map_or(0, |it| it.sum)
    }

    /// Mean; `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum() as f64 / self.count() as f64)
    }

    /// The smallest value that at least this fraction of the values does not exceed, or a value
    /// that is larger by at most the relative [`error`](Self::error). It is never below the minimum
    /// nor above the maximum; `None` without values.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        let (min, max) = (self.min()?, self.max()?);
        let found = match self.all_counted() {
            Some(counts) => quantile(counts.counted(), counts.total(), fraction),
            None => {
                let mut sorted = self.recent().to_vec();
                sorted.sort_unstable();
                // The rank that HdrHistogram takes: the smallest value that at least this fraction
                // of the values does not exceed.
                let rank = (fraction.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
                sorted[rank.saturating_sub(1)].min(LARGEST)
            }
        };
        Some(found.clamp(min, max))
    }

    /// The counts of all values; `None` if no value is counted yet.
    fn all_counted(&self) -> Option<Cow<'_, Counts>> {
        let counted = self.counted.as_ref().filter(|it| it.counts.total() > 0)?;
        let mut counts = Cow::Borrowed(&counted.counts);
        if self.taken > 0 {
            let recent = self.recent().iter().map(|&value| value.min(LARGEST));
            counts.to_mut().record_all(recent);
        }
        Some(counts)
    }

    /// Values with their counts; a value may occur more than once.
    fn for_each(&self, mut visit: impl FnMut(u64, u64)) {
        for &value in self.recent() {
            visit(value.min(LARGEST), 1);
        }
        let counted = self.counted.iter().flat_map(|it| it.counts.counted());
        counted.for_each(|(value, count)| visit(value, count));
    }

    /// The histogram in few buckets for users, from the first to the last one with a value. The
    /// limits are preferred numbers (ISO 3): twenty per decade for values within two decades, ten
    /// within four, five for more.
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
            // Minimum and maximum are exact; other values have the error of their buckets.
            let at = value.clamp(min, max);
            let index = edges.partition_point(|&edge| edge <= at) - 1;
            buckets[index].count += count;
        });
        buckets
    }
}

/// A bound on the memory of many histograms of one owner.
///
/// As long as all of them together need less, each is exact to a thousandth. Then the largest ones
/// lose significant digits first: `each` is lowered until the sum fits.
#[derive(Clone, Debug)]
pub(crate) struct HistogramMemory {
    /// Bytes of all histograms of the owner.
    used: usize,
    /// Largest number of bytes that they may take together.
    most: usize,
    /// Largest number of bytes that one of them may take.
    each: usize,
}

/// No histogram is coarsened below this many bytes.
const LEAST_BYTES: usize = 320;

impl Default for HistogramMemory {
    /// 24 MiB: room for three hundred histograms of every possible value, or for thousands of usual
    /// ones.
    fn default() -> Self {
        Self::bytes(24 << 20)
    }
}

/// A user of a [`HistogramMemory`].
pub(crate) trait Bounded {
    /// Bounds its memory; quantiles lose significant digits.
    fn bound(&mut self, bytes: usize);

    /// Bytes of its memory.
    fn bytes(&self) -> usize;
}

impl Bounded for Histogram {
    fn bound(&mut self, bytes: usize) {
        Self::bound(self, bytes);
    }

    fn bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl HistogramMemory {
    /// A bound of this number of bytes.
    pub(crate) const fn bytes(most: usize) -> Self {
        Self {
            used: 0,
            most,
            each: usize::MAX,
        }
    }

    #[inline(never)]
    fn make_room(&mut self, histogram: &mut Histogram, value: u64) {
        let before = histogram.heap_bytes();
        if self.each < histogram.most_bytes as usize {
            histogram.bound(self.each);
        }
        histogram.make_room(value);
        self.used = (self.used + histogram.heap_bytes()).saturating_sub(before);
    }

    /// Lets a user of the memory grow, and bounds it.
    #[inline(never)]
    pub(crate) fn grow<B: Bounded>(&mut self, user: &mut B, grow: impl FnOnce(&mut B)) {
        let before = user.bytes();
        grow(user);
        user.bound(self.each);
        self.used = (self.used + user.bytes()).saturating_sub(before);
    }

    /// Whether [`fit`](Self::fit) is due.
    #[inline(always)]
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.used > self.most
    }

    /// Coarsens the largest histograms until all fit. `visit` calls its argument with each
    /// histogram of the owner.
    #[cold]
    pub(crate) fn fit(&mut self, mut visit: impl FnMut(&mut dyn FnMut(&mut dyn Bounded))) {
        let mut each = self.each.min(1 << 17);
        // An eighth less than the bound, so that the next value does not exceed it again.
        while self.used > self.most / 8 * 7 && each > LEAST_BYTES {
            each = (each / 4 * 3).max(LEAST_BYTES);
            let mut used = 0;
            visit(&mut |histogram| {
                histogram.bound(each);
                used += histogram.bytes();
            });
            self.used = used;
        }
        self.each = each;
        // If no histogram can be made smaller, the bound is raised; otherwise each value would try
        // again.
        self.most = self.most.max(self.used);
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
    // Below ten, neighbours coincide, because limits are whole numbers.
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
    use super::{Bucket, Histogram, HistogramMemory};

    #[test]
    fn bucket_limits_are_adjacent_preferred_numbers() {
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
    fn buckets_count_all_values_of_any_range() {
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
    fn exact_and_counted_values_have_equal_results() {
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
            let estimate = all.quantile(fraction).unwrap();
            assert!(
                estimate.abs_diff(exact) * 1_000 <= exact,
                "{estimate} instead of {exact}"
            );
        }
        assert_eq!(all.buckets(), half.buckets());
        assert_eq!(few.count(), 100);
    }

    #[test]
    fn sum_of_large_values_is_exact() {
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
    fn empty_histogram_counts_on_after_addition() {
        let mut histogram = Histogram::new();
        histogram.add(&Histogram::preallocated());
        (0..1_000).for_each(|value| histogram.record(value));
        assert_eq!(histogram.count(), 1_000);
        assert_eq!((histogram.min(), histogram.max()), (Some(0), Some(999)));
    }

    #[test]
    fn bounded_histogram_keeps_bound_and_counts_exactly() {
        for bytes in [512, 1 << 10, 1 << 12, 1 << 15] {
            let (mut early, mut late) = (Histogram::new(), Histogram::new());
            let mut exact = Histogram::new();
            early.bound(bytes);
            for index in 0..50_000_u64 {
                let value = (index * 48_271 % 65_537) << (index % 12);
                for histogram in [&mut early, &mut late, &mut exact] {
                    histogram.record(value);
                }
                assert!(early.heap_bytes() <= bytes, "{bytes}");
            }
            late.bound(bytes);
            for histogram in [&early, &late] {
                assert!(histogram.heap_bytes() <= bytes, "{bytes}");
                assert_eq!(histogram.count(), exact.count());
                assert_eq!(histogram.sum(), exact.sum());
                assert_eq!(
                    (histogram.min(), histogram.max()),
                    (exact.min(), exact.max())
                );
                for fraction in [0.01, 0.5, 0.99] {
                    let (found, exact) = (histogram.quantile(fraction), exact.quantile(fraction));
                    let (found, exact) = (found.unwrap() as f64, exact.unwrap() as f64);
                    let error = (found - exact).abs() / exact;
                    assert!(error <= histogram.error() + 0.001, "{bytes}: {error}");
                }
            }
        }
    }

    #[test]
    fn histogram_memory_coarsens_the_largest_histograms_only() {
        let mut memory = HistogramMemory::bytes(200 << 10);
        let mut histograms = vec![Histogram::new(); 40];
        let mut exact = histograms.clone();
        for index in 0..200_000_u64 {
            // Half of the histograms have few values.
            let place = (index % 20 + if index % 1_000 == 7 { 20 } else { 0 }) as usize;
            let value = index * 48_271 % 16_777_213;
            histograms[place].record_within(value, &mut memory);
            if memory.is_exceeded() {
                memory.fit(|bound| {
                    histograms
                        .iter_mut()
                        .for_each(|it: &mut Histogram| bound(it))
                });
            }
            exact[place].record(value);
            let bytes: usize = histograms.iter().map(Histogram::heap_bytes).sum();
            assert!(bytes <= 200 << 10, "{bytes} after {index}");
        }
        for (histogram, exact) in histograms[..20].iter().zip(&exact) {
            assert!(histogram.error() > 0.001 && histogram.error() < 0.1);
            assert_eq!(histogram.count(), exact.count());
        }
        for (histogram, exact) in histograms[20..].iter().zip(&exact[20..]) {
            assert!(histogram.error() <= 0.001);
            assert_eq!(histogram.quantile(0.5), exact.quantile(0.5));
        }
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
