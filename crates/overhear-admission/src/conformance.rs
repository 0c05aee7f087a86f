// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a sensor keep what it declared? Checked element by element, while it runs.

use core::fmt;

use overhear_event::{Nanos, Timestamp};

use crate::ArrivalBound;

/// What to do about an element that breaks the constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AfterViolation {
    /// Forget it: later elements are judged against the ones that were good. What remains conforms,
    /// and what is refused really did not fit.
    #[default]
    Ignore,
    /// Begin anew with it: later elements owe nothing to what came before.
    Restart,
    /// Count it: a sensor that is too fast stays in debt until it has slowed down enough.
    Keep,
}

/// Which part of the constraint an element broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// It is earlier than the element before.
    Order,
    /// It is closer to the element before than D.
    Distance {
        /// How far it was.
        gap: Nanos,
        /// How far it had to be: D, or (g+1)*D after g lost elements; stops at the largest length.
        least: Nanos,
    },
    /// It is earlier than tau allows, measured against some earlier element and the period T.
    Jitter {
        /// How early it was; stops at the largest length.
        early: Nanos,
        /// tau.
        allowed: Nanos,
    },
}

/// An element that broke a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    /// The element's place in the stream: elements before it since the check began, lost ones
    /// included.
    pub element: u64,
    /// Its time.
    pub at: Timestamp,
    /// What it broke.
    pub broken: Broken,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} at {} {}", self.element, self.at, self.broken)
    }
}

impl Broken {
    /// The distance or the earliness that was found; `None` where there is no length.
    #[must_use]
    pub const fn observed(&self) -> Option<Nanos> {
        match *self {
            Self::Order => None,
            Self::Distance { gap, .. } => Some(gap),
            Self::Jitter { early, .. } => Some(early),
        }
    }

    /// What it had to be: at least D, or at most tau.
    #[must_use]
    pub const fn bound(&self) -> Option<Nanos> {
        match *self {
            Self::Order => None,
            Self::Distance { least, .. } => Some(least),
            Self::Jitter { allowed, .. } => Some(allowed),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Order => write!(f, "is earlier than the one before"),
            Self::Distance { gap, least } => write!(
                f,
                "came {} ns after the one before, but D demands {} ns",
                gap.as_ns(),
                least.as_ns()
            ),
            Self::Jitter { early, allowed } => write!(
                f,
                "came {} ns early against the period T, but tau allows {} ns",
                early.as_ns(),
                allowed.as_ns()
            ),
        }
    }
}

/// Checks the elements of one stream against its constraint: O(1) time and memory for each.
///
/// `c = max(0, c + T - gap)` is how early the last element was, measured against the worst earlier
/// one. An element breaks equation 6 with some earlier element exactly if its gap is below D or c
/// exceeds tau, so the first offender is found exactly.
#[derive(Clone, Copy, Debug)]
pub struct ConformanceCheck {
    s: ArrivalBound,
    after: AfterViolation,
    /// The last element that counts.
    last: Option<Timestamp>,
    /// At least 0. It saturates far above every tau, where it is a violation either way.
    c: i128,
    /// Elements seen or lost so far.
    elements: u64,
    violations: u64,
}

impl ConformanceCheck {
    /// A check against `s`.
    #[must_use]
    pub const fn new(s: ArrivalBound, after: AfterViolation) -> Self {
        Self {
            s,
            after,
            last: None,
            c: 0,
            elements: 0,
            violations: 0,
        }
    }

    /// A check that begins after an element at `last` that was as early as tau allows.
    pub(crate) const fn exhausted(s: ArrivalBound, after: AfterViolation, last: Timestamp) -> Self {
        let mut check = Self::new(s, after);
        check.last = Some(last);
        check.c = s.jitter().as_ns() as i128;
        check
    }

    /// The earliest time at which the next element breaks nothing: after the last by at least D and
    /// `c + T - tau`. [`Timestamp::ZERO`] before the first element, whose time is free.
    #[must_use]
    pub fn earliest(&self) -> Timestamp {
        let Some(last) = self.last else {
            return Timestamp::ZERO;
        };
        let by_period = self
            .c
            .saturating_add(self.s.t())
            .saturating_sub(self.s.tau());
        last.plus(clamped(by_period.max(self.s.d())))
    }

    /// Judges the next element.
    pub fn push(&mut self, at: Timestamp) -> Option<Violation> {
        self.push_after_loss(at, 0)
    }

    /// Judges an element of which `lost` predecessors are known to have existed.
    ///
    /// They enter with (g+1)*T and (g+1)*D. Their own times are unknown, so the test is then
    /// necessary, not sufficient: what it reports did happen, but not everything shows.
    pub fn push_after_loss(&mut self, at: Timestamp, lost: u64) -> Option<Violation> {
        let element = self.elements.saturating_add(lost);
        self.elements = element.saturating_add(1);
        let Some(last) = self.last else {
            self.last = Some(at);
            return None;
        };
        let (now, before) = (at.as_monotonic_ns(), last.as_monotonic_ns());
        let gap = i128::from(now) - i128::from(before);
        let elements = i128::from(lost) + 1;
        // Saturation is far above every gap and every tau, hence on the right side of both tests.
        let least = elements.saturating_mul(self.s.d());
        let expected = elements.saturating_mul(self.s.t());
        let c = self.c.saturating_add(expected).saturating_sub(gap).max(0);
        let broken = if gap < 0 {
            Some(Broken::Order)
        } else if gap < least {
            Some(Broken::Distance {
                gap: clamped(gap),
                least: clamped(least),
            })
        } else if c > self.s.tau() {
            Some(Broken::Jitter {
                early: clamped(c),
                allowed: self.s.jitter(),
            })
        } else {
            None
        };
        match (broken, self.after) {
            (None, _) | (Some(_), AfterViolation::Keep) => {
                self.last = Some(at.max(last));
                self.c = c;
            }
            (Some(_), AfterViolation::Restart) => {
                self.last = Some(at);
                self.c = 0;
            }
            (Some(_), AfterViolation::Ignore) => {}
        }
        self.violations += u64::from(broken.is_some());
        broken.map(|broken| Violation {
            element,
            at,
            broken,
        })
    }

    /// Elements that broke the constraint so far.
    #[must_use]
    pub const fn violations(&self) -> u64 {
        self.violations
    }

    /// The constraint.
    #[must_use]
    pub const fn stream(&self) -> ArrivalBound {
        self.s
    }
}

fn clamped(value: i128) -> Nanos {
    Nanos::from_ns(u64::try_from(value.max(0)).unwrap_or(u64::MAX))
}
