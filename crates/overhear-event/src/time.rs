// SPDX-License-Identifier: MIT OR Apache-2.0
//! Three kinds of time that must not be mixed up.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A point on `CLOCK_MONOTONIC`, in nanoseconds.
///
/// Holding one proves that a clock conversion has already happened: raw counter values are
/// [`Ticks`]. It does not prove that the conversion was exact; the error is stated by the clock
/// segment that was used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Before every element.
    pub const ZERO: Self = Self(0);
    /// After every element: the watermark of a stream that has ended.
    pub const MAX: Self = Self(u64::MAX);

    /// From nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn from_monotonic_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub const fn as_monotonic_ns(self) -> u64 {
        self.0
    }

    /// The distance from `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time moved later, stopping at [`Timestamp::MAX`].
    #[must_use]
    pub const fn plus(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// This time moved earlier, stopping at [`Timestamp::ZERO`].
    #[must_use]
    pub const fn minus(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Timestamp {
    /// This time as people count it in a run that began at `start`.
    #[must_use]
    pub const fn relative_to(self, start: Self) -> RelativeTime {
        RelativeTime { time: self, start }
    }
}

/// A time, counted from the start of a run: seconds with nanoseconds, negative before the start.
///
/// ```
/// use overhear_event::Timestamp;
///
/// let [start, later] = [2_000_000_000, 3_500_000_001].map(Timestamp::from_monotonic_ns);
/// assert_eq!(later.relative_to(start).to_string(), "1.500000001 s");
/// assert_eq!(start.relative_to(later).to_string(), "-1.500000001 s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeTime {
    time: Timestamp,
    start: Timestamp,
}

impl fmt::Display for RelativeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.time < self.start { "-" } else { "" };
        let distance = Timestamp(self.time.0.abs_diff(self.start.0));
        write!(f, "{sign}{distance} s")
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// A length of time in nanoseconds, never negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// From microseconds, stopping at the largest representable length.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// From milliseconds, stopping at the largest representable length.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// In nanoseconds.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The sum, stopping at the largest representable length.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Nanos {
    /// Three significant digits in the unit that suits the size, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name): (u64, _) = match self.0 {
            0..1_000 => return write!(f, "{} ns", self.0),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        for decimals in (0..=2).rev() {
            let scale = 10_u64.pow(decimals);
            // Rounded; in 128 bits, because the longest length leaves no room.
            let value =
                (u128::from(self.0) * u128::from(scale) + u128::from(unit / 2)) / u128::from(unit);
            if value < 1_000 || decimals == 0 {
                let (whole, rest) = (value / u128::from(scale), value % u128::from(scale));
                return match decimals {
                    0 => write!(f, "{whole} {name}"),
                    _ => write!(
                        f,
                        "{whole}.{rest:0width$} {name}",
                        width = decimals as usize
                    ),
                };
            }
        }
        Ok(())
    }
}

/// A raw reading of the counter a sensor stamps with: unit and epoch depend on [`ClockId`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Ticks(u64);

impl Ticks {
    /// From the value of the counter.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The value of the counter.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }
}

/// The counter that stamps the elements of a stream (`docs/abi/stream-layout.md`, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockId {
    /// `CLOCK_MONOTONIC`, already in nanoseconds.
    Monotonic,
    /// The time stamp counter of x86, read by `rdtsc`; only used where it is invariant.
    X86Tsc,
    /// The virtual counter of ARMv8, `cntvct_el0`.
    ArmCntvct,
}

impl ClockId {
    /// The number that stands for this clock in a stream header.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        match self {
            Self::Monotonic => 1,
            Self::X86Tsc => 2,
            Self::ArmCntvct => 3,
        }
    }

    /// The clock that a stream header names, `None` for a number this version does not know.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Monotonic),
            2 => Some(Self::X86Tsc),
            3 => Some(Self::ArmCntvct),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::{Nanos, Timestamp};

    #[test]
    fn lengths_print_with_three_digits() {
        assert_eq!(Nanos::from_ns(999).to_string(), "999 ns");
        assert_eq!(Nanos::from_ns(1_234).to_string(), "1.23 us");
        assert_eq!(Nanos::from_ns(12_345_678).to_string(), "12.3 ms");
        assert_eq!(Nanos::from_ns(8_069_000_000).to_string(), "8.07 s");
        assert_eq!(Nanos::from_ns(9_999_000).to_string(), "10.0 ms");
        assert_eq!(Nanos::from_ns(99_960).to_string(), "100 us");
        assert_eq!(Nanos::from_ns(u64::MAX).to_string(), "18446744074 s");
        assert_eq!(Nanos::from_ns(1_050_000_000).to_string(), "1.05 s");
        assert_eq!(Nanos::from_ns(123_000_000_000).to_string(), "123 s");
    }

    #[test]
    fn time_saturates_at_both_ends() {
        assert_eq!(Timestamp::ZERO.minus(Nanos::from_ns(1)), Timestamp::ZERO);
        assert_eq!(Timestamp::MAX.plus(Nanos::from_ns(1)), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), Nanos::ZERO);
    }
}
