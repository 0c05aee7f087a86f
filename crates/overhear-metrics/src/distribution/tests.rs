// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of distributions.

use proptest::prelude::{
    any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest, ProptestConfig, Strategy,
};

use super::counted::MAX_TABLES;
use super::{Distribution, ValueBucket};

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
fn negative_fractions_have_limits_of_one_sign() {
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
fn integers_have_the_limits_of_lengths() {
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
        // The same for negative values.
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
fn limits_of_small_fractions_print_short() {
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
fn infinite_values_and_nan_are_refused() {
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
fn least_powers_count_as_zero_beyond_the_table() {
    let mut distribution = Distribution::preallocated();
    let bytes = distribution.memory_bytes();
    // From small to large, so that the range must grow.
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
    // 64 powers of each sign are separate.
    let kept = (MAX_TABLES / 2) as f64;
    let share = |powers: f64| powers / 802.0;
    let estimate = distribution.quantile(1.0 - share(kept - 0.5)).unwrap();
    assert!(estimate > 0.0, "{estimate}");
    assert_eq!(distribution.quantile(1.0 - share(kept + 1.0)), Some(0.0));
}

#[test]
fn counts_exceed_32_bits() {
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
            let (exact, estimate) = (sorted[rank - 1], found.quantile(fraction).unwrap());
            let error = estimate - exact;
            prop_assert!(error >= 0.0 && error <= exact.abs() / 1_000.0, "{} estimated as {}", exact, estimate);
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
