// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often values of either sign occurred, fractions among them, to a thousandth of each.
//!
//! A bucket holds the numbers that share sign, exponent and the first ten bits of their significand: each power of two is
//! divided into 1024 buckets of equal width, as HdrHistogram does it for whole numbers from 1024 on ([`Buckets`](crate::buckets)). So a
//! bucket is less than a thousandth of its values wide, wherever it lies, and its borders are numbers that a double
//! holds exactly. Whole numbers below 2048 have a bucket each. Zero has its own.
//!
//! Powers of two get memory when the first value falls into them. There are 128 at most, of both signs together: where more
//! occurred, values are counted as zero that are less than 10^-19 of the greatest.

use std::borrow::Cow;

use crate::histogram::{Bounded, HistogramMemory};

/// Bits of the place within a power of two.
const BITS: u32 = 10;
/// Buckets of a power of two.
const PLACES: usize = 1 << BITS;
/// Bits of a double behind those of its bucket.
const BELOW: u32 = f64::MANTISSA_DIGITS - 1 - BITS;
/// Sign and exponent of a double.
const POWERS: usize = 1 << 12;
/// The bit of a power of two that is the sign.
const NEGATIVE: usize = 1 << 11;
/// The most powers of two that have memory.
const TABLES: usize = 128;

/// Values that were counted.
#[derive(Clone, Debug)]
struct Counted {
    /// By sign and exponent, the number of the table, [`NO_TABLE`] without one. Zero has the first one, and with it what
    /// is counted as zero.
    numbers: Box<[u8; POWERS]>,
    /// One table of places behind the other.
    counts: Vec<u32>,
    /// Powers of two by the numbers of their tables; that of zero is the first one.
    powers: Vec<u16>,
    /// Power and place of buckets whose count has come to 2^32, and how often.
    carried: Vec<(u16, u16, u64)>,
    total: u64,
    min: f64,
    max: f64,
    sum: f64,
    is_whole: bool,
    /// How often buckets were made twice as wide: from 0 to [`MOST_SHIFT`].
    shift: u32,
}

/// A bucket is not made wider than a quarter of its values.
const MOST_SHIFT: u32 = 8;

/// Stands for the number of a table that does not exist.
const NO_TABLE: u8 = u8::MAX;

const _: () = assert!(TABLES < NO_TABLE as usize);

/// The power of two and the place of a number.
#[inline(always)]
const fn bucket(value: f64) -> (usize, usize) {
    let bits = value.to_bits();
    let power = (bits >> (f64::MANTISSA_DIGITS - 1)) as usize;
    (power, (bits >> BELOW) as usize % PLACES)
}

/// The numbers of a bucket: the one next to zero, and the border behind the others, without their sign.
fn magnitudes(power: usize, place: usize, shift: u32) -> (f64, f64) {
    let first = ((power % NEGATIVE) as u64) << (f64::MANTISSA_DIGITS - 1)
        | (place as u64) << (BELOW + shift);
    let behind = f64::from_bits(first + (1 << (BELOW + shift)));
    (f64::from_bits(first), behind.min(f64::MAX))
}

/// Values of one bucket.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// The greatest that there can be. Limits that people choose are rarely borders of buckets, and values often are such
    /// limits: counted as the greatest one they lie behind the limit, as they should.
    greatest: f64,
    count: u64,
}

