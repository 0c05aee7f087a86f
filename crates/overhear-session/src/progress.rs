// SPDX-License-Identifier: MIT OR Apache-2.0
//! The progress of a run or a recording.

use std::fmt::Debug;

use overhear_event::Nanos;

/// Shows the progress of a run or a recording.
pub trait Progress: Debug {
    /// Called in each round of the monitor with the time since the begin, and the numbers of
    /// elements that were evaluated and missed so far.
    fn show(&mut self, since: Nanos, elements: u64, missed: u64);

    /// Called at the end.
    fn clear(&mut self);
}

/// Creates the display when the observation begins.
pub type BeginProgress = fn() -> Box<dyn Progress>;
