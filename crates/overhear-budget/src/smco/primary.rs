// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary controller [SMCO, figure 9].

use overhear_event::Nanos;

use crate::Overhead;

/// Moves the local target m_lt of all secondary controllers, by the cumulative error of the whole
/// [SMCO, section 2.3.2].
///
/// Every adjustment interval T: e = m_gt - sum p\[i\] / T, e_c = e_c + e, and m_lt = m_gt / n +
/// K_I e_c. Then the p\[i\] are cleared.
///
/// Readings of the text:
/// - the sum is all that the law uses of the array p, so it is kept as one number;
/// - e is divided by the nominal T, not by the time that really passed;
/// - m_lt and e_c have no bounds: m_lt falls below 0 after a debt and above 1 after a surplus.
///
/// The published gains are K_I = 0.1 for targets up to 70 % and 0.5 above, with T = 0.4 s
/// ([`Self::PUBLISHED_GAIN`], [`Self::PUBLISHED_GAIN_HIGH`]) [SMCO, section 4.5.2]. The sources
/// that use all of m_lt multiply the gain: the loop is stable only while K_I times their number is
/// below 2.
#[derive(Clone, Debug)]
pub struct PrimaryController {
    m_gt: f64,
    n: f64,
    k_i: f64,
    interval: Nanos,
    e_c: f64,
    m_lt: f64,
    /// Sum of the array p in ns.
    p: f64,
}

impl PrimaryController {
    /// K_I for targets up to 70 %.
    pub const PUBLISHED_GAIN: f64 = 0.1;
    /// K_I^H for targets above 70 %.
    pub const PUBLISHED_GAIN_HIGH: f64 = 0.5;
    /// T.
    pub const PUBLISHED_INTERVAL: Nanos = Nanos::from_ms(400);

    /// A controller for `n` sources (at least 1) with the gain K_I and the interval T (at least
    /// 1 ns).
    #[must_use]
    pub fn new(target: Overhead, n: u32, k_i: f64, interval: Nanos) -> Self {
        let (m_gt, n) = (target.monitoring_share(), f64::from(n.max(1)));
        Self {
            m_gt,
            n,
            k_i,
            interval: Nanos::from_ns(interval.as_ns().max(1)),
            e_c: 0.0,
            m_lt: m_gt / n,
            p: 0.0,
        }
    }

    /// A controller with the published gain and interval.
    #[must_use]
    pub fn published(target: Overhead, n: u32) -> Self {
        let k_i = if target.overhead() > 0.7 {
            Self::PUBLISHED_GAIN_HIGH
        } else {
            Self::PUBLISHED_GAIN
        };
        Self::new(target, n, k_i, Self::PUBLISHED_INTERVAL)
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
        let e = self.m_gt - self.p / self.interval.as_ns() as f64;
        self.e_c += e;
        self.m_lt = self.m_gt / self.n + self.k_i * self.e_c;
        self.p = 0.0;
        self.m_lt
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::PrimaryController;
    use crate::Overhead;

    #[test]
    fn local_target_follows_the_sum_of_errors() {
        // m_gt = 0.2
        let target = Overhead::from_percent(25.0).unwrap();
        let mut primary = PrimaryController::new(target, 4, 0.5, Nanos::from_ms(100));
        assert!((primary.local_target() - 0.05).abs() < 1e-12);
        primary.processed(Nanos::from_ms(4));
        primary.processed(Nanos::from_ms(6));
        // e = 0.2 - 0.1, m_lt = 0.05 + 0.5 * 0.1
        assert!((primary.adjust() - 0.1).abs() < 1e-12);
        primary.processed(Nanos::from_ms(40));
        // e = 0.2 - 0.4, e_c = -0.1: m_lt = 0.05 - 0.05
        assert!(primary.adjust().abs() < 1e-12);
        primary.processed(Nanos::from_ms(40));
        assert!(primary.adjust() < 0.0, "as published, without a bound");
    }

    #[test]
    fn published_gain_depends_on_the_target() {
        let gain =
            |percent| PrimaryController::published(Overhead::from_percent(percent).unwrap(), 1).k_i;
        assert_eq!([gain(10.0), gain(70.0), gain(71.0)], [0.1, 0.1, 0.5]);
    }
}
