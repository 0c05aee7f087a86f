// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size of a stream. The directory decides it, because only it has both the sensor's rate and
//! the monitors' periods [GRTMon, section 3.4].

use overhear_admission::ArrivalBound;
use overhear_event::{Nanos, Rate};
use overhear_stream::MAX_CAPACITY;

/// The largest monitor period that streams are sized for, unless the configuration says otherwise.
const LARGEST_PERIOD: Nanos = Nanos::from_ms(1_000);
/// Allowance for a monitor's wake-up lateness, tardiness and hold-back.
const WAKEUP_ALLOWANCE: Nanos = Nanos::from_ms(50);
/// Slots for the element that is being written, and for a monitor that reads exactly at the bound.
const SPARE_SLOTS: u64 = 2;
/// Elements of a stream without a declared rate,
const DEFAULT_ELEMENTS: u64 = 64 * 1024;
/// but at most this number of bytes.
const DEFAULT_BYTES: u64 = 4 * 1024 * 1024;
/// A ring smaller than this saves nothing: the header page alone is larger.
const MIN_ELEMENTS: u64 = 64;
/// The n-th sensor without a rate gets the total bytes divided by n and by this number: a hundred
/// sensors get all of the total, ten thousand get twice the total.
const HARMONIC_DIVISOR: u64 = 5;

/// E(t): the largest number of elements of a stream with this rate in a half-open interval of
/// length `t` [GRTMon, equation 2]; `u64::MAX` if it is larger, or the rate is invalid.
#[must_use]
pub fn elements_within(rate: &Rate, t: Nanos) -> u64 {
    match ArrivalBound::from_rate(rate) {
        Ok(stream) => u64::try_from(stream.elements_within(t.into())).unwrap_or(u64::MAX),
        Err(_) => u64::MAX,
    }
}

/// Default number of slots for a stream of this rate and element size: a power of two, and at least
/// `at_least`, which comes from the program.
///
/// With a rate, it suffices for a monitor with a period of a second that wakes late; each of
/// `rings` rings may carry the whole rate. Without a rate, the rings share the default size.
#[must_use]
pub fn suggested_capacity(
    rate: Option<&Rate>,
    stride_bytes: u64,
    rings: u32,
    at_least: u64,
) -> u64 {
    Sizing::default().capacity(rate, stride_bytes, rings, at_least)
}

/// The inputs of the size of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizing {
    /// Monitors with longer periods may miss elements, even of sensors that keep their rate.
    pub(crate) largest_period: Nanos,
    /// Approximate bytes of all sensors without a rate; `None` for no limit.
    pub(crate) unrated_bytes: Option<u64>,
    /// Number of existing sensors.
    pub(crate) sensors: u64,
}

impl Default for Sizing {
    fn default() -> Self {
        Self {
            largest_period: LARGEST_PERIOD,
            unrated_bytes: None,
            sensors: 0,
        }
    }
}

impl Sizing {
    /// As [`suggested_capacity`].
    pub(crate) fn capacity(
        &self,
        rate: Option<&Rate>,
        stride_bytes: u64,
        rings: u32,
        at_least: u64,
    ) -> u64 {
        self.wanted(rate, stride_bytes, rings)
            .max(at_least)
            .min(MAX_CAPACITY)
            .next_power_of_two()
    }

    /// Elements of a queue: a power of two, which may exceed the limit of queues.
    ///
    /// One spare element per writer is added to the elements for the rate and to `at_least`, but
    /// not to the default, which is arbitrary and large.
    pub(crate) fn queue(
        &self,
        rate: Option<&Rate>,
        stride_bytes: u64,
        writers: u32,
        at_least: u64,
    ) -> u64 {
        let wanted = self.wanted(rate, stride_bytes, 1);
        let wanted = match rate {
            Some(_) => wanted.max(at_least),
            None if at_least > 0 => at_least,
            None => wanted.saturating_sub(writers.into()).max(MIN_ELEMENTS),
        };
        let all = wanted.saturating_add(writers.into());
        all.min(MAX_CAPACITY).next_power_of_two()
    }

    /// Bytes of a sensor without a rate.
    fn default_bytes(&self) -> u64 {
        let part = |all| all / HARMONIC_DIVISOR / (self.sensors + 1);
        let share = self.unrated_bytes.map_or(DEFAULT_BYTES, part);
        share.min(DEFAULT_BYTES)
    }

