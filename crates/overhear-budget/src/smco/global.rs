// SPDX-License-Identifier: MIT OR Apache-2.0
//! The global controller [SMCO, figure 5].

use overhear_event::{Nanos, Timestamp};

use crate::Overhead;

/// What a controller sends to a plant on channel v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `en`: events are monitored.
    Enable,
    /// `di`: events are not monitored.
    Disable,
}

/// Locations of the automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    TopLevel,
    FunctionCall,
    VariableAccess,
}

/// One switch for all sources, by the cumulative error e = m - m_t [SMCO, section 2.3.1].
///
/// Of the whole execution, tau is the time in the top-level location and p the time in the other
/// two, so the observed monitoring percentage is m = p / (tau + p). At each function call,
/// monitoring is disabled if m exceeds m_t, else enabled.
///
/// Readings of the text:
/// - *at the very start* m has no value (tau + p = 0). The call is monitored: the comparison is
///   p > m_t (tau + p), without a division.
/// - *equality*: only "above the UTMP" disables, so m = m_t enables.
/// - *unmonitored calls*: the time in the function-call location is added to p in both cases,
///   because "the time taken in the function-call processing location" is monitoring time.
///
/// What follows from the law: tau grows while the program sleeps or has nothing to observe, and
/// every second of it may be spent later. After 60 s of idleness at a target of 10 %, everything is
/// on until 6 s have been spent.
#[derive(Clone, Debug)]
pub struct GlobalController {
    /// The user-specified target monitoring percentage.
    m_t: f64,
    /// Start of the visit to the current location: the clock k was reset there.
    k: Timestamp,
    tau: Nanos,
    p: Nanos,
    location: Location,
}

impl GlobalController {
    /// A controller in its top-level location from `start` on, with the target received on channel
    /// x.
    #[must_use]
    pub fn new(target: Overhead, start: Timestamp) -> Self {
        Self {
            m_t: target.monitoring_share(),
            k: start,
            tau: Nanos::ZERO,
            p: Nanos::ZERO,
            location: Location::TopLevel,
        }
    }

    /// Leaves the current location: its time goes to tau or p, and k is reset.
    fn leave(&mut self, now: Timestamp, next: Location) {
        let visit = now.since(self.k);
        match self.location {
            Location::TopLevel => self.tau = self.tau.plus(visit),
            Location::FunctionCall | Location::VariableAccess => self.p = self.p.plus(visit),
        }
        (self.k, self.location) = (now, next);
    }

    /// `fc`: a function is called. The answer holds for this call.
    #[must_use]
    pub fn function_call(&mut self, now: Timestamp) -> Command {
        self.leave(now, Location::FunctionCall);
        let [tau, p] = [self.tau, self.p].map(|it| it.as_ns() as f64);
        if p > self.m_t * (tau + p) {
            Command::Disable
        } else {
            Command::Enable
        }
    }

    /// The processing of a function call ends.
    pub fn function_call_end(&mut self, now: Timestamp) {
        self.leave(now, Location::TopLevel);
    }

    /// `ac`: a monitored function accesses a variable.
    pub fn access(&mut self, now: Timestamp) {
        self.leave(now, Location::VariableAccess);
    }

    /// The processing of an access ends.
    pub fn access_end(&mut self, now: Timestamp) {
        self.leave(now, Location::TopLevel);
    }

    /// tau: time in the top-level location.
    #[must_use]
    pub const fn tau(&self) -> Nanos {
        self.tau
    }

    /// p: time in the two processing locations.
    #[must_use]
    pub const fn p(&self) -> Nanos {
        self.p
    }

    /// m = p / (tau + p); `None` before any time has passed.
    #[must_use]
    pub fn monitoring_percentage(&self) -> Option<f64> {
        let [tau, p] = [self.tau, self.p].map(|it| it.as_ns() as f64);
        (tau + p > 0.0).then(|| p / (tau + p))
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::{Command, GlobalController};
    use crate::Overhead;

    #[test]
    fn sign_of_the_cumulative_error_decides() {
        let at = Timestamp::from_monotonic_ns;
        // m_t = 0.25 / 1.25 = 0.2
        let target = Overhead::from_percent(25.0).unwrap();
        let mut controller = GlobalController::new(target, at(0));
        assert_eq!(controller.function_call(at(0)), Command::Enable);
        controller.function_call_end(at(1));
        controller.access(at(2));
        controller.access_end(at(3));
        // tau = 1, p = 2.
        assert_eq!(controller.function_call(at(3)), Command::Disable);
        controller.function_call_end(at(4));
        // tau = 12 and p = 3: m = m_t exactly.
        assert_eq!(controller.function_call(at(15)), Command::Enable);
        assert_eq!(controller.monitoring_percentage(), Some(0.2));
        let [tau, p] = [12, 3].map(Nanos::from_ns);
        assert_eq!((controller.tau(), controller.p()), (tau, p));
    }
}
