// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stretches: randomised pairs of monitored and plain execution of one function.

use crate::pair_sums::{StretchPair, MAX_COVARIATES};

/// Time of a stretch in ns: 24 us is short enough that a clock frequency hardly changes in a pair,
/// and long enough that two reads of a clock cost little.
const STRETCH_NS: f64 = 24_000.0;
/// A stretch grows at most by this factor from pair to pair.
const MAX_GROWTH: f64 = 4.0;
const MAX_PASSES: f64 = 1e7;
/// Weight of the newest stretch in the mean time of a pass.
const PASS_WEIGHT: f64 = 0.06;
/// One stretch enters the mean time of a pass as at most this multiple of the mean.
const PASS_CLIP: f64 = 8.0;
/// A pair with a stretch of more than this multiple of its expected time is dropped: preemption,
/// waiting, another phase. The threshold is one for both arms, so it does not bias their
/// difference.
const DROP_ABOVE: f64 = 6.0;
/// Passes that are monitored at the start, so that one-shot events are seen.
const START_PASSES: u64 = 256;
/// Longest gap between two pairs in ns.
const MAX_GAP_NS: f64 = 100e6;

/// Whether a stretch records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Nothing is recorded.
    Plain,
    /// All events are recorded.
    Monitored,
}

/// A piece of execution: a number of passes (entries and outer back edges) in one arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Whether it records.
    pub arm: Arm,
    /// Passes until the next decision. At least 1.
    pub passes: u64,
}

/// What was measured from the begin to the end of a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StretchEnd {
    /// Time in ns, minus the cost of what other functions recorded, by their prices.
    pub time_ns: f64,
    /// Events that the function recorded.
    pub events: f64,
    /// Passes of the hot functions.
    pub passes: [f64; MAX_COVARIATES],
    /// Whether the stretch cannot be used, for example because the hot functions changed.
    pub is_invalid: bool,
}

/// Where the plan is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Position {
    /// Nothing has run.
    Start,
    /// Between pairs.
    Gap,
    /// In the first stretch of a pair.
    First(Arm),
    /// In the second stretch; the first one is complete.
    Second(Arm, StretchEnd),
}

/// Plans the stretches of one function in one thread.
///
/// Pairs of K passes plain and K passes monitored, in random order, are separated by gaps whose
/// mean length gives the share of monitored passes. Random numbers are an argument: the planner is
/// a function of what it is given.
#[derive(Clone, Copy, Debug)]
pub struct StretchPlanner {
    position: Position,
    /// K, passes of a stretch.
    k: f64,
    /// Mean time of a plain pass in ns; `None` before the first pair.
    pass_ns: Option<f64>,
    pairs: u64,
    dropped: u64,
}

impl Default for StretchPlanner {
    fn default() -> Self {
        Self {
            position: Position::Start,
            k: 1.0,
            pass_ns: None,
            pairs: 0,
            dropped: 0,
        }
    }
}

impl StretchPlanner {
    /// Pairs used so far.
    #[must_use]
    pub const fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Pairs dropped so far.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Ends a stretch and plans the next one. Also returns the pair that is complete with it, if
    /// it can be used.
    ///
    /// `share` is the share of passes to monitor, `exploration` the longest monitored gap in
    /// stretches ([`exploration`]), and `random` a uniform random word.
    pub fn next(
        &mut self,
        end: &StretchEnd,
        share: f64,
        exploration: f64,
        random: u64,
    ) -> (Stretch, Option<StretchPair>) {
        let coin = if random & 1 == 0 {
            Arm::Plain
        } else {
            Arm::Monitored
        };
        let draw = (random >> 11) as f64 / (1_u64 << 53) as f64;
        match self.position {
            Position::Start => {
                self.position = Position::Gap;
                let (arm, passes) = (Arm::Monitored, START_PASSES);
                (Stretch { arm, passes }, None)
            }
            Position::Gap => (self.begin_pair(coin), None),
            Position::First(arm) => {
                let other = match arm {
                    Arm::Plain => Arm::Monitored,
                    Arm::Monitored => Arm::Plain,
                };
                self.position = Position::Second(other, *end);
                (self.stretch(other, self.k), None)
            }
            Position::Second(arm, first) => {
                let (plain, monitored) = match arm {
                    Arm::Plain => (end, &first),
                    Arm::Monitored => (&first, end),
                };
                let pair = self.complete(plain, monitored);
                (self.gap(share, exploration, coin, draw), pair)
            }
        }
    }