    /// The least number of elements of a ring.
    fn wanted(&self, rate: Option<&Rate>, stride_bytes: u64, rings: u32) -> u64 {
        match rate {
            Some(rate) => {
                let period = self.largest_period;
                let span = period.plus(period).plus(WAKEUP_ALLOWANCE);
                elements_within(rate, span)
                    .saturating_add(SPARE_SLOTS)
                    .max(MIN_ELEMENTS)
            }
            None => {
                let all = stride_bytes.max(8) * u64::from(rings.max(1));
                let fitting = (self.default_bytes() / all).max(MIN_ELEMENTS);
                // Rounded down: the next power of two could double the memory.
                let fitting = 1 << fitting.ilog2();
                DEFAULT_ELEMENTS.min(fitting)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Rate};

    use super::{elements_within, suggested_capacity, Sizing};

    fn rate(period: u64, distance: u64, jitter: u64) -> Rate {
        Rate::new(
            Nanos::from_ns(period),
            Nanos::from_ns(distance),
            Nanos::from_ns(jitter),
        )
        .unwrap()
    }

    #[test]
    fn counts_follow_equation_2() {
        let strict = rate(10, 10, 0);
        for (t, expected) in [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2)] {
            assert_eq!(elements_within(&strict, Nanos::from_ns(t)), expected);
        }
        let bursty = rate(10, 2, 25);
        // A burst runs at distance D until the period takes over.
        for (t, expected) in [(1, 1), (2, 1), (3, 2), (5, 3), (6, 3), (7, 4), (20, 5)] {
            assert_eq!(
                elements_within(&bursty, Nanos::from_ns(t)),
                expected,
                "t = {t}"
            );
        }
        assert_eq!(
            elements_within(&rate(1, 0, 0), Nanos::from_ns(u64::MAX)),
            u64::MAX
        );
    }

    #[test]
    fn sizes_are_powers_of_two_within_reason() {
        assert_eq!(suggested_capacity(None, 16, 1, 0), 65_536);
        assert_eq!(suggested_capacity(None, 4096, 1, 0), 1_024);
        assert_eq!(suggested_capacity(None, 16, 1, 100_000), 131_072);
        assert_eq!(suggested_capacity(None, 16, 16, 0), 16_384);
        assert_eq!(suggested_capacity(None, 4096, 4096, 0), 64);
        // 1 kHz: 2,050 in 2.05 s, two spare.
        assert_eq!(
            suggested_capacity(Some(&rate(1_000_000, 1_000_000, 0)), 16, 1, 0),
            4_096
        );
        assert_eq!(
            suggested_capacity(Some(&rate(1_000_000_000, 0, 0)), 16, 1, 0),
            64
        );
    }

    #[test]
    fn monitors_with_long_periods_need_larger_rings() {
        let second = rate(1_000_000_000, 0, 0);
        let kilohertz = rate(1_000_000, 1_000_000, 0);
        let of = |ms| Sizing {
            largest_period: Nanos::from_ms(ms),
            ..Sizing::default()
        };
        // E(2 T_M + H): 20,050 elements in 20.05 s, two spare.
        assert_eq!(of(10_000).capacity(Some(&kilohertz), 16, 1, 0), 32_768);
        assert_eq!(of(10_000).queue(Some(&kilohertz), 16, 1, 0), 32_768);
        assert_eq!(of(10).capacity(Some(&kilohertz), 16, 1, 0), 128);
        assert_eq!(of(10_000).capacity(Some(&second), 16, 1, 0), 64);
        // Without a rate no period bounds anything.
        assert_eq!(of(10_000).capacity(None, 16, 1, 0), 65_536);
    }

    #[test]
    fn sensors_without_a_rate_share_their_memory() {
        const MIB: u64 = 1 << 20;
        let stride = 32;
        let capacity = |sensors, rate: Option<&Rate>| {
            let sizing = Sizing {
                unrated_bytes: Some(64 * MIB),
                sensors,
                ..Sizing::default()
            };
            sizing.capacity(rate, stride, 1, 0)
        };
        // The first ones have what one alone has.
        assert_eq!(capacity(0, None), 65_536);
        assert_eq!(capacity(5, None), 65_536);
        assert!(capacity(6, None) < 65_536);
        assert_eq!(capacity(1_000_000, None), 64);
        for (sensors, most) in [(10, 64), (100, 64), (1_000, 96), (10_000, 128)] {
            let bytes: u64 = (0..sensors).map(|it| capacity(it, None) * stride).sum();
            assert!(bytes <= most * MIB, "{sensors}: {bytes}");
        }
        // One that has a rate gets what that needs.
        let kilohertz = rate(1_000_000, 1_000_000, 0);
        assert_eq!(capacity(10_000, Some(&kilohertz)), 4_096);
    }

    #[test]
    fn writers_of_a_queue_get_spare_elements() {
        let suggested_queue = |rate: Option<&Rate>, stride, writers, at_least| {
            Sizing::default().queue(rate, stride, writers, at_least)
        };
        // The default has room for them; a requested size gets them on top.
        assert_eq!(suggested_queue(None, 16, 16, 0), 65_536);
        assert_eq!(suggested_queue(None, 4096, 16, 0), 1_024);
        assert_eq!(suggested_queue(None, 4096, 2_000, 0), 4_096);
        assert_eq!(suggested_queue(None, 16, 1, 1_024), 2_048);
        assert_eq!(suggested_queue(None, 16, 24, 1_000), 1_024);
        // 1 kHz: 2,050 in 2.05 s, two spare, and the writers.
        let rate = rate(1_000_000, 1_000_000, 0);
        assert_eq!(suggested_queue(Some(&rate), 16, 100, 0), 4_096);
        assert_eq!(suggested_queue(Some(&rate), 16, 3_000, 0), 8_192);
        assert_eq!(suggested_queue(None, 16, 1, 65_536), 131_072);
    }
}
