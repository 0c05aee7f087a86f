// SPDX-License-Identifier: MIT OR Apache-2.0
//! The best-effort executor: rounds without a guarantee and without a reservation.

use std::time::Duration;

use overhear_event::{Timestamp, Update};

use crate::monitor::Monitor;

/// Pause after a busy round.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause, after rounds with few elements.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// A round with more elements than this is busy.
const BUSY: u64 = 2_000;

/// Runs rounds in the calling thread, without a guarantee, until `go_on` returns false; then the
/// last one. `now` reads `CLOCK_MONOTONIC`; `wait` sleeps between two rounds, and may return early.
pub fn best_effort(
    monitor: &mut Monitor,
    update: &mut dyn Update,
    now: impl Fn() -> Timestamp,
    wait: impl Fn(Duration),
    mut go_on: impl FnMut(&mut Monitor) -> bool,
) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let before = monitor.elements();
        monitor.round(now(), update);
        if !go_on(monitor) {
            break;
        }
        let busy = monitor.elements() - before > BUSY;
        pause = if busy {
            SHORTEST_PAUSE
        } else {
            (pause * 2).min(LONGEST_PAUSE)
        };
        wait(pause);
    }
    monitor.finish(now(), update);
}
