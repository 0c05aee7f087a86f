// SPDX-License-Identifier: MIT OR Apache-2.0
//! The alternate primary controller [SMCO, section 4.5.3].

use overhear_event::Nanos;

use crate::Overhead;

/// Moves the local target m_lt of all secondary controllers by a quotient [SMCO, section 4.5.3].
///
/// Every adjustment interval T: e_f = m_gt / m, where m is the observed monitoring percentage of
/// the entire run so far, and m_lt = m_lt e_f. T is its only parameter. The authors no longer use
/// it: with a short T it was unstable.
///
/// Readings of the text:
/// - m_lt begins as that of [`PrimaryController`](super::PrimaryController), with m_gt / n;
/// - the entire run so far is the number of adjustments times the nominal T;
/// - *without any monitoring* m is 0, and e_f has no value: m_lt stays as it is;
/// - m_lt has no bound, but stays a number: at most the largest one.
///
/// What follows from the law: m changes ever more slowly in a long run, and m_lt is multiplied by
/// the same error in each interval until m has changed. So m_lt grows by orders of magnitude
/// before a surplus is spent, and falls as far after it.
#[derive(Clone, Debug)]
pub struct AdHocController {
    m_gt: f64,
    interval: Nanos,
    m_lt: f64,
    /// Monitoring time of the run in ns.
    p: f64,
    adjustments: f64,
}

impl AdHocController {
    /// The T with the best results of the authors.
    pub const BEST_INTERVAL: Nanos = Nanos::from_ms(10_000);

    /// A controller for `n` sources (at least 1) with the interval T (at least 1 ns).
    #[must_use]
    pub fn new(target: Overhead, n: u32, interval: Nanos) -> Self {
        let m_gt = target.monitoring_share();
        Self {
            m_gt,
            interval: Nanos::from_ns(interval.as_ns().max(1)),
            m_lt: m_gt / f64::from(n.max(1)),
            p: 0.0,
            adjustments: 0.0,
        }
    }

    /// T: [`Self::adjust`] is due this often.
    #[must_use]
    pub const fn interval(&self) -> Nanos {
        self.interval
    }

    /// m_lt, for all secondary controllers.
    #[must_use]
    pub const fn local_target(&self) -> f64 {
        self.m_lt
    }

    /// Channel u: a secondary controller has processed an event for `p_i`.
    pub fn processed(&mut self, p_i: Nanos) {
        self.p += p_i.as_ns() as f64;
    }

    /// T has passed: returns the new m_lt.
    #[must_use]
    pub fn adjust(&mut self) -> f64 {
        self.adjustments += 1.0;
        let m = self.p / (self.adjustments * self.interval.as_ns() as f64);
        if m > 0.0 {
            self.m_lt = (self.m_lt * (self.m_gt / m)).min(f64::MAX);
        }
        self.m_lt
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::AdHocController;
    use crate::Overhead;

    /// m_gt = 0.2, four sources, T = 100 ms.
    fn controller() -> AdHocController {
        let target = Overhead::from_percent(25.0).unwrap();
        AdHocController::new(target, 4, Nanos::from_ms(100))
    }

    #[test]
    fn quotient_of_the_entire_run_multiplies_the_local_target() {
        let mut controller = controller();
        assert!((controller.local_target() - 0.05).abs() < 1e-12);
        controller.processed(Nanos::from_ms(4));
        controller.processed(Nanos::from_ms(6));
        // m = 10 / 100, e_f = 2
        assert!((controller.adjust() - 0.1).abs() < 1e-12);
        controller.processed(Nanos::from_ms(70));
        // m = 80 / 200, e_f = 0.5: the first interval counts as well.
        assert!((controller.adjust() - 0.05).abs() < 1e-12);
        // m = 80 / 300 and 80 / 400: nothing is monitored, and the old debt still lowers it.
        assert!((controller.adjust() - 0.0375).abs() < 1e-12);
        assert!((controller.adjust() - 0.0375).abs() < 1e-12);
    }

    #[test]
    fn local_target_stays_a_number() {
        let mut controller = controller();
        assert!((controller.adjust() - 0.05).abs() < 1e-12, "no error yet");
        controller.processed(Nanos::from_ns(1));
        let most = (0..200).map(|_| controller.adjust()).fold(0.0, f64::max);
        assert_eq!(most, f64::MAX);
        controller.processed(Nanos::from_ms(1_000_000));
        assert!(controller.adjust() < f64::MAX);
    }
}