/// Whether all of these are whole numbers.
fn are_whole(values: &[f64]) -> bool {
    // A number of at most half as much becomes whole where this is added, and stays itself only if it was.
    const ROUNDING: f64 = 1.5 * (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64;
    let is_whole = |value: &f64| (value + ROUNDING) - ROUNDING == *value;
    let are_small_and_whole = values.iter().fold(true, |all, value| all & is_whole(value));
    are_small_and_whole || values.iter().all(|value| value.trunc() == *value)
}

impl Counted {
    fn new() -> Self {
        let mut numbers = vec![NO_TABLE; POWERS];
        // Zero has either sign, and what is next to it has its exponent.
        (numbers[0], numbers[NEGATIVE]) = (0, 0);
        let numbers: Box<[u8]> = numbers.into();
        Self {
            numbers: numbers.try_into().expect("it is as long"),
            counts: vec![0; PLACES],
            powers: vec![0],
            carried: Vec::new(),
            total: 0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            sum: 0.0,
            is_whole: true,
            shift: 0,
        }
    }

    /// Buckets of each power of two.
    #[inline(always)]
    const fn places(&self) -> usize {
        PLACES >> self.shift
    }

    /// Makes buckets twice as wide until the counts take no more than so many bytes. Count, minimum, maximum and sum stay
    /// exact.
    fn bound(&mut self, bytes: usize) {
        while self.memory_bytes() > bytes && self.shift < MOST_SHIFT {
            self.shift += 1;
            let mut counts = Vec::with_capacity(self.counts.len() / 2);
            let mut carries = Vec::new();
            for (at, pair) in self.counts.chunks_exact(2).enumerate() {
                let sum = u64::from(pair[0]) + u64::from(pair[1]);
                counts.push(sum as u32);
                if sum >> u32::BITS != 0 {
                    carries.push((at, sum >> u32::BITS));
                }
            }
            self.counts = counts;
            for (power, place, carry) in std::mem::take(&mut self.carried) {
                self.carry(power, usize::from(place) / 2, carry);
            }
            for (at, carry) in carries {
                self.carry(self.powers[at / self.places()], at % self.places(), carry);
            }
        }
    }

    fn preallocated() -> Self {
        let mut counted = Self::new();
        // Written to, so that the memory is there.
        counted.counts.resize((1 + TABLES) * PLACES, 0);
        counted.counts.truncate(PLACES);
        counted.powers.reserve_exact(TABLES);
        counted.carried.reserve_exact(TABLES);
        counted
    }

    fn memory_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u32>() + POWERS
    }

    fn count(&mut self, values: &[f64]) {
        self.total += values.len() as u64;
        let (mut min, mut max, mut sum) = (self.min, self.max, 0.0);
        for &value in values {
            // None is NaN: so each is one instruction.
            min = if value < min { value } else { min };
            max = if value > max { value } else { max };
            sum += value;
        }
        (self.min, self.max) = (min, max);
        self.sum += sum;
        self.is_whole = self.is_whole && are_whole(values);
        let (places, shift) = (self.places(), self.shift);
        for &value in values {
            let (power, place) = bucket(value);
            let at = usize::from(self.numbers[power]) * places + (place >> shift);
            match self.counts.get_mut(at) {
                Some(count) if *count < u32::MAX => *count += 1,
                _ => self.add(value, 1),
            }
        }
    }

    /// Adds so many of one value, of which the rest knows already.
    #[inline(never)]
    fn add(&mut self, value: f64, count: u64) {
        let (power, place) = bucket(value);
        if self.numbers[power] == NO_TABLE {
            self.take_table(power);
        }
        let number = usize::from(self.numbers[power]);
        // What has no table counts as zero.
        let (power, place) = match number < self.powers.len() {
            true => (power, place),
            false => (0, 0),
        };
        let place = place >> self.shift;
        let at = usize::from(self.numbers[power]) * self.places() + place;
        let sum = u64::from(self.counts[at]) + count;
        self.counts[at] = sum as u32;
        if sum >> u32::BITS != 0 {
            self.carry(
                self.powers[usize::from(self.numbers[power])],
                place,
                sum >> u32::BITS,
            );
        }
    }

    #[cold]
    fn carry(&mut self, power: u16, place: usize, carry: u64) {
        let place = place as u16;
        let mut carried = self.carried.iter_mut();
        match carried.find(|it| (it.0, it.1) == (power, place)) {
            Some(known) => known.2 += carry,
            None => self.carried.push((power, place, carry)),
        }
    }

    /// Finds a table for this power of two, which has none yet, if there is one for it.
    #[inline(never)]
    fn take_table(&mut self, power: usize) {
        if self.powers.len() <= TABLES {
            self.counts.resize(self.counts.len() + self.places(), 0);
            self.numbers[power] = self.powers.len() as u8;
            self.powers.push(power as u16);
            return;
        }
        let exponent = |power: u16| usize::from(power) % NEGATIVE;
        let powers = self.powers.iter().enumerate().skip(1);
        let least = powers.min_by_key(|(_, power)| exponent(**power));
        let Some((number, &least)) = least else {
            return;
        };
        if power % NEGATIVE <= exponent(least) {
            return;
        }
        // What is so much smaller counts as zero.
        let places = self.places();
        let counts = &mut self.counts[number * places..][..places];
        let mut zeros: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        counts.fill(0);
        let carried = self.carried.iter().filter(|it| it.0 == least);
        zeros += carried.map(|it| it.2 << u32::BITS).sum::<u64>();
        self.carried.retain(|it| it.0 != least);
        self.numbers[usize::from(least)] = NO_TABLE;
        self.numbers[power] = number as u8;
        self.powers[number] = power as u16;
        self.add(0.0, zeros);
    }

    /// How many values a table has at a place.
    fn count_at(&self, number: usize, place: usize) -> u64 {
        let count = u64::from(self.counts[number * self.places() + place]);
        let power = self.powers[number];
        let mut carried = self.carried.iter();
        let carried = carried.find(|it| it.0 == power && usize::from(it.1) == place);
        count + carried.map_or(0, |it| it.2 << u32::BITS)
    }

    /// The buckets in which something was counted, ascending.
    fn found(&self) -> impl Iterator<Item = Found> + Clone + '_ {
        let mut powers: Vec<u16> = self.powers.iter().skip(1).copied().collect();
        let is_negative = |power: u16| usize::from(power) & NEGATIVE != 0;
        // Of two negative numbers the one with the greater exponent is the smaller one.
        let order = |power: u16| match is_negative(power) {
            true => -i32::from(power),
            false => i32::from(power) + 1,
        };
        powers.sort_unstable_by_key(|power| order(*power));
        let positive = powers.partition_point(|power| is_negative(*power));
        let positives = powers.split_off(positive);
        let negatives = powers.into_iter().flat_map(move |power| {
            let places = (0..self.places()).rev();
            places.map(move |place| self.found_at(power, place))
        });
        let zeros = (0..self.places()).map(|place| self.count_at(0, place));
        let zero = Found {
            greatest: 0.0,
            count: zeros.sum(),
        };
        let positives = positives.into_iter().flat_map(move |power| {
            (0..self.places()).map(move |place| self.found_at(power, place))
        });
        let all = negatives.chain([zero]).chain(positives);
        all.filter(|found| found.count > 0)
    }

    fn found_at(&self, power: u16, place: usize) -> Found {
        let (nearest, behind) = magnitudes(usize::from(power), place, self.shift);
        let number = usize::from(self.numbers[usize::from(power)]);
        let count = self.count_at(number, place);
        if usize::from(power) & NEGATIVE != 0 {
            return Found {
                greatest: -nearest,
                count,
            };
        }
        let greatest = match self.is_whole {
            // Below 2048 there is one whole number in a bucket.
            true => (behind - 1.0).max(nearest),
            false => behind.next_down(),
        };
        Found { greatest, count }
    }

    fn merge(&mut self, other: &Self) {
        for found in other.found() {
            self.add(found.greatest, found.count);
        }
        self.total += other.total;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.is_whole &= other.is_whole;
    }
}

