// SPDX-License-Identifier: MIT OR Apache-2.0
//! The best-effort executor: rounds without a guarantee and without a reservation.

use std::time::Duration;

use overhear_event::{Analysis, Timestamp};

use crate::monitor::Monitor;
use crate::runner::Runner;

/// Runs rounds in the calling thread, without a guarantee, until `go_on` returns false; then the
/// last one. `now` reads `CLOCK_MONOTONIC`; `wait` sleeps between two rounds, and may return early.
///
/// It is a [`Runner`] with the arguments of an executor.
pub fn best_effort(
    monitor: &mut Monitor,
    update: &mut dyn Analysis,
    now: impl Fn() -> Timestamp,
    wait: impl Fn(Duration),
    mut go_on: impl FnMut(&mut Monitor) -> bool,
) {
    let runner = Runner::over(monitor, update).clock(now);
    runner.run(wait, |runner| (!go_on(runner.monitor)).then_some(()));
}
