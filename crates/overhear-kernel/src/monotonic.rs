// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MonotonicClamp`]: keeps the times of one stream from going backwards.

use overhear_event::Timestamp;

/// Largest accepted backward step of the kernel clock. The documented steps at a rate adjustment
/// are some nanoseconds.
const MAX_STEP_BACK_NS: u64 = 1_000_000;

/// The last time of a stream: a lower bound of all later times.
///
/// `ktime_get_mono_fast_ns` stamps BPF elements and perf records. It takes no lock, and may
/// therefore step back a little when the clock rate is adjusted. Such an element still happened
/// after its predecessor, and gets the time of the predecessor. A larger step back means a corrupt
/// element.
#[derive(Debug, Default)]
pub(crate) struct MonotonicClamp {
    last: u64,
}

impl MonotonicClamp {
    /// Continues after the last time of another process.
    pub(crate) const fn after(last_ns: u64) -> Self {
        Self { last: last_ns }
    }

    /// The last time, in nanoseconds; 0 if there was none.
    pub(crate) const fn last_ns(&self) -> u64 {
        self.last
    }

    /// The time of the element in the stream; `None` if the element is corrupt.
    pub(crate) fn clamp(&mut self, stamp_ns: u64) -> Option<Timestamp> {
        if self.last.saturating_sub(stamp_ns) > MAX_STEP_BACK_NS {
            return None;
        }
        self.last = self.last.max(stamp_ns);
        Some(Timestamp::from_monotonic_ns(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::{MonotonicClamp, Timestamp, MAX_STEP_BACK_NS};

    #[test]
    fn small_steps_are_clamped_and_large_ones_refused() {
        let mut clamp = MonotonicClamp::default();
        let at = |ns| Some(Timestamp::from_monotonic_ns(ns));
        assert_eq!(clamp.clamp(2 * MAX_STEP_BACK_NS), at(2 * MAX_STEP_BACK_NS));
        assert_eq!(
            clamp.clamp(2 * MAX_STEP_BACK_NS - 5),
            at(2 * MAX_STEP_BACK_NS)
        );
        assert_eq!(clamp.clamp(MAX_STEP_BACK_NS - 1), None);
        assert_eq!(
            clamp.clamp(2 * MAX_STEP_BACK_NS + 1),
            at(2 * MAX_STEP_BACK_NS + 1)
        );
    }
}
