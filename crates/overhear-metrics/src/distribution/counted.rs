// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of values of either sign, in buckets of a relative width.
//!
//! A bucket holds the numbers that share sign, exponent and the first ten bits of their
//! significand: each power of two is divided into 1024 buckets of equal width, as HdrHistogram does
//! it for whole numbers from 1024 on ([`Buckets`](crate::buckets)). So a bucket is narrower than a
//! thousandth of its values, and its borders are exact doubles. Whole numbers below 2048 have a
//! bucket each. Zero has its own. [`Counted::bound`] makes buckets wider.
//!
//! A power of two gets memory when the first value falls into it. There are at most 128 of them, of
//! both signs together: if more occur, values below 10^-19 of the greatest one are counted as zero.

/// Bits of the significand that select a bucket.
const BITS: u32 = 10;
/// Buckets per power of two.
const COLUMNS: usize = 1 << BITS;
/// Bits of a double below those that select its bucket.
const BELOW: u32 = f64::MANTISSA_DIGITS - 1 - BITS;
/// Combinations of sign and exponent of a double.
const POWERS: usize = 1 << 12;
/// Sign bit of such a combination.
const NEGATIVE: usize = 1 << 11;
/// Largest number of powers of two that have counts, of both signs together.
pub(super) const MAX_TABLES: usize = 128;

/// Counts of values, in buckets.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    /// Indexed by sign and exponent: the index of the table of counts, or [`NO_TABLE`]. Table 0 is
    /// that of zero, and of the values that are counted as zero.
    numbers: Box<[u8; POWERS]>,
    /// The tables, one after the other: a count per bucket.
    counts: Vec<u32>,
    /// Indexed by table: its sign and exponent; that of zero is the first one.
    powers: Vec<u16>,
    /// Buckets whose count has overflowed: sign and exponent, index of the bucket in its power, and
    /// number of overflows.
    carried: Vec<(u16, u16, u64)>,
    pub(super) total: u64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) sum: f64,
    pub(super) is_whole: bool,
    /// Number of times that buckets were made twice as wide: from 0 to [`MAX_SHIFT`].
    shift: u32,
}

/// Largest shift: a bucket is at most a quarter of its values wide.
const MAX_SHIFT: u32 = 8;

/// There is no table.
const NO_TABLE: u8 = u8::MAX;

const _: () = assert!(MAX_TABLES < NO_TABLE as usize);

/// The sign and exponent of a number, and the index of its bucket in that power of two.
#[inline(always)]
const fn bucket(value: f64) -> (usize, usize) {
    let bits = value.to_bits();
    let power = (bits >> (f64::MANTISSA_DIGITS - 1)) as usize;
    (power, (bits >> BELOW) as usize % COLUMNS)
}

/// The magnitudes of a bucket: the smallest, and the border above the greatest.
fn magnitudes(power: usize, column: usize, shift: u32) -> (f64, f64) {
    let first = ((power % NEGATIVE) as u64) << (f64::MANTISSA_DIGITS - 1)
        | (column as u64) << (BELOW + shift);
    let border = f64::from_bits(first + (1 << (BELOW + shift)));
    (f64::from_bits(first), border.min(f64::MAX))
}

/// The values of one bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketValues {
    /// Greatest possible value. Limits that users choose are rarely borders of buckets, and values
    /// are often equal to such limits: counted as the greatest value, they lie above the limit, as
    /// they should.
    pub(super) greatest: f64,
    pub(super) count: u64,
}

