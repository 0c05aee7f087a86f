// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates in all, estimated from those of monitored stretches.
//!
//! The share of monitored passes changes while a program runs, and so does the work of a pass. One
//! quotient over the whole run would be biased: it is taken in *strata*, periods of at least
//! [`Stratum::LEAST_STRETCHES`] stretches. In a stratum with P passes, M of them monitored, a
//! segment that was executed c times in monitored stretches counts as c P / M.
//!
//! A token records updates outside of stretches. Their number in a function is known, but not which
//! segments they were; the interval has both ends.

/// Counts of a function in one thread: totals at one time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StretchCounts {
    /// Passes.
    pub passes: i64,
    /// Passes of monitored stretches, without those that ran plain at a burst cap.
    pub monitored: i64,
    /// Updates recorded.
    pub recorded: i64,
    /// Those of monitored stretches.
    pub in_stretches: i64,
    /// Monitored stretches of pairs.
    pub stretches: f64,
    /// Sum of updates per pass over them.
    pub rate_sum: f64,
    /// Sum of squares of updates per pass over them.
    pub rate_squares: f64,
}

/// A period of a function in one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stratum {
    /// Passes for each monitored pass; at least 1.
    factor: f64,
    /// Share of the recorded updates that monitored stretches recorded.
    stretch_part: f64,
    /// Updates that tokens recorded.
    by_tokens: f64,
    /// Relative variance of the mean of updates per pass, over monitored stretches.
    relative_variance: f64,
}

impl Stratum {
    /// Stretches of a period that is long enough for a quotient of its own.
    pub const LEAST_STRETCHES: f64 = 8.0;

    /// The period between two times; `None` if no pass of it was monitored.
    #[must_use]
    pub fn between(since: &StretchCounts, until: &StretchCounts) -> Option<Self> {
        let passes = until.passes.saturating_sub(since.passes) as f64;
        let monitored = until.monitored.saturating_sub(since.monitored) as f64;
        if monitored < 1.0 {
            return None;
        }
        let recorded = until.recorded.saturating_sub(since.recorded).max(0) as f64;
        let in_stretches = until.in_stretches.saturating_sub(since.in_stretches) as f64;
        let in_stretches = in_stretches.clamp(0.0, recorded);
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let n = finite(until.stretches - since.stretches);
        let sum = finite(until.rate_sum - since.rate_sum);
        let squares = finite(until.rate_squares - since.rate_squares);
        let relative_variance = if n >= 2.0 && sum > 0.0 {
            let mean = sum / n;
            (squares / n - mean * mean).max(0.0) / (n - 1.0) / (mean * mean)
        } else {
            1.0
        };
        Some(Self {
            factor: (passes / monitored).max(1.0),
            stretch_part: if recorded > 0.0 {
                in_stretches / recorded
            } else {
                1.0
            },
            by_tokens: recorded - in_stretches,
            relative_variance,
        })
    }

    /// Whether the period between two times has stretches enough, or was monitored wholly.
    #[must_use]
    pub fn is_long_enough(since: &StretchCounts, until: &StretchCounts) -> bool {
        let monitored = until.monitored.saturating_sub(since.monitored);
        let passes = until.passes.saturating_sub(since.passes);
        let is_whole = monitored >= 1 && monitored == passes;
        is_whole || until.stretches - since.stretches >= Self::LEAST_STRETCHES
    }
}

/// Executions of a segment: updates of one block that are executed all or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SegmentEstimate {
    /// Recorded executions that are in the estimate.
    pub count: u64,
    /// Estimated executions in all.
    pub total: f64,
    /// Variance of `total`.
    pub variance: f64,
    /// Farthest distance of the truth from `total` by the updates of tokens.
    pub doubt: f64,
}

impl SegmentEstimate {
    /// Adds the executions since the last stratum, `count` being their total.
    pub fn add(&mut self, count: u64, stratum: &Stratum) {
        let new = count.saturating_sub(self.count) as f64;
        self.count = count;
        if new <= 0.0 {
            return;
        }
        let factor = stratum.factor;
        let unseen = (factor - 1.0) / factor;
        let in_stretches = new * stratum.stretch_part;
        let total = (in_stretches * factor).max(new);
        self.total += total;
        // Executions of a segment are a part of its function's updates; few of them scatter more.
        let relative = stratum.relative_variance + in_stretches.max(1.0).recip();
        self.variance += unseen * (in_stretches * factor).powi(2) * relative;
        if stratum.by_tokens > 0.0 && factor > 1.0 {
            let least = ((new - stratum.by_tokens) * factor).max(new);
            let most = new * factor;
            self.doubt += (total - least).max(most - total).max(0.0);
        }
    }

    /// Adds passes of which none was monitored: they are taken to be as those before, `by` times
    /// as many.
    pub fn extend(&mut self, by: f64) {
        let more = self.total * by;
        self.total += more;
        self.variance += more * more;
    }

    /// Adds the executions in another thread.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.total += other.total;
        self.variance += other.variance;
        self.doubt += other.doubt;
    }
}

#[cfg(test)]
mod tests {
    use super::{SegmentEstimate, Stratum, StretchCounts};

    fn counts(passes: i64, monitored: i64, recorded: i64, in_stretches: i64) -> StretchCounts {
        StretchCounts {
            passes,
            monitored,
            recorded,
            in_stretches,
            ..StretchCounts::default()
        }
    }

    #[test]
    fn strata_with_different_shares_are_counted_each_with_its_own() {
        // 1000 passes of which all are monitored, with 1 update each; 1000 with 10, of which 100.
        let start = counts(0, 0, 0, 0);
        let middle = counts(1000, 1000, 1000, 1000);
        let end = counts(2000, 1100, 2000, 2000);
        let mut estimate = SegmentEstimate::default();
        estimate.add(1000, &Stratum::between(&start, &middle).unwrap());
        assert_eq!((estimate.total, estimate.variance), (1000.0, 0.0));
        estimate.add(2000, &Stratum::between(&middle, &end).unwrap());
        assert_eq!(estimate.total, 11_000.0);
        let mut whole = SegmentEstimate::default();
        whole.add(2000, &Stratum::between(&start, &end).unwrap());
        assert!(whole.total < 4000.0, "{whole:?}");
    }

    #[test]
    fn updates_of_tokens_are_not_multiplied_and_widen_the_interval() {
        let stratum = Stratum::between(&counts(0, 0, 0, 0), &counts(1000, 100, 200, 100)).unwrap();
        let mut estimate = SegmentEstimate::default();
        estimate.add(200, &stratum);
        assert_eq!(estimate.total, 1000.0);
        assert_eq!(estimate.doubt, 1000.0);
        // A segment with more executions than tokens have updates is not all theirs.
        let mut other = SegmentEstimate::default();
        other.add(1000, &stratum);
        assert_eq!((other.total, other.doubt), (5000.0, 5000.0));
    }

    #[test]
    fn period_without_a_monitored_pass_has_no_quotient() {
        let (start, end) = (counts(0, 0, 0, 0), counts(10, 0, 3, 0));
        assert_eq!(Stratum::between(&start, &end), None);
        assert!(!Stratum::is_long_enough(&start, &end));
        assert!(Stratum::is_long_enough(&start, &counts(10, 10, 3, 3)));
    }
}
