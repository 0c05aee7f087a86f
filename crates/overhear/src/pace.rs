// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting until a sensor's declared rate allows the next element.
//!
//! [`Pacer`] decides; this module reads clocks and sleeps. It needs the time of the last element's
//! stamp. A stamp of `CLOCK_MONOTONIC` is that time itself. A stamp of the CPU's counter is
//! converted here without the directory's clock page: both clocks are read at the end of one wait
//! and at the begin of the next, the stamp lies between these two moments, and its time is
//! interpolated. Each pair reads the counter first, so that the interpolated time is never before
//! the true one: the element counts as late as it can have been.

use std::time::Duration;

use overhear_admission::{ArrivalBound, Pacer};
use overhear_directory::monotonic_now;
use overhear_event::{ClockId, Nanos, Rate, Ticks, Timestamp};
use overhear_stream::read_hardware_ticks;

use crate::sensor::OpenStream;

/// Added to the distance of elements if monitors convert stamps: twice the error of a conversion.
///
/// The directory publishes the error with each clock segment; it is about a microsecond. The rest
/// covers a clock that is slewed between two waits. The margins of several waits do not accumulate:
/// with a jitter tau above the margin the mean rate stays 1/T.
pub const PACE_MARGIN: Nanos = Nanos::from_us(10);

/// A sensor without a declared rate cannot be paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sensor has declared no rate to keep to; give it one when it is registered")]
pub struct PaceError;

/// The state between two waits.
#[derive(Debug)]
pub(crate) struct Pace {
    pacer: Pacer,
    clock: ClockId,
    allowed: Moment,
    /// Elements that the pacer has counted.
    count: u64,
}

/// Both clocks at once; `time` is not before the moment at which the counter showed `ticks`.
#[derive(Clone, Copy, Debug)]
struct Moment {
    ticks: Ticks,
    time: Timestamp,
}

impl Moment {
    fn now(clock: ClockId) -> Self {
        let ticks = match clock {
            ClockId::Monotonic => Ticks::default(),
            ClockId::X86Tsc | ClockId::ArmCntvct => read_hardware_ticks(),
        };
        let time = monotonic_now();
        Self { ticks, time }
    }
}

impl Pace {
    /// The pace of a sensor that has written `count` elements.
    pub(crate) fn new(rate: Rate, clock: ClockId, count: u64) -> Result<Self, PaceError> {
        let constraint = ArrivalBound::from_rate(&rate).map_err(|_| PaceError)?;
        let margin = match clock {
            ClockId::Monotonic => Nanos::ZERO,
            ClockId::X86Tsc | ClockId::ArmCntvct => PACE_MARGIN,
        };
        let allowed = Moment::now(clock);
        let pacer = match count {
            0 => Pacer::new(constraint, margin),
            _ => Pacer::under_way(constraint, margin, allowed.time),
        };
        Ok(Self {
            pacer,
            clock,
            allowed,
            count,
        })
    }

    /// The pace of a stream, if it has declared a rate to keep to.
    pub(crate) fn of(stream: &OpenStream, count: u64) -> Result<Self, PaceError> {
        Self::new(stream.rate().ok_or(PaceError)?, stream.clock, count)
    }

    /// Waits. `last_stamp` is that of the last of `count` elements. Returns how long it waited.
    pub(crate) fn wait(&mut self, count: u64, last_stamp: impl Fn() -> Ticks) -> Nanos {
        let begin = monotonic_now();
        sleep_until_none_is_left(|| self.left(count, &last_stamp));
        self.allowed.time.since(begin)
    }

    /// How long is to be waited before the next element; zero allows it. The arguments are those
    /// of [`Pace::wait`].
    pub(crate) fn left(&mut self, count: u64, last_stamp: impl Fn() -> Ticks) -> Nanos {
        let now = Moment::now(self.clock);
        let written = count.wrapping_sub(self.count);
        if written > 0 {
            let at = when(self.clock, last_stamp(), self.allowed, now);
            // Elements that were written without a call count as late as the last.
            for _ in 0..written.min(MAX_UNPACED) {
                self.pacer.written(at);
            }
            self.count = count;
        }
        let left = self.pacer.earliest().since(now.time);
        if left == Nanos::ZERO {
            self.allowed = now;
        }
        left
    }
}

/// Waits until no time is left; returns the total time of the wait.
pub(crate) fn sleep_until_none_is_left(mut left: impl FnMut() -> Nanos) -> Nanos {
    let begin = monotonic_now();
    loop {
        match left() {
            Nanos::ZERO => return monotonic_now().since(begin),
            left => std::thread::sleep(Duration::from_nanos(left.as_ns())),
        }
    }
}

/// Time after which a grant ends without an element: the thread may have ended, or its write was
/// refused.
const GRANT_TIMEOUT: Nanos = Nanos::from_ms(1_000);
/// Minimum pause between two checks whether the granted element was written.
const MIN_POLL: Nanos = Nanos::from_us(50);

/// The pace of several threads that write one stream.
///
/// One thread at a time has the *grant* for the next element. The other threads wait until this
/// element is written, because the next distance counts from its stamp, and the thread can be
/// preempted for any time before it writes. A grant also ends when its thread calls again, or after
/// [`GRANT_TIMEOUT`]; then the pacer counts an element at that moment.
#[derive(Debug)]
pub(crate) struct SharedPace {
    pace: Pace,
    grant: Option<Grant>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    thread: u32,
    end: Timestamp,
}

