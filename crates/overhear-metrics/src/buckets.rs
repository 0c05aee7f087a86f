// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of values to three significant digits: the buckets of HdrHistogram.
//!
//! Values below 2048 have a bucket each. Above, each power of two is divided into 1024 buckets of
//! equal width. These are the buckets of the crate `hdrhistogram` with three digits, so that both
//! have the same quantiles (a test compares them). Here, counting takes about ten instructions
//! without a branch that is hard to predict, and only the powers of two with values take memory, a
//! quarter of that crate's: more stays in the cache when many histograms are counted in turns.

/// Bits of a value that select the bucket within a power of two.
const BITS: u32 = 10;
/// Buckets per power of two.
const COLUMNS: usize = 1 << BITS;

/// Counts of one power of two, indexed by bucket.
type Counts = [u16; COLUMNS];

/// Counts of values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    /// Indexed by power of two: values below 1024, then from 1024 on, from 2048 on and so forth.
    powers: Vec<Option<Box<Counts>>>,
    /// Buckets whose count has overflowed 2^16, and the number of overflows.
    carried: Vec<(usize, u64)>,
    total: u64,
}

/// Indices of the power of two and of the bucket in it.
#[inline(always)]
const fn bucket(value: u64) -> (usize, usize) {
    // The lowest power takes the values below the first one, too.
    let shift = (value | 1 << BITS).ilog2() - BITS;
    let power = shift as usize + (value >> BITS != 0) as usize;
    (power, (value >> shift) as usize % COLUMNS)
}

/// Largest value of a bucket.
const fn highest(power: usize, column: usize) -> u64 {
    match power.checked_sub(1) {
        None => column as u64,
        Some(shift) => (((COLUMNS + column + 1) as u64) << shift) - 1,
    }
}

impl Buckets {
    /// With memory for all values up to this one.
    pub(crate) fn up_to(largest: u64) -> Self {
        let powers = bucket(largest).0 + 1;
        Self {
            powers: (0..powers).map(|_| Some(none())).collect(),
            ..Self::default()
        }
    }

    /// Adds `count` to the count of a value.
    pub(crate) fn record_many(&mut self, value: u64, count: u64) {
        let (power, column) = bucket(value);
        let sum = u64::from(self.counts(power)[column]) + (count & u64::from(u16::MAX));
        self.counts(power)[column] = sum as u16;
        let carry = (sum >> u16::BITS) + (count >> u16::BITS);
        if carry > 0 {
            self.carry(power, column, carry);
        }
        self.total += count;
    }

    /// Counts values.
    pub(crate) fn record_all(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        self.total += values.len() as u64;
        for value in values {
            let (power, column) = bucket(value);
            let counts = match self.powers.get_mut(power) {
                Some(Some(counts)) => counts,
                _ => self.counts(power),
            };
            let count = counts[column].wrapping_add(1);
            counts[column] = count;
            if count == 0 {
                self.carry(power, column, 1);
            }
        }
    }

    #[inline(never)]
    fn counts(&mut self, power: usize) -> &mut Counts {
        if self.powers.len() <= power {
            self.powers.resize(power + 1, None);
        }
        self.powers[power].get_or_insert_with(none)
    }

    #[cold]
    fn carry(&mut self, power: usize, column: usize, carry: u64) {
        let bucket = power * COLUMNS + column;
        match self.carried.iter_mut().find(|(known, _)| *known == bucket) {
            Some((_, carried)) => *carried += carry,
            None => self.carried.push((bucket, carry)),
        }
    }

    /// Number of counted values.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of the buckets that have memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.powers.iter().flatten().count() * size_of::<Counts>()
    }

    /// Bytes of the list of buckets whose count has overflowed: zero until billions of values came.
    pub(crate) fn carried_bytes(&self) -> usize {
        self.carried.capacity() * size_of::<(usize, u64)>()
    }

    /// The largest values of the buckets with a count above zero, ascending, with these counts.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let powers = self.powers.iter().enumerate();
        powers.flat_map(move |(power, counts)| {
            let counts = counts.iter().flat_map(|counts| counts.iter());
            let counts = counts.enumerate().map(move |(column, &count)| {
                let carried = self.carried(power * COLUMNS + column) << u16::BITS;
                (highest(power, column), carried + u64::from(count))
            });
            counts.filter(|&(_, count)| count > 0)
        })
    }

    fn carried(&self, bucket: usize) -> u64 {
        let mut carried = self.carried.iter();
        carried
            .find(|(known, _)| *known == bucket)
            .map_or(0, |it| it.1)
    }
}

/// The first of these values that at least this fraction of all values does not exceed. They
/// ascend, and their counts sum up to `total`.
pub(crate) fn quantile(
    mut counted: impl Iterator<Item = (u64, u64)>,
    total: u64,
    fraction: f64,
) -> u64 {
    let rank = (fraction.clamp(0.0, 1.0) * total as f64).ceil() as u64;
    let mut up_to = 0;
    let found = counted.find(|&(_, count)| {
        up_to += count;
        up_to >= rank.max(1)
    });
    found.map_or(0, |(value, _)| value)
}

fn none() -> Box<Counts> {
    // Zeroed pages come from the allocator as they are.
    let counts: Box<[u16]> = vec![0; COLUMNS].into();
    counts.try_into().expect("it is as long")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{
        any, prop, prop_assert_eq, prop_oneof, proptest, ProptestConfig, Strategy,
    };

    use super::{quantile, Buckets};

    fn value() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..4_096_u64,
            (0..48_u32, any::<u64>())
                .prop_map(|(bits, value)| value >> (63 - bits) & ((1 << 48) - 1)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn they_tell_what_hdrhistogram_tells(
            values in prop::collection::vec((value(), 1..4_u64), 1..200),
            fraction in 0.0001..1.0_f64,
        ) {
            let mut library = hdrhistogram::Histogram::<u64>::new(3).unwrap();
            library.auto(true);
            let (mut buckets, mut whole) = (Buckets::default(), Buckets::up_to(1 << 48));
            for &(value, count) in &values {
                library.record_n(value, count).unwrap();
                buckets.record_all(vec![value; count as usize].into_iter());
                whole.record_many(value, count);
            }
            let bytes = whole.memory_bytes();
            for buckets in [&buckets, &whole] {
                prop_assert_eq!(buckets.total(), library.len());
                for fraction in [fraction, 0.5, 0.99, 1.0] {
                    let found = quantile(buckets.counted(), buckets.total(), fraction);
                    prop_assert_eq!(found, library.value_at_quantile(fraction));
                }
                let recorded = library.iter_recorded();
                let recorded = recorded.map(|it| (it.value_iterated_to(), it.count_at_value()));
                prop_assert_eq!(buckets.counted().collect::<Vec<_>>(), recorded.collect::<Vec<_>>());
            }
            prop_assert_eq!(whole.memory_bytes(), bytes);
        }
    }

    #[test]
    fn counts_exceed_16_bits() {
        let mut buckets = Buckets::default();
        buckets.record_many(5_000, (3 << 32) - 1);
        buckets.record_all([5_000, 5_001, 70_000].into_iter());
        let most = (3 << 32) + 2;
        assert_eq!(buckets.total(), most);
        let counted: Vec<_> = buckets.counted().map(|(_, count)| count).collect();
        assert_eq!(counted, [most - 1, 1]);
        assert_eq!(quantile(buckets.counted(), buckets.total(), 0.999), 5_003);
    }
}
