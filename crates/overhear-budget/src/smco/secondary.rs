// SPDX-License-Identifier: MIT OR Apache-2.0
//! The secondary controller [SMCO, figures 7 and 8].

use overhear_event::{Nanos, Timestamp};

/// Switches one source so that each cycle has the local target monitoring percentage m_lt
/// [SMCO, section 2.3.2].
///
/// A cycle i: the source is on for tau_i until an event comes, the event is processed for p_i, and
/// the source is off for the delay d_i. The delay makes m_i = p_i / (p_i + tau_i + d_i) = m_lt:
/// d_i is the least integer not below p_i / m_lt - (tau_i + p_i). Here the integer counts
/// nanoseconds.
///
/// Readings of the text:
/// - the formula requires "the least *positive* integer", but "if plant P throws events at a low
///   rate, then all events are monitored and d_i = 0". A result that is not positive is 0 here.
/// - m_lt of zero or below, which the primary controller can send, has no delay: `None`. The source
///   stays off, and the caller computes it again after the next adjustment.
/// - a delay that has begun keeps its length when m_lt changes.
#[derive(Clone, Debug)]
pub struct SecondaryController {
    m_lt: f64,
    /// When `en` was sent: clock k was reset.
    enabled: Timestamp,
    tau: Nanos,
}

impl SecondaryController {
    /// A controller that sends `en` at `start`.
    #[must_use]
    pub const fn new(m_lt: f64, start: Timestamp) -> Self {
        Self {
            m_lt,
            enabled: start,
            tau: Nanos::ZERO,
        }
    }

    /// Receives m_lt from the primary controller.
    pub fn set_local_target(&mut self, m_lt: f64) {
        self.m_lt = m_lt;
    }

    /// m_lt.
    #[must_use]
    pub const fn local_target(&self) -> f64 {
        self.m_lt
    }

    /// `en` is sent: a cycle begins.
    pub fn enable(&mut self, now: Timestamp) {
        self.enabled = now;
    }

    /// `ac` is received: tau_i ends, and `di` is sent.
    pub fn access(&mut self, now: Timestamp) {
        self.tau = now.since(self.enabled);
    }

    /// The event has been processed for `p_i`, which the caller also gives to the primary
    /// controller. Returns d_i, after which [`Self::enable`] is due.
    #[must_use]
    pub fn access_end(&self, p_i: Nanos) -> Option<Nanos> {
        if self.m_lt <= 0.0 {
            return None;
        }
        let p = p_i.as_ns() as f64;
        let d = (p / self.m_lt - (self.tau.as_ns() as f64 + p)).ceil();
        // A cast of a float saturates; below zero it is 0.
        Some(Nanos::from_ns(d as u64))
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::SecondaryController;

    #[test]
    fn delay_makes_the_cycle_meet_its_target() {
        let at = Timestamp::from_monotonic_ns;
        let mut controller = SecondaryController::new(0.1, at(0));
        controller.access(at(40));
        // 10 / 0.1 - (40 + 10) = 50
        assert_eq!(
            controller.access_end(Nanos::from_ns(10)),
            Some(Nanos::from_ns(50))
        );
        controller.enable(at(100));
        controller.access(at(300));
        assert_eq!(
            controller.access_end(Nanos::from_ns(10)),
            Some(Nanos::ZERO),
            "an event after a long time is not followed by a delay"
        );
        controller.set_local_target(-0.1);
        assert_eq!(controller.access_end(Nanos::from_ns(10)), None);
    }
}
