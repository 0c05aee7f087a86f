// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of stamps, and the time of a stamp.
//!
//! Writers stamp with the hardware counter where the kernel trusts it, else with `CLOCK_MONOTONIC`.
//! Readers convert. They measure both clocks when the library is loaded, and again while they read,
//! so no thread and no directory is needed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use overhear_event::{ClockId, Nanos, Ticks, Timestamp};
use overhear_stream::{hardware_clock, read_hardware_ticks, ClockFit, ClockMap, ClockPair};
use rustix::time::{clock_gettime, ClockId as SystemClock};

use crate::per_process::PerProcess;

/// Brackets tried for a pair of readings: the narrowest one wins.
const BRACKETS: usize = 16;
/// Distance of pairs at first; it doubles up to [`LONGEST_INTERVAL`].
const FIRST_INTERVAL: Nanos = Nanos::from_ms(1);
const LONGEST_INTERVAL: Nanos = Nanos::from_ms(100);
/// Pairs this close together give no slope.
const SMALLEST_BASE: Nanos = Nanos::from_us(20);

/// The current time.
pub(crate) fn monotonic_now() -> Timestamp {
    Timestamp::from_monotonic_ns(nanoseconds(clock_gettime(SystemClock::Monotonic)))
}

/// The current time of `CLOCK_REALTIME` in nanoseconds.
pub(crate) fn realtime_now_ns() -> u64 {
    nanoseconds(clock_gettime(SystemClock::Realtime))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default()
}

/// The clock that this process stamps with.
pub(crate) fn stamp_clock() -> ClockId {
    let Some(clock) = hardware_clock() else {
        return ClockId::Monotonic;
    };
    if clock == ClockId::ArmCntvct {
        return clock; // The architecture guarantees that the CPUs agree.
    }
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    #[expect(
        clippy::disallowed_methods,
        reason = "a file of the kernel, not of a recording"
    )]
    let source = std::fs::read_to_string(path).unwrap_or_default();
    match source.trim() {
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" => clock,
        _ => ClockId::Monotonic,
    }
}

/// A stamp of this moment. The CPU may read its counter some tens of cycles early, which costs less
/// than waiting; readers do not let time go back.
#[inline(always)]
pub(crate) fn stamp(is_hardware: bool) -> u64 {
    match is_hardware {
        true => read_hardware_ticks().as_raw(),
        false => monotonic_now().as_monotonic_ns(),
    }
}

fn pair() -> ClockPair {
    let mut best: Option<(u64, ClockPair)> = None;
    let mut before = read_hardware_ticks().as_raw();
    for _ in 0..BRACKETS {
        let time = monotonic_now();
        let after = read_hardware_ticks().as_raw();
        let width = after.wrapping_sub(before);
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            let ticks = Ticks::from_raw(before.wrapping_add(width / 2));
            let error = Nanos::from_ns(width / 2 + 1);
            best = Some((width, ClockPair { ticks, time, error }));
        }
        before = after;
    }
    best.map_or_else(
        || ClockPair {
            ticks: Ticks::from_raw(before),
            time: monotonic_now(),
            error: Nanos::from_ns(u64::from(u32::MAX)),
        },
        |(_, pair)| pair,
    )
}

/// Measurements of the hardware counter.
struct Measured {
    first: ClockPair,
    fit: Option<ClockFit>,
    map: ClockMap,
    last: Timestamp,
    interval: Nanos,
    /// Segments that were ever in the map.
    published: usize,
}

static MEASURED: PerProcess<Mutex<Measured>> = PerProcess::new();

fn measured() -> MutexGuard<'static, Measured> {
    let measured = MEASURED.get_or_init(|| Mutex::new(Measured::begin()));
    measured.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to measure, when the library is loaded: a longer time until the first reading gives a
/// better slope.
pub(crate) fn begin() {
    if stamp_clock() != ClockId::Monotonic {
        drop(measured());
    }
}

