// SPDX-License-Identifier: MIT OR Apache-2.0
//! The price of events that nobody counts while they are off.
//!
//! A detached sensor has no pairs of intervals with known work. But all that its events cost is
//! time in the kernel, and the program's own work takes about the same share of time in the kernel
//! whether the sensor is attached or not. So the time in user mode is the measure of work: with r
//! the quotient of time in the kernel and in user mode without events, the events of an interval
//! took S - r U. Both times are counted by the kernel's clock tick, some 4 ms each, so one interval
//! shows little, and all of them together show the mean price.
//!
//! Sensors are detached and attached together more often than not, and their costs cannot be
//! distinguished then. So one factor corrects the calibrated prices of all detached sensors.

/// Time in the kernel with events from which the factor is learned, in ns: some ticks.
const LEAST_NS: f64 = 20e6;
/// Time without events that the share of time in the kernel needs, in ns.
const LEAST_PLAIN_NS: f64 = 60e6;
/// Length of a clock tick in ns, for the error: one of the usual lengths.
const TICK_NS: f64 = 4e6;
/// Weight of the calibration: standard deviation of the logarithm of the factor.
const PRIOR_DEVIATION: f64 = 2.0;
/// Relative error below which the factor is known well enough.
const ENOUGH: f64 = 0.1;
/// The factor is within these limits: a probe that steps over an instruction costs twenty times one
/// that emulates it.
const LIMITS: [f64; 2] = [0.1, 50.0];

/// Time of processes by mode, in ns, as the clock tick counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModeTimes {
    pub(super) user_ns: f64,
    pub(super) system_ns: f64,
}

impl ModeTimes {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            user_ns: (self.user_ns - before.user_ns).max(0.0),
            system_ns: (self.system_ns - before.system_ns).max(0.0),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
    }
}

/// Learns the factor between the calibrated and the real cost of events.
#[derive(Clone, Debug, Default)]
pub(super) struct CostFactor {
    /// Times of intervals without events, and with.
    plain: ModeTimes,
    observed: ModeTimes,
    /// Calibrated cost of the events of the latter in ns.
    calibrated_ns: f64,
}

impl CostFactor {
    /// Adds an interval, with the calibrated cost of its events.
    pub(super) fn push(&mut self, times: ModeTimes, calibrated_ns: f64) {
        if calibrated_ns > 0.0 {
            self.observed.add(times);
            self.calibrated_ns += calibrated_ns;
        } else {
            self.plain.add(times);
        }
    }

    /// The factor, and its relative standard error. 1 while nothing is known.
    pub(super) fn get(&self) -> (f64, f64) {
        let (plain, observed) = (self.plain, self.observed);
        let unknown = (1.0, PRIOR_DEVIATION);
        if !self.has_plain() || plain.user_ns <= 0.0 || self.calibrated_ns <= 0.0 {
            return unknown;
        }
        let own_ns = plain.system_ns / plain.user_ns * observed.user_ns;
        let cost_ns = observed.system_ns - own_ns;
        if observed.system_ns < LEAST_NS {
            return unknown;
        }
        let [low, high] = LIMITS;
        let factor = (cost_ns / self.calibrated_ns).clamp(low, high);
        // Ticks in the kernel, and the part of them that the program's own work is taken to have.
        let ticks = |ns: f64| (ns * TICK_NS).max(0.0);
        let own_error = own_ns * (TICK_NS / plain.system_ns.max(TICK_NS)).sqrt();
        let error_ns = (ticks(observed.system_ns) + own_error * own_error).sqrt();
        let error = error_ns / cost_ns.max(TICK_NS);
        let (known, prior) = (error.powi(-2), PRIOR_DEVIATION.powi(-2));
        let logarithm = factor.ln() * known / (known + prior);
        (logarithm.exp(), (known + prior).powf(-0.5))
    }

    /// Whether the time without events suffices for a first factor.
    pub(super) fn has_plain(&self) -> bool {
        self.plain.user_ns + self.plain.system_ns >= LEAST_PLAIN_NS
    }

    /// Whether more intervals without events are needed to know it.
    pub(super) fn needs_plain(&self) -> bool {
        let ns = |times: ModeTimes| times.user_ns + times.system_ns;
        let (plain, observed) = (ns(self.plain), ns(self.observed));
        self.get().1 > ENOUGH && plain < observed / 3.0
    }

    /// The highest factor that is possible.
    pub(super) fn highest(&self) -> f64 {
        let (factor, error) = self.get();
        (factor * (3.0 * error).exp()).min(LIMITS[1])
    }
}

#[cfg(test)]
mod tests {
    use super::{CostFactor, ModeTimes};

    fn times(user_ms: f64, system_ms: f64) -> ModeTimes {
        ModeTimes {
            user_ns: user_ms * 1e6,
            system_ns: system_ms * 1e6,
        }
    }

    /// A program with a quarter of its time in the kernel, and events that cost ten times as much
    /// as calibrated.
    #[test]
    fn time_in_the_kernel_beyond_the_program_s_own_is_the_cost_of_events() {
        let mut factor = CostFactor::default();
        assert_eq!(factor.get().0, 1.0);
        factor.push(times(8.0, 42.0), 4e6);
        // Without the program's own share nothing is known.
        assert_eq!(factor.get().0, 1.0);
        assert!(factor.needs_plain());
        for _ in 0..100 {
            factor.push(times(9.0, 3.0), 0.0);
            factor.push(times(9.0, 43.0), 4e6);
        }
        let (found, error) = factor.get();
        assert!((found / 10.0 - 1.0).abs() < 2.0 * error, "{found} {error}");
        assert!(error < 0.05 && !factor.needs_plain());
        assert!(factor.highest() > found && factor.highest() < 15.0);
    }

    #[test]
    fn few_ticks_leave_the_calibrated_price() {
        let mut factor = CostFactor::default();
        factor.push(times(80.0, 20.0), 0.0);
        factor.push(times(4.0, 4.0), 1e6);
        assert_eq!(factor.get().0, 1.0);
    }
}
