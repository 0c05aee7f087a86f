// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of values in few bytes: the width of a bucket is a chosen fraction of its values.
//!
//! The layout is that of [`Buckets`](crate::buckets::Buckets) with fewer buckets per power of two.
//! All buckets between the least and the greatest used power are in one array, so that headers of
//! many small arrays take no memory. A bucket of a coarse histogram is the union of buckets of each
//! finer one: counts can be moved from finer to coarser buckets without another error.

/// Finest and coarsest division of a power of two, as powers of two.
const FINEST_BITS: u32 = 9;
const COARSEST_BITS: u32 = 2;

/// Counts of values, to `2^-bits` of the value.
#[derive(Clone, Debug)]
pub(crate) struct CoarseBuckets {
    /// Bits of a value that select the bucket within a power of two.
    bits: u32,
    /// Power of two of the first count.
    first_power: usize,
    /// The counts from `first_power` on, bucket by bucket.
    counts: Vec<u16>,
    /// Buckets whose count has overflowed 16 bits: index counted from power 0, and number of
    /// overflows.
    carried: Vec<(usize, u64)>,
    total: u64,
}

impl CoarseBuckets {
    /// The finest buckets for these counts that take at most `bytes`; the coarsest ones if none are
    /// small enough. `counted` returns values in ascending order with their counts.
    pub(crate) fn fitting<I: Iterator<Item = (u64, u64)>>(
        bytes: usize,
        counted: impl Fn() -> I,
    ) -> Self {
        let mut bits = FINEST_BITS;
        loop {
            let buckets = Self::new(bits, counted());
            if bits == COARSEST_BITS || buckets.memory_bytes() <= bytes {
                return buckets;
            }
            bits -= 1;
        }
    }

    fn new(bits: u32, counted: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut buckets = Self {
            bits,
            first_power: 0,
            counts: Vec::new(),
            carried: Vec::new(),
            total: 0,
        };
        for (value, count) in counted {
            buckets.record_many(value, count);
        }
        buckets
    }

    /// Index of a value's bucket, counted from power 0.
    const fn bucket(&self, value: u64) -> usize {
        let shift = (value | 1 << self.bits).ilog2() - self.bits;
        // The lowest power takes the values below the first one, too.
        let power = shift as usize + (value >> self.bits != 0) as usize;
        let columns = 1 << self.bits;
        power * columns + (value >> shift) as usize % columns
    }

    /// The largest value of a bucket.
    const fn highest(&self, bucket: usize) -> u64 {
        let columns = 1 << self.bits;
        let (power, column) = (bucket / columns, bucket % columns);
        match power.checked_sub(1) {
            None => column as u64,
            Some(shift) => (((columns + column + 1) as u64) << shift) - 1,
        }
    }

    /// Adds `count` to the count of a value.
    pub(crate) fn record_many(&mut self, value: u64, count: u64) {
        let bucket = self.bucket(value);
        self.extend_to(bucket >> self.bits);
        let count_of = &mut self.counts[bucket - (self.first_power << self.bits)];
        let sum = u64::from(*count_of) + (count & u64::from(u16::MAX));
        *count_of = sum as u16;
        let carry = (sum >> u16::BITS) + (count >> u16::BITS);
        if carry > 0 {
            match self.carried.iter_mut().find(|(known, _)| *known == bucket) {
                Some((_, carried)) => *carried += carry,
                None => self.carried.push((bucket, carry)),
            }
        }
        self.total += count;
    }

    /// Makes room for the buckets of a power.
    fn extend_to(&mut self, power: usize) {
        let columns = 1 << self.bits;
        if self.counts.is_empty() {
            self.first_power = power;
        }
        if power < self.first_power {
            let more = (self.first_power - power) * columns;
            let mut counts = vec![0; more + self.counts.len()];
            counts[more..].copy_from_slice(&self.counts);
            (self.counts, self.first_power) = (counts, power);
        }
        let needed = (power - self.first_power + 1) * columns;
        if needed > self.counts.len() {
            self.counts.reserve_exact(needed - self.counts.len());
            self.counts.resize(needed, 0);
        }
    }