    fn stretch(&self, arm: Arm, passes: f64) -> Stretch {
        let passes = passes.clamp(1.0, f64::from(u32::MAX)) as u64;
        Stretch { arm, passes }
    }

    fn begin_pair(&mut self, arm: Arm) -> Stretch {
        self.position = Position::First(arm);
        self.stretch(arm, self.k)
    }

    fn complete(&mut self, plain: &StretchEnd, monitored: &StretchEnd) -> Option<StretchPair> {
        let seen = plain.time_ns / self.k;
        let limit = self.pass_ns.map(|mean| DROP_ABOVE * mean * self.k);
        let is_usable = !plain.is_invalid
            && !monitored.is_invalid
            && limit.is_some_and(|limit| plain.time_ns <= limit && monitored.time_ns <= limit);
        let weight = PASS_WEIGHT.max(1.0 / (self.pairs + self.dropped + 1) as f64);
        let mean = match self.pass_ns {
            Some(mean) => mean + weight * (seen.min(PASS_CLIP * mean) - mean),
            None => seen,
        };
        self.pass_ns = Some(mean);
        self.k = (STRETCH_NS / mean.max(1e-3))
            .min(MAX_GROWTH * self.k)
            .clamp(1.0, MAX_PASSES)
            .floor();
        if !is_usable {
            self.dropped += 1;
            return None;
        }
        self.pairs += 1;
        let mut passes = monitored.passes;
        for (it, plain) in passes.iter_mut().zip(plain.passes) {
            *it -= plain;
        }
        Some(StretchPair {
            time_ns: monitored.time_ns - plain.time_ns,
            events: monitored.events - plain.events,
            passes,
        })
    }

    /// The gap that makes the share: a pair has half of its passes monitored, so below 1/2 the gap
    /// is plain, above it monitored.
    fn gap(&mut self, share: f64, exploration: f64, coin: Arm, draw: f64) -> Stretch {
        let (arm, stretches) = if share > 0.5 {
            let exact = (2.0 * share - 1.0) / (1.0 - share + 1.0 / 64.0);
            (Arm::Monitored, exact.min(exploration))
        } else {
            (Arm::Plain, 1.0 / share.max(1e-5) - 2.0)
        };
        let longest = MAX_GAP_NS / self.pass_ns.unwrap_or(1.0).max(1e-3);
        // Uniform from 0.25 to 1.75 times its mean: no period of the program can follow it.
        let passes = (stretches * (0.25 + 1.5 * draw) * self.k).min(longest);
        if passes < 1.0 {
            return self.begin_pair(coin);
        }
        self.position = Position::Gap;
        self.stretch(arm, passes)
    }
}

/// Longest monitored gap of a function, in stretches. Pairs have a plain half, which at a high
/// share keeps the budget from being spent; without pairs the price becomes stale.
///
/// `pairs` is the number of pairs so far, `uncertainty` the standard error of the function's cost
/// as a fraction of the budget, `has_surplus` whether the budget has surplus.
#[must_use]
pub fn exploration(pairs: u64, uncertainty: f64, has_surplus: bool) -> f64 {
    match () {
        () if pairs < 1000 => 1.0,
        () if has_surplus => 30.0,
        () if uncertainty > 0.01 => 0.7,
        () if uncertainty > 0.004 => 4.0,
        () => 30.0,
    }
}
