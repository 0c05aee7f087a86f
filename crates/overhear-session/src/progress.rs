// SPDX-License-Identifier: MIT OR Apache-2.0
//! The progress of a run or a recording, for whoever shows it.

use std::fmt::Debug;

use overhear_event::Nanos;

/// Shows how a run or a recording goes on.
pub trait Progress: Debug {
    /// Called in each round of the monitor: the time since the begin, the elements evaluated and
    /// missed so far.
    fn show(&mut self, since: Nanos, elements: u64, missed: u64);

    /// Called at the end.
    fn clear(&mut self);
}

/// Makes the display when the observation begins.
pub type BeginProgress = fn() -> Box<dyn Progress>;
