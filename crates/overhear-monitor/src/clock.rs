// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clocks that executors read, and how they sleep.

use overhear_event::{Nanos, Timestamp};
use rustix::thread::{clock_nanosleep_absolute, ClockId as SleepClock};
use rustix::time::{clock_gettime, ClockId, Timespec};

/// The clocks that an executor measures rounds with. A trait, so that tests can supply the times.
pub trait Clock {
    /// `CLOCK_MONOTONIC`.
    fn now(&self) -> Timestamp;

    /// The CPU time that the calling thread has used.
    fn cpu_time(&self) -> Nanos;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_monotonic_ns(ns(clock_gettime(ClockId::Monotonic)))
    }

    fn cpu_time(&self) -> Nanos {
        Nanos::from_ns(ns(clock_gettime(ClockId::ThreadCPUTime)))
    }
}

fn ns(time: Timespec) -> u64 {
    // Neither clock is negative.
    let seconds = time.tv_sec.unsigned_abs();
    seconds * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Sleeps until `CLOCK_MONOTONIC` shows this time; not at all if it has passed. Signals do not
/// shorten it.
pub(crate) fn sleep_until(time: Timestamp) {
    let at = time.as_monotonic_ns();
    let request = Timespec {
        tv_sec: (at / 1_000_000_000).cast_signed(),
        tv_nsec: (at % 1_000_000_000).cast_signed(),
    };
    while let Err(rustix::io::Errno::INTR) =
        clock_nanosleep_absolute(SleepClock::Monotonic, &request)
    {}
}
