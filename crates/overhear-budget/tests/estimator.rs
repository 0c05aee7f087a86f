// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prices from randomised stretches, on simulated functions whose true price is known.
#![allow(missing_docs)]

mod simulator;

use overhear_budget::{
    exploration, Arm, EventPrice, PairEstimator, PairSums, PricePool, PriceRegime, PriceSlope,
    StretchEnd, StretchPair, StretchPlanner, MAX_COVARIATES,
};
use proptest::prelude::{prop_assert, proptest, ProptestConfig};
use simulator::function::Function;
use simulator::Random;

/// Runs stretches; `random` gives the planner's words.
fn pairs(
    function: &mut Function,
    share: f64,
    number: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<StretchPair> {
    let mut planner = StretchPlanner::default();
    let mut end = StretchEnd::default();
    let mut all = Vec::new();
    while all.len() < number {
        let (stretch, pair) = planner.next(&end, share, 1.0, random());
        all.extend(pair);
        end = function.run(stretch.arm, stretch.passes);
    }
    all
}

fn slope(pairs: &[StretchPair]) -> PriceSlope {
    let mut sums = PairSums::default();
    pairs.iter().for_each(|it| sums.push(it));
    sums.slope().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The slope equals the true price within 5 of its own standard errors, and these are small.
    #[test]
    fn slope_is_the_true_price(price in 0.05..3.0, share in 0.02..0.5, seed: u64) {
        let mut function = Function::new(price, |_| 1.0, seed);
        let mut random = Random::new(seed ^ 1);
        let found = slope(&pairs(&mut function, share, 2_000, || random.word()));
        prop_assert!((found.ns - price).abs() < 5.0 * found.error_ns, "{:?} {}", found, price);
        prop_assert!(found.error_ns < 0.02 + 0.05 * price, "{:?} {}", found, price);
    }

    /// Mean share of monitored passes.
    #[test]
    fn share_is_met(share in 0.02..0.95, seed: u64) {
        let mut function = Function::new(0.2, |_| 1.0, seed);
        let mut random = Random::new(seed ^ 1);
        let mut planner = StretchPlanner::default();
        let (mut end, mut passes) = (StretchEnd::default(), [0.0, 0.0]);
        for step in 0..30_000 {
            let (stretch, _) = planner.next(&end, share, 30.0, random.word());
            end = function.run(stretch.arm, stretch.passes);
            // The first stretches are monitored and determine the length of the others.
            if step > 100 {
                passes[usize::from(stretch.arm == Arm::Monitored)] += stretch.passes as f64;
            }
        }
        let met = passes[1] / (passes[0] + passes[1]);
        prop_assert!((met - share).abs() < 0.02 + 0.05 * share, "{} {}", met, share);
    }
}

/// A machine that is slow in every second stretch: the price is unbiased because the order of a
/// pair is random. With a fixed order the slowness looks like cost.
#[test]
fn random_order_keeps_a_changing_machine_out_of_the_price() {
    let speed = |stretch: u64| if stretch % 3 == 2 { 0.8 } else { 1.0 };
    let price = 0.2;
    let mut function = Function::new(price, speed, 3);
    let mut random = Random::new(1);
    // A share of a half: most pairs have no gap between them.
    let found = slope(&pairs(&mut function, 0.45, 8_000, || random.word()));
    assert!((found.ns - price * 1.08).abs() < 0.05, "{found:?}");

    let mut function = Function::new(price, speed, 3);
    // Bit 0 is the random choice; the gaps are of constant length.
    let fixed = slope(&pairs(&mut function, 0.45, 8_000, || 0));
    assert!((fixed.ns - price).abs() > 0.2, "{fixed:?}");
}

/// Calls of another function are noise in the times. With its passes as covariates the estimator
/// explains them.
#[test]
fn covariates_reduce_the_error() {
    let mut function = Function::new(0.2, |_| 1.0, 3);
    let mut random = Random::new(1);
    let with = pairs(&mut function, 0.3, 2_000, || random.word());
    let without: Vec<StretchPair> = with
        .iter()
        .map(|it| StretchPair {
            passes: [0.0; MAX_COVARIATES],
            ..*it
        })
        .collect();
    let [with, without] = [slope(&with), slope(&without)];
    assert!(
        with.error_ns < 0.8 * without.error_ns,
        "{with:?} {without:?}"
    );
}

/// One long pair among many short ones has a tiny residual: without the guard its slope would seem
/// exact.
#[test]
fn single_lever_is_no_price() {
    let pair = |time_ns, events| StretchPair {
        time_ns,
        events,
        passes: [0.0; MAX_COVARIATES],
    };
    let mut sums = PairSums::default();
    for i in 0..100 {
        sums.push(&pair(f64::from(i % 7) - 3.0, 1.0));
    }
    sums.push(&pair(6.6e6, 1e6));
    assert_eq!(sums.slope(), None);
}

#[test]
fn threads_are_merged_by_adding_their_sums() {
    let mut function = Function::new(0.2, |_| 1.0, 3);
    let mut random = Random::new(1);
    let all = pairs(&mut function, 0.3, 1_000, || random.word());
    let (mut a, mut b) = (PairSums::default(), PairSums::default());
    all[..300].iter().for_each(|it| a.push(it));
    all[300..].iter().for_each(|it| b.push(it));
    a.merge(&b);
    let [merged, whole] = [a.slope().unwrap(), slope(&all)];
    assert!((merged.ns - whole.ns).abs() < 1e-9);
    assert_eq!(a.pairs(), 1_000.0);
}

#[test]
fn tripled_price_is_noticed_and_a_constant_one_is_not() {
    let mut random = Random::new(1);
    let mut estimator = PairEstimator::default();
    let mut function = Function::new(0.2, |_| 1.0, 3);
    for pair in pairs(&mut function, 0.3, 20_000, || random.word()) {
        assert_eq!(estimator.push(&pair), PriceRegime::Same);
    }
    let mut function = Function::new(0.6, |_| 1.0, 4);
    let after = pairs(&mut function, 0.3, 2_000, || random.word());
    let changes: Vec<usize> = (0..after.len())
        .filter(|&i| estimator.push(&after[i]) == PriceRegime::Changed)
        .collect();
    assert!(!changes.is_empty() && changes[0] <= 512, "{changes:?}");
    let found = estimator.sums().slope().unwrap();
    assert!((found.ns - 0.6).abs() < 0.05, "{found:?}");
}

#[test]
fn function_without_pairs_has_the_price_of_the_others() {
    let mut pool = PricePool::new(EventPrice::from_ns(0.25, 0.0).unwrap());
    assert_eq!(pool.price(None, None).as_ns(), 0.25);
    let slope = |ns, error_ns| PriceSlope {
        ns,
        error_ns,
        effective_pairs: 1_000.0,
    };
    pool.pool((0..50).map(|_| slope(0.5, 0.01)));
    let pooled = pool.price(None, None).as_ns();
    assert!((pooled - 0.5).abs() < 0.01, "{pooled}");
    // Many pairs outweigh the pool, few do not, and a price book outweighs the pool.
    let [many, few] = [0.005, 5.0].map(|error| pool.price(Some(slope(0.2, error)), None).as_ns());
    assert!(
        (many - 0.2).abs() < 0.001 && (few - pooled).abs() < 0.01,
        "{many} {few}"
    );
    let book = EventPrice::from_ns(0.8, 0.01).unwrap();
    assert_eq!(pool.price(None, Some(book)).as_ns(), 0.8);
    assert!(pool.price(None, Some(book)).error_ns() > 0.079);
    // At least 0.1 times the calibrated price; no price is too high.
    let clipped = [-3.0, 66.0].map(|ns| pool.price(Some(slope(ns, 0.001)), None).as_ns());
    assert!((clipped[0] - 0.025).abs() < 1e-12, "{clipped:?}");
    assert!((clipped[1] - 66.0).abs() < 0.01, "{clipped:?}");
}

#[test]
fn exploration_begins_short_and_grows_with_certainty() {
    let all = [(10, 0.0), (5_000, 0.02), (5_000, 0.005), (5_000, 0.0)];
    assert_eq!(
        all.map(|(pairs, it)| exploration(pairs, it, false)),
        [1.0, 0.7, 4.0, 30.0]
    );
    assert_eq!(exploration(5_000, 0.02, true), 30.0);
}
