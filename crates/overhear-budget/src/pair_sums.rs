// SPDX-License-Identifier: MIT OR Apache-2.0
//! The price of an event as a regression slope over randomised pairs of stretches.

use crate::EventPrice;

/// Hot functions whose passes are covariates at most.
pub const MAX_COVARIATES: usize = 8;
const COLUMNS: usize = MAX_COVARIATES + 1;

/// Pairs and effective pairs below which there is no slope.
const MIN_PAIRS: f64 = 8.0;
/// Pairs per column from which on covariates are used.
const PAIRS_PER_COLUMN: f64 = 6.0;
/// The standard error grows by `sqrt(1 + GUARD / n_eff)`: with few effective pairs the error of
/// least squares is far too small.
const LEVERAGE_GUARD: f64 = 400.0;
/// Sums are halved above this number of pairs, so old pairs fade.
pub(crate) const FORGET_ABOVE: f64 = 8192.0;

/// The difference of two stretches with the same number of passes, monitored minus plain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StretchPair {
    /// Difference of their times in ns. The caller has subtracted the cost of what other functions
    /// recorded in between, by their prices.
    pub time_ns: f64,
    /// Difference of the events recorded.
    pub events: f64,
    /// Differences of the passes of hot functions. Monitoring does not change passes, so they may
    /// explain time differences without bias. Unused ones are 0.
    pub passes: [f64; MAX_COVARIATES],
}

/// A slope: the price that pairs alone support.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceSlope {
    /// Cost of an event in ns. It may be negative by chance.
    pub ns: f64,
    /// Standard error in ns, with the guard for few effective pairs.
    pub error_ns: f64,
    /// Effective number of pairs: `(sum e^2)^2 / sum e^4`. One large pair among many small ones
    /// counts as one.
    pub effective_pairs: f64,
}

impl PriceSlope {
    /// The price by this slope and by what is known without it: their mean, weighted by inverse
    /// variance.
    #[must_use]
    pub fn shrunk_to(&self, prior: EventPrice) -> EventPrice {
        let (q0, s0) = (prior.as_ns(), prior.error_ns());
        if self.error_ns <= 0.0 || s0 <= 0.0 {
            return EventPrice::clamped(self.ns, self.error_ns);
        }
        let (a, b) = (s0.powi(-2), self.error_ns.powi(-2));
        EventPrice::clamped((q0 * a + self.ns * b) / (a + b), (a + b).sqrt().recip())
    }
}

/// Normal equations of the regression of time differences on event differences, through the
/// origin, with passes as covariates.
///
/// Pairs of several threads are merged by adding their sums. The order of the two stretches in a
/// pair is random, which makes the slope unbiased whatever the machine's speed does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairSums {
    n: f64,
    /// Sum of squared time differences.
    yy: f64,
    /// Sum of fourth powers of event differences.
    e4: f64,
    b: [f64; COLUMNS],
    /// Symmetric; the lower triangle is kept.
    a: [[f64; COLUMNS]; COLUMNS],
}

impl PairSums {
    /// Number of pairs; forgotten ones count in part.
    #[must_use]
    pub fn pairs(&self) -> f64 {
        self.n
    }

    /// Adds a pair.
    pub fn push(&mut self, pair: &StretchPair) {
        if self.n > FORGET_ABOVE {
            self.scale(0.5);
        }
        let mut x = [0.0; COLUMNS];
        x[0] = pair.events;
        x[1..].copy_from_slice(&pair.passes);
        self.n += 1.0;
        self.yy += pair.time_ns * pair.time_ns;
        self.e4 += pair.events.powi(4);
        for i in 0..COLUMNS {
            self.b[i] += pair.time_ns * x[i];
            for j in 0..=i {
                self.a[i][j] += x[i] * x[j];
            }
        }
    }