    /// Whether there are no coarser buckets.
    pub(crate) const fn is_coarsest(&self) -> bool {
        self.bits == COARSEST_BITS
    }

    /// Number of counted values.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// The largest relative error of a counted value.
    pub(crate) fn error(&self) -> f64 {
        1.0 / f64::from(1_u32 << self.bits)
    }

    /// Bytes of the counts.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u16>()
            + self.carried.capacity() * size_of::<(usize, u64)>()
    }

    /// The largest values of the buckets with a count above zero, ascending, with these counts.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.first_power << self.bits;
        let counts = self.counts.iter().enumerate();
        let counts = counts.map(move |(index, &count)| {
            let bucket = first + index;
            let mut carried = self.carried.iter();
            let carried = carried.find(|(known, _)| *known == bucket);
            let carried = carried.map_or(0, |it| it.1 << u16::BITS);
            (self.highest(bucket), carried + u64::from(count))
        });
        counts.filter(|&(_, count)| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest, Strategy};

    use super::{CoarseBuckets, COARSEST_BITS, FINEST_BITS};

    fn value() -> impl Strategy<Value = u64> {
        (0..48_u32, any::<u64>()).prop_map(|(bits, value)| value >> (63 - bits) & ((1 << 48) - 1))
    }

    proptest! {
        #[test]
        fn value_is_counted_once_in_a_near_bucket(
            mut values in prop::collection::vec(value(), 1..60),
            bits in COARSEST_BITS..=FINEST_BITS,
        ) {
            values.sort_unstable();
            let buckets = CoarseBuckets::new(bits, values.iter().map(|&value| (value, 1)));
            let counted = buckets.counted().flat_map(|(value, count)| vec![value; count as usize]);
            let counted: Vec<u64> = counted.collect();
            prop_assert_eq!(counted.len(), values.len());
            prop_assert_eq!(buckets.total(), values.len() as u64);
            for (&value, &counted) in values.iter().zip(&counted) {
                let error = (counted - value) as f64;
                prop_assert!(error <= value as f64 * buckets.error(), "{value}: {counted}");
            }
        }

        #[test]
        fn coarsening_in_steps_is_coarsening_at_once(
            values in prop::collection::vec(value(), 1..60),
        ) {
            let mut stepwise = CoarseBuckets::new(FINEST_BITS, values.iter().map(|&value| (value, 1)));
            for bits in (COARSEST_BITS..FINEST_BITS).rev() {
                stepwise = CoarseBuckets::new(bits, stepwise.counted());
                let direct = CoarseBuckets::new(bits, values.iter().map(|&value| (value, 1)));
                prop_assert!(stepwise.counted().eq(direct.counted()));
            }
        }
    }

    #[test]
    fn counts_exceed_16_bits() {
        let counts = [(5_000, (7 << 32) - 1), (5_001, 2), (1, 1)];
        let buckets = CoarseBuckets::new(4, counts.into_iter());
        assert_eq!(buckets.total(), (7 << 32) + 2);
        let counted: Vec<_> = buckets.counted().collect();
        assert_eq!(counted, [(1, 1), (5_119, (7 << 32) + 1)]);
    }

    #[test]
    fn finest_buckets_that_fit_are_chosen() {
        let values = || (0..20_u32).map(|power| (1 << power, 1));
        let mut finer = 0.0;
        for bytes in [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10] {
            let buckets = CoarseBuckets::fitting(bytes, values);
            assert!(buckets.memory_bytes() <= bytes);
            assert!(2.0 * buckets.error() <= finer || finer == 0.0);
            finer = buckets.error();
        }
        // There is a coarsest one.
        let buckets = CoarseBuckets::fitting(1, values);
        assert_eq!((buckets.error(), buckets.total()), (0.25, 20));
    }
}
