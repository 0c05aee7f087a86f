// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hybrid policy: samples at points of the execution flow, and periodic ones where there are
//! none.
//!
//! Two rules, which can be combined:
//!
//! - [`Hybrid`]: the sample of a period is left out if a sample at a point is younger than the
//!   period. A sample at a point is never left out for one of a period.
//! - [`RateRule`]: at low rates of points, every point has a sample; at high rates, the period
//!   alone. Between the two rates the rule stays as it is (hysteresis), so that it does not change
//!   back and forth.

use overhear_event::{Nanos, Timestamp};

/// Decides about the samples of periods.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid {
    period: Nanos,
    // The last sample at a point.
    flow: Option<Timestamp>,
}

impl Hybrid {
    /// For periods of this length.
    #[must_use]
    pub const fn new(period: Nanos) -> Self {
        Self { period, flow: None }
    }

    /// A sample was taken at a point.
    pub fn flow_sample(&mut self, now: Timestamp) {
        self.flow = self.flow.max(Some(now));
    }

    /// Whether a period that ends now takes a sample.
    #[must_use]
    pub fn takes_period(&self, now: Timestamp) -> bool {
        self.flow.is_none_or(|flow| now.since(flow) >= self.period)
    }
}

/// Which points have samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HybridMode {
    /// Each point.
    Flow,
    /// None: only periods.
    Periodic,
}

/// Why a rule is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateRuleError {
    /// The window is empty.
    #[error("the window in which points are counted is empty; name a length such as `100ms`")]
    Window,
    /// There is no hysteresis.
    #[error(
        "the rule would change back and forth: it leaves the points at {high} in a window and \
         returns to them at {low}; name a lower number to return"
    )]
    Hysteresis {
        /// Points in a window at which it changes to periods.
        high: u64,
        /// Points in a window at which it changes back.
        low: u64,
    },
}

/// Changes between the samples of points and of periods, by the rate of points.
///
/// Points are counted in windows that follow one another. The rule changes to periods as soon as a
/// window has more than `high` points; it changes back after a window with `low` or fewer.
#[derive(Clone, Copy, Debug)]
pub struct RateRule {
    window: u64,
    high: u64,
    low: u64,
    mode: HybridMode,
    // The number of the window, and its points.
    current: u64,
    points: u64,
    changes: u64,
}

impl RateRule {
    /// The rule for windows of this length.
    ///
    /// # Errors
    /// [`RateRuleError`] if the window is empty, or `low` is not less than `high`.
    pub const fn new(window: Nanos, high: u64, low: u64) -> Result<Self, RateRuleError> {
        if window.as_ns() == 0 {
            return Err(RateRuleError::Window);
        }
        if low >= high {
            return Err(RateRuleError::Hysteresis { high, low });
        }
        Ok(Self {
            window: window.as_ns(),
            high,
            low,
            mode: HybridMode::Flow,
            current: 0,
            points: 0,
            changes: 0,
        })
    }

    /// A point at this time, which does not go back. Returns whether it has a sample.
    pub fn point(&mut self, now: Timestamp) -> bool {
        self.advance(now);
        self.points += 1;
        if self.points > self.high {
            self.change(HybridMode::Periodic);
        }
        self.mode == HybridMode::Flow
    }

    /// The mode at this time, which does not go back.
    pub fn mode(&mut self, now: Timestamp) -> HybridMode {
        self.advance(now);
        self.mode
    }

    /// How often it has changed.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    fn advance(&mut self, now: Timestamp) {
        let window = now.as_monotonic_ns() / self.window;
        if window <= self.current {
            return;
        }
        // A window without points lies between, or the last one had few.
        if self.points <= self.low || window > self.current + 1 {
            self.change(HybridMode::Flow);
        }
        (self.current, self.points) = (window, 0);
    }

    fn change(&mut self, mode: HybridMode) {
        if self.mode != mode {
            self.mode = mode;
            self.changes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{Hybrid, HybridMode, RateRule, RateRuleError};

    const fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    #[test]
    fn rule_needs_hysteresis() {
        let window = Nanos::from_ms(1);
        assert_eq!(
            RateRule::new(Nanos::ZERO, 2, 1).err(),
            Some(RateRuleError::Window)
        );
        let error = RateRule::new(window, 5, 5).unwrap_err();
        assert_eq!(error, RateRuleError::Hysteresis { high: 5, low: 5 });
        assert!(RateRule::new(window, 5, 4).is_ok());
    }

    #[test]
    fn rule_changes_at_high_rates_and_returns_at_low_ones() {
        let mut rule = RateRule::new(Nanos::from_ns(100), 3, 1).unwrap();
        let taken: Vec<bool> = (0..5).map(|point| rule.point(at(point))).collect();
        assert_eq!(taken, [true, true, true, false, false]);
        // Two points are between the rates: it stays.
        assert!(!rule.point(at(100)) && !rule.point(at(150)));
        assert_eq!(rule.mode(at(200)), HybridMode::Periodic);
        // One point is few: the next window has samples at points.
        assert!(!rule.point(at(250)));
        assert!(rule.point(at(300)));
        assert_eq!(rule.changes(), 2);
        // So does a window after an empty one.
        let many = (0..9).filter(|point| rule.point(at(310 + point)));
        assert_eq!(many.count(), 2);
        assert_eq!(rule.mode(at(399)), HybridMode::Periodic);
        assert_eq!(rule.mode(at(550)), HybridMode::Flow);
    }

    proptest! {
        /// Against the definition: the period's sample is left out exactly if one at a point is
        /// younger than the period.
        #[test]
        fn no_period_is_without_a_sample(
            period in 1_u64..100,
            events in proptest::collection::vec((0_u64..60, any::<bool>()), 1..200),
        ) {
            let mut hybrid = Hybrid::new(Nanos::from_ns(period));
            let (mut now, mut points) = (0, Vec::new());
            for (step, is_point) in events {
                now += step;
                if is_point {
                    hybrid.flow_sample(at(now));
                    points.push(now);
                } else {
                    let is_young = points.iter().any(|point| now - point < period);
                    prop_assert_eq!(hybrid.takes_period(at(now)), !is_young);
                }
            }
        }

        /// However points come, the rule changes at most once in a window, apart from its begin.
        #[test]
        fn rule_changes_rarely(
            high in 2_u64..20,
            steps in proptest::collection::vec(0_u64..40, 1..500),
        ) {
            let mut rule = RateRule::new(Nanos::from_ns(100), high, high / 2).unwrap();
            let (mut now, mut window, mut in_window, mut sampled) = (0, 0, 0, 0);
            for step in steps {
                now += step;
                let (before, mode) = (rule.changes(), rule.mode);
                if now / 100 != window {
                    (window, in_window, sampled) = (now / 100, 0, 0);
                }
                let taken = rule.point(at(now));
                in_window += 1;
                sampled += u64::from(taken);
                prop_assert!(sampled <= high, "{} samples in a window", sampled);
                prop_assert!(in_window <= high || !taken);
                prop_assert!(rule.changes() <= before + 2);
                if in_window > 1 && mode == HybridMode::Periodic {
                    prop_assert_eq!(rule.mode, HybridMode::Periodic);
                }
            }
            prop_assert!(rule.changes() <= 2 * (now / 100 + 1));
        }
    }
}
