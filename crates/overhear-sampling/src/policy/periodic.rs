// SPDX-License-Identifier: MIT OR Apache-2.0
//! The periodic policy: one timer for all samplers [EPOS, section III-C].
//!
//! The timer ticks at multiples of the greatest common divisor of all periods, and only at those
//! at which a sampler is due. Two samplers are due at the same tick, or at least one divisor apart:
//! so a divisor below [`MIN_TICK`] is refused. Otherwise wake-ups would come closer together than a
//! sample takes.

use overhear_event::{Nanos, Timestamp};

/// The shortest time between two ticks.
pub const MIN_TICK: Nanos = Nanos::from_us(20);

/// Why periods cannot share a timer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeriodError {
    /// One period is too short.
    #[error(
        "a period of {period} needs {rate} samples per second, and a sampler takes at most {most}; \
         name a longer period"
    )]
    Short {
        /// The period.
        period: Nanos,
        /// Its rate, in 1/s.
        rate: u64,
        /// The greatest rate, in 1/s.
        most: u64,
    },
    /// Two periods have a too small common divisor.
    #[error(
        "the periods {periods} are dissonant: their common timer would need {rate} ticks per \
         second, and it has at most {most}; name periods that are multiples of each other"
    )]
    Dissonant {
        /// All periods.
        periods: String,
        /// The rate that they would need, in 1/s.
        rate: u64,
        /// The greatest rate, in 1/s.
        most: u64,
    },
}

/// The common timer of samplers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    tick: Nanos,
}

impl Timer {
    /// The timer for samplers with these periods; `None` without a period.
    ///
    /// # Errors
    /// [`PeriodError`] if one is too short, or they are dissonant.
    pub fn of(periods: &[Nanos]) -> Result<Option<Self>, PeriodError> {
        let most = rate(MIN_TICK);
        for &period in periods {
            if period < MIN_TICK {
                let rate = rate(period);
                return Err(PeriodError::Short { period, rate, most });
            }
        }
        let divisor = periods
            .iter()
            .fold(0, |all, period| gcd(all, period.as_ns()));
        if divisor == 0 {
            return Ok(None);
        }
        let tick = Nanos::from_ns(divisor);
        if tick < MIN_TICK {
            let periods: Vec<String> = periods.iter().map(Nanos::to_string).collect();
            return Err(PeriodError::Dissonant {
                periods: periods.join(", "),
                rate: rate(tick),
                most,
            });
        }
        Ok(Some(Self { tick }))
    }

    /// The time between two ticks: the greatest common divisor of the periods.
    #[must_use]
    pub const fn tick(self) -> Nanos {
        self.tick
    }
}

/// Ticks per second, rounded up; for a period of zero, the greatest number.
const fn rate(period: Nanos) -> u64 {
    match period.as_ns() {
        0 => u64::MAX,
        ns => 1_000_000_000_u64.div_ceil(ns),
    }
}

const fn gcd(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// A period that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Periods before it that ended without a call of [`PeriodCounter::expire`].
    pub missed: u64,
}

/// Counts the periods of one sampler. The `k`-th period ends at `start + k * period`.
#[derive(Clone, Copy, Debug)]
pub struct PeriodCounter {
    start: Timestamp,
    period: u64,
    // Periods that have ended, as far as they were counted.
    ended: u64,
}

impl PeriodCounter {
    /// The periods from `start` on.
    ///
    /// # Panics
    /// If the period is zero.
    #[must_use]
    pub fn new(start: Timestamp, period: Nanos) -> Self {
        assert!(period > Nanos::ZERO, "a period is more than zero");
        Self {
            start,
            period: period.as_ns(),
            ended: 0,
        }
    }

    /// The end of the current period.
    #[must_use]
    pub const fn due(&self) -> Timestamp {
        let after = (self.ended + 1).saturating_mul(self.period);
        Timestamp::from_monotonic_ns(self.start.as_monotonic_ns().saturating_add(after))
    }

    /// Whether a period has ended at `now`, and how many before it were missed. Each period is
    /// reported or missed once.
    pub fn expire(&mut self, now: Timestamp) -> Option<Expiry> {
        let since = now
            .as_monotonic_ns()
            .checked_sub(self.start.as_monotonic_ns())?;
        let ended = since / self.period;
        let missed = ended.checked_sub(self.ended + 1)?;
        self.ended = ended;
        Some(Expiry { missed })
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::{Expiry, PeriodCounter, Timer, MIN_TICK};

    fn us(periods: &[u64]) -> Vec<Nanos> {
        periods.iter().copied().map(Nanos::from_us).collect()
    }

    #[test]
    fn timer_is_the_common_divisor() {
        let tick = |periods| Timer::of(&us(periods)).map(|timer| timer.map(Timer::tick));
        assert_eq!(tick(&[]), Ok(None));
        assert_eq!(tick(&[1000]), Ok(Some(Nanos::from_us(1000))));
        assert_eq!(tick(&[1000, 1500, 4000]), Ok(Some(Nanos::from_us(500))));
    }

    #[test]
    fn dissonant_periods_are_refused_with_their_rate() {
        let error = Timer::of(&us(&[997, 1009])).unwrap_err().to_string();
        assert_eq!(
            error,
            "the periods 997 us, 1.01 ms are dissonant: their common timer would need 1000000 \
             ticks per second, and it has at most 50000; name periods that are multiples of each \
             other"
        );
        let short = Timer::of(&us(&[10])).unwrap_err().to_string();
        assert!(short.contains("100000 samples per second"), "{short}");
    }

    #[test]
    fn late_call_counts_what_it_missed() {
        let at = Timestamp::from_monotonic_ns;
        let mut counter = PeriodCounter::new(at(1_000), Nanos::from_ns(100));
        assert_eq!(counter.expire(at(900)), None);
        assert_eq!(counter.expire(at(1_099)), None);
        assert_eq!(counter.due(), at(1_100));
        assert_eq!(counter.expire(at(1_100)), Some(Expiry { missed: 0 }));
        assert_eq!(counter.expire(at(1_199)), None);
        assert_eq!(counter.expire(at(1_550)), Some(Expiry { missed: 3 }));
        assert_eq!(counter.due(), at(1_600));
    }

    proptest! {
        #[test]
        fn every_period_is_taken_or_missed(
            period in 1_u64..1_000,
            steps in proptest::collection::vec(0_u64..5_000, 1..200),
        ) {
            let mut counter = PeriodCounter::new(Timestamp::ZERO, Nanos::from_ns(period));
            let (mut now, mut taken, mut missed) = (0, 0, 0);
            for step in steps {
                now += step;
                if let Some(expiry) = counter.expire(Timestamp::from_monotonic_ns(now)) {
                    taken += 1;
                    missed += expiry.missed;
                }
                prop_assert_eq!(taken + missed, now / period);
                prop_assert!(counter.due().as_monotonic_ns() > now);
            }
        }

        #[test]
        fn due_times_are_ticks_apart(one in 1_u64..50, other in 1_u64..50) {
            let periods = [one * 20, other * 20];
            let tick = Timer::of(&us(&periods)).unwrap().unwrap().tick();
            prop_assert!(tick >= MIN_TICK);
            for period in periods {
                prop_assert_eq!(period * 1_000 % tick.as_ns(), 0);
            }
        }
    }
}
