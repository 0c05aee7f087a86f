// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the times of one stream from going back.

use overhear_event::Timestamp;

/// How far the kernel's lock-free clock may step back, generously: its documented steps at an
/// adjustment of the clock rate are some nanoseconds.
const STEP_NS: u64 = 1_000_000;

/// The last time of a stream, which no later element may undercut.
///
/// `ktime_get_mono_fast_ns`, which stamps BPF elements and perf records alike, takes no lock and
/// may therefore step back a little when the clock's rate is adjusted. Such an element happened
/// after its predecessor all the same and gets the predecessor's time. Whoever is further behind
/// is not what it seems.
#[derive(Debug, Default)]
pub(crate) struct Order {
    last: u64,
}

impl Order {
    /// Goes on where another ended.
    pub(crate) const fn after(last_ns: u64) -> Self {
        Self { last: last_ns }
    }

    /// The last time, in nanoseconds; 0 if there was none.
    pub(crate) const fn last_ns(&self) -> u64 {
        self.last
    }

    /// The time the element enters the stream with; `None` if it must be reported as corrupt.
    pub(crate) fn admit(&mut self, stamp_ns: u64) -> Option<Timestamp> {
        if self.last.saturating_sub(stamp_ns) > STEP_NS {
            return None;
        }
        self.last = self.last.max(stamp_ns);
        Some(Timestamp::from_monotonic_ns(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Timestamp, STEP_NS};

    #[test]
    fn small_steps_are_levelled_and_large_ones_refused() {
        let mut order = Order::default();
        let at = |ns| Some(Timestamp::from_monotonic_ns(ns));
        assert_eq!(order.admit(2 * STEP_NS), at(2 * STEP_NS));
        assert_eq!(order.admit(2 * STEP_NS - 5), at(2 * STEP_NS));
        assert_eq!(order.admit(STEP_NS - 1), None);
        assert_eq!(order.admit(2 * STEP_NS + 1), at(2 * STEP_NS + 1));
    }
}
