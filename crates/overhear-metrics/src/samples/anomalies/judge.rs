// SPDX-License-Identifier: MIT OR Apache-2.0
//! The judgement of one thread's jobs.

use super::ring::Ring;

/// The least score of an anomalous job, in spreads.
pub(super) const LEAST_SCORE: f64 = 6.0;

/// Number of jobs from which median and spread are formed.
const WINDOW: usize = 256;
/// Number of jobs without a score at the begin.
const WARM_UP: usize = 16;
/// Median and spread are formed again after this number of jobs.
const REFRESH: u64 = 16;
/// Number of scores among which a new score is ranked.
const SCORES: usize = 1_024;
/// Largest probability of a new anomaly without a change, in thousandths.
const BEGIN_PER_MILLE: usize = 15;
/// Number of scores from which on a rank can be that improbable.
const LEAST_SCORES: usize = 1_000usize.div_ceil(BEGIN_PER_MILLE) - 1;
/// A continued anomaly may be reached by one in this number of scores.
const CONTINUED_ONE_IN: usize = 4;

/// The spread of normal values is this many times their median distance from the median.
const NORMAL: f64 = 1.4826;
/// The least spread as a share of the usual value: smaller differences are no deviation.
const LEAST_SHARE: f64 = 0.01;

/// The number of the first job of a thread that is judged, from 1.
pub const FIRST_JUDGED: u64 = (WARM_UP + LEAST_SCORES + 1) as u64;

/// The judgement of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Too few jobs came before it, or it has no values.
    Learned,
    /// It is as the jobs before it.
    Usual,
    /// It is far from the usual, but so were too many of the last jobs.
    Deviates,
    /// An anomaly begins.
    Begins,
    /// The anomaly of the job before goes on.
    Continues,
}

/// The usual value of a feature.
#[derive(Clone, Debug)]
struct Usual {
    values: Ring,
    median: f64,
    mad: f64,
    /// Whether median and distance are formed.
    is_formed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Judge {
    features: Vec<Usual>,
    scores: Ring,
    jobs: u64,
    is_anomalous: bool,
    scratch: Vec<f64>,
}

impl Judge {
    pub(super) fn new(features: usize) -> Self {
        let usual = Usual {
            values: Ring::new(WINDOW),
            median: 0.0,
            mad: 0.0,
            is_formed: false,
        };
        Self {
            features: vec![usual; features],
            scores: Ring::new(SCORES),
            jobs: 0,
            is_anomalous: false,
            scratch: Vec::new(),
        }
    }

    /// Median and spread of a feature; `None` without enough values.
    pub(super) fn usual(&self, feature: usize, least_spread: f64) -> Option<(f64, f64)> {
        let usual = self.features.get(feature).filter(|it| it.is_formed)?;
        let least = (LEAST_SHARE * usual.median.abs()).max(least_spread);
        let spread = (NORMAL * usual.mad).max(least);
        (spread > 0.0).then_some((usual.median, spread))
    }

    /// The next job does not continue an anomaly.
    pub(super) fn interrupt(&mut self) {
        self.is_anomalous = false;
    }

    /// Judges a job by the jobs before it, and learns from it. A value that the job has not is not
    /// a number.
    pub(super) fn judge(
        &mut self,
        values: &[f64],
        least_spreads: impl Iterator<Item = f64>,
    ) -> Judgement {
        let scores = values.iter().zip(least_spreads).enumerate();
        let scores = scores.filter_map(|(feature, (value, least_spread))| {
            let (median, spread) = self.usual(feature, least_spread)?;
            let score = ((value - median) / spread).abs();
            (!score.is_nan()).then_some(score)
        });
        let score = scores.fold(None, |most: Option<f64>, score| {
            Some(most.map_or(score, |most| most.max(score)))
        });
        let judgement = score.map_or(Judgement::Learned, |score| self.rank(score));
        self.is_anomalous = matches!(judgement, Judgement::Begins | Judgement::Continues);
        if let Some(score) = score {
            self.scores.push(score);
        }
        self.learn(values);
        judgement
    }

    fn rank(&self, score: f64) -> Judgement {
        let known = self.scores.len();
        if known < LEAST_SCORES {
            return Judgement::Learned;
        }
        if score < LEAST_SCORE {
            return Judgement::Usual;
        }
        let reached = self.scores.at_least(score);
        if self.is_anomalous && CONTINUED_ONE_IN * (reached + 1) <= known + 1 {
            return Judgement::Continues;
        }
        match 1_000 * (reached + 1) <= BEGIN_PER_MILLE * (known + 1) {
            true => Judgement::Begins,
            false => Judgement::Deviates,
        }
    }

    fn learn(&mut self, values: &[f64]) {
        self.jobs += 1;
        let is_due = self.jobs.is_multiple_of(REFRESH);
        for (usual, &value) in self.features.iter_mut().zip(values) {
            if value.is_finite() {
                usual.values.push(value);
            }
            if is_due && usual.values.len() >= WARM_UP {
                let formed = usual.values.median_and_mad(&mut self.scratch);
                (usual.median, usual.mad) = formed.unwrap_or_default();
                usual.is_formed = true;
            }
        }
    }
}
