// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prices that are learned while the program runs.
//!
//! A calibration measures a write in a loop of writes. In a program other work hides a part of its
//! latency, or its cache lines are cold, so its price can be a sixth or the double of that. What a
//! sensor really costs shows where it is switched: its process counts the writes in both states, so
//! two neighbouring intervals with different shares of written elements are a pair of stretches of
//! known work ([SMCO, section 5]; `overhear_budget::PairEstimator`).
//!
//! An interval ends after some CPU time, so its number of writes is as uncertain as its time per
//! write. If only one interval of a pair were scaled to the number of writes of the other one, the
//! square of this uncertainty would enter the price: 15 % of noise in intervals of 20 ns per write
//! would lower it by 0.9 ns. So both intervals are scaled to one number in the middle: then the
//! noise of both enters in the same way, with opposite signs.
//!
//! Sensors of one kind have about one price. The [`GroupPrice`] of all of them is learned from
//! their sum. It is the prior of each, and the price of those that are written too rarely to have
//! pairs of their own.

use overhear_budget::{EventPrice, PairEstimator, PriceRegime, StretchPair, MAX_COVARIATES};

/// Least number of writes in an interval of a pair.
const MIN_WRITES: f64 = 100.0;
/// Least difference of the shares of written elements in a pair.
const MIN_CONTRAST: f64 = 0.05;
/// Pairs after which the first look at a price is over.
const ENOUGH_PAIRS: f64 = 48.0;
/// Standard error of a first price as prior, relative to it. A price in a program was found from a
/// sixth to three times the first one, so the first pairs already outweigh it.
const CALIBRATED_SPREAD: f64 = 2.0;
/// Standard error of the price of a group as prior of a sensor, relative to it.
const GROUP_SPREAD: f64 = 0.25;
/// A price is at least this part of the first one: less is an error of measurement, and a sensor
/// without a price would stay on without pairs that could show its cost.
const LEAST_PART: f64 = 0.1;
/// A price may be this multiple of the first one: every cache line of an element may be missing.
const HIGHEST_FIRST: f64 = 10.0;
/// Weight that the bound keeps from interval to interval: it averages over some dozens of them.
const BOUND_DECAY: f64 = 0.98;

/// What one source did between two ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Elements that were written, and writes that were skipped.
    pub(super) written: f64,
    pub(super) skipped: f64,
}

impl Work {
    pub(super) fn all(self) -> f64 {
        self.written + self.skipped
    }
}

/// The time between two ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    /// CPU time of the processes in ns.
    pub(super) cpu_ns: f64,
    /// Whether that time was current at both ends: see [`super::timer_tick`].
    pub(super) is_current: bool,
    /// By source; later sources may be missing.
    pub(super) work: Vec<Work>,
}

impl Interval {
    pub(super) fn of(&self, source: usize) -> Work {
        self.work.get(source).copied().unwrap_or_default()
    }

    fn of_all(&self, sources: &[usize]) -> Work {
        let mut sum = Work::default();
        for &source in sources {
            let work = self.of(source);
            sum.written += work.written;
            sum.skipped += work.skipped;
        }
        sum
    }
}

/// Two neighbouring intervals, and what is known to explain their times.
#[derive(Clone, Debug)]
pub(super) struct Neighbours<'a> {
    intervals: [&'a Interval; 2],
    /// The prices of all sources.
    prices: &'a [EventPrice],
    /// The sources whose work explains the time.
    hottest: &'a [usize],
    /// Cost of all elements of each interval, by these prices.
    costs_ns: [f64; 2],
}