/// So many values are kept as they are.
const FEW: usize = 512;
/// So many are collected once there are more.
const COLLECTED: usize = 128;

/// How often values of either sign occurred, fractions among them.
///
/// Least, greatest and mean are exact to the rounding of doubles; quantiles and the borders between buckets to a thousandth of the
/// value. Up to 512 values are kept as they are.
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
    /// Values that are not counted yet, and places to spare.
    places: Vec<f64>,
    taken: usize,
    counted: Option<Box<Counted>>,
}

/// The values from `low` to `high`. Of whole numbers both are included; of fractions `high` is not, unless it is the
/// greatest value or equal to `low`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueBucket {
    /// The smallest value counted here.
    pub low: f64,
    /// The largest value counted here, or the smallest one of the next bucket.
    pub high: f64,
    /// How many there were.
    pub count: u64,
}

impl Distribution {
    /// An empty one. It grows with its values and their range, to half a MiB.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            places: Vec::new(),
            taken: 0,
            counted: None,
        }
    }

    /// An empty one with all the memory that it can need: recording allocates nothing, until a bucket has counted 2^32
    /// values.
    #[must_use]
    pub fn preallocated() -> Self {
        Self {
            places: vec![0.0; COLLECTED],
            taken: 0,
            counted: Some(Box::new(Counted::preallocated())),
        }
    }

    /// Bytes that its counts take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let counted = self.counted.as_ref().map(|it| it.memory_bytes());
        self.places.capacity() * size_of::<f64>() + counted.unwrap_or(0)
    }

    /// Records a value, and says so; what is infinite or no number is not recorded.
    #[inline]
    pub fn record(&mut self, value: f64) -> bool {
        if !value.is_finite() {
            return false;
        }
        match self.places.get_mut(self.taken) {
            Some(place) => *place = value,
            None => self.make_room(value),
        }
        self.taken += 1;
        true
    }

    #[inline(never)]
    pub(crate) fn make_room(&mut self, value: f64) {
        let places = self.places.len();
        if self.counted.is_none() && places < FEW {
            self.places.resize((2 * places).max(4), 0.0);
        } else {
            let counted = self.counted.get_or_insert_with(|| Box::new(Counted::new()));
            counted.count(&self.places[..self.taken]);
            self.taken = 0;
            // There may have been more, or fewer than it is worth to count together.
            if places != COLLECTED {
                self.places = vec![0.0; COLLECTED];
            }
        }
        self.places[self.taken] = value;
    }

    /// As [`Distribution::record`], within the memory of an owner of several.
    #[inline]
    pub(crate) fn record_within(&mut self, value: f64, memory: &mut HistogramMemory) -> bool {
        if !value.is_finite() {
            return false;
        }
        match self.places.get_mut(self.taken) {
            Some(place) => *place = value,
            None => memory.make_room_of(self, value),
        }
        self.taken += 1;
        true
    }

    /// The largest relative error of a quantile.
    #[must_use]
    pub fn error(&self) -> f64 {
        let counted = self.counted.as_ref();
        counted.map_or(0.0, |it| f64::from(1 << it.shift) / PLACES as f64)
    }

    /// Records everything that another one has recorded.
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
        &self.places[..self.taken]
    }

    /// All values, counted.
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

    /// How many values were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.taken as u64 + self.counted.as_ref().map_or(0, |it| it.total)
    }

    /// The smallest value, `None` if there was none.
    #[must_use]
    pub fn min(&self) -> Option<f64> {
        let counted = self.counted.iter().map(|it| it.min);
        let least = self.recent().iter().copied().chain(counted);
        let least = least.fold(f64::INFINITY, f64::min);
        (self.count() > 0).then_some(least)
    }

    /// The largest value, `None` if there was none.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        let counted = self.counted.iter().map(|it| it.max);
        let greatest = self.recent().iter().copied().chain(counted);
        let greatest = greatest.fold(f64::NEG_INFINITY, f64::max);
        (self.count() > 0).then_some(greatest)
    }

    /// The sum of all values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        let counted = self.counted.as_ref().map_or(0.0, |it| it.sum);
        counted + self.recent().iter().sum::<f64>()
    }

    /// The mean, `None` if there was no value.
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

    /// A value that at least this fraction of the values does not exceed: the smallest one of them, or more by at most a
    /// thousandth of it. Never below the minimum nor above the maximum; `None` if there was no value.
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

    /// The distribution in few buckets for people, from the first to the last one with a value. Where all values have one
    /// sign the limits are preferred numbers (ISO 3): twenty to a decade for values within two decades, ten within
    /// four, five beyond. Where they have both, buckets are of equal width.
    #[must_use]
    pub fn buckets(&self) -> Vec<ValueBucket> {
        let (Some(min), Some(max)) = (self.min(), self.max()) else {
            return Vec::new();
        };
        let is_whole = self.is_whole();
        // Those that are not counted yet are known exactly.
        let counted = self.counted.iter().flat_map(|it| it.found());
        let counted = counted.map(|found| (found.greatest, found.count));
        let recent = self.recent().iter().map(|value| (*value, 1));
        let all = || counted.clone().chain(recent.clone());
        // Negative numbers are counted in the mirror.
        let is_mirrored = max <= 0.0 && min < 0.0;
        let sign = if is_mirrored { -1.0 } else { 1.0 };
        let (low, high) = match is_mirrored {
            true => (-max, -min),
            false => (min, max),
        };
        // A border belongs to the values above it: in the mirror to those below.
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
            // The ends are exact; in between a value is known to a thousandth.
            let at = (sign * value).clamp(low, high);
            let index = edges.partition_point(|edge| is_up_to(*edge, at));
            counts[index.clamp(1, edges.len() - 1) - 1] += count;
        }
        // The least and the greatest value lie in the first and the last bucket, whatever they were counted as.
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

