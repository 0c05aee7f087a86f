// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bandwidth executor: a share of a CPU that a user grants, and as many elements as fit into it.
//!
//! The kernel's constant-bandwidth server keeps the share (`SCHED_DEADLINE` with deadline = period):
//! the monitor gets it under any load of normal priority, and no more. No latency is promised; what
//! does not fit waits in the monitor's memory and in the rings, and is missed, and counted, when these
//! are full.

use overhear_admission::DeadlineReservation;
use overhear_event::{Nanos, Update};

use super::deadline::DeadlineRefusal;
use super::periods::Periods;
use crate::clock::{sleep_until, Clock, SystemClock};
use crate::monitor::Monitor;
use crate::scheduler::ReservedThread;

/// Short against the hold-back's effect on latency, long against what a round costs.
const PERIOD: Nanos = Nanos::from_ms(10);

/// What [`bandwidth`] reserves for this share, in per cent.
#[must_use]
pub fn share_of_cpu(percent: u32) -> DeadlineReservation {
    let runtime = PERIOD.as_ns() / 100 * u64::from(percent.clamp(1, 95));
    DeadlineReservation {
        runtime: Nanos::from_ns(runtime),
        deadline: PERIOD,
        period: PERIOD,
    }
}

/// Runs rounds in the calling thread within `percent` of a CPU, 1 to 95, until `go_on` says no; then
/// the last one, outside the reservation.
///
/// # Errors
/// [`DeadlineRefusal`] if the share is refused; then nothing has been evaluated.
pub fn bandwidth(
    monitor: &mut Monitor,
    update: &mut dyn Update,
    percent: u32,
    mut go_on: impl FnMut(&mut Monitor) -> bool,
) -> Result<(), DeadlineRefusal> {
    let reservation = share_of_cpu(percent);
    let share = reservation.runtime.as_ns();
    let reserved = ReservedThread::reserve(reservation, false).map_err(DeadlineRefusal::of)?;
    // The kernel enforces with the grain of its tick and takes the excess from later periods, so the
    // executor stops by itself, before that.
    let usable = share - share / 8;
    let mut periods = Periods::new(SystemClock.now(), PERIOD);
    loop {
        sleep_until(periods.due());
        let begun = SystemClock.cpu_time().as_ns();
        let enough = || SystemClock.cpu_time().as_ns().saturating_sub(begun) >= usable;
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