/// Whether all values are whole numbers.
pub(super) fn are_whole(values: &[f64]) -> bool {
    // A number of at most half this size is rounded to a whole one when this is added; it stays
    // equal only if it was whole.
    const ROUNDING: f64 = 1.5 * (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64;
    let is_whole = |value: &f64| (value + ROUNDING) - ROUNDING == *value;
    let are_small_and_whole = values.iter().fold(true, |all, value| all & is_whole(value));
    are_small_and_whole || values.iter().all(|value| value.trunc() == *value)
}

impl Counted {
    pub(super) fn new() -> Self {
        let mut numbers = vec![NO_TABLE; POWERS];
        // Zero of either sign; subnormal numbers share its exponent.
        (numbers[0], numbers[NEGATIVE]) = (0, 0);
        let numbers: Box<[u8]> = numbers.into();
        Self {
            numbers: numbers.try_into().expect("it is as long"),
            counts: vec![0; COLUMNS],
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

    /// Number of buckets per power of two.
    #[inline(always)]
    const fn columns(&self) -> usize {
        COLUMNS >> self.shift
    }

    /// Makes buckets twice as wide until the counts take at most this number of bytes. Count,
    /// minimum, maximum and sum stay exact.
    pub(super) fn bound(&mut self, bytes: usize) {
        while self.memory_bytes() > bytes && self.shift < MAX_SHIFT {
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
            for (power, column, carry) in std::mem::take(&mut self.carried) {
                self.carry(power, usize::from(column) / 2, carry);
            }
            for (at, carry) in carries {
                self.carry(self.powers[at / self.columns()], at % self.columns(), carry);
            }
        }
    }

    pub(super) fn preallocated() -> Self {
        let mut counted = Self::new();
        // Touches the pages, so that no page fault happens later.
        counted.counts.resize((1 + MAX_TABLES) * COLUMNS, 0);
        counted.counts.truncate(COLUMNS);
        counted.powers.reserve_exact(MAX_TABLES);
        counted.carried.reserve_exact(MAX_TABLES);
        counted
    }

    /// Width of a bucket relative to its values.
    pub(super) fn error(&self) -> f64 {
        f64::from(1 << self.shift) / COLUMNS as f64
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u32>() + POWERS
    }

    pub(super) fn count(&mut self, values: &[f64]) {
        self.total += values.len() as u64;
        let (mut min, mut max, mut sum) = (self.min, self.max, 0.0);
        for &value in values {
            // No value is NaN: each of these is one instruction.
            min = if value < min { value } else { min };
            max = if value > max { value } else { max };
            sum += value;
        }
        (self.min, self.max) = (min, max);
        self.sum += sum;
        self.is_whole = self.is_whole && are_whole(values);
        let (columns, shift) = (self.columns(), self.shift);
        for &value in values {
            let (power, column) = bucket(value);
            let at = usize::from(self.numbers[power]) * columns + (column >> shift);
            match self.counts.get_mut(at) {
                Some(count) if *count < u32::MAX => *count += 1,
                _ => self.add(value, 1),
            }
        }
    }

    /// Adds to the count of one value; total, minimum, maximum and sum contain it already.
    #[inline(never)]
    fn add(&mut self, value: f64, count: u64) {
        let (power, column) = bucket(value);
        if self.numbers[power] == NO_TABLE {
            self.take_table(power);
        }
        let number = usize::from(self.numbers[power]);
        // A value without a table counts as zero.
        let (power, column) = match number < self.powers.len() {
            true => (power, column),
            false => (0, 0),
        };
        let column = column >> self.shift;
        let at = usize::from(self.numbers[power]) * self.columns() + column;
        let sum = u64::from(self.counts[at]) + count;
        self.counts[at] = sum as u32;
        if sum >> u32::BITS != 0 {
            self.carry(
                self.powers[usize::from(self.numbers[power])],
                column,
                sum >> u32::BITS,
            );
        }
    }

    #[cold]
    fn carry(&mut self, power: u16, column: usize, carry: u64) {
        let column = column as u16;
        let mut carried = self.carried.iter_mut();
        match carried.find(|it| (it.0, it.1) == (power, column)) {
            Some(known) => known.2 += carry,
            None => self.carried.push((power, column, carry)),
        }
    }

    /// Gives this power of two a table, if there is room or a smaller power has one.
    #[inline(never)]
    fn take_table(&mut self, power: usize) {
        if self.powers.len() <= MAX_TABLES {
            self.counts.resize(self.counts.len() + self.columns(), 0);
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
        // The values of the smallest power count as zero from here on.
        let columns = self.columns();
        let counts = &mut self.counts[number * columns..][..columns];
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

    /// The count of a bucket.
    fn count_at(&self, number: usize, column: usize) -> u64 {
        let count = u64::from(self.counts[number * self.columns() + column]);
        let power = self.powers[number];
        let mut carried = self.carried.iter();
        let carried = carried.find(|it| it.0 == power && usize::from(it.1) == column);
        count + carried.map_or(0, |it| it.2 << u32::BITS)
    }

    /// The buckets with a count above zero, ascending.
    pub(super) fn found(&self) -> impl Iterator<Item = BucketValues> + Clone + '_ {
        let mut powers: Vec<u16> = self.powers.iter().skip(1).copied().collect();
        let is_negative = |power: u16| usize::from(power) & NEGATIVE != 0;
        // Of two negative numbers, the one with the greater exponent is smaller.
        let order = |power: u16| match is_negative(power) {
            true => -i32::from(power),
            false => i32::from(power) + 1,
        };
        powers.sort_unstable_by_key(|power| order(*power));
        let positive = powers.partition_point(|power| is_negative(*power));
        let positives = powers.split_off(positive);
        let negatives = powers.into_iter().flat_map(move |power| {
            let columns = (0..self.columns()).rev();
            columns.map(move |column| self.found_at(power, column))
        });
        let zeros = (0..self.columns()).map(|column| self.count_at(0, column));
        let zero = BucketValues {
            greatest: 0.0,
            count: zeros.sum(),
        };
        let positives = positives.into_iter().flat_map(move |power| {
            (0..self.columns()).map(move |column| self.found_at(power, column))
        });
        let all = negatives.chain([zero]).chain(positives);
        all.filter(|found| found.count > 0)
    }

    fn found_at(&self, power: u16, column: usize) -> BucketValues {
        let (nearest, border) = magnitudes(usize::from(power), column, self.shift);
        let number = usize::from(self.numbers[usize::from(power)]);
        let count = self.count_at(number, column);
        if usize::from(power) & NEGATIVE != 0 {
            return BucketValues {
                greatest: -nearest,
                count,
            };
        }
        let greatest = match self.is_whole {
            // Below 2048 a bucket holds one whole number.
            true => (border - 1.0).max(nearest),
            false => border.next_down(),
        };
        BucketValues { greatest, count }
    }

    pub(super) fn merge(&mut self, other: &Self) {
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
