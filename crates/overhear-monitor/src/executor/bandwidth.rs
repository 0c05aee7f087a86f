// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bandwidth executor: evaluates elements within a share of a CPU that the user grants.
//!
//! The kernel's constant-bandwidth server enforces the share (`SCHED_DEADLINE` with deadline =
//! period): the monitor gets it under any load of normal priority, and no more. No latency is
//! promised: elements that do not fit wait in the monitor's memory and in the rings. When these are
//! full, elements are missed and counted.

use overhear_admission::DeadlineReservation;
use overhear_event::{Analysis, Nanos};

use super::deadline::DeadlineRefusal;
use super::periods::Periods;
use crate::clock::{sleep_until, Clock, SystemClock};
use crate::monitor::Monitor;
use crate::scheduler::ReservedThread;

/// Period of the reservation: short compared to the latency by the hold-back, long compared to the
/// cost of a round.
const PERIOD: Nanos = Nanos::from_ms(10);

/// The largest share in per cent: the kernel leaves the rest to threads without a reservation.
pub const MAX_SHARE_PERCENT: u32 = 95;

/// The CPU time of a share in each period.
const fn usable(percent: u32) -> Nanos {
    Nanos::from_ns(PERIOD.as_ns() / 100 * percent as u64)
}

/// What [`bandwidth`] reserves for this share, in per cent: an eighth more than the share, as far
/// as the kernel permits. `None` for 0 and for more than [`MAX_SHARE_PERCENT`].
#[must_use]
pub fn share_of_cpu(percent: u32) -> Option<DeadlineReservation> {
    if !(1..=MAX_SHARE_PERCENT).contains(&percent) {
        return None;
    }
    // The kernel enforces with the grain of its tick and takes the excess from later periods. The
    // executor stops by itself when it has used the share, before that.
    let share = usable(percent).as_ns();
    let runtime = (share + share / 8).min(usable(MAX_SHARE_PERCENT).as_ns());
    Some(DeadlineReservation {
        runtime: Nanos::from_ns(runtime),
        deadline: PERIOD,
        period: PERIOD,
    })
}

/// Runs rounds in the calling thread for `percent` of a CPU, 1 to [`MAX_SHARE_PERCENT`], in each
/// period of 10 ms, until `go_on` returns false; then the last one, outside the reservation.
///
/// # Errors
/// [`DeadlineRefusal`] if the share is refused; then nothing has been evaluated.
pub fn bandwidth(
    monitor: &mut Monitor,
    update: &mut dyn Analysis,
    percent: u32,
    mut go_on: impl FnMut(&mut Monitor) -> bool,
) -> Result<(), DeadlineRefusal> {
    let reservation = share_of_cpu(percent).ok_or(DeadlineRefusal::Share { percent })?;
    let share = usable(percent).as_ns();
    let reserved = ReservedThread::reserve(reservation, false).map_err(DeadlineRefusal::of)?;
    let mut periods = Periods::new(SystemClock.now(), PERIOD);
    loop {
        sleep_until(periods.due());
        let begun = SystemClock.cpu_time().as_ns();
        let enough = || SystemClock.cpu_time().as_ns().saturating_sub(begun) >= share;
        monitor.round_within(SystemClock.now(), &enough, update);
        if !go_on(monitor) {
            break;
        }
        periods.advance(SystemClock.now());
    }
    drop(reserved);
    monitor.finish(SystemClock.now(), update);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{share_of_cpu, usable, MAX_SHARE_PERCENT, PERIOD};

    #[test]
    fn reservation_covers_the_whole_share() {
        for percent in 1..=MAX_SHARE_PERCENT {
            let reserved = share_of_cpu(percent).unwrap();
            assert_eq!(
                usable(percent).as_ns() * 100,
                PERIOD.as_ns() * u64::from(percent)
            );
            assert!(reserved.runtime >= usable(percent), "{percent}");
            assert!(reserved.runtime <= usable(MAX_SHARE_PERCENT), "{percent}");
        }
        let half = share_of_cpu(50).unwrap();
        assert_eq!(half.runtime.as_ns(), 5_625_000);
        assert_eq!(share_of_cpu(0), None);
        assert_eq!(share_of_cpu(MAX_SHARE_PERCENT + 1), None);
    }
}
