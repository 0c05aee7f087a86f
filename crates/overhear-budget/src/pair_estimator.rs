// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pairs of one function over time: one price, or one that changes.

use crate::pair_sums::{PairSums, StretchPair, FORGET_ABOVE};

/// Pairs of one block in the test for a change of the price.
const BLOCK_PAIRS: f64 = 256.0;
/// Joint standard errors between two blocks that are a change of the price.
const CHANGE_SIGMAS: f64 = 4.0;

/// What a new pair means for the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "after a change the budget must be given the price as a new one"]
pub enum PriceRegime {
    /// All pairs so far measure one price: [`crate::Budget::refine_price`].
    Same,
    /// The newest pairs contradict the older ones, which were dropped:
    /// [`crate::Budget::change_price`].
    Changed,
}

/// Collects the pairs of one function, and notices when its price changes.
///
/// Every 256 pairs the newest block is compared with all before it. A difference of 4 joint
/// standard errors is a change of the price itself: the older pairs are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairEstimator {
    older: PairSums,
    recent: PairSums,
}

impl PairEstimator {
    /// Adds a pair.
    pub fn push(&mut self, pair: &StretchPair) -> PriceRegime {
        self.recent.push(pair);
        if self.recent.pairs() < BLOCK_PAIRS {
            return PriceRegime::Same;
        }
        let recent = std::mem::take(&mut self.recent);
        let is_changed = match (self.older.slope(), recent.slope()) {
            (Some(a), Some(b)) => {
                (a.ns - b.ns).abs() > CHANGE_SIGMAS * a.error_ns.hypot(b.error_ns)
            }
            _ => false,
        };
        if is_changed {
            self.older = recent;
            return PriceRegime::Changed;
        }
        if self.older.pairs() > FORGET_ABOVE {
            self.older.scale(0.5);
        }
        self.older.merge(&recent);
        PriceRegime::Same
    }

    /// The sums of all pairs since the price last changed.
    #[must_use]
    pub fn sums(&self) -> PairSums {
        let mut sums = self.older;
        sums.merge(&self.recent);
        sums
    }
}
