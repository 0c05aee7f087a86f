// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prices that are learned while the program runs.
//!
//! A calibration measures a write in a loop of writes. In a program other work hides a part of its
//! latency, or its cache lines are cold, so its price can be a sixth or the double of that. What a
//! sensor really costs shows where it is switched: its process counts the writes in both states, so
//! two neighbouring intervals, one on and one off, are a pair of stretches of known work ([SMCO,
//! section 5]; `overhear_budget::PairEstimator`). The interval that was off is scaled to the number
//! of writes of the other one.

use overhear_budget::{
    EventPrice, PairEstimator, PricePool, PriceRegime, StretchPair, MAX_COVARIATES,
};

/// Least number of writes of a source in an interval of a pair.
const MIN_WRITES: f64 = 100.0;
/// Share of writes in the other state that an interval may have.
const IMPURITY: f64 = 0.01;
/// Pairs after which a price that decides between "all" and "a share" is known well enough.
const ENOUGH_PAIRS: f64 = 48.0;

/// What one source did between two ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Elements that were written, and writes that were skipped.
    pub(super) written: f64,
    pub(super) skipped: f64,
}

impl Work {
    /// Whether the source was on, but for writes at the moment of a switch.
    fn is_written(self) -> bool {
        self.skipped <= IMPURITY * self.written
    }

    /// Whether it was off, but for these.
    fn is_skipped(self) -> bool {
        self.written <= IMPURITY * self.skipped
    }

    pub(super) fn all(self) -> f64 {
        self.written + self.skipped
    }
}

/// The time between two ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    /// CPU time of the processes in ns.
    pub(super) cpu_ns: f64,
    /// By source; later sources may be missing.
    pub(super) work: Vec<Work>,
}

impl Interval {
    fn of(&self, source: usize) -> Work {
        self.work.get(source).copied().unwrap_or_default()
    }
}

/// Learns the price of a written element of one source, less that of a skipped one.
#[derive(Clone, Debug)]
pub(super) struct LearnedPrice {
    estimator: PairEstimator,
    pool: PricePool,
    price: EventPrice,
    /// Least CPU time per element in an interval: no element costs more.
    bound_ns: f64,
}

impl LearnedPrice {
    /// Begins with a price of a calibration.
    pub(super) fn new(calibrated: EventPrice) -> Self {
        let pool = PricePool::new(calibrated);
        Self {
            estimator: PairEstimator::default(),
            price: pool.price(None, None),
            pool,
            bound_ns: f64::INFINITY,
        }
    }

    pub(super) const fn price(&self) -> EventPrice {
        self.price
    }

    /// The highest price that is possible.
    pub(super) fn highest_ns(&self) -> f64 {
        self.price.as_ns() + 3.0 * self.price.error_ns()
    }

    /// Whether more pairs are needed to know it.
    pub(super) fn is_open(&self) -> bool {
        self.estimator.sums().pairs() < ENOUGH_PAIRS
    }

    /// Learns from an interval that an element costs no more than all its CPU time. True if that
    /// lowers the price.
    pub(super) fn bound(&mut self, source: usize, interval: &Interval) -> bool {
        let written = interval.of(source).written;
        if written >= MIN_WRITES && interval.cpu_ns > 0.0 {
            self.bound_ns = self.bound_ns.min(interval.cpu_ns / written);
        }
        let before = self.price;
        self.price = self.within_bound(before);
        self.price != before
    }

    fn within_bound(&self, price: EventPrice) -> EventPrice {
        let (ns, error_ns) = (price.as_ns(), price.error_ns());
        match ns > self.bound_ns {
            true => {
                EventPrice::from_ns(self.bound_ns, error_ns.min(self.bound_ns)).unwrap_or(price)
            }
            false => price,
        }
    }