/// The preferred numbers of one decade, times 100 (ISO 3, series R20).
const R20: [u32; 20] = [
    100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800,
    900,
];

/// A number of hundredths of a power of ten: the double next to it, so that it is written as short as it is.
fn hundredths(number: u32, decade: i32) -> f64 {
    let number = f64::from(number);
    match decade - 2 {
        power @ ..0 => number / 10_f64.powi(-power),
        power => number * 10_f64.powi(power),
    }
}

/// The decade of a number above zero.
fn decade(value: f64) -> i32 {
    let decade = value.log10().floor() as i32;
    // The logarithm is rounded.
    let is_below = hundredths(100, decade) > value;
    decade - i32::from(is_below)
}

/// Ascending limits for values from `low` to `high`, from zero on. Of the values above zero the least one is given.
fn logarithmic(low: f64, high: f64, least: f64, is_whole: bool) -> Vec<f64> {
    if high == 0.0 {
        return vec![0.0, 1.0];
    }
    // A millionth of the greatest and less is one bucket where there are zeros, too.
    let least = if low > 0.0 {
        low
    } else {
        least.max(high * 1e-6)
    };
    let (first, last) = (decade(least), decade(high));
    let step = match last - first {
        0..=2 => 1,
        3..=4 => 2,
        5..=20 => 4,
        _ => 20,
    };
    let numbers = (first..=last.saturating_add(1)).flat_map(|decade| {
        let numbers = R20.iter().step_by(step);
        numbers.map(move |number| hundredths(*number, decade))
    });
    let numbers = numbers.map(|number| if is_whole { number.floor() } else { number });
    let mut edges: Vec<f64> = Vec::new();
    for number in std::iter::once(0.0).chain(numbers) {
        if edges.last().is_none_or(|last| *last < number) && number.is_finite() {
            edges.push(number);
        }
    }
    edges
}