impl SharedPace {
    pub(crate) const fn new(pace: Pace) -> Self {
        Self { pace, grant: None }
    }

    /// Time after which the thread calls again; zero grants it the next element. `count` returns
    /// the number of written elements, `last_stamp` the stamp of the last of them, `None` if it was
    /// overwritten.
    pub(crate) fn left(
        &mut self,
        thread: u32,
        count: impl FnOnce(u64) -> u64,
        last_stamp: impl Fn(u64) -> Option<Ticks>,
    ) -> Nanos {
        let count = count(self.pace.count);
        let grant = self.grant.filter(|_| count == self.pace.count);
        if let Some(grant) = grant.filter(|grant| grant.thread != thread) {
            let now = monotonic_now();
            let mut next = self.pace.pacer;
            next.written(now);
            if now < grant.end {
                // It may write now. The next element must keep the distance from now.
                return next
                    .earliest()
                    .since(now)
                    .max(MIN_POLL)
                    .min(grant.end.since(now).max(MIN_POLL));
            }
            self.pace.pacer = next;
        }
        self.grant = None;
        // An overwritten stamp counts as late as possible.
        let last_stamp = || last_stamp(count.wrapping_sub(1)).unwrap_or(Ticks::from_raw(u64::MAX));
        let left = self.pace.left(count, last_stamp);
        if left == Nanos::ZERO {
            let end = self.pace.allowed.time.plus(GRANT_TIMEOUT);
            self.grant = Some(Grant { thread, end });
        }
        left
    }
}

/// Maximum number of elements written without a call that lengthen the next wait; the others are
/// ignored.
const MAX_UNPACED: u64 = 1 << 20;

/// The time of a stamp between two moments, not before the true one.
fn when(clock: ClockId, stamp: Ticks, from: Moment, to: Moment) -> Timestamp {
    let time = match clock {
        ClockId::Monotonic => Timestamp::from_monotonic_ns(stamp.as_raw()),
        ClockId::X86Tsc | ClockId::ArmCntvct => {
            let ticks = u128::from(to.ticks.as_raw().saturating_sub(from.ticks.as_raw()));
            let passed = u128::from(stamp.as_raw().saturating_sub(from.ticks.as_raw()));
            let span = u128::from(to.time.since(from.time).as_ns());
            let ns = (passed.min(ticks) * span).div_ceil(ticks.max(1));
            from.time
                .plus(Nanos::from_ns(u64::try_from(ns).unwrap_or(u64::MAX)))
        }
    };
    // A stamp that was set by the program may have any value.
    time.clamp(from.time, to.time)
}

#[cfg(test)]
mod tests {
    use overhear_event::{ClockId, Nanos, Rate, Ticks, Timestamp};

    use super::{when, Moment, Pace, PaceError};

    fn moment(ticks: u64, ns: u64) -> Moment {
        Moment {
            ticks: Ticks::from_raw(ticks),
            time: Timestamp::from_monotonic_ns(ns),
        }
    }

    #[test]
    fn stamp_is_interpolated_between_two_moments_and_rounded_up() {
        let (from, to) = (moment(1_000, 50), moment(4_000, 1_051));
        let time =
            |stamp| when(ClockId::X86Tsc, Ticks::from_raw(stamp), from, to).as_monotonic_ns();
        assert_eq!(time(1_000), 50);
        assert_eq!(time(1_001), 51);
        assert_eq!(time(2_500), 551);
        assert_eq!(time(4_000), 1_051);
        assert_eq!((time(3), time(u64::MAX)), (50, 1_051));
        let own = when(ClockId::Monotonic, Ticks::from_raw(77), from, to);
        assert_eq!(own.as_monotonic_ns(), 77);
        // No division by zero if the counter has not advanced.
        assert_eq!(
            when(ClockId::X86Tsc, Ticks::from_raw(4_000), to, to),
            to.time
        );
    }

    #[test]
    fn wait_lasts_until_rate_allows_element() {
        let ms = Nanos::from_ms;
        let rate = Rate::new(ms(2), ms(2), Nanos::ZERO).unwrap();
        let mut pace = Pace::new(rate, ClockId::Monotonic, 0).unwrap();
        let stamp = || Ticks::from_raw(overhear_directory::monotonic_now().as_monotonic_ns());
        pace.wait(0, stamp);
        let first = stamp();
        assert!(pace.wait(1, || first) > Nanos::ZERO);
        assert!(stamp().as_raw() - first.as_raw() >= 2_000_000);
        // Three elements without a call lengthen the wait.
        let last = stamp();
        pace.wait(4, || last);
        assert!(stamp().as_raw() - last.as_raw() >= 6_000_000);
    }

    #[test]
    fn first_element_and_repeated_call_do_not_wait() {
        let days = Nanos::from_ns(u64::MAX / 4);
        let rate = Rate::new(days, days, Nanos::ZERO).unwrap();
        let mut pace = Pace::new(rate, ClockId::X86Tsc, 0).unwrap();
        for _ in 0..2 {
            pace.wait(0, || unreachable!("nothing was written"));
        }
    }

    #[test]
    fn rate_with_invalid_fields_is_refused() {
        let rate = Rate {
            period: Nanos::ZERO,
            distance: Nanos::ZERO,
            jitter: Nanos::ZERO,
        };
        assert_eq!(
            Pace::new(rate, ClockId::Monotonic, 0).err(),
            Some(PaceError)
        );
    }
}