    /// Learns from two neighbouring intervals. `prices` are those of all sources, and `hottest` the
    /// ones whose work explains the time. `None` if they are no pair of this source.
    pub(super) fn learn(
        &mut self,
        source: usize,
        intervals: [&Interval; 2],
        prices: &[EventPrice],
        hottest: &[usize],
    ) -> Option<PriceRegime> {
        let is_on = |interval: &Interval| interval.of(source).is_written();
        let is_off = |interval: &Interval| interval.of(source).is_skipped();
        let [one, other] = intervals;
        let (on, off) = match (is_on(one) && is_off(other), is_off(one) && is_on(other)) {
            (true, false) => (one, other),
            (false, true) => (other, one),
            _ => return None,
        };
        let (written, skipped) = (on.of(source).all(), off.of(source).all());
        if written < MIN_WRITES || skipped < MIN_WRITES {
            return None;
        }
        let scale = written / skipped;
        let mut time_ns = on.cpu_ns - scale * off.cpu_ns;
        for (other, price) in prices
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != source)
        {
            let events = on.of(other).written - scale * off.of(other).written;
            time_ns -= price.as_ns() * events;
        }
        let mut passes = [0.0; MAX_COVARIATES];
        let others = hottest.iter().filter(|other| **other != source);
        for (pass, other) in passes.iter_mut().zip(others) {
            *pass = on.of(*other).all() - scale * off.of(*other).all();
        }
        let regime = self.estimator.push(&StretchPair {
            time_ns,
            events: written,
            passes,
        });
        let price = self.pool.price(self.estimator.sums().slope(), None);
        self.price = self.within_bound(price);
        Some(regime)
    }
}

#[cfg(test)]
mod tests {
    use overhear_budget::EventPrice;

    use super::{Interval, LearnedPrice, Work};

    fn interval(cpu_ns: f64, written: f64, skipped: f64) -> Interval {
        Interval {
            cpu_ns,
            work: vec![Work { written, skipped }],
        }
    }

    /// Work of 10 ns per write, and 1.5 ns for an element, although the calibration said 9.
    #[test]
    fn price_comes_from_what_the_program_does() {
        let calibrated = EventPrice::from_ns(9.0, 0.1).unwrap();
        let mut learned = LearnedPrice::new(calibrated);
        assert!(learned.is_open());
        let noise = |round: u32| f64::from(round * 7_919 % 2_001) - 1_000.0;
        for round in 0..200 {
            let on = interval(1e6 * 11.5 + 10.0 * noise(round), 1e6, 0.0);
            let off = interval(8e5 * 10.0 - 10.0 * noise(round + 1), 0.0, 8e5);
            let pair = if round % 2 == 0 {
                [&on, &off]
            } else {
                [&off, &on]
            };
            assert!(learned.learn(0, pair, &[calibrated], &[0]).is_some());
        }
        let price = learned.price();
        assert!((price.as_ns() - 1.5).abs() < 0.1, "{price:?}");
        assert!(!learned.is_open());
    }

    #[test]
    fn no_element_costs_more_than_the_time_between_two() {
        let calibrated = EventPrice::from_ns(90.0, 0.1).unwrap();
        let mut learned = LearnedPrice::new(calibrated);
        assert!(learned.bound(0, &interval(1e6, 1e5, 0.0)));
        assert_eq!(learned.price().as_ns(), 10.0);
        assert!(!learned.bound(0, &interval(1e7, 1e5, 0.0)));
        assert!(!learned.bound(0, &interval(1.0, 2.0, 0.0)));
        assert_eq!(learned.price().as_ns(), 10.0);
    }

    #[test]
    fn intervals_that_are_no_pair_teach_nothing() {
        let calibrated = EventPrice::from_ns(9.0, 0.1).unwrap();
        let mut learned = LearnedPrice::new(calibrated);
        let on = interval(1e6, 1e5, 0.0);
        let mixed = interval(1e6, 5e4, 5e4);
        let idle = interval(1e6, 0.0, 3.0);
        let none = interval(1e6, 0.0, 0.0);
        for pair in [
            [&on, &on],
            [&on, &mixed],
            [&mixed, &idle],
            [&on, &idle],
            [&on, &none],
        ] {
            assert!(
                learned.learn(0, pair, &[calibrated], &[]).is_none(),
                "{pair:?}"
            );
        }
        assert_eq!(learned.price().as_ns(), 9.0);
    }
}
