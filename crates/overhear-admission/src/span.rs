// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lengths of time that may exceed 64 bits.

use core::fmt;

use overhear_event::Nanos;

use crate::Overflow;

/// A length of time in nanoseconds, never negative, in the range of a signed 128-bit integer.
///
/// Sums and multiples of [`Nanos`] need not fit 64 bits: the latency of a monitor with a period of
/// 2^63 ns is 2^64 ns. Results are of this type, so that no bound is ever cut off; who wants
/// [`Nanos`] again converts with `try_from`, which fails if it does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(i128);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest representable length.
    pub const MAX: Self = Self(i128::MAX);

    /// From nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns as i128)
    }

    /// From nanoseconds that may be negative, as subtraction and configuration files yield them;
    /// `None` if they are.
    #[must_use]
    pub const fn from_signed_ns(ns: i128) -> Option<Self> {
        if ns < 0 {
            None
        } else {
            Some(Self(ns))
        }
    }

    /// In nanoseconds, zero or more.
    #[must_use]
    pub const fn as_ns(self) -> i128 {
        self.0
    }

    /// A formula's result, which its author argued to be zero or more.
    pub(crate) fn of(ns: i128) -> Self {
        debug_assert!(ns >= 0, "lengths of time are never negative");
        Self(ns.max(0))
    }
}

impl From<Nanos> for Span {
    fn from(nanos: Nanos) -> Self {
        Self::from_ns(nanos.as_ns())
    }
}

impl TryFrom<Span> for Nanos {
    type Error = Overflow;

    fn try_from(span: Span) -> Result<Self, Overflow> {
        u64::try_from(span.0)
            .map(Self::from_ns)
            .map_err(|_| Overflow)
    }
}

impl fmt::Display for Span {
    /// As [`Nanos`] does, for people; what exceeds 64 bits is printed in whole seconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Nanos::try_from(*self) {
            Ok(nanos) => nanos.fmt(f),
            Err(Overflow) => write!(f, "{} s", self.0 / 1_000_000_000),
        }
    }
}
