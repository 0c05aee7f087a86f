// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demand: what a source would record per CPU time if it were on all the time.

/// A burst begins where one tick has this many times the events that the mean predicts if the
/// source is always on.
const BURST_FACTOR: f64 = 4.0;
/// Fewer events than these are no burst: their number is chance.
const BURST_EVENTS: f64 = 16.0;

/// Decayed sums of events and units. They age in CPU time of the program, so a program that sleeps
/// wakes up with the demands that it had.
///
/// Demand = events per unit that the source was on x units per CPU time. The quotient of two sums
/// with the same age does not fade while the source is off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    events: f64,
    units_on: f64,
    units_all: f64,
    /// CPU time in ns that the sums hold.
    cpu_ns: f64,
    /// Events per ns of CPU time; `None` until the source was on for some time.
    rate: Option<f64>,
}

/// What happened to a source in one tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemandStep {
    pub(crate) events: f64,
    pub(crate) units_on: f64,
    pub(crate) units_all: f64,
    pub(crate) cpu_ns: f64,
    /// exp(-cpu / tau): what remains of the older sums.
    pub(crate) decay: f64,
    /// The actuator stopped recording at the burst cap: `events` is a lower bound.
    pub(crate) is_capped: bool,
}

impl Demand {
    /// Events per ns of CPU time while the source is on.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    pub(crate) fn update(&mut self, step: DemandStep) {
        self.events = self.events * step.decay + step.events;
        self.units_on = self.units_on * step.decay + step.units_on;
        self.units_all = self.units_all * step.decay + step.units_all;
        self.cpu_ns = self.cpu_ns * step.decay + step.cpu_ns;
        if step.cpu_ns <= 0.0 {
            return;
        }
        // Sums that have faded to nothing hold no information: the last known rate stays.
        if self.units_on > 1e-6 * self.units_all && self.units_on > 0.0 {
            let per_unit = self.events / self.units_on;
            self.rate = Some(per_unit * self.units_all / self.cpu_ns);
        } else if step.events > 0.0 {
            self.rate = Some(self.events / self.cpu_ns);
        }
        // What was recorded is certain. Its extrapolation from few units is not: they may be the
        // expensive ones by chance.
        let seen = step.events / step.cpu_ns;
        let known = self.rate.unwrap_or(0.0);
        if step.events >= BURST_EVENTS && seen > BURST_FACTOR * known {
            self.jump_to(seen);
        }
        // The true rate is unknown, but it is above what was recorded.
        if step.is_capped {
            let recorded = step.events / step.cpu_ns;
            self.jump_to(self.rate.unwrap_or(0.0).max(2.0 * recorded));
        }
    }

    /// Replaces the mean: the past says nothing about a burst.
    fn jump_to(&mut self, rate: f64) {
        self.rate = Some(rate);
        if self.units_all > 0.0 {
            self.events = rate * self.cpu_ns * self.units_on / self.units_all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Demand, DemandStep};

    fn step(events: f64, on: bool) -> DemandStep {
        DemandStep {
            events,
            units_on: if on { 10e6 } else { 0.0 },
            units_all: 10e6,
            cpu_ns: 10e6,
            decay: (-0.04_f64).exp(),
            is_capped: false,
        }
    }

    #[test]
    fn demand_does_not_fade_while_the_source_is_off() {
        let mut demand = Demand::default();
        assert_eq!(demand.rate(), None);
        demand.update(step(1000.0, true));
        for _ in 0..1_000_000 {
            demand.update(step(0.0, false));
        }
        assert!((demand.rate().unwrap() - 1e-4).abs() < 1e-9);
    }

    #[test]
    fn burst_is_known_after_one_tick() {
        let mut demand = Demand::default();
        for _ in 0..100 {
            demand.update(step(10.0, true));
        }
        demand.update(step(10_000.0, true));
        assert!((demand.rate().unwrap() - 1e-3).abs() < 1e-9);
    }

    #[test]
    fn capped_count_doubles_the_demand() {
        let mut demand = Demand::default();
        demand.update(step(8.0, true));
        let capped = DemandStep {
            is_capped: true,
            ..step(10.0, true)
        };
        demand.update(capped);
        assert!((demand.rate().unwrap() - 2e-6).abs() < 1e-9);
    }

    #[test]
    fn few_expensive_units_are_no_burst() {
        let mut demand = Demand::default();
        for _ in 0..100 {
            demand.update(DemandStep {
                units_on: 5e6,
                ..step(5.0, true)
            });
        }
        let before = demand.rate().unwrap();
        // A thousandth of the units, with many events each.
        demand.update(DemandStep {
            units_on: 10e3,
            ..step(30.0, true)
        });
        let after = demand.rate().unwrap();
        assert!(after < 2.0 * before, "{before} {after}");
    }
}
