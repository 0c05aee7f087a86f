// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executors on real threads, clocks and rings: their guarantees, and their messages if the machine
//! does not permit these.
//!
//! No machine is late here by the test's fault: a run in which the machine was later than the terms
//! allow proves only that the executor reported it, and is tried again. Whether it was
//! is seen by a witness that is no part of the executor; where it was not, an inconclusive run is a
//! failure.

#[path = "../../benches/stress/admitted.rs"]
mod admitted;
mod buffered;
#[path = "../support/counting.rs"]
mod counting;
mod deadline;
mod exclusive;
mod excuse;
#[path = "../../benches/stress/load.rs"]
mod load;
#[path = "../../benches/stress/rings.rs"]
mod rings;
#[path = "../../benches/stress/scenario.rs"]
mod scenario;
mod stress;
mod warm;
#[path = "../support/witness.rs"]
mod witness;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests that reserve CPU time run one after the other: each is foreign to the others.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