    /// Adds the pairs of another thread or of another time.
    pub fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.yy += other.yy;
        self.e4 += other.e4;
        for i in 0..COLUMNS {
            self.b[i] += other.b[i];
            for j in 0..=i {
                self.a[i][j] += other.a[i][j];
            }
        }
    }

    /// The same pairs without the passes of other functions: their columns are for other hot
    /// functions from now on.
    #[must_use]
    pub fn without_passes(&self) -> Self {
        let mut kept = Self {
            n: self.n,
            yy: self.yy,
            e4: self.e4,
            ..Self::default()
        };
        kept.b[0] = self.b[0];
        kept.a[0][0] = self.a[0][0];
        kept
    }

    /// Gives every pair the weight `by`; fourth powers carry the square of a weight.
    pub(crate) fn scale(&mut self, by: f64) {
        self.n *= by;
        self.yy *= by;
        self.e4 *= by * by;
        for i in 0..COLUMNS {
            self.b[i] *= by;
            for j in 0..=i {
                self.a[i][j] *= by;
            }
        }
    }

    /// The price by least squares; `None` below 8 effective pairs.
    ///
    /// Columns are scaled to the norm 1. Covariates get a ridge of 1e-4 + 2/n, and are used from 6
    /// pairs per column on; the slope gets a ridge of 1e-9, which keeps the matrix regular.
    #[must_use]
    pub fn slope(&self) -> Option<PriceSlope> {
        let e2 = self.a[0][0];
        if self.n < MIN_PAIRS || e2 <= 0.0 {
            return None;
        }
        let effective_pairs = e2 * e2 / self.e4;
        if effective_pairs < MIN_PAIRS {
            return None;
        }
        let used = (1..COLUMNS).filter(|&i| self.a[i][i] > 0.0).count() + 1;
        let columns: Vec<usize> = if self.n < PAIRS_PER_COLUMN * used as f64 {
            vec![0]
        } else {
            (0..COLUMNS).filter(|&i| self.a[i][i] > 0.0).collect()
        };
        let scale: Vec<f64> = columns
            .iter()
            .map(|&i| self.a[i][i].sqrt().recip())
            .collect();
        let k = columns.len();
        // Each row: the matrix, the right-hand side, the first unit vector.
        let mut rows = vec![[0.0; COLUMNS + 2]; k];
        for i in 0..k {
            for j in 0..k {
                let (low, high) = (columns[i].max(columns[j]), columns[i].min(columns[j]));
                rows[i][j] = self.a[low][high] * scale[i] * scale[j];
            }
            rows[i][i] += if i == 0 { 1e-9 } else { 1e-4 + 2.0 / self.n };
            rows[i][k] = self.b[columns[i]] * scale[i];
        }
        rows[0][k + 1] = 1.0;
        eliminate(&mut rows)?;
        let explained: f64 = (0..k)
            .map(|i| rows[i][k] * self.b[columns[i]] * scale[i])
            .sum();
        let residual = (self.yy - explained).max(0.0) / (self.n - k as f64).max(2.0);
        let guard = (1.0 + LEVERAGE_GUARD / effective_pairs).sqrt();
        Some(PriceSlope {
            ns: rows[0][k] * scale[0],
            error_ns: (residual * rows[0][k + 1].max(0.0)).sqrt() * scale[0] * guard,
            effective_pairs,
        })
    }
}

/// Gauss-Jordan elimination of a positive definite matrix with two right-hand sides.
fn eliminate(rows: &mut [[f64; COLUMNS + 2]]) -> Option<()> {
    let k = rows.len();
    for i in 0..k {
        let pivot = rows[i][i];
        if pivot.abs() < 1e-12 {
            return None;
        }
        for value in &mut rows[i][i..k + 2] {
            *value /= pivot;
        }
        let row = rows[i];
        for (at, other) in rows.iter_mut().enumerate() {
            let factor = other[i];
            if at != i && factor != 0.0 {
                for j in i..k + 2 {
                    other[j] -= factor * row[j];
                }
            }
        }
    }
    Some(())
}