/// The most buckets of equal width.
const EQUAL: f64 = 40.0;

/// Limits for values from `low` to `high` of equal width: 1, 2 or 5 times a power of ten.
fn linear(low: f64, high: f64, is_whole: bool) -> Vec<f64> {
    let width = high / EQUAL - low / EQUAL;
    let decade = decade(width);
    let widths = [100, 200, 500, 1000].map(|number| hundredths(number, decade));
    let wide = widths.into_iter().find(|wide| *wide >= width);
    let mut width = wide.unwrap_or(width);
    if is_whole {
        width = width.max(1.0);
    }
    let first = (low / width).floor() as i64;
    let last = (high / width).floor() as i64 + 1;
    // Not added up, and by a division where the width is a fraction: the doubles next to the limits.
    let edge = |number: i64| match width < 1.0 {
        true => number as f64 / (1.0 / width).round(),
        false => number as f64 * width,
    };
    (first..=last).map(edge).collect()
}

/// The limits from the last one up to `low` to the first one that is not up to `high`.
fn cut(edges: Vec<f64>, low: f64, high: f64, is_up_to: impl Fn(f64, f64) -> bool) -> Vec<f64> {
    let first = edges.partition_point(|edge| is_up_to(*edge, low));
    let behind = edges.partition_point(|edge| is_up_to(*edge, high));
    let edges = edges.into_iter().take(behind + 1);
    let mut cut: Vec<f64> = edges.skip(first.saturating_sub(1)).collect();
    // There is no preferred number beyond the greatest doubles.
    if cut.last().is_none_or(|last| *last < high) || cut.len() < 2 {
        cut.push(high);
    }
    cut
}

