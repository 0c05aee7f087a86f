// SPDX-License-Identifier: MIT OR Apache-2.0
//! The timer interrupt of the kernel, at which CPU times of other processes become current.
//!
//! The CPU clock of another process advances where the kernel accounts for its threads: when they
//! leave a CPU, and at each timer interrupt, 100 to 1000 times per second. Between two interrupts
//! the clock of a running thread is late by up to one period, 4 ms at 250 Hz: two fifths of an
//! interval of 10 ms. Just after an interrupt it is current.
//!
//! The same interrupt advances the coarse clocks. They are late by a constant after each interrupt,
//! and by a period more before the next one, so the least lateness so far belongs to the interrupt.

use std::time::Duration;

use rustix::time::{clock_getres, clock_gettime, ClockId, Timespec};

/// Periods that no timer interrupt has, or that no pause should be rounded to.
const PERIODS_NS: std::ops::RangeInclusive<u64> = 500_000..=20_000_000;
/// Time after an interrupt until all CPUs have handled theirs.
const SETTLED_NS: u64 = 100_000;

/// Predicts the timer interrupts of this machine.
#[derive(Debug)]
pub(super) struct TimerTick {
    /// Time between two interrupts; `None` if the coarse clock does not show it.
    period_ns: Option<u64>,
    /// Least lateness of the coarse clock so far.
    least_ns: u64,
}

impl TimerTick {
    /// Of this machine.
    pub(super) fn new() -> Self {
        Self::with_period(as_ns(clock_getres(ClockId::MonotonicCoarse)))
    }

    fn with_period(period_ns: u64) -> Self {
        Self {
            period_ns: Some(period_ns).filter(|it| PERIODS_NS.contains(it)),
            least_ns: u64::MAX,
        }
    }

    /// Reads both clocks. Returns the lateness of the coarse clock.
    pub(super) fn lateness_ns() -> u64 {
        let coarse = as_ns(clock_gettime(ClockId::MonotonicCoarse));
        as_ns(clock_gettime(ClockId::Monotonic)).saturating_sub(coarse)
    }

    /// Whether CPU times are current to about a quarter of a period at this lateness. True if
    /// nothing is known about interrupts.
    pub(super) fn is_fresh(&mut self, lateness_ns: u64) -> bool {
        self.age_ns(lateness_ns)
            .is_none_or(|(age, period)| age <= period / 4)
    }

    /// The longest time that ends after an interrupt and is at most `pause`. `pause` itself if it
    /// ends before the next one.
    pub(super) fn aligned(&mut self, pause: Duration, lateness_ns: u64) -> Duration {
        let Some((age, period)) = self.age_ns(lateness_ns) else {
            return pause;
        };
        let first = period - age + SETTLED_NS;
        let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        match pause_ns.checked_sub(first) {
            Some(rest) => Duration::from_nanos(first + rest / period * period),
            None => pause,
        }
    }

    /// Time since the last interrupt, and between two.
    fn age_ns(&mut self, lateness_ns: u64) -> Option<(u64, u64)> {
        let period = self.period_ns?;
        self.least_ns = self.least_ns.min(lateness_ns);
        // An interrupt may be late, or the machine was suspended.
        Some(((lateness_ns - self.least_ns).min(period), period))
    }
}

fn as_ns(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{TimerTick, SETTLED_NS};

    #[test]
    fn pauses_end_after_an_interrupt() {
        let mut timer = TimerTick::with_period(4_000_000);
        let us = Duration::from_micros;
        // The least lateness is that of an interrupt.
        assert_eq!(timer.aligned(us(4_000), 700_000), us(4_000));
        let settled = Duration::from_nanos(SETTLED_NS);
        for (pause, lateness_us, aligned) in [
            (us(4_200), 700, us(4_000) + settled),
            (us(10_000), 700, us(8_000) + settled),
            (us(10_000), 1_700, us(7_000) + settled),
            (us(1_000), 1_700, us(1_000)),
            (us(1_000), 4_000, us(700) + settled),
            (us(1_000), 9_000, us(0) + settled + us(0)),
        ] {
            assert_eq!(
                timer.aligned(pause, lateness_us * 1_000),
                aligned,
                "{lateness_us}"
            );
        }
    }

    #[test]
    fn first_quarter_after_an_interrupt_is_fresh() {
        let mut timer = TimerTick::with_period(4_000_000);
        assert!(timer.is_fresh(3_000_000), "nothing better is known");
        assert!(timer.is_fresh(700_000));
        assert!(timer.is_fresh(1_600_000));
        assert!(!timer.is_fresh(3_000_000));
    }

    /// A coarse clock of nanoseconds or of seconds shows no interrupts.
    #[test]
    fn clock_without_interrupts_changes_no_pause() {
        for period in [1, 1_000_000_000] {
            let mut timer = TimerTick::with_period(period);
            let pause = Duration::from_millis(10);
            assert_eq!(timer.aligned(pause, 500), pause);
            assert!(timer.is_fresh(900) && timer.is_fresh(4_000_000));
        }
    }

    #[test]
    fn lateness_is_below_a_second() {
        let _ = TimerTick::new();
        assert!(TimerTick::lateness_ns() < 1_000_000_000);
    }
}