/// Measures anew, in the child of a fork.
pub(crate) fn forget() {
    MEASURED.forget();
}

impl Measured {
    fn begin() -> Self {
        let first = pair();
        Self {
            first,
            fit: None,
            map: ClockMap::new(),
            last: first.time,
            interval: FIRST_INTERVAL,
            published: 0,
        }
    }

    /// Measures again if it is time for that.
    fn update(&mut self, now: Timestamp) {
        let Some(fit) = &mut self.fit else {
            if now.since(self.first.time) < SMALLEST_BASE {
                while monotonic_now().since(self.first.time) < SMALLEST_BASE {
                    overhear_stream::sync::spin_loop();
                }
            }
            let second = pair();
            self.fit = ClockFit::begin(self.first, second);
            if let Some(fit) = &self.fit {
                self.map.push(*fit.current());
                self.published += 1;
            }
            self.last = second.time;
            return;
        };
        if now.since(self.last) < self.interval {
            return;
        }
        let next = pair();
        for segment in fit.observe(next) {
            self.map.push(segment);
            self.published += 1;
        }
        self.last = next.time;
        let doubled = Nanos::from_ns(self.interval.as_ns() * 2);
        self.interval = doubled.min(LONGEST_INTERVAL);
        // Streams may be read long after they were written.
        const MAX_SEGMENTS: usize = 100_000;
        if self.map.segments().len() > MAX_SEGMENTS {
            let oldest_kept = self.map.segments()[MAX_SEGMENTS / 2].time;
            self.map.forget_before(oldest_kept);
        }
    }

    /// The segments after the first `taken` ones, as far as they are kept.
    fn since(&self, taken: usize) -> &[overhear_stream::Segment] {
        let segments = self.map.segments();
        let new = (self.published - taken).min(segments.len());
        &segments[segments.len() - new..]
    }
}

/// Converts stamps for one reader.
#[derive(Debug, Default)]
pub(crate) struct StampConverter {
    map: ClockMap,
    /// When the map was brought up to date.
    updated: Timestamp,
    /// Segments that were taken over from the common map.
    taken: usize,
}

/// Longest use of a copy of the map. Segments begin 5 ms after they are computed.
const MAX_MAP_AGE: Nanos = Nanos::from_ms(2);

impl StampConverter {
    /// Brings the map up to date: before a group of stamps that were made until now.
    pub(crate) fn refresh(&mut self, clock: ClockId) {
        if clock == ClockId::Monotonic {
            return;
        }
        let now = monotonic_now();
        if self.taken > 0 && now.since(self.updated) < MAX_MAP_AGE {
            return;
        }
        let mut measured = measured();
        measured.update(now);
        for segment in measured.since(self.taken) {
            self.map.push(*segment);
        }
        self.taken = measured.published;
        self.updated = now;
    }

    /// The time of a stamp.
    #[inline]
    pub(crate) fn convert(&self, clock: ClockId, stamp: u64) -> Timestamp {
        match clock {
            ClockId::Monotonic => Timestamp::from_monotonic_ns(stamp),
            _ => self
                .map
                .convert(Ticks::from_raw(stamp))
                .unwrap_or(Timestamp::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_stamps_lie_between_the_readings_of_the_clock() {
        begin();
        let clock = stamp_clock();
        let is_hardware = clock != ClockId::Monotonic;
        let mut converter = StampConverter::default();
        for _ in 0..50 {
            let before = monotonic_now();
            let stamp = stamp(is_hardware);
            let after = monotonic_now();
            converter.refresh(clock);
            let time = converter.convert(clock, stamp);
            // The first slope is rough: 50 us over the 20 us between its pairs, and better later.
            let tolerance = Nanos::from_us(200);
            assert!(time.plus(tolerance) >= before, "{time:?} < {before:?}");
            assert!(time <= after.plus(tolerance), "{time:?} > {after:?}");
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
    }
}
