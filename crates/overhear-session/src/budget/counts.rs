// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counts of a sensor, which its process can damage.

use super::learning::Work;

/// Most elements that a CPU writes, and most writes that it skips, in a nanosecond: a written one
/// takes some nanoseconds, a skipped one a cycle.
const WRITTEN_PER_NS: f64 = 0.5;
const SKIPPED_PER_NS: f64 = 4.0;

/// Time that an interval may lack, in ns: counts are not read at its very ends.
const SLACK_NS: f64 = 20e6;

/// Written elements and skipped writes of a sensor, by all that its process permits to believe.
///
/// The totals never fall, and they grow no faster than CPUs can write: one process with damaged
/// counts must not take the budget of all others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) written: u64,
    pub(super) skipped: u64,
    /// The numbers of the process, as they were read last.
    written_untrusted: u64,
    skipped_untrusted: u64,
    is_damaged: bool,
}

impl Counts {
    /// Takes new numbers of the process. Returns by what they grew. `most_ns` is the time of
    /// all CPUs since the last call.
    pub(super) fn take(&mut self, written: u64, skipped: u64, most_ns: f64) -> Work {
        let mut grow = |total: &mut u64, last: &mut u64, now: u64, most: f64| {
            let growth = now.checked_sub(std::mem::replace(last, now));
            self.is_damaged |= growth.is_none_or(|growth| growth as f64 > most);
            let growth = growth.unwrap_or(0).min(most as u64);
            *total = total.saturating_add(growth);
            growth as f64
        };
        let most_ns = most_ns + SLACK_NS;
        let (most_written, most_skipped) = (most_ns * WRITTEN_PER_NS, most_ns * SKIPPED_PER_NS);
        Work {
            written: grow(
                &mut self.written,
                &mut self.written_untrusted,
                written,
                most_written,
            ),
            skipped: grow(
                &mut self.skipped,
                &mut self.skipped_untrusted,
                skipped,
                most_skipped,
            ),
        }
    }

    /// Both together.
    pub(super) const fn all(&self) -> u64 {
        self.written.saturating_add(self.skipped)
    }

    /// Whether the numbers ever fell, or grew faster than CPUs can write.
    pub(super) const fn are_damaged(&self) -> bool {
        self.is_damaged
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn honest_counts_are_taken_as_they_are() {
        let mut counts = Counts::default();
        let work = counts.take(2_000_000, 30_000_000, 1e7);
        assert_eq!((work.written, work.skipped), (2e6, 3e7));
        counts.take(2_900_000, 45_000_000, 0.0);
        assert_eq!((counts.written, counts.skipped), (2_900_000, 45_000_000));
        assert!(!counts.are_damaged());
    }

    #[test]
    fn damaged_counts_neither_fall_nor_jump() {
        for (written, skipped) in [
            (u64::MAX, 0),
            (0, u64::MAX),
            (u64::MAX, u64::MAX),
            (99, 100),
            (100, 99),
        ] {
            let mut counts = Counts::default();
            counts.take(100, 100, 1e7);
            let work = counts.take(written, skipped, 1e7);
            assert!(counts.are_damaged(), "{written} {skipped}");
            assert!(counts.written >= 100 && counts.skipped >= 100);
            assert!(work.written <= 1.5e7 && work.skipped <= 1.2e8);
            // The same damage is not counted again, and what follows is.
            let before = counts.all();
            counts.take(written, skipped, 1e7);
            assert_eq!(counts.all(), before);
            counts.take(5, 7, 1e7);
            let before = counts.all();
            counts.take(6, 9, 1e7);
            assert_eq!(counts.all(), before + 3);
        }
    }
}