impl<'a> Neighbours<'a> {
    pub(super) fn new(
        intervals: [&'a Interval; 2],
        prices: &'a [EventPrice],
        hottest: &'a [usize],
    ) -> Self {
        let cost_ns = |interval: &Interval| {
            let work = interval.work.iter().zip(prices);
            work.map(|(work, price)| work.written * price.as_ns()).sum()
        };
        Self {
            intervals,
            prices,
            hottest,
            costs_ns: intervals.map(cost_ns),
        }
    }

    /// The difference of both intervals, scaled to one number of writes of these sources, as far as
    /// other sources do not explain it. `None` if it shows nothing about them.
    fn pair(&self, sources: &[usize]) -> Option<StretchPair> {
        let [one, other] = self.intervals;
        if !(one.is_current && other.is_current) {
            return None;
        }
        let [mine, theirs] = [one.of_all(sources), other.of_all(sources)];
        let [m, n] = [mine.all(), theirs.all()];
        if m < MIN_WRITES || n < MIN_WRITES {
            return None;
        }
        if (mine.written / m - theirs.written / n).abs() < MIN_CONTRAST {
            return None;
        }
        // The harmonic mean of both numbers is symmetrical in them.
        let scales = [2.0 * n / (m + n), 2.0 * m / (m + n)];
        let difference = |one: f64, other: f64| scales[0] * one - scales[1] * other;
        let own_ns = |interval: &Interval| -> f64 {
            let cost_ns = |source: &usize| {
                let price = self.prices.get(*source).map_or(0.0, |it| it.as_ns());
                interval.of(*source).written * price
            };
            sources.iter().map(cost_ns).sum()
        };
        let [a, b] = self.costs_ns;
        let time_ns = difference(
            one.cpu_ns - (a - own_ns(one)),
            other.cpu_ns - (b - own_ns(other)),
        );
        let mut passes = [0.0; MAX_COVARIATES];
        let others = self.hottest.iter().filter(|other| !sources.contains(other));
        for (pass, source) in passes.iter_mut().zip(others) {
            *pass = difference(one.of(*source).all(), other.of(*source).all());
        }
        Some(StretchPair {
            time_ns,
            events: difference(mine.written, theirs.written),
            passes,
        })
    }
}

/// The price of all sensors of one kind.
#[derive(Clone, Debug)]
pub(super) struct GroupPrice {
    estimator: PairEstimator,
    calibrated: EventPrice,
}

impl GroupPrice {
    /// Begins with a price of a calibration. It was measured in a loop of its own, so its error is
    /// not that of the measurement.
    pub(super) fn new(calibrated: EventPrice) -> Self {
        let spread = CALIBRATED_SPREAD * calibrated.as_ns();
        let spread = spread.max(calibrated.error_ns());
        Self {
            estimator: PairEstimator::default(),
            calibrated: EventPrice::from_ns(calibrated.as_ns(), spread).unwrap_or(calibrated),
        }
    }

    /// Learns from a pair of intervals. `sources` are its sensors.
    pub(super) fn learn(&mut self, sources: &[usize], neighbours: &Neighbours<'_>) {
        if let Some(pair) = neighbours.pair(sources) {
            let _ = self.estimator.push(&pair);
        }
    }

    pub(super) fn price(&self) -> EventPrice {
        shrunk(&self.estimator, self.calibrated, self.least_ns())
    }

    /// Whether the first look at it goes on.
    pub(super) fn is_new(&self) -> bool {
        self.estimator.sums().pairs() < ENOUGH_PAIRS
    }

    /// Whether there are pairs enough for a price.
    fn is_measured(&self) -> bool {
        self.estimator.sums().slope().is_some()
    }

    fn least_ns(&self) -> f64 {
        LEAST_PART * self.calibrated.as_ns()
    }

    /// What is known about a sensor of the group without pairs of its own.
    fn prior(&self) -> EventPrice {
        let price = self.price();
        let spread = price.error_ns().max(GROUP_SPREAD * price.as_ns());
        EventPrice::from_ns(price.as_ns(), spread).unwrap_or(price)
    }
}

/// The price by pairs and by what is known without them.
fn shrunk(estimator: &PairEstimator, prior: EventPrice, least_ns: f64) -> EventPrice {
    let Some(slope) = estimator.sums().slope() else {
        return prior;
    };
    let price = slope.shrunk_to(prior);
    EventPrice::from_ns(price.as_ns().max(least_ns), price.error_ns()).unwrap_or(price)
}

/// Learns the price of a written element of one source, less that of a skipped one.
#[derive(Clone, Debug)]
pub(super) struct LearnedPrice {
    estimator: PairEstimator,
    price: EventPrice,
    /// CPU time and elements of intervals in which elements were written; older ones fade.
    bound: [f64; 2],
}

impl LearnedPrice {
    /// Begins with the price of the group.
    pub(super) fn new(group: &GroupPrice) -> Self {
        Self {
            estimator: PairEstimator::default(),
            price: group.prior(),
            bound: [0.0; 2],
        }
    }

    pub(super) const fn price(&self) -> EventPrice {
        self.price
    }

    /// The highest price that is possible.
    pub(super) fn highest_ns(&self, group: &GroupPrice) -> f64 {
        match group.is_measured() {
            true => self.price.as_ns() + 3.0 * self.price.error_ns(),
            false => HIGHEST_FIRST * self.price.as_ns(),
        }
    }