impl Bounded for Distribution {
    fn bound(&mut self, bytes: usize) {
        let places = self.places.capacity() * size_of::<f64>();
        if let Some(counted) = &mut self.counted {
            counted.bound(bytes.saturating_sub(places));
        }
    }

    fn bytes(&self) -> usize {
        self.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{
        any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest, ProptestConfig, Strategy,
    };

    use super::{Distribution, ValueBucket, TABLES};

    fn of(values: &[f64]) -> Distribution {
        let mut distribution = Distribution::new();
        values
            .iter()
            .for_each(|value| assert!(distribution.record(*value)));
        distribution
    }

    fn bucket(low: f64, high: f64, count: u64) -> ValueBucket {
        ValueBucket { low, high, count }
    }

    #[test]
    fn negative_fractions_are_in_the_buckets_between_their_limits() {
        let volts = of(&[-2.5, -2.49, -1.75, -1.5]);
        assert!(!volts.is_whole());
        let buckets = volts.buckets();
        // A limit belongs to the bucket above it.
        assert_eq!(
            buckets,
            [
                bucket(-2.5, -2.24, 2),
                bucket(-2.24, -2.0, 0),
                bucket(-2.0, -1.8, 0),
                bucket(-1.8, -1.6, 1),
                bucket(-1.6, -1.4, 1),
            ]
        );
    }

    #[test]
    fn values_of_both_signs_have_buckets_of_equal_width() {
        let buckets = of(&[-0.31, 0.0, 0.05, 0.69]).buckets();
        assert_eq!(buckets[0], bucket(-0.35, -0.3, 1));
        let seen: Vec<_> = buckets.iter().filter(|it| it.count > 0).collect();
        assert_eq!(
            seen[1..],
            [
                &bucket(0.0, 0.05, 1),
                &bucket(0.05, 0.1, 1),
                &bucket(0.65, 0.7, 1)
            ]
        );
        assert_eq!(buckets.len(), 21);
        let whole = of(&[-5.0, 7.0, 1.0]).buckets();
        assert_eq!(whole.len(), 13);
        assert_eq!(
            (whole[0], whole[12]),
            (bucket(-5.0, -5.0, 1), bucket(7.0, 7.0, 1))
        );
    }

    #[test]
    fn whole_numbers_have_the_limits_that_lengths_have() {
        let values = [0, 1, 4, 4, 7, 1_010, 1_119, 1_120, 1_399, 99_999, 5_000_000];
        for range in [0..5, 5..9, 2..10, 0..11] {
            let values = &values[range];
            let mut lengths = crate::Histogram::new();
            values.iter().for_each(|value| lengths.record(*value));
            let found = of(&values.iter().map(|value| *value as f64).collect::<Vec<_>>());
            assert!(found.is_whole());
            let expected = lengths.buckets().into_iter();
            let expected = expected.map(|it| bucket(it.low as f64, it.high as f64, it.count));
            assert_eq!(found.buckets(), expected.collect::<Vec<_>>(), "{values:?}");
            // And in the mirror.
            let mirrored: Vec<f64> = values.iter().map(|value| 0.0 - *value as f64).collect();
            let mut mirrored = of(&mirrored).buckets();
            mirrored.reverse();
            let back = mirrored
                .iter()
                .map(|it| bucket(0.0 - it.high, 0.0 - it.low, it.count));
            assert_eq!(back.collect::<Vec<_>>(), found.buckets());
        }
    }

    #[test]
    fn small_fractions_have_limits_that_are_written_short() {
        let buckets = of(&[0.001, 0.001_12, 0.001_3]).buckets();
        let limits: Vec<String> = buckets.iter().map(|it| format!("{}", it.low)).collect();
        assert_eq!(limits, ["0.001", "0.00112", "0.00125"]);
        // Zeros are in the first one.
        let buckets = of(&[0.0, 0.25, 0.5]).buckets();
        assert_eq!((buckets[0].low, buckets[0].count), (0.0, 1));
        assert_eq!(of(&[0.0, 0.0]).buckets(), [bucket(0.0, 0.0, 2)]);
        assert_eq!(of(&[]).buckets(), []);
    }

    #[test]
    fn what_is_no_finite_number_is_refused() {
        let mut distribution = Distribution::new();
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!distribution.record(value));
        }
        assert_eq!(
            (
                distribution.count(),
                distribution.min(),
                distribution.quantile(0.5)
            ),
            (0, None, None)
        );
    }

    #[test]
    fn more_powers_than_have_room_are_told_as_zero_from_the_least_on() {
        let mut distribution = Distribution::preallocated();
        let bytes = distribution.memory_bytes();
        // From small to large, so that room has to be made.
        for exponent in -200..=200 {
            for value in [2_f64.powi(exponent), -1.5 * 2_f64.powi(exponent)] {
                (0..300).for_each(|_| assert!(distribution.record(value)));
            }
        }
        assert_eq!(distribution.memory_bytes(), bytes);
        let count = 401 * 2 * 300;
        assert_eq!(distribution.count(), count);
        assert_eq!(
            distribution
                .buckets()
                .iter()
                .map(|it| it.count)
                .sum::<u64>(),
            count
        );
        let ends = (distribution.min(), distribution.max());
        assert_eq!(ends, (Some(-1.5 * 2_f64.powi(200)), Some(2_f64.powi(200))));
        // 64 powers of each sign are told apart.
        let kept = (TABLES / 2) as f64;
        let share = |powers: f64| powers / 802.0;
        let told = distribution.quantile(1.0 - share(kept - 0.5)).unwrap();
        assert!(told > 0.0, "{told}");
        assert_eq!(distribution.quantile(1.0 - share(kept + 1.0)), Some(0.0));
    }

    #[test]
    fn counts_go_beyond_32_bits() {
        let mut distribution = of(&vec![-1.5; 600]);
        for _ in 0..30 {
            let other = distribution.clone();
            distribution.add(&other);
        }
        distribution.record(7.25);
        let count = 600 << 30;
        assert_eq!(distribution.count(), count + 1);
        assert_eq!(
            distribution
                .buckets()
                .iter()
                .map(|it| it.count)
                .sum::<u64>(),
            count + 1
        );
        assert_eq!(distribution.quantile(0.999), Some(-1.5));
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            (-3_000_i32..3_000).prop_map(f64::from),
            -3.0..3.0_f64,
            (-20..10_i32, any::<i32>())
                .prop_map(|(power, number)| f64::from(number) * 2_f64.powi(power)),
            any::<i32>().prop_map(|number| f64::from(number) * 1_048_576.0),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            values in prop::collection::vec(value(), 1..1_500),
            fraction in 0.0..1.0_f64,
            half in any::<bool>(),
        ) {
            let mut found = of(&values);
            if half {
                let (first, second) = values.split_at(values.len() / 2);
                found = of(first);
                found.add(&of(second));
            }
            let mut sorted = values.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            prop_assert_eq!(found.count(), values.len() as u64);
            prop_assert_eq!((found.min(), found.max()), (sorted.first().copied(), sorted.last().copied()));
            for fraction in [fraction, 0.5, 0.99, 1.0] {
                let rank = ((fraction * values.len() as f64).ceil() as usize).max(1);
                let (exact, told) = (sorted[rank - 1], found.quantile(fraction).unwrap());
                let error = told - exact;
                prop_assert!(error >= 0.0 && error <= exact.abs() / 1_000.0, "{} told as {}", exact, told);
            }
            let buckets = found.buckets();
            prop_assert_eq!(buckets.iter().map(|it| it.count).sum::<u64>(), values.len() as u64);
            prop_assert!(buckets[0].count > 0 && buckets[buckets.len() - 1].count > 0, "{:?}", buckets);
            let step = f64::from(u8::from(found.is_whole()));
            prop_assert!(buckets.windows(2).all(|pair| pair[0].high + step == pair[1].low), "{:?}", buckets);
            prop_assert!(buckets[0].low <= sorted[0]);
            prop_assert!(buckets[buckets.len() - 1].high >= sorted[sorted.len() - 1]);
            prop_assert!(buckets.len() <= 190, "{}", buckets.len());
        }
    }
}