    /// Learns from two neighbouring intervals and from the group. True if older pairs had another
    /// price.
    pub(super) fn learn(
        &mut self,
        source: usize,
        neighbours: &Neighbours<'_>,
        group: &GroupPrice,
    ) -> PriceRegime {
        let pair = neighbours.pair(&[source]);
        let regime = pair.map(|pair| self.estimator.push(&pair));
        self.price = shrunk(&self.estimator, group.prior(), group.least_ns());
        self.bound_by(neighbours.intervals[1], source);
        regime.unwrap_or(PriceRegime::Same)
    }

    /// The time between two elements in ns: none costs more.
    pub(super) fn most_ns(&self) -> f64 {
        let [cpu_ns, elements] = self.bound;
        match elements > 0.0 {
            true => cpu_ns / elements,
            false => f64::INFINITY,
        }
    }

    /// Elements cost no more than all CPU time, on average over some intervals: a single interval
    /// may have begun or ended with a late clock.
    fn bound_by(&mut self, interval: &Interval, source: usize) {
        let written = interval.of(source).written;
        if written >= MIN_WRITES && interval.is_current {
            let [cpu_ns, elements] = self.bound.map(|it| BOUND_DECAY * it);
            self.bound = [cpu_ns + interval.cpu_ns, elements + written];
        }
        let most = self.most_ns();
        if self.price.as_ns() > most {
            let error_ns = self.price.error_ns().min(most);
            self.price = EventPrice::from_ns(most, error_ns).unwrap_or(self.price);
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_budget::{EventPrice, PriceRegime};

    use super::{GroupPrice, Interval, LearnedPrice, Neighbours, Work};

    /// A program with sensors of one kind, and a clock that is late at both ends of each interval.
    struct Program {
        /// Time of the work before a write in ns, and the price of an element.
        step_ns: f64,
        price_ns: f64,
        /// Share of all writes that each sensor has.
        rates: Vec<f64>,
        /// The clock is late by up to this many ns.
        late_ns: f64,
        lateness: f64,
        random: u64,
    }

    impl Program {
        fn new(step_ns: f64, price_ns: f64, rates: &[f64]) -> Self {
            Self {
                step_ns,
                price_ns,
                rates: rates.to_vec(),
                late_ns: 0.0,
                lateness: 0.0,
                random: 88_172_645_463_325_252,
            }
        }

        fn draw(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// An interval of 10 ms by the late clock, with each sensor on or off.
        fn interval(&mut self, is_on: impl Fn(usize) -> bool) -> Interval {
            let before = self.lateness;
            self.lateness = self.draw() * self.late_ns;
            let true_ns = 10e6 + self.lateness - before;
            let on: f64 = (0..self.rates.len())
                .filter(|at| is_on(*at))
                .map(|at| self.rates[at])
                .sum();
            let steps = true_ns / (self.step_ns + on * self.price_ns);
            let work = self.rates.iter().enumerate().map(|(at, rate)| {
                let (written, skipped) = match is_on(at) {
                    true => (rate * steps, 0.0),
                    false => (0.0, rate * steps),
                };
                Work { written, skipped }
            });
            Interval {
                cpu_ns: 10e6,
                is_current: true,
                work: work.collect(),
            }
        }

        /// Switches each sensor at random with this share. Returns the group's price, and those of
        /// the sensors.
        fn learn(&mut self, calibrated_ns: f64, ticks: usize, share: f64) -> Vec<EventPrice> {
            let mut group = GroupPrice::new(EventPrice::from_ns(calibrated_ns, 0.1).unwrap());
            let mut learned = vec![LearnedPrice::new(&group); self.rates.len()];
            let all: Vec<usize> = (0..self.rates.len()).collect();
            let mut before = self.interval(|_| false);
            for _ in 0..ticks {
                let on: Vec<bool> = all.iter().map(|_| self.draw() < share).collect();
                let interval = self.interval(|at| on[at]);
                let prices: Vec<EventPrice> = learned.iter().map(LearnedPrice::price).collect();
                let hottest = &all[..all.len().min(8)];
                let neighbours = Neighbours::new([&before, &interval], &prices, hottest);
                group.learn(&all, &neighbours);
                for (at, learned) in learned.iter_mut().enumerate() {
                    let _ = learned.learn(at, &neighbours, &group);
                }
                before = interval;
            }
            let own = learned.iter().map(LearnedPrice::price);
            [group.price()].into_iter().chain(own).collect()
        }
    }

    fn assert_near(found: EventPrice, ns: f64, within: f64) {
        assert!((found.as_ns() - ns).abs() < within, "{found:?}, not {ns}");
    }

    #[test]
    fn price_comes_from_what_the_program_does() {
        for (price_ns, share) in [(1.5, 0.5), (60.0, 0.5), (60.0, 0.1)] {
            let mut program = Program::new(10.0, price_ns, &[1.0]);
            program.late_ns = 1e5;
            let found = program.learn(9.0, 1_000, share)[1];
            assert_near(found, price_ns, 0.05 * price_ns);
        }
    }

    /// The clock of another process may be late by 4 ms at both ends of an interval of 10 ms. That
    /// is noise; it must not become a lower price.
    #[test]
    fn late_clock_is_no_bias() {
        for price_ns in [2.0, 20.0] {
            let mut program = Program::new(20.0, price_ns, &[1.0]);
            program.late_ns = 4e6;
            let found = program.learn(9.0, 20_000, 0.5)[1];
            assert_near(found, price_ns, 0.1 + 0.03 * price_ns);
        }
    }

    /// Most of the sensors have no pairs of their own: their price is that of all.
    #[test]
    fn rare_sensors_have_the_price_of_their_group() {
        let mut rates: Vec<f64> = (0..8).map(|_| 0.1).collect();
        rates.extend((0..392).map(|_| 0.2 / 392.0));
        let mut program = Program::new(300.0, 60.0, &rates);
        program.late_ns = 1e5;
        let found = program.learn(4.0, 1_500, 0.3);
        assert_near(found[0], 60.0, 3.0);
        let cost: f64 = rates
            .iter()
            .zip(&found[1..])
            .map(|(rate, price)| rate * price.as_ns())
            .sum();
        assert!((cost - 60.0).abs() < 3.0, "{cost}");
    }

    #[test]
    fn no_element_costs_more_than_the_time_between_two() {
        let group = GroupPrice::new(EventPrice::from_ns(90.0, 0.1).unwrap());
        let mut learned = LearnedPrice::new(&group);
        let mut program = Program::new(8.0, 2.0, &[1.0]);
        let interval = program.interval(|_| true);
        let mut unknown = interval.clone();
        unknown.is_current = false;
        for interval in [&unknown, &interval] {
            let prices = [learned.price()];
            let neighbours = Neighbours::new([interval, interval], &prices, &[0]);
            let regime = learned.learn(0, &neighbours, &group);
            assert_eq!(regime, PriceRegime::Same);
            let most = if interval.is_current { 10.0 } else { 90.0 };
            assert_near(learned.price(), most, 1e-6);
        }
    }

    #[test]
    fn intervals_that_are_no_pair_teach_nothing() {
        let interval = |cpu_ns, written, skipped, is_current| Interval {
            cpu_ns,
            is_current,
            work: vec![Work { written, skipped }],
        };
        let on = interval(1e6, 1e5, 0.0, true);
        let alike = interval(1e6, 0.98e5, 2e3, true);
        let idle = interval(1e6, 0.0, 3.0, true);
        let none = interval(1e6, 0.0, 0.0, true);
        let late = interval(1e6, 0.0, 1e5, false);
        let off = interval(1e6, 0.0, 1e5, true);
        let prices = [EventPrice::from_ns(9.0, 0.1).unwrap()];
        for other in [&on, &alike, &idle, &none, &late] {
            let neighbours = Neighbours::new([&on, other], &prices, &[0]);
            assert!(neighbours.pair(&[0]).is_none(), "{other:?}");
        }
        let neighbours = Neighbours::new([&on, &off], &prices, &[0]);
        assert!(neighbours.pair(&[0]).is_some());
    }

    /// Before there are pairs a price is little more than a guess.
    #[test]
    fn first_price_may_be_far_too_low() {
        let mut group = GroupPrice::new(EventPrice::from_ns(9.0, 0.1).unwrap());
        let mut learned = LearnedPrice::new(&group);
        assert_eq!(learned.highest_ns(&group), 90.0);
        let mut program = Program::new(10.0, 9.0, &[1.0]);
        for _ in 0..100 {
            let intervals = [program.interval(|_| true), program.interval(|_| false)];
            let prices = [learned.price()];
            let neighbours = Neighbours::new([&intervals[0], &intervals[1]], &prices, &[0]);
            group.learn(&[0], &neighbours);
            let _ = learned.learn(0, &neighbours, &group);
        }
        assert!(learned.highest_ns(&group) < 30.0);
    }
}
